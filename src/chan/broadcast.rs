//! Every value for every receiver; whoever is too slow loses the oldest.
//!
//! The values of the last so many sends are kept in order, shared by reference count: under the lock a reference
//! is counted, never a value cloned or dropped. Each send has a number; a receiver remembers which one is next
//! for it. If that is older than all that are kept it *lags*: it is told by how many, and goes on with the
//! oldest there is.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::error::{BroadcastError, SendError};
use super::iter::BroadcastIter;
use super::mpmc::after;
use super::told::{self, Tells};
use crate::park::guarded::Guarded;
use crate::park::queue::Queue;

/// A channel whose values go to all receivers. A send never waits: a receiver that is more than so many values
/// behind loses the oldest, and is told how many.
///
/// The last values stay in memory until others come.
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
        "a broadcast channel of capacity 0 keeps nothing: give it room for as many values as a receiver may be behind"
    );
    let shared = Arc::new(Shared {
        state: Guarded::new(State {
            values: VecDeque::with_capacity(capacity),
            sent: 0,
            is_closed: false,
            waiting: Queue::new(),
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
    /// The last ones that were sent.
    values: VecDeque<Arc<T>>,
    /// How many were sent in all.
    sent: u64,
    /// Nothing is sent any more.
    is_closed: bool,
    waiting: Queue,
}

impl<T> State<T> {
    /// The number of the oldest that is kept.
    fn oldest(&self) -> u64 {
        self.sent - self.values.len() as u64
    }
}

impl<T> Tells for State<T> {
    fn waiting(&mut self) -> &mut Queue {
        &mut self.waiting
    }

    fn has_news(&self, next: u64) -> bool {
        self.sent > next || self.is_closed
    }
}

impl<T> Shared<T> {
    /// The value with this number, if it is there.
    pub(super) fn look(&self, next: &mut u64) -> Result<Arc<T>, BroadcastError> {
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
        !told::tell(&self.state, |state| {
            mem::replace(&mut state.is_closed, true)
        })
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

/// Sends to all receivers. Clones send into the same channel.
///
/// ```
/// let (tx, mut rx) = indent::chan::broadcast(2);
/// tx.clone().send(1).unwrap();
/// assert_eq!(rx.recv(), Ok(1));
/// ```
pub struct BroadcastSender<T>(Arc<Shared<T>>);

/// Receives all that is sent. A clone receives the same from where this one stands.
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
    /// Sends to all receivers there are, and says how many those are. The value comes back if there are none, or
    /// the channel is closed. Never waits, never yields.
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
        let sent = told::tell(&self.0.state, |state| {
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
                Err(SendError(value.expect("nobody else has seen it")))
            }
        }
    }

    /// Closes the channel for all: nothing can be sent any more, what is kept is still received. False if it was
    /// closed already.
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

    /// Whether a send would give its value back: the channel was closed, or nobody receives now.
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

    /// How many values are kept now.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast(2);
    /// (0..5).for_each(|n| drop(tx.send(n)));
    /// assert_eq!(tx.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.0.state.lock().values.len()
    }

    /// Whether nothing was sent so far.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(tx.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values are kept for those who are behind.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::broadcast::<u8>(2);
    /// assert_eq!(tx.capacity(), 2);
    /// ```
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// One more receiver, of what is sent from now on.
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

    /// How many receivers there are.
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
    /// How many values this receiver could receive without a wait, those it has lost included.
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

    /// Whether there is nothing for this receiver now.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values are kept for those who are behind.
    ///
    /// ```
    /// let (_tx, rx) = indent::chan::broadcast::<u8>(2);
    /// assert_eq!(rx.capacity(), 2);
    /// ```
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Closes the channel for all: see [`BroadcastSender::close`].
    ///
    /// ```
    /// let (tx, rx) = indent::chan::broadcast(2);
    /// assert!(rx.close());
    /// assert!(tx.send(1).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Whether nothing will be sent any more. There may be something left to receive.
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
    /// The next value; waits for it. An error if some were lost, or all senders are gone.
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

    /// The next value if it is there. Never yields.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::broadcast(2);
    /// assert!(rx.try_recv().is_err());
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, BroadcastError> {
        self.shared.look(&mut self.next).map(Arc::unwrap_or_clone)
    }

    /// The next value; waits for it for at most this long.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, BroadcastError> {
        self.receive(|| after(timeout))
    }

    /// The next value; waits for it until this time at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::broadcast::<u8>(2);
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, BroadcastError> {
        self.receive(|| Some(deadline))
    }

    fn receive(&mut self, deadline: impl FnOnce() -> Option<Instant>) -> Result<T, BroadcastError> {
        let waited = told::wait(&self.shared.state, self.next, deadline);
        waited.map_err(|_| BroadcastError::Timeout)?;
        self.try_recv()
    }

    /// All that is received until the channel is closed; waits in between. An error is
    /// [`Lagged`](BroadcastError::Lagged): so many were lost.
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
