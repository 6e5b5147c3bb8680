//! `runtime::compute`: where closures run, what they may borrow, how they end, and how many run at
//! once.
//!
//! Tests that make thread creation fail or leave threads behind run in a process of their own
//! (module `child`).

use std::panic::{catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use indent::park::ParkReason;
use indent::runtime::{Builder, Runtime, blocking, compute};
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

/// Starts a runtime after the survey, so that its fibers do not keep threads.
fn runtime(workers: usize) -> Runtime {
    let builder = Builder::new().workers(workers).thread_name("own");
    let rt = builder.build().expect("a runtime");
    rt.wait_until_surveyed(None);
    rt
}

fn thread_name() -> String {
    common::thread_name()
}

/// Sums the parts of a range, which is split in two recursively.
fn sum(from: u64, to: u64, names: &std::sync::Mutex<Vec<String>>) -> u64 {
    if to - from < 1000 {
        names.lock().unwrap().push(thread_name());
        return (from..to).sum();
    }
    let middle = from.midpoint(to);
    let (left, right) = rayon_core::join(|| sum(from, middle, names), || sum(middle, to, names));
    left + right
}

#[test]
fn the_closure_runs_on_a_thread_that_computes_and_borrows_from_its_caller() {
    let rt = runtime(1);
    let mut words = vec!["mine"];
    let name = rt.block_on(|| {
        compute(|| {
            words.push("and the pool's");
            thread_name()
        })
    });
    assert_eq!(words, ["mine", "and the pool's"]);
    assert_eq!(name, "own-compute-0");
}

#[test]
fn on_a_plain_thread_and_inside_the_pool_the_closure_is_simply_called() {
    let here = std::thread::current().id();
    assert_eq!(compute(|| std::thread::current().id()), here);
    runtime(1).block_on(|| {
        compute(|| {
            let pool = std::thread::current().id();
            assert_ne!(pool, here);
            assert_eq!(compute(|| std::thread::current().id()), pool);
            assert_eq!(blocking(|| std::thread::current().id()), pool);
        });
    });
}

#[test]
fn a_panic_goes_on_in_the_caller_with_its_payload() {
    let rt = runtime(1);
    rt.block_on(|| {
        for n in 0..10u64 {
            let caught = catch_unwind(|| compute(|| panic_any(n)));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&n));
            // The panic comes from a part that runs on its own.
            let caught = catch_unwind(|| compute(|| rayon_core::join(|| panic_any(n), || 1).1));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&n));
        }
        assert_eq!(compute(|| 7), 7, "the pool is as good as new");
    });
}

#[test]
fn joins_inside_use_the_same_threads() {
    let rt = runtime(2);
    let names = std::sync::Mutex::default();
    let (total, threads) =
        rt.block_on(|| compute(|| (sum(0, 100_000, &names), rayon_core::current_num_threads())));
    assert_eq!(total, (0..100_000).sum());
    assert_eq!(threads, 2, "one for each worker");
    let names = names.into_inner().unwrap();
    assert!(
        names.iter().all(|n| n.starts_with("own-compute-")),
        "{names:?}"
    );
}

#[test]
fn no_more_run_at_once_than_there_are_threads() {
    for (workers, set) in [(2, None), (1, None), (2, Some(1)), (1, Some(3))] {
        let mut builder = Builder::new().workers(workers);
        if let Some(threads) = set {
            builder = builder.compute_threads(threads);
        }
        let threads = set.unwrap_or(workers);
        let rt = builder.build().unwrap();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let fibers: Vec<_> = (0..64)
            .map(|_| {
                let (now, most) = (now.clone(), most.clone());
                rt.spawn(move || {
                    compute(|| {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::sleep(Duration::from_millis(1));
                        now.fetch_sub(1, SeqCst);
                    });
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        let most = most.load(SeqCst);
        let fine = (1..=threads).contains(&most);
        assert!(
            fine,
            "{most} at once, {workers} workers, {set:?} threads set"
        );
    }
}

#[test]
fn other_fibers_run_meanwhile() {
    runtime(1).block_on(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let other = indent::spawn({
            let stop = stop.clone();
            move || stop.store(true, SeqCst)
        });
        compute(|| {
            while !stop.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        other.join().unwrap();
    });
}

#[test]
fn a_request_to_end_does_not_interrupt() {
    let rt = runtime(1);
    let done = Arc::new(AtomicUsize::new(0));
    let fiber = rt.spawn({
        let done = done.clone();
        move || {
            let me = task::current().unwrap();
            compute(|| {
                while !me.is_cancelled() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                done.fetch_add(1, SeqCst);
            });
            done.fetch_add(1, SeqCst);
            task::checkpoint();
            done.fetch_add(1, SeqCst);
        }
    });
    common::wait_for("the computation", || {
        fiber.fiber().park_reason() == ParkReason::Compute
    });
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(fiber.join().unwrap_err().is_cancelled());
    assert_eq!(done.load(SeqCst), 2, "to its end, and no further");
}

#[test]
fn hooks_run_on_the_threads_that_compute() {
    let (started, stopped) = (Arc::default(), Arc::default());
    let note = |list: &Arc<std::sync::Mutex<Vec<String>>>| {
        let list = list.clone();
        move || list.lock().unwrap().push(thread_name())
    };
    let rt = Builder::new()
        .workers(1)
        .compute_threads(2)
        .on_thread_start(note(&started))
        .on_thread_stop(note(&stopped))
        .build()
        .unwrap();
    rt.block_on(|| compute(|| ()));
    drop(rt);
    for list in [started, stopped] {
        let names = list.lock().unwrap();
        let computing = names.iter().filter(|name| name.contains("-compute-"));
        assert_eq!(computing.count(), 2, "{names:?}");
    }
}

#[test]
fn inside_the_closure_the_current_runtime_is_that_of_the_caller() {
    let spawned = runtime(1).block_on(|| compute(|| indent::spawn(thread_name).join().unwrap()));
    assert!(spawned.starts_with("own-"), "{spawned}");
}

#[test]
fn threads_that_compute_give_way_to_others() {
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        after_name
            .split_whitespace()
            .nth(16)
            .unwrap()
            .parse()
            .unwrap()
    }

    let (fiber, computing) = runtime(1).block_on(|| (nice(), compute(nice)));
    assert!(
        computing > fiber || fiber == 19,
        "{computing} beside {fiber}"
    );
}

#[test]
fn a_destructor_may_compute_while_its_fiber_unwinds() {
    struct Sums<'a>(&'a AtomicUsize);

    impl Drop for Sums<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(compute(|| 5), SeqCst);
        }
    }

    let rt = runtime(2);
    let total = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..20)
        .map(|_| {
            let total = total.clone();
            rt.spawn(move || {
                let _sums = Sums(&total);
                std::panic::resume_unwind(Box::new("unwind"));
            })
        })
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap_err().is_panic());
    }
    assert_eq!(total.load(SeqCst), 100);
}

