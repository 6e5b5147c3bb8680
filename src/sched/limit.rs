#![expect(unsafe_code, reason = "a fiber knows its innermost limit by pointer")]
//! Time limits: one deadline for everything a closure waits for. And who is told to end, who is not.
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
//! A closure may also run *undisturbed* ([`Undisturbed`]): neither requests nor limits from outside are heard in it, as
//! if they came when it is over. That is a limit without a time.
//!
//! On threads of `compute` limits are not heard: such a thread, while it waits for a part of its closure,
//! may run a part of another one, which a limit of the thread would end.
//!
//! Fibers that unwind because of a limit need a place at the gate, like all that unwind (`gate.rs`);
//! without one they wait on and ask again.
//!
//! *Told.* Whoever unwinds by our payload, and not by a panic, left at a call that blocks, between two steps of its own:
//! what it held is in order. One bit beside the innermost limit says so, from the throw until the payload is dropped by
//! whoever caught it; a park that finds the caller not unwinding at all clears it, too, for a payload that was kept. (The
//! place at the gate says less: a fiber may have one and return, or panic, and it may be taken back.)

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::panicking;
use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::job::Cancelled;
use crate::fiber::state::Hearing;
use crate::sched::block::CAN_UNWIND;
use crate::sched::context;

/// In the frame of [`within`], or of whoever is [`Undisturbed`], for as long as the closure runs.
pub(crate) struct Limit {
    /// Without one, what is outside is not heard.
    at: Option<Instant>,
    /// Nor are requests to end.
    deaf: bool,
}

/// In the word that has the address of the innermost limit: its owner unwinds as it was told.
const TOLD: usize = 1;
const _: () = assert!(align_of::<Limit>() > TOLD);

/// The time was over before the closure was.
#[derive(Debug)]
pub(crate) struct TimeOver;

/// Whose limits these are: a fiber's or, if it is none, the calling thread's.
#[derive(Clone, Copy)]
struct Whose(Option<FiberRef>);

impl Whose {
    fn word(self) -> *const Limit {
        match self.0 {
            Some(fiber) => fiber.limit.load(Relaxed).cast(),
            None => context::thread_limit(),
        }
    }

    fn set_word(self, word: *const Limit) {
        match self.0 {
            Some(fiber) => fiber.limit.store(word.cast_mut().cast(), Relaxed),
            None => context::set_thread_limit(word),
        }
    }

    fn innermost(self) -> *const Limit {
        self.word().map_addr(|word| word & !TOLD)
    }

    fn set(self, limit: *const Limit) {
        let told = self.word().addr() & TOLD;
        self.set_word(limit.map_addr(|limit| limit | told));
    }

    fn is_told(self) -> bool {
        self.word().addr() & TOLD != 0
    }

    fn limit(&self) -> Option<&Limit> {
        // SAFETY: set by `within` or `Undisturbed::begin`, in a frame that is still there: it takes the pointer back
        // before it returns, and only the fiber (or thread) itself, which is further up that stack, gets here.
        unsafe { self.innermost().as_ref() }
    }
}

/// The caller, `fiber` if it is one, is about to unwind by our payload.
pub(crate) fn say_told(fiber: Option<FiberRef>) {
    let whose = Whose(fiber);
    whose.set_word(whose.word().map_addr(|word| word | TOLD));
}

/// Whether the caller, which is unwinding, does so because it was told.
pub(crate) fn is_told(fiber: Option<FiberRef>) -> bool {
    Whose(fiber).is_told()
}

/// The payload was caught and dropped.
pub(crate) fn was_caught() {
    forget_told(Whose(context::current_fiber()));
}

fn forget_told(whose: Whose) {
    if !panicking() {
        whose.set_word(whose.innermost());
    }
}

/// The limit that bounds what the caller does now; `fiber` is the caller, if it is one.
#[inline]
pub(crate) fn current(fiber: Option<FiberRef>) -> Option<Instant> {
    Whose(fiber).limit().and_then(|limit| limit.at)
}

/// Whether requests to end are not heard now.
#[inline]
pub(crate) fn is_deaf(fiber: Option<FiberRef>) -> bool {
    Whose(fiber).limit().is_some_and(|limit| limit.deaf)
}

/// The limit that ends a park with this deadline, if it comes before that and the park listens.
#[inline]
pub(crate) fn bounding(
    fiber: Option<FiberRef>,
    deadline: Option<Instant>,
    hearing: Hearing,
) -> Option<Instant> {
    let whose = Whose(fiber);
    if whose.word().is_null() {
        return None;
    }
    if whose.is_told() {
        forget_told(whose);
    }
    let limit = current(fiber)?;
    let listens = CAN_UNWIND && hearing != Hearing::Deaf && !panicking();
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
        at: Some(current(whose.0).map_or(at, |outer| outer.min(at))),
        deaf: is_deaf(whose.0),
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
        && !panicking()
    {
        let mark = context::marked();
        let shared = mark.shared().expect("a fiber runs here");
        shared.gate.leave(&fiber.gate_pass);
    }
}

/// It was asked to end, and hears it.
fn is_cancelled(whose: Whose) -> bool {
    let asked = |fiber: FiberRef| fiber.state.cancel_requested();
    CAN_UNWIND && whose.0.is_some_and(asked) && !is_deaf(whose.0)
}

/// While this lives, the fiber or plain thread that began it is not told to end. What it limits itself ends as ever.
///
/// Apart from the closure that runs meanwhile, whose frame would be bound to its thread by what this touches (S5).
#[must_use = "it lasts while this lives"]
pub(crate) struct Undisturbed<'a> {
    whose: Whose,
    outer: *const Limit,
    _limit: &'a Limit,
}

impl Limit {
    /// For [`Undisturbed::begin`].
    pub(crate) fn none() -> Self {
        Limit {
            at: None,
            deaf: true,
        }
    }
}

impl<'a> Undisturbed<'a> {
    /// # Safety
    /// It is dropped, by whoever began it, before the limit goes.
    #[inline(never)]
    pub(crate) unsafe fn begin(limit: &'a Limit) -> Self {
        let whose = Whose(context::current_fiber());
        let outer = whose.innermost();
        whose.set(ptr::from_ref(limit));
        Undisturbed {
            whose,
            outer,
            _limit: limit,
        }
    }
}

impl Drop for Undisturbed<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        self.whose.set(self.outer);
    }
}
