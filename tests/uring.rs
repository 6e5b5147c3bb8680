#![expect(
    unsafe_code,
    reason = "forbids system calls by a filter, sets options of sockets"
)]
//! The choice of the I/O driver, and the extra promise of io_uring: nothing is left in flight.
//!
//! The promises of sockets and pipes are tested in `tests/net` and `tests/io`, for both drivers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::io::Source;
use indent::net::{TcpListener, TcpStream, UnixStream};
use indent::park::ParkReason;
use indent::runtime::{Builder, Io, IoDriver, Runtime};
use indent::task::{self, Phase};
use indent::{StartError, chan, select, time};

mod common;
mod filter;
mod sockets;

use common::{Random, wait_for, within};
use sockets::pattern;

const MS: Duration = Duration::from_millis(1);

/// Returns a builder with io_uring, or with epoll and a message where io_uring cannot be used.
fn ring(workers: usize) -> Builder {
    sockets::builder("uring").workers(workers)
}

fn is_waiting(fiber: &task::Fiber) -> bool {
    fiber.phase() == Phase::Parked && fiber.park_reason() == ParkReason::Io
}

#[test]
fn metrics_report_the_chosen_driver() {
    let reported = |builder: Builder| {
        let metrics = builder.workers(1).build().unwrap().metrics();
        (metrics.io_sockets, metrics.io_files)
    };
    let plain = (IoDriver::Epoll, IoDriver::BlockingPool);
    assert_eq!(reported(Builder::new().io(Io::Epoll)), plain);
    match Builder::new().io(Io::Uring).build() {
        Ok(rt) => {
            drop(rt);
            let all = (IoDriver::Uring, IoDriver::Uring);
            assert_eq!(reported(Builder::new().io(Io::Uring)), all);
            let auto = (IoDriver::Epoll, IoDriver::Uring);
            assert_eq!(reported(Builder::new().io(Io::Auto)), auto);
        }
        Err(_) => assert_eq!(reported(Builder::new().io(Io::Auto)), plain),
    }
}

#[test]
fn where_io_uring_is_forbidden_auto_uses_epoll_and_uring_is_an_error() {
    common::alone("forbidden");
}

mod child {
    use super::*;

    /// Makes `io_uring_setup` fail in this process and its children.
    fn forbid_io_uring(errno: libc::c_int) {
        let whose = filter::Whose::CallersOnly;
        filter::refuse(libc::SYS_io_uring_setup, None, errno, whose).unwrap();
    }

