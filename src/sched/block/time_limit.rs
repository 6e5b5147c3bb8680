#![expect(
    unsafe_code,
    reason = "finds the limits of a fiber at the top of its stack"
)]
//! Time limits: one deadline for everything a closure waits for. Also shields closures from
//! cancellation.
//!
//! A fiber, or a plain thread, has the list of the limits it is in, by value (`fiber/limits.rs`): a
//! fiber at the top of its stack, a thread in a thread-local. The earliest limit bounds every park
//! that can be cancelled, as if it were that park's own deadline. Once it has passed it *is* a
//! request to end: the park ends with `ByCancel`, the caller unwinds, and the frame that set the
//! limit catches that. So nothing that blocks needs to know of limits.
//!
//! An inner limit never outlasts an outer one. Of several that have passed the innermost ends its
//! closure first; the next blocking call after it unwinds to the next one. A fiber that was asked
//! to end continues to unwind whatever its limits are.
//!
//! Frames that set limits need not nest (S14): other stackful code, a coroutine library for
//! example, may suspend such a frame on a stack of its own and resume it inside other limits. A
//! limit applies from the time it is entered until its closure ends, in whatever order those end,
//! to
//! - code on the stack of its fiber or thread, if it was entered there;
//! - code on any other stack that its fiber or thread runs.
//!
//! So the code that resumes a coroutine is not bounded by limits that are suspended inside it; two
//! coroutines of one fiber, though, are not distinguished. A limit belongs to the fiber or thread
//! that entered it: a closure that is suspended and continues elsewhere is unlimited there, and its
//! end there removes nothing. The limit it left behind, like that of a closure that never
//! continues, stays until its fiber or thread ends and bounds coroutines there.
//!
//! A closure may also run *undisturbed* ([`Undisturbed`]): in it neither requests nor limits from
//! outside have an effect, as if they came when it is over. That is a limit without a time.
//!
//! On threads of `compute` limits have no effect: such a thread, while it waits for a part of its
//! closure, may run a part of another one, which a limit of the thread would end.
//!
//! Fibers that unwind because of a limit need an unwind permit, like all that unwind
//! (`unwind_limit.rs`); without one they continue to wait and ask again.
//!
//! *Cancelled unwinding.* A fiber or thread that unwinds by the runtime's payload, and not by a
//! panic, left at a call that blocks, between two steps of its own: the data it held is consistent.
//! One bit, `TOLD`, records that, from the throw until the payload is dropped. A park that finds
//! the caller not unwinding at all clears it, too, for a payload that was kept. (The unwind permit
//! proves less: a fiber may have one and return, or panic, and it may be taken back.)

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread::panicking;
use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::job::Cancelled;
use crate::fiber::limits::{Effect, Id, Limits};
use crate::fiber::stack::StackHead;
use crate::fiber::state::Cancel;
use crate::sched::block::suspend::CAN_UNWIND;
use crate::sched::block::unwind_backoff;
use crate::sched::workers::context;
use crate::sys::arch;

/// Flag: the owner unwinds because it was cancelled or its time limit passed.
const TOLD: u8 = 1;
/// Flag: there are limits.
///
/// Without it the list is void, and may be that of an earlier fiber.
const LIMITED: u8 = 2;

/// The limits of a plain thread, in place of a fiber's record and stack.
pub(crate) struct OfThread {
    flags: AtomicU8,
    swallowed: AtomicU8,
    limits: Limits,
    /// Range of its stack, once it has been looked up; empty if it is unknown.
    stack: Cell<Option<(usize, usize)>>,
}

impl OfThread {
    pub(crate) const fn new() -> Self {
        OfThread {
            flags: AtomicU8::new(0),
            swallowed: AtomicU8::new(0),
            limits: Limits::new(),
            stack: Cell::new(None),
        }
    }

    #[inline(never)] // in the frame of a fiber it would bind
    fn stack(&self) -> Range<usize> {
        let (low, high) = self.stack.get().unwrap_or_else(|| {
            let stack = indent_sysmon::own_stack();
            (stack.start, stack.end)
        });
        self.stack.set(Some((low, high)));
        low..high
    }
}

