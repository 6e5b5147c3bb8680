//! Something that has happened, or not; and a word for one who waits.
//!
//! Both are a state under the lock of a queue, with tickets for those who wait (`tickets.rs`). An [`Event`] has its flag
//! beside, too, so that a wait for what has happened is one load: the flag changes under the lock only, and who
//! finds it clear looks again under the lock.

use std::fmt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Queue, Until, Waited, Waits};
use crate::sync::tickets::{self, One, Ticketed, Tickets, WithTicket};
use crate::util::loom::const_fn;

/// Something that has happened, or not: everybody waits until it has.
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
        /// It has not happened.
        ///
        /// ```
        /// assert!(!indent::sync::Event::new().is_set());
        /// ```
        pub const fn new() -> Self {
            Event { is_set: AtomicBool::new(false), queue: Queue::new(Tickets::new()) }
        }
    }

    /// It has happened: whoever waits goes on, and whoever comes does not wait. Never blocks.
    ///
    /// ```
    /// let event = indent::sync::Event::new();
    /// event.set();
    /// event.wait(); // returns at once
    /// ```
    pub fn set(&self) {
        let mut queue = self.queue.lock();
        queue.state().tell_all();
        self.is_set.store(true, Release);
        tickets::call_owed(&self.queue, queue);
    }

    /// It has not happened any more: whoever comes waits again.
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

    /// Whether it has happened.
    ///
    /// ```
    /// assert!(!indent::sync::Event::new().is_set());
    /// ```
    pub fn is_set(&self) -> bool {
        self.is_set.load(Acquire)
    }

    /// Waits until it has happened. Who waits when it is set goes on, though it may be reset before he runs.
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

    /// Waits until it has happened, for at most this long; false if it has not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Event::new().wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "it may not have happened"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(|| Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: impl FnOnce() -> Option<Instant>) -> bool {
        park::charge_ahead();
        if self.is_set() {
            return true;
        }
        let until = Until::open(deadline(), ParkReason::Event);
        let mut wait = WithTicket::unless(|_: &mut Tickets| self.is_set().then_some(()));
        let waited = self.queue.wait(0, &until, &mut wait);
        tickets::happened(waited, wait.owed)
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

/// A word for one who waits: it is kept if nobody does.
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
    queue: Queue<Word, u64, W>,
}

/// The state of a [`Notify`].
struct Word {
    /// Somebody was notified, and nobody was there.
    kept: bool,
    tickets: Tickets,
}

impl Ticketed for Word {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

impl<W> RawNotify<W> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            RawNotify { queue: Queue::new(Word { kept: false, tickets: Tickets::new() }) }
        }
    }
}

impl<W: Waits> RawNotify<W> {
    /// Those who are owed a call are called, and are not the one (L9).
    pub(crate) fn notify_one(&self) {
        loop {
            let mut queue = self.queue.lock();
            match tickets::take_one(&mut queue) {
                One::Taken => return,
                One::Nobody => {
                    queue.state().kept = true;
                    return;
                }
                One::Again => {}
            }
        }
    }

    pub(crate) fn notify_waiters(&self) {
        let mut queue = self.queue.lock();
        queue.state().tickets.tell_all();
        tickets::call_owed(&self.queue, queue);
    }

    /// How a wait ended, and whether a word for all had come.
    pub(crate) fn wait(&self, until: &Until) -> (Waited<(), u64>, bool) {
        let used_up = |word: &mut Word| std::mem::take(&mut word.kept).then_some(());
        let mut wait = WithTicket::unless(used_up);
        let waited = self.queue.wait(0, until, &mut wait);
        (waited, wait.owed)
    }
}

impl Notify {
    const_fn! {
        /// Nobody was notified.
        ///
        /// ```
        /// static WORK: indent::sync::Notify = indent::sync::Notify::new();
        /// ```
        pub const fn new() -> Self {
            Notify { raw: RawNotify::new() }
        }
    }

    /// The one who has waited for longest goes on; if nobody waits, the next one who comes does not. Two words kept are
    /// one. Never blocks.
    ///
    /// ```
    /// let notify = indent::sync::Notify::new();
    /// notify.notify_one();
    /// notify.notified(); // returns at once
    /// ```
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// All who wait now go on. Nothing is kept.
    ///
    /// ```
    /// indent::sync::Notify::new().notify_waiters(); // nobody
    /// ```
    pub fn notify_waiters(&self) {
        self.raw.notify_waiters();
    }

    /// Waits for a word, or uses up the one that was kept.
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

    /// Waits for a word, for at most this long; false if none came.
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Notify::new().notified_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "no word may have come"]
    pub fn notified_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> bool {
        park::charge_ahead();
        let until = Until::open(deadline, ParkReason::Event);
        let (waited, owed) = self.raw.wait(&until);
        tickets::happened(waited, owed)
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
