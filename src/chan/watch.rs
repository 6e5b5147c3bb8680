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

use super::error::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use super::iter::WatchIter;
use super::mpmc::after;
use super::told::{self, Tells};
use crate::park;
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;

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
    pub(super) state: Guarded<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct State<T> {
    value: Arc<T>,
    changes: u64,
    /// Nothing is sent any more.
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
    pub(super) shared: Arc<Shared<T>>,
    pub(super) seen: u64,
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
    /// Replaces the value and tells all who wait. It comes back if there are no receivers, or the channel is
    /// closed. Never waits, never yields.
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
                Err(SendError(value.expect("nobody else has seen it")))
            }
        }
    }

    /// Replaces the value, whether there are receivers or not and whether it is closed or not, and returns the one
    /// before.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::watch("old");
    /// assert_eq!(*tx.replace("new"), "old");
    /// ```
    pub fn replace(&self, value: T) -> Seen<T> {
        match self.0.replace(Arc::new(value), false) {
            Ok(before) | Err(before) => Seen(before),
        }
    }

    /// Closes the channel for all: nothing can be sent any more; what was sent last can still be received, and
    /// looked at. False if it was closed already.
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

    /// Whether a send would give its value back: the channel was closed, or nobody looks now.
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

    /// Closes the channel for all: see [`WatchSender::close`].
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// assert!(rx.close());
    /// assert!(tx.send(2).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Whether nothing will be sent any more. The last value may not have been received yet.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::watch(1);
    /// drop(tx);
    /// assert!(rx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// The latest value if this receiver has not received it. Never yields.
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
    pub fn try_recv(&mut self) -> Result<Seen<T>, TryRecvError> {
        self.shared.look(&mut self.seen)
    }

    /// The latest value, once it is one that this receiver has not received; waits for that. An error: the channel
    /// is closed, or all senders are gone.
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
        self.wait_until(is_it, || None).map_err(|_| RecvError)
    }

    /// The same, for at most this long.
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
        is_it: impl Fn(&T) -> bool,
        timeout: Duration,
    ) -> Result<Seen<T>, RecvTimeoutError> {
        self.wait_until(is_it, || after(timeout))
    }

    /// The same, until this time at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::watch(1);
    /// assert!(rx.wait_for_deadline(|n| *n > 5, std::time::Instant::now()).is_err());
    /// ```
    pub fn wait_for_deadline(
        &mut self,
        is_it: impl Fn(&T) -> bool,
        deadline: Instant,
    ) -> Result<Seen<T>, RecvTimeoutError> {
        self.wait_until(is_it, || Some(deadline))
    }

    fn wait_until(
        &mut self,
        is_it: impl Fn(&T) -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Seen<T>, RecvTimeoutError> {
        park::charge_ahead(); // also if it is so at once
        let (mut value, seen, _) = self.shared.latest();
        self.seen = seen;
        if is_it(&value) {
            return Ok(value);
        }
        let deadline = deadline();
        while !is_it(&value) {
            value = self.receive(|| deadline)?;
        }
        Ok(value)
    }

    fn receive(
        &mut self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Seen<T>, RecvTimeoutError> {
        let waited = told::wait(&self.shared.state, self.seen, deadline);
        waited.map_err(|_| RecvTimeoutError::Timeout)?;
        // There are news, and nobody can take them away.
        let looked = self.shared.look(&mut self.seen);
        looked.map_err(|_| RecvTimeoutError::Closed)
    }

    /// All values that are received until the channel is closed; waits in between.
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
    /// The value, the number of its change, and whether it is the last.
    fn latest(&self) -> (Seen<T>, u64, bool) {
        let state = self.state.lock();
        (Seen(state.value.clone()), state.changes, state.is_closed)
    }

    /// The value if it is news, or that there is none.
    pub(super) fn look(&self, seen: &mut u64) -> Result<Seen<T>, TryRecvError> {
        let (value, changes, is_closed) = self.latest();
        if mem::replace(seen, changes) != changes {
            Ok(value)
        } else if is_closed {
            Err(TryRecvError::Closed)
        } else {
            Err(TryRecvError::Empty)
        }
    }

    /// The value before. It comes back if it was to be sent and the channel is closed.
    fn replace(&self, value: Arc<T>, to_send: bool) -> Result<Arc<T>, Arc<T>> {
        told::tell(&self.state, |state| {
            if to_send && state.is_closed {
                return Err(value);
            }
            state.changes += 1;
            Ok(mem::replace(&mut state.value, value))
        })
    }

    fn close(&self) -> bool {
        !told::tell(&self.state, |state| {
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
        f.debug_tuple("WatchSender").field(&*self.get()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchReceiver").field(&*self.get()).finish()
    }
}
