//! Channels with many senders and many receivers: `Sender` and `Receiver`.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Channel;
use super::error::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};

/// Creates a channel that buffers at most `capacity` values.
///
/// When the buffer is full, senders block. With capacity zero there is no buffer: a send returns
/// when a receiver has taken the value. The buffer is allocated here. The counterpart of
/// [`std::sync::mpsc::sync_channel`], with many receivers.
///
/// ```
/// use indent::chan;
///
/// let (tx, rx) = chan::bounded(2);
/// tx.send("a").unwrap();
/// tx.send("b").unwrap(); // a third send would block
/// assert_eq!(rx.recv(), Ok("a"));
///
/// let (tx, rx) = chan::bounded(0);
/// let fiber = indent::spawn(move || tx.send("met").unwrap());
/// assert_eq!(rx.recv(), Ok("met"));
/// fiber.join().unwrap();
/// ```
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    pair(Some(capacity))
}

/// Creates a channel without a capacity limit, in which sends never block.
///
/// Values that are not received stay in memory. Prefer [`bounded`], unless something else limits
/// the number of values. The counterpart of [`std::sync::mpsc::channel`], with many receivers.
///
/// ```
/// let (tx, rx) = indent::chan::unbounded();
/// (0..1000).for_each(|n| tx.send(n).unwrap());
/// drop(tx);
/// assert_eq!(rx.into_iter().count(), 1000);
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    pair(None)
}

fn pair<T>(capacity: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(capacity));
    (Sender(channel.clone()), Receiver(channel))
}

/// The deadline that is `timeout` from now; `None`, which is never, if no `Instant` can represent
/// it.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// The sending side of a channel. Clones send into the same channel.
///
/// ```
/// let (tx, rx) = indent::chan::bounded(1);
/// let other = tx.clone();
/// indent::spawn(move || other.send(1).unwrap()).join().unwrap();
/// assert_eq!(rx.recv(), Ok(1));
/// ```
pub struct Sender<T>(pub(crate) Arc<Channel<T>>);

/// The receiving side of a channel. Clones share the values: each value goes to one of them.
///
/// ```
/// let (tx, rx) = indent::chan::bounded(2);
/// let other = rx.clone();
/// tx.send(1).unwrap();
/// tx.send(2).unwrap();
/// assert_eq!((rx.recv(), other.recv()), (Ok(1), Ok(2)));
/// ```
pub struct Receiver<T>(pub(crate) Arc<Channel<T>>);

impl<T> Sender<T> {
    /// Sends a value, blocking while the channel is full.
    ///
    /// # Errors
    /// If the channel is closed; the error contains the value.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::bounded(1);
    /// let fiber = indent::spawn(move || (0..10).try_for_each(|n| tx.send(n)));
    /// assert_eq!(rx.iter().sum::<i32>(), 45);
    /// fiber.join().unwrap().unwrap();
    /// ```
    #[inline]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let sent = self.0.send(value, || None);
        sent.map_err(|error| SendError(error.into_inner()))
    }

    /// Sends a value if that is possible without blocking. Never yields.
    ///
    /// # Errors
    /// If the channel is full or closed; the error contains the value.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::bounded(1);
    /// assert!(tx.try_send(1).is_ok());
    /// assert!(tx.try_send(2).unwrap_err().is_full());
    /// ```
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(value)
    }

    /// Sends a value, blocking for at most `timeout` while the channel is full.
    ///
    /// # Errors
    /// If the time has passed or the channel is closed; the error contains the value.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (tx, _rx) = indent::chan::bounded(0);
    /// let error = tx.send_timeout(1, Duration::from_millis(1)).unwrap_err();
    /// assert!(error.is_timeout());
    /// ```
    pub fn send_timeout(&self, value: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.0.send(value, || after(timeout))
    }

    /// Sends a value, blocking until `deadline` at most while the channel is full.
    ///
    /// # Errors
    /// If the time has passed or the channel is closed; the error contains the value.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// let (tx, _rx) = indent::chan::bounded(1);
    /// assert!(tx.send_deadline(1, Instant::now()).is_ok()); // there is room
    /// assert!(tx.send_deadline(2, Instant::now()).is_err());
    /// ```
    pub fn send_deadline(&self, value: T, deadline: Instant) -> Result<(), SendTimeoutError<T>> {
        self.0.send(value, || Some(deadline))
    }
}

