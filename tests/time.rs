//! Sleeps, limits and intervals: none ends early, none is lost, and other fibers are not delayed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use indent::JoinHandle;
use indent::park::{self, ParkReason, Woken};
use indent::runtime::{Builder, Runtime};
use indent::task;
use indent::time::{self, Duration, Instant, MissedTickBehavior};

mod common;

use common::{Random, wait_for};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn start(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

#[test]
fn no_sleeper_wakes_early_and_all_wake() {
    let rt = start(2);
    let fibers: Vec<_> = (0..5_000)
        .map(|i| {
            rt.spawn(move || {
                let length = Random::new(i).below(200) as u32 * MS;
                let start = Instant::now();
                time::sleep(length);
                start.elapsed() >= length
            })
        })
        .collect();
    assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
    let metrics = rt.metrics();
    assert_eq!(metrics.timers_active, 0);
    assert!(metrics.timers_fired_total > 4_000, "{metrics:?}");
}

/// Returns the order in which sleeping fibers of one worker wake (in ms after a common start).
///
/// If `held`, the worker is kept busy until the last deadline has passed.
fn order_of_waking(ends: [u32; 5], held: bool) -> Vec<u32> {
    let rt = start(1);
    let mut lead = 50 * MS;
    loop {
        let order = Arc::new(Mutex::new(Vec::new()));
        let begin = Instant::now() + lead;
        let sleepers = ends.map(|end| {
            let order = order.clone();
            rt.spawn(move || {
                time::sleep_until(begin + end * MS);
                order.lock().unwrap().push(end);
            })
        });
        let all_asleep = || rt.metrics().timers_active == ends.len();
        wait_for("sleepers", || all_asleep() || Instant::now() >= begin);
        let in_time = all_asleep() && Instant::now() < begin;
        if held {
            let last = begin + *ends.iter().max().unwrap() * MS;
            let hog = rt.spawn(move || {
                while Instant::now() <= last + 5 * MS {
                    std::hint::spin_loop();
                }
            });
            hog.join().unwrap();
        }
        sleepers.into_iter().for_each(|fiber| fiber.join().unwrap());
        if in_time {
            return Arc::into_inner(order).unwrap().into_inner().unwrap();
        }
        lead *= 2; // some began to sleep after their deadline, in any order
    }
}

#[test]
fn sleepers_of_one_worker_wake_in_the_order_of_their_deadlines() {
    let ends = [70, 10, 130, 40, 100];
    assert_eq!(order_of_waking(ends, false), [10, 40, 70, 100, 130]);
    assert_eq!(order_of_waking(ends, true), [10, 40, 70, 100, 130]);
}

#[test]
fn an_unpark_does_not_end_a_sleep_and_is_kept() {
    let body = || {
        let me = park::unparker();
        let waker = std::thread::spawn(move || me.unpark());
        let start = Instant::now();
        time::sleep(30 * MS);
        assert!(start.elapsed() >= 30 * MS);
        waker.join().unwrap();
        park::park_until(Some(Instant::now() + HOUR), ParkReason::Park)
    };
    assert_eq!(start(1).block_on(body), Woken::ByWake);
    assert_eq!(body(), Woken::ByWake, "on a plain thread");
}

#[test]
fn an_abandoned_deadline_leaves_nothing_behind() {
    let rt = start(2);
    let fibers: Vec<_> = (0..1_000)
        .map(|_| rt.spawn(|| park::park_until(Some(Instant::now() + HOUR), ParkReason::Park)))
        .collect();
    wait_for("deadlines", || rt.metrics().timers_active == 1_000);
    fibers.iter().for_each(|fiber| fiber.unparker().unpark());
    for fiber in fibers {
        assert_eq!(fiber.join().unwrap(), Woken::ByWake);
    }
    let metrics = rt.metrics();
    assert_eq!((metrics.timers_active, metrics.timers_fired_total), (0, 0));
}

#[test]
fn deadlines_of_a_busy_worker_pass_in_time_for_fibers_elsewhere() {
    // The sleeper's carrier loses its worker to another carrier, which then computes: another
    // thread must fire the deadline in that worker's wheel.
    let rt = start(2);
    let stop = Arc::new(AtomicBool::new(false));
    let sleeper = rt.block_on(|| {
        task::Builder::new().worker(1).spawn(|| {
            time::sleep(50 * MS);
            indent::runtime::handoff();
        })
    });
    let hog = {
        let stop = stop.clone();
        let spin = move || {
            while !stop.load(SeqCst) {
                std::hint::spin_loop();
            }
        };
        rt.block_on(|| task::Builder::new().worker(1).spawn(spin))
    };
    wait_for("the deadline to fire", || {
        rt.metrics().timers_fired_total == 1
    });
    stop.store(true, SeqCst);
    hog.join().unwrap();
    sleeper.join().unwrap();
}

/// Waits until all of these fibers sleep, or until one has woken, if this thread was slow.
fn wait_for_sleepers(rt: &Runtime, fibers: &[JoinHandle<()>]) {
    wait_for("sleepers", || {
        rt.metrics().timers_active == fibers.len() || fibers.iter().any(JoinHandle::is_finished)
    });
}

#[test]
fn deadlines_of_a_retired_worker_pass() {
    let rt = start(3);
    let fibers: Vec<_> = (0..300)
        .map(|i| {
            let sleep = move || time::sleep(100 * MS + (i % 50) * MS);
            rt.block_on(|| task::Builder::new().worker(i as usize % 3).spawn(sleep))
        })
        .collect();
    wait_for_sleepers(&rt, &fibers);
    rt.handle().resize(1);
    wait_for("one worker", || rt.metrics().workers_in_service == 1);
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(rt.metrics().timers_active, 0);
}

#[test]
fn a_far_deadline_of_a_retired_worker_passes_while_all_workers_sleep() {
    let rt = start(2);
    let body = || time::sleep(700 * MS);
    let fibers = [rt.block_on(|| task::Builder::new().worker(1).spawn(body))];
    wait_for_sleepers(&rt, &fibers);
    rt.handle().resize(1);
    let [fiber] = fibers;
    assert!(fiber.join_timeout(Duration::from_secs(30)).is_ok());
}

#[test]
fn deadlines_of_a_retired_worker_pass_while_the_others_are_busy() {
    let rt = start(2);
    let sleep = || time::sleep(50 * MS);
    let sleepers: Vec<_> = (0..50)
        .map(|_| rt.block_on(|| task::Builder::new().worker(1).spawn(sleep)))
        .collect();
    wait_for("deadlines", || rt.metrics().timers_active == 50);
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(move || {
                while !stop.load(SeqCst) {
                    task::yield_now();
                }
            })
        })
        .collect();
    rt.handle().resize(1);
    sleepers.into_iter().for_each(|fiber| fiber.join().unwrap());
    stop.store(true, SeqCst);
    busy.into_iter().for_each(|fiber| fiber.join().unwrap());
}

