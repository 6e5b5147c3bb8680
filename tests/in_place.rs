#![expect(unsafe_code, reason = "regions are opened by an unsafe function")]
//! Fibers that leave their thread at an instruction, where their author has allowed it.
//!
//! The tests in `src/sys/redirect/tests.rs` and the hostile programs check the registers afterwards
//! and all kinds of programs. This file checks the promises to the user.

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use indent::runtime::{Builder, Runtime, no_preempt, preemptible};
use indent::task;

mod burn;
mod common;

const PATIENCE: u64 = 60;
const QUANTUM: Duration = Duration::from_millis(1);

/// Starts a runtime after the survey: before it, no fiber is switched in place.
fn runtime(workers: usize) -> Runtime {
    // SAFETY: what fibers of this program call through pointers leaves nothing with a thread.
    // Without this, one function would bind all others where thread-locals are the threads'.
    unsafe { indent_sysmon::frames::trust_pointers() };
    common::wait_for_the_survey();
    let builder = Builder::new().workers(workers).preempt(true);
    builder.preempt_quantum(QUANTUM).build().expect("a runtime")
}

/// Computes, and nothing else, until another fiber has run.
#[inline(never)]
fn spin_until(ran: &AtomicBool) {
    let mut number = 1_u64;
    while !ran.load(SeqCst) {
        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005) ^ 1);
    }
}

/// Calls `around` with a flag that an unstarted fiber of this worker will set.
#[inline(never)]
fn spin_for_another(around: impl FnOnce(&AtomicBool)) {
    let ran = Arc::new(AtomicBool::new(false));
    let other = indent::spawn({
        let ran = ran.clone();
        move || ran.store(true, SeqCst)
    });
    around(&ran);
    other.join().unwrap();
}

/// Returns how often fibers were switched in place, and frozen, while `f` ran.
fn counted(rt: &Runtime, f: impl FnOnce() + Send) -> (u64, u64) {
    let before = rt.metrics();
    rt.block_on(f);
    let after = rt.metrics();
    (
        after.in_place_preemptions_total - before.in_place_preemptions_total,
        after.freezes_total - before.freezes_total,
    )
}

/// Checks that most switches are in place.
///
/// A fiber may be stopped where it cannot leave its thread, but not every time.
fn mostly_in_place(rt: &Runtime, f: impl Fn() + Send + Sync) {
    let (in_place, frozen) = counted(rt, || (0..20).for_each(|_| f()));
    println!("{in_place} in place, {frozen} frozen");
    assert!(in_place > frozen, "{in_place} in place, {frozen} frozen");
}

fn frozen_only(rt: &Runtime, f: impl Fn() + Send + Sync) {
    let (in_place, frozen) = counted(rt, || (0..5).for_each(|_| f()));
    assert_eq!(in_place, 0, "{frozen} frozen");
    assert!(frozen > 0);
}

#[test]
fn a_fiber_in_a_region_gives_way_and_keeps_no_thread() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        mostly_in_place(&rt, || {
            spin_for_another(|ran| {
                // SAFETY: the region computes only.
                unsafe { preemptible(|| spin_until(ran)) };
            });
        });
        assert_eq!(rt.metrics().carriers_frozen, 0);
    });
}

#[test]
fn outside_of_a_region_its_thread_stops_with_it() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        frozen_only(&rt, || {
            spin_for_another(|ran| {
                // SAFETY: the region computes only.
                black_box(unsafe { preemptible(|| black_box(7)) });
                spin_until(ran); // the region is over
            });
        });
    });
}

#[test]
fn regions_nest_and_the_outer_one_goes_on_after_the_inner() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        mostly_in_place(&rt, || {
            let inner = |ran: &AtomicBool| {
                // SAFETY: the region computes only.
                unsafe { preemptible(|| spin_until(ran)) }
            };
            let both = || {
                spin_for_another(|ran| inner(ran));
                spin_for_another(spin_until);
            };
            // SAFETY: the region computes, spawns and joins.
            unsafe { preemptible(both) };
        });
    });
}

#[test]
fn no_preempt_wins_inside_and_around() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        let long = || burn::burn(20 * QUANTUM);
        let (in_place, frozen) = counted(&rt, || {
            let other = indent::spawn(|| ());
            // SAFETY: the region computes only.
            no_preempt(|| unsafe { preemptible(|| no_preempt(long)) });
            // SAFETY: as above.
            no_preempt(|| unsafe { preemptible(long) });
            other.join().unwrap();
        });
        assert_eq!(in_place, 0);
        assert!(frozen <= 2, "at the ends of sections, {frozen} times");
    });
}

