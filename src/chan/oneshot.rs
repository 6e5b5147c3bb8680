//! One value, once: the answer to a question.
//!
//! It is a channel with room for one, of which each side is used up by its one operation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Channel;
use super::error::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use super::mpmc::after;

/// A channel for one value. Sending it never waits.
///
/// ```
/// use indent::chan;
///
/// let (tx, mut rx) = chan::oneshot();
/// indent::spawn(move || tx.send("the answer").unwrap()).join().unwrap();
/// assert_eq!(rx.recv(), Ok("the answer"));
/// ```
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let channel = Arc::new(Channel::new(Some(1)));
    (OneshotSender(channel.clone()), OneshotReceiver(channel))
}

/// Sends one value; dropped without that, the receiver is told.
///
/// ```
/// let (tx, mut rx) = indent::chan::oneshot::<u8>();
/// drop(tx);
/// assert!(rx.recv().is_err());
/// ```
pub struct OneshotSender<T>(Arc<Channel<T>>);

/// Receives one value.
///
/// ```
/// let (tx, mut rx) = indent::chan::oneshot();
/// tx.send(1).unwrap();
/// assert_eq!(rx.recv(), Ok(1));
/// assert!(rx.recv().is_err()); // there is no other
/// ```
pub struct OneshotReceiver<T>(pub(crate) Arc<Channel<T>>);

impl<T> OneshotSender<T> {
    /// Sends the value, without a wait. It comes back if the receiver is gone. Never yields.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::oneshot();
    /// drop(rx);
    /// assert_eq!(tx.send(1).unwrap_err().into_inner(), 1);
    /// ```
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        let sent = self.0.try_send(value);
        sent.map_err(|error| SendError(error.into_inner()))
    }

    /// Whether nobody wants the value any more: no need to make it.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::oneshot::<u8>();
    /// assert!(!tx.is_closed());
    /// drop(rx);
    /// assert!(tx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl<T> OneshotReceiver<T> {
    /// Receives the value, and waits for it. An error: the sender is gone, or it was received.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::oneshot();
    /// let fiber = indent::spawn(move || rx.recv());
    /// tx.send(1).unwrap();
    /// assert_eq!(fiber.join().unwrap(), Ok(1));
    /// ```
    pub fn recv(&mut self) -> Result<T, RecvError> {
        self.0.receive(|| None).map_err(|_| RecvError)
    }

    /// Receives it if that needs no wait. Never yields.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::oneshot();
    /// assert!(rx.try_recv().is_err());
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.try_recv(), Ok(1));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_receive()
    }

    /// Receives it, and waits for it for at most this long.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::oneshot::<u8>();
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| after(timeout))
    }

    /// Receives it, and waits for it until this time at most.
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::oneshot::<u8>();
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| Some(deadline))
    }

    /// Says that the value is not wanted any more. What was sent before can still be received.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::oneshot();
    /// rx.close();
    /// assert!(tx.send(1).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Whether nothing will be sent any more: it was, or the sender is gone, or this was [closed](Self::close).
    /// What was sent may not have been received yet.
    ///
    /// ```
    /// let (tx, mut rx) = indent::chan::oneshot();
    /// assert!(!rx.is_closed());
    /// tx.send(1).unwrap();
    /// assert!(rx.is_closed());
    /// assert_eq!(rx.recv(), Ok(1));
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        self.0.drop_sender();
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        self.0.drop_receiver();
    }
}

impl<T> fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneshotSender")
    }
}

impl<T> fmt::Debug for OneshotReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneshotReceiver")
    }
}
