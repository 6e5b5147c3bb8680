#![expect(
    unsafe_code,
    reason = "looks at the stacks of fibers that are switched out"
)]
//! Decides whether a switched-out fiber may continue on another thread.
//!
//! A fiber is judged when it has switched out, on its own thread, before any other thread can get
//! hold of it; the result is noted in its record and holds until it runs again. It is *movable* if
//! all its frames are known and hold nothing of the thread (S5), and a look at its registers and
//! thread-locals finds no address of a thread-local either ([`look`]). Otherwise it counts as
//! bound. As long as the program's code has not been read it is *unjudged*, which counts as bound,
//! too; a thread that holds the fiber may look again later, and so does the collector when all code
//! has been read ([`Shared::judge_again`]).

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent_sysmon::frames::{self, Judgement, Registers, Stack, TraceCache};
use indent_sysmon::thread_locals::ThreadLocals;

use crate::fiber::state::Commit;
use crate::fiber::{FiberRef, Record, locals, switch};
use crate::sched::Shared;
use crate::sched::block::wake;
use crate::sched::mobility::bound::Cause;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::context;
use crate::sys::arch;
use crate::util::loom::atomic;

/// Whether a fiber may change threads.
///
/// ```
/// use indent::task::{self, Mobility};
///
/// indent::runtime::block_on(|| {
///     let binding = task::current().unwrap().binding();
///     if binding.mobility() == Mobility::Bound {
///         println!("{:?} touches {:?}", binding.function(), binding.variable());
///     }
/// });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mobility {
    /// The program's code has not been read yet.
    ///
    /// While the fiber is parked it keeps its thread, as a bound fiber does.
    Unjudged = 0,
    /// Its frames may hold something of its thread.
    ///
    /// While the fiber is parked it keeps its thread, and shares it with no other fiber.
    Bound = 1,
    /// It holds nothing of its thread, and continues on any thread.
    Movable = 2,
}

impl Mobility {
    fn of(judgement: &Judgement) -> Self {
        match judgement.mobility {
            _ if TRUST.load(Relaxed) => Mobility::Movable,
            _ if DISTRUST.load(Relaxed) => Mobility::Bound,
            _ if !judgement.complete => Mobility::Unjudged,
            known => Mobility::known(known),
        }
    }

    fn known(found: frames::Mobility) -> Self {
        match found {
            frames::Mobility::Movable => Mobility::Movable,
            frames::Mobility::Bound => Mobility::Bound,
        }
    }
}

/// Setting for tests that must be able to fail: nothing binds.
static TRUST: AtomicBool = AtomicBool::new(false);
/// Setting for tests of many threads: everything binds.
static DISTRUST: AtomicBool = AtomicBool::new(false);

pub(crate) fn trust_everything(trust: bool) {
    TRUST.store(trust, Relaxed);
}

pub(crate) fn is_everything_bound() -> bool {
    DISTRUST.load(Relaxed)
}

pub(crate) fn bind_everything(bind: bool) {
    DISTRUST.store(bind, Relaxed);
}

/// Judges a fiber that has just switched out, and notes the result.
///
/// Called on the fiber's own thread. Returns the place in the code that binds it, if one does.
///
/// # Safety
/// It is started, switched out and the caller's (I1).
#[inline]
pub(crate) unsafe fn judge(fiber: FiberRef, traces: &mut TraceCache) -> Option<usize> {
    // SAFETY: by the caller's promise.
    let (registers, stack, root) = unsafe { suspended(fiber) };
    let judgement = traces.judge(&registers, &stack, root);
    note(fiber, Mobility::of(&judgement));
    judgement.binding
}

/// Bits of a record's mobility byte that hold a [`Mobility`].
///
/// The other bits say whether the fiber is searched for addresses.
const MOBILITY: u8 = 3;
/// Its outermost function may have been left with the address of a thread-local.
const NEAR: u8 = 4;
/// Its outermost function cannot have been left with such an address.
const APART: u8 = 8;
/// The fiber has left its thread at an instruction, and has not continued yet.
const LEFT: u8 = 16;

