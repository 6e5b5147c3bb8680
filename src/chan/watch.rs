//! The latest value of something, for all who look.
//!
//! Values are shared by reference count: under the lock a reference is counted, never a value cloned or dropped.
//! Each change has a number; a receiver remembers the last one it has seen.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::error::{RecvError, RecvTimeoutError, SendError};
use super::mpmc::after;
use super::told::{self, News, Tells};
use crate::park;
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;
use crate::park::select::{ArmRef, Fires};

/// A value that is replaced by the next one. Receivers see the latest and are told when it changes; those
/// that come late, or are slow, see no other.
///
/// ```
/// use indent::chan;
///
/// let (tx, mut rx) = chan::watch("starting");
/// assert_eq!(*rx.get(), "starting");
/// tx.send("ready").unwrap();
/// tx.send("running").unwrap();
/// assert_eq!(*rx.recv().unwrap(), "running");
/// drop(tx);
/// assert!(rx.recv().is_err());
/// ```
pub fn watch<T>(value: T) -> (WatchSender<T>, WatchReceiver<T>) {
    let shared = Arc::new(Shared {
        state: Guarded::new(State {
            value: Arc::new(value),
            changes: 0,
            is_closed: false,
            waiting: Queue::new(),
        }),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (
        WatchSender(shared.clone()),
        WatchReceiver { shared, seen: 0 },
    )
}

pub(crate) struct Shared<T> {
    state: Guarded<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct State<T> {
    value: Arc<T>,
    changes: u64,
    /// There are no senders any more.
    is_closed: bool,
    waiting: Queue,
}

impl<T> Tells for State<T> {
    fn waiting(&mut self) -> &mut Queue {
        &mut self.waiting
    }

    fn has_news(&self, seen: u64) -> bool {
        self.changes > seen || self.is_closed
    }
}

/// Replaces the value. Clones replace the same one.
///
/// ```
/// let (tx, rx) = indent::chan::watch(0);
/// tx.clone().send(1).unwrap();
/// assert_eq!(*rx.get(), 1);
/// ```
pub struct WatchSender<T>(Arc<Shared<T>>);

/// Sees the latest value. Each clone remembers for itself what it has seen.
///
/// ```
/// let (tx, mut rx) = indent::chan::watch(0);
/// let mut other = rx.clone();
/// tx.send(1).unwrap();
/// assert_eq!((*rx.recv().unwrap(), *other.recv().unwrap()), (1, 1));
/// ```
pub struct WatchReceiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// A value as it was when it was looked at: others may replace it, this stays.
///
/// ```
/// let (tx, rx) = indent::chan::watch(1);
/// let seen = rx.get();
/// tx.send(2).unwrap();
/// assert_eq!(*seen, 1);
/// ```
pub struct Seen<T>(Arc<T>);

impl<T> Deref for Seen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Seen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T> WatchSender<T> {
    /// Replaces the value and tells all who wait. It comes back if there are no receivers. Never waits, never
    /// yields.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(0);
    /// tx.send(1).unwrap();
    /// drop(rx);
    /// assert!(tx.send(2).is_err());
    /// ```
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Relaxed) == 0 {
            return Err(SendError(value));
        }
        drop(self.replace(value));
        Ok(())
    }

    /// Replaces the value, whether there are receivers or not, and returns the one before.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::watch("old");
    /// assert_eq!(*tx.replace("new"), "old");
    /// ```
    pub fn replace(&self, value: T) -> Seen<T> {
        let value = Arc::new(value);
        let before = told::tell(&self.0.state, |state| {
            state.changes += 1;
            mem::replace(&mut state.value, value)
        });
        Seen(before)
    }

    /// The value as it is now.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::watch(1);
    /// assert_eq!(*tx.get(), 1);
    /// ```
    pub fn get(&self) -> Seen<T> {
        Seen(self.0.state.lock().value.clone())
    }

    /// One more receiver, which has seen the value as it is now.
    ///
    /// ```
    /// let (tx, _) = indent::chan::watch(1);
    /// let mut rx = tx.subscribe();
    /// tx.send(2).unwrap();
    /// assert_eq!(*rx.recv().unwrap(), 2);
    /// ```
    pub fn subscribe(&self) -> WatchReceiver<T> {
        self.0.receivers.fetch_add(1, Relaxed);
        WatchReceiver {
            shared: self.0.clone(),
            seen: self.0.state.lock().changes,
        }
    }

    /// Whether nobody looks.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// drop(rx);
    /// assert!(tx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.receivers.load(Relaxed) == 0
    }
}

