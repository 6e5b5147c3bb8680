//! Threads that end with a fiber, because it changed what the kernel keeps for its thread (S16).
//!
//! Namespaces, credentials, capabilities, filters and scheduling belong to the kernel's thread, are
//! not put back by anything, and are inherited by the threads and processes it starts. A fiber that
//! changes them says so ([`caller`], behind `runtime::retire_thread`), or the machine code says
//! that it may (`frames::changes_thread`, asked of its outermost function when it starts, and when
//! it ends if the code had not been read by then). From there on
//!
//! - the fiber stays on its thread, whatever its frames allow (`Record::keep_on_thread`);
//! - its carrier *retires*: the fiber is its tenant whenever it is switched out, so no other fiber
//!   starts or resumes there (`tenant.rs`);
//! - its thread starts no thread of ours: what asks for one is refused, and the helper makes it
//!   (`start.rs`, the pools, the I/O poller);
//! - once it has no fiber it gives its worker away and ends.
//!
//! The flag is the carrier's own thread's. A worker that cannot leave such a carrier because no
//! thread can be had waits and tries again: it runs nothing else there.
//!
//! What is not seen: changes by closures of the pools (`runtime::blocking`), which have no fiber;
//! by foreign libraries other than through the names listed; by calls through pointers that the
//! analysis does not follow; by a fiber that ended before the program's code had been read.

use indent_sysmon::frames;

use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::context;

impl Carrier {
    /// Own thread: it ends when its fibers have.
    pub(crate) fn retire(&self) {
        self.retires.set(true);
    }

    /// Own thread.
    #[inline]
    pub(crate) fn retires(&self) -> bool {
        self.retires.get()
    }

    /// Own thread, in the scheduler: whether nothing keeps it any more.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.retires() && !self.has_tenant()
    }
}

/// The calling fiber changes its thread, or has; true on a fiber.
pub(crate) fn caller() -> bool {
    let guard = context::disable_preempt();
    let (Some(carrier), Some(fiber)) = (guard.carrier(), guard.fiber()) else {
        return false;
    };
    fiber.keep_on_thread();
    carrier.retire();
    true
}

/// Whether the calling thread is one of ours that must not hand on what it has to a new one.
pub(crate) fn is_here() -> bool {
    let guard = context::disable_preempt();
    guard.carrier().is_some_and(Carrier::retires)
}

/// On a fiber's own stack, before and after its closure, whose entry this is: whether it may change
/// its thread, if that is known.
#[inline]
pub(crate) fn judge(entry: usize) -> Option<bool> {
    let changes = frames::changes_thread(entry)?;
    if changes {
        caller();
    }
    Some(changes)
}
