//! Threads that end with a fiber, because it changed what the kernel keeps for its thread (S16).
//!
//! Namespaces, credentials, capabilities, filters and scheduling belong to the kernel's thread.
//! Nothing restores them, and the threads and processes that the thread starts inherit them. The
//! runtime learns of a change in one of two ways: the fiber reports it ([`caller`], behind
//! `runtime::retire_thread`), or the machine code says that the fiber may change its thread.
//! `frames::changes_thread` is asked about the fiber's outermost function when it starts, and when
//! it ends if the code had not been read by then. From there on
//!
//! - the fiber stays on its thread, whatever its frames allow (`Record::keep_on_thread`);
//! - its carrier *retires*: the fiber is its tenant whenever it is switched out, so no other fiber
//!   starts or resumes there (`tenant.rs`);
//! - its thread starts no thread of the runtime: such a request is refused, and the helper makes
//!   the thread (`start.rs`, the pools, the I/O poller);
//! - once the thread has no fiber it gives its worker away and ends.
//!
//! The flag belongs to the carrier's own thread. A worker that cannot leave such a carrier because
//! there is no other thread waits and tries again: it runs nothing else there.
//!
//! The runtime does not notice changes
//!
//! - by closures of the pools (`runtime::blocking`), which have no fiber;
//! - by foreign libraries other than through the names listed;
//! - by calls through pointers that the analysis does not follow;
//! - by a fiber that ended before the program's code had been read.

use indent_sysmon::frames;

use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::context;

impl Carrier {
    /// Makes this thread end when its fibers have ended. Own thread.
    pub(crate) fn retire(&self) {
        self.retires.set(true);
    }

    /// Whether this thread ends when its fibers have ended. Own thread.
    #[inline]
    pub(crate) fn retires(&self) -> bool {
        self.retires.get()
    }

    /// Whether this carrier retires and has no tenant. Own thread, in the scheduler.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.retires() && !self.has_tenant()
    }
}

/// Retires the calling fiber's thread, which the fiber changes or has changed; true on a fiber.
pub(crate) fn caller() -> bool {
    let guard = context::disable_preempt();
    let (Some(carrier), Some(fiber)) = (guard.carrier(), guard.fiber()) else {
        return false;
    };
    fiber.keep_on_thread();
    carrier.retire();
    true
}

/// Whether the calling thread is a retiring carrier, whose attributes a new thread must not
/// inherit.
pub(crate) fn is_here() -> bool {
    let guard = context::disable_preempt();
    guard.carrier().is_some_and(Carrier::retires)
}

/// Whether the closure with this entry may change its thread, if that is known.
///
/// Called on a fiber's own stack, before and after its closure. Retires the thread if it may.
#[inline]
pub(crate) fn judge(entry: usize) -> Option<bool> {
    let changes = frames::changes_thread(entry)?;
    if changes {
        caller();
    }
    Some(changes)
}