impl<T> WatchReceiver<T> {
    /// The value as it is now, seen before or not. Never waits.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::watch(1);
    /// assert_eq!(*rx.get(), 1);
    /// ```
    pub fn get(&self) -> Seen<T> {
        Seen(self.shared.state.lock().value.clone())
    }

    /// Whether it was replaced since this receiver last received.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// assert!(!rx.has_changed());
    /// tx.send(2).unwrap();
    /// assert!(rx.has_changed());
    /// assert_eq!(*rx.recv().unwrap(), 2);
    /// assert!(!rx.has_changed());
    /// ```
    pub fn has_changed(&self) -> bool {
        self.shared.state.lock().changes > self.seen
    }

    /// The latest value, once it is one that this receiver has not received; waits for that. An error: all
    /// senders are gone.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// let fiber = indent::spawn(move || rx.recv().map(|value| *value));
    /// tx.send(2).unwrap();
    /// assert_eq!(fiber.join().unwrap(), Ok(2));
    /// ```
    pub fn recv(&mut self) -> Result<Seen<T>, RecvError> {
        self.receive(|| None).map_err(|_| RecvError)
    }

    /// The same, for at most this long.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Seen<T>, RecvTimeoutError> {
        self.receive(|| after(timeout))
    }

    /// The same, until this time at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Seen<T>, RecvTimeoutError> {
        self.receive(|| Some(deadline))
    }

    /// Waits until the value is one that this is true for, and returns it.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// let fiber = indent::spawn(move || *rx.wait_for(|n| *n > 5).unwrap());
    /// (2..10).for_each(|n| drop(tx.send(n)));
    /// assert!(fiber.join().unwrap() > 5);
    /// ```
    pub fn wait_for(&mut self, is_it: impl Fn(&T) -> bool) -> Result<Seen<T>, RecvError> {
        park::charge_ahead(); // also if it is so at once
        let (mut value, seen) = self.shared.latest();
        self.seen = seen;
        while !is_it(&value) {
            value = self.recv()?;
        }
        Ok(value)
    }

    fn receive(
        &mut self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Seen<T>, RecvTimeoutError> {
        let waited = told::wait(&self.shared.state, self.seen, deadline);
        waited.map_err(|_| RecvTimeoutError::Timeout)?;
        let looked = self.shared.look(&mut self.seen);
        looked.map_err(RecvTimeoutError::from)
    }

    pub(crate) fn arm(&mut self) -> Watching<'_, T> {
        Watching {
            news: News::new(&self.shared.state, self.seen),
            shared: &self.shared,
            seen: &mut self.seen,
        }
    }
}

impl<T> Shared<T> {
    fn latest(&self) -> (Seen<T>, u64) {
        let state = self.state.lock();
        (Seen(state.value.clone()), state.changes)
    }

    /// There are news: the value, or that there will be none.
    fn look(&self, seen: &mut u64) -> Result<Seen<T>, RecvError> {
        let (value, changes) = self.latest();
        if mem::replace(seen, changes) == changes {
            return Err(RecvError);
        }
        Ok(value)
    }
}

/// To receive the next value, as an arm of a select.
#[doc(hidden)]
pub struct Watching<'a, T> {
    news: News<'a, State<T>>,
    shared: &'a Shared<T>,
    seen: &'a mut u64,
}

impl<T> Fires for Watching<'_, T> {
    type Output = Result<Seen<T>, RecvError>;

    fn arm(&self) -> ArmRef<'_> {
        self.news.arm()
    }

    fn finish(&mut self) -> Self::Output {
        let looked = self.shared.look(self.seen);
        self.news.set_position(*self.seen);
        looked
    }
}

impl<T> fmt::Debug for Watching<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}

impl<T> Clone for WatchSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Relaxed);
        WatchSender(self.0.clone())
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Relaxed);
        WatchReceiver {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for WatchSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, AcqRel) == 1 {
            told::tell(&self.0.state, |state| state.is_closed = true);
        }
    }
}

impl<T> Drop for WatchReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, AcqRel);
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchSender").field(&*self.get()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchReceiver").field(&*self.get()).finish()
    }
}
