//! `runtime::blocking`: where closures run, what they may borrow, how they end, and how many
//! threads there are.
//!
//! Tests that count threads, make thread creation fail, or leave threads behind run in a process of
//! their own (module `child`).

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use indent::park::ParkReason;
use indent::runtime::{Builder, Handle, Runtime, blocking, spawn_blocking};
use indent::task;
use limit::Limit;

mod common;
mod limit;

/// Time limit that no clean shutdown comes close to.
const LONG: Duration = Duration::from_secs(100);
/// Time limit for a shutdown that cannot be clean.
const SHORT: Duration = Duration::from_millis(300);

/// Starts a runtime without preemption.
///
/// Threads are counted, and preemption would start and end threads for interrupted fibers.
fn uninterrupted(workers: usize) -> Runtime {
    let builder = Builder::new().workers(workers).preempt(false);
    builder.build().expect("a runtime")
}

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Name of the pool's threads, as far as the kernel stores it.
const BLOCKING: &str = "indent-blocking";

fn thread_name() -> String {
    common::thread_name()
}

/// A latch that opens once; until then callers wait and block their thread.
#[derive(Default)]
struct Latch(Mutex<bool>, Condvar);

impl Latch {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.lock().unwrap();
        drop(self.1.wait_while(open, |open| !*open).unwrap());
    }
}

/// Counts the closures that are inside now, and the most there have been at once.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    fn enter(&self) -> usize {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        now
    }

    fn leave(&self) {
        self.now.fetch_sub(1, SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(SeqCst)
    }
}

#[test]
fn the_closure_runs_on_a_thread_of_the_pool_and_borrows_from_its_caller() {
    let rt = Builder::new()
        .workers(1)
        .thread_name("own")
        .build()
        .unwrap();
    let mut words = vec!["mine"];
    let name = rt.block_on(|| {
        blocking(|| {
            words.push("and the pool's");
            thread_name()
        })
    });
    assert_eq!(words, ["mine", "and the pool's"]);
    assert!(name.starts_with("own-blocking-"), "{name}");
}

#[test]
fn on_a_plain_thread_and_inside_the_pool_the_closure_is_simply_called() {
    let here = std::thread::current().id();
    assert_eq!(blocking(|| std::thread::current().id()), here);
    let rt = runtime(1);
    rt.block_on(|| {
        blocking(|| {
            let pool = std::thread::current().id();
            assert_ne!(pool, here);
            assert_eq!(blocking(|| blocking(|| std::thread::current().id())), pool);
        });
    });
}

#[test]
fn a_panic_goes_on_in_the_caller_with_its_payload() {
    #[derive(Debug, PartialEq)]
    struct Payload(Vec<u32>);

    let rt = runtime(1);
    rt.block_on(|| {
        for n in 0..10 {
            let caught = catch_unwind(|| blocking(|| panic_any(Payload(vec![n]))));
            let payload = caught.expect_err("it panicked").downcast::<Payload>();
            assert_eq!(*payload.expect("the same payload"), Payload(vec![n]));
        }
        assert_eq!(blocking(|| 7), 7, "the pool is as good as new");
    });
    let panicked = rt.spawn(|| blocking(|| panic_any("no luck"))).join();
    let payload = panicked.unwrap_err().into_panic();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"no luck"));
}

#[test]
fn inside_the_closure_the_current_runtime_is_that_of_the_caller() {
    let rt = Builder::new()
        .workers(1)
        .thread_name("own")
        .build()
        .unwrap();
    let names = rt.block_on(|| {
        blocking(|| {
            let spawned = indent::spawn(thread_name).join().unwrap();
            (spawned, Handle::current().block_on(thread_name))
        })
    });
    assert!(names.0.starts_with("own-"), "{names:?}");
    assert_eq!(names.0, names.1);
    let refused = rt.block_on(|| catch_unwind(AssertUnwindSafe(|| blocking(|| rt.wait_idle()))));
    assert!(refused.is_err(), "it would wait for itself");
}

