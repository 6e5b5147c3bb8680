#![expect(
    unsafe_code,
    reason = "raises the limit on descriptors by a system call"
)]
//! How many threads fibers cost, and what happens when no more can be created.
//!
//! Each case is a process of its own: threads and limits belong to the process, and each case
//! starts cold, before its code has been read.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime};
use indent::task::{JoinHandle, Phase};

mod common;
mod limit;

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
fn bound_fibers_start_at_the_soft_limit_beside_a_stream_of_movable_starts() {
    let text = common::alone("soft_limit_beside_starts");
    assert!(text.contains("as INDENT_SOFT_CARRIERS allows"), "{text}");
    assert!(!text.contains("as INDENT_MAX_CARRIERS allows"), "{text}");
}

#[test]
fn bound_fibers_fail_at_the_hard_limit_beside_a_stream_of_movable_starts() {
    let text = common::alone("hard_limit_beside_starts");
    assert!(text.contains("as INDENT_MAX_CARRIERS allows"), "{text}");
    assert!(text.contains("waits for a thread to start on"), "{text}");
}

#[test]
fn fibers_that_compute_for_ever_get_equal_shares_of_the_processors() {
    common::alone("equal_shares");
}

#[test]
fn threads_are_made_while_fibers_that_compute_hold_the_lock_of_the_loader() {
    common::alone("loader_lock");
}

#[test]
fn a_shutdown_gives_up_on_a_fiber_that_keeps_the_lock_of_the_loader() {
    common::alone("shutdown_with_loader_lock");
}

#[test]
fn threads_of_fibers_that_were_unjudged_are_free_when_the_code_has_been_read() {
    common::alone("judged_again");
}

#[test]
fn threads_that_are_no_longer_needed_end_while_others_run_and_are_not_woken_meanwhile() {
    common::alone("no_longer_needed");
}

#[test]
fn fibers_that_the_system_refuses_a_thread_start_when_it_grants_some() {
    common::alone("refused_for_a_while");
}

#[test]
fn movable_fibers_run_on_while_the_system_refuses_threads() {
    common::alone("movable_beside_refused");
}

#[test]
fn fibers_that_the_system_refuses_a_thread_for_good_end_with_an_error() {
    let text = common::alone("refused_for_good");
    let reported = text.contains("indent: the system refuses to start another thread");
    assert!(reported || text.contains("SKIPPED"), "{text}");
}

mod child {
    use super::*;

    const WORKERS: usize = 2;

    /// Starts a runtime whose fibers are all bound.
    fn binding(builder: Builder) -> Runtime {
        let rt = builder.workers(WORKERS).build().unwrap();
        rt.handle().bind_everything(true);
        rt
    }

    /// Starts fibers that wait until all of them are there.
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
        // Fibers that have a thread wait forever for those that have none.
        common::wait_for("the others fail", || {
            fibers.iter().filter(|fiber| has_ended(fiber)).count() + 100 >= FIBERS
        });
        let inside = here.swap(FIBERS, SeqCst);
        // The two workers may admit one fiber each at the same moment.
        assert!((32..=65).contains(&inside), "{inside} had a thread");
        let failed = fibers.into_iter().filter_map(|fiber| fiber.join().err());
        let failed: Vec<_> = failed.collect();
        assert!(failed.iter().all(indent::JoinError::is_no_thread));
        assert_eq!(failed.len(), FIBERS - inside);
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn refused_for_a_while() {
        let Some((limit, rt, here, fibers)) = refused() else {
            return;
        };
        common::wait_for("some wait for a thread", || {
            rt.metrics().fibers_waiting_for_thread > REFUSED / 2
        });
        // All workers sleep for a while, and do not ask for threads repeatedly.
        const WHILE: Duration = Duration::from_millis(500);
        let _known = rt.wait_until_surveyed(None);
        let before = processor_time();
        std::thread::sleep(WHILE);
        let used = processor_time() - before;
        assert!(used < WHILE / 2, "{used:?} of {WHILE:?} with nothing to do");
        limit.lift();
        common::wait_for("all have started", || here.load(SeqCst) == REFUSED);
        for fiber in fibers {
            fiber.unparker().unpark();
            fiber.join().unwrap();
        }
    }

