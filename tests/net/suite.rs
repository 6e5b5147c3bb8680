//! Sockets where std has nothing to compare with: cancelled fibers, time limits, conversion to
//! std's types and back, a lack of descriptors.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::net::{
    Shutdown, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
};
use indent::park::ParkReason;
use indent::runtime::Runtime;
use indent::task::{self, Mobility, Phase};
use indent::time;

use crate::common::{self, Random, wait_for, within};
use crate::sockets::{self, fresh_path, limit_descriptors, pattern};

const MS: Duration = Duration::from_millis(1);

fn start(workers: usize) -> Runtime {
    sockets::start(module_path!(), workers)
}

fn everywhere(body: fn()) {
    sockets::everywhere(module_path!(), body);
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A fiber that waits in an operation of a socket.
fn is_waiting(fiber: &task::Fiber) -> bool {
    fiber.phase() == Phase::Parked && fiber.park_reason() == ParkReason::Io
}

#[test]
fn a_fiber_that_waits_in_any_operation_ends_when_cancelled() {
    within(60, || {
        let rt = start(2);
        let (stream, _peer) = tcp_pair();
        let (full, _reader) = tcp_pair();
        let (listener, udp) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let path = fresh_path();
        let unix = UnixListener::bind(&path).unwrap();
        let (datagrams, _other) = UnixDatagram::pair().unwrap();
        let crowded = fresh_path();
        let slow = UnixDatagram::bind(&crowded).unwrap();
        let peeked = stream.try_clone().unwrap();
        let waiting = [
            rt.spawn(move || drop((&stream).read(&mut [0; 8]))),
            rt.spawn(move || drop(peeked.peek(&mut [0; 8]))),
            rt.spawn(move || {
                loop {
                    (&full).write_all(&pattern(1 << 20, 0)).unwrap();
                }
            }),
            rt.spawn(move || drop(listener.accept())),
            rt.spawn(move || drop(udp.recv_from(&mut [0; 8]))),
            rt.spawn(move || drop(unix.incoming().next())),
            rt.spawn(move || drop(datagrams.recv(&mut [0; 8]))),
            rt.spawn(move || {
                let sender = UnixDatagram::unbound().unwrap();
                loop {
                    sender.send_to(b"more", &crowded).unwrap();
                }
            }),
        ];
        for (i, fiber) in waiting.iter().enumerate() {
            let fiber = fiber.fiber();
            wait_for(&format!("operation {i}"), || is_waiting(&fiber));
        }
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report:?}");
        for fiber in waiting {
            assert!(fiber.join().unwrap_err().is_cancelled());
        }
        drop(slow);
    });
}

#[test]
fn a_destructor_can_use_a_socket_while_its_fiber_ends() {
    struct Farewell(TcpStream);
    impl Drop for Farewell {
        fn drop(&mut self) {
            self.0.write_all(b"bye").unwrap();
            self.0.read_exact(&mut [0; 3]).unwrap(); // waits, although the fiber is cancelled
        }
    }
    within(60, || {
        let rt = start(1);
        let (client, server) = tcp_pair();
        let fiber = rt.spawn(move || {
            let farewell = Farewell(client);
            (&farewell.0).read(&mut [0; 8]).map(drop)
        });
        let seen = fiber.fiber();
        wait_for("a waiting fiber", || is_waiting(&seen));
        let polite = std::thread::spawn(move || {
            let mut bye = [0; 3];
            (&server).read_exact(&mut bye).unwrap();
            std::thread::sleep(5 * MS);
            (&server).write_all(&bye).unwrap();
        });
        assert!(rt.shutdown_timeout(Duration::from_secs(60)).is_clean());
        polite.join().unwrap();
        assert!(fiber.join().unwrap_err().is_cancelled());
    });
}