#[test]
fn a_panic_goes_through_a_region_and_ends_it() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        frozen_only(&rt, || {
            // SAFETY: the region panics only.
            let region = || unsafe { preemptible(|| std::panic::resume_unwind(Box::new(7))) };
            let panic = catch_unwind(AssertUnwindSafe(region));
            let payload = panic.map(|()| 0).unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&7));
            spin_for_another(spin_until);
        });
    });
}

#[test]
fn a_region_on_another_stack_of_the_programs_own_means_nothing() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        frozen_only(&rt, || {
            let mut inside = Coroutine::new(|door: &Yielder<(), ()>, ()| {
                // SAFETY: the promise is broken: the region is left for another stack. That must
                // harm no other fiber.
                unsafe { preemptible(|| door.suspend(())) };
            });
            assert!(matches!(inside.resume(()), CoroutineResult::Yield(())));
            spin_for_another(spin_until); // on the fiber's own stack, in no region
            assert!(matches!(inside.resume(()), CoroutineResult::Return(())));
            spin_for_another(spin_until);
        });
    });
}

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });

/// Holds the address of a thread-local, so no fiber may leave its thread while this frame is on the
/// stack.
#[inline(never)]
fn count_and_spin(ran: &AtomicBool) {
    NUMBER.with(|number| spin_and_count(ran, number));
}

#[inline(never)]
fn spin_and_count(ran: &AtomicBool, number: &Cell<u64>) {
    spin_until(ran);
    number.set(number.get() + 1);
}

#[test]
fn a_fiber_that_holds_the_address_of_a_thread_local_does_not_leave_its_thread() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        frozen_only(&rt, || {
            spin_for_another(|ran| {
                // SAFETY: the thread-local is consistent at every instruction.
                unsafe { preemptible(|| count_and_spin(ran)) };
            });
        });
    });
}

#[test]
fn errno_is_the_fibers_own() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        let fail = |fd: i32| {
            // SAFETY: the call fails.
            unsafe { libc::close(fd) };
        };
        mostly_in_place(&rt, move || {
            let ran = Arc::new(AtomicBool::new(false));
            let other = indent::spawn({
                let ran = ran.clone();
                move || {
                    // SAFETY: the call fails with another error.
                    unsafe { libc::chdir(c"/nowhere at all".as_ptr()) };
                    ran.store(true, SeqCst);
                }
            });
            fail(-1);
            // SAFETY: the region computes only.
            unsafe { preemptible(|| spin_until(&ran)) };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!(error, Some(libc::EBADF));
            other.join().unwrap();
        });
    });
}

#[test]
fn computing_fibers_in_regions_take_turns_on_one_thread() {
    common::within(PATIENCE, || {
        let rt = runtime(1);
        let (in_place, frozen) = counted(&rt, || {
            let turns = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..20)
                .map(|_| {
                    let turns = turns.clone();
                    indent::spawn(move || {
                        let spin = || {
                            // Ends when all have begun, so each of them gives way.
                            turns.fetch_add(1, SeqCst);
                            while turns.load(SeqCst) < 20 {
                                std::hint::spin_loop();
                            }
                        };
                        // SAFETY: the region computes only.
                        unsafe { preemptible(spin) };
                    })
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        });
        println!("{in_place} in place, {frozen} frozen");
        assert!(in_place >= 15, "{in_place} in place, {frozen} frozen");
    });
}

#[test]
fn at_the_end_they_are_resumed_and_end_like_others() {
    struct Noted(Arc<AtomicUsize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    common::within(PATIENCE, || {
        let rt = runtime(2);
        let (begun, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..8 {
            let (begun, noted) = (begun.clone(), Noted(dropped.clone()));
            drop(rt.spawn(move || {
                let noted = noted;
                loop {
                    begun.fetch_add(1, SeqCst);
                    // SAFETY: the region computes only.
                    black_box(unsafe { preemptible(|| (0..3_000_000).fold(1, black_box_xor)) });
                    task::yield_now(); // the shutdown cancels it here
                    black_box(&noted);
                }
            }));
        }
        common::wait_for("switches", || {
            rt.metrics().in_place_preemptions_total > 20 && begun.load(SeqCst) >= 8
        });
        let report = rt.shutdown_timeout(Duration::from_secs(PATIENCE));
        assert!(report.is_clean(), "{report}");
        assert_eq!(dropped.load(SeqCst), 8);
    });
}

fn black_box_xor(a: u64, b: u64) -> u64 {
    black_box(a.wrapping_mul(31) ^ b)
}

#[test]
fn on_a_plain_thread_it_is_a_call() {
    // SAFETY: the region computes only.
    assert_eq!(unsafe { preemptible(|| 6 * 7) }, 42);
    // SAFETY: the region panics only.
    let region = || unsafe { preemptible(|| std::panic::resume_unwind(Box::new(1))) };
    assert!(catch_unwind(AssertUnwindSafe(region)).is_err());
}
