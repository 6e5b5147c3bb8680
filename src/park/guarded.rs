#![expect(
    unsafe_code,
    reason = "access to what a lock protects, for a caller that holds several"
)]
//! A value with a lock that contains wait queues.
//!
//! The lock is taken with preemption disabled, and released before preemption is enabled again. A
//! waiter that was taken out of a queue meanwhile is notified in between: preemption stays disabled
//! from the take to the notification (S6).

use std::ops::{Deref, DerefMut};

use super::queue::{How, Operation, Queue, Taken};
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context::{self, PreemptGuard};
use crate::util::lock::{Lock, StackGuard};
use crate::util::loom::RawLock;

/// How many waiters are taken and notified under one lock hold.
const BATCH: usize = 8;

/// A value with a lock, which is taken with preemption disabled.
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

    /// Locks for an operation that could block, which is charged first.
    ///
    /// A fiber whose budget is used up yields and, if it was cancelled, unwinds.
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

    /// Unlocks, and notifies all waiters that are in this queue now; later ones are left, so it
    /// ends.
    ///
    /// Waiters are notified in batches of [`BATCH`]: a waiter that was taken cannot be cancelled
    /// until it is notified, so preemption is disabled in between (S6), and the lock is never held
    /// for long. A waiter that was not taken yet can still withdraw.
    pub(crate) fn notify_all<'a>(
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

/// A held lock. It is released before preemption is enabled again.
pub(crate) struct Locked<'a, T> {
    guard: StackGuard<'a, T>,
    preempt: PreemptGuard,
}

impl<T> Locked<'_, T> {
    /// An operation of the caller, which holds the lock.
    ///
    /// The waiter of a plain thread may have to be allocated, which is not done under the lock:
    /// `None` if `at_hand` has none. The caller then allocates one and checks again.
    #[inline]
    pub(crate) fn operation(&self, at_hand: &mut Option<Waiter>) -> Option<Operation> {
        let waiter = Waiter::of_fiber(&self.preempt).or_else(|| at_hand.take());
        waiter.map(Operation::of)
    }

    /// Unlocks, and notifies the waiters that were taken meanwhile.
    #[inline]
    pub(crate) fn finish<const N: usize>(self, taken: [Option<Taken>; N]) {
        let Locked { guard, preempt } = self;
        drop(guard);
        let deferred = taken.map(|taken| taken.map(|taken| taken.notify(&preempt)));
        drop(preempt);
        drop(deferred);
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
