//! The word of a semaphore, and who gets permits next.
//!
//! ```text
//!   word = permits | CLOSED | PARKED
//! ```
//!
//! While nobody waits, taking and giving back are one exchange each. While somebody does, permits that come back go
//! to the first in the queue, by name, as soon as there are enough for him: a heavy one is not starved by light ones,
//! and who comes later waits behind.
//!
//! **L7** PARKED is set if somebody is in the queue, whenever the queue's lock is free; both change under that lock
//! only. While it is set permits are taken under that lock only, and whoever gives some back looks, under
//! that lock, whether the first has enough now. So if the first waits there are too few for him.

use std::time::Instant;

use crate::fiber::reason::ParkReason;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use crate::util::loom::const_fn;

const PARKED: usize = 1;
const CLOSED: usize = 2;
const ONE: usize = 4;
/// So many permits there can be.
pub(crate) const MOST: usize = usize::MAX / ONE / 2;

/// Why there are no permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    TooFew,
    Closed,
    TimedOut,
    Cancelled,
}

/// One who waits.
pub(crate) struct Wish {
    permits: usize,
    /// Granted, or refused since the semaphore is closed.
    granted: bool,
}

pub(crate) struct RawSemaphore<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Wish, W>,
}

impl<W> RawSemaphore<W> {
    const_fn! {
        pub(crate) const fn new(permits: usize) -> Self {
            assert!(permits <= MOST, "a semaphore has at most Semaphore::MAX_PERMITS permits");
            RawSemaphore { word: AtomicUsize::new(permits * ONE), queue: Queue::new(()) }
        }
    }

