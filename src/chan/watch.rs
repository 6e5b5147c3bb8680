//! Watch channels: receivers see the latest value and are notified when it changes.
//!
//! Values are shared by reference count: under the lock a reference is counted, and no value is
//! cloned or dropped. Each change has a number, and a receiver remembers the number of the last
//! change it has seen.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::error::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use super::iter::WatchIter;
use super::mpmc::after;
use super::notify::{self, Versioned};
use crate::park;
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;

/// Creates a channel that keeps only the latest value, as `tokio::sync::watch` does.
///
/// Receivers are notified of changes. A receiver that is slow, or created late, skips the values in
/// between.
///
/// ```
/// use indent::chan;
///
/// let (tx, mut rx) = chan::watch("starting");
/// assert_eq!(*rx.borrow(), "starting");
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
            waiters: Queue::new(),
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
    pub(super) state: Guarded<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct State<T> {
    value: Arc<T>,
    changes: u64,
    /// Sends fail from now on.
    is_closed: bool,
    waiters: Queue,
}

impl<T> Versioned for State<T> {
    fn waiters(&mut self) -> &mut Queue {
        &mut self.waiters
    }

    fn has_changed_since(&self, seen: u64) -> bool {
        self.changes > seen || self.is_closed
    }
}

/// The sending side of a watch channel. Clones replace the same value.
///
/// ```
/// let (tx, rx) = indent::chan::watch(0);
/// tx.clone().send(1).unwrap();
/// assert_eq!(*rx.borrow(), 1);
/// ```
pub struct WatchSender<T>(Arc<Shared<T>>);

/// The receiving side of a watch channel. Each clone has its own record of the changes it has seen.
///
/// ```
/// let (tx, mut rx) = indent::chan::watch(0);
/// let mut other = rx.clone();
/// tx.send(1).unwrap();
/// assert_eq!((*rx.recv().unwrap(), *other.recv().unwrap()), (1, 1));
/// ```
pub struct WatchReceiver<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) seen: u64,
}

/// A snapshot of the value of a watch channel, which later sends do not change.
///
/// Unlike Tokio's `watch::Ref` it holds a reference count and no lock, so keeping it does not block
/// senders.
///
/// ```
/// let (tx, rx) = indent::chan::watch(1);
/// let seen = rx.borrow();
/// tx.send(2).unwrap();
/// assert_eq!(*seen, 1);
/// ```
pub struct Ref<T>(Arc<T>);

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T> WatchSender<T> {
    /// Replaces the value and notifies all waiting receivers. Never blocks or yields.
    ///
    /// # Errors
    /// If there are no receivers or the channel is closed; the error contains the value.
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
        match self.0.replace(Arc::new(value), true) {
            Ok(before) => {
                drop(before);
                Ok(())
            }
            Err(value) => {
                let value = Arc::into_inner(value);
                Err(SendError(
                    value.expect("the value was not shared, as it was not sent"),
                ))
            }
        }
    }

    /// Replaces the value and returns the previous one, even without receivers or after a close.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::watch("old");
    /// assert_eq!(*tx.replace("new"), "old");
    /// ```
    pub fn replace(&self, value: T) -> Ref<T> {
        match self.0.replace(Arc::new(value), false) {
            Ok(before) | Err(before) => Ref(before),
        }
    }

    /// Closes the channel for all handles; returns false if it was closed already.
    ///
    /// From then on sends fail. The last value can still be received and borrowed.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// tx.send(2).unwrap();
    /// assert!(tx.close());
    /// assert!(tx.send(3).is_err());
    /// assert_eq!(*rx.recv().unwrap(), 2);
    /// assert!(rx.recv().is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Returns the current value.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::watch(1);
    /// assert_eq!(*tx.borrow(), 1);
    /// ```
    pub fn borrow(&self) -> Ref<T> {
        Ref(self.0.state.lock().value.clone())
    }

    /// Creates a receiver that has seen the current value.
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

    /// Whether a send would fail: the channel is closed, or there is no receiver now.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// drop(rx);
    /// assert!(tx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.receivers.load(Relaxed) == 0 || self.0.is_closed()
    }
}

impl<T> WatchReceiver<T> {
    /// Returns the current value without marking it as seen. Never blocks.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::watch(1);
    /// assert_eq!(*rx.borrow(), 1);
    /// ```
    pub fn borrow(&self) -> Ref<T> {
        Ref(self.shared.state.lock().value.clone())
    }

    /// Whether the value has changed since this receiver last received.
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

    /// Closes the channel for all handles: see [`WatchSender::close`].
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// assert!(rx.close());
    /// assert!(tx.send(2).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Whether no further value can be sent. The last value may still be received.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// drop(tx);
    /// assert!(rx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Receives the latest value if this receiver has not seen it. Never yields.
    ///
    /// # Errors
    /// If there is no new value, or there is none and the channel is closed.
    ///
    /// ```
    /// use indent::chan::{self, TryRecvError};
    ///
    /// let (tx, mut rx) = chan::watch(1);
    /// assert_eq!(rx.try_recv().unwrap_err(), TryRecvError::Empty);
    /// tx.send(2).unwrap();
    /// assert_eq!(*rx.try_recv().unwrap(), 2);
    /// drop(tx);
    /// assert_eq!(rx.try_recv().unwrap_err(), TryRecvError::Closed);
    /// ```
    pub fn try_recv(&mut self) -> Result<Ref<T>, TryRecvError> {
        self.shared.read(&mut self.seen)
    }