#[test]
fn other_fibers_run_meanwhile() {
    let rt = runtime(1);
    rt.block_on(|| {
        let latch = Arc::new(Latch::default());
        let opener = indent::spawn({
            let latch = latch.clone();
            move || latch.open()
        });
        blocking(|| latch.wait()); // on the only worker this would deadlock
        opener.join().unwrap();
    });
}

#[test]
fn large_closures_and_results_are_carried_whole() {
    let rt = runtime(1);
    rt.block_on(|| {
        let table = [7u64; 2000];
        let doubled = blocking(move || table.map(|n| 2 * n));
        assert!(doubled.iter().all(|n| *n == 14));
    });
}

#[test]
fn a_destructor_may_block_while_its_fiber_unwinds() {
    struct Flushes<'a>(&'a AtomicUsize);

    impl Drop for Flushes<'_> {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            let name = blocking(thread_name);
            assert!(name.contains("-blocking-"), "{name}");
            self.0.fetch_add(1, SeqCst);
        }
    }

    let rt = runtime(2);
    let flushed = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..50)
        .map(|_| {
            let flushed = flushed.clone();
            rt.spawn(move || {
                let _first = Flushes(&flushed);
                let _second = Flushes(&flushed);
                std::panic::resume_unwind(Box::new("unwind"));
            })
        })
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap_err().is_panic());
    }
    assert_eq!(flushed.load(SeqCst), 100);
}

#[test]
fn a_request_to_end_does_not_interrupt() {
    let rt = runtime(1);
    let (latch, log) = (Arc::new(Latch::default()), Arc::new(Mutex::new(Vec::new())));
    let fiber = rt.spawn({
        let (latch, log) = (latch.clone(), log.clone());
        move || {
            let borrowed = log.lock().unwrap().len();
            blocking(|| {
                latch.wait();
                log.lock().unwrap().push(borrowed);
            });
            log.lock().unwrap().push(borrowed + 1);
            task::checkpoint();
            log.lock().unwrap().push(100);
        }
    });
    common::wait_for("the call to block", || {
        fiber.fiber().park_reason() == ParkReason::Blocking
    });
    let asked = fiber.fiber();
    let opener = std::thread::spawn(move || {
        common::wait_for("the request to end", || asked.is_cancelled());
        std::thread::sleep(Duration::from_millis(20));
        latch.open();
    });
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(fiber.join().unwrap_err().is_cancelled());
    assert_eq!(*log.lock().unwrap(), [0, 1], "to its end, and no further");
    opener.join().unwrap();
}

/// Starts five fibers whose calls wait for the latch, on a pool of one thread.
///
/// Each call counts itself after the latch opens.
fn five_calls_for_one_thread() -> (
    Runtime,
    Arc<Latch>,
    Arc<AtomicUsize>,
    Vec<indent::JoinHandle<usize>>,
) {
    let rt = Builder::new()
        .workers(1)
        .blocking_threads(1)
        .build()
        .unwrap();
    rt.wait_until_surveyed(None);
    let (latch, ran) = (Arc::new(Latch::default()), Arc::new(AtomicUsize::new(0)));
    let fibers: Vec<_> = (0..5)
        .map(|_| {
            let (latch, ran) = (latch.clone(), ran.clone());
            rt.spawn(move || {
                blocking(|| {
                    latch.wait();
                    ran.fetch_add(1, SeqCst)
                })
            })
        })
        .collect();
    let waits = |f: &indent::JoinHandle<usize>| f.fiber().park_reason() == ParkReason::Blocking;
    common::wait_for("all calls", || fibers.iter().all(waits));
    (rt, latch, ran, fibers)
}

