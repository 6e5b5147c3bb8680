#![expect(
    unsafe_code,
    reason = "intrusive links through entries on the stacks of waiting fibers"
)]
//! Wait queues, in order of arrival; a waiter may be in one queue or in several at once.
//!
//! An *operation* is what one fiber or plain thread waits for: one thing, or the first of several,
//! its *arms*. For each arm it has an *entry* in the *queue* of that thing. Operation and entries
//! lie on the stack of the waiting fiber or thread, the *owner*; nothing is allocated. A queue
//! belongs to a value with a lock ([`Guarded`](super::guarded::Guarded)), and is accessed under
//! that lock.
//!
//! The *winner* is one word of the operation: open, withdrawn, or the arm that has won and how.
//!
//! - **Wait**: under the lock (of all arms at once, in the order of their addresses, if there are
//!   several), check whether the operation can be done now; if not, put the entries into the
//!   queues. Unlock, park.
//! - **Take**: the counterpart, under the lock, removes the first entry whose operation it can
//!   *commit*, by exchanging open for the arm. Entries that it meets on the way have lost already;
//!   they are removed as well. Then it moves the value to or from the entry's slot. It unlocks and
//!   notifies the waiter, all with preemption disabled: a taken waiter cannot be woken by anything
//!   else until it is notified (S6). To notify all, it takes a batch, notifies it, and takes the
//!   next.
//! - **Withdraw**: at the deadline or on cancellation, the owner exchanges open for withdrawn. If
//!   that fails, an arm has won, and a value may have been moved. The notification is imminent; the
//!   owner waits for it with cancellation disabled. An operation with one arm withdraws by removing
//!   its entry under the lock: there the lock decides, and the exchange is saved.
//! - **Leave**: in any case the owner removes the entries of the other arms, each under its lock.
//!   Then no queue refers to them.
//!
//! **I27** *At most one arm wins.* All who decide exchange the one word, or hold the one lock.
//! **I28** *An entry stays while anything refers to it.* An entry is in a queue, or was taken by a
//! thread that its owner waits for: the winner notifies, and a thread that removed a losing entry
//! did not touch it after the lock, which the owner takes to leave. **I29** *No owner waits for
//! what is there.* Entries are put in under the locks under which nothing could be done, and a
//! counterpart looks into the queue under the same lock.
//!
//! Rejected: to check, put the entries in under one lock after the other, and check again. Then two
//! operations that wait for each other must commit two words at once, or one withdraws and starts
//! again, and so may the other.

use std::cell::UnsafeCell;
use std::marker::PhantomPinned;
use std::ptr::{self, NonNull};
use std::time::Instant;

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::workers::context::PreemptGuard;
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

const OPEN: usize = 0;
const WITHDRAWN: usize = 1;
/// Arm `n` has won: `(n + 1) * ARM`, and `OVER` or not.
const ARM: usize = 4;
const OVER: usize = 2;

/// How an arm won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The operation was done, or what it waited for is there.
    Done,
    /// It can never be done: a channel was closed.
    Over,
}

/// The arm that has won, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Won {
    pub(crate) arm: usize,
    pub(crate) how: How,
}

impl Won {
    #[inline]
    fn number(self) -> usize {
        let over = if self.how == How::Over { OVER } else { 0 };
        ((self.arm + 1) * ARM) | over
    }
}

/// A wait of one fiber or thread, for one thing or the first of several.
pub(crate) struct Operation {
    winner: AtomicUsize,
    waiter: Waiter,
}

impl Operation {
    /// An operation of the calling fiber or thread.
    #[inline]
    pub(crate) fn caller() -> Self {
        Self::of(Waiter::caller())
    }

    pub(super) fn of(waiter: Waiter) -> Self {
        Operation {
            winner: AtomicUsize::new(OPEN),
            waiter,
        }
    }

    /// An operation of a thread of a model.
    #[cfg(all(test, indent_loom))]
    pub(crate) fn of_model() -> Self {
        Self::of(Waiter::of_model())
    }

    /// Commits the operation to an arm; false if another arm has won, or it was withdrawn.
    #[inline]
    pub(crate) fn commit(&self, won: Won) -> bool {
        self.decide(won.number())
    }