    fn echo(rt: &Runtime) {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let echo = rt.spawn(move || {
            let mut word = [0; 4];
            other.read_exact(&mut word).unwrap();
            other.write_all(&word).unwrap();
        });
        let fiber = echo.fiber();
        wait_for("a waiting fiber", || is_waiting(&fiber));
        one.write_all(b"ping").unwrap();
        let mut word = [0; 4];
        one.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"ping");
        echo.join().unwrap();
    }

    #[test]
    #[ignore = "forbids system calls to its process"]
    fn forbidden() {
        forbid_io_uring(libc::EPERM);
        for builder in [Builder::new(), Builder::new().io(Io::Auto)] {
            let rt = builder.workers(2).build().unwrap();
            let metrics = rt.metrics();
            assert_eq!(metrics.io_sockets.to_string(), "epoll");
            assert_eq!(metrics.io_files.to_string(), "blocking pool");
            echo(&rt);
        }
        let error = Builder::new().io(Io::Uring).build().unwrap_err();
        assert!(matches!(error, StartError::NoUring { setting: "io", .. }));
        // SAFETY: this process has no other thread that could read variables.
        unsafe { std::env::set_var("INDENT_IO", "uring") };
        let text = Builder::new().build().unwrap_err().to_string();
        for part in [
            "INDENT_IO = uring",
            "not permitted",
            "seccomp",
            "auto or epoll",
        ] {
            assert!(text.contains(part), "no '{part}' in: {text}");
        }
        echo(&Builder::new().io(Io::Epoll).build().unwrap()); // the method overrides the variable
        // SAFETY: as above.
        unsafe { std::env::set_var("INDENT_IO", "kqueue") };
        let text = Builder::new().build().unwrap_err().to_string();
        assert!(text.contains("auto or uring or epoll"), "{text}");
        // The strictest filter counts; here all return errors, and the newest one's error is
        // returned.
        forbid_io_uring(libc::ENOSYS);
        let text = Builder::new()
            .io(Io::Uring)
            .build()
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("Linux 5.10") || text.contains("seccomp"),
            "{text}"
        );
    }

    /// Returns how often the threads of this process, except the caller, were switched to.
    fn switches() -> BTreeMap<String, u64> {
        let me = std::fs::read_link("/proc/thread-self").unwrap();
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir("/proc/self/task").unwrap() {
            let entry = entry.unwrap();
            if Some(entry.file_name().as_os_str()) == me.file_name() {
                continue;
            }
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap();
            let lines = status
                .lines()
                .filter(|line| line.contains("_ctxt_switches:"));
            let counts = lines.map(|line| line.split_once(':').unwrap().1.trim().parse::<u64>());
            let name = status.lines().next().unwrap();
            let name = format!("{name} {}", entry.file_name().display());
            all.insert(name, counts.map(Result::unwrap).sum());
        }
        all
    }

    #[test]
    #[ignore = "needs a process where nothing else happens"]
    fn idle_selects() {
        const SETTLE: Duration = Duration::from_secs(1);
        let rt = ring(2).build().unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (to_end, ended) = chan::bounded::<()>(0);
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let source = Source::new(theirs.try_clone().unwrap()).unwrap();
                let ended = ended.clone();
                rt.spawn(move || {
                    select! {
                        readable(&source) -> ready => { ready.unwrap(); true }
                        recv(&ended) -> _ => false,
                    }
                })
            })
            .collect();
        for fiber in &waiting {
            let fiber = fiber.fiber();
            wait_for("a fiber that selects", || fiber.phase() == Phase::Parked);
        }
        common::wait_for_the_survey();
        std::thread::sleep(4 * SETTLE); // threads that were started for unjudged fibers have ended
        let before = switches();
        std::thread::sleep(2 * SETTLE);
        assert_eq!(before, switches(), "a thread woke up");
        assert!(before.len() > 3, "{before:?}");
        ours.write_all(b"!").unwrap();
        assert!(waiting.into_iter().all(|fiber| fiber.join().unwrap()));
        drop(to_end);
        wait_for("no operation", || rt.metrics().io_operations_active == 0);
    }

    /// Limits the number of open descriptors; returns the previous limit.
    fn limit_descriptors(to: u64) -> u64 {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the call writes to `limit`.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        let before = limit.rlim_cur;
        limit.rlim_cur = to;
        // SAFETY: the call reads `limit`.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        assert_eq!((known, set), (0, 0));
        before
    }

    /// Sets the CPUs that the calling thread may run on; returns the previous set.
    fn run_on(cpus: &libc::cpu_set_t) -> libc::cpu_set_t {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: all bits of this type may be zero.
        let mut before = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes to `before`, which is of that size.
        let known = unsafe { libc::sched_getaffinity(0, size, &mut before) };
        // SAFETY: the call reads `cpus`, which is of that size.
        let set = unsafe { libc::sched_setaffinity(0, size, cpus) };
        assert_eq!((known, set), (0, 0));
        before
    }

    #[test]
    #[ignore = "has few descriptors"]
    fn short_of_descriptors() {
        // SAFETY: all bits of this type may be zero.
        let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let first = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let first = first
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first = first.unwrap().trim().split([',', '-']).next().unwrap();
        // SAFETY: the number fits into the set.
        unsafe { libc::CPU_SET(first.parse().unwrap(), &mut one) };
        let all = run_on(&one);
        let rt = sockets::builder("uring").build().unwrap(); // one worker, with room for more
        run_on(&all);
        rt.handle().resize(2);
        if rt.metrics().io_sockets != IoDriver::Uring || rt.metrics().workers_in_service < 2 {
            return common::skip("one CPU, or no rings");
        }
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut to_source, from) = std::os::unix::net::UnixStream::pair().unwrap();
        let source = Source::new(from).unwrap();
        let before = limit_descriptors(3); // more are open
        let error = std::fs::File::open("/").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        let on_second = |body: Box<dyn FnOnce() + Send>| {
            rt.block_on(|| task::Builder::new().worker(1).spawn(body))
        };
        let reader = on_second(Box::new(move || {
            theirs.read_exact(&mut [0]).unwrap();
        }));
        let selects = on_second(Box::new(move || {
            let (_to_end, ended) = chan::bounded::<()>(0);
            select! {
                readable(&source) -> ready => ready.unwrap(),
                recv(&ended) -> _ => unreachable!(),
            }
        }));
        std::thread::sleep(50 * MS);
        assert!(!reader.is_finished() && !selects.is_finished());
        limit_descriptors(before);
        std::thread::sleep(50 * MS);
        ours.write_all(b"!").unwrap();
        to_source.write_all(b"!").unwrap();
        reader.join().unwrap();
        selects.join().unwrap();
        wait_for("no operation", || rt.metrics().io_operations_active == 0);
    }

    #[test]
    #[ignore = "leaves things behind"]
    fn abandoned() {
        for _ in 0..20 {
            let rt = ring(2).build().unwrap();
            let pairs: Vec<_> = (0..8).map(|_| UnixStream::pair().unwrap()).collect();
            let (ours, mut theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let readers: Vec<_> = ours
                .into_iter()
                .map(|mut stream| {
                    rt.spawn(move || {
                        let mut buffer = [0; 64];
                        drop(stream.read(&mut buffer));
                        std::hint::black_box(&buffer);
                    })
                })
                .collect();
            for reader in &readers {
                let fiber = reader.fiber();
                wait_for("a waiting fiber", || is_waiting(&fiber));
            }
            let report = rt.shutdown_timeout(Duration::ZERO);
            // A fiber that was not notified in time stays parked, and data that arrives later is
            // written to no other memory.
            theirs.iter_mut().for_each(|to| drop(to.write(b"late")));
            std::hint::black_box(vec![0_u8; 1 << 20]);
            println!(
                "{} of {} were abandoned",
                report.abandoned.len(),
                readers.len()
            );
            let next = ring(2).build().unwrap();
            echo(&next);
            assert_eq!(next.metrics().io_operations_active, 0);
        }
    }
}

