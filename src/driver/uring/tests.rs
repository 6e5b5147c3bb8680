use super::*;
use crate::driver::epoll::Epoll;
use crate::sys::address::Address;
use crate::sys::descriptor::Interest;
use crate::sys::eventfd;
use crate::sys::request::Request;
use crate::sys::socket::Take;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

#[path = "../../../tests/stuck/mod.rs"]
#[allow(dead_code, reason = "for other tests")]
mod stuck;

/// A ring, unless io_uring cannot be used here.
fn ring() -> Option<Uring> {
    ring_with(ENTRIES, COMPLETIONS)
}

fn ring_with(entries: u32, completions: u32) -> Option<Uring> {
    if let Some(error) = refusal() {
        eprintln!("SKIPPED rings: {error}");
        return None;
    }
    Some(Uring::with(entries, completions).unwrap())
}

/// Takes all completions.
fn all(ring: &Uring) -> Vec<(u64, i32)> {
    let mut all = Vec::new();
    loop {
        let mut batch = [Completion::default(); COMPLETION_BATCH];
        let taken = ring.take(&mut batch);
        all.extend(batch[..taken].iter().map(|c| (c.operation, c.result)));
        if taken < COMPLETION_BATCH {
            return all;
        }
    }
}

fn push(
    ring: &Uring,
    fd: impl AsFd,
    request: &mut Request<'_, '_>,
    message: &mut Message,
    number: usize,
) {
    let entry = entry(fd.as_fd(), request, message).expect("a ring carries out such requests");
    // SAFETY: each test waits for what it pushed.
    assert!(unsafe { ring.push(entry, number as u64) });
}

/// Pushes a request and waits until it is complete.
fn perform(ring: &Uring, fd: impl AsFd, request: &mut Request<'_, '_>) -> i32 {
    let mut message = Message::new();
    push(ring, fd, request, &mut message, 8);
    loop {
        ring.sleep(1, None);
        if let Some((number, result)) = all(ring).pop() {
            assert_eq!(number, 8);
            write_back(request, &message);
            return result;
        }
    }
}

#[test]
fn an_operation_completes_once_after_it_was_submitted() {
    let Some(ring) = ring() else { return };
    let (one, mut other) = UnixStream::pair().unwrap();
    let (mut buffer, mut message) = ([0; 8], Message::new());
    other.write_all(b"abc").unwrap();
    let request = &mut Request::Receive(&mut buffer, Take::Peek);
    push(&ring, &one, request, &mut message, 16);
    assert!(ring.is_pending());
    assert_eq!((all(&ring), ring.in_flight()), (vec![], 1), "not submitted");
    assert_eq!(ring.submit(), 1);
    assert_eq!((all(&ring), ring.in_flight()), (vec![(16, 3)], 0));
    assert_eq!(&buffer[..3], b"abc");
    let taken = perform(&ring, &one, &mut Request::Receive(&mut buffer, Take::Take));
    assert_eq!((taken, all(&ring)), (3, vec![]));
}

#[test]
fn messages_have_addresses_and_parts() {
    let Some(ring) = ring() else { return };
    let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = sockets
        .each_ref()
        .map(|socket| socket.local_addr().unwrap());
    let to = Address::from(addresses[1]);
    let mut whole = Request::SendTo(b"hello", &to);
    assert!(entry(sockets[0].as_fd(), &mut whole, &mut Message::new()).is_none());
    assert_eq!(whole.attempt(sockets[0].as_fd()).unwrap(), 5);
    let (mut buffer, mut from) = ([0; 8], Address::room());
    let request = &mut Request::ReceiveFrom(&mut buffer, Take::Take, &mut from);
    assert_eq!(perform(&ring, &sockets[1], request), 5);
    assert_eq!(from.to_inet().unwrap(), addresses[0]);
    let (one, other) = UnixStream::pair().unwrap();
    let parts = [io::IoSlice::new(b"ab"), io::IoSlice::new(b"cd")];
    assert_eq!(perform(&ring, &one, &mut Request::SendParts(&parts)), 4);
    let (mut first, mut second) = ([0; 1], [0; 9]);
    let mut parts = [&mut first[..], &mut second[..]].map(io::IoSliceMut::new);
    assert_eq!(
        perform(&ring, &other, &mut Request::ReceiveParts(&mut parts)),
        4
    );
    assert_eq!((&first, &second[..3]), (b"a", &b"bcd"[..]));
}

