//! The state word of a read-write lock, and which waiters get it next.
//!
//! ```text
//!   word = readers | PARKED | WRITER
//! ```
//!
//! While there are no waiters, each operation is one exchange. As soon as there is a waiter, every
//! caller queues: the first in the queue is handed the lock when it is free for it, and with a
//! reader all readers right behind it. So neither kind starves the other, and no caller overtakes.
//!
//! **L8** PARKED is set if the queue has waiters, whenever the queue's lock is free; both change
//! under that lock only. While PARKED is set the lock is taken under that lock only. Readers
//! release without it, but with preemption disabled, and the last reader, like a writer, serves the
//! queue. So if the first waits, the lock is held, or its last holder is about to serve the queue.
//!
//! Rejected: admitting readers while a writer waits and others read (with enough readers the writer
//! waits forever); and admitting any caller that finds the lock free, as a mutex does: a reader
//! that overtakes lets the next one overtake, too.

use crate::sched::block::wake::Waiter;
use crate::sched::workers::context;
use crate::sync::queue::{self, Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::sync::raw_mutex::Failed;
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::util::loom::const_fn;

const WRITER: usize = 1;
const PARKED: usize = 2;
const READER: usize = 4;

/// The kind of access that a caller requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

pub(crate) struct RawRwLock<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Access, W>,
}

/// The word after this access is granted; `None` if it cannot be granted now. Ignores waiters.
#[inline]
fn taken(word: usize, access: Access) -> Option<usize> {
    match access {
        Access::Read => (word & WRITER == 0).then(|| word + READER),
        Access::Write => (word & !PARKED == 0).then_some(word | WRITER),
    }
}

impl<W> RawRwLock<W> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            RawRwLock { word: AtomicUsize::new(0), queue: Queue::new(()) }
        }
    }

    /// Takes the lock if it is free for this access and there are no waiters.
    #[inline]
    pub(crate) fn try_lock(&self, access: Access) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            let next = taken(word, access).filter(|_| word & PARKED == 0);
            let Some(next) = next else { return false };
            match self
                .word
                .compare_exchange_weak(word, next, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }
}

impl<W: Waits> RawRwLock<W> {
    /// Takes the lock, or returns why not.
    #[inline]
    pub(crate) fn lock(&self, access: Access, until: impl FnOnce() -> Until) -> Result<(), Failed> {
        if self.try_lock(access) {
            return Ok(());
        }
        self.lock_slowly(access, &until())
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, access: Access, until: &Until) -> Result<(), Failed> {
        if queue::spin(W::SPINS, || self.try_lock(access)) {
            return Ok(());
        }
        match self.queue.wait(access, until, &mut RwLockPlan(self)) {
            Waited::Done(()) | Waited::Notified(_) => Ok(()),
            Waited::TimedOut => Err(Failed::TimedOut),
            Waited::Cancelled => Err(Failed::Cancelled),
        }
    }

    /// Releases the lock of a reader.
    #[inline]
    pub(crate) fn unlock_read(&self) {
        let mut word = self.word.load(Relaxed);
        while word & PARKED == 0 {
            match self
                .word
                .compare_exchange_weak(word, word - READER, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
        self.unlock_read_slowly();
    }

    /// Releases the lock of a reader when there are waiters. The last reader is not preempted
    /// between the release and serving the queue (S6).
    #[cold]
    #[inline(never)]
    fn unlock_read_slowly(&self) {
        let guard = context::disable_preempt();
        let before = self.word.fetch_sub(READER, AcqRel);
        if before - READER == PARKED {
            let queue = self.queue.lock(); // disables preemption itself
            drop(guard);
            self.serve_all(queue);
        }
    }

    /// Releases the lock of the writer.
    #[inline]
    pub(crate) fn unlock_write(&self) {
        let free = self.word.compare_exchange(WRITER, 0, Release, Relaxed);
        if free.is_err() {
            self.release_and_serve(WRITER, 0);
        }
    }

    /// Turns the writer's lock into a reader's, beside other readers.
    pub(crate) fn downgrade(&self) {
        let alone = self.word.compare_exchange(WRITER, READER, Release, Relaxed);
        if alone.is_err() {
            self.release_and_serve(WRITER, READER);
        }
    }

    /// Subtracts `less` and adds `more`, and hands the lock to the waiters that can have it now.
    #[cold]
    #[inline(never)]
    fn release_and_serve(&self, less: usize, more: usize) {
        let queue = self.queue.lock();
        self.word.fetch_add(more.wrapping_sub(less), AcqRel);
        self.serve_all(queue);
    }

    /// Hands the lock to the waiters that can have it now. The caller has locked the queue.
    fn serve_all<'a>(&'a self, mut queue: Locked<'a, (), Access, W>) {
        loop {
            self.serve(&mut queue);
            if !queue.finish() {
                return;
            }
            queue = self.queue.lock();
        }
    }

    /// Under the queue's lock: hands the lock to the first waiter if it is free for it, and with a
    /// reader to all readers right behind it.
    fn serve(&self, queue: &mut Locked<'_, (), Access, W>) {
        while let Some(access) = queue.first().copied() {
            // Meanwhile the lock can only become freer (L8).
            if taken(self.word.load(Acquire), access).is_none() || queue.take().is_none() {
                break;
            }
            let more = if access == Access::Read {
                READER
            } else {
                WRITER
            };
            self.word.fetch_add(more, AcqRel);
        }
        if queue.is_empty() {
            self.word.fetch_and(!PARKED, AcqRel);
        }
    }
}

/// The plan of a wait for the lock.
struct RwLockPlan<'a, W>(&'a RawRwLock<W>);

impl<W: Waits> Plan<(), Access, W> for RwLockPlan<'_, W> {
    type Answer = ();

    /// Takes the lock if it is free by now and there are no waiters; otherwise notes in the word
    /// that there is a waiter (L8).
    fn look(&mut self, queue: &mut Locked<'_, (), Access, W>, access: &mut Access) -> Look<()> {
        let word = &self.0.word;
        let mut now = word.load(Relaxed);
        loop {
            let next = taken(now, *access).filter(|_| queue.is_empty());
            match word.compare_exchange_weak(now, next.unwrap_or(now | PARKED), AcqRel, Relaxed) {
                Ok(_) if next.is_some() => return Look::Done(()),
                Ok(_) => return Look::Behind,
                Err(other) => now = other,
            }
        }
    }

    /// The waiters behind may have waited only because of this one.
    fn leave(&mut self, queue: &mut Locked<'_, (), Access, W>) {
        self.0.serve(queue);
    }
}

#[cfg(test)]
mod tests;
