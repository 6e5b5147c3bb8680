//! Channels with many senders and many receivers: the two sides.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Channel;
use super::error::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};

/// A channel with room for so many values. Without any, `bounded(0)`, a send ends when somebody receives.
///
/// The room is allocated at once.
///
/// ```
/// use indent::chan;
///
/// let (tx, rx) = chan::bounded(2);
/// tx.send("a").unwrap();
/// tx.send("b").unwrap(); // a third would wait
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

/// A channel in which a send never waits: what nobody receives stays in memory.
///
/// This is the exception; prefer [`bounded`]. It is right where the number of values is limited by something
/// else.
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

/// A time too far away to be named never comes.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// The side of a channel that sends. Clones send into the same channel.
///
/// ```
/// let (tx, rx) = indent::chan::bounded(1);
/// let other = tx.clone();
/// indent::spawn(move || other.send(1).unwrap()).join().unwrap();
/// assert_eq!(rx.recv(), Ok(1));
/// ```
pub struct Sender<T>(pub(crate) Arc<Channel<T>>);

/// The side of a channel that receives. Clones receive from the same channel: each value goes to one of them.
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
    /// Sends, and waits for room if there is none. An error gives the value back: the channel is closed.
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

    /// Sends if that needs no wait. Never yields.
    ///
    /// ```
    /// let (tx, _rx) = indent::chan::bounded(1);
    /// assert!(tx.try_send(1).is_ok());
    /// assert!(tx.try_send(2).unwrap_err().is_full());
    /// ```
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(value)
    }

    /// Sends, and waits for room for at most this long.
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

    /// Sends, and waits for room until this time at most.
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
    /// Receives, and waits for a value if there is none. An error: the channel is closed, and all was received.
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

    /// Receives if that needs no wait. Never yields.
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

    /// Receives, and waits for a value for at most this long.
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

    /// Receives, and waits for a value until this time at most.
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

    /// All that is received until the channel is closed; waits in between.
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

    /// All that can be received without a wait.
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

/// What both sides can do.
macro_rules! both_sides {
    ($side:ident) => {
        impl<T> $side<T> {
            /// Closes the channel for all: nothing can be sent any more, what was sent is still received. False
            /// if it was closed already.
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

            /// Whether nothing can be sent any more.
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

            /// How many values are in it now: sent, and not yet received.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded(4);
            /// tx.send('x').unwrap();
            /// assert_eq!((tx.len(), rx.len()), (1, 1));
            /// ```
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Whether nothing is in it now.
            ///
            /// ```
            /// let (tx, rx) = indent::chan::bounded::<u8>(4);
            /// assert!(tx.is_empty() && rx.is_empty());
            /// ```
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// For how many values there is room in all; `None` if it is unbounded.
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

            /// Whether both belong to the same channel.
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

/// What [`Receiver::iter`] returns.
///
/// ```
/// let (tx, rx) = indent::chan::bounded(1);
/// tx.send(1).unwrap();
/// assert_eq!(rx.iter().next(), Some(1));
/// ```
#[derive(Debug)]
pub struct Iter<'a, T>(&'a Receiver<T>);

/// What [`Receiver::try_iter`] returns.
///
/// ```
/// let (_tx, rx) = indent::chan::bounded::<u8>(1);
/// assert_eq!(rx.try_iter().next(), None);
/// ```
#[derive(Debug)]
pub struct TryIter<'a, T>(&'a Receiver<T>);

/// All that a receiver receives until its channel is closed.
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