impl<T> Receiver<T> {
    /// Receives a value, blocking while the channel is empty.
    ///
    /// # Errors
    /// If the channel is closed and all its values were received.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::bounded(1);
    /// indent::spawn(move || tx.send("news")).join().unwrap().unwrap();
    /// assert_eq!(rx.recv(), Ok("news"));
    /// assert!(rx.recv().is_err());
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.0.receive(|| None).map_err(|_| RecvError)
    }

    /// Receives a value if there is one. Never yields.
    ///
    /// # Errors
    /// If the channel is empty, or closed and empty.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::bounded(1);
    /// assert!(rx.try_recv().is_err());
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_receive()
    }

    /// Receives a value, blocking for at most `timeout` while the channel is empty.
    ///
    /// # Errors
    /// If the time has passed, or the channel is closed and empty.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let (_tx, rx) = indent::chan::bounded::<u8>(1);
    /// assert!(rx.recv_timeout(Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| after(timeout))
    }

    /// Receives a value, blocking until `deadline` at most while the channel is empty.
    ///
    /// # Errors
    /// If the time has passed, or the channel is closed and empty.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// let (tx, rx) = indent::chan::bounded(1);
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.recv_deadline(Instant::now()), Ok(1)); // it is there
    /// assert!(rx.recv_deadline(Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| Some(deadline))
    }

    /// Returns an iterator that receives until the channel is closed and empty, blocking while it
    /// is empty.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::bounded(3);
    /// (1..=3).for_each(|n| tx.send(n).unwrap());
    /// drop(tx);
    /// assert_eq!(rx.iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// ```
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self)
    }

    /// Returns an iterator over the values that can be received without blocking.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::bounded(3);
    /// (1..=3).for_each(|n| tx.send(n).unwrap());
    /// assert_eq!(rx.try_iter().count(), 3);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter(self)
    }
}

/// The methods of both sides.
macro_rules! both_sides {
    ($side:ident) => {
        impl<T> $side<T> {
            /// Closes the channel for all handles; returns false if it was closed already.
            ///
            /// From then on sends fail. Values sent before are still received.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded(1);
            /// tx.send(1).unwrap();
            /// assert!(rx.close());
            /// assert!(tx.send(2).is_err());
            /// assert_eq!(rx.recv(), Ok(1));
            /// assert!(rx.recv().is_err());
            /// ```
            pub fn close(&self) -> bool {
                self.0.close()
            }

            /// Whether the channel is closed, so that sends fail.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded::<u8>(1);
            /// assert!(!tx.is_closed());
            /// drop(rx);
            /// assert!(tx.is_closed());
            /// ```
            pub fn is_closed(&self) -> bool {
                self.0.is_closed()
            }

            /// Number of values in the buffer.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded(4);
            /// tx.send('x').unwrap();
            /// assert_eq!((tx.len(), rx.len()), (1, 1));
            /// ```
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Whether the buffer is empty.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded::<u8>(4);
            /// assert!(tx.is_empty() && rx.is_empty());
            /// ```
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Number of values the buffer can hold; `None` if the channel is unbounded.
            ///
            /// ```
            /// let (tx, _rx) = indent::chan::bounded::<u8>(4);
            /// assert_eq!(tx.capacity(), Some(4));
            /// let (tx, _rx) = indent::chan::unbounded::<u8>();
            /// assert_eq!(tx.capacity(), None);
            /// ```
            pub fn capacity(&self) -> Option<usize> {
                self.0.capacity()
            }

            /// Whether both handles belong to the same channel.
            ///
            /// ```
            /// let (tx, _rx) = indent::chan::bounded::<u8>(4);
            /// assert!(tx.same_channel(&tx.clone()));
            /// ```
            pub fn same_channel(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }
        }

        impl<T> fmt::Debug for $side<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($side));
                shown.field("len", &self.len());
                shown.field("capacity", &self.capacity());
                shown.field("is_closed", &self.is_closed()).finish()
            }
        }
    };
}

both_sides!(Sender);
both_sides!(Receiver);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.add_sender();
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.add_receiver();
        Receiver(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.drop_sender();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.drop_receiver();
    }
}

/// Iterator that blocks for each value: see [`Receiver::iter`].
///
/// ```
/// let (tx, rx) = indent::chan::bounded(1);
/// tx.send(1).unwrap();
/// assert_eq!(rx.iter().next(), Some(1));
/// ```
#[derive(Debug)]
pub struct Iter<'a, T>(&'a Receiver<T>);

/// Iterator that never blocks: see [`Receiver::try_iter`].
///
/// ```
/// let (_tx, rx) = indent::chan::bounded::<u8>(1);
/// assert_eq!(rx.try_iter().next(), None);
/// ```
#[derive(Debug)]
pub struct TryIter<'a, T>(&'a Receiver<T>);

/// Iterator that owns its receiver and blocks for each value.
///
/// ```
/// let (tx, rx) = indent::chan::bounded(1);
/// tx.send(1).unwrap();
/// drop(tx);
/// for value in rx {
///     assert_eq!(value, 1);
/// }
/// ```
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> FusedIterator for Iter<'_, T> {}
impl<T> FusedIterator for IntoIter<T> {}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}