#[test]
fn a_process_in_which_fibers_select_among_descriptors_does_nothing_meanwhile() {
    common::alone("idle_selects");
}

#[test]
fn a_select_is_notified_promptly_of_a_descriptor_however_long_it_has_waited() {
    within(60, || {
        let rt = ring(2).build().unwrap();
        let mut delays: Vec<_> = (0..15)
            .map(|_| {
                let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                let source = Source::new(theirs).unwrap();
                let (_to_end, ended) = chan::bounded::<()>(0);
                let fiber = rt.spawn(move || {
                    select! {
                        readable(&source) -> ready => ready.unwrap(),
                        recv(&ended) -> _ => unreachable!(),
                    }
                    Instant::now()
                });
                std::thread::sleep(50 * MS); // by now a loop with growing pauses would poll rarely
                let written = Instant::now();
                ours.write_all(b"!").unwrap();
                fiber.join().unwrap().duration_since(written)
            })
            .collect();
        delays.sort_unstable();
        println!("{delays:?}");
        assert!(delays[5] < 4 * MS, "{delays:?}");
        wait_for("no operation", || rt.metrics().io_operations_active == 0);
    });
}

#[test]
fn a_select_that_withdraws_leaves_no_poll_and_the_descriptor_is_closed() {
    within(60, || {
        let rt = ring(1).build().unwrap();
        for _ in 0..50 {
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            rt.block_on(move || {
                let source = Source::new(theirs).unwrap();
                let (_to_end, ended) = chan::bounded::<()>(0);
                select! {
                    readable(&source) -> _ => panic!("there is nothing"),
                    recv(&ended) -> _ => unreachable!(),
                    after(MS) => {}
                }
                drop(source);
            });
            assert_eq!(ours.read(&mut [0]).unwrap(), 0, "the end");
        }
        wait_for("no operation", || rt.metrics().io_operations_active == 0);
    });
}

