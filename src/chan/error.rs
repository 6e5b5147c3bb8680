//! What can go wrong. What could not be sent is given back.

use std::error::Error;
use std::fmt;

/// Nobody will receive this any more: the channel is closed. The value comes back.
///
/// ```
/// use indent::chan::{self, SendError};
///
/// let (tx, rx) = chan::bounded(1);
/// drop(rx);
/// assert_eq!(tx.send(7), Err(SendError(7)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// The value was not sent at once, and comes back.
///
/// ```
/// use indent::chan::{self, TrySendError};
///
/// let (tx, _rx) = chan::bounded(1);
/// tx.try_send(1).unwrap();
/// assert_eq!(tx.try_send(2), Err(TrySendError::Full(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room, or nobody who waits to receive.
    Full(T),
    /// The channel is closed.
    Closed(T),
}

/// The value was not sent in time, and comes back.
///
/// ```
/// use indent::chan::{self, SendTimeoutError};
/// use std::time::Duration;
///
/// let (tx, _rx) = chan::bounded(0);
/// let error = tx.send_timeout(1, Duration::from_millis(1));
/// assert_eq!(error, Err(SendTimeoutError::Timeout(1)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendTimeoutError<T> {
    /// The time is over.
    Timeout(T),
    /// The channel is closed.
    Closed(T),
}

/// There is nothing left to receive, and there never will be: the channel is closed.
///
/// ```
/// use indent::chan::{self, RecvError};
///
/// let (tx, rx) = chan::bounded::<u8>(1);
/// drop(tx);
/// assert_eq!(rx.recv(), Err(RecvError));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError;

/// Nothing was received at once.
///
/// ```
/// use indent::chan::{self, TryRecvError};
///
/// let (tx, rx) = chan::bounded::<u8>(1);
/// assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
/// drop(tx);
/// assert_eq!(rx.try_recv(), Err(TryRecvError::Closed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is nothing now.
    Empty,
    /// There is nothing left, and the channel is closed.
    Closed,
}

/// Nothing was received in time.
///
/// ```
/// use indent::chan::{self, RecvTimeoutError};
/// use std::time::Duration;
///
/// let (_tx, rx) = chan::bounded::<u8>(1);
/// let error = rx.recv_timeout(Duration::from_millis(1));
/// assert_eq!(error, Err(RecvTimeoutError::Timeout));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    /// The time is over.
    Timeout,
    /// There is nothing left, and the channel is closed.
    Closed,
}

impl<T> SendError<T> {
    /// What was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::SendError(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> TrySendError<T> {
    /// What was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::TrySendError::Full(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(value) | TrySendError::Closed(value) => value,
        }
    }

    /// Whether it may be worth another try.
    ///
    /// ```
    /// assert!(indent::chan::TrySendError::Full(7).is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }
}

impl<T> SendTimeoutError<T> {
    /// What was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::SendTimeoutError::Timeout(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(value) | SendTimeoutError::Closed(value) => value,
        }
    }

    /// Whether the time was over, and not the channel.
    ///
    /// ```
    /// assert!(indent::chan::SendTimeoutError::Timeout(7).is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, SendTimeoutError::Timeout(_))
    }
}

const CLOSED_TO_SENDERS: &str =
    "the channel is closed: nobody will receive the value, which is in the error";
const CLOSED_TO_RECEIVERS: &str =
    "the channel is empty and closed: nothing will be sent any more, so stop receiving";

// What was sent need not be `Debug`.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => "Timeout(..)",
            SendTimeoutError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CLOSED_TO_SENDERS)
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => {
                "the channel is full and the value is in the error: try again later, or send and wait"
            }
            TrySendError::Closed(_) => CLOSED_TO_SENDERS,
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => {
                "the channel was full until the time was over: the value is in the error"
            }
            SendTimeoutError::Closed(_) => CLOSED_TO_SENDERS,
        })
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CLOSED_TO_RECEIVERS)
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "the channel is empty: try again later, or receive and wait",
            TryRecvError::Closed => CLOSED_TO_RECEIVERS,
        })
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvTimeoutError::Timeout => "the channel was empty until the time was over",
            RecvTimeoutError::Closed => CLOSED_TO_RECEIVERS,
        })
    }
}

impl<T> Error for SendError<T> {}
impl<T> Error for TrySendError<T> {}
impl<T> Error for SendTimeoutError<T> {}
impl Error for RecvError {}
impl Error for TryRecvError {}
impl Error for RecvTimeoutError {}

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(error: SendError<T>) -> Self {
        TrySendError::Closed(error.0)
    }
}

impl<T> From<SendError<T>> for SendTimeoutError<T> {
    fn from(error: SendError<T>) -> Self {
        SendTimeoutError::Closed(error.0)
    }
}

impl From<RecvError> for TryRecvError {
    fn from(_: RecvError) -> Self {
        TryRecvError::Closed
    }
}

impl From<RecvError> for RecvTimeoutError {
    fn from(_: RecvError) -> Self {
        RecvTimeoutError::Closed
    }
}

/// Nothing was received from a broadcast channel.
///
/// ```
/// use indent::chan::{self, BroadcastError};
///
/// let (tx, mut rx) = chan::broadcast::<u8>(2);
/// assert_eq!(rx.try_recv(), Err(BroadcastError::Empty));
/// drop(tx);
/// assert_eq!(rx.recv(), Err(BroadcastError::Closed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BroadcastError {
    /// There is nothing now. Only of `try_recv`.
    Empty,
    /// There was nothing until the time was over. Only of `recv_timeout` and `recv_deadline`.
    Timeout,
    /// The receiver was too slow: so many values are lost for it. The next receive gives the oldest there is.
    Lagged(u64),
    /// There is nothing left, and nothing will be sent: it was closed, or all senders are gone.
    Closed,
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BroadcastError::Empty => {
                f.write_str("the channel is empty: try again later, or receive and wait")
            }
            BroadcastError::Timeout => f.write_str("the channel was empty until the time was over"),
            BroadcastError::Lagged(lost) => write!(
                f,
                "the receiver was too slow and has lost {lost} values: receive again for the oldest that is left, \
                 or make the channel larger"
            ),
            BroadcastError::Closed => f.write_str(CLOSED_TO_RECEIVERS),
        }
    }
}

impl Error for BroadcastError {}