/// Searches a movable fiber for addresses of thread-locals, and binds it if there is one.
///
/// Only fibers whose frames say that they are movable are searched (`fiber/locals/scan.rs`).
/// Returns what was found. `thread` is the one the fiber has run on: the fiber's thread-locals are
/// in place there, or it has none.
///
/// # Safety
/// As for `judge`.
#[inline]
pub(crate) unsafe fn look(fiber: FiberRef, thread: &Carrier) -> Option<Cause> {
    let noted = fiber.mobility.load(atomic::Ordering::Relaxed);
    if noted & APART != 0 || noted & MOBILITY != Mobility::Movable as u8 {
        return None;
    }
    // SAFETY: by the caller's promise.
    unsafe { look_closely(fiber, thread) }
}

/// Searches the fiber's noted registers and thread-locals, and binds it if an address is found.
///
/// # Safety
/// As for `judge`.
#[inline(never)]
unsafe fn look_closely(fiber: FiberRef, thread: &Carrier) -> Option<Cause> {
    // SAFETY: by the caller's promise.
    let found = unsafe { search(fiber, thread, switch::noted_registers(fiber)) };
    if found.is_some() {
        note(fiber, Mobility::Bound);
    }
    found
}

/// Searches the noted registers, and the thread-locals of a thread.
///
/// # Safety
/// The registers are there, and the fiber does not run on meanwhile.
unsafe fn search(fiber: FiberRef, thread: &Carrier, noted: Range<usize>) -> Option<Cause> {
    if !is_near(fiber) || TRUST.load(Relaxed) {
        return None;
    }
    // SAFETY: by the caller's promise.
    if unsafe { thread.block.has_address_in(noted) } {
        return Some(Cause::InRegister);
    }
    thread.block.find_in_locals().map(Cause::InLocal)
}

/// Returns whether the fiber may have the address of a thread-local at all.
///
/// Its outermost function decides. The fiber is the caller's (I1).
fn is_near(fiber: FiberRef) -> bool {
    let noted = fiber.mobility.load(atomic::Ordering::Relaxed);
    if noted & (NEAR | APART) != 0 {
        return noted & NEAR != 0;
    }
    // SAFETY: it runs or is switched out, so the table of its job does not change.
    let entry = unsafe { fiber.job.entry() };
    let Some(judge) = frames::judge() else {
        return false; // its frames are not known either
    };
    let near = judge.nears_addresses(entry);
    let bit = if near { NEAR } else { APART };
    (fiber.mobility).store(noted | bit, atomic::Ordering::Relaxed);
    near
}

/// Returns the name of the thread-local at this offset from the thread pointer.
pub(crate) fn local_around(offset: isize) -> Option<String> {
    let all = ThreadLocals::of_executable().ok()?;
    let mut holding = all
        .variables
        .into_iter()
        .filter(|v| v.range.contains(&offset));
    Some(holding.next()?.name)
}

fn note(fiber: FiberRef, mobility: Mobility) {
    let noted = &fiber.mobility;
    let others = noted.load(atomic::Ordering::Relaxed) & !MOBILITY;
    noted.store(others | mobility as u8, atomic::Ordering::Relaxed);
}

/// Returns where a switched-out fiber stands: registers, stack and root.
///
/// # Safety
/// As for `judge`.
#[inline]
unsafe fn suspended(fiber: FiberRef) -> (Registers, Stack, usize) {
    // SAFETY: by the caller's promise.
    let at = unsafe { switch::suspended(fiber) };
    // SAFETY: it stays switched out meanwhile.
    unsafe { parts(at) }
}

