//! Something that has happened, or not; and a word for one who waits.
//!
//! Both are a state under the lock of a queue. An [`Event`] has its flag beside, too, so that a wait for what
//! has happened is one load: the flag changes under the lock only, and who finds it clear looks again under the lock.

use std::fmt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::time::{Duration, Instant};

use crate::base::loom::const_fn;
use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited};

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
    /// How many have come: see [`Condvar`](crate::sync::Condvar).
    queue: Queue<u64, u64>,
}

impl Event {
    const_fn! {
        /// It has not happened.
        ///
        /// ```
        /// assert!(!indent::sync::Event::new().is_set());
        /// ```
        pub const fn new() -> Self {
            Event { is_set: AtomicBool::new(false), queue: Queue::new(0) }
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
        let last = *queue.state();
        self.is_set.store(true, Release);
        loop {
            take_until(&mut queue, last);
            if !queue.finish() {
                return;
            }
            queue = self.queue.lock();
        }
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
        happened(self.queue.wait(0, &until, &mut For(|| self.is_set())))
    }
}

/// Takes those who had come by then.
pub(crate) fn take_until(queue: &mut Locked<'_, u64, u64, Waiter>, last: u64) {
    while queue.first().is_some_and(|ticket| *ticket < last) && queue.take().is_some() {}
}

/// Waiting, with a ticket, for what may have happened.
pub(crate) struct For<F>(pub(crate) F);

impl<F: FnMut() -> bool> Plan<u64, u64, Waiter> for For<F> {
    type Answer = ();

    fn look(&mut self, queue: &mut Locked<'_, u64, u64, Waiter>, ticket: &mut u64) -> Look<()> {
        if (self.0)() {
            return Look::Done(());
        }
        *ticket = *queue.state();
        *queue.state() += 1;
        Look::Behind
    }
}

/// Whether the wait ended well; unwinds if the caller is to end.
pub(crate) fn happened<N>(waited: Waited<(), N>) -> bool {
    match waited {
        Waited::Done(()) | Waited::Called(_) => true,
        Waited::TimedOut => false,
        Waited::Cancelled => park::unwind_cancelled(),
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
    queue: Queue<Kept, u64>,
}

/// The state of a [`Notify`].
struct Kept {
    /// Somebody was notified, and nobody was there.
    one: bool,
    /// How many have come to wait.
    came: u64,
}

impl Notify {
    const_fn! {
        /// Nobody was notified.
        ///
        /// ```
        /// static WORK: indent::sync::Notify = indent::sync::Notify::new();
        /// ```
        pub const fn new() -> Self {
            Notify { queue: Queue::new(Kept { one: false, came: 0 }) }
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
        let mut queue = self.queue.lock();
        if queue.take().is_none() {
            queue.state().one = true;
        }
    }

    /// All who wait now go on. Nothing is kept.
    ///
    /// ```
    /// indent::sync::Notify::new().notify_waiters(); // nobody
    /// ```
    pub fn notify_waiters(&self) {
        let mut queue = self.queue.lock();
        let last = queue.state().came;
        loop {
            while queue.first().is_some_and(|ticket| *ticket < last) && queue.take().is_some() {}
            if !queue.finish() {
                return;
            }
            queue = self.queue.lock();
        }
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
        happened(self.queue.wait(0, &until, &mut Word))
    }
}

/// Waiting for a word.
struct Word;

impl Plan<Kept, u64, Waiter> for Word {
    type Answer = ();

    fn look(&mut self, queue: &mut Locked<'_, Kept, u64, Waiter>, ticket: &mut u64) -> Look<()> {
        let state = queue.state();
        if std::mem::take(&mut state.one) {
            return Look::Done(());
        }
        *ticket = state.came;
        state.came += 1;
        Look::Behind
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
