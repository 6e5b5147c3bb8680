//! The word of a lock for many readers or one writer, and who gets it next.
//!
//! ```text
//!   word = readers | PARKED | WRITER
//! ```
//!
//! While nobody waits, each operation is one exchange. As soon as somebody waits everybody lines up: the first in the
//! queue gets it by name when it is free for him, and with a reader all readers right behind him. So neither kind
//! starves the other, and nobody overtakes.
//!
//! **L8** PARKED is set if somebody is in the queue, whenever the queue's lock is free; both change under that lock
//! only. While it is set the lock is taken under that lock only; readers let go without it, but with preemption disabled, and the
//! last of them, like a writer, sees to the queue. So if the first waits somebody has the lock, or is about to see to the queue.
//!
//! Rejected: letting readers in beside a waiting writer while others read (with enough readers he waits for ever), and
//! letting whoever comes take it, as a mutex does: here a reader who overtakes makes the next one overtake as well.

use crate::sched::context;
use crate::sched::wake::Waiter;
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

/// What somebody wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

pub(crate) struct RawRwLock<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Way, W>,
}

/// The word once it is taken this way; `None` if that cannot be now. Whether others wait is not asked.
#[inline]
fn taken(word: usize, way: Way) -> Option<usize> {
    match way {
        Way::Read => (word & WRITER == 0).then(|| word + READER),
        Way::Write => (word & !PARKED == 0).then_some(word | WRITER),
    }
}

impl<W> RawRwLock<W> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            RawRwLock { word: AtomicUsize::new(0), queue: Queue::new(()) }
        }
    }

    /// Takes it if it is free and nobody waits.
    #[inline]
    pub(crate) fn try_lock(&self, way: Way) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            let next = taken(word, way).filter(|_| word & PARKED == 0);
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
    /// The lock, or why not.
    #[inline]
    pub(crate) fn lock(&self, way: Way, until: impl FnOnce() -> Until) -> Result<(), Failed> {
        if self.try_lock(way) {
            return Ok(());
        }
        self.lock_slowly(way, &until())
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, way: Way, until: &Until) -> Result<(), Failed> {
        if queue::spin(W::SPINS, || self.try_lock(way)) {
            return Ok(());
        }
        match self.queue.wait(way, until, &mut LineUp(self)) {
            Waited::Done(()) | Waited::Called(_) => Ok(()),
            Waited::TimedOut => Err(Failed::TimedOut),
            Waited::Cancelled => Err(Failed::Cancelled),
        }
    }

    /// By a reader who has it.
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

    /// The last one is not stopped between letting go and seeing to the queue (S6).
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

    /// By the writer who has it.
    #[inline]
    pub(crate) fn unlock_write(&self) {
        let free = self.word.compare_exchange(WRITER, 0, Release, Relaxed);
        if free.is_err() {
            self.see_to_the_queue(WRITER, 0);
        }
    }

    /// The writer who has it reads on, beside others.
    pub(crate) fn downgrade(&self) {
        let alone = self.word.compare_exchange(WRITER, READER, Release, Relaxed);
        if alone.is_err() {
            self.see_to_the_queue(WRITER, READER);
        }
    }

    /// Takes away and adds what the caller has, and gives the lock to whoever may have it now.
    #[cold]
    #[inline(never)]
    fn see_to_the_queue(&self, less: usize, more: usize) {
        let queue = self.queue.lock();
        self.word.fetch_add(more.wrapping_sub(less), AcqRel);
        self.serve_all(queue);
    }

    /// Gives the lock to whoever may have it; the queue's lock was taken before.
    fn serve_all<'a>(&'a self, mut queue: Locked<'a, (), Way, W>) {
        loop {
            self.serve(&mut queue);
            if !queue.finish() {
                return;
            }
            queue = self.queue.lock();
        }
    }

    /// Under the queue's lock: the first gets it if he can, with a reader all readers right behind.
    fn serve(&self, queue: &mut Locked<'_, (), Way, W>) {
        while let Some(way) = queue.first().copied() {
            // Meanwhile it gets freer only (L8).
            if taken(self.word.load(Acquire), way).is_none() || queue.take().is_none() {
                break;
            }
            let more = if way == Way::Read { READER } else { WRITER };
            self.word.fetch_add(more, AcqRel);
        }
        if queue.is_empty() {
            self.word.fetch_and(!PARKED, AcqRel);
        }
    }
}

/// Waiting for the lock.
struct LineUp<'a, W>(&'a RawRwLock<W>);

impl<W: Waits> Plan<(), Way, W> for LineUp<'_, W> {
    type Answer = ();

    /// Takes it if it is free by now and nobody waits; else says in the word that somebody waits (L8).
    fn look(&mut self, queue: &mut Locked<'_, (), Way, W>, way: &mut Way) -> Look<()> {
        let word = &self.0.word;
        let mut now = word.load(Relaxed);
        loop {
            let next = taken(now, *way).filter(|_| queue.is_empty());
            match word.compare_exchange_weak(now, next.unwrap_or(now | PARKED), AcqRel, Relaxed) {
                Ok(_) if next.is_some() => return Look::Done(()),
                Ok(_) => return Look::Behind,
                Err(other) => now = other,
            }
        }
    }

    /// Those behind may have had to wait only for this one.
    fn leave(&mut self, queue: &mut Locked<'_, (), Way, W>) {
        self.0.serve(queue);
    }
}

#[cfg(test)]
mod tests;
