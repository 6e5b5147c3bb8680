//! Waiting until a number of things are done.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::{Queue, Until};
use crate::sync::tickets::{self, Ticketed, Tickets, WithTicket};

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
    tickets: Tickets,
}

impl Ticketed for Counts {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
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
            tickets: Tickets::new(),
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
        let left = counts.pending.checked_sub(1);
        counts.pending = left.unwrap_or(0);
        if left == Some(0) {
            counts.tickets.tell_all();
            return tickets::call_owed(&self.shared.queue, queue);
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
        let mut wait =
            WithTicket::unless(|counts: &mut Counts| (counts.pending == 0).then_some(()));
        let waited = self.shared.queue.wait(0, &until, &mut wait);
        tickets::happened(waited, wait.owed)
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
