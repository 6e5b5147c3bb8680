//! A place where so many wait for each other.
//!
//! The last one of a round tells the others and is its leader. One who leaves before that, by its deadline or because
//! it was asked to end, was never there: the round waits for another in its place. A round that is complete
//! owes its members a call (`tickets.rs`); those of the next one may have come by then, and whoever completes that one
//! calls what is left of both.

use std::fmt;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::sync::tickets::{self, Ticketed, Tickets};
use crate::util::loom::const_fn;

/// So many wait for each other, round after round.
///
/// ```
/// use indent::sync::Barrier;
/// use std::sync::Arc;
///
/// let barrier = Arc::new(Barrier::new(3));
/// let fibers: Vec<_> = (0..3)
///     .map(|_| {
///         let barrier = barrier.clone();
///         indent::spawn(move || barrier.wait().is_leader())
///     })
///     .collect();
/// let leaders = fibers.into_iter().map(|fiber| fiber.join().unwrap()).filter(|leads| *leads).count();
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    raw: Raw,
}

struct Raw<W = Waiter> {
    size: usize,
    queue: Queue<Round, u64, W>,
}

/// The state of a barrier.
struct Round {
    /// So many of the present round.
    waiting: usize,
    tickets: Tickets,
}

impl Ticketed for Round {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

/// What a wait at a [`Barrier`] says: one of each round is its leader.
///
/// ```
/// assert!(indent::sync::Barrier::new(1).wait().is_leader());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// True for one of each round: the one who came last.
    ///
    /// ```
    /// assert!(indent::sync::Barrier::new(0).wait().is_leader());
    /// ```
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    const_fn! {
        /// For so many; none means one.
        ///
        /// ```
        /// static ALL: indent::sync::Barrier = indent::sync::Barrier::new(2);
        /// ```
        pub const fn new(size: usize) -> Self {
            Barrier { raw: Raw::new(size) }
        }
    }

    /// Waits for the others of the round.
    ///
    /// ```
    /// let barrier = indent::sync::Barrier::new(2);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| barrier.wait());
    ///     barrier.wait();
    /// });
    /// ```
    pub fn wait(&self) -> BarrierWaitResult {
        let result = self.wait_until(None);
        result.expect("there was no deadline")
    }

    /// Waits for the others of the round, for at most this long; `None` if they have not all come. Then the caller does
    /// not count among them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let barrier = indent::sync::Barrier::new(2);
    /// assert!(barrier.wait_timeout(Duration::from_millis(1)).is_none());
    /// ```
    #[must_use = "the others may not have come"]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BarrierWaitResult> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Option<BarrierWaitResult> {
        park::charge_ahead();
        let until = Until::open(deadline, ParkReason::Barrier);
        match self.raw.wait(&until) {
            Ended::Leads => Some(BarrierWaitResult(true)),
            Ended::Complete => Some(BarrierWaitResult(false)),
            Ended::TimedOut => None,
            Ended::Cancelled => park::unwind_cancelled(),
        }
    }
}

/// How a wait ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The round is complete by the caller.
    Leads,
    /// By another.
    Complete,
    TimedOut,
    Cancelled,
}

impl<W> Raw<W> {
    const_fn! {
        const fn new(size: usize) -> Self {
            Raw { size, queue: Queue::new(Round { waiting: 0, tickets: Tickets::new() }) }
        }
    }
}

impl<W: Waits> Raw<W> {
    fn wait(&self, until: &Until) -> Ended {
        let mut come = Come {
            size: self.size,
            ticket: 0,
            complete: false,
        };
        match self.queue.wait(0, until, &mut come) {
            Waited::Done(()) => {
                tickets::call_owed(&self.queue, self.queue.lock()); // if they were many
                Ended::Leads
            }
            Waited::Called(_) => Ended::Complete,
            _ if come.complete => Ended::Complete, // L9
            Waited::TimedOut => Ended::TimedOut,
            Waited::Cancelled => Ended::Cancelled,
        }
    }
}

/// Coming to a barrier.
struct Come {
    size: usize,
    ticket: u64,
    /// The round was complete when the wait ended.
    complete: bool,
}

impl<W: Waits> Plan<Round, u64, W> for Come {
    /// The round is complete.
    type Answer = ();

    fn look(&mut self, queue: &mut Locked<'_, Round, u64, W>, ticket: &mut u64) -> Look<()> {
        let round = queue.state();
        if round.waiting + 1 < self.size {
            round.waiting += 1;
            self.ticket = round.tickets.next();
            *ticket = self.ticket;
            return Look::Behind;
        }
        round.waiting = 0;
        round.tickets.tell_all();
        tickets::take_owed(queue);
        Look::Done(())
    }

    fn leave(&mut self, queue: &mut Locked<'_, Round, u64, W>) {
        let round = queue.state();
        self.complete = round.tickets.owes(self.ticket);
        if !self.complete {
            round.waiting -= 1;
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("size", &self.raw.size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
