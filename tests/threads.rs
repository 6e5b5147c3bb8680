#![expect(
    unsafe_code,
    reason = "raises the limit on descriptors by a system call"
)]
//! How many threads fibers cost, and what happens where there are no more.
//!
//! Each case is a process of its own: threads and limits are the process's, and each starts cold,
//! before its code has been read.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime};
use indent::task::{JoinHandle, Phase};

mod common;

#[test]
fn a_barrier_of_a_hundred_thousand_bound_fibers_does_not_hang_at_a_limit_of_64_threads() {
    common::alone("barrier");
}

#[test]
fn five_thousand_bound_parents_that_join_a_child_do_not_hang_at_a_limit_of_64_threads() {
    common::alone("parents");
}

#[test]
fn bound_fibers_that_wait_for_each_other_all_start_beyond_the_soft_limit() {
    common::alone("beyond_the_soft_limit");
}

#[test]
fn ten_thousand_idle_connections_of_movable_fibers_need_few_threads() {
    common::alone("idle_connections");
}

#[test]
fn endless_fibers_that_are_spawned_at_once_have_all_started_in_the_stated_time() {
    common::alone("endless");
}

#[test]
fn threads_of_fibers_that_were_unjudged_are_free_when_the_code_has_been_read() {
    common::alone("judged_again");
}

mod child {
    use super::*;

    const WORKERS: usize = 2;

    /// A runtime whose fibers are all bound.
    fn binding(builder: Builder) -> Runtime {
        let rt = builder.workers(WORKERS).build().unwrap();
        rt.handle().bind_everything(true);
        rt
    }

    /// So many fibers that wait until all of them are there.
    fn wait_for_all(rt: &Runtime, here: &Arc<AtomicUsize>, fibers: usize) -> Vec<JoinHandle<()>> {
        let body = |here: Arc<AtomicUsize>| {
            move || {
                here.fetch_add(1, SeqCst);
                while here.load(SeqCst) < fibers {
                    indent::time::sleep(Duration::from_millis(50));
                }
            }
        };
        (0..fibers).map(|_| rt.spawn(body(here.clone()))).collect()
    }

