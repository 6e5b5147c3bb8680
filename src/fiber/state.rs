//! One word that says where a fiber (or a plain thread that parks) stands, and who woke it.
//!
//! ```text
//!   Runnable ──begin_park──▶ Parking ──commit_park──▶ Parked
//!     ▲  │                      │                       │
//!     │  └──finish──▶ Done      │ a cause came first    │ wake, expire, cancel
//!     └─────────────────────────┴───────────────────────┘
//! ```
//!
//! *Runnable* covers unstarted, queued and running: no other thread needs the difference (an
//! unstarted fiber has no stack), and a start or a yield then costs no atomic operation.
//! *Parking* is the time between the fiber's decision and the moment its stack is switched out; the
//! scheduler, on its own stack, commits the park.
//!
//! Beside the phase there are bits.
//! - TOKEN: an unpark came; the next park that waits for unparks consumes it.
//! - NOTIFIED: the same for waits of the runtime itself, such as a join or a sleep. Such parks have
//!   WANTS_NOTIFY. Parks of the runtime and of the user do not consume each other's wakes.
//! - CANCEL: cancellation was requested; stays set.
//! - EXPIRED: the deadline of this park passed while it was being committed.
//! - NO_CANCEL: a cancellation does not end this park.
//! - CANCEL_LATER: a cancellation ends this park only through [`State::deliver_cancel`].
//!
//! The upper half counts parks, so that a deadline can name the park it was set for, and a late
//! deadline does nothing.
//!
//! Invariants:
//! - **I1** A fiber is in a queue, or runs, or is Parked and in no queue; the transition out of
//!   Parked happens once per park, and the thread that makes it must enqueue the fiber.
//! - **I2** Exactly one cause ends a park. A wake that comes when another cause has already won is
//!   kept as TOKEN or NOTIFIED for the next park that waits for it; it is never lost.
//!
//! All transitions are read-modify-write operations. They release what the waker wrote, and the
//! woken fiber acquires it: a wake that changes no bit still writes, so that its release is seen.

use std::fmt;

use crate::util::loom::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::util::preempt_check;

const PHASE: u64 = 0b111;
const RUNNABLE: u64 = 1;
const PARKING: u64 = 2;
const PARKED: u64 = 3;
const DONE: u64 = 4;

const TOKEN: u64 = 1 << 3;
const CANCEL: u64 = 1 << 4;
const EXPIRED: u64 = 1 << 5;
const NO_CANCEL: u64 = 1 << 6;
const CANCEL_LATER: u64 = 1 << 7;
const NOTIFIED: u64 = 1 << 10;
const WANTS_NOTIFY: u64 = 1 << 11;

const CAUSE: u64 = 0b11 << 8;
const BY_WAKE: u64 = 1 << 8;
const BY_DEADLINE: u64 = 2 << 8;
const BY_CANCEL: u64 = 3 << 8;

const ONE_PARK: u64 = 1 << 32;
/// The bits that a new park inherits.
const KEPT: u64 = TOKEN | NOTIFIED | CANCEL | !(ONE_PARK - 1);

/// The wake bit that the park of this word waits for.
fn wanted(word: u64) -> u64 {
    if word & WANTS_NOTIFY == 0 {
        TOKEN
    } else {
        NOTIFIED
    }
}

/// Why a park ended.
///
/// ```
/// use indent::park::{self, ParkReason, Woken};
///
/// park::unparker().unpark();
/// match park::park_until(None, ParkReason::Park) {
///     Woken::ByWake => println!("an unpark came"),
///     Woken::ByDeadline => unreachable!("there is none"),
///     Woken::ByCancel => println!("let go of what we hold, and return"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// An unpark came, before or during the park.
    ByWake,
    /// The deadline passed first.
    ByDeadline,
    /// Cancellation was requested; the fiber should return to its caller as soon as it can.
    ByCancel,
}

/// Whether a cancellation ends a park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// At once, whether it was requested before the park or comes later.
    Enabled,
    /// When it is delivered to the fiber, not when it is requested.
    Deferred,
    /// Never: the fiber waits for something that must happen.
    Disabled,
}

/// What a park waits for, and what a waker brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// An unpark: the user's.
    Unpark,
    /// A notification by the runtime itself (`sched::wake::Waiter`).
    Notify,
}