#[test]
fn a_fiber_that_returns_after_its_limit_does_not_delay_other_unwinds() {
    // With so few threads only one fiber at a time may unwind.
    let rt = Builder::new().workers(1).max_carriers(4).build().unwrap();
    let returns = rt.spawn(|| {
        let woken = time::timeout(MS, || park::park_until(None, ParkReason::Park));
        assert_eq!(woken, Ok(Woken::ByCancel));
        park::park();
    });
    let panics = rt.spawn(|| {
        let own = || {
            time::timeout(MS, || {
                assert_eq!(park::park_until(None, ParkReason::Park), Woken::ByCancel);
                std::panic::resume_unwind(Box::new("mine"));
            })
        };
        assert!(catch_unwind(own).is_err());
        park::park();
    });
    let parked =
        |f: &task::Fiber| f.phase() == task::Phase::Parked && f.park_reason() == ParkReason::Park;
    wait_for("both to go on", || {
        rt.metrics().timers_active == 0 && parked(&returns.fiber()) && parked(&panics.fiber())
    });
    let other = rt.spawn(|| time::timeout(MS, || time::sleep(HOUR)));
    assert!(other.join().unwrap().is_err());
    for fiber in [returns, panics] {
        fiber.unparker().unpark();
        fiber.join().unwrap();
    }
}

#[test]
fn a_limit_ends_what_blocks_and_runs_destructors() {
    struct Count<'a>(&'a AtomicUsize);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    /// Unparks the fiber when this is dropped, so that it ends.
    struct Release(park::Unparker);
    impl Drop for Release {
        fn drop(&mut self) {
            self.0.unpark();
        }
    }
    let body = || {
        let dropped = AtomicUsize::new(0);
        let blocked: [&dyn Fn(); 4] = [
            &|| time::sleep(HOUR),
            &park::park,
            &|| {
                let fiber = indent::spawn(park::park);
                let _release = Release(fiber.unparker());
                drop(fiber.join());
            },
            &|| loop {
                task::checkpoint();
            },
        ];
        for (i, block) in blocked.into_iter().enumerate() {
            let start = Instant::now();
            let result = time::timeout(5 * MS, || {
                let _guard = Count(&dropped);
                block();
            });
            assert!(result.is_err(), "case {i}");
            assert!(start.elapsed() >= 5 * MS, "case {i}");
            assert_eq!(dropped.load(SeqCst), i + 1);
        }
        assert!(!std::thread::panicking());
        time::sleep(MS); // no limit is left
    };
    start(1).block_on(body);
    body(); // on a plain thread
}

