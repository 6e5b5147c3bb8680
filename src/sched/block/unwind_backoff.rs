//! Delays code that catches the unwinding of its blocking calls and blocks again.
//!
//! A request to end stands until the fiber is over, and a limit that has passed until its closure
//! is: every further blocking call unwinds as well. A loop that catches all panics around such a
//! call would use a whole CPU without progress. So each unwinding is counted. The first [`PROMPT`]
//! of them are immediate; from then on the call waits before it unwinds, each time twice as long,
//! up to [`LONGEST`].
//!
//! A fiber is parked meanwhile, so its worker runs others. Neither requests nor limits end that
//! park, and the fiber gives up its unwind permit for as long: it is not unwinding. A shutdown does
//! not wait for the park: at its timeout it lists the fiber as one that is parked, and nothing runs
//! that fiber again. A plain thread, which only a time limit makes unwind, sleeps.
//!
//! The count begins anew when a limit ends and neither a request nor another limit that has passed
//! is left (`time_limit.rs`).

use std::fmt::Write;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::fiber::FiberRef;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Signal, Woken};
use crate::sched::block::suspend;
use crate::sched::block::time_limit::{self, Own};
use crate::sched::workers::context;
use crate::sys::stderr;

/// Number of unwindings that are immediate.
///
/// One ends the closure of a fiber, a second one what a destructor does during that.
const PROMPT: u8 = 2;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);
/// Count from which unwindings are no accident, and are reported.
const REPORTED: u8 = 8;
/// Reports of one process, so that a thousand such fibers do not fill a log.
const REPORTS: u32 = 16;

/// Flag in the count: the caller was reported.
const NAMED: u8 = 0x80;
const COUNT: u8 = !NAMED;

/// Returns whether the caller has unwound since the count last began.
pub(crate) fn is_counting(own: &Own<'_>) -> bool {
    own.swallowed.load(Relaxed) & COUNT > 0
}

/// Resets the count.
pub(crate) fn begin_anew(own: &Own<'_>) {
    own.swallowed.fetch_and(NAMED, Relaxed);
}

/// Counts an unwinding of the caller, and delays it if there were several.
///
/// Called before the caller unwinds, or learns that it should end; only where blocking is allowed.
pub(crate) fn note_unwinding() {
    let fiber = context::current_fiber();
    let times = time_limit::own(fiber, |own| {
        let byte = own.swallowed.load(Relaxed);
        let times = ((byte & COUNT) + 1).min(COUNT);
        own.swallowed.store((byte & NAMED) | times, Relaxed);
        times
    });
    if times > PROMPT {
        delay(fiber, times);
    }
}

#[cold]
#[inline(never)]
fn delay(fiber: Option<FiberRef>, times: u8) {
    let name = |own: Own<'_>| own.swallowed.fetch_or(NAMED, Relaxed) & NAMED == 0;
    if times >= REPORTED && time_limit::own(fiber, name) {
        report(fiber);
    }
    let doublings = u32::from(times - PROMPT - 1).min(16);
    let length = (SHORTEST * (1 << doublings)).min(LONGEST);
    match fiber {
        Some(fiber) => rest(fiber, length),
        None => thread::sleep(length),
    }
}

/// Parks the calling fiber for `length`, and until it may unwind again.
fn rest(fiber: FiberRef, length: Duration) {
    loop {
        let guard = context::disable_preempt();
        let shared = guard.shared().expect("a fiber runs here");
        shared.unwind_pauses.fetch_add(1, Relaxed);
        shared.unwind_limit.leave(&fiber.unwind_permit);
        drop(guard);
        let until = Some(Instant::now() + length);
        let park =
            || suspend::park_charged(until, ParkReason::Pause, Cancel::Disabled, Signal::Notify);
        while park() == Some(Woken::ByWake) {} // a wake meant for an earlier wait
        if suspend::enters_gate() {
            return;
        }
    }
}

/// Prints one line on standard error.
fn report(fiber: Option<FiberRef>) {
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    let earlier = REPORTED.fetch_add(1, Relaxed).min(REPORTS);
    if earlier == REPORTS {
        return;
    }
    let mut line = String::from("indent: ");
    let _ = match fiber {
        Some(fiber) => fiber.describe(&mut line),
        None => match thread::current().name() {
            Some(name) => write!(line, "thread '{name}'"),
            None => write!(line, "a thread without a name"),
        },
    };
    let cause = match fiber {
        Some(fiber) if fiber.state.cancel_requested() => "it was asked to end",
        _ => "its time limit has passed",
    };
    let _ = write!(
        line,
        ": {cause}, but it catches the unwinding of its blocking calls and blocks again; each \
         further call is delayed by up to {LONGEST:?}; let what `catch_unwind` returns pass, with \
         `std::panic::resume_unwind`, or leave the loop"
    );
    if earlier + 1 == REPORTS {
        line.push_str("; further ones are not reported");
    }
    line.push('\n');
    stderr::print(&line);
}
