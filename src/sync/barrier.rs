//! A place where so many wait for each other.
//!
//! The last one of a round calls the others and is its leader. One who leaves before that, by its deadline or because
//! it was asked to end, was never there: the round waits for another in its place.

use std::fmt;
use std::time::{Duration, Instant};

use crate::base::loom::const_fn;
use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited};

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
    size: usize,
    queue: Queue<Round, u64>,
}

/// The state of a barrier.
struct Round {
    number: u64,
    waiting: usize,
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
            Barrier { size, queue: Queue::new(Round { number: 0, waiting: 0 }) }
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
        let mut come = Come {
            size: self.size,
            round: 0,
            complete: false,
        };
        match self.queue.wait(0, &until, &mut come) {
            Waited::Done(round) => {
                self.call(round);
                Some(BarrierWaitResult(true))
            }
            Waited::Called(_) => Some(BarrierWaitResult(false)),
            Waited::TimedOut => come.complete.then_some(BarrierWaitResult(false)),
            Waited::Cancelled => park::unwind_cancelled(),
        }
    }

    /// Calls those of the round whom its last one has not called yet, since they were many.
    fn call(&self, round: u64) {
        loop {
            let mut queue = self.queue.lock();
            take_round(&mut queue, round);
            if !queue.finish() {
                return;
            }
        }
    }
}

fn take_round(queue: &mut Locked<'_, Round, u64, Waiter>, round: u64) {
    while queue.first().is_some_and(|of| *of == round) && queue.take().is_some() {}
}

/// Coming to a barrier.
struct Come {
    size: usize,
    round: u64,
    /// The round was complete when the wait ended.
    complete: bool,
}

impl Plan<Round, u64, Waiter> for Come {
    /// The round that is complete.
    type Answer = u64;

    fn look(&mut self, queue: &mut Locked<'_, Round, u64, Waiter>, of: &mut u64) -> Look<u64> {
        let round = queue.state();
        *of = round.number;
        self.round = round.number;
        if round.waiting + 1 < self.size {
            round.waiting += 1;
            return Look::Behind;
        }
        (round.number, round.waiting) = (round.number + 1, 0);
        take_round(queue, *of);
        Look::Done(*of)
    }

    /// Of a complete round only if it was among more than could be called at once.
    fn leave(&mut self, queue: &mut Locked<'_, Round, u64, Waiter>) {
        let round = queue.state();
        self.complete = round.number != self.round;
        if !self.complete {
            round.waiting -= 1;
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