/// Reads to the end, in pieces and under time limits that are often too short.
///
/// Returns the bytes and how often a limit passed.
fn read_under_limits(mut stream: impl Read, seed: u64) -> (Vec<u8>, usize) {
    let mut random = Random::new(seed);
    let (mut all, mut late) = (Vec::new(), 0);
    let mut buffer = [0; 700];
    loop {
        let limit = Duration::from_micros(random.below(3_000));
        let part = &mut buffer[..1 + random.below(699) as usize];
        match time::timeout(limit, || stream.read(part)) {
            Ok(Ok(0)) => return (all, late),
            Ok(result) => all.extend_from_slice(&part[..result.unwrap()]),
            Err(_) => late += 1,
        }
    }
}

/// Writes all bytes, under such limits.
fn write_under_limits(mut stream: impl Write, all: &[u8], seed: u64) -> usize {
    let mut random = Random::new(seed);
    let (mut left, mut late) = (all, 0);
    while !left.is_empty() {
        let limit = Duration::from_micros(random.below(3_000));
        let part = &left[..left.len().min(1 + random.below(400_000) as usize)];
        match time::timeout(limit, || stream.write(part)) {
            Ok(result) => left = &left[result.unwrap()..],
            Err(_) => late += 1,
        }
    }
    late
}

#[test]
fn time_limits_that_race_with_data_lose_no_byte_and_send_none_twice() {
    everywhere(|| {
        let (one, other) = tcp_pair();
        let hesitant = std::thread::spawn(move || {
            let (mut random, text) = (Random::new(5), pattern(60_000, 1));
            for part in text.chunks(1_000) {
                std::thread::sleep(Duration::from_micros(random.below(2_500)));
                (&one).write_all(part).unwrap();
            }
        });
        let (seen, late) = read_under_limits(&other, 6);
        assert!(seen == pattern(60_000, 1), "{} bytes", seen.len());
        assert!(late > 0, "no limit passed");
        hesitant.join().unwrap();

        let (one, other) = UnixStream::pair().unwrap();
        let lazy = std::thread::spawn(move || {
            let (mut random, mut all) = (Random::new(7), Vec::new());
            let mut buffer = vec![0; 100_000];
            loop {
                std::thread::sleep(Duration::from_micros(random.below(2_500)));
                match (&other).read(&mut buffer).unwrap() {
                    0 => return all,
                    n => all.extend_from_slice(&buffer[..n]),
                }
            }
        });
        let text = pattern(8 << 20, 2);
        let late = write_under_limits(&one, &text, 8);
        assert!(late > 0, "no limit passed");
        drop(one);
        assert!(lazy.join().unwrap() == text);
    });
}

#[test]
fn what_a_cancelled_fiber_has_not_read_is_read_by_the_next() {
    within(120, || {
        for round in 0..20 {
            let rt = start(2);
            let (one, other) = tcp_pair();
            let rest = other.try_clone().unwrap();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let stop = Arc::new(AtomicBool::new(false));
            let (shared, stopped) = (seen.clone(), stop.clone());
            let writer = std::thread::spawn(move || {
                let text = pattern(1 << 20, round);
                let mut sent = 0;
                while !stopped.load(SeqCst) {
                    sent += (&one)
                        .write(&text[sent..(sent + 300).min(text.len())])
                        .unwrap();
                    if sent == text.len() {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(20));
                }
                text[..sent].to_vec()
            });
            let reader = rt.spawn(move || -> () {
                loop {
                    let mut buffer = [0; 100];
                    let n = (&other).read(&mut buffer).unwrap();
                    shared.lock().unwrap().extend_from_slice(&buffer[..n]);
                }
            });
            let some = 500 * usize::from(round);
            wait_for("some data", || seen.lock().unwrap().len() >= some);
            assert!(rt.shutdown_timeout(Duration::from_secs(60)).is_clean());
            assert!(reader.join().unwrap_err().is_cancelled());
            stop.store(true, SeqCst);
            let sent = writer.join().unwrap();
            let mut all = std::mem::take(&mut *seen.lock().unwrap());
            (&rest).read_to_end(&mut all).unwrap();
            assert!(all == sent, "{} of {} bytes", all.len(), sent.len());
        }
    });
}