/// Error: the time passed before the closure was over.
#[derive(Debug)]
pub(crate) struct TimeOver;

/// The limits and flags of the caller.
pub(crate) struct Own<'a> {
    flags: &'a AtomicU8,
    /// Counts unwindings (`unwind_backoff.rs`).
    pub(crate) swallowed: &'a AtomicU8,
    limits: &'a Limits,
    stack: Stack<'a>,
}

/// The own stack of a fiber or a plain thread.
enum Stack<'a> {
    Fiber(*const StackHead),
    Thread(&'a OfThread),
}

/// Calls `f` with the limits of the caller: of `fiber`, if it is one.
///
/// `f` must not switch.
#[inline]
pub(crate) fn own<R>(fiber: Option<FiberRef>, f: impl FnOnce(Own<'_>) -> R) -> R {
    let Some(fiber) = fiber else {
        return context::of_thread(|own| {
            f(Own {
                flags: &own.flags,
                swallowed: &own.swallowed,
                limits: &own.limits,
                stack: Stack::Thread(own),
            })
        });
    };
    let head = fiber.stack.load(Relaxed);
    f(Own {
        flags: &fiber.limited,
        swallowed: &fiber.swallowed,
        // SAFETY: a fiber that runs has a stack, and the caller is that fiber; `f` does not switch.
        limits: unsafe { StackHead::limits(head) },
        stack: Stack::Fiber(head),
    })
}

impl Own<'_> {
    fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    fn stack(&self) -> Range<usize> {
        match self.stack {
            Stack::Fiber(head) => {
                // SAFETY: as in `own`.
                let low = unsafe { StackHead::limit_of(head) };
                low..head.addr()
            }
            Stack::Thread(own) => own.stack(),
        }
    }

    fn enter(&self, at: Option<Instant>) -> Id {
        let flags = self.flags();
        if flags & LIMITED == 0 {
            self.limits.clear();
            self.flags.store(flags | LIMITED, Relaxed);
        }
        let stack = self.stack();
        let elsewhere = !stack.is_empty() && !stack.contains(&arch::stack_pointer());
        self.limits.enter(at, elsewhere)
    }

    fn leave(&self, id: Id) {
        let flags = self.flags();
        if flags & LIMITED == 0 {
            return; // entered by another fiber or thread
        }
        self.limits.leave(id);
        if self.limits.is_empty() {
            self.flags.store(flags & !LIMITED, Relaxed);
        }
    }

    fn effect(&self) -> Effect {
        if self.flags() & LIMITED == 0 {
            return Effect::default();
        }
        let on_own_stack = || self.stack().contains(&arch::stack_pointer());
        self.limits.effect(on_own_stack)
    }

    fn forget_told(&self) {
        if !panicking() {
            self.flags.store(self.flags() & !TOLD, Relaxed);
        }
    }
}

/// Records that the caller is about to unwind by the runtime's payload.
///
/// `fiber` is the caller, if it is one.
pub(crate) fn say_told(fiber: Option<FiberRef>) {
    own(fiber, |own| own.flags.store(own.flags() | TOLD, Relaxed));
}

/// Returns whether the unwinding caller was cancelled or is past its time limit.
pub(crate) fn is_told(fiber: Option<FiberRef>) -> bool {
    own(fiber, |own| own.flags() & TOLD != 0)
}

/// Records that the payload was caught and dropped.
pub(crate) fn was_caught() {
    own(context::current_fiber(), |own| own.forget_told());
}

/// Returns the limit that bounds the caller now.
///
/// `fiber` is the caller, if it is one.
#[inline]
fn current(fiber: Option<FiberRef>) -> Option<Instant> {
    own(fiber, |own| own.effect().at)
}

/// Returns whether requests to end have no effect now.
#[inline]
pub(crate) fn is_cancel_disabled(fiber: Option<FiberRef>) -> bool {
    own(fiber, |own| own.effect().cancel_disabled)
}