    fn decide(&self, winner: usize) -> bool {
        self.winner
            .compare_exchange(OPEN, winner, AcqRel, Acquire)
            .is_ok()
    }

    /// Withdraws the operation; false if an arm has won, whose notification is imminent.
    pub(crate) fn withdraw(&self) -> bool {
        self.decide(WITHDRAWN)
    }

    /// Parks the owner, which was charged before.
    pub(crate) fn park(
        &self,
        deadline: Option<Instant>,
        reason: ParkReason,
        cancel: Cancel,
    ) -> Woken {
        self.waiter.park_charged(deadline, reason, cancel)
    }

    /// One more waiter of the owner.
    pub(crate) fn waiter(&self) -> Waiter {
        self.waiter.another()
    }

    /// Whether another thread has committed an arm and no longer accesses the operation.
    pub(crate) fn was_notified(&self) -> bool {
        self.waiter.was_notified()
    }

    /// The arm that has won.
    pub(crate) fn won(&self) -> Won {
        let winner = self.winner.load(Acquire);
        Won {
            arm: winner / ARM - 1,
            how: if winner & OVER == 0 {
                How::Done
            } else {
                How::Over
            },
        }
    }

    /// Parks until the only arm has won, or until the deadline or a cancellation withdraws it.
    ///
    /// `withdraw` removes the entry under the lock and returns whether it was there.
    pub(crate) fn wait(
        &self,
        deadline: Option<Instant>,
        reason: ParkReason,
        withdraw: &dyn Fn() -> bool,
    ) -> Result<How, Woken> {
        let (mut deadline, mut cancel) = (deadline, Cancel::Enabled);
        let bomb = AbortOnDrop("a waiter left its frame while others refer to it");
        let ended = loop {
            let woken = self.park(deadline, reason, cancel);
            if self.was_notified() {
                break Ok(self.won().how);
            }
            if woken != Woken::ByWake {
                if withdraw() {
                    break Err(woken);
                }
                (deadline, cancel) = (None, Cancel::Disabled); // the notification is imminent
            }
        };
        std::mem::forget(bomb);
        ended
    }
}

/// One arm of an operation, in the queue of what it waits for.
pub(crate) struct Entry {
    operation: *const Operation,
    arm: usize,
    /// Whether the operation has no other arm.
    is_only: bool,
    /// Where the value is read from or written to.
    slot: *mut (),
    links: UnsafeCell<Links>,
    _stays: PhantomPinned,
}

struct Links {
    next: *const Entry,
    prev: *const Entry,
    /// The number of entries that came to the queue before it.
    came: u64,
    is_in: bool,
}

// SAFETY: the links are touched under the lock of the queue; what is in the slot is sent.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    /// One of several arms.
    #[inline]
    pub(crate) fn new(operation: &Operation, arm: usize, slot: *mut ()) -> Self {
        Self::with(operation, arm, slot, false)
    }

    /// The only arm.
    #[inline]
    pub(crate) fn only(operation: &Operation, slot: *mut ()) -> Self {
        Self::with(operation, 0, slot, true)
    }

    #[inline]
    fn with(operation: &Operation, arm: usize, slot: *mut (), is_only: bool) -> Self {
        Entry {
            operation,
            arm,
            is_only,
            slot,
            links: UnsafeCell::new(Links {
                next: ptr::null(),
                prev: ptr::null(),
                came: 0,
                is_in: false,
            }),
            _stays: PhantomPinned,
        }
    }

    /// # Safety
    /// The lock of its queue is held, and no other such reference is alive.
    #[expect(
        clippy::mut_from_ref,
        reason = "by the caller's promise it is the only one"
    )]
    unsafe fn links(&self) -> &mut Links {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.links.get() }
    }

    pub(crate) fn is_arm(&self, arm: usize) -> bool {
        self.arm == arm
    }

    /// Commits its operation to this arm, under the lock.
    ///
    /// If there is no other arm the lock decides: the operation is withdrawn under the same lock.
    #[inline]
    fn commit(&self, how: How) -> bool {
        let won = Won { arm: self.arm, how };
        if !self.is_only {
            return self.operation().commit(won);
        }
        self.operation().winner.store(won.number(), Relaxed); // the notification releases it
        true
    }

    fn operation(&self) -> &Operation {
        // SAFETY: I28: both lie on one stack, and the entry is still there.
        unsafe { &*self.operation }
    }
}

