//! The state word of a semaphore, and which waiter gets permits next.
//!
//! ```text
//!   word = permits | CLOSED | PARKED
//! ```
//!
//! While there are no waiters, taking and returning permits are one exchange each. With waiters,
//! returned permits are handed to the first in the queue as soon as there are enough for it. So a
//! request for many permits is not starved by small ones, and later callers wait behind it.
//!
//! **L7** PARKED is set if the queue has waiters, whenever the queue's lock is free; both change
//! under that lock only. While PARKED is set, permits are taken under that lock only, and a caller
//! that returns permits checks, under that lock, whether the first waiter has enough now. So if the
//! first waits, there are too few permits for it.

use std::time::Instant;

use crate::fiber::reason::ParkReason;
use crate::sched::block::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use crate::util::loom::const_fn;

const PARKED: usize = 1;
const CLOSED: usize = 2;
const ONE: usize = 4;
/// The largest number of permits.
pub(crate) const PERMIT_LIMIT: usize = usize::MAX / ONE / 2;

/// Why no permits were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    TooFew,
    Closed,
    TimedOut,
    Cancelled,
}

/// The request of a waiter.
pub(crate) struct Request {
    permits: usize,
    /// Whether the permits were granted. If not, the semaphore was closed.
    granted: bool,
}

pub(crate) struct RawSemaphore<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Request, W>,
}

impl<W> RawSemaphore<W> {
    const_fn! {
        pub(crate) const fn new(permits: usize) -> Self {
            assert!(
                permits <= PERMIT_LIMIT,
                "cannot create a semaphore with more than Semaphore::MAX_PERMITS permits"
            );
            RawSemaphore { word: AtomicUsize::new(permits * ONE), queue: Queue::new(()) }
        }
    }

    pub(crate) fn available(&self) -> usize {
        self.word.load(Relaxed) / ONE
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Relaxed) & CLOSED != 0
    }

    /// Takes permits if there are enough and no waiters.
    #[inline]
    pub(crate) fn try_take(&self, permits: usize) -> Result<(), Refused> {
        let wanted = permits.min(PERMIT_LIMIT + 1) * ONE;
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
    /// Takes permits, waiting for them if necessary.
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
        let request = Request {
            permits,
            granted: false,
        };
        let until = Until::cancellable(deadline, ParkReason::Semaphore);
        let waited = self.queue.wait(request, &until, &mut AcquirePlan(self));
        match waited {
            Waited::Done(decided) => decided,
            Waited::Notified(request) if request.granted => Ok(()),
            Waited::Notified(_) => Err(Refused::Closed),
            Waited::TimedOut => Err(Refused::TimedOut),
            Waited::Cancelled => Err(Refused::Cancelled),
        }
    }

    /// Adds permits without blocking. Returns false, and changes nothing, if there would be too
    /// many.
    #[must_use]
    #[inline]
    pub(crate) fn add(&self, permits: usize) -> bool {
        self.change(|word| {
            let sum = (word / ONE).checked_add(permits)?;
            (sum <= PERMIT_LIMIT).then(|| word + permits * ONE)
        })
    }

    /// Returns permits without blocking. Their number is capped at the maximum: others may have
    /// been added meanwhile.
    #[inline]
    pub(crate) fn give(&self, permits: usize) {
        let changed = self.change(|word| Some(word + permits.min(PERMIT_LIMIT - word / ONE) * ONE));
        debug_assert!(changed);
    }

    /// Changes the word by `more`, unless that refuses, and grants permits to waiters if there are
    /// any.
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

    /// Grants the requests of the first waiters while there are enough permits; returns how many
    /// permits that took.
    fn serve(&self, queue: &mut Locked<'_, (), Request, W>, word: usize) -> usize {
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

    /// Under the queue's lock: subtracts the granted permits, and sets PARKED if there are waiters.
    fn settle(&self, queue: &Locked<'_, (), Request, W>, granted: usize) {
        let waits = if queue.is_empty() { 0 } else { PARKED };
        self.update(|word| Some(((word - granted * ONE) & !PARKED) | waits));
    }

    /// Changes the word, unless `next` refuses, and returns the new word.
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

    /// Removes up to this many permits, even if others wait for them; returns how many. Holds the
    /// queue's lock, as every taker does while there are waiters.
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

    /// Closes the semaphore: no permits are granted any more, and all waiters are notified.
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

/// The plan of a wait for permits.
struct AcquirePlan<'a, W>(&'a RawSemaphore<W>);

impl<W: Waits> Plan<(), Request, W> for AcquirePlan<'_, W> {
    type Answer = Result<(), Refused>;

    /// Takes the permits if there are enough by now and no waiters; otherwise notes in the word
    /// that there is a waiter (L7).
    fn look(
        &mut self,
        queue: &mut Locked<'_, (), Request, W>,
        request: &mut Request,
    ) -> Look<Self::Answer> {
        let word = &self.0.word;
        let mut now = word.load(Relaxed);
        loop {
            if now & CLOSED != 0 {
                return Look::Done(Err(Refused::Closed));
            }
            let enough = queue.is_empty() && now / ONE >= request.permits;
            let next = if enough {
                now - request.permits * ONE
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

    /// The waiters behind may have waited only because of this one.
    fn leave(&mut self, queue: &mut Locked<'_, (), Request, W>) {
        let word = self.0.word.load(Acquire);
        let granted = self.0.serve(queue, word);
        self.0.settle(queue, granted);
    }
}

#[cfg(test)]
mod tests;
