#![expect(
    unsafe_code,
    reason = "what a lock protects, for who has taken several"
)]
//! Something with a lock, inside of which are queues of those who wait for it.
//!
//! The lock is taken with preemption disabled, and released before preemption is enabled again. Who was taken out of a queue
//! meanwhile is called in between: from a take to the call preemption is disabled (S6).

use std::ops::{Deref, DerefMut};

use super::queue::{How, Operation, Queue, Taken};
use crate::sched::context::{self, PreemptGuard};
use crate::sched::wake::Waiter;
use crate::util::lock::{Guard, Lock};
use crate::util::loom::RawLock;

/// How many are called in one breath.
const BATCH: usize = 8;

/// Something with a lock, which is taken together with the mark.
pub(crate) struct Guarded<T>(Lock<T>);

impl<T> Guarded<T> {
    pub(crate) fn new(inside: T) -> Self {
        Guarded(Lock::new(inside))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let preempt = context::disable_preempt();
        Locked {
            guard: self.0.lock(),
            preempt,
        }
    }

    /// For an operation that could block: it is charged first, and a fiber whose budget is used up gives way and,
    /// if it was asked to end, unwinds.
    #[inline]
    pub(crate) fn lock_charged(&self) -> Locked<'_, T> {
        let mut preempt = context::disable_preempt();
        if !preempt.pays() {
            drop(preempt);
            super::charge_ahead();
            preempt = context::disable_preempt();
        }
        Locked {
            guard: self.0.lock(),
            preempt,
        }
    }

    /// Unlocks, and calls all who wait in this queue: not who comes later, so it ends.
    ///
    /// A few at a time: who was taken is deaf until it is called, so preemption is disabled from the one to the other (S6),
    /// and a crowd is not called in one breath. Who was not taken yet can still withdraw.
    pub(crate) fn call_all<'a>(
        &'a self,
        mut locked: Locked<'a, T>,
        how: How,
        queue: impl Fn(&mut T) -> &mut Queue,
    ) {
        let now = queue(&mut locked).now();
        loop {
            let taken = [(); BATCH].map(|()| queue(&mut locked).take_before(now, how));
            let is_last = taken[BATCH - 1].is_none();
            locked.finish(taken);
            if is_last {
                return;
            }
            locked = self.lock();
        }
    }

    pub(crate) fn raw(&self) -> &RawLock {
        self.0.raw()
    }

    /// # Safety
    /// The caller has acquired the raw lock and has no other such reference.
    #[expect(
        clippy::mut_from_ref,
        reason = "by the caller's promise it is the only one"
    )]
    pub(crate) unsafe fn inside(&self) -> &mut T {
        // SAFETY: by the caller's promise.
        unsafe { self.0.inside() }
    }
}

/// The lock is released first, then the mark.
pub(crate) struct Locked<'a, T> {
    guard: Guard<'a, T>,
    preempt: PreemptGuard,
}

impl<T> Locked<'_, T> {
    /// An operation of whoever holds the lock. A plain thread's waiter may have to be allocated, which is not done
    /// under the lock: `None` if there is none at hand. Then whoever waits makes one, and looks again.
    #[inline]
    pub(crate) fn operation(&self, at_hand: &mut Option<Waiter>) -> Option<Operation> {
        let waiter = Waiter::of_fiber(&self.preempt).or_else(|| at_hand.take());
        waiter.map(Operation::of)
    }

    /// Unlocks, and calls those who were taken meanwhile.
    #[inline]
    pub(crate) fn finish<const N: usize>(self, taken: [Option<Taken>; N]) {
        let Locked { guard, preempt } = self;
        drop(guard);
        let kept = taken.map(|taken| taken.map(|taken| taken.notify(&preempt)));
        drop(preempt);
        drop(kept);
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