/// A queue of entries in order of arrival, accessed under the lock of its owner.
pub(crate) struct Queue {
    head: *const Entry,
    tail: *const Entry,
    /// The number of entries that have come so far.
    came: u64,
}

// SAFETY: it is touched under a lock, and its members may be touched by any thread that holds it.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) const fn new() -> Self {
        Queue {
            head: ptr::null(),
            tail: ptr::null(),
            came: 0,
        }
    }

    /// # Safety
    /// The entry is in no queue. It stays where it is until it was taken out, or the operation was
    /// called.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &Entry) {
        // SAFETY: nothing else refers to it yet.
        *unsafe { entry.links() } = Links {
            next: ptr::null(),
            prev: self.tail,
            came: self.came,
            is_in: true,
        };
        self.came += 1;
        // SAFETY: a member is there (I28).
        match unsafe { self.tail.as_ref() } {
            None => self.head = entry,
            // SAFETY: a member, and we hold the lock.
            Some(tail) => unsafe { tail.links() }.next = entry,
        }
        self.tail = entry;
    }

    /// Removes an entry; false if it was removed before.
    ///
    /// # Safety
    /// It was put into this queue or none.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, entry: &Entry) -> bool {
        // SAFETY: the lock is held. No reference is made: if it was taken, the rest is its taker's.
        if !unsafe { (*entry.links.get()).is_in } {
            return false;
        }
        // SAFETY: it is in the queue, and we hold the lock.
        let links = unsafe { entry.links() };
        links.is_in = false;
        let (next, prev) = (links.next, links.prev);
        // SAFETY: a neighbour is a member (I28).
        match unsafe { prev.as_ref() } {
            None => self.head = next,
            // SAFETY: a member, and we hold the lock.
            Some(prev) => unsafe { prev.links() }.next = next,
        }
        // SAFETY: as above.
        match unsafe { next.as_ref() } {
            None => self.tail = prev,
            // SAFETY: as above.
            Some(next) => unsafe { next.links() }.prev = prev,
        }
        true
    }

    /// Removes the first entry whose operation can be committed to its arm.
    #[inline]
    pub(crate) fn take(&mut self, how: How) -> Option<Taken> {
        // SAFETY: a member is there (I28).
        while let Some(entry) = unsafe { self.head.as_ref() } {
            // SAFETY: it is the first of this queue.
            unsafe { self.remove(entry) };
            if entry.commit(how) {
                return Some(Taken(NonNull::from(entry)));
            }
        }
        None
    }

    /// The arrival number that all entries in the queue now are below.
    pub(super) fn now(&self) -> u64 {
        self.came
    }

    /// As [`take`](Self::take), of entries with an arrival number below `then`.
    pub(super) fn take_before(&mut self, then: u64, how: How) -> Option<Taken> {
        // SAFETY: a member is there (I28).
        while let Some(entry) = unsafe { self.head.as_ref() } {
            // SAFETY: a member, and we hold the lock.
            if unsafe { entry.links() }.came >= then {
                return None;
            }
            // SAFETY: it is the first of this queue.
            unsafe { self.remove(entry) };
            if entry.commit(how) {
                return Some(Taken(NonNull::from(entry)));
            }
        }
        None
    }
}

/// An entry that the caller has committed: it must move the value and then notify.
#[must_use = "a waiter waits for the notification"]
pub(crate) struct Taken(NonNull<Entry>);

impl Taken {
    /// Where its value is read from or written to.
    #[inline]
    pub(crate) fn slot(&self) -> *mut () {
        // SAFETY: I28: it waits for this notification.
        unsafe { self.0.as_ref() }.slot
    }

    /// Notifies the waiter, without the lock, with preemption disabled.
    #[inline]
    pub(crate) fn notify(self, guard: &PreemptGuard) -> DeferredDrop {
        // SAFETY: I28: it waits for this notification.
        let waiter = unsafe { self.0.as_ref() }.operation().waiter.address();
        // SAFETY: the winner notifies, and the caller is the winner, once.
        unsafe { Waiter::notify(guard, waiter) }
    }
}

#[cfg(all(test, indent_loom))]
mod tests;
