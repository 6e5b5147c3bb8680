#![expect(
    unsafe_code,
    reason = "looks at the stacks of fibers that are switched out"
)]
//! What the frames of a fiber allow: to move, to share its thread, or neither.
//!
//! A fiber is judged when it has switched out, on its own carrier, before anybody else can get hold
//! of it; the verdict is noted in its record and holds until it runs again. If not all of its frames
//! are known yet it counts as bound (S5), and whoever would like to move it looks again.
//!
//! What binds is found out by the helper, for return addresses somebody has asked for
//! (`indent_sysmon::frames`). Somebody who wants to move a fiber asks at once; the look at every
//! switch asks only once the runtime has been awake for some milliseconds, so that the shortest
//! programs pay nothing.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent_sysmon::frames::{self, Judgement, Registers, Stack, TraceCache};

pub(crate) use indent_sysmon::frames::Verdict;

use crate::base::arch;
use crate::base::loom::atomic;
use crate::fiber::{FiberRef, Record, switch};
use crate::sched::{Shared, context};

/// What is noted in a record: a verdict, or that there is none yet.
const NOT_KNOWN: u8 = 0;

fn number(verdict: Verdict) -> u8 {
    verdict as u8 + 1
}

/// For tests that must be able to fail: nothing binds.
static TRUST: AtomicBool = AtomicBool::new(false);

pub(crate) fn trust_everything(trust: bool) {
    TRUST.store(trust, Relaxed);
}

/// Judges a fiber that has just switched out, on its carrier's thread, and notes the verdict.
///
/// # Safety
/// It is started, switched out and the caller's (I1).
#[inline]
pub(crate) unsafe fn judge(fiber: FiberRef, traces: &mut TraceCache) -> Verdict {
    // SAFETY: by the caller's promise.
    let (registers, stack, root) = unsafe { suspended(fiber) };
    let known = known(traces.judge(&registers, &stack, root));
    let noted = known.map_or(NOT_KNOWN, number);
    fiber.verdict.store(noted, atomic::Ordering::Relaxed);
    known.unwrap_or(Verdict::Home)
}

/// # Safety
/// As for `judge`.
#[inline]
unsafe fn suspended(fiber: FiberRef) -> (Registers, Stack, usize) {
    // SAFETY: by the caller's promise.
    let at = unsafe { switch::suspended(fiber) };
    // SAFETY: it stays switched out meanwhile.
    unsafe { parts(at) }
}

/// # Safety
/// The fiber is switched out or the caller's own.
#[inline]
unsafe fn parts(at: switch::Suspended) -> (Registers, Stack, usize) {
    let [ip, sp, bp] = at.registers;
    // SAFETY: the part of its stack that it uses; nobody else writes to it.
    let stack = unsafe { Stack::new(at.stack) };
    (Registers::interrupted(ip, sp, bp), stack, at.root)
}

/// What the frames of the calling fiber allow now, and why; `None` if not all of them are known yet:
/// then they were asked for.
#[inline(never)]
pub(crate) fn of_caller() -> Option<(Verdict, Option<usize>)> {
    if std::thread::panicking() {
        return Some((Verdict::Alone, None)); // S3
    }
    let here = context::here()?;
    // SAFETY: its own, and it does not leave this function meanwhile.
    let at = unsafe { switch::running(here.fiber, arch::registers()) };
    // SAFETY: as above.
    let (registers, stack, root) = unsafe { parts(at) };
    let judgement = frames::judge_stack(&registers, &stack, root);
    if !judgement.complete && frames::has_failed() {
        return Some((Verdict::Home, None)); // and so it will stay
    }
    if !judgement.complete {
        let mark = context::marked();
        mark.shared()?.study_soon();
    }
    judgement
        .complete
        .then_some((judgement.verdict, judgement.binding))
}

/// Notes of a fiber that was interrupted what its frames allow, as was found there.
pub(crate) fn note_interrupted(fiber: FiberRef, verdict: Verdict) {
    fiber
        .verdict
        .store(number(verdict), atomic::Ordering::Relaxed);
}