#[test]
fn calls_that_are_queued_when_the_runtime_shuts_down_still_run() {
    let (rt, latch, ran, fibers) = five_calls_for_one_thread();
    common::wait_for("the first to be taken", || {
        rt.metrics().blocking_queue_depth == 4
    });
    let metrics = rt.metrics();
    assert_eq!(metrics.blocking_threads_active, 1);
    assert_eq!(metrics.blocking_threads_idle, 0);
    let asked = fibers[4].fiber();
    let opener = std::thread::spawn(move || {
        common::wait_for("the request to end", || asked.is_cancelled());
        latch.open();
    });
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert_eq!(ran.load(SeqCst), 5);
    assert!(fibers.into_iter().all(|fiber| fiber.join().is_ok()));
    opener.join().unwrap();
}

#[test]
fn five_hundred_and_twelve_calls_block_at_once_and_no_more() {
    common::alone("as_many_as_allowed_block_at_once");
}

#[test]
fn short_calls_one_after_the_other_share_a_thread_or_two() {
    let rt = runtime(2);
    let served = Mutex::new(HashSet::new());
    rt.block_on(|| {
        for _ in 0..1000 {
            blocking(|| served.lock().unwrap().insert(std::thread::current().id()));
        }
    });
    // A thread that is preempted between its last call and its sleep is replaced by another thread.
    let threads = served.lock().unwrap().len();
    assert!(threads <= 8, "{threads} threads for one caller");
}

#[test]
fn threads_without_work_end_after_their_time() {
    common::alone("threads_end_after_their_time");
}

#[test]
fn without_a_single_thread_calls_wait_until_there_is_one() {
    common::alone("no_thread_at_all");
}

#[test]
fn with_few_threads_all_calls_are_served() {
    common::alone("few_threads");
}

#[test]
fn a_call_that_does_not_end_is_named_in_the_report() {
    common::alone("stuck_call");
}

#[test]
fn calls_nobody_has_taken_are_left_behind_whole() {
    common::alone("stuck_queue");
}

#[test]
fn hooks_run_on_the_threads_of_the_pool() {
    let (started, stopped) = (Arc::default(), Arc::default());
    let note = |list: &Arc<Mutex<Vec<String>>>| {
        let list = list.clone();
        move || list.lock().unwrap().push(thread_name())
    };
    let rt = Builder::new()
        .workers(1)
        .on_thread_start(note(&started))
        .on_thread_stop(note(&stopped))
        .build()
        .unwrap();
    let served = rt.block_on(|| blocking(thread_name));
    drop(rt);
    assert!(started.lock().unwrap().contains(&served));
    assert!(stopped.lock().unwrap().contains(&served));
}

#[test]
fn no_thread_is_made_before_the_first_call() {
    let started = Arc::new(AtomicUsize::new(0));
    let rt = Builder::new().workers(1).on_thread_start({
        let started = started.clone();
        move || {
            let of_the_pool = thread_name().contains("-blocking-");
            started.fetch_add(usize::from(of_the_pool), SeqCst);
        }
    });
    let rt = rt.build().unwrap();
    rt.block_on(|| ());
    assert_eq!(started.load(SeqCst), 0);
    rt.block_on(|| blocking(|| ()));
    assert_eq!(started.load(SeqCst), 1);
}

#[test]
fn a_spawned_call_is_a_fiber_with_a_result() {
    let rt = runtime(1);
    let call = rt.handle().spawn_blocking(thread_name);
    assert_eq!(call.fiber().location().file(), file!());
    assert!(call.join().unwrap().contains("-blocking-"));
    let call = rt.handle().spawn_blocking(|| panic_any(5u32));
    let payload = call.join().unwrap_err().into_panic();
    assert_eq!(payload.downcast_ref::<u32>(), Some(&5));
    rt.block_on(|| assert_eq!(spawn_blocking(|| 6).join().unwrap(), 6));
}

