#![expect(
    unsafe_code,
    reason = "finds the limits of a fiber at the top of its stack"
)]
//! Time limits: one deadline for everything a closure waits for. And closures that are not to be
//! ended.
//!
//! A fiber, or a plain thread, has the list of the limits it is in, by value (`fiber/limits.rs`): a
//! fiber at the top of its stack, a thread in a thread-local. The earliest bounds every park that
//! listens to requests to end, as if it were that park's own deadline; once it has passed it *is*
//! such a request: the park ends with `ByCancel`, the caller unwinds, and the frame that set the
//! limit catches that. So nothing that blocks needs to know of limits.
//!
//! An inner limit never outlasts an outer one. Of several that have passed the innermost ends its
//! closure first; the next blocking call after it unwinds to the next one. A fiber that was asked
//! to end goes on unwinding whatever its limits say.
//!
//! Frames that set limits need not nest (S14): other stackful code, a coroutine library for
//! example, may suspend such a frame on a stack of its own and resume it inside other limits. A
//! limit applies from the time it is entered until its closure ends, in whatever order those end,
//! to
//! - code on the stack of its fiber or thread, if it was entered there;
//! - code on any other stack that its fiber or thread runs.
//!
//! So the code that resumes a coroutine is not bounded by limits that are suspended inside
//! it; two coroutines of one fiber, though, are not told apart. A limit belongs to the fiber or
//! thread that entered it: a closure that is suspended and goes on elsewhere is unlimited there,
//! and its end there removes nothing. The limit it left behind, like that of a closure that never
//! goes on, stays until its fiber or thread ends and bounds coroutines there.
//!
//! A closure may also run *undisturbed* ([`Undisturbed`]): neither requests nor limits from outside
//! are heard in it, as if they came when it is over. That is a limit without a time.
//!
//! On threads of `compute` limits are not heard: such a thread, while it waits for a part of its closure,
//! may run a part of another one, which a limit of the thread would end.
//!
//! Fibers that unwind because of a limit need a place at the gate, like all that unwind (`unwind_limit.rs`);
//! without one they wait on and ask again.
//!
//! *Told.* A fiber or thread that unwinds by our payload, and not by a panic, left at a call that
//! blocks, between two steps of its own: what it held is in order. One bit says so, from the throw
//! until the payload is dropped; a park that finds the caller not unwinding at all clears it, too,
//! for a payload that was kept. (The place at the gate says less: a fiber may have one and return,
//! or panic, and it may be taken back.)

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

/// In the byte of flags: its owner unwinds as it was told.
const TOLD: u8 = 1;
/// There are limits; without it the list is void, and may be that of a fiber before.
const LIMITED: u8 = 2;

/// What a plain thread has in place of a fiber's record and stack.
pub(crate) struct OfThread {
    flags: AtomicU8,
    swallowed: AtomicU8,
    limits: Limits,
    /// Where its stack lies, once that was asked for; empty if it is not known.
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

/// The time was over before the closure was.
#[derive(Debug)]
pub(crate) struct TimeOver;

/// What limits the caller.
pub(crate) struct Own<'a> {
    flags: &'a AtomicU8,
    /// Counts unwindings (`swallow.rs`).
    pub(crate) swallowed: &'a AtomicU8,
    limits: &'a Limits,
    stack: Stack<'a>,
}

/// The own stack of a fiber or a plain thread.
enum Stack<'a> {
    Fiber(*const StackHead),
    Thread(&'a OfThread),
}

/// Calls `f`, which does not switch, with what limits the caller: `fiber`, if it is one.
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

/// The caller, `fiber` if it is one, is about to unwind by our payload.
pub(crate) fn say_told(fiber: Option<FiberRef>) {
    own(fiber, |own| own.flags.store(own.flags() | TOLD, Relaxed));
}

/// Whether the caller, which is unwinding, does so because it was told.
pub(crate) fn is_told(fiber: Option<FiberRef>) -> bool {
    own(fiber, |own| own.flags() & TOLD != 0)
}

/// The payload was caught and dropped.
pub(crate) fn was_caught() {
    own(context::current_fiber(), |own| own.forget_told());
}

/// The limit that bounds what the caller does now; `fiber` is the caller, if it is one.
#[inline]
fn current(fiber: Option<FiberRef>) -> Option<Instant> {
    own(fiber, |own| own.effect().at)
}

/// Whether requests to end are not heard now.
#[inline]
pub(crate) fn is_cancel_disabled(fiber: Option<FiberRef>) -> bool {
    own(fiber, |own| own.effect().cancel_disabled)
}

/// The limit that ends a park with this deadline, if it comes before that and the park listens.
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

/// True once the caller's limit has passed.
pub(crate) fn has_passed(fiber: Option<FiberRef>) -> bool {
    current(fiber).is_some_and(|limit| limit <= Instant::now())
}

/// Calls `f`; what it waits for ends at that time, and `f` with it.
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

/// Nothing on a thread that does not hear limits.
#[inline(never)]
fn enter(at: Instant) -> Option<Id> {
    let fiber = context::current_fiber();
    let heard = fiber.is_some() || !context::ignores_limits();
    heard.then(|| own(fiber, |own| own.enter(Some(at))))
}

/// Leaves the limit. Whether what ended the closure ends here: not if it was `told` to end by
/// another limit, or by a request.
#[inline(never)]
fn end(id: Id, at: Instant, told: bool) -> bool {
    let fiber = context::current_fiber(); // perhaps not the one that entered it
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

/// A caller that was told that a limit passed got a place at the gate, whether it unwound or
/// returned. Unless the fiber was asked to end, or is unwinding for another reason, it needs the
/// place no longer.
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

/// It was asked to end, and hears it.
fn is_cancelled(fiber: Option<FiberRef>) -> bool {
    let asked = |fiber: FiberRef| fiber.state.cancel_requested();
    CAN_UNWIND && fiber.is_some_and(asked) && !is_cancel_disabled(fiber)
}

/// While this lives, the fiber or plain thread that began it is not told to end. What it limits
/// itself ends as ever.
///
/// Apart from the closure that runs meanwhile, whose frame would be bound to its thread by what
/// this touches (S5).
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