/// Splits a suspended fiber into registers, stack and root.
///
/// # Safety
/// The fiber is switched out or the caller's own.
#[inline]
unsafe fn parts(at: switch::Suspended) -> (Registers, Stack, usize) {
    let [ip, sp, bp] = at.registers;
    // SAFETY: the part of its stack that it uses; no other thread writes to it.
    let stack = unsafe { Stack::new(at.stack) };
    (Registers::interrupted(ip, sp, bp), stack, at.root)
}

/// Returns whether the calling fiber may change threads here, and what binds it.
#[inline(never)]
pub(crate) fn of_caller() -> (Mobility, Option<Cause>) {
    if std::thread::panicking() {
        return (Mobility::Bound, None); // S3
    }
    let Some(here) = context::here() else {
        return (Mobility::Bound, None);
    };
    // In this frame, where the search finds them.
    let mut registers = [0; 8];
    arch::note_registers(&mut registers);
    let [first @ .., _, _, _, _, _] = registers;
    // SAFETY: its own, and it does not leave this function meanwhile.
    let at = unsafe { switch::running(here.fiber, first) };
    // SAFETY: as above.
    let (start, stack, root) = unsafe { parts(at) };
    let judgement = frames::judge_stack(&start, &stack, root);
    let mut mobility = Mobility::of(&judgement);
    let place = judgement.binding.filter(|_| judgement.complete);
    let mut cause = place.map(Cause::Frame);
    let guard = context::disable_preempt();
    if let Some(thread) = guard.carrier().filter(|_| mobility == Mobility::Movable) {
        let noted = ptr::from_ref(&registers).addr();
        let noted = noted..noted + size_of_val(&registers);
        // SAFETY: in this frame, and the fiber is the calling one.
        cause = unsafe { search(here.fiber, thread, noted) };
        if cause.is_some() {
            mobility = Mobility::Bound;
        }
    }
    if let Some(shared) = guard.shared() {
        if mobility == Mobility::Unjudged {
            shared.study_soon();
        } else if !shared.trusts_verdicts() {
            mobility = Mobility::Bound;
        }
    }
    drop(guard);
    std::hint::black_box(&registers);
    (mobility, cause)
}

/// Notes what the frames of an interrupted fiber allow.
pub(crate) fn note_interrupted(fiber: FiberRef, found: frames::Mobility) {
    note(fiber, Mobility::known(found));
}

/// Notes that the fiber leaves its thread at an instruction, and may continue on any thread.
pub(crate) fn note_left(fiber: FiberRef) {
    note(fiber, Mobility::Movable);
    let noted = fiber.mobility.load(atomic::Ordering::Relaxed);
    (fiber.mobility).store(noted | LEFT, atomic::Ordering::Relaxed);
}

/// Returns whether a fiber that is about to run has left its thread at an instruction.
///
/// Clears the note.
#[inline]
pub(crate) fn takes_left(fiber: FiberRef) -> bool {
    let noted = fiber.mobility.load(atomic::Ordering::Relaxed);
    if noted & LEFT != 0 {
        (fiber.mobility).store(noted & !LEFT, atomic::Ordering::Relaxed);
    }
    noted & LEFT != 0
}

/// Notes that a fiber which parks inside its own frames is bound (S3), whatever they hold.
pub(crate) fn note_bound(fiber: FiberRef) {
    note(fiber, Mobility::Bound);
}

impl Shared {
    /// Returns whether verdicts hold for fibers of this runtime.
    ///
    /// Verdicts may rely on thread-locals that go with the fiber.
    #[inline]
    pub(crate) fn trusts_verdicts(&self) -> bool {
        self.settings.own_locals
            || frames::judge().is_none_or(|judge| !judge.assumes_own_thread_locals())
    }
}

/// Returns what was noted when the fiber last switched out.
pub(crate) fn noted(fiber: &Record) -> Mobility {
    match fiber.mobility.load(atomic::Ordering::Relaxed) & MOBILITY {
        movable if movable == Mobility::Movable as u8 => Mobility::Movable,
        bound if bound == Mobility::Bound as u8 => Mobility::Bound,
        _ => Mobility::Unjudged,
    }
}

