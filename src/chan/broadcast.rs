//! Broadcast channels: every receiver gets every value, and a slow receiver loses the oldest.
//!
//! The channel keeps its last `capacity` values in order. Values are shared by reference count:
//! under the lock a reference is counted, and no value is cloned or dropped. Each value has a
//! number, and a receiver remembers the number of its next value. If that value is no longer kept,
//! the receiver *lags*: its next receive fails with the number of values lost, and the one after
//! that returns the oldest value kept.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::error::{BroadcastError, SendError};
use super::iter::BroadcastIter;
use super::mpmc::after;
use super::notify::{self, Versioned};
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;

/// Creates a channel whose values go to all receivers, as `tokio::sync::broadcast` does.
///
/// Sends never block. A receiver that is more than `capacity` values behind loses the oldest ones
/// and gets [`BroadcastError::Lagged`]. The last `capacity` values stay in memory until newer ones
/// replace them.
///
/// # Panics
/// If the capacity is zero.
///
/// ```
/// use indent::chan::{self, BroadcastError};
///
/// let (tx, mut rx) = chan::broadcast(2);
/// let mut other = tx.subscribe();
/// tx.send("a").unwrap();
/// assert_eq!((rx.recv(), other.recv()), (Ok("a"), Ok("a")));
/// ["b", "c", "d"].map(|value| tx.send(value).unwrap());
/// assert_eq!(rx.recv(), Err(BroadcastError::Lagged(1)));
/// assert_eq!((rx.recv(), rx.recv()), (Ok("c"), Ok("d")));
/// ```
pub fn broadcast<T>(capacity: usize) -> (BroadcastSender<T>, BroadcastReceiver<T>) {
    assert!(
        capacity > 0,
        "cannot create a broadcast channel of capacity 0: it would keep no value; pass the number \
         of values that a receiver may fall behind"
    );
    let shared = Arc::new(Shared {
        state: Guarded::new(State {
            values: VecDeque::with_capacity(capacity),
            sent: 0,
            is_closed: false,
            waiters: Queue::new(),
        }),
        capacity,
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (
        BroadcastSender(shared.clone()),
        BroadcastReceiver { shared, next: 0 },
    )
}

pub(crate) struct Shared<T> {
    pub(super) state: Guarded<State<T>>,
    capacity: usize,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct State<T> {
    /// The last values sent, oldest first.
    values: VecDeque<Arc<T>>,
    /// How many values were sent so far.
    sent: u64,
    /// Sends fail from now on.
    is_closed: bool,
    waiters: Queue,
}

impl<T> State<T> {
    /// The number of the oldest value kept.
    fn oldest(&self) -> u64 {
        self.sent - self.values.len() as u64
    }
}

impl<T> Versioned for State<T> {
    fn waiters(&mut self) -> &mut Queue {
        &mut self.waiters
    }

    fn has_changed_since(&self, next: u64) -> bool {
        self.sent > next || self.is_closed
    }
}

impl<T> Shared<T> {
    /// Returns the value with the number `next` and advances `next`, or reports why there is none.
    pub(super) fn read(&self, next: &mut u64) -> Result<Arc<T>, BroadcastError> {
        let state = self.state.lock();
        let oldest = state.oldest();
        if *next < oldest {
            let lost = oldest - *next;
            *next = oldest;
            return Err(BroadcastError::Lagged(lost));
        }
        match state.values.get((*next - oldest) as usize) {
            Some(value) => {
                *next += 1;
                Ok(value.clone())
            }
            None if state.is_closed => Err(BroadcastError::Closed),
            None => Err(BroadcastError::Empty),
        }
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

/// The sending side of a broadcast channel. Clones send into the same channel.
///
/// ```
/// let (tx, mut rx) = indent::chan::broadcast(2);
/// tx.clone().send(1).unwrap();
/// assert_eq!(rx.recv(), Ok(1));
/// ```
pub struct BroadcastSender<T>(Arc<Shared<T>>);

/// The receiving side of a broadcast channel. A clone starts at this receiver's position.
///
/// ```
/// let (tx, mut rx) = indent::chan::broadcast(2);
/// tx.send(1).unwrap();
/// let mut other = rx.clone();
/// assert_eq!((rx.recv(), other.recv()), (Ok(1), Ok(1)));
/// ```
pub struct BroadcastReceiver<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) next: u64,
}

impl<T> BroadcastSender<T> {
    /// Sends a value to all receivers and returns their number. Never blocks or yields.
    ///
    /// # Errors
    /// If there are no receivers or the channel is closed; the error contains the value.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast(2);
    /// assert_eq!(tx.send(1), Ok(1));
    /// drop(rx);
    /// assert!(tx.send(2).is_err());
    /// ```
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        let receivers = self.receivers();
        if receivers == 0 {
            return Err(SendError(value));
        }
        let value = Arc::new(value);
        let sent = notify::change_and_notify(&self.0.state, |state| {
            if state.is_closed {
                return Err(value);
            }
            let full = state.values.len() == self.0.capacity;
            let dropped = if full { state.values.pop_front() } else { None };
            state.values.push_back(value);
            state.sent += 1;
            Ok(dropped)
        });
        match sent {
            Ok(dropped) => {
                drop(dropped);
                Ok(receivers)
            }
            Err(value) => {
                let value = Arc::into_inner(value);
                Err(SendError(
                    value.expect("the value was not shared, as it was not sent"),
                ))
            }
        }
    }

    /// Closes the channel for all handles; returns false if it was closed already.
    ///
    /// From then on sends fail. Values sent before are still received.
    ///
    /// ```
    /// use indent::chan::{self, BroadcastError};
    ///
    /// let (tx, mut rx) = chan::broadcast(2);
    /// tx.send(1).unwrap();
    /// assert!(tx.close());
    /// assert!(tx.send(2).is_err());
    /// assert_eq!((rx.recv(), rx.recv()), (Ok(1), Err(BroadcastError::Closed)));
    /// ```
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Whether a send would fail: the channel is closed, or there is no receiver now.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast::<u8>(2);
    /// drop(rx);
    /// assert!(tx.is_closed());
    /// let _rx = tx.subscribe();
    /// assert!(!tx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.receivers() == 0 || self.0.is_closed()
    }

    /// Number of values that the channel keeps now.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast(2);
    /// (0..5).for_each(|n| drop(tx.send(n)));
    /// assert_eq!(tx.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.0.state.lock().values.len()
    }

    /// Whether no value was ever sent.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(tx.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of values that the channel keeps for slow receivers.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast::<u8>(2);
    /// assert_eq!(tx.capacity(), 2);
    /// ```
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Creates a receiver of the values sent from now on.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast(2);
    /// tx.send(1).unwrap();
    /// let mut late = tx.subscribe();
    /// tx.send(2).unwrap();
    /// assert_eq!(late.recv(), Ok(2));
    /// ```
    pub fn subscribe(&self) -> BroadcastReceiver<T> {
        self.0.receivers.fetch_add(1, Relaxed);
        BroadcastReceiver {
            shared: self.0.clone(),
            next: self.0.state.lock().sent,
        }
    }

    /// Number of receivers.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast::<u8>(2);
    /// let _other = rx.clone();
    /// assert_eq!(tx.receivers(), 2);
    /// ```
    pub fn receivers(&self) -> usize {
        self.0.receivers.load(Relaxed)
    }
}

