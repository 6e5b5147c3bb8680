//! The one way to block: [`park_until`], for fibers and plain threads alike.
//!
//! A park ends by a wake, by its deadline, or because the fiber was asked to end or is past a [time
//! limit](crate::time::timeout); exactly one of
//! them wins. A wake that comes before the park is kept, as with [`std::thread::park`]; there is
//! one token, so two wakes before one park are one. A park may also end without a wake of its own,
//! when one meant for an earlier wait comes late: look again at what you wait for.
//!
//! Everything that waits (joins, channels, locks) is made of this: put an [`Unparker`] where the
//! other side finds it, look once more at what you wait for, park, look again.
//!
//! ```
//! use indent::park;
//!
//! let fiber = indent::spawn(|| {
//!     park::park(); // until somebody unparks
//!     "awake"
//! });
//! fiber.unparker().unpark();
//! assert_eq!(fiber.join().unwrap(), "awake");
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub(crate) mod guarded;
pub(crate) mod queue;
pub(crate) mod scoped;
pub(crate) mod select;

pub use crate::fiber::reason::ParkReason;
pub use crate::fiber::state::Woken;

use crate::fiber::state::{Cancel, Signal};
use crate::fiber::{FiberRef, Held};
pub(crate) use crate::sched::limit::within;
use crate::sched::thread::ThreadParker;
use crate::sched::wake;
use crate::sched::{block, context, limit, swallow};

/// Blocks the calling fiber, or the calling thread, until somebody unparks it or the deadline
/// passes. Charged to the fiber's budget.
///
/// A fiber that was asked to end gets [`Woken::ByCancel`] at once, this time and every time after:
/// let go of what you hold and return, or call [`task::checkpoint`](crate::task::checkpoint), which
/// unwinds. From the third time on that takes longer each time, up to 100 ms. A fiber that is
/// unwinding is not told again, and while a great many others unwind it is told later.
///
/// ```
/// use indent::park::{self, ParkReason, Woken};
/// use std::time::{Duration, Instant};
///
/// let soon = Instant::now() + Duration::from_millis(1);
/// assert_eq!(park::park_until(Some(soon), ParkReason::Park), Woken::ByDeadline);
/// park::unparker().unpark();
/// assert_eq!(park::park_until(None, ParkReason::Park), Woken::ByWake);
/// ```
pub fn park_until(deadline: Option<Instant>, reason: ParkReason) -> Woken {
    let woken = wait(deadline, reason, Signal::Unpark);
    if woken == Woken::ByCancel {
        swallow::note_unwinding();
    }
    woken
}

/// Blocks until somebody unparks; a fiber that was asked to end unwinds instead.
///
/// ```
/// use indent::park;
///
/// park::unparker().unpark();
/// park::park(); // returns at once: the wake was kept
/// ```
pub fn park() {
    if wait(None, ParkReason::Park, Signal::Unpark) == Woken::ByCancel {
        unwind_cancelled();
    }
}

/// The right to unpark the caller.
///
/// ```
/// use indent::park;
///
/// let me = park::unparker();
/// std::thread::spawn(move || me.unpark());
/// park::park();
/// ```
pub fn unparker() -> Unparker {
    Unparker(match context::current_fiber() {
        Some(fiber) => Who::Fiber(fiber.hold()),
        None => Who::Thread(context::thread_parker()),
    })
}

/// Wakes one fiber, or one plain thread, from anywhere. Never blocks, never yields.
///
/// Keeping it after the fiber is over is fine: it does nothing then.
///
/// ```
/// let me = indent::park::unparker();
/// me.unpark();
/// indent::park::park();
/// ```
#[derive(Clone)]
pub struct Unparker(Who);

#[derive(Clone)]
enum Who {
    Fiber(Held),
    Thread(Arc<ThreadParker>),
}

impl Unparker {
    pub(crate) fn of(fiber: &Held) -> Self {
        Unparker(Who::Fiber(fiber.clone()))
    }

    /// Ends the park of its fiber or thread, or makes the next one return at once.
    pub fn unpark(&self) {
        match &self.0 {
            Who::Fiber(fiber) => wake::wake(fiber.fiber(), Signal::Unpark),
            Who::Thread(parker) => parker.wake(Signal::Unpark),
        }
    }
}

impl fmt::Debug for Unparker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Who::Fiber(fiber) => write!(f, "Unparker(fiber {})", fiber.id()),
            Who::Thread(_) => write!(f, "Unparker(thread)"),
        }
    }
}

/// Parks whoever calls until the deadline; unparks are kept for later.
pub(crate) fn rest(deadline: Option<Instant>, reason: ParkReason) -> Woken {
    wait(deadline, reason, Signal::Notify)
}

/// Parks whoever calls. Threads have nobody who could ask them to end, but may have a time limit.
fn wait(deadline: Option<Instant>, reason: ParkReason, signal: Signal) -> Woken {
    let cancel = Cancel::Enabled;
    block::park(deadline, reason, cancel, signal)
        .unwrap_or_else(|| context::park_thread(deadline, cancel, signal))
}

/// Charges an operation that could have blocked but did not.
pub(crate) fn charge() {
    block::charge();
}

/// Charges an operation before it is tried. A fiber whose budget is used up gives way and, if it was asked
/// to end, unwinds: nothing is lost yet, and one whose operations all succeed at once hears of it, too.
pub(crate) fn charge_ahead() {
    if block::charge() {
        block::unwind_if_cancelled();
    }
}

/// The same, for whoever wants to know who pays.
#[inline]
pub(crate) fn charge_caller() -> Option<FiberRef> {
    block::charge_caller()
}

/// Whether the caller, which is unwinding, was told to end, or its time is over.
pub(crate) fn unwinds_as_told() -> bool {
    block::unwinds_as_told()
}

/// The time limit that ends a call with this deadline, if the calling plain thread has one that comes
/// first: whoever blocks in the kernel has to unwind then.
pub(crate) fn limit_of_thread(deadline: Option<Instant>) -> Option<Instant> {
    limit::bounding(None, deadline, Cancel::Enabled)
}

/// The fiber the caller runs on.
pub(crate) fn current_fiber() -> Option<FiberRef> {
    context::current_fiber()
}

/// Ends the calling fiber by unwinding.
pub(crate) fn unwind_cancelled() -> ! {
    block::unwind()
}