/// Races withdrawals with completions.
///
/// Meanwhile fibers are preempted at any instruction, and descriptors are opened and closed.
#[test]
fn stress_a_select_among_descriptors_misses_nothing_and_is_notified_once() {
    const PAIRS: u64 = 12;
    const ROUNDS: u64 = 12;
    const MESSAGES: u64 = 40;
    within(120, || {
        let rt = ring(2)
            .preempt_quantum(Duration::from_micros(200))
            .build()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs = [(); 2].map(|()| {
            let stop = stop.clone();
            rt.spawn(move || {
                while !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
            })
        });
        let pairs: Vec<_> = (0..PAIRS)
            .map(|pair| {
                rt.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut random = Random::new(1_000 * pair + round);
                        let (mut to_source, from) = std::os::unix::net::UnixStream::pair().unwrap();
                        from.set_nonblocking(true).unwrap();
                        let source = Source::new(from).unwrap();
                        let (tx, rx) = chan::bounded(1);
                        let sender = indent::spawn(move || {
                            for _ in 0..MESSAGES {
                                match random.below(4) {
                                    0 => time::sleep(Duration::from_micros(random.below(1_500))),
                                    1 => task::yield_now(),
                                    _ => {}
                                }
                                match random.below(2) {
                                    0 => tx.send(()).unwrap(),
                                    _ => to_source.write_all(b"!").unwrap(),
                                }
                            }
                            (tx, to_source) // nothing ends before everything is received
                        });
                        let mut random = Random::new(7_000 + 1_000 * pair + round);
                        let mut received = 0;
                        while received < MESSAGES {
                            select! {
                                readable(&source) -> ready => {
                                    ready.unwrap();
                                    let mut stream = source.get_ref();
                                    received += stream.read(&mut [0; 64]).unwrap() as u64;
                                }
                                recv(&rx) -> message => { message.unwrap(); received += 1; }
                                after(Duration::from_micros(random.below(1_000))) => {}
                            }
                        }
                        drop(source);
                        drop(sender.join().unwrap());
                    }
                })
            })
            .collect();
        pairs.into_iter().for_each(|pair| pair.join().unwrap());
        stop.store(true, SeqCst);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
        wait_for("no operation", || rt.metrics().io_operations_active == 0);
        assert!(rt.metrics().freezes_total > 0, "nobody was stopped");
    });
}

#[test]
fn a_fiber_whose_worker_can_make_no_ring_waits_until_it_can_and_gets_no_error() {
    common::alone("short_of_descriptors");
}

#[test]
fn a_fiber_abandoned_in_an_operation_keeps_its_stack_and_the_next_runtime_works() {
    common::alone("abandoned");
}

#[test]
fn an_operation_is_submitted_and_completed_while_its_worker_computes() {
    within(60, || {
        for round in 0..20 {
            let rt = ring(1).build().unwrap();
            let (mut one, mut other) = UnixStream::pair().unwrap();
            let seen = Arc::new(AtomicBool::new(false));
            let (notified, looks) = (seen.clone(), seen.clone());
            let (reader, hog) = rt.block_on(move || {
                let reader = indent::spawn(move || {
                    other.read_exact(&mut [0]).unwrap();
                    notified.store(true, SeqCst);
                });
                let hog = indent::spawn(move || {
                    while !looks.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                });
                (reader, hog)
            });
            std::thread::sleep(round % 5 * MS);
            one.write_all(b"x").unwrap();
            reader.join().unwrap();
            hog.join().unwrap();
            assert_eq!(rt.metrics().io_operations_active, 0);
        }
    });
}