#[test]
fn a_spawned_call_that_has_not_started_is_dropped_by_a_shutdown() {
    let rt = runtime(1);
    let handle = rt.handle().clone();
    assert!(rt.shutdown_timeout(LONG).is_clean());
    let ran = Arc::new(AtomicBool::new(false));
    let call = handle.spawn_blocking({
        let ran = ran.clone();
        move || ran.store(true, SeqCst)
    });
    assert!(call.join().unwrap_err().is_cancelled());
    assert!(!ran.load(SeqCst));
}

#[test]
fn a_payload_that_panics_when_dropped_does_no_harm() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("again"));
        }
    }

    let rt = runtime(1);
    drop(rt.handle().spawn_blocking(|| panic_any(Bad)));
    rt.wait_idle();
    let dropped = rt.block_on(|| {
        let caught = catch_unwind(|| blocking(|| panic_any(Bad)));
        catch_unwind(AssertUnwindSafe(|| drop(caught))).is_err()
    });
    assert!(dropped, "it panics where the caller drops it");
    assert_eq!(rt.block_on(|| blocking(|| 3)), 3);
}

#[test]
fn fibers_of_two_runtimes_use_their_own_threads() {
    let names = ["first", "second"].map(|name| {
        let rt = Builder::new().workers(1).thread_name(name).build();
        rt.unwrap().block_on(|| blocking(thread_name))
    });
    assert!(names[0].starts_with("first-"), "{names:?}");
    assert!(names[1].starts_with("second-"), "{names:?}");
}

#[test]
fn stress_calls_of_all_lengths_with_few_threads_that_come_and_go() {
    const CALLS: u64 = 40;
    let seed = 11;
    println!("seed {seed}");
    let rt = Builder::new()
        .workers(2)
        .blocking_threads(3)
        .blocking_keep_alive(Duration::from_millis(1))
        .build()
        .unwrap();
    let inside = Arc::new(Inside::default());
    let fibers: Vec<_> = (0..32)
        .map(|fiber| {
            let inside = inside.clone();
            rt.spawn(move || {
                let mut random = common::Random::new(seed + fiber);
                (0..CALLS)
                    .map(|_| {
                        let pause = random.below(4);
                        if random.below(8) == 0 {
                            task::yield_now();
                        }
                        blocking(|| {
                            inside.enter();
                            match pause {
                                0 => std::thread::sleep(Duration::from_micros(700)),
                                1 => std::thread::yield_now(),
                                _ => {}
                            }
                            inside.leave();
                            1
                        })
                    })
                    .sum::<u64>()
            })
        })
        .collect();
    let made: u64 = fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
    assert_eq!(made, 32 * CALLS);
    assert!(inside.most() <= 3, "{} at once", inside.most());
}

