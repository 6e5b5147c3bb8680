//! The one way to block: [`park_until`], for fibers and plain threads alike.
//!
//! A park ends by an unpark, by its deadline, or because the fiber was cancelled or is past a [time
//! limit](crate::time::timeout); exactly one of them wins. As with [`std::thread::park`], an unpark
//! that comes before the park makes the next park return at once. There is one token, so two
//! unparks before one park count once. A park may also end spuriously, when an unpark meant for an
//! earlier wait comes late: so check the condition again after each park.
//!
//! Joins, channels and locks are built on this: store an [`Unparker`] where the other side finds
//! it, check the condition, park, check again.
//!
//! ```
//! use indent::park;
//!
//! let fiber = indent::spawn(|| {
//!     park::park(); // until it is unparked
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
use crate::sched::block::suspend;
use crate::sched::block::time_limit;
pub(crate) use crate::sched::block::time_limit::within;
use crate::sched::block::unwind_backoff;
use crate::sched::block::wake;
use crate::sched::threads::plain::ThreadParker;
use crate::sched::workers::context;

/// Blocks the calling fiber or thread until it is unparked or the deadline passes.
///
/// Without a deadline only an unpark or a cancellation ends it. It is charged to the fiber's
/// budget.
///
/// A fiber that was cancelled gets [`Woken::ByCancel`] at once, from every call: release what you
/// hold and return, or call [`task::checkpoint`](crate::task::checkpoint), which unwinds. From the
/// third time on the call takes longer each time, up to 100 ms. A fiber that is unwinding does not
/// get it again; while very many other fibers unwind, a fiber may get it later.
///
/// It corresponds to [`std::thread::park_timeout`], but reports why it returned.
///
/// # Examples
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
        unwind_backoff::note_unwinding();
    }
    woken
}

/// Blocks the calling fiber or thread until it is unparked.
///
/// A fiber that was cancelled unwinds instead. It corresponds to [`std::thread::park`].
///
/// ```
/// use indent::park;
///
/// park::unparker().unpark();
/// park::park(); // returns at once: the unpark came before
/// ```
pub fn park() {
    if wait(None, ParkReason::Park, Signal::Unpark) == Woken::ByCancel {
        unwind_cancelled();
    }
}

/// Returns an [`Unparker`] for the calling fiber or thread.
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
        Some(fiber) => Target::Fiber(fiber.hold()),
        None => Target::Thread(context::thread_parker()),
    })
}

/// Unparks one fiber or one plain thread, from anywhere.
///
/// It never blocks and never yields, and may outlive the fiber: it does nothing then. It
/// corresponds to [`std::thread::Thread::unpark`].
///
/// ```
/// let me = indent::park::unparker();
/// me.unpark();
/// indent::park::park();
/// ```
#[derive(Clone)]
pub struct Unparker(Target);

#[derive(Clone)]
enum Target {
    Fiber(Held),
    Thread(Arc<ThreadParker>),
}

impl Unparker {
    pub(crate) fn of(fiber: &Held) -> Self {
        Unparker(Target::Fiber(fiber.clone()))
    }

    /// Ends the park of its fiber or thread, or makes the next one return at once.
    pub fn unpark(&self) {
        match &self.0 {
            Target::Fiber(fiber) => wake::wake(fiber.fiber(), Signal::Unpark),
            Target::Thread(parker) => parker.wake(Signal::Unpark),
        }
    }
}

impl fmt::Debug for Unparker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Target::Fiber(fiber) => write!(f, "Unparker(fiber {})", fiber.id()),
            Target::Thread(_) => write!(f, "Unparker(thread)"),
        }
    }
}

/// Parks the caller until the deadline; unparks take effect at a later park.
pub(crate) fn rest(deadline: Option<Instant>, reason: ParkReason) -> Woken {
    wait(deadline, reason, Signal::Notify)
}

/// Parks the calling fiber or thread. Threads cannot be cancelled, but may have a time limit.
fn wait(deadline: Option<Instant>, reason: ParkReason, signal: Signal) -> Woken {
    let cancel = Cancel::Enabled;
    suspend::park(deadline, reason, cancel, signal)
        .unwrap_or_else(|| context::park_thread(deadline, cancel, signal))
}

/// Charges an operation that could have blocked but did not.
pub(crate) fn charge() {
    suspend::charge();
}

/// Charges an operation before it is tried.
///
/// A fiber whose budget is used up yields and, if it was cancelled, unwinds. At this point nothing
/// is lost, and a fiber whose operations all succeed at once is cancelled, too.
pub(crate) fn charge_ahead() {
    if suspend::charge() {
        suspend::unwind_if_cancelled();
    }
}

/// As [`charge`]; returns the fiber that was charged.
#[inline]
pub(crate) fn charge_caller() -> Option<FiberRef> {
    suspend::charge_caller()
}

/// Whether the caller, which is unwinding, was cancelled or is past its time limit.
pub(crate) fn unwinds_as_told() -> bool {
    suspend::unwinds_as_told()
}

/// The time limit of the calling plain thread, if it comes before this deadline.
///
/// A call that blocks the thread in the kernel has to unwind then.
pub(crate) fn limit_of_thread(deadline: Option<Instant>) -> Option<Instant> {
    time_limit::bounding(None, deadline, Cancel::Enabled)
}

/// The calling fiber; `None` on a plain thread.
pub(crate) fn current_fiber() -> Option<FiberRef> {
    context::current_fiber()
}

/// Ends the calling fiber by unwinding.
pub(crate) fn unwind_cancelled() -> ! {
    suspend::unwind()
}
