//! Errors of channels. A value that could not be sent is in the error.

use std::error::Error;
use std::fmt;

/// The channel is closed, so the value cannot be sent. Contains the value.
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

/// The value could not be sent without blocking. Contains the value.
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
    /// The buffer has no room; or the channel has no buffer, and no receiver waits.
    Full(T),
    /// The channel is closed.
    Closed(T),
}

/// The value could not be sent in time. Contains the value.
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
    /// The deadline has passed.
    Timeout(T),
    /// The channel is closed.
    Closed(T),
}

/// The channel is empty and closed: no value will ever be received.
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

/// No value could be received without blocking.
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
    /// The channel is empty now, and still open.
    Empty,
    /// The channel is empty and closed.
    Closed,
}

/// No value was received in time.
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
    /// The deadline has passed.
    Timeout,
    /// The channel is empty and closed.
    Closed,
}

impl<T> SendError<T> {
    /// Returns the value that was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::SendError(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> TrySendError<T> {
    /// Returns the value that was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::TrySendError::Full(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(value) | TrySendError::Closed(value) => value,
        }
    }

    /// Whether the channel was full, so that a later try may succeed.
    ///
    /// ```
    /// assert!(indent::chan::TrySendError::Full(7).is_full());
    /// ```
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }
}

impl<T> SendTimeoutError<T> {
    /// Returns the value that was not sent.
    ///
    /// ```
    /// assert_eq!(indent::chan::SendTimeoutError::Timeout(7).into_inner(), 7);
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            SendTimeoutError::Timeout(value) | SendTimeoutError::Closed(value) => value,
        }
    }

    /// Whether the deadline has passed, as opposed to a closed channel.
    ///
    /// ```
    /// assert!(indent::chan::SendTimeoutError::Timeout(7).is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self, SendTimeoutError::Timeout(_))
    }
}

const CLOSED_TO_SENDERS: &str =
    "cannot send: the channel is closed; the unsent value is in the error";
const CLOSED_TO_RECEIVERS: &str =
    "cannot receive: the channel is empty and closed, so no value will follow; stop receiving";
const EMPTY: &str = "cannot receive without blocking: the channel is empty; try again later, or \
    use a blocking receive";
const RECEIVE_TIMED_OUT: &str = "receive timed out: the channel stayed empty until the deadline";

// Written by hand: the value need not be `Debug`.
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
                "cannot send without blocking: the channel is full; try again later, or use a \
                 blocking send (the unsent value is in the error)"
            }
            TrySendError::Closed(_) => CLOSED_TO_SENDERS,
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendTimeoutError::Timeout(_) => {
                "send timed out: the channel stayed full until the deadline; the unsent value is \
                 in the error"
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
            TryRecvError::Empty => EMPTY,
            TryRecvError::Closed => CLOSED_TO_RECEIVERS,
        })
    }
}

impl fmt::Display for RecvTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvTimeoutError::Timeout => RECEIVE_TIMED_OUT,
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

/// No value was received from a broadcast channel.
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
    /// The channel is empty now, and still open. Returned by `try_recv` only.
    Empty,
    /// The channel was empty until the deadline. Returned by `recv_timeout` and `recv_deadline`
    /// only.
    Timeout,
    /// This receiver was too slow, and this many values were dropped for it. The next receive
    /// returns the oldest value left.
    Lagged(u64),
    /// The channel is empty and closed.
    Closed,
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BroadcastError::Empty => f.write_str(EMPTY),
            BroadcastError::Timeout => f.write_str(RECEIVE_TIMED_OUT),
            BroadcastError::Lagged(lost) => write!(
                f,
                "the receiver was too slow and {lost} values were dropped for it; receive again \
                 for the oldest value left, or give the channel a larger capacity"
            ),
            BroadcastError::Closed => f.write_str(CLOSED_TO_RECEIVERS),
        }
    }
}

impl Error for BroadcastError {}