/// Notes of a fiber that waits inside its own frames while it unwinds that nothing else runs on its
/// thread (S3). It is not counted as alone: its carrier runs nothing at all, and it is judged anew
/// when it next switches out.
pub(crate) fn note_blocking(fiber: FiberRef) {
    let alone = number(Verdict::Alone);
    fiber.verdict.store(alone, atomic::Ordering::Relaxed);
}

/// What was noted when a fiber last switched out.
pub(crate) fn noted(fiber: &Record) -> Verdict {
    match fiber.verdict.load(atomic::Ordering::Relaxed) {
        free if free == number(Verdict::Free) => Verdict::Free,
        alone if alone == number(Verdict::Alone) => Verdict::Alone,
        _ => Verdict::Home,
    }
}

/// The verdict, if all frames are known.
#[inline]
fn known(judgement: Judgement) -> Option<Verdict> {
    if TRUST.load(Relaxed) {
        return Some(Verdict::Free);
    }
    judgement.complete.then_some(judgement.verdict)
}

/// Whether its carrier counts the fiber as one that wants to be alone.
#[inline]
pub(crate) fn is_alone(fiber: FiberRef) -> bool {
    fiber.verdict.load(atomic::Ordering::Relaxed) == number(Verdict::Alone)
}

/// Whether it was noted that the fiber may go on anywhere.
pub(crate) fn is_free(fiber: FiberRef) -> bool {
    let free = fiber.verdict.load(atomic::Ordering::Relaxed) == number(Verdict::Free);
    free && fiber.pins.load(atomic::Ordering::Relaxed) == 0
}

/// Whether it was noted that the fiber may not leave its thread.
pub(crate) fn is_bound(fiber: FiberRef) -> bool {
    fiber.pins.load(atomic::Ordering::Relaxed) > 0
        || fiber.verdict.load(atomic::Ordering::Relaxed) != NOT_KNOWN && !is_free(fiber)
}

/// Whether a fiber that has not started will want to be alone: its first function says so already.
///
/// # Safety
/// It is the caller's (I1).
pub(crate) unsafe fn will_be_alone(fiber: FiberRef) -> bool {
    if !fiber.stack.load(atomic::Ordering::Relaxed).is_null() {
        return false;
    }
    // SAFETY: it has not started, and is the caller's.
    let entry = unsafe { fiber.job.entry() };
    frames::verdict_of(entry) == Some(Verdict::Alone)
}

/// Whether a fiber has not started and will retire the thread it starts on.
///
/// # Safety
/// It is the caller's (I1).
#[inline]
pub(crate) unsafe fn will_change_thread(fiber: FiberRef) -> bool {
    if !fiber.stack.load(atomic::Ordering::Relaxed).is_null() {
        return false;
    }
    // SAFETY: it has not started, and is the caller's.
    let entry = unsafe { fiber.job.entry() };
    frames::changes_thread(entry) == Some(true)
}

/// Whether a fiber may go on on another thread.
///
/// # Safety
/// It is started, switched out, runnable and the caller's (I1).
pub(crate) unsafe fn may_move(shared: &Shared, fiber: FiberRef) -> bool {
    let noted = fiber.verdict.load(atomic::Ordering::Relaxed);
    if noted != NOT_KNOWN || fiber.pins.load(atomic::Ordering::Relaxed) > 0 {
        return is_free(fiber);
    }
    // SAFETY: by the caller's promise.
    let (registers, stack, root) = unsafe { suspended(fiber) };
    let judgement = frames::judge_stack(&registers, &stack, root);
    let known = match known(judgement) {
        None if frames::judge().is_some() => {
            // All code has been read: what is not known yet is found out on the spot.
            known(TraceCache::new().judge(&registers, &stack, root))
        }
        known => known,
    };
    // That it wants to be alone is noted by its own carrier only, which counts such fibers: for us
    // it is as good as at home.
    let noted = known.map_or(NOT_KNOWN, |verdict| number(verdict.min(Verdict::Home)));
    fiber.verdict.store(noted, atomic::Ordering::Relaxed);
    if known.is_none() {
        shared.study_soon();
    }
    known == Some(Verdict::Free)
}