    /// Receives the latest value, blocking until it is one that this receiver has not seen.
    ///
    /// # Errors
    /// If the channel is closed and this receiver has seen its last value.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// let fiber = indent::spawn(move || rx.recv().map(|value| *value));
    /// tx.send(2).unwrap();
    /// assert_eq!(fiber.join().unwrap(), Ok(2));
    /// ```
    pub fn recv(&mut self) -> Result<Ref<T>, RecvError> {
        self.receive(|| None).map_err(|_| RecvError)
    }

    /// Receives as [`recv`](Self::recv), blocking for at most `timeout`.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Ref<T>, RecvTimeoutError> {
        self.receive(|| after(timeout))
    }

    /// Receives as [`recv`](Self::recv), blocking until `deadline` at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Ref<T>, RecvTimeoutError> {
        self.receive(|| Some(deadline))
    }

    /// Blocks until the value satisfies `condition`, and returns that value.
    ///
    /// The current value is tested first, seen or not. Values replaced between two tests are
    /// skipped.
    ///
    /// # Errors
    /// If the channel is closed and its last value does not satisfy `condition`.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(1);
    /// let fiber = indent::spawn(move || *rx.wait_for(|n| *n > 5).unwrap());
    /// (2..10).for_each(|n| drop(tx.send(n)));
    /// assert!(fiber.join().unwrap() > 5);
    /// ```
    pub fn wait_for(&mut self, condition: impl Fn(&T) -> bool) -> Result<Ref<T>, RecvError> {
        self.wait_until(condition, || None).map_err(|_| RecvError)
    }

    /// Waits as [`wait_for`](Self::wait_for), blocking for at most `timeout`.
    ///
    /// ```
    /// use indent::chan::{self, RecvTimeoutError};
    /// use std::time::Duration;
    ///
    /// let (_tx, mut rx) = chan::watch(1);
    /// let late = rx.wait_for_timeout(|n| *n > 5, Duration::from_millis(1));
    /// assert_eq!(late.unwrap_err(), RecvTimeoutError::Timeout);
    /// assert!(rx.wait_for_timeout(|n| *n == 1, Duration::ZERO).is_ok());
    /// ```
    pub fn wait_for_timeout(
        &mut self,
        condition: impl Fn(&T) -> bool,
        timeout: Duration,
    ) -> Result<Ref<T>, RecvTimeoutError> {
        self.wait_until(condition, || after(timeout))
    }

    /// Waits as [`wait_for`](Self::wait_for), blocking until `deadline` at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.wait_for_deadline(|n| *n > 5, std::time::Instant::now()).is_err());
    /// ```
    pub fn wait_for_deadline(
        &mut self,
        condition: impl Fn(&T) -> bool,
        deadline: Instant,
    ) -> Result<Ref<T>, RecvTimeoutError> {
        self.wait_until(condition, || Some(deadline))
    }

    fn wait_until(
        &mut self,
        condition: impl Fn(&T) -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Ref<T>, RecvTimeoutError> {
        park::charge_ahead(); // charged even if the value satisfies `condition` at once
        let (mut value, seen, _) = self.shared.latest();
        self.seen = seen;
        if condition(&value) {
            return Ok(value);
        }
        let deadline = deadline();
        while !condition(&value) {
            value = self.receive(|| deadline)?;
        }
        Ok(value)
    }

    fn receive(
        &mut self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Ref<T>, RecvTimeoutError> {
        let waited = notify::wait_for_change(&self.shared.state, self.seen, deadline);
        waited.map_err(|_| RecvTimeoutError::Timeout)?;
        // There is a change to read, and no other receiver can take it away.
        let read = self.shared.read(&mut self.seen);
        read.map_err(|_| RecvTimeoutError::Closed)
    }

    /// Returns an iterator that receives until the channel is closed, blocking for each value.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::watch(0);
    /// (1..5).for_each(|n| tx.send(n).unwrap());
    /// drop(tx);
    /// let seen: Vec<i32> = rx.iter().map(|value| *value).collect();
    /// assert_eq!(seen, [4]); // the latest
    /// ```
    pub fn iter(&mut self) -> WatchIter<'_, T> {
        WatchIter(self)
    }
}

impl<T> Shared<T> {
    /// The value, the number of its change, and whether the channel is closed.
    fn latest(&self) -> (Ref<T>, u64, bool) {
        let state = self.state.lock();
        (Ref(state.value.clone()), state.changes, state.is_closed)
    }

    /// Returns the value if `seen` is older, and marks it as seen; otherwise reports why there is
    /// none.
    pub(super) fn read(&self, seen: &mut u64) -> Result<Ref<T>, TryRecvError> {
        let (value, changes, is_closed) = self.latest();
        if mem::replace(seen, changes) != changes {
            Ok(value)
        } else if is_closed {
            Err(TryRecvError::Closed)
        } else {
            Err(TryRecvError::Empty)
        }
    }

    /// Replaces the value and returns the previous one. If the channel is closed and `to_send` is
    /// set, returns the new value as the error.
    fn replace(&self, value: Arc<T>, to_send: bool) -> Result<Arc<T>, Arc<T>> {
        notify::change_and_notify(&self.state, |state| {
            if to_send && state.is_closed {
                return Err(value);
            }
            state.changes += 1;
            Ok(mem::replace(&mut state.value, value))
        })
    }

    fn close(&self) -> bool {
        !notify::change_and_notify(&self.state, |state| {
            mem::replace(&mut state.is_closed, true)
        })
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
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
            self.0.close();
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
        f.debug_tuple("WatchSender").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchReceiver")
            .field(&*self.borrow())
            .finish()
    }
}
