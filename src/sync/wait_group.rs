//! Waiting until a number of things are done.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::event::happened;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until};

/// Counts what is not done yet, and lets others wait until all of it is. All clones are one group.
///
/// As Go's, and with [`member`](Self::member) nobody forgets to say that he is done, whether he returns, panics or is
/// asked to end.
///
/// ```
/// use indent::sync::WaitGroup;
///
/// let group = WaitGroup::new();
/// for _ in 0..10 {
///     let member = group.member();
///     drop(indent::spawn(move || {
///         let _done_at_the_end = member;
///         // work
///     }));
/// }
/// group.wait();
/// assert_eq!(group.pending(), 0);
/// ```
#[derive(Clone)]
pub struct WaitGroup {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Queue<Counts, u64>,
}

struct Counts {
    pending: usize,
    /// How many have come to wait.
    came: u64,
}

/// One thing of a [`WaitGroup`] that is not done before this is dropped.
///
/// ```
/// let group = indent::sync::WaitGroup::new();
/// drop(group.member());
/// group.wait();
/// ```
#[must_use = "it is done at once"]
pub struct Member(WaitGroup);

impl WaitGroup {
    /// Nothing is to be done.
    ///
    /// ```
    /// indent::sync::WaitGroup::new().wait(); // returns at once
    /// ```
    pub fn new() -> Self {
        let counts = Counts {
            pending: 0,
            came: 0,
        };
        WaitGroup {
            shared: Arc::new(Shared {
                queue: Queue::new(counts),
            }),
        }
    }

    /// So many things more are to be done.
    ///
    /// ```
    /// let group = indent::sync::WaitGroup::new();
    /// group.add(2);
    /// assert_eq!(group.pending(), 2);
    /// ```
    pub fn add(&self, things: usize) {
        let mut queue = self.shared.queue.lock();
        let pending = &mut queue.state().pending;
        let sum = pending.checked_add(things);
        if let Some(sum) = sum {
            *pending = sum;
        }
        drop(queue);
        assert!(sum.is_some(), "a WaitGroup counts to usize::MAX");
    }

    /// One of them is done. Never blocks.
    ///
    /// # Panics
    /// If nothing is to be done.
    ///
    /// ```
    /// let group = indent::sync::WaitGroup::new();
    /// group.add(1);
    /// group.done();
    /// group.wait();
    /// ```
    pub fn done(&self) {
        let mut queue = self.shared.queue.lock();
        let counts = queue.state();
        let (left, last) = (counts.pending.checked_sub(1), counts.came);
        counts.pending = left.unwrap_or(0);
        while left == Some(0) {
            take_first(&mut queue, last);
            if !queue.finish() {
                return;
            }
            queue = self.shared.queue.lock();
        }
        drop(queue);
        assert!(
            left.is_some(),
            "WaitGroup::done was called more often than things were added: call add before the work begins"
        );
    }

    /// One thing more is to be done, until what this returns is dropped.
    ///
    /// ```
    /// let group = indent::sync::WaitGroup::new();
    /// let member = group.member();
    /// assert_eq!(group.pending(), 1);
    /// drop(member);
    /// assert_eq!(group.pending(), 0);
    /// ```
    pub fn member(&self) -> Member {
        self.add(1);
        Member(self.clone())
    }

    /// How many things are not done.
    ///
    /// ```
    /// assert_eq!(indent::sync::WaitGroup::new().pending(), 0);
    /// ```
    pub fn pending(&self) -> usize {
        self.shared.queue.lock().state().pending
    }

    /// Waits until everything is done.
    ///
    /// ```
    /// let group = indent::sync::WaitGroup::new();
    /// let member = group.member();
    /// drop(indent::spawn(move || drop(member)));
    /// group.wait();
    /// ```
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// Waits until everything is done, for at most this long; false if it is not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let group = indent::sync::WaitGroup::new();
    /// group.add(1);
    /// assert!(!group.wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "something may not be done"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> bool {
        park::charge_ahead();
        let until = Until::open(deadline, ParkReason::WaitGroup);
        happened(self.shared.queue.wait(0, &until, &mut All))
    }
}

fn take_first(queue: &mut Locked<'_, Counts, u64, Waiter>, last: u64) {
    while queue.first().is_some_and(|ticket| *ticket < last) && queue.take().is_some() {}
}

/// Waiting for all.
struct All;

impl Plan<Counts, u64, Waiter> for All {
    type Answer = ();

    fn look(&mut self, queue: &mut Locked<'_, Counts, u64, Waiter>, ticket: &mut u64) -> Look<()> {
        let counts = queue.state();
        if counts.pending == 0 {
            return Look::Done(());
        }
        *ticket = counts.came;
        counts.came += 1;
        Look::Behind
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.done();
    }
}

impl Default for WaitGroup {
    fn default() -> Self {
        WaitGroup::new()
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup")
            .field("pending", &self.pending())
            .finish()
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}