#[test]
fn a_fiber_that_waits_with_a_retired_worker_is_notified() {
    within(60, || {
        for builder in [ring(4), Builder::new().io(Io::Epoll).workers(4)] {
            let rt = builder.build().unwrap();
            let pairs: Vec<_> = (0..8).map(|_| UnixStream::pair().unwrap()).collect();
            let (ours, mut theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let readers: Vec<_> = ours
                .into_iter()
                .enumerate()
                .map(|(i, mut stream)| {
                    let body = move || stream.read(&mut [0; 8]).unwrap();
                    rt.block_on(|| task::Builder::new().worker(i % 4).spawn(body))
                })
                .collect();
            for reader in &readers {
                let fiber = reader.fiber();
                wait_for("a waiting fiber", || is_waiting(&fiber));
            }
            rt.handle().resize(1);
            wait_for("one worker", || rt.metrics().workers_in_service == 1);
            theirs
                .iter_mut()
                .for_each(|to| to.write_all(b"news").unwrap());
            for reader in readers {
                assert_eq!(reader.join().unwrap(), 4);
            }
            assert_eq!(rt.metrics().io_operations_active, 0);
        }
    });
}

#[test]
fn idle_connections_are_operations_in_flight_and_end_with_their_fibers() {
    const MANY: usize = 300; // more than fit into a submission queue
    within(60, || {
        let rt = ring(2).build().unwrap();
        if rt.metrics().io_sockets != IoDriver::Uring {
            return; // already reported
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let count = served.clone();
        let acceptor = rt.spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, count) = (stream.unwrap(), count.clone());
                drop(indent::spawn(move || {
                    let mut buffer = [0; 64];
                    while stream.read(&mut buffer).unwrap() > 0 {}
                    count.fetch_add(1, SeqCst);
                }));
            }
        });
        let streams: Vec<_> = (0..MANY)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        // One more: the acceptor's own operation.
        wait_for("operations", || {
            rt.metrics().io_operations_active == MANY + 1
        });
        drop(streams);
        wait_for("the ends", || served.load(SeqCst) == MANY);
        wait_for("one operation", || rt.metrics().io_operations_active == 1);
        let handle = rt.handle().clone();
        assert!(rt.shutdown_timeout(Duration::from_secs(60)).is_clean());
        assert_eq!(handle.metrics().io_operations_active, 0);
        assert!(acceptor.join().unwrap_err().is_cancelled());
    });
}

/// Returns a socket with an entry in its error queue.
///
/// `poll` always reports it ready, and it has nothing to read.
fn with_an_error_in_its_queue() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let on: libc::c_int = 1;
    let size = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the call reads `on`, which is of that size.
    let set = unsafe {
        let (at, fd) = ((&raw const on).cast(), socket.as_raw_fd());
        libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_RECVERR, at, size)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(closed.local_addr().unwrap()).unwrap();
    drop(closed);
    socket.set_nonblocking(true).unwrap();
    socket.send(b"x").unwrap();
    let mut error = socket.recv(&mut [0; 8]).unwrap_err();
    while error.kind() == std::io::ErrorKind::ConnectionRefused {
        error = socket.recv(&mut [0; 8]).unwrap_err(); // reported once, and left in the queue
    }
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    socket
}

#[test]
fn a_socket_always_ready_with_nothing_to_read_keeps_no_worker_busy_and_its_fiber_can_end() {
    within(60, || {
        let rt = ring(1).build().unwrap();
        let source = Arc::new(Source::new(with_an_error_in_its_queue()).unwrap());
        let tries = Arc::new(AtomicUsize::new(0));
        let (late, count) = (source.clone(), tries.clone());
        let read = move |source: &Source<std::net::UdpSocket>| {
            source.read_with(|socket| {
                count.fetch_add(1, SeqCst);
                socket.recv(&mut [0; 8])
            })
        };
        let (first, second) = (read.clone(), read);
        rt.block_on(move || time::timeout(100 * MS, || first(&late)).unwrap_err());
        let tried = tries.swap(0, SeqCst);
        assert!(tried < 100, "tried {tried} times in a tenth of a second");
        // The same, by the operation of a socket.
        let socket = indent::net::UdpSocket::from(with_an_error_in_its_queue());
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(50 * MS)).unwrap();
        let error = rt.block_on(|| socket.recv(&mut [0; 8]).unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        let reader = rt.spawn(move || second(&source));
        wait_for("many tries", || tries.load(SeqCst) > 18);
        let handle = rt.handle().clone();
        assert!(rt.shutdown_timeout(Duration::from_secs(30)).is_clean());
        assert!(reader.join().unwrap_err().is_cancelled());
        assert_eq!(handle.metrics().io_operations_active, 0);
    });
}