mod child {
    use super::*;

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn as_many_as_allowed_block_at_once() {
        const THREADS: usize = 512;
        const CALLS: usize = 1000;
        let rt = runtime(2);
        let (inside, full) = (Arc::new(Inside::default()), Arc::new(Latch::default()));
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let (inside, full) = (inside.clone(), full.clone());
                rt.handle().spawn_blocking(move || {
                    // The first calls leave only when all threads are there.
                    if inside.enter() == THREADS {
                        full.open();
                    }
                    full.wait();
                    std::thread::sleep(Duration::from_millis(5));
                    inside.leave();
                })
            })
            .collect();
        common::within(60, || calls.into_iter().for_each(|c| c.join().unwrap()));
        assert_eq!(inside.most(), THREADS);
        let made = common::threads_named(BLOCKING);
        assert!(made <= THREADS, "{made} threads");
        let report = rt.shutdown_timeout(LONG);
        assert!(report.is_clean(), "{report}");
        assert_eq!(
            common::threads_named("indent-"),
            0,
            "all gone with the runtime"
        );
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn threads_end_after_their_time() {
        let rt = Builder::new()
            .workers(1)
            .blocking_keep_alive(Duration::from_millis(30))
            .build()
            .unwrap();
        let all = Arc::new(std::sync::Barrier::new(8));
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let all = all.clone();
                rt.handle().spawn_blocking(move || all.wait().is_leader())
            })
            .collect();
        let leaders = calls.into_iter().map(|c| c.join().unwrap());
        assert_eq!(leaders.filter(|leader| *leader).count(), 1);
        common::wait_for("the pool's threads to end", || {
            common::threads_named(BLOCKING) == 0
        });
        assert_eq!(rt.block_on(|| blocking(|| 4)), 4, "and there is a new one");
        common::wait_for("that one to end", || common::threads_named(BLOCKING) == 0);
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn no_thread_at_all() {
        let Some(limit) = Limit::new() else { return };
        let rt = limit::with_spares(uninterrupted(2), 2);
        let done = Arc::new(AtomicUsize::new(0));
        limit.allow(0);
        let refused = std::thread::Builder::new().spawn(|| ());
        assert!(refused.is_err(), "the limit does not bind");
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let done = done.clone();
                rt.handle().spawn_blocking(move || {
                    done.fetch_add(1, SeqCst);
                })
            })
            .collect();
        // Other fibers run although no thread serves the calls.
        for _ in 0..20 {
            assert_eq!(rt.spawn(|| 1).join().unwrap(), 1);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(done.load(SeqCst), 0, "there is no thread");
        limit.lift();
        common::within(60, || calls.into_iter().for_each(|c| c.join().unwrap()));
        assert_eq!(done.load(SeqCst), 20);
        assert!(rt.shutdown_timeout(LONG).is_clean());
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn few_threads() {
        let Some(limit) = Limit::new() else { return };
        let rt = limit::with_spares(uninterrupted(2), 2);
        let inside = Arc::new(Inside::default());
        common::within(60, || {
            limit.allow(2);
            let calls: Vec<_> = (0..100)
                .map(|_| {
                    let inside = inside.clone();
                    rt.handle().spawn_blocking(move || {
                        inside.enter();
                        std::thread::sleep(Duration::from_millis(1));
                        inside.leave();
                    })
                })
                .collect();
            calls.into_iter().for_each(|call| call.join().unwrap());
        });
        assert!((1..=2).contains(&inside.most()), "{}", inside.most());
        assert!(rt.shutdown_timeout(LONG).is_clean());
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn stuck_call() {
        let rt = runtime(1);
        rt.wait_until_surveyed(None); // otherwise its fibers keep threads
        let (never, wait) = mpsc::channel::<()>();
        let body = move || blocking(move || wait.recv());
        let fiber = rt.block_on(|| task::Builder::new().name("stuck").spawn(body));
        common::wait_for("the call to block", || {
            fiber.fiber().park_reason() == ParkReason::Blocking
        });
        // Idle threads are not counted.
        rt.block_on(|| blocking(|| ()));
        let report = rt.shutdown_timeout(SHORT);
        assert_eq!(report.threads_left, 1, "{report}");
        assert_eq!(report.abandoned.len(), 1, "{report}");
        let left = &report.abandoned[0];
        assert_eq!(left.name.as_deref(), Some("stuck"));
        assert_eq!(left.reason, ParkReason::Blocking);
        assert!(report.to_string().contains("parked (blocking)"), "{report}");
        // The thread ends after all: everything it touches still exists.
        drop(never);
        common::wait_for("the last thread to end", || {
            common::threads_named("indent-b") == 0
        });
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn stuck_queue() {
        let (rt, latch, ran, fibers) = five_calls_for_one_thread();
        let report = rt.shutdown_timeout(SHORT);
        assert_eq!(report.abandoned.len(), 5, "{report}");
        assert_eq!(report.threads_left, 1, "{report}");
        latch.open();
        common::wait_for("the one that ran", || ran.load(SeqCst) == 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(ran.load(SeqCst), 1, "none is begun after the end");
        assert!(fibers.iter().all(|fiber| !fiber.is_finished()));
    }
}
