//! The state word of a mutex, and which waiter gets the lock next.
//!
//! ```text
//!   word = owner's id | PASSED | POISON | WOKEN | PARKED | LOCKED
//! ```
//!
//! Locking a free mutex, and unlocking one without waiters, are one exchange each. The word
//! contains the owner, so that a fiber or a thread that locks twice is detected, on the slow path
//! only. The owner is identified by number, not by its record: the guard may outlive the fiber,
//! whose record is then reused.
//!
//! *Barging.* A caller that finds the word free takes the lock, even if others wait. A lock that is
//! always handed to a sleeping waiter stays idle until that waiter runs, and all others wait for
//! that. So an unlock wakes the first waiter and lets it compete. WOKEN says that a woken waiter is
//! on its way; until it has taken the lock or is queued again, no other waiter is woken. The
//! exception is a woken waiter that does not run, because its thread is busy: PASSED counts the
//! unlocks in a row since then. When it is full, the next unlock checks whether the first waiter
//! has waited too long, and wakes it as well.
//!
//! *Starvation.* A waiter that has waited for longer than its patience (`queue.rs`) and fails to
//! get the lock again is queued at the front, marked as starving. The next unlock hands the lock to
//! it: LOCKED stays set, without an owner until the waiter runs and enters its id. A caller reads
//! the clock only when it is about to sleep for the first time.
//!
//! **L5** PARKED is set if the queue has waiters, whenever the queue's lock is free. Both change
//! under that lock only, and PARKED is set only while LOCKED is. So an unlock that finds PARKED
//! clear has no waiter to wake: a waiter that comes later finds LOCKED clear and does not wait.
//!
//! **L6** WOKEN is set from the notification of a waiter without the lock until that waiter has
//! taken the lock or is queued again. Both clear it by an exchange that either finds the word free,
//! or makes the next unlock look at the queue. So a free lock never has only sleeping waiters: one
//! waiter is awake and looks at it. (If two are awake, the first of them clears WOKEN, and a third
//! may be woken: one too many, never one too few.)
//!
//! Rejected: always handing over (every lock beyond the first costs a switch: a convoy); waking a
//! waiter at every unlock (all are awake and compete); a bit for a starving queue (with PARKED and
//! without WOKEN every unlock looks at the queue anyway).

use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context;
use crate::sync::queue::{self, Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::util::loom::const_fn;

const LOCKED: usize = 1;
const PARKED: usize = 2;
const WOKEN: usize = 4;
const POISON: usize = 8;
/// Counts unlocks while a woken waiter is on its way.
const PASSED: usize = 15 * PASS;
const PASS: usize = 16;
/// The bits that a woken waiter clears.
const WAKE_PENDING: usize = WOKEN | PASSED;
/// The id of the owner.
const OWNER: usize = !255;
/// Set in the id of a plain thread.
const THREAD: usize = 256;
/// How many times as often as other locks a mutex is checked before the wait begins. An unlock
/// hands it to no waiter, so it is free in between.
const LOOKS: u32 = 2;

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    TimedOut,
    Cancelled,
    /// The caller is the owner already.
    AlreadyOwner,
}

/// The request of a waiter.
pub(crate) struct Request {
    /// When the wait began; set before the first sleep.
    since: Option<Instant>,
    /// The lock is to be handed over.
    starves: bool,
    /// The lock was handed over.
    handed_over: bool,
}

impl Request {
    fn waits_too_long<W: Waits>(&self) -> bool {
        self.since.is_some_and(W::starves)
    }
}

pub(crate) struct RawMutex<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Request, W>,
}

/// The id of the caller, a fiber or a plain thread, in the word. Never zero.
#[inline]
pub(crate) fn owner_id(fiber: Option<FiberRef>) -> usize {
    match fiber {
        Some(fiber) => fiber.id() as usize * 2 * THREAD,
        None => context::thread_number() as usize * 2 * THREAD + THREAD,
    }
}