impl<T> BroadcastReceiver<T> {
    /// Number of values sent that this receiver has not received, including those it has lost.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast(2);
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        let sent = self.shared.state.lock().sent;
        usize::try_from(sent - self.next).unwrap_or(usize::MAX)
    }

    /// Whether there is nothing for this receiver to receive now.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of values that the channel keeps for slow receivers.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::broadcast::<u8>(2);
    /// assert_eq!(rx.capacity(), 2);
    /// ```
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Closes the channel for all handles: see [`BroadcastSender::close`].
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast(2);
    /// assert!(rx.close());
    /// assert!(tx.send(1).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Whether no further value can be sent. Values sent before may still be received.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::broadcast(2);
    /// tx.send(1).unwrap();
    /// drop(tx);
    /// assert!(rx.is_closed());
    /// assert_eq!(rx.recv(), Ok(1));
    /// ```
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}

impl<T: Clone> BroadcastReceiver<T> {
    /// Receives the next value, blocking until it is sent.
    ///
    /// # Errors
    /// [`Lagged`](BroadcastError::Lagged) if this receiver has lost values;
    /// [`Closed`](BroadcastError::Closed) if the channel is closed and all its values were
    /// received.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::broadcast(2);
    /// let fiber = indent::spawn(move || rx.recv());
    /// tx.send(1).unwrap();
    /// assert_eq!(fiber.join().unwrap(), Ok(1));
    /// ```
    pub fn recv(&mut self) -> Result<T, BroadcastError> {
        self.receive(|| None)
    }

    /// Receives the next value if it was sent. Never yields.
    ///
    /// # Errors
    /// [`Empty`](BroadcastError::Empty) if there is none now; otherwise as for
    /// [`recv`](Self::recv).
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::broadcast(2);
    /// assert!(rx.try_recv().is_err());
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, BroadcastError> {
        self.shared.read(&mut self.next).map(Arc::unwrap_or_clone)
    }

    /// Receives the next value, blocking for at most `timeout`.
    ///
    /// # Errors
    /// [`Timeout`](BroadcastError::Timeout) if the time has passed; otherwise as for
    /// [`recv`](Self::recv).
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, BroadcastError> {
        self.receive(|| after(timeout))
    }

    /// Receives the next value, blocking until `deadline` at most.
    ///
    /// # Errors
    /// [`Timeout`](BroadcastError::Timeout) if the time has passed; otherwise as for
    /// [`recv`](Self::recv).
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, BroadcastError> {
        self.receive(|| Some(deadline))
    }

    fn receive(&mut self, deadline: impl FnOnce() -> Option<Instant>) -> Result<T, BroadcastError> {
        let waited = notify::wait_for_change(&self.shared.state, self.next, deadline);
        waited.map_err(|_| BroadcastError::Timeout)?;
        self.try_recv()
    }

    /// Returns an iterator that receives until the channel is closed, blocking for each value.
    ///
    /// Its errors are [`Lagged`](BroadcastError::Lagged), with the number of values lost.
    ///
    /// ```
    /// use indent::chan::{self, BroadcastError};
    ///
    /// let (tx, mut rx) = chan::broadcast(2);
    /// (0..5).for_each(|n| drop(tx.send(n)));
    /// drop(tx);
    /// let all: Vec<_> = rx.iter().collect();
    /// assert_eq!(all, [Err(BroadcastError::Lagged(3)), Ok(3), Ok(4)]);
    /// ```
    pub fn iter(&mut self) -> BroadcastIter<'_, T> {
        BroadcastIter(self)
    }
}

impl<T> Clone for BroadcastSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Relaxed);
        BroadcastSender(self.0.clone())
    }
}

impl<T> Clone for BroadcastReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Relaxed);
        BroadcastReceiver {
            shared: self.shared.clone(),
            next: self.next,
        }
    }
}

impl<T> Drop for BroadcastSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, AcqRel) == 1 {
            self.0.close();
        }
    }
}

impl<T> Drop for BroadcastReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, AcqRel);
    }
}

impl<T> fmt::Debug for BroadcastSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastSender")
            .field("receivers", &self.receivers())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BroadcastReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastReceiver")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