    fn has_ended(fiber: &JoinHandle<()>) -> bool {
        fiber.is_finished()
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn barrier() {
        const FIBERS: usize = 100_000;
        let rt = binding(Builder::new().max_carriers(64));
        let here = Arc::new(AtomicUsize::new(0));
        let fibers = wait_for_all(&rt, &here, FIBERS);
        // Those that have a thread wait for ever for those that have not.
        common::wait_for("the others fail", || {
            fibers.iter().filter(|fiber| has_ended(fiber)).count() + 100 >= FIBERS
        });
        let inside = here.swap(FIBERS, SeqCst);
        assert!((32..=64).contains(&inside), "{inside} had a thread");
        let failed = fibers.into_iter().filter_map(|fiber| fiber.join().err());
        let failed: Vec<_> = failed.collect();
        assert!(failed.iter().all(indent::JoinError::is_no_thread));
        assert_eq!(failed.len(), FIBERS - inside);
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn parents() {
        const PARENTS: usize = 5_000;
        let rt = binding(Builder::new().max_carriers(64));
        let parent = || match indent::spawn(|| 1).join() {
            Ok(one) => one,
            Err(error) => {
                assert!(error.is_no_thread(), "{error}");
                0
            }
        };
        let parents: Vec<_> = (0..PARENTS).map(|_| rt.spawn(parent)).collect();
        let (mut joined, mut failed) = (0, 0);
        for fiber in parents {
            match fiber.join() {
                Ok(child) => joined += child,
                Err(error) => {
                    assert!(error.is_no_thread(), "{error}");
                    failed += 1;
                }
            }
        }
        println!("{joined} of {PARENTS} joined their child, {failed} had no thread");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn beyond_the_soft_limit() {
        const FIBERS: usize = 500;
        let rt = binding(Builder::new().soft_carriers(32).max_carriers(1_000));
        let here = Arc::new(AtomicUsize::new(0));
        let fibers = wait_for_all(&rt, &here, FIBERS);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        common::wait_for("threads end", || rt.metrics().carriers <= 16);
    }

    /// Raises the limit on descriptors as far as it goes, and returns it.
    fn raise_descriptors() -> usize {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the kernel writes to `limit`.
        let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        assert_eq!(got, 0);
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads from `limit`.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        assert_eq!(set, 0);
        limit.rlim_cur as usize
    }

    /// What a connection is served by; apart, so that no test's code is in its frames.
    #[inline(never)]
    fn serve(mut connection: indent::net::TcpStream) -> usize {
        let mut byte = [0];
        connection.read(&mut byte).unwrap_or(0)
    }

    #[test]
    #[ignore = "the clients of the test below, in a process of their own"]
    fn clients() {
        raise_descriptors();
        let variable = |name: &str| std::env::var(name).expect("set by the server");
        let address: std::net::SocketAddr = variable("SERVER").parse().unwrap();
        let count: usize = variable("CLIENTS").parse().unwrap();
        let connect = |_| std::net::TcpStream::connect(address).unwrap();
        let connections: Vec<_> = (0..count).map(connect).collect();
        let mut server = &connections[0];
        // Until the server ends.
        let _closed = server.read(&mut [0]);
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn idle_connections() {
        let connections = raise_descriptors().saturating_sub(300).min(10_000);
        if connections < 10_000 {
            return common::skip("a process may not have ten thousand open files");
        }
        common::wait_for_the_survey();
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        let listener = rt.block_on(|| indent::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let accepted = served.clone();
        let server = rt.spawn(move || {
            let fibers = (0..connections).map(|_| {
                let (connection, _) = listener.accept().unwrap();
                accepted.fetch_add(1, SeqCst);
                indent::spawn(move || serve(connection))
            });
            fibers.collect::<Vec<_>>()
        });
        let mut clients = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("child::clients")
            .args(common::CHILD)
            .env("SERVER", address.to_string())
            .env("CLIENTS", connections.to_string())
            .spawn()
            .unwrap();
        let fibers = server.join().unwrap();
        let waits = |fiber: &JoinHandle<usize>| fiber.fiber().phase() == Phase::Parked;
        common::wait_for("all wait", || fibers.iter().all(waits));
        common::wait_for("few threads", || rt.metrics().carriers <= WORKERS + 32);
        println!("{connections} connections, {:?}", rt.metrics().carriers);
        clients.kill().unwrap();
        clients.wait().unwrap();
        assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap() == 0));
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn endless() {
        const FIBERS: usize = 64;
        /// What the documentation of deferred starts says: 20 ms for each, and as much again for
        /// slices.
        const STATED: Duration = Duration::from_millis(2 * 20 * FIBERS as u64);
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        let (started, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let begun = Instant::now();
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let (started, stop) = (started.clone(), stop.clone());
                rt.spawn(move || {
                    started.fetch_add(1, SeqCst);
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        common::wait_for("all have started", || started.load(SeqCst) == FIBERS);
        let took = begun.elapsed();
        stop.store(true, SeqCst);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        println!("all {FIBERS} had started after {took:?}");
        // Four times as long: other programs run beside this one.
        assert!(took < 4 * STATED, "{took:?}");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn judged_again() {
        const FIBERS: usize = 100;
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        let fibers: Vec<_> = (0..FIBERS).map(|_| rt.spawn(indent::park::park)).collect();
        common::wait_for_the_survey();
        common::wait_for("few threads", || {
            let parked = fibers.iter().all(|f| f.fiber().phase() == Phase::Parked);
            parked && rt.metrics().carriers <= WORKERS + 16
        });
        for fiber in fibers {
            fiber.unparker().unpark();
            fiber.join().unwrap();
        }
    }
}