impl<W> RawMutex<W> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            RawMutex { word: AtomicUsize::new(0), queue: Queue::new(()) }
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.word.load(Relaxed) & POISON != 0
    }

    pub(crate) fn poison(&self) {
        self.word.fetch_or(POISON, Relaxed);
    }

    pub(crate) fn clear_poison(&self) {
        self.word.fetch_and(!POISON, Relaxed);
    }

    /// Takes the lock if it is free. `me` is the caller's id.
    #[inline]
    pub(crate) fn try_lock(&self, me: usize) -> bool {
        let free = self.word.compare_exchange(0, me | LOCKED, Acquire, Relaxed);
        free.is_ok() || self.try_lock_among_others(me, 0)
    }

    /// Takes the lock if it is free, with waiters or poison in the word; clears the bits `less`.
    fn try_lock_among_others(&self, me: usize, less: usize) -> bool {
        let mut word = self.word.load(Relaxed);
        while word & LOCKED == 0 {
            let next = (word & !less) | LOCKED | me;
            match self
                .word
                .compare_exchange_weak(word, next, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
}

impl<W: Waits> RawMutex<W> {
    /// Takes the lock; returns whether it is poisoned, or why it was not taken. On the fast path
    /// the exchange itself has shown that it is not: another load of the word right after the
    /// exchange would cost as much as the exchange.
    #[inline]
    pub(crate) fn lock(&self, me: usize, until: impl FnOnce() -> Until) -> Result<bool, Failed> {
        let free = self.word.compare_exchange(0, me | LOCKED, Acquire, Relaxed);
        if free.is_ok() {
            return Ok(false);
        }
        self.lock_slowly(me, &until())?;
        Ok(self.is_poisoned())
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, me: usize, until: &Until) -> Result<(), Failed> {
        if self.try_lock_among_others(me, 0) {
            return Ok(());
        }
        if me != 0 && self.word.load(Relaxed) & OWNER == me {
            return Err(Failed::AlreadyOwner);
        }
        if self.spin(me, 0) {
            return Ok(());
        }
        let mut request = Request {
            since: None,
            starves: false,
            handed_over: false,
        };
        let mut less = 0;
        loop {
            let since = *request.since.get_or_insert_with(Instant::now);
            let mut plan = LockPlan {
                mutex: self,
                me,
                less,
            };
            request = match self.queue.wait(request, until, &mut plan) {
                Waited::Done(()) => return Ok(()),
                Waited::Notified(request) => request,
                Waited::TimedOut => return Err(Failed::TimedOut),
                Waited::Cancelled => return Err(Failed::Cancelled),
            };
            if request.handed_over {
                self.word.fetch_or(me, Relaxed); // it had no owner
                return Ok(());
            }
            less = WAKE_PENDING; // our own wake-up
            if self.try_lock_among_others(me, less) || self.spin(me, less) {
                return Ok(());
            }
            request.starves = W::starves(since);
        }
    }

    /// Checks the word again for a moment.
    fn spin(&self, me: usize, less: usize) -> bool {
        let is_free = || self.word.load(Relaxed) & LOCKED == 0;
        queue::spin(LOOKS * W::SPINS, || {
            is_free() && self.try_lock_among_others(me, less)
        })
    }

    /// Releases the lock, which the caller holds; `owner` is the id that took it.
    #[inline]
    pub(crate) fn unlock(&self, owner: usize) {
        let alone = self
            .word
            .compare_exchange(owner | LOCKED, 0, Release, Relaxed);
        if alone.is_err() {
            self.unlock_slowly();
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_slowly(&self) {
        let mut word = self.word.load(Relaxed);
        // There is no waiter to wake, or one is awake and was not passed too often.
        while word & PARKED == 0 || (word & WOKEN != 0 && word & PASSED < W::PASSES * PASS) {
            let passed = if word & PARKED == 0 {
                0
            } else {
                (word & PASSED) + PASS
            };
            let next = (word & !(LOCKED | OWNER | PASSED)) | passed;
            match self
                .word
                .compare_exchange_weak(word, next, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
        let mut queue = self.queue.lock();
        // A woken waiter clears WOKEN under the queue's lock, or when it gets the lock, which we
        // hold: it does not change here.
        let woken_pending = self.word.load(Relaxed) & WOKEN != 0;
        let wake = !woken_pending
            || queue
                .first()
                .is_some_and(|first| first.waits_too_long::<W>());
        let (mut set, mut clear) = (0, LOCKED | OWNER | PASSED);
        if wake && let Some(first) = queue.take() {
            if first.starves {
                first.handed_over = true;
                clear = OWNER | PASSED;
            } else {
                set = WOKEN;
            }
        }
        if queue.is_empty() {
            clear |= PARKED;
        }
        self.change(set, clear);
    }

    fn change(&self, set: usize, clear: usize) {
        let mut word = self.word.load(Relaxed);
        while let Err(now) =
            self.word
                .compare_exchange_weak(word, (word & !clear) | set, Release, Relaxed)
        {
            word = now;
        }
    }
}

/// The plan of a wait for the lock.
struct LockPlan<'a, W> {
    mutex: &'a RawMutex<W>,
    me: usize,
    less: usize,
}

impl<W: Waits> Plan<(), Request, W> for LockPlan<'_, W> {
    type Answer = ();

    /// Takes the lock if it is free by now; otherwise notes in the word that there is a waiter (L5,
    /// L6).
    fn look(&mut self, _: &mut Locked<'_, (), Request, W>, request: &mut Request) -> Look<()> {
        let word = &self.mutex.word;
        let mut now = word.load(Relaxed);
        loop {
            let (next, order) = match now & LOCKED {
                0 => ((now & !self.less) | LOCKED | self.me, Acquire),
                _ => ((now & !self.less) | PARKED, Relaxed),
            };
            match word.compare_exchange_weak(now, next, order, Relaxed) {
                Ok(_) if now & LOCKED == 0 => return Look::Done(()),
                Ok(_) if request.starves || self.less != 0 => return Look::InFront,
                Ok(_) => return Look::Behind,
                Err(other) => now = other,
            }
        }
    }

    fn leave(&mut self, queue: &mut Locked<'_, (), Request, W>) {
        if queue.is_empty() {
            self.mutex.change(0, PARKED | PASSED);
        }
    }
}

/// Charges the caller for a lock operation and returns its id, for messages and deadlock detection.
#[inline]
pub(crate) fn charge_and_identify() -> usize {
    owner_id(park::charge_caller())
}

/// A user's wait for a lock.
pub(crate) fn lock_until(deadline: Option<Instant>) -> Until {
    Until::cancellable(deadline, ParkReason::Lock)
}

#[cfg(test)]
mod tests;
