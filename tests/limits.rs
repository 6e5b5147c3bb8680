#![expect(unsafe_code, reason = "moves coroutines between threads")]
//! Time limits that do not nest.

use std::panic::catch_unwind;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use indent::runtime::{Builder, Runtime};
use indent::time::{self, Duration, Elapsed, Instant};

mod common;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: u64 = 60;

fn start(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Calls `f` on a plain thread, and on a fiber.
fn everywhere(f: fn()) {
    common::within(PATIENCE, || {
        std::thread::spawn(f).join().expect("on a plain thread");
        start(1).block_on(f);
    });
}

/// A coroutine that is suspended once inside a limit of this length, and then sleeps there.
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

/// Outside all limits: a sleep lasts as long as it should.
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
        // What is below what is gone is still there.
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
        // The coroutine catches: it cannot unwind into its resumer.
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
    // Fibers on a stack on which such limits were left.
    rt.block_on(|| std::mem::forget(suspended_inside(MS, HOUR)));
    rt.block_on(|| {
        let mut inside = Coroutine::new(|_: &Yielder<(), ()>, ()| assert_unlimited());
        finish(&mut inside);
    });
}

/// A coroutine that is finished elsewhere than it began.
struct Sent(Coroutine<(), (), Result<(), Elapsed>>);

// SAFETY: nothing of a thread lies on its stack but what this test is about.
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
            // The limits of this thread hold, and are the ones to end.
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