#[test]
fn connections_are_accepted_whatever_the_mode_of_the_listener() {
    let Some(ring) = ring() else { return };
    for nonblocking in [false, true] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(nonblocking).unwrap();
        let (mut from, mut message) = (Address::room(), Message::new());
        push(
            &ring,
            &listener,
            &mut Request::Accept(&mut from),
            &mut message,
            8,
        );
        ring.submit();
        assert_eq!(all(&ring), [], "it waits");
        let guest = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = loop {
            ring.sleep(1, None);
            if let Some((8, fd)) = all(&ring).pop() {
                break usize::try_from(fd).expect("a descriptor");
            }
        };
        let stream = std::net::TcpStream::from(crate::sys::descriptor::accepted(fd));
        assert_eq!(from.to_inet().unwrap(), guest.local_addr().unwrap());
        assert_eq!(stream.peer_addr().unwrap(), guest.local_addr().unwrap());
    }
}

#[test]
fn files_are_written_and_read_at_places() {
    let Some(ring) = ring() else { return };
    let path = std::env::temp_dir().join(format!("indent-uring-{}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        perform(&ring, &file, &mut Request::WriteAt(b"hello", 1 << 20)),
        5
    );
    let mut buffer = [0; 16];
    let request = &mut Request::ReadAt(&mut buffer, (1 << 20) + 1);
    assert_eq!(perform(&ring, &file, request), 4);
    assert_eq!(&buffer[..4], b"ello");
}

#[test]
fn a_cancelled_operation_reports_it_and_a_completed_one_is_not_changed() {
    let Some(ring) = ring() else { return };
    let (one, mut other) = UnixStream::pair().unwrap();
    let (mut buffer, mut message) = ([0; 8], Message::new());
    for is_done in [false, true] {
        let request = &mut Request::Receive(&mut buffer, Take::Take);
        push(&ring, &one, request, &mut message, 64);
        if is_done {
            ring.submit();
            other.write_all(b"x").unwrap();
        }
        ring.cancel(64);
        let answer = loop {
            ring.sleep(1, None);
            if let Some((64, result)) = all(&ring).pop() {
                break Answer::of(result);
            }
        };
        match answer {
            Answer::Cancelled if !is_done => {}
            Answer::Count(1) if is_done => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn neither_a_full_queue_nor_an_overflow_of_completions_loses_any() {
    const MANY: usize = 1_000;
    let Some(ring) = ring_with(8, 16) else { return };
    let (one, _other) = UnixStream::pair().unwrap();
    let mut message = Message::new();
    for i in 1..=MANY {
        push(
            &ring,
            &one,
            &mut Request::Ready(Interest::Write),
            &mut message,
            i * 8,
        );
    }
    let mut seen = Vec::new();
    while seen.len() < MANY {
        ring.submit();
        seen.extend(all(&ring));
    }
    seen.sort_unstable();
    let expected = (1..=MANY).map(|i| (i as u64 * 8, libc::POLLOUT as i32));
    assert!(seen.into_iter().eq(expected));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_notification_ends_a_sleep_and_the_next_one_whichever_carrier_sleeps() {
    for is_multishot in [true, false] {
        let Some(ring) = ring() else { return };
        lock(&ring.completions).is_multishot = is_multishot;
        for carrier in [1, 1, 2, 2, 1] {
            eventfd::notify(ring.waker());
            ring.sleep(carrier, None);
            assert!(all(&ring).is_empty());
        }
        let notified = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while !notified.load(SeqCst) {
                    ring.sleep(3, None);
                    assert!(all(&ring).is_empty());
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            notified.store(true, SeqCst);
            eventfd::notify(ring.waker());
            sleeper.join().unwrap();
        });
    }
}

#[test]
fn a_nudge_ends_a_sleep_and_the_next_one_though_the_waker_is_not_polled() {
    let Some(ring) = ring() else { return };
    ring.pretend_polled(1);
    ring.nudge();
    ring.submit();
    ring.sleep(1, None);
    assert!(all(&ring).is_empty());
    let nudged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            nudged.store(true, SeqCst);
            ring.nudge();
            ring.submit();
        });
        while !nudged.load(SeqCst) {
            ring.sleep(1, None);
            assert!(all(&ring).is_empty());
        }
    });
}

