//! `Event`, a flag to wait for, and `Notify`, a notification for one waiter.
//!
//! Both are a state under the lock of a queue, with tickets for the waiters (`tickets.rs`). An
//! [`Event`] also has its flag outside the lock, so that a wait for a set event is one load. The
//! flag changes under the lock only, and a waiter that finds it clear checks it again under the
//! lock.

use std::fmt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::block::wake::Waiter;
use crate::sync::queue::{Queue, Until, Waited, Waits};
use crate::sync::tickets::{self, One, Ticketed, Tickets, WithTicket};
use crate::util::loom::const_fn;

/// A flag that fibers and threads can wait for.
///
/// ```
/// use indent::sync::Event;
///
/// static READY: Event = Event::new();
///
/// let waiting = indent::spawn(|| READY.wait());
/// READY.set();
/// waiting.join().unwrap();
/// assert!(READY.is_set());
/// ```
pub struct Event {
    is_set: AtomicBool,
    queue: Queue<Tickets, u64>,
}

impl Event {
    const_fn! {
        /// Creates an event that is not set.
        ///
        /// ```
        /// assert!(!indent::sync::Event::new().is_set());
        /// ```
        pub const fn new() -> Self {
            Event { is_set: AtomicBool::new(false), queue: Queue::new(Tickets::new()) }
        }
    }

    /// Sets the event: all waiters proceed, and later waits return at once. Never blocks.
    ///
    /// ```
    /// let event = indent::sync::Event::new();
    /// event.set();
    /// event.wait(); // returns at once
    /// ```
    pub fn set(&self) {
        let mut queue = self.queue.lock();
        queue.state().owe_all();
        self.is_set.store(true, Release);
        tickets::notify_owed(&self.queue, queue);
    }

    /// Clears the event: later waits block again.
    ///
    /// ```
    /// let event = indent::sync::Event::new();
    /// event.set();
    /// event.reset();
    /// assert!(!event.is_set());
    /// ```
    pub fn reset(&self) {
        let _queue = self.queue.lock();
        self.is_set.store(false, Release);
    }

    /// Whether the event is set.
    ///
    /// ```
    /// assert!(!indent::sync::Event::new().is_set());
    /// ```
    pub fn is_set(&self) -> bool {
        self.is_set.load(Acquire)
    }

    /// Blocks until the event is set. A waiter that `set` has released returns even after a
    /// `reset`.
    ///
    /// ```
    /// let event = indent::sync::Event::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| event.set());
    ///     event.wait();
    /// });
    /// ```
    pub fn wait(&self) {
        self.wait_until(|| None);
    }

    /// Blocks until the event is set, for at most `timeout`. Returns whether it was.
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Event::new().wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "the event may not be set"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(|| Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: impl FnOnce() -> Option<Instant>) -> bool {
        park::charge_ahead();
        if self.is_set() {
            return true;
        }
        let until = Until::cancellable(deadline(), ParkReason::Event);
        let mut wait = WithTicket::unless(|_: &mut Tickets| self.is_set().then_some(()));
        let waited = self.queue.wait(0, &until, &mut wait);
        tickets::finish_wait(waited, wait.owed)
    }
}

impl Default for Event {
    fn default() -> Self {
        Event::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("is_set", &self.is_set())
            .finish()
    }
}

/// Notifies one waiter; without a waiter the notification is kept for the next one.
///
/// Corresponds to `tokio::sync::Notify`.
///
/// ```
/// use indent::sync::Notify;
///
/// static WORK: Notify = Notify::new();
///
/// let waiting = indent::spawn(|| WORK.notified());
/// WORK.notify_one(); // whether it waits already or not
/// waiting.join().unwrap();
/// ```
pub struct Notify {
    raw: RawNotify,
}

pub(crate) struct RawNotify<W = Waiter> {
    queue: Queue<State, u64, W>,
}

/// The state of a [`Notify`].
struct State {
    /// A notification came while there were no waiters.
    kept: bool,
    tickets: Tickets,
}

impl Ticketed for State {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

impl<W> RawNotify<W> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            RawNotify { queue: Queue::new(State { kept: false, tickets: Tickets::new() }) }
        }
    }
}

impl<W: Waits> RawNotify<W> {
    /// Notifies one waiter. The waiters that are owed a notification are notified in addition (L9).
    pub(crate) fn notify_one(&self) {
        loop {
            let mut queue = self.queue.lock();
            match tickets::take_one(&mut queue) {
                One::Taken => return,
                One::NoWaiter => {
                    queue.state().kept = true;
                    return;
                }
                One::Again => {}
            }
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut queue = self.queue.lock();
        queue.state().tickets.owe_all();
        tickets::notify_owed(&self.queue, queue);
    }

    /// Waits, and returns the result and whether the waiter was owed a notification for all.
    pub(crate) fn wait(&self, until: &Until) -> (Waited<(), u64>, bool) {
        let used_up = |word: &mut State| std::mem::take(&mut word.kept).then_some(());
        let mut wait = WithTicket::unless(used_up);
        let waited = self.queue.wait(0, until, &mut wait);
        (waited, wait.owed)
    }
}

impl Notify {
    const_fn! {
        /// Creates a `Notify` without a kept notification.
        ///
        /// ```
        /// static WORK: indent::sync::Notify = indent::sync::Notify::new();
        /// ```
        pub const fn new() -> Self {
            Notify { raw: RawNotify::new() }
        }
    }

    /// Notifies the waiter that has waited longest. Never blocks.
    ///
    /// Without a waiter the notification is kept, and the next wait returns at once. At most one
    /// notification is kept.
    ///
    /// ```
    /// let notify = indent::sync::Notify::new();
    /// notify.notify_one();
    /// notify.notified(); // returns at once
    /// ```
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// Notifies all present waiters. Nothing is kept for later ones.
    ///
    /// ```
    /// indent::sync::Notify::new().notify_waiters(); // there are no waiters
    /// ```
    pub fn notify_waiters(&self) {
        self.raw.notify_waiters();
    }

    /// Blocks until notified, or uses up the kept notification.
    ///
    /// ```
    /// let notify = indent::sync::Notify::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| notify.notify_one());
    ///     notify.notified();
    /// });
    /// ```
    pub fn notified(&self) {
        self.wait_until(None);
    }

    /// Blocks until notified, for at most `timeout`. Returns whether it was.
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Notify::new().notified_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "there may have been no notification"]
    pub fn notified_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> bool {
        park::charge_ahead();
        let until = Until::cancellable(deadline, ParkReason::Event);
        let (waited, owed) = self.raw.wait(&until);
        tickets::finish_wait(waited, owed)
    }
}

impl Default for Notify {
    fn default() -> Self {
        Notify::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
