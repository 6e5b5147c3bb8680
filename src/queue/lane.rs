#![expect(unsafe_code, reason = "pushes members into an intrusive list")]
//! A lane of the global queue (`global.rs`): first in, first out, behind a lock. The lock is held
//! for a few instructions, and never across an allocation, a page fault on fresh memory or a system
//! call.

use std::ptr::NonNull;

use crate::fiber::{FiberRef, Record};
use crate::util::list::List;
use crate::util::loom::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::util::loom::{Mutex, lock};

pub(crate) struct Lane {
    /// Written under the lock; read without it by a thread that decides whether to look.
    len: AtomicUsize,
    list: Mutex<List<Record>>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Lane {
            len: AtomicUsize::new(0),
            list: Mutex::new(List::new()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    pub(crate) fn push(&self, fiber: FiberRef) {
        let mut list = lock(&self.list);
        // SAFETY: the caller gives us its role (I1, I3): the fiber is in no list and stays alive.
        unsafe { list.push(fiber.pointer()) };
        self.len.store(list.len(), SeqCst);
    }

    pub(crate) fn push_all(&self, fibers: List<Record>) {
        let mut list = lock(&self.list);
        list.append(fibers);
        self.len.store(list.len(), SeqCst);
    }

    /// Pops up to `most` fibers, oldest first.
    pub(crate) fn pop(&self, most: usize) -> List<Record> {
        let mut taken = List::new();
        if self.len() == 0 {
            return taken;
        }
        let mut list = lock(&self.list);
        while taken.len() < most {
            let Some(member) = list.pop() else { break };
            // SAFETY: just popped, so in no list; a queued record stays alive (I3).
            unsafe { taken.push(member) };
        }
        self.len.store(list.len(), SeqCst);
        taken
    }
}

/// Turns a popped member into a fiber: its place in the queue becomes the caller's.
pub(crate) fn popped(member: NonNull<Record>) -> FiberRef {
    // SAFETY: I3: a thread that pops a fiber off a queue takes over the queue's role.
    unsafe { FiberRef::new(member) }
}