#[test]
fn two_fibers_share_one_stream_and_every_byte_goes_to_one_of_them() {
    within(60, || {
        let rt = start(2);
        let (one, other) = tcp_pair();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let clone = other.try_clone().unwrap();
                rt.spawn(move || {
                    let mut sums = [0usize; 256];
                    let mut buffer = [0; 1000];
                    loop {
                        match (&clone).read(&mut buffer).unwrap() {
                            0 => return sums,
                            n => buffer[..n].iter().for_each(|b| sums[usize::from(*b)] += 1),
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let clone = one.try_clone().unwrap();
                rt.spawn(move || (&clone).write_all(&pattern(1 << 20, seed)).unwrap())
            })
            .collect();
        writers.into_iter().for_each(|fiber| fiber.join().unwrap());
        one.shutdown(Shutdown::Write).unwrap();
        let mut sums = [0; 256];
        for reader in readers {
            let seen = reader.join().unwrap();
            (sums.iter_mut().zip(seen)).for_each(|(sum, part)| *sum += part);
        }
        for byte in [pattern(1 << 20, 0), pattern(1 << 20, 1)].concat() {
            sums[usize::from(byte)] -= 1;
        }
        assert_eq!(sums, [0; 256]);
    });
}

#[test]
fn a_shutdown_ends_a_read_that_waits() {
    everywhere(|| {
        let (one, _other) = tcp_pair();
        let clone = one.try_clone().unwrap();
        let fiber = indent::spawn(move || (&clone).read(&mut [0; 8]).unwrap());
        let seen = fiber.fiber();
        wait_for("a waiting fiber", || is_waiting(&seen));
        one.shutdown(Shutdown::Both).unwrap();
        assert_eq!(fiber.join().unwrap(), 0);
    });
}

#[test]
fn a_stream_goes_from_a_fiber_to_a_thread_to_std_and_back_and_always_waits() {
    within(60, || {
        let rt = start(1);
        let (mut ours, mut peer) = tcp_pair();
        let answer_late = move |byte: u8| {
            std::thread::sleep(5 * MS);
            peer.write_all(&[byte]).unwrap();
            peer
        };
        let mut byte = [0];
        // On a fiber, where the descriptor is registered.
        let on_fiber = rt.spawn(move || {
            let mut byte = [0];
            assert!(time::timeout(2 * MS, || ours.read(&mut byte)).is_err());
            ours
        });
        ours = on_fiber.join().unwrap();
        peer = answer_late(1);
        ours.read_exact(&mut byte).unwrap();
        // As std's type: a clone that blocks its thread while this crate's handle still exists.
        let clone = ours.try_clone().unwrap();
        let mut std_stream = clone.into_std();
        let mut late = peer.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            late.write_all(&[2]).unwrap();
        });
        std_stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [2]);
        writer.join().unwrap();
        drop(ours);
        let mut late = peer.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            late.write_all(&[3]).unwrap();
        });
        std_stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [3]);
        writer.join().unwrap();
        // And back, on a fiber.
        let mut ours = TcpStream::from(std_stream);
        let fiber = rt.spawn(move || {
            let mut byte = [0];
            ours.read_exact(&mut byte).unwrap();
            (byte, ours)
        });
        let seen = fiber.fiber();
        wait_for("a waiting fiber", || is_waiting(&seen));
        peer.write_all(&[4]).unwrap();
        let (byte, ours) = fiber.join().unwrap();
        assert_eq!(byte, [4]);
        drop(std::net::TcpStream::from(ours));
    });
}

