//! The global queue: fibers that any worker may take.
//!
//! Fibers that the next free worker cannot simply run have lanes of their own.

use crate::fiber::stack;
use crate::queue::lane::Lane;

pub(crate) struct Global {
    /// Fibers that were woken or have yielded. A worker takes them before its own fibers, many
    /// times in a row.
    pub(crate) started: Lane,
    /// Fibers that have been spawned. A worker takes them every so many dispatches, and when its
    /// own queue is empty.
    pub(crate) unstarted: Lane,
    /// Fibers that left their thread at an instruction, outside of regions, and do not compute
    /// much. A worker takes them in turn with those that were stopped together with their threads.
    pub(crate) interrupted: Lane,
    /// Started fibers that compute much. A worker takes them when nothing else waits, or when a
    /// slice is owed to them.
    pub(crate) batch: Lane,
    /// Starts that were put off while many computing fibers are frozen. A worker takes them like
    /// those of `batch`, now and then.
    pub(crate) deferred: Lane,
    /// Starts that may need a thread, of which there are too many. A worker takes them in turn with
    /// `unstarted`, once a thread may be used.
    pub(crate) threadless: Lane,
    /// Starts for which there was no stack, by size class. No worker takes them: the fiber that
    /// frees a stack queues one of them again.
    pub(crate) stackless: [Lane; stack::CLASSES],
}

impl Global {
    pub(crate) fn new() -> Self {
        Global {
            started: Lane::new(),
            unstarted: Lane::new(),
            interrupted: Lane::new(),
            batch: Lane::new(),
            deferred: Lane::new(),
            threadless: Lane::new(),
            stackless: std::array::from_fn(|_| Lane::new()),
        }
    }
}
