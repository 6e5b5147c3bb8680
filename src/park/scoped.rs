#![expect(
    unsafe_code,
    reason = "another thread runs a closure that lies on the caller's stack"
)]
//! Runs a closure on a thread of a pool while the calling fiber waits.
//!
//! A *scoped job* is a closure, the place for its result, and the waiter of the calling fiber. It
//! lies on the caller's stack: a call allocates nothing, and the closure may borrow from there, as
//! with [`std::thread::scope`]. The caller passes the job's address to a pool and parks until the
//! job has run. It cannot be cancelled meanwhile; if it unwound all the same, the process would
//! end.
//!
//! **I14** A scoped job is run once, and it is valid until then: the last access of the pool's
//! thread is the notification of the waiter, and nothing else lets the caller return.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::Cancel;
use crate::sched::Shared;
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context;
use crate::sys::fork;
use crate::util::list::Linked;
use crate::util::loom::atomic::AtomicPtr;

/// The part of a scoped job that a pool sees; its link lets it wait in a list.
#[repr(C)]
pub(crate) struct ScopedJob {
    link: AtomicPtr<ScopedJob>,
    run: unsafe fn(NonNull<ScopedJob>),
    waiter: Waiter,
}

// SAFETY: the field is written by the lists alone.
unsafe impl Linked for ScopedJob {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// A scoped job with its closure and outcome. `repr(C)`: its address is that of its first field.
#[repr(C)]
struct Whole<F, T> {
    job: ScopedJob,
    f: UnsafeCell<Option<F>>,
    outcome: UnsafeCell<Option<Result<T, Box<dyn Any + Send>>>>,
}

impl ScopedJob {
    /// Runs the closure, catches its panic, and notifies the caller; the job is gone then.
    ///
    /// # Safety
    /// I14: the address came from [`run_on_pool`], and this is the one call for it.
    pub(crate) unsafe fn run(job: NonNull<ScopedJob>) {
        // SAFETY: valid until it has run.
        let run = unsafe { job.as_ref() }.run;
        // SAFETY: by the caller's promise; the function was stored with this job.
        unsafe { run(job) };
    }
}

/// # Safety
/// As for [`ScopedJob::run`], for a job of these types.
unsafe fn run<F: FnOnce() -> T, T>(job: NonNull<ScopedJob>) {
    // SAFETY: I14, and `Whole` begins with its job; the address was made from all of it.
    let whole = unsafe { job.cast::<Whole<F, T>>().as_ref() };
    // SAFETY: the waiting fiber does not look before it is notified, and this is the one run.
    let f = unsafe { &mut *whole.f.get() }.take();
    let outcome = catch_unwind(AssertUnwindSafe(f.expect("a scoped job is run once")));
    if fork::in_child() {
        // The waiting fiber does not exist in this process.
        fork::end_child("a closure of `blocking` or `compute`, forked;");
    }
    // SAFETY: as above.
    unsafe { *whole.outcome.get() = Some(outcome) };
    let waiter = whole.job.waiter.address();
    // SAFETY: I14: this is the notification it waits for; `whole` is not used after it.
    let deferred = unsafe { Waiter::notify(&context::disable_preempt(), waiter) };
    drop(deferred);
}

/// Not inlined: the frame of [`run_on_pool`] waits, and the closure's code would count as its own.
#[inline(never)]
fn call_here<F: FnOnce() -> T, T>(f: F) -> T {
    f()
}

/// Runs `f` on another thread and parks the calling fiber until it has returned.
///
/// `submit` is called with preemption disabled and passes the job to a thread that runs it once;
/// the job is valid until then. The fiber cannot be cancelled meanwhile. A panic in `f` is resumed
/// in the caller. On a plain thread `f` is called in place.
pub(crate) fn run_on_pool<F, T>(
    f: F,
    reason: ParkReason,
    submit: impl FnOnce(&Shared, NonNull<ScopedJob>),
) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    if context::current_fiber().is_none() {
        return call_here(f);
    }
    let whole = Whole {
        job: ScopedJob {
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
    submit(shared, NonNull::from(&whole).cast());
    drop(guard);
    let waiter = &whole.job.waiter;
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
        None => unreachable!("a scoped job ended before it had run"),
    }
}