/// Returns the limit that ends a park with this deadline, if one does.
///
/// The limit must come before the deadline, and the park must be cancellable.
#[inline]
pub(crate) fn bounding(
    fiber: Option<FiberRef>,
    deadline: Option<Instant>,
    cancel: Cancel,
) -> Option<Instant> {
    own(fiber, |own| {
        let flags = own.flags();
        if flags == 0 {
            return None;
        }
        if flags & TOLD != 0 {
            own.forget_told();
        }
        let limit = own.effect().at?;
        let listens = CAN_UNWIND && cancel != Cancel::Disabled && !panicking();
        (listens && deadline.is_none_or(|own| limit < own)).then_some(limit)
    })
}

/// Returns whether the caller's limit has passed.
pub(crate) fn has_passed(fiber: Option<FiberRef>) -> bool {
    current(fiber).is_some_and(|limit| limit <= Instant::now())
}

/// Calls `f`; at time `at` its blocking calls end, and `f` with them.
pub(crate) fn within<T>(at: Instant, f: impl FnOnce() -> T) -> Result<T, TimeOver> {
    let Some(id) = enter(at) else {
        return Ok(f());
    };
    let result = catch_unwind(AssertUnwindSafe(f));
    let told = result.as_ref().is_err_and(|e| e.is::<Cancelled>());
    let ends_here = end(id, at, told);
    match result {
        Ok(value) => Ok(value),
        Err(_) if told && ends_here => Err(TimeOver),
        Err(payload) => resume_unwind(payload),
    }
}

/// Enters a limit; `None` on a thread where limits have no effect.
#[inline(never)]
fn enter(at: Instant) -> Option<Id> {
    let fiber = context::current_fiber();
    let heard = fiber.is_some() || !context::ignores_limits();
    heard.then(|| own(fiber, |own| own.enter(Some(at))))
}

/// Leaves the limit, and returns whether the unwinding of the closure ends here.
///
/// It does not if the closure was `told` to end by another limit, or by a request.
#[inline(never)]
fn end(id: Id, at: Instant, told: bool) -> bool {
    let fiber = context::current_fiber(); // possibly not the fiber that entered it
    let counting = own(fiber, |own| {
        own.leave(id);
        unwind_backoff::is_counting(&own)
    });
    if !told && !counting {
        give_up_place(fiber);
        return true;
    }
    let (now, cancelled) = (Instant::now(), is_cancelled(fiber));
    if counting && !cancelled && current(fiber).is_none_or(|outer| now < outer) {
        own(fiber, |own| unwind_backoff::begin_anew(&own));
    }
    let ends_here = !told || (now >= at && !cancelled);
    if ends_here {
        give_up_place(fiber);
    }
    ends_here
}

/// Gives up the caller's unwind permit if it is no longer needed.
///
/// A caller that found its limit passed got a permit, whether it unwound or returned. It still
/// needs the permit if it was asked to end, or is unwinding for another reason.
fn give_up_place(fiber: Option<FiberRef>) {
    let with_one = fiber.filter(|fiber| fiber.unwind_permit.load(Relaxed));
    if let Some(with_one) = with_one
        && !is_cancelled(fiber)
        && !panicking()
    {
        let guard = context::disable_preempt();
        let shared = guard.shared().expect("a fiber runs here");
        shared.unwind_limit.leave(&with_one.unwind_permit);
    }
}

/// Returns whether the caller was asked to end, and cancellation is enabled.
fn is_cancelled(fiber: Option<FiberRef>) -> bool {
    let asked = |fiber: FiberRef| fiber.state.cancel_requested();
    CAN_UNWIND && fiber.is_some_and(asked) && !is_cancel_disabled(fiber)
}

/// Guard that shields the fiber or plain thread from cancellation from outside.
///
/// Limits set inside still take effect.
///
/// The methods are not inlined into the closure that runs meanwhile: what they touch would bind its
/// frame to its thread (S5).
#[must_use = "it lasts while this lives"]
pub(crate) struct Undisturbed(Id);

impl Undisturbed {
    #[inline(never)]
    pub(crate) fn begin() -> Self {
        Undisturbed(own(context::current_fiber(), |own| own.enter(None)))
    }
}

impl Drop for Undisturbed {
    #[inline(never)]
    fn drop(&mut self) {
        own(context::current_fiber(), |own| own.leave(self.0));
    }
}