impl Signal {
    fn bit(self) -> u64 {
        match self {
            Signal::Unpark => TOKEN,
            Signal::Notify => NOTIFIED,
        }
    }
}

/// What [`State::begin_park`] found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// There is no need to park.
    Woken(Woken),
    /// Switch out now; the number names this park for its deadline.
    Parking(u32),
}

/// What the scheduler owes after [`State::commit_park`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// The fiber is parked and no longer the caller's.
    Parked,
    /// A cause came first: run the fiber again.
    Resume,
}

/// What the caller owes after a wake, an expiry or a cancellation.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The fiber is the caller's alone now: enqueue it.
    Enqueue,
    /// Nothing: the fiber runs, is queued, will check, or has ended.
    Nothing,
}

/// The phase of a fiber, for listings of fibers.
///
/// ```
/// use indent::task::Phase;
///
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// let waits = || rt.handle().fibers().iter().filter(|f| f.phase() == Phase::Parked).count();
/// let parked = rt.spawn(indent::park::park);
/// while waits() == 0 {
///     std::thread::yield_now();
/// }
/// # parked.unparker().unpark();
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It has never run and has no stack.
    Unstarted,
    /// Running or waiting for a worker.
    Runnable,
    /// Waiting for something.
    Parked,
    /// It has ended; its result waits for a join.
    Done,
}

pub(crate) struct State(AtomicU64);

impl State {
    /// Makes the word of a free record a new fiber's.
    pub(crate) fn reset(&self) {
        self.0.store(RUNNABLE, Relaxed);
    }

    /// The word of a plain thread, which runs already.
    pub(crate) fn runnable() -> Self {
        State(AtomicU64::new(RUNNABLE))
    }

    /// Applies `step` by compare-exchange until no other thread interferes; returns its result.
    #[inline]
    fn update<R>(&self, mut step: impl FnMut(u64) -> (u64, R)) -> R {
        let mut now = self.0.load(Relaxed);
        loop {
            let (next, answer) = step(now);
            match self.0.compare_exchange_weak(now, next, AcqRel, Acquire) {
                Ok(_) => return answer,
                Err(seen) => now = seen,
            }
        }
    }

    /// Announces a park. Called by the fiber itself, before it switches out.
    pub(crate) fn begin_park(&self, cancel: Cancel, signal: Signal) -> Begin {
        self.update(|now| {
            debug_assert_eq!(now & PHASE, RUNNABLE, "{self:?}");
            if now & signal.bit() != 0 {
                return (now & !signal.bit(), Begin::Woken(Woken::ByWake));
            }
            if now & CANCEL != 0 && cancel == Cancel::Enabled {
                return (now, Begin::Woken(Woken::ByCancel));
            }
            let ears = match cancel {
                Cancel::Enabled => 0,
                Cancel::Deferred => CANCEL_LATER,
                Cancel::Disabled => NO_CANCEL,
            };
            let calls = if signal == Signal::Notify {
                WANTS_NOTIFY
            } else {
                0
            };
            let next = (now & KEPT).wrapping_add(ONE_PARK) | PARKING | ears | calls;
            (next, Begin::Parking((next >> 32) as u32))
        })
    }

    /// Commits an announced park. Called off the fiber's stack, once it is switched out.
    pub(crate) fn commit_park(&self) -> Commit {
        self.update(|now| {
            debug_assert_eq!(now & PHASE, PARKING, "{self:?}");
            let cause = if now & wanted(now) != 0 {
                BY_WAKE
            } else if now & CANCEL != 0 && now & (NO_CANCEL | CANCEL_LATER) == 0 {
                BY_CANCEL
            } else if now & EXPIRED != 0 {
                BY_DEADLINE
            } else {
                return ((now & !PHASE) | PARKED, Commit::Parked);
            };
            // The token is consumed here, not kept: this park was the next one.
            let kept = now & KEPT & !wanted(now);
            (kept | RUNNABLE | cause, Commit::Resume)
        })
    }

    /// Returns a parked fiber to the state before its park was committed; false if it is not
    /// parked. The caller holds the fiber until it commits the park again.
    pub(crate) fn reopen_park(&self) -> bool {
        preempt_check::expect_disabled();
        self.update(|now| match now & PHASE {
            PARKED => ((now & !PHASE) | PARKING, true),
            _ => (now, false),
        })
    }

