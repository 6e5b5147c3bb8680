#![expect(
    unsafe_code,
    reason = "moves coroutines between threads; reads a clock"
)]
//! Time limits that do not nest, and code that catches the unwinding of its blocking calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use indent::park::{self, ParkReason, Woken};
use indent::runtime::{Builder, Runtime};
use indent::task::{Fiber, Phase};
use indent::time::{self, Duration, Elapsed, Instant};

mod common;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: u64 = 60;

fn start(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Waits until this many fibers are parked, because an unstarted fiber is not cancelled.
fn wait_for_parked(rt: &Runtime, fibers: usize) {
    let parked = |fiber: &Fiber| fiber.phase() == Phase::Parked;
    common::wait_for("parked fibers", || {
        rt.handle().fibers().iter().filter(|f| parked(f)).count() == fibers
    });
}

/// Calls `f` on a plain thread and on a fiber.
fn everywhere(f: fn()) {
    common::within(PATIENCE, || {
        std::thread::spawn(f).join().expect("on a plain thread");
        start(1).block_on(f);
    });
}

/// Returns a coroutine that is suspended once inside a limit of this length, and then sleeps there.
fn suspended_inside(limit: Duration, then: Duration) -> Coroutine<(), (), Result<(), Elapsed>> {
    let mut inside = Coroutine::new(move |door: &Yielder<(), ()>, ()| {
        time::timeout(limit, || {
            door.suspend(());
            time::sleep(then);
        })
    });
    assert!(matches!(inside.resume(()), CoroutineResult::Yield(())));
    inside
}

fn finish<T>(inside: &mut Coroutine<(), (), T>) -> T {
    match inside.resume(()) {
        CoroutineResult::Return(value) => value,
        CoroutineResult::Yield(()) => panic!("suspended once only"),
    }
}

/// Checks that no limit is in force: a sleep lasts as long as it should.
fn assert_unlimited() {
    let start = Instant::now();
    time::sleep(20 * MS);
    assert!(start.elapsed() >= 20 * MS);
}

#[test]
fn a_limit_may_end_inside_another_one_than_it_began_in() {
    everywhere(|| {
        let mut inside = time::timeout(HOUR, || suspended_inside(HOUR, MS)).unwrap();
        assert_unlimited();
        let deep = || time::timeout(HOUR, || time::timeout(5 * MS, || finish(&mut inside)));
        assert!(time::timeout(HOUR, deep).is_ok());
        assert_unlimited();
        // A limit below one that is gone is still in force.
        let mut inside = None;
        let outcome = time::timeout(20 * MS, || {
            inside = Some(time::timeout(HOUR, || suspended_inside(HOUR, MS)).unwrap());
            time::sleep(HOUR);
        });
        assert!(outcome.is_err());
        finish(&mut inside.unwrap()).unwrap();
        assert_unlimited();
    });
}

#[test]
fn a_suspended_limit_does_not_end_what_its_resumer_waits_for() {
    everywhere(|| {
        let mut inside = suspended_inside(MS, HOUR);
        assert_unlimited();
        assert_eq!(time::timeout(HOUR, assert_unlimited), Ok(()));
        assert!(finish(&mut inside).is_err(), "its own time is over");
        assert_unlimited();
    });
}

#[test]
fn a_limit_bounds_a_coroutine_that_is_resumed_in_it() {
    everywhere(|| {
        // The coroutine catches the unwinding, because it cannot unwind into its resumer.
        let mut inside = Coroutine::new(|door: &Yielder<(), ()>, ()| {
            time::timeout(HOUR, || {
                door.suspend(());
                catch_unwind(|| time::sleep(HOUR)).is_err()
            })
        });
        assert!(matches!(inside.resume(()), CoroutineResult::Yield(())));
        assert_eq!(time::timeout(5 * MS, || finish(&mut inside)), Ok(Ok(true)));
        assert_unlimited();
    });
}

#[test]
fn limits_that_are_never_left_do_not_end_what_comes_after() {
    everywhere(|| {
        for _ in 0..20 {
            std::mem::forget(suspended_inside(MS, HOUR));
        }
        assert_unlimited();
        assert_eq!(time::timeout(HOUR, assert_unlimited), Ok(()));
        assert!(time::timeout(5 * MS, || time::sleep(HOUR)).is_err());
        assert_unlimited();
    });
    let rt = start(1);
    // Fibers start on a stack on which such limits were left.
    rt.block_on(|| std::mem::forget(suspended_inside(MS, HOUR)));
    rt.block_on(|| {
        let mut inside = Coroutine::new(|_: &Yielder<(), ()>, ()| assert_unlimited());
        finish(&mut inside);
    });
}

/// A coroutine that finishes on another thread or fiber than it began on.
struct Sent(Coroutine<(), (), Result<(), Elapsed>>);

// SAFETY: nothing of a thread lies on its stack except what this test is about.
unsafe impl Send for Sent {}

impl Sent {
    fn finish(mut self) -> Result<(), Elapsed> {
        finish(&mut self.0)
    }
}

#[test]
fn a_limit_that_ends_on_another_thread_harms_neither() {
    common::within(PATIENCE, || {
        let begin = || time::timeout(HOUR, || Sent(suspended_inside(HOUR, MS))).unwrap();
        let end = |sent: Sent| {
            // The limits of this thread are in force, and are the ones that end the call.
            let outcome = time::timeout(20 * MS, || {
                assert_eq!(time::timeout(HOUR, || sent.finish()), Ok(Ok(())));
                time::sleep(HOUR);
            });
            assert!(outcome.is_err());
            assert_unlimited();
        };
        let rt = start(2);
        let from_thread = begin();
        rt.block_on(move || end(from_thread));
        let from_fiber = rt.block_on(begin);
        end(from_fiber);
        let from_fiber = rt.block_on(begin);
        rt.block_on(move || end(from_fiber));
        let from_thread = std::thread::spawn(begin).join().unwrap();
        end(from_thread);
        assert_unlimited();
    });
}

/// Waits for an event that never comes, and catches the unwinding that ends the wait.
fn swallow() {
    let (_sender, receiver) = indent::chan::bounded::<()>(1);
    assert!(catch_unwind(AssertUnwindSafe(|| receiver.recv())).is_err());
}

#[test]
fn the_third_unwinding_that_is_caught_is_the_first_to_be_delayed() {
    common::within(PATIENCE, || {
        let rt = start(1);
        let delays = || rt.metrics().unwind_delays_total;
        rt.block_on(|| {
            // Each limit starts anew.
            for _ in 0..20 {
                assert!(time::timeout(MS, || time::sleep(HOUR)).is_err());
                let _ = time::timeout(MS, || (swallow(), swallow()));
            }
            assert_eq!(delays(), 0);
            for expected in [1, 3] {
                // … but not if the limit around it has passed as well.
                let _ = time::timeout(MS, || {
                    swallow();
                    swallow();
                    drop(catch_unwind(|| time::timeout(HOUR, swallow)));
                    assert_eq!(delays(), expected);
                    if expected == 1 {
                        swallow();
                        assert_eq!(delays(), 2);
                    }
                });
            }
        });
    });
}

#[test]
fn a_fiber_that_ignores_that_it_should_end_is_delayed_as_well() {
    common::within(PATIENCE, || {
        let rt = start(1);
        rt.block_on(|| {
            let outcome = time::timeout(MS, || {
                [(); 4].map(|()| park::park_until(None, ParkReason::Park))
            });
            assert_eq!(outcome, Ok([Woken::ByCancel; 4]));
        });
        assert_eq!(rt.metrics().unwind_delays_total, 2);
    });
}

#[test]
fn other_fibers_of_the_worker_run_while_one_is_delayed() {
    common::within(PATIENCE, || {
        let rt = start(1);
        let turns = rt.block_on(|| {
            let stubborn = || time::timeout(MS, || (0..9).for_each(|_| swallow()));
            let stubborn: Vec<_> = (0..10).map(|_| indent::spawn(stubborn)).collect();
            let mut turns = 0;
            while !stubborn.iter().all(|fiber| fiber.is_finished()) {
                time::sleep(MS);
                turns += 1;
            }
            turns
        });
        assert_eq!(rt.metrics().unwind_delays_total, 10 * 7);
        // Each was delayed by about 127 ms, all at the same time.
        assert!(turns >= 20, "{turns} turns");
    });
}

#[test]
fn fibers_that_end_when_asked_do_not_wait_for_those_that_do_not() {
    if common::sanitizer_forbids("all fibers are bound there, and four threads are too few") {
        return;
    }
    common::within(PATIENCE, || {
        // Only one fiber may unwind at a time.
        let rt = Builder::new().workers(1).max_carriers(4).build().unwrap();
        rt.block_on(|| {
            for _ in 0..3 {
                drop(indent::task::Builder::new().name("stubborn").spawn(|| {
                    loop {
                        drop(catch_unwind(park::park));
                    }
                }));
            }
            for _ in 0..3 {
                drop(indent::spawn(park::park));
            }
        });
        wait_for_parked(&rt, 6);
        let report = rt.shutdown_timeout(Duration::from_secs(2));
        let stubborn = |left: &indent::runtime::Abandoned| left.name.is_some();
        assert_eq!(report.abandoned.len(), 3, "{report}");
        assert!(report.abandoned.iter().all(stubborn), "{report}");
    });
}

#[test]
fn a_fiber_that_catches_every_unwinding_is_slowed_down_and_named_once() {
    let said = common::alone("at_shutdown_and_after_it");
    let named = "'stubborn', spawned at tests/limits.rs";
    assert_eq!(said.matches(named).count(), 1, "{said}");
    assert!(said.contains("resume_unwind"), "{said}");
}

#[test]
fn a_catch_all_loop_inside_a_limit_is_slowed_down_and_named_once() {
    let said = common::alone("inside_a_limit");
    assert_eq!(said.matches("'bare'").count(), 1, "{said}");
    assert_eq!(said.matches("'stubborn'").count(), 1, "{said}");
}

/// Test bodies that run each in a process of its own, whose CPU time is counted.
mod child {
    use super::*;

    /// Returns the share of one CPU that this process uses while `f` runs.
    fn share(f: impl FnOnce()) -> f64 {
        let clock = || {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: `time` has room for the answer.
            let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
            assert_eq!(failed, 0);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let (wall, cpu) = (Instant::now(), clock());
        f();
        (clock() - cpu) / wall.elapsed().as_secs_f64()
    }

    /// A small share: an unlimited loop would use all of one CPU.
    const LITTLE: f64 = 0.3;

    #[test]
    #[ignore = "a process of its own, run by the test above"]
    fn at_shutdown_and_after_it() {
        common::wait_for_the_survey();
        let rt = start(2);
        let (_sender, receiver) = indent::chan::bounded::<()>(1);
        let stubborn = move || {
            loop {
                let _ = catch_unwind(AssertUnwindSafe(|| receiver.recv()));
            }
        };
        let builder = indent::task::Builder::new().name("stubborn");
        drop(rt.block_on(|| builder.spawn(stubborn)));
        wait_for_parked(&rt, 1);
        let mut report = None;
        let during = share(|| report = Some(rt.shutdown_timeout(700 * MS)));
        let report = report.unwrap();
        assert_eq!(report.abandoned[0].name.as_deref(), Some("stubborn"));
        let after = share(|| std::thread::sleep(700 * MS));
        assert!(
            during < LITTLE && after < LITTLE,
            "{during} of a CPU during the shutdown, {after} after it"
        );
    }

    #[test]
    #[ignore = "a process of its own, run by the test above"]
    fn inside_a_limit() {
        fn stubborn() {
            let start = Instant::now();
            let outcome = time::timeout(5 * MS, || {
                while start.elapsed() < 700 * MS {
                    drop(catch_unwind(|| time::sleep(HOUR)));
                }
            });
            assert_eq!(outcome, Ok(()));
        }
        common::wait_for_the_survey();
        let rt = start(1);
        let builder = indent::task::Builder::new().name("stubborn");
        let fiber = share(|| drop(rt.block_on(|| builder.spawn(stubborn).join())));
        assert!(rt.metrics().unwind_delays_total > 5, "{:?}", rt.metrics());
        let bare = std::thread::Builder::new().name("bare".into());
        let thread = share(|| bare.spawn(stubborn).unwrap().join().unwrap());
        assert!(
            fiber < LITTLE && thread < LITTLE,
            "{fiber} of a CPU on a fiber, {thread} on a thread"
        );
    }
}
