//! A rendezvous of a fixed number of callers.
//!
//! The last caller of a round notifies the others and is the round's leader. A caller that leaves
//! earlier, because of its deadline or a cancellation, does not count: the round waits for another
//! in its place. A complete round owes its members a notification (`tickets.rs`). Callers of the
//! next round may arrive before that has happened; the caller that completes the next round
//! notifies the remaining members of both.

use std::fmt;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::block::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited, Waits};
use crate::sync::tickets::{self, Ticketed, Tickets};
use crate::util::loom::const_fn;

/// A rendezvous point for a fixed number of callers, round after round.
///
/// Corresponds to [`std::sync::Barrier`].
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
/// let joined = fibers.into_iter().map(|fiber| fiber.join().unwrap());
/// let leaders = joined.filter(|leads| *leads).count();
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
    /// Number of callers that wait in the present round.
    waiting: usize,
    tickets: Tickets,
}

impl Ticketed for Round {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

/// The result of a wait at a [`Barrier`], which names one leader per round.
///
/// ```
/// assert!(indent::sync::Barrier::new(1).wait().is_leader());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether the caller is the leader of its round, which is the one that arrived last.
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
        /// Creates a barrier for this many callers; zero means one.
        ///
        /// ```
        /// static ALL: indent::sync::Barrier = indent::sync::Barrier::new(2);
        /// ```
        pub const fn new(size: usize) -> Self {
            Barrier { raw: Raw::new(size) }
        }
    }

    /// Blocks until all callers of the round have arrived.
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
        result.expect("a wait without a deadline does not time out")
    }

    /// Blocks until all callers of the round have arrived, for at most `timeout`.
    ///
    /// Returns `None` if they have not. The caller then does not count as arrived.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let barrier = indent::sync::Barrier::new(2);
    /// assert!(barrier.wait_timeout(Duration::from_millis(1)).is_none());
    /// ```
    #[must_use = "the others may not have arrived"]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BarrierWaitResult> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Option<BarrierWaitResult> {
        park::charge_ahead();
        let until = Until::cancellable(deadline, ParkReason::Barrier);
        match self.raw.wait(&until) {
            Ended::Leads => Some(BarrierWaitResult(true)),
            Ended::Complete => Some(BarrierWaitResult(false)),
            Ended::TimedOut => None,
            Ended::Cancelled => park::unwind_cancelled(),
        }
    }
}

/// The result of a wait.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The caller has completed the round.
    Leads,
    /// Another caller has completed the round.
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
        let mut come = BarrierPlan {
            size: self.size,
            ticket: 0,
            complete: false,
        };
        match self.queue.wait(0, until, &mut come) {
            Waited::Done(()) => {
                // The members that did not fit in the first batch.
                tickets::notify_owed(&self.queue, self.queue.lock());
                Ended::Leads
            }
            Waited::Notified(_) => Ended::Complete,
            _ if come.complete => Ended::Complete, // L9
            Waited::TimedOut => Ended::TimedOut,
            Waited::Cancelled => Ended::Cancelled,
        }
    }
}

/// The plan of a wait at a barrier.
struct BarrierPlan {
    size: usize,
    ticket: u64,
    /// Whether the round was complete when the caller withdrew.
    complete: bool,
}

impl<W: Waits> Plan<Round, u64, W> for BarrierPlan {
    /// Returned if the caller has completed the round.
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
        round.tickets.owe_all();
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