/// Writes `all` in pieces, under time limits that often pass.
fn write_hastily(mut stream: UnixStream, all: &[u8], random: &mut Random) {
    let mut left = all;
    while !left.is_empty() {
        let limit = Duration::from_micros(random.below(1_500));
        let part = &left[..left.len().min(1 + random.below(100_000) as usize)];
        if let Ok(result) = time::timeout(limit, || stream.write(part)) {
            left = &left[result.unwrap()..];
        }
    }
}

/// Reads to the end, under such limits, by an option of the socket or by `timeout`.
fn read_hastily(mut stream: UnixStream, random: &mut Random) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 70_000];
    loop {
        let limit = Duration::from_micros(1 + random.below(1_500));
        let part = &mut buffer[..1 + random.below(69_999) as usize];
        let by_socket = random.below(2) == 0;
        stream.set_read_timeout(by_socket.then_some(limit)).unwrap();
        let result = if by_socket {
            stream.read(part)
        } else {
            match time::timeout(limit, || stream.read(part)) {
                Ok(result) => result,
                Err(_) => continue,
            }
        };
        match result {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&part[..n]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Races deadlines and cancellations with data, while fibers are preempted at any instruction.
///
/// Some of the fibers compute.
#[test]
fn stress_no_byte_is_lost_or_sent_twice_and_nothing_stays_in_flight() {
    const PAIRS: usize = 24;
    const BYTES: usize = 400_000;
    within(120, || {
        let seed = 20;
        println!("seed {seed}");
        let rt = ring(2)
            .preempt_quantum(Duration::from_micros(200))
            .build()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..2)
            .map(|_| {
                let stop = stop.clone();
                rt.spawn(move || {
                    while !stop.load(SeqCst) {
                        std::hint::black_box(
                            [0_u8; 100].iter().map(|b| u64::from(*b)).sum::<u64>(),
                        );
                    }
                })
            })
            .collect();
        // These fibers are cancelled in between, and what they have not read is left for others.
        let doomed = ring(2)
            .preempt_quantum(Duration::from_micros(200))
            .build()
            .unwrap();
        let pairs: Vec<_> = (0..PAIRS)
            .map(|i| {
                let (one, other) = UnixStream::pair().unwrap();
                let mut random = Random::new(seed + 2 * i as u64);
                let writer =
                    rt.spawn(move || write_hastily(one, &pattern(BYTES, i as u8), &mut random));
                let mut first = other.try_clone().unwrap();
                let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
                let seen = begun.clone();
                drop(doomed.spawn(move || {
                    let mut buffer = [0; 300];
                    loop {
                        let n = first.read(&mut buffer).unwrap();
                        seen.lock().unwrap().extend_from_slice(&buffer[..n]);
                    }
                }));
                (i, other, begun, writer)
            })
            .collect();
        std::thread::sleep(20 * MS);
        let handle = doomed.handle().clone();
        assert!(doomed.shutdown_timeout(Duration::from_secs(60)).is_clean());
        assert_eq!(handle.metrics().io_operations_active, 0);
        let readers: Vec<_> = pairs
            .into_iter()
            .map(|(i, other, begun, writer)| {
                let mut random = Random::new(seed + 2 * i as u64 + 1);
                let reader = rt.spawn(move || read_hastily(other, &mut random));
                (i, begun, reader, writer)
            })
            .collect();
        for (i, begun, reader, writer) in readers {
            writer.join().unwrap();
            let mut all = std::mem::take(&mut *begun.lock().unwrap());
            all.extend(reader.join().unwrap());
            assert!(
                all == pattern(BYTES, i as u8),
                "pair {i}: {} bytes",
                all.len()
            );
        }
        stop.store(true, SeqCst);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
        let metrics = rt.metrics();
        assert_eq!(metrics.io_operations_active, 0);
        assert!(metrics.freezes_total > 0, "nobody was stopped");
    });
}
