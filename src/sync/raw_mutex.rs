//! The word of a mutex, and who gets it next.
//!
//! ```text
//!   word = name of the owner | PASSED | POISON | WOKEN | PARKED | LOCKED
//! ```
//!
//! Locking a free word and letting go of one that nobody waits for are one exchange each. That the word names the
//! owner makes a fiber or a thread that locks twice known, on the slow way only. (By its number, not its record: that is
//! another's when the fiber is over, and the guard may have outlived it.)
//!
//! *Barging.* Whoever comes while the word is free takes it, though others wait: a lock that goes to a sleeper by name
//! stands still until he is awake, and everybody else with it. So who lets go wakes the first and lets him compete.
//! WOKEN says that one is on his way; until he has taken the lock, or lies down again, nobody else is woken. Unless he
//! does not come, since his thread is another's for a while: PASSED counts how often in a row the lock was let go
//! meanwhile, and when it is full whoever lets go looks whether the next one has waited for too long, and wakes him as well.
//! *Starving.* Who has waited for longer than his patience lasts (`queue.rs`) and loses again says so, in front of the queue. The next one to let
//! go hands the lock over by name: LOCKED stays, with nobody as its owner until the new one wakes up and signs. Nobody
//! looks at a clock before he has slept.
//!
//! **L5** PARKED is set if somebody is in the queue, whenever the queue's lock is free; both change under that lock only, and
//! it is set only while LOCKED is. So whoever lets go with PARKED clear has nobody to wake: a waiter that comes later
//! finds LOCKED clear and does not wait. **L6** WOKEN is set from the call of a waiter without the lock until that waiter
//! has taken it or lain down again, both by an exchange that finds the word free or sees to it that
//! the next one to let go looks at the queue. So a free lock is never slept on: somebody is awake who looks at it. (If two
//! are on their way the first of them clears it, and a third may be woken: one too many, never one too few.)
//!
//! Rejected: always handing over (every lock beyond the first costs a switch: a convoy); waking one at each letting
//! go (all of them awake, fighting); a bit that says that the queue starves (PARKED without WOKEN makes whoever
//! lets go look anyway).

use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::context;
use crate::sched::wake::Waiter;
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
/// How often the lock was let go while one was on his way.
const PASSED: usize = 15 * PASS;
const PASS: usize = 16;
/// What he takes away who was on his way.
const ON_HIS_WAY: usize = WOKEN | PASSED;
/// Of whoever has it.
const OWNER: usize = !255;
/// In a name: that of a plain thread.
const THREAD: usize = 256;
/// So many times as often as others is it looked at before the wait begins: who lets go hands it to nobody, so it is free
/// in between, for whoever is there.
const LOOKS: u32 = 2;

/// The deadline passed, or the fiber is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    TimedOut,
    Cancelled,
    /// The caller has it already.
    Twice,
}

/// One who waits.
pub(crate) struct Turn {
    /// Since when; not before the first sleep.
    since: Option<Instant>,
    /// It is to be handed over.
    starves: bool,
    /// It was.
    has_it: bool,
}

impl Turn {
    fn waits_too_long<W: Waits>(&self) -> bool {
        self.since.is_some_and(W::starves)
    }
}

pub(crate) struct RawMutex<W = Waiter> {
    word: AtomicUsize,
    queue: Queue<(), Turn, W>,
}

/// How the word names the caller, a fiber or a plain thread. Never zero.
#[inline]
pub(crate) fn name_of(fiber: Option<FiberRef>) -> usize {
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

    /// The lock, if it is free. `me` is the caller's name.
    #[inline]
    pub(crate) fn try_lock(&self, me: usize) -> bool {
        let free = self.word.compare_exchange(0, me | LOCKED, Acquire, Relaxed);
        free.is_ok() || self.try_lock_among_others(me, 0)
    }

    /// The same when somebody waits, or the lock is poisoned; takes `less` away.
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
    /// The lock, and whether it is poisoned; or why not. Looking at the word again right after the exchange would be as
    /// dear as the exchange.
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
            return Err(Failed::Twice);
        }
        if self.spin(me, 0) {
            return Ok(());
        }
        let mut turn = Turn {
            since: None,
            starves: false,
            has_it: false,
        };
        let mut less = 0;
        loop {
            let since = *turn.since.get_or_insert_with(Instant::now);
            let mut plan = LieDown {
                mutex: self,
                me,
                less,
            };
            turn = match self.queue.wait(turn, until, &mut plan) {
                Waited::Done(()) => return Ok(()),
                Waited::Called(turn) => turn,
                Waited::TimedOut => return Err(Failed::TimedOut),
                Waited::Cancelled => return Err(Failed::Cancelled),
            };
            if turn.has_it {
                self.word.fetch_or(me, Relaxed); // it was nobody's
                return Ok(());
            }
            less = ON_HIS_WAY; // that was us
            if self.try_lock_among_others(me, less) || self.spin(me, less) {
                return Ok(());
            }
            turn.starves = W::starves(since);
        }
    }

    /// Looks again for a moment.
    fn spin(&self, me: usize, less: usize) -> bool {
        let is_free = || self.word.load(Relaxed) & LOCKED == 0;
        queue::spin(LOOKS * W::SPINS, || {
            is_free() && self.try_lock_among_others(me, less)
        })
    }

    /// By whoever has it; `owner` is who took it.
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
        // Nobody to wake, or one is awake and was not passed too often.
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
        // Who is on his way clears it under the queue's lock, or when he gets what we have: it stays as it is.
        let one_is_awake = self.word.load(Relaxed) & WOKEN != 0;
        let wake = !one_is_awake
            || queue
                .first()
                .is_some_and(|first| first.waits_too_long::<W>());
        let (mut set, mut clear) = (0, LOCKED | OWNER | PASSED);
        if wake && let Some(first) = queue.take() {
            if first.starves {
                first.has_it = true;
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

/// Waiting for the lock.
struct LieDown<'a, W> {
    mutex: &'a RawMutex<W>,
    me: usize,
    less: usize,
}

impl<W: Waits> Plan<(), Turn, W> for LieDown<'_, W> {
    type Answer = ();

    /// Takes the lock, if it is free by now; else says in the word that somebody waits (L5, L6).
    fn look(&mut self, _: &mut Locked<'_, (), Turn, W>, turn: &mut Turn) -> Look<()> {
        let word = &self.mutex.word;
        let mut now = word.load(Relaxed);
        loop {
            let (next, order) = match now & LOCKED {
                0 => ((now & !self.less) | LOCKED | self.me, Acquire),
                _ => ((now & !self.less) | PARKED, Relaxed),
            };
            match word.compare_exchange_weak(now, next, order, Relaxed) {
                Ok(_) if now & LOCKED == 0 => return Look::Done(()),
                Ok(_) if turn.starves || self.less != 0 => return Look::InFront,
                Ok(_) => return Look::Behind,
                Err(other) => now = other,
            }
        }
    }

    fn leave(&mut self, queue: &mut Locked<'_, (), Turn, W>) {
        if queue.is_empty() {
            self.mutex.change(0, PARKED | PASSED);
        }
    }
}

/// For messages and budgets: the caller pays, and is named.
#[inline]
pub(crate) fn pay() -> usize {
    name_of(park::charge_caller())
}

/// As a lock of users waits.
pub(crate) fn open(deadline: Option<Instant>) -> Until {
    Until::open(deadline, ParkReason::Lock)
}

#[cfg(test)]
mod tests;