#[test]
fn a_cancel_for_which_there_is_no_room_is_not_forgotten() {
    let Some(ring) = ring_with(8, 64) else { return };
    let (one, _other) = UnixStream::pair().unwrap();
    let mut message = Message::new();
    for round in 0..3 {
        let numbers = [64, 72, 80];
        for number in numbers {
            let request = &mut Request::Ready(Interest::Read);
            push(&ring, &one, request, &mut message, number);
        }
        ring.submit();
        while {
            let entry = opcode::Nop::new().build().user_data(IGNORED);
            // SAFETY: names nothing.
            unsafe { ring.try_write(&entry) }
        } {}
        for number in numbers {
            ring.cancel(number as u64);
        }
        assert_eq!(lock(&ring.deferred).len(), 3);
        assert!(ring.is_pending());
        match round {
            0 => drop(ring.submit()),
            _ => ring.sleep(1, Some(Duration::from_millis(1))),
        }
        let mut seen = Vec::new();
        while seen.len() < numbers.len() {
            ring.submit();
            seen.extend(all(&ring));
        }
        seen.sort_unstable();
        assert_eq!(
            seen,
            numbers.map(|number| (number as u64, -libc::ECANCELED))
        );
        assert!(!ring.is_pending());
    }
}

#[test]
fn a_poll_of_the_waker_that_others_may_submit_has_no_owner() {
    let Some(ring) = ring() else { return };
    ring.pretend_polled(1);
    lock(&ring.completions).forget_owner();
    eventfd::notify(ring.waker());
    ring.sleep(1, None); // begins another
    assert!(all(&ring).is_empty());
}

#[test]
fn a_waker_whose_poll_a_stuck_thread_owned_wakes_another_thread() {
    const STUCK: Duration = Duration::from_millis(900);
    let Some(ring) = ring() else { return };
    let notified = std::sync::OnceLock::new();
    let (stuck, is_stuck) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let ring = &ring;
        scope.spawn(move || {
            ring.sleep(1, Some(Duration::from_millis(1)));
            stuck.send(()).unwrap();
            stuck::in_vfork(STUCK);
        });
        is_stuck.recv().unwrap();
        std::thread::sleep(STUCK / 10);
        let notified = &notified;
        scope.spawn(move || {
            std::thread::sleep(STUCK / 10);
            notified.get_or_init(Instant::now);
            eventfd::notify(ring.waker());
        });
        // The first wake may come from the end of the old poll.
        while notified.get().is_none() {
            ring.sleep(2, None);
            all(ring);
        }
        let late = notified.get().map_or(STUCK, Instant::elapsed);
        assert!(late < STUCK / 2, "{late:?}");
    });
}

#[test]
fn a_sleep_ends_after_its_time() {
    for has_limits in [true, false] {
        let Some(mut ring) = ring() else { return };
        ring.has_limits &= has_limits;
        ring.sleep(1, Some(Duration::from_millis(1))); // another test may have notified the waker
        all(&ring);
        let before = Instant::now();
        ring.sleep(1, Some(Duration::from_millis(3)));
        assert!(all(&ring).is_empty());
        assert!(before.elapsed() >= Duration::from_millis(3));
    }
}

#[test]
fn a_ring_in_an_epoll_instance_is_reported_once_after_it_was_armed() {
    let Some(ring) = ring() else { return };
    let outer = Epoll::new().unwrap();
    let count = || {
        let mut count = 0;
        outer.wait(Some(Duration::ZERO)).for_each(|_| count += 1);
        count
    };
    outer.add_once(ring.raw(), 5).unwrap();
    let (one, mut other) = UnixStream::pair().unwrap();
    let (mut buffer, mut message) = ([0; 8], Message::new());
    let request = &mut Request::Receive(&mut buffer, Take::Take);
    push(&ring, &one, request, &mut message, 8);
    ring.submit();
    outer.arm(ring.raw(), 5, true);
    assert_eq!(count(), 0, "nothing is complete");
    other.write_all(b"a").unwrap();
    assert_eq!((count(), count()), (1, 0), "once");
    assert_eq!(all(&ring), [(8, 1)]);
}

#[test]
#[ignore = "shows what the kernel does"]
fn how_late_a_completion_is_whose_submitter_is_stuck() {
    const STUCK: Duration = Duration::from_millis(900);
    for submitted in [true, false] {
        let Some(ring) = ring() else { return };
        let (one, mut other) = UnixStream::pair().unwrap();
        let (mut buffer, mut message) = ([0; 8], Message::new());
        push(
            &ring,
            &one,
            &mut Request::Receive(&mut buffer, Take::Take),
            &mut message,
            8,
        );
        let (stuck, is_stuck) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let ring = &ring;
            scope.spawn(move || {
                if submitted {
                    ring.submit();
                }
                stuck.send(()).unwrap();
                stuck::in_vfork(STUCK);
            });
            is_stuck.recv().unwrap();
            std::thread::sleep(STUCK / 10);
            let before = Instant::now();
            other.write_all(b"x").unwrap();
            while all(ring).is_empty() {
                ring.sleep(2, Some(Duration::from_millis(1)));
            }
            println!(
                "submitted by the stuck one: {submitted}: {:?}",
                before.elapsed()
            );
        });
    }
}
