#![expect(
    unsafe_code,
    reason = "another thread runs a closure that lies on the caller's stack"
)]
//! Lending a closure to another thread and waiting for it.
//!
//! The closure, its result and the waiter make up a *loan*. It lies on the caller's stack, so nothing
//! is allocated, and the closure may borrow from there. The caller gives its address to whoever will
//! run it and stays until that is done: it is deaf to requests to end, and if it unwound all the same,
//! the process would end.
//!
//! **I14** A loan is run once, and it is valid until then: the borrower's last touch is the call of
//! the waiter, which is the only thing that lets the lender go on.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::Cancel;
use crate::sched::wake::Waiter;
use crate::sched::{Shared, context};
use crate::sys::fork;
use crate::util::list::Linked;
use crate::util::loom::atomic::AtomicPtr;

/// What a borrower sees of a loan. It may be queued by its link.
#[repr(C)]
pub(crate) struct Loan {
    link: AtomicPtr<Loan>,
    run: unsafe fn(NonNull<Loan>),
    waiter: Waiter,
}

// SAFETY: the field is written by the lists alone.
unsafe impl Linked for Loan {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// All of a loan. `repr(C)`: its address is that of its first field.
#[repr(C)]
struct Whole<F, T> {
    loan: Loan,
    f: UnsafeCell<Option<F>>,
    outcome: UnsafeCell<Option<Result<T, Box<dyn Any + Send>>>>,
}

impl Loan {
    /// Runs the closure, catches its panic, and lets the lender go on: the loan is gone then.
    ///
    /// # Safety
    /// I14: the address came from [`lend`], and this is the one call for it.
    pub(crate) unsafe fn run(loan: NonNull<Loan>) {
        // SAFETY: valid until it has run.
        let run = unsafe { loan.as_ref() }.run;
        // SAFETY: by the caller's promise; the function was stored with this loan.
        unsafe { run(loan) };
    }
}

/// # Safety
/// As for [`Loan::run`], for a loan of these types.
unsafe fn run<F: FnOnce() -> T, T>(loan: NonNull<Loan>) {
    // SAFETY: I14, and `Whole` begins with its loan; the address was made from all of it.
    let whole = unsafe { loan.cast::<Whole<F, T>>().as_ref() };
    // SAFETY: the lender does not look before it is called, and this is the one run.
    let f = unsafe { &mut *whole.f.get() }.take();
    let outcome = catch_unwind(AssertUnwindSafe(f.expect("a loan is run once")));
    if fork::in_child() {
        fork::end_child("a closure of `blocking` or `compute`, forked;"); // its fiber is not here
    }
    // SAFETY: as above.
    unsafe { *whole.outcome.get() = Some(outcome) };
    let waiter = whole.loan.waiter.address();
    // SAFETY: I14: this is the call it waits for; `whole` is not used after it.
    let kept = unsafe { Waiter::notify(&context::disable_preempt(), waiter) };
    drop(kept);
}

/// Never inlined: the frame of [`lend`] waits, and the code of the closure would count as its own.
#[inline(never)]
fn call_here<F: FnOnce() -> T, T>(f: F) -> T {
    f()
}

/// Has `f` run by another thread and waits for it, deaf to requests to end. `hand_out`, called with
/// the preemption disabled, gets the loan to somebody who will run it, once; it is valid until then. A panic in
/// `f` goes on in the caller. On a plain thread `f` is simply called.
pub(crate) fn lend<F, T>(
    f: F,
    reason: ParkReason,
    hand_out: impl FnOnce(&Shared, NonNull<Loan>),
) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    if context::current_fiber().is_none() {
        return call_here(f);
    }
    let whole = Whole {
        loan: Loan {
            link: AtomicPtr::new(ptr::null_mut()),
            run: run::<F, T>,
            waiter: Waiter::caller(),
        },
        f: UnsafeCell::new(Some(f)),
        outcome: UnsafeCell::new(None),
    };
    let bomb = AbortOnDrop("waiting for a closure that borrows from the caller");
    let guard = context::disable_preempt();
    let shared = guard.shared().expect("a fiber runs here");
    hand_out(shared, NonNull::from(&whole).cast());
    drop(guard);
    let waiter = &whole.loan.waiter;
    loop {
        waiter.park(None, reason, Cancel::Disabled);
        if waiter.was_notified() {
            break;
        }
    }
    std::mem::forget(bomb);
    match whole.outcome.into_inner() {
        Some(Ok(value)) => value,
        Some(Err(payload)) => resume_unwind(payload),
        None => unreachable!("a loan was given back before it had run"),
    }
}