/// Returns whether the fiber is noted as movable and is not pinned.
#[inline]
pub(crate) fn is_movable(fiber: FiberRef) -> bool {
    noted(&fiber) == Mobility::Movable && fiber.pins.load(atomic::Ordering::Relaxed) == 0
}

/// Returns whether an unstarted fiber is known to be movable at every park.
///
/// That is so if its first function leads to nothing that belongs to a thread.
///
/// # Safety
/// It is the caller's (I1).
pub(crate) unsafe fn starts_movable(fiber: FiberRef) -> bool {
    if fiber.pins.load(atomic::Ordering::Relaxed) > 0 || DISTRUST.load(Relaxed) {
        return false;
    }
    // SAFETY: it has not started, and is the caller's.
    let entry = unsafe { fiber.job.entry() };
    TRUST.load(Relaxed) || frames::mobility_of(entry) == Some(frames::Mobility::Movable)
}

/// Judges an unjudged fiber again; true if it is movable.
///
/// For a fiber of which too little was known when it switched out.
///
/// # Safety
/// It is started, switched out and the caller's (I1).
pub(crate) unsafe fn may_move_after_all(shared: &Shared, fiber: FiberRef) -> bool {
    // SAFETY: by the caller's promise.
    let stays = unsafe { locals::stay(fiber) }; // I34
    if noted(&fiber) == Mobility::Unjudged && !stays && frames::judge().is_some() {
        let mut traces = TraceCache::new();
        // SAFETY: by the caller's promise.
        let _place = unsafe { judge(fiber, &mut traces) };
        if let Some(thread) = wake::thread_of(fiber) {
            // SAFETY: by the caller's promise.
            let _found = unsafe { look(fiber, thread) };
        }
        if !shared.trusts_verdicts() {
            note_bound(fiber);
        }
        return is_movable(fiber);
    }
    false
}

impl Shared {
    /// Judges all unjudged parked fibers again, and frees the threads of movable ones.
    ///
    /// Called on the collector's thread, when all code has been read. A fiber is taken out of its
    /// park for as long: it is as if it were about to park once more.
    pub(crate) fn judge_again(&self) {
        let mut traces = TraceCache::new();
        self.each_fiber(|held| {
            let fiber = held.fiber();
            if noted(&fiber) != Mobility::Unjudged || fiber.blocks_carrier() {
                return;
            }
            let guard = context::disable_preempt();
            if !fiber.state.reopen_park() {
                return; // it runs, or will be judged when it does
            }
            if !fiber.blocks_carrier() {
                // SAFETY: by `reopen_park` the fiber is ours, switched out, as between its switch
                // and the commit.
                let place = unsafe { judge(fiber, &mut traces) };
                let thread = wake::thread_of(fiber);
                // SAFETY: as above.
                let found = thread.and_then(|thread| unsafe { look(fiber, thread) });
                if !self.trusts_verdicts() {
                    note_bound(fiber);
                }
                // SAFETY: as above; a fiber that is unjudged is the tenant of its thread.
                let fetch = |thread: &Carrier| unsafe { thread.block.fetch(fiber) };
                if is_movable(fiber) && !thread.is_some_and(fetch) {
                    note(fiber, Mobility::Unjudged); // I34: until it has run again
                }
                match thread {
                    Some(thread) if is_movable(fiber) => {
                        thread.let_out(fiber);
                        thread.parker.notify();
                    }
                    Some(_) if noted(&fiber) == Mobility::Bound => match found {
                        Some(cause) => self.count_bound_cause(fiber, cause),
                        None => self.count_bound_park(fiber, place),
                    },
                    _ => {}
                }
            }
            let mut kept = None;
            if fiber.state.commit_park() == Commit::Resume {
                kept = wake::enqueue(&guard, fiber);
            }
            drop(guard);
            drop(kept);
        });
    }
}