    pub(crate) fn available(&self) -> usize {
        self.word.load(Relaxed) / ONE
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Relaxed) & CLOSED != 0
    }

    /// Takes permits if nobody waits and there are enough.
    #[inline]
    pub(crate) fn try_take(&self, permits: usize) -> Result<(), Refused> {
        let wanted = permits.min(MOST + 1) * ONE;
        let mut word = self.word.load(Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            if word & PARKED != 0 || word < wanted {
                return Err(Refused::TooFew);
            }
            match self
                .word
                .compare_exchange_weak(word, word - wanted, Acquire, Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }
}

impl<W: Waits> RawSemaphore<W> {
    /// Takes permits, waiting for them.
    #[inline]
    pub(crate) fn take(
        &self,
        permits: usize,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<(), Refused> {
        match self.try_take(permits) {
            Err(Refused::TooFew) => self.wait(permits, deadline()),
            decided => decided,
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self, permits: usize, deadline: Option<Instant>) -> Result<(), Refused> {
        let wish = Wish {
            permits,
            granted: false,
        };
        let until = Until::open(deadline, ParkReason::Semaphore);
        let waited = self.queue.wait(wish, &until, &mut Get(self));
        match waited {
            Waited::Done(decided) => decided,
            Waited::Called(wish) if wish.granted => Ok(()),
            Waited::Called(_) => Err(Refused::Closed),
            Waited::TimedOut => Err(Refused::TimedOut),
            Waited::Cancelled => Err(Refused::Cancelled),
        }
    }

    /// Adds permits; never blocks. False, and nothing is changed, if there were too many then.
    #[must_use]
    #[inline]
    pub(crate) fn add(&self, permits: usize) -> bool {
        self.change(|word| {
            let sum = (word / ONE).checked_add(permits)?;
            (sum <= MOST).then(|| word + permits * ONE)
        })
    }

    /// Gives permits back; never blocks. As many as there can be: some may have been added while these were out.
    #[inline]
    pub(crate) fn give(&self, permits: usize) {
        let changed = self.change(|word| Some(word + permits.min(MOST - word / ONE) * ONE));
        debug_assert!(changed);
    }

    /// More permits, by `more`, if it does not refuse: for whoever comes, or for those who wait.
    #[inline]
    fn change(&self, more: impl Fn(usize) -> Option<usize>) -> bool {
        let mut word = self.word.load(Relaxed);
        while word & PARKED == 0 {
            let Some(next) = more(word) else { return false };
            match self.word.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        self.change_for_waiters(more)
    }

    #[cold]
    #[inline(never)]
    fn change_for_waiters(&self, more: impl Fn(usize) -> Option<usize>) -> bool {
        let mut queue = self.queue.lock();
        let Some(mut word) = self.update(more) else {
            return false;
        };
        loop {
            let granted = self.serve(&mut queue, word);
            self.settle(&queue, granted);
            if !queue.finish() {
                return true;
            }
            queue = self.queue.lock();
            word = self.word.load(Acquire);
        }
    }

    /// Grants what the first ones want, as long as there is enough; how many permits that took.
    fn serve(&self, queue: &mut Locked<'_, (), Wish, W>, word: usize) -> usize {
        let mut left = word / ONE;
        while let Some(first) = queue.first() {
            let wanted = first.permits;
            if wanted > left {
                break;
            }
            let Some(first) = queue.take() else { break };
            first.granted = true;
            left -= wanted;
        }
        word / ONE - left
    }

    /// Under the queue's lock: so many permits were granted, and somebody waits or not.
    fn settle(&self, queue: &Locked<'_, (), Wish, W>, granted: usize) {
        let waits = if queue.is_empty() { 0 } else { PARKED };
        self.update(|word| Some(((word - granted * ONE) & !PARKED) | waits));
    }

    /// Changes the word, unless `next` refuses; what it is now.
    fn update(&self, next: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let mut word = self.word.load(Relaxed);
        loop {
            let new = next(word)?;
            match self.word.compare_exchange_weak(word, new, AcqRel, Relaxed) {
                Ok(_) => return Some(new),
                Err(now) => word = now,
            }
        }
    }

    /// Takes permits away, at most so many, though others wait for them; how many. Under the lock, as all who take
    /// while somebody waits.
    pub(crate) fn forget(&self, permits: usize) -> usize {
        let _queue = self.queue.lock();
        let mut word = self.word.load(Relaxed);
        loop {
            let there = (word / ONE).min(permits);
            match self
                .word
                .compare_exchange_weak(word, word - there * ONE, AcqRel, Relaxed)
            {
                Ok(_) => return there,
                Err(now) => word = now,
            }
        }
    }

    /// Nobody gets permits any more; whoever waits is told.
    pub(crate) fn close(&self) {
        loop {
            let mut queue = self.queue.lock();
            self.update(|word| Some(word | CLOSED));
            while queue.take().is_some() {}
            self.settle(&queue, 0);
            if !queue.finish() {
                return;
            }
        }
    }
}

/// Waiting for permits.
struct Get<'a, W>(&'a RawSemaphore<W>);

impl<W: Waits> Plan<(), Wish, W> for Get<'_, W> {
    type Answer = Result<(), Refused>;

    /// Takes them if nobody waits and there are enough by now; else says in the word that somebody waits (L7).
    fn look(&mut self, queue: &mut Locked<'_, (), Wish, W>, wish: &mut Wish) -> Look<Self::Answer> {
        let word = &self.0.word;
        let mut now = word.load(Relaxed);
        loop {
            if now & CLOSED != 0 {
                return Look::Done(Err(Refused::Closed));
            }
            let enough = queue.is_empty() && now / ONE >= wish.permits;
            let next = if enough {
                now - wish.permits * ONE
            } else {
                now | PARKED
            };
            match word.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) if enough => return Look::Done(Ok(())),
                Ok(_) => return Look::Behind,
                Err(other) => now = other,
            }
        }
    }

    /// Those behind may have had to wait only for this one.
    fn leave(&mut self, queue: &mut Locked<'_, (), Wish, W>) {
        let word = self.0.word.load(Acquire);
        let granted = self.0.serve(queue, word);
        self.0.settle(queue, granted);
    }
}

#[cfg(test)]
mod tests;