#[test]
fn a_computation_that_does_not_end_is_named_in_the_report() {
    common::alone("stuck");
}

#[test]
fn with_fewer_threads_than_asked_for_all_is_computed() {
    common::alone("few_threads");
}

#[test]
fn without_a_single_thread_computations_wait_until_there_is_one() {
    common::alone("no_thread_at_all");
}

#[test]
fn a_time_limit_of_one_computation_is_not_another_ones() {
    let rt = Builder::new()
        .workers(2)
        .compute_threads(2)
        .build()
        .unwrap();
    let (begun, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (begin, end) = (begun.clone(), done.clone());
    // The second half waits for the other computation, which may run inside that very wait.
    let limited = rt.spawn(move || {
        compute(|| {
            let wait = || {
                begin.store(true, SeqCst);
                while !end.load(SeqCst) {
                    std::thread::yield_now();
                }
            };
            indent::time::timeout(Duration::from_millis(5), || rayon_core::join(|| (), wait))
        })
    });
    common::wait_for("the first to run", || begun.load(SeqCst));
    let other = rt.spawn(move || {
        compute(|| {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_millis(30) {
                task::checkpoint();
            }
            done.store(true, SeqCst);
        })
    });
    assert!(other.join().is_ok(), "it has no limit");
    assert!(limited.join().is_ok());
}

mod child {
    use super::*;

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn stuck() {
        let rt = runtime(2);
        let (_never, wait) = mpsc::channel::<()>();
        let fiber = rt.spawn(move || compute(move || wait.recv()));
        common::wait_for("the computation", || {
            fiber.fiber().park_reason() == ParkReason::Compute
        });
        let report = rt.shutdown_timeout(SHORT);
        assert_eq!(report.abandoned.len(), 1, "{report}");
        assert_eq!(report.abandoned[0].reason, ParkReason::Compute);
        // A pool ends as a whole: all of its threads count.
        assert_eq!(report.threads_left, 2, "{report}");
    }

    fn compute_all(rt: &Runtime, n: u64) -> Vec<indent::JoinHandle<u64>> {
        // The closure uses rayon inside: outside this runtime's pool, rayon would start a pool of
        // its own.
        let one = |i| compute(|| rayon_core::join(|| i, || 0).0);
        (0..n).map(|i| rt.spawn(move || one(i))).collect()
    }

    fn total(fibers: Vec<indent::JoinHandle<u64>>) -> u64 {
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn few_threads() {
        let Some(limit) = Limit::new() else { return };
        let rt = Builder::new().workers(1).compute_threads(4).build();
        let rt = limit::with_spares(rt.unwrap(), 1);
        common::within(60, || {
            limit.allow(1);
            assert_eq!(total(compute_all(&rt, 20)), 190);
            limit.lift();
            common::wait_for("a pool of full size", || {
                let threads = rt.block_on(|| compute(rayon_core::current_num_threads));
                threads == 4
            });
        });
        assert!(rt.shutdown_timeout(LONG).is_clean());
    }

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn no_thread_at_all() {
        let Some(limit) = Limit::new() else { return };
        let rt = limit::with_spares(uninterrupted(2), 2);
        common::within(60, || {
            limit.allow(0);
            let fibers = compute_all(&rt, 20);
            std::thread::sleep(Duration::from_millis(50));
            assert!(fibers.iter().all(|fiber| !fiber.is_finished()));
            limit.lift();
            assert_eq!(total(fibers), 190);
        });
        assert!(rt.shutdown_timeout(LONG).is_clean());
    }
}