#[test]
fn a_call_that_returns_in_time_keeps_its_result() {
    start(1).block_on(|| {
        assert_eq!(time::timeout(HOUR, || "done"), Ok("done"));
        let late = time::timeout(MS, || {
            std::thread::sleep(10 * MS);
            "late, but done"
        });
        assert_eq!(late, Ok("late, but done"));
        assert_eq!(time::timeout(Duration::MAX, || 3), Ok(3));
    });
}

#[test]
fn the_limit_that_passed_is_the_one_that_reports() {
    start(1).block_on(|| {
        let inner = time::timeout(HOUR, || time::timeout(5 * MS, || time::sleep(HOUR)));
        assert!(matches!(inner, Ok(Err(_))));
        let outer = time::timeout(5 * MS, || time::timeout(HOUR, || time::sleep(HOUR)));
        assert!(outer.is_err());
        // Both passed: the inner one reports, then the next blocking call ends the outer one.
        let reached = AtomicUsize::new(0);
        let both = time::timeout(5 * MS, || {
            let inner = time::timeout(2 * MS, || {
                std::thread::sleep(20 * MS);
                time::sleep(HOUR);
            });
            assert!(inner.is_err());
            reached.store(1, SeqCst);
            time::sleep(HOUR);
            reached.store(2, SeqCst);
        });
        assert!(both.is_err());
        assert_eq!(reached.load(SeqCst), 1);
    });
}

#[test]
fn a_panic_passes_through_a_limit() {
    start(1).block_on(|| {
        let f = || time::timeout(HOUR, || std::panic::panic_any("mine"));
        let payload = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"mine"));
    });
}

#[test]
fn a_cancelled_fiber_unwinds_through_its_limits() {
    let rt = start(1);
    let fiber = rt.spawn(|| {
        let _ = time::timeout(HOUR, || time::sleep(HOUR));
        unreachable!("it was asked to end");
    });
    wait_for("the sleep", || rt.metrics().timers_active == 1);
    assert!(rt.shutdown_timeout(Duration::from_secs(10)).is_clean());
    assert!(fiber.join().unwrap_err().is_cancelled());
}

#[test]
fn thousands_of_limits_that_pass_together_all_report() {
    // More fibers than may unwind at once, and each parks in a destructor.
    struct Parks;
    impl Drop for Parks {
        fn drop(&mut self) {
            time::sleep(MS);
        }
    }
    let rt = Builder::new().workers(2).max_carriers(16).build().unwrap();
    let fibers: Vec<_> = (0..500)
        .map(|_| {
            rt.spawn(|| {
                let result = time::timeout(20 * MS, || {
                    let _parks = Parks;
                    time::sleep(HOUR);
                });
                result.is_err()
            })
        })
        .collect();
    assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
}

#[test]
fn a_timed_join_returns_the_handle() {
    let rt = start(1);
    let fiber = rt.spawn(park::park);
    let start = Instant::now();
    let fiber = fiber.join_timeout(5 * MS).unwrap_err();
    assert!(start.elapsed() >= 5 * MS);
    fiber.unparker().unpark();
    assert!(fiber.join_timeout(HOUR).unwrap().is_ok());
}

#[test]
fn an_interval_keeps_its_rhythm_beside_others() {
    let rt = start(2);
    let fibers: Vec<_> = (1..20u32)
        .map(|i| {
            rt.spawn(move || {
                let mut ticks = time::interval(i * MS);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                let first = ticks.tick();
                let offsets = (0..20).map(|_| ticks.tick() - first);
                offsets
                    .into_iter()
                    .all(|at| at.as_nanos() % (i * MS).as_nanos() == 0)
            })
        })
        .collect();
    assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
}

#[test]
fn a_coarse_clock_is_late_but_never_early() {
    let coarse = Builder::new().workers(1).timer_resolution(50 * MS);
    coarse.build().unwrap().block_on(|| {
        for length in [1, 10, 60] {
            let start = Instant::now();
            time::sleep(length * MS);
            assert!(start.elapsed() >= length * MS);
        }
    });
}