    /// Returns the CPU time this process has used so far.
    fn processor_time() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the kernel writes to `time`.
        let got = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        assert_eq!(got, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Number of fibers of [`refused`].
    const REFUSED: usize = 20;

    /// Returns a runtime that gets two more threads, bound fibers that count and park, and their
    /// count.
    #[expect(clippy::type_complexity, reason = "for two tests alone")]
    fn refused() -> Option<(limit::Limit, Runtime, Arc<AtomicUsize>, Vec<JoinHandle<()>>)> {
        let limit = limit::Limit::new()?;
        let rt = binding(Builder::new());
        let here = Arc::new(AtomicUsize::new(0));
        limit.allow(2);
        let park = |here: Arc<AtomicUsize>| {
            move || {
                here.fetch_add(1, SeqCst);
                indent::park::park();
            }
        };
        let fibers = (0..REFUSED).map(|_| rt.spawn(park(here.clone())));
        let fibers = fibers.collect();
        Some((limit, rt, here, fibers))
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn movable_beside_refused() {
        if common::all_fibers_are_bound() {
            return;
        }
        let Some(limit) = limit::Limit::new() else {
            return;
        };
        common::wait_for_the_survey();
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        let (turns, stop) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let ticking = rt.spawn({
            let (turns, stop) = (turns.clone(), stop.clone());
            move || tick(&turns, &stop)
        });
        let goes_on = || {
            let before = turns.load(SeqCst);
            common::wait_for("it goes on", || turns.load(SeqCst) > before + 100);
        };
        goes_on();
        limit.allow(4);
        let holding: Vec<_> = (0..REFUSED).map(|_| rt.spawn(hold)).collect();
        common::wait_for("threads are refused", || {
            rt.metrics().fibers_waiting_for_thread > 0
        });
        goes_on();
        std::thread::sleep(Duration::from_millis(200));
        goes_on();
        limit.lift();
        let waits = |fiber: &JoinHandle<()>| fiber.fiber().phase() == Phase::Parked;
        common::wait_for("all have started", || holding.iter().all(waits));
        stop.store(true, SeqCst);
        ticking.join().unwrap();
        for fiber in holding {
            fiber.unparker().unpark();
            fiber.join().unwrap();
        }
    }

    /// Sleeps repeatedly, in a function of its own so that no test's code is in its frames.
    #[inline(never)]
    fn tick(turns: &AtomicUsize, stop: &AtomicBool) {
        while !stop.load(SeqCst) {
            turns.fetch_add(1, SeqCst);
            indent::time::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn refused_for_good() {
        let Some((limit, _rt, here, parked)) = refused() else {
            return;
        };
        common::wait_for("the others fail", || {
            parked.iter().filter(|fiber| has_ended(fiber)).count() + here.load(SeqCst) == REFUSED
        });
        limit.lift();
        for fiber in parked {
            fiber.unparker().unpark();
            if let Err(error) = fiber.join() {
                assert!(error.is_no_thread(), "{error}");
            }
        }
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

    /// Raises the limit on descriptors as far as possible, and returns it.
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

    /// Serves a connection, in a function of its own so that no test's code is in its frames.
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
        // Returns when the server ends.
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

    static STOP: AtomicBool = AtomicBool::new(false);

    fn compute() {
        while !STOP.load(Relaxed) {
            std::hint::spin_loop();
        }
    }

    unsafe extern "C" fn compute_with_lock(
        _info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        _data: *mut libc::c_void,
    ) -> libc::c_int {
        compute();
        1 // stop at the first object
    }

    /// Starts fibers that compute until `STOP`; one of them holds the loader's lock meanwhile.
    fn hold_the_loader_lock() -> (Runtime, Vec<JoinHandle<()>>) {
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        rt.wait_until_surveyed(None); // which needs the lock
        let mut fibers: Vec<_> = (0..2 * WORKERS).map(|_| rt.spawn(compute)).collect();
        fibers.push(rt.spawn(|| {
            // SAFETY: the callback takes nothing and keeps nothing.
            unsafe { libc::dl_iterate_phdr(Some(compute_with_lock), std::ptr::null_mut()) };
        }));
        (rt, fibers)
    }

    /// Returns true if the condition becomes true in time.
    ///
    /// It does not panic, because a backtrace needs the lock that is held.
    fn comes(what: impl Fn() -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while !what() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        what()
    }

    /// Returns true once there are reports to be written, which needs the lock, too.
    fn has_reports(rt: &Runtime) -> bool {
        comes(|| rt.metrics().overruns_total >= 32)
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn shutdown_with_loader_lock() {
        let (rt, fibers) = hold_the_loader_lock();
        let reports = has_reports(&rt);
        let report = rt.shutdown_timeout(Duration::from_millis(200));
        STOP.store(true, SeqCst);
        assert!(reports && !report.is_clean(), "{report}");
        drop(fibers);
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn loader_lock() {
        const SLEEPERS: usize = 30;
        let (rt, mut fibers) = hold_the_loader_lock();
        let reports = has_reports(&rt);
        let asleep = Arc::new(AtomicUsize::new(0));
        for _ in 0..SLEEPERS {
            let asleep = asleep.clone();
            fibers.push(rt.spawn(move || {
                asleep.fetch_add(1, SeqCst);
                while !STOP.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(10)); // blocks its thread
                }
            }));
        }
        let threads = comes(|| asleep.load(SeqCst) == SLEEPERS);
        STOP.store(true, SeqCst);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(reports, "no overrun");
        assert!(threads, "some fiber got no thread");
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn endless() {
        const FIBERS: usize = 64;
        /// Time that the documentation of deferred starts states.
        ///
        /// It is 20 ms for each fiber, and the same again for slices.
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

    /// Starts bound fibers that park and hold their threads.
    ///
    /// Another fiber starts movable ones all the time, until the flag is set.
    fn hold_threads(rt: &Runtime, holders: usize, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
        /// A function of its own, so that no test's code is in its frames.
        #[inline(never)]
        fn nothing() {}
        let stopped = stop.clone();
        let stream = rt.spawn(move || {
            while !stopped.load(SeqCst) {
                indent::spawn(nothing).join().unwrap();
                indent::time::sleep(Duration::from_millis(1));
            }
        });
        let mut fibers: Vec<_> = (0..holders).map(|_| rt.spawn(hold)).collect();
        let waits = |fiber: &JoinHandle<()>| fiber.fiber().phase() == Phase::Parked;
        common::wait_for("they hold threads", || fibers.iter().all(waits));
        fibers.push(stream);
        fibers
    }

    thread_local! {
        static BORROWED: std::cell::RefCell<u64> = const { std::cell::RefCell::new(0) };
    }

    /// Parks while it borrows a thread-local.
    #[inline(never)]
    fn hold() {
        BORROWED.with_borrow_mut(park_and_count);
    }

    /// Has the address of the thread-local over the park.
    #[inline(never)]
    fn park_and_count(count: &mut u64) {
        indent::park::park();
        *count += 1;
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn soft_limit_beside_starts() {
        const SOFT: usize = 8;
        common::wait_for_the_survey();
        let builder = Builder::new().workers(WORKERS).soft_carriers(SOFT);
        let rt = builder.build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let holders = hold_threads(&rt, SOFT - WORKERS, &stop);
        let more: Vec<_> = (0..SOFT).map(|_| rt.spawn(hold)).collect();
        let waits = |fiber: &JoinHandle<()>| fiber.fiber().phase() == Phase::Parked;
        common::wait_for("all have started", || more.iter().all(waits));
        stop.store(true, SeqCst);
        for fiber in more.into_iter().chain(holders) {
            fiber.unparker().unpark();
            fiber.join().unwrap();
        }
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn hard_limit_beside_starts() {
        const HARD: usize = 8;
        common::wait_for_the_survey();
        let builder = Builder::new().workers(WORKERS).max_carriers(HARD);
        let builder = builder.start_timeout(Duration::from_secs(1));
        let rt = builder.build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let holders = hold_threads(&rt, HARD - WORKERS, &stop);
        let more: Vec<_> = (0..2 * HARD).map(|_| rt.spawn(hold)).collect();
        let settled =
            |fiber: &JoinHandle<()>| fiber.is_finished() || fiber.fiber().phase() == Phase::Parked;
        common::wait_for("all wait or fail", || more.iter().all(settled));
        let failed = more.iter().filter(|fiber| fiber.is_finished()).count();
        assert!(failed >= HARD, "{failed} failed");
        stop.store(true, SeqCst);
        for fiber in more.into_iter().chain(holders) {
            fiber.unparker().unpark();
            if let Err(error) = fiber.join() {
                assert!(error.is_no_thread(), "{error}");
            }
        }
    }

    /// Returns the loop turns of each fiber after this time; all of them have started before.
    fn turns(rt: &Runtime, fibers: usize, time: Duration) -> Vec<u64> {
        let counts: Arc<Vec<AtomicU64>> = Arc::new((0..fibers).map(|_| 0.into()).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let computing: Vec<_> = (0..fibers)
            .map(|i| {
                let (counts, stop) = (counts.clone(), stop.clone());
                rt.spawn(move || {
                    while !stop.load(Relaxed) {
                        for _ in 0..1000 {
                            std::hint::spin_loop();
                        }
                        counts[i].fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let look = || -> Vec<u64> { counts.iter().map(|count| count.load(Relaxed)).collect() };
        common::wait_for("all have started", || look().iter().all(|&count| count > 0));
        let before = look();
        std::thread::sleep(time);
        let after = look();
        stop.store(true, SeqCst);
        computing
            .into_iter()
            .for_each(|fiber| fiber.join().unwrap());
        (after.iter().zip(before))
            .map(|(after, before)| after - before)
            .collect()
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn equal_shares() {
        const FIBERS: usize = 8;
        // Long enough for each to have many slices.
        let seconds = std::env::var("INDENT_TEST_FULL").map_or(10, |_| 30);
        let rt = Builder::new().workers(WORKERS).build().unwrap();
        let turns = turns(&rt, FIBERS, Duration::from_secs(seconds));
        let mean = turns.iter().sum::<u64>() as f64 / FIBERS as f64;
        let shares: Vec<_> = turns.iter().map(|&turns| turns as f64 / mean).collect();
        println!("shares {shares:.3?}");
        let fair = |&share: &f64| (0.8..1.2).contains(&share);
        assert!(shares.iter().all(fair), "{shares:.3?}");
    }

    /// Returns how often the threads that run fibers have gone to sleep so far.
    fn sleeps() -> u64 {
        let field = |status: &str, name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let of = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let number = field(&status, "Name:")?.strip_prefix("indent-")?.to_owned();
            number.parse::<u64>().ok()?; // the other threads are the runtime's own
            field(&status, "voluntary_ctxt_switches:")?
                .parse::<u64>()
                .ok()
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.filter_map(|task| of(task.ok()?)).sum()
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn no_longer_needed() {
        const FIBERS: usize = 100;
        let rt = binding(Builder::new());
        let here = Arc::new(AtomicUsize::new(0));
        let fibers = wait_for_all(&rt, &here, FIBERS);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(rt.metrics().carriers >= FIBERS / 2, "{:?}", rt.metrics());
        // One worker stays awake from here on, without a sleep.
        let stop = Arc::new(AtomicBool::new(false));
        let runs = rt.spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Relaxed) {
                    indent::task::yield_now();
                }
            }
        });
        let (before, begun) = (sleeps(), Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        let ticks = begun.elapsed().as_millis() as u64;
        let slept = sleeps().saturating_sub(before);
        // Each of the threads wakes a few times at most, not at each tick.
        let most = ticks * FIBERS as u64 / 10;
        assert!(slept < most, "{slept} sleeps in {ticks} ticks");
        common::wait_for("few threads", || rt.metrics().carriers <= WORKERS + 8);
        stop.store(true, SeqCst);
        runs.join().unwrap();
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
