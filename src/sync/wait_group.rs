//! A counter of pending tasks, and waiting until it is zero.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::{Queue, Until};
use crate::sync::tickets::{self, Ticketed, Tickets, WithTicket};

/// A counter of pending tasks that others can wait for, as Go's `sync.WaitGroup`.
///
/// All clones are the same group. A [`member`](Self::member) reports the end of its task when it is
/// dropped, so also when the task panics or is cancelled.
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

/// One pending task of a [`WaitGroup`], which is done when this is dropped.
///
/// ```
/// let group = indent::sync::WaitGroup::new();
/// drop(group.member());
/// group.wait();
/// ```
#[must_use = "the task counts as done at once if the member is not kept"]
pub struct Member(WaitGroup);

impl WaitGroup {
    /// Creates a group without pending tasks.
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

    /// Adds pending tasks. Never blocks.
    ///
    /// # Panics
    /// If the count would exceed `usize::MAX`; nothing is added then.
    ///
    /// ```
    /// let group = indent::sync::WaitGroup::new();
    /// group.add(2);
    /// assert_eq!(group.pending(), 2);
    /// ```
    pub fn add(&self, tasks: usize) {
        let mut queue = self.shared.queue.lock();
        let pending = &mut queue.state().pending;
        let sum = pending.checked_add(tasks);
        if let Some(sum) = sum {
            *pending = sum;
        }
        drop(queue);
        assert!(
            sum.is_some(),
            "cannot add {tasks} tasks to a WaitGroup: its count would exceed usize::MAX"
        );
    }

    /// Reports that one task is done. Never blocks.
    ///
    /// # Panics
    /// If no task is pending.
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
            counts.tickets.owe_all();
            return tickets::notify_owed(&self.shared.queue, queue);
        }
        drop(queue);
        assert!(
            left.is_some(),
            "cannot call WaitGroup::done: no task is pending; call add before the task begins"
        );
    }

    /// Adds a pending task, which is done when the returned member is dropped.
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

    /// Number of pending tasks.
    ///
    /// ```
    /// assert_eq!(indent::sync::WaitGroup::new().pending(), 0);
    /// ```
    pub fn pending(&self) -> usize {
        self.shared.queue.lock().state().pending
    }

    /// Blocks until no task is pending.
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

    /// Blocks until no task is pending, for at most `timeout`. Returns whether that is so.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let group = indent::sync::WaitGroup::new();
    /// group.add(1);
    /// assert!(!group.wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "tasks may still be pending"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> bool {
        park::charge_ahead();
        let until = Until::cancellable(deadline, ParkReason::WaitGroup);
        let mut wait =
            WithTicket::unless(|counts: &mut Counts| (counts.pending == 0).then_some(()));
        let waited = self.shared.queue.wait(0, &until, &mut wait);
        tickets::finish_wait(waited, wait.owed)
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