#[test]
fn messages_that_come_together_are_read_one_by_one_from_a_socket_that_is_not_tcp() {
    within(60, || {
        let rt = start(1);
        let (one, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut stream = TcpStream::from(OwnedFd::from(one));
        let (all_are_sent, reads) = (Arc::new(AtomicBool::new(false)), 4);
        let sent = all_are_sent.clone();
        let reader = rt.spawn(move || {
            let lengths = (1..=reads).map(|_| {
                let length = stream.read(&mut [0; 64]).unwrap();
                wait_for("the others", || sent.load(SeqCst));
                length
            });
            lengths.collect::<Vec<_>>()
        });
        let seen = reader.fiber();
        wait_for("a waiting fiber", || is_waiting(&seen));
        for length in 1..=reads {
            other.send(&vec![0; length]).unwrap();
        }
        all_are_sent.store(true, SeqCst);
        assert_eq!(reader.join().unwrap(), [1, 2, 3, 4]);
    });
}

#[test]
fn a_listener_converted_to_std_blocks_and_its_clones_still_work() {
    within(60, || {
        let rt = start(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let late = move || {
            std::thread::spawn(move || {
                std::thread::sleep(5 * MS);
                std::net::TcpStream::connect(address).unwrap()
            })
        };
        let clone = listener.try_clone().unwrap();
        let std_listener = listener.into_std();
        let guest = late();
        std_listener.accept().unwrap(); // waits: else it would be an error
        guest.join().unwrap();
        let clone = rt.block_on(|| {
            assert!(time::timeout(5 * MS, || clone.accept()).is_err());
            clone
        });
        let fiber = rt.spawn(move || {
            clone.accept().unwrap();
            clone.set_nonblocking(true).unwrap();
            clone
        });
        let seen = fiber.fiber();
        wait_for("a waiting fiber", || is_waiting(&seen));
        late().join().unwrap();
        drop(fiber.join().unwrap());
        assert_eq!(
            std_listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        // The mode that the user has set stays across conversions in both directions.
        let ours = TcpListener::from(std_listener);
        assert_eq!(ours.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let std_listener = ours.into_std();
        assert_eq!(
            std_listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn two_fibers_that_accept_from_one_listener_get_a_connection_each() {
    within(60, || {
        let rt = start(2);
        let path = fresh_path();
        let listener = UnixListener::bind(&path).unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..2)
            .map(|_| {
                let (listener, accepted) = (listener.try_clone().unwrap(), accepted.clone());
                rt.spawn(move || {
                    while accepted.fetch_add(1, SeqCst) < 100 {
                        drop(listener.accept().unwrap());
                    }
                })
            })
            .collect();
        let guests: Vec<_> = (0..100)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(
            guests
                .iter()
                .all(|guest| (&mut &*guest).read(&mut [0]).unwrap() == 0)
        );
    });
}

#[test]
fn a_unix_stream_waits_until_there_is_room_in_the_queue_of_its_listener() {
    everywhere(|| {
        let path = fresh_path();
        let listener = UnixListener::bind(&path).unwrap();
        let connected = Arc::new(AtomicUsize::new(0));
        let is_enough = Arc::new(AtomicBool::new(false));
        let (count, enough) = (connected.clone(), is_enough.clone());
        let crowd = indent::spawn(move || {
            let mut guests = Vec::new();
            while !enough.load(SeqCst) && guests.len() < 8_000 {
                guests.push(UnixStream::connect(&path).unwrap());
                count.store(guests.len(), SeqCst);
            }
        });
        let fiber = crowd.fiber();
        wait_for("a queue that is full", || {
            is_waiting(&fiber) || crowd.is_finished()
        });
        if crowd.is_finished() {
            return common::skip("the queue of connections has no end");
        }
        let waiting = connected.load(SeqCst);
        drop(listener.accept().unwrap());
        wait_for("one more", || connected.load(SeqCst) > waiting);
        is_enough.store(true, SeqCst);
        drop(listener.accept().unwrap()); // for the connection that waits for a second time
        crowd.join().unwrap();
    });
}

#[test]
fn copies_go_from_stream_to_stream() {
    everywhere(|| {
        let ((one, mut proxy_in), (mut proxy_out, other)) = (tcp_pair(), tcp_pair());
        let proxy = indent::spawn(move || {
            let copied = io::copy(&mut proxy_in, &mut proxy_out).unwrap();
            proxy_out.shutdown(Shutdown::Write).unwrap();
            copied
        });
        let writer = indent::spawn(move || (&one).write_all(&pattern(3 << 20, 4)).unwrap());
        let mut all = Vec::new();
        (&other).read_to_end(&mut all).unwrap();
        assert!(all == pattern(3 << 20, 4));
        assert_eq!(proxy.join().unwrap(), 3 << 20);
        writer.join().unwrap();
    });
}

#[test]
fn literal_addresses_need_no_resolution_and_names_are_resolved_on_another_thread() {
    within(60, || {
        let rt = start(1);
        let lookups = |rt: &Runtime| {
            let metrics = rt.metrics();
            metrics.blocking_threads_active + metrics.blocking_threads_idle
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        rt.block_on(|| {
            drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
            drop(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
            drop(TcpStream::connect((String::from("127.0.0.1"), port)).unwrap());
            drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            udp.send_to(b"x", "127.0.0.1:9").unwrap();
        });
        assert_eq!(lookups(&rt), 0);
        rt.block_on(|| drop(TcpStream::connect(("localhost", port)).unwrap()));
        assert_eq!(lookups(&rt), 1);
    });
}

#[test]
fn a_fiber_that_uses_sockets_may_leave_its_thread() {
    if common::all_fibers_are_bound() {
        return;
    }
    within(60, || {
        common::wait_for_the_survey();
        let rt = start(1);
        let fiber = rt.spawn(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            // Not `write_all` and `read_exact`: which of the test harness's tables lies behind the
            // message they fail with, and seems to be part of it, depends on the build.
            assert_eq!(client.write(b"x").unwrap(), 1);
            assert_eq!(server.read(&mut [0]).unwrap(), 1);
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            udp.set_read_timeout(Some(MS)).unwrap();
            assert!(udp.recv_from(&mut [0]).is_err());
            let (mut reader, mut writer) = indent::io::pipe().unwrap();
            assert_eq!(writer.write(b"x").unwrap(), 1);
            assert_eq!(reader.read(&mut [0]).unwrap(), 1);
            task::current().unwrap().binding()
        });
        let binding = fiber.join().unwrap();
        assert_eq!(binding.mobility(), Mobility::Movable, "{binding:?}");
        // A park that has not been judged so far is judged, for the next fiber that comes there.
        wait_for("a movable fiber", || {
            let (stream, peer) = tcp_pair();
            let waiting = rt.spawn(move || (&stream).read(&mut [0; 8]).unwrap());
            let fiber = waiting.fiber();
            wait_for("a waiting fiber", || is_waiting(&fiber));
            let verdict = fiber.binding().mobility();
            drop(peer);
            assert_eq!(waiting.join().unwrap(), 0);
            verdict == Mobility::Movable
        });
    });
}

#[test]
fn a_listener_without_descriptors_pauses_reports_it_and_recovers() {
    let text = common::alone_in(module_path!(), "accepts_without_descriptors");
    assert!(text.contains("recovered twice"), "{text}");
}

mod child {
    use super::*;

    fn accept_without_descriptors() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _guests = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        drop(listener.accept().unwrap());
        let quiet = TcpListener::bind("127.0.0.1:0").unwrap();
        limit_descriptors(3); // all of which are taken
        let nothing = time::timeout(5 * MS, || quiet.accept());
        assert!(nothing.is_err(), "without a connection nothing is lacking");
        let start = Instant::now();
        for connection in listener.incoming().take(8) {
            let error = connection.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        }
        let pauses: u32 = [1, 2, 4, 8, 16, 32, 64, 100].iter().sum();
        assert!(start.elapsed() >= pauses * MS, "{:?}", start.elapsed());
        listener.set_nonblocking(true).unwrap();
        let error = listener.accept().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        listener.set_nonblocking(false).unwrap();
        // Descriptors come back, perhaps while it pauses.
        let relief = std::thread::spawn(|| {
            std::thread::sleep(20 * MS);
            limit_descriptors(u64::MAX);
        });
        assert!(listener.incoming().any(|connection| connection.is_ok()));
        relief.join().unwrap();
    }

    #[test]
    #[ignore = "limits the descriptors of its process"]
    fn accepts_without_descriptors() {
        let rt = start(1);
        accept_without_descriptors();
        rt.block_on(accept_without_descriptors);
        println!("recovered twice");
    }
}