    /// Returns what ended the park. Called by the fiber when it runs again.
    pub(crate) fn end_park(&self) -> Woken {
        let now = self.0.load(Acquire);
        match now & CAUSE {
            BY_WAKE => Woken::ByWake,
            BY_DEADLINE => Woken::ByDeadline,
            BY_CANCEL => Woken::ByCancel,
            _ => unreachable!("resumed without a cause: {self:?}"),
        }
    }

    /// Delivers an unpark or a notification.
    pub(crate) fn wake(&self, signal: Signal) -> Notify {
        preempt_check::expect_disabled();
        self.update(|now| match now & PHASE {
            PARKED if wanted(now) == signal.bit() => {
                ((now & KEPT) | RUNNABLE | BY_WAKE, Notify::Enqueue)
            }
            DONE => (now, Notify::Nothing),
            // Consumed by commit_park or the next begin_park that waits for it.
            _ => (now | signal.bit(), Notify::Nothing),
        })
    }

    /// Ends park number `park`, whose deadline passed, if it is still parked.
    pub(crate) fn expire(&self, park: u32) -> Notify {
        preempt_check::expect_disabled();
        self.update(|now| {
            if (now >> 32) as u32 != park {
                return (now, Notify::Nothing); // that park is over
            }
            match now & PHASE {
                PARKED => ((now & KEPT) | RUNNABLE | BY_DEADLINE, Notify::Enqueue),
                PARKING => (now | EXPIRED, Notify::Nothing),
                _ => (now, Notify::Nothing),
            }
        })
    }

    /// Requests cancellation, at the next blocking call or when the request is delivered.
    pub(crate) fn request_cancel(&self) {
        self.0.fetch_or(CANCEL, AcqRel);
    }

    pub(crate) fn cancel_requested(&self) -> bool {
        self.0.load(Relaxed) & CANCEL != 0
    }

    /// Ends the park of a cancelled fiber, if that park allows it.
    pub(crate) fn deliver_cancel(&self) -> Notify {
        preempt_check::expect_disabled();
        self.update(|now| {
            let hears = now & CANCEL != 0 && now & NO_CANCEL == 0;
            if now & PHASE == PARKED && hears {
                ((now & KEPT) | RUNNABLE | BY_CANCEL, Notify::Enqueue)
            } else {
                (now, Notify::Nothing)
            }
        })
    }

    /// Marks the fiber as done. Later wakes do nothing; what comes in between is of no use any
    /// more, so a load and a store suffice.
    pub(crate) fn finish(&self) {
        self.0
            .store(DONE | (self.0.load(Relaxed) & CANCEL), Release);
    }

    /// How often it has parked, including the last time; wraps around.
    #[inline]
    pub(crate) fn parks(&self) -> u32 {
        (self.0.load(Relaxed) >> 32) as u32
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.0.load(Acquire) & PHASE == PARKED
    }

    /// The phase of a fiber that has a stack, or had one.
    pub(crate) fn phase(&self) -> Phase {
        match self.0.load(Acquire) & PHASE {
            RUNNABLE => Phase::Runnable,
            PARKING | PARKED => Phase::Parked,
            DONE => Phase::Done,
            other => unreachable!("fiber phase {other}"),
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.0.load(Relaxed);
        let phase = ["Free", "Runnable", "Parking", "Parked", "Done"];
        write!(f, "{}", phase.get((now & PHASE) as usize).unwrap_or(&"?"))?;
        let bits = [
            (TOKEN, "TOKEN"),
            (NOTIFIED, "CALL"),
            (CANCEL, "CANCEL"),
            (EXPIRED, "EXPIRED"),
            (NO_CANCEL, "DEAF"),
            (CANCEL_LATER, "LATER"),
            (WANTS_NOTIFY, "CALLS"),
        ];
        for (bit, name) in bits {
            if now & bit != 0 {
                write!(f, "|{name}")?;
            }
        }
        write!(f, " cause {} park {}", (now & CAUSE) >> 8, now >> 32)
    }
}

#[cfg(test)]
mod tests;
