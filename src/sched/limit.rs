#![expect(unsafe_code, reason = "a fiber knows its innermost limit by pointer")]
//! Time limits: one deadline for everything a closure waits for.
//!
//! A limit lies in the frame that set it, and the fiber (or plain thread) knows the innermost. It
//! bounds every park that listens to requests to end, as if it were that park's own deadline; once it
//! has passed it *is* such a request: the park ends with `ByCancel`, whoever parked unwinds, and the
//! frame that set the limit catches that. So nothing that blocks needs to know of limits.
//!
//! An inner limit never outlasts an outer one. Of several that have passed the innermost is told
//! first; the next blocking call after it tells the next one. A fiber that was asked to end goes on
//! unwinding whatever its limits say.
//!
//! On threads of `compute` limits are not heard: such a thread, while it waits for a part of its closure,
//! may run a part of another one, which a limit of the thread would end.
//!
//! Fibers that unwind because of a limit need a place at the gate, like all that unwind (`gate.rs`);
//! without one they wait on and ask again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::job::Cancelled;
use crate::fiber::state::Hearing;
use crate::sched::block::CAN_UNWIND;
use crate::sched::context;

/// In the frame of [`within`], for as long as its closure runs.
pub(crate) struct Limit {
    at: Instant,
}

/// The time was over before the closure was.
#[derive(Debug)]
pub(crate) struct TimeOver;

/// Whose limits these are: a fiber's or, if it is none, the calling thread's.
#[derive(Clone, Copy)]
struct Whose(Option<FiberRef>);

impl Whose {
    fn innermost(self) -> *const Limit {
        match self.0 {
            Some(fiber) => fiber.limit.load(Relaxed).cast(),
            None => context::thread_limit(),
        }
    }

    fn set(self, limit: *const Limit) {
        match self.0 {
            Some(fiber) => fiber.limit.store(limit.cast_mut().cast(), Relaxed),
            None => context::set_thread_limit(limit),
        }
    }
}

/// The limit that bounds what the caller does now; `fiber` is the caller, if it is one.
#[inline]
pub(crate) fn current(fiber: Option<FiberRef>) -> Option<Instant> {
    let innermost = Whose(fiber).innermost();
    // SAFETY: set by `within`, in a frame that is still there: it takes the pointer back before it
    // returns, and only the fiber (or thread) itself, which is further up that stack, gets here.
    unsafe { innermost.as_ref() }.map(|limit| limit.at)
}

/// The limit that ends a park with this deadline, if it comes before that and the park listens.
#[inline]
pub(crate) fn bounding(
    fiber: Option<FiberRef>,
    deadline: Option<Instant>,
    hearing: Hearing,
) -> Option<Instant> {
    let limit = current(fiber)?;
    let listens = CAN_UNWIND && hearing != Hearing::Deaf && !std::thread::panicking();
    (listens && deadline.is_none_or(|own| limit < own)).then_some(limit)
}

/// True once the caller's limit has passed.
pub(crate) fn has_passed(fiber: Option<FiberRef>) -> bool {
    current(fiber).is_some_and(|limit| limit <= Instant::now())
}

/// Calls `f`; what it waits for ends at that time, and `f` with it.
pub(crate) fn within<T>(at: Instant, f: impl FnOnce() -> T) -> Result<T, TimeOver> {
    let whose = Whose(context::current_fiber());
    if whose.0.is_none() && context::ignores_limits() {
        return Ok(f());
    }
    let outer = whose.innermost();
    let limit = Limit {
        at: current(whose.0).map_or(at, |outer| outer.min(at)),
    };
    whose.set(ptr::from_ref(&limit));
    let result = catch_unwind(AssertUnwindSafe(f));
    whose.set(outer);
    let ends_here = match &result {
        Err(payload) if payload.is::<Cancelled>() => Instant::now() >= at && !is_cancelled(whose),
        _ => true,
    };
    if ends_here {
        give_up_place(whose);
    }
    match result {
        Ok(value) => Ok(value),
        Err(payload) if ends_here && payload.is::<Cancelled>() => Err(TimeOver),
        Err(payload) => resume_unwind(payload),
    }
}

/// Whoever was told that a limit passed got a place at the gate, whether it unwound or returned. Unless
/// the fiber was asked to end, or is unwinding for another reason, it needs the place no longer.
fn give_up_place(whose: Whose) {
    let with_one = whose.0.filter(|fiber| fiber.gate_pass.load(Relaxed));
    if let Some(fiber) = with_one
        && !is_cancelled(whose)
        && !std::thread::panicking()
    {
        let mark = context::marked();
        let shared = mark.shared().expect("a fiber runs here");
        shared.gate.leave(&fiber.gate_pass);
    }
}

fn is_cancelled(whose: Whose) -> bool {
    CAN_UNWIND && whose.0.is_some_and(|fiber| fiber.state.cancel_requested())
}
