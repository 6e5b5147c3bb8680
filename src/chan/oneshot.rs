//! One-shot channels: one value from one sender to one receiver, such as a reply.
//!
//! A one-shot channel is a channel of capacity one. Sending consumes the sender.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Channel;
use super::error::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use super::mpmc::after;

/// Creates a channel for a single value, as `tokio::sync::oneshot` does. The send never blocks.
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

/// Sends one value. Dropping it without a send closes the channel.
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
/// assert!(rx.recv().is_err()); // there is only one value
/// ```
pub struct OneshotReceiver<T>(pub(crate) Arc<Channel<T>>);

impl<T> OneshotSender<T> {
    /// Sends the value without blocking. Never yields.
    ///
    /// # Errors
    /// If the receiver was dropped or closed; the error contains the value.
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

    /// Whether the receiver was dropped or closed, so that the value is not needed.
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
    /// Receives the value, blocking until it is sent.
    ///
    /// # Errors
    /// If the sender was dropped without a send, or the value was received before.
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

    /// Receives the value if it was sent. Never yields.
    ///
    /// # Errors
    /// If the value was not sent yet, never will be, or was received before.
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

    /// Receives the value, blocking for at most `timeout`.
    ///
    /// # Errors
    /// If the time has passed, or as for [`recv`](Self::recv).
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::oneshot::<u8>();
    /// assert!(rx.recv_timeout(std::time::Duration::from_millis(1)).is_err());
    /// ```
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| after(timeout))
    }

    /// Receives the value, blocking until `deadline` at most.
    ///
    /// # Errors
    /// If the time has passed, or as for [`recv`](Self::recv).
    ///
    /// ```
    /// let (_tx, mut rx) = indent::chan::oneshot::<u8>();
    /// assert!(rx.recv_deadline(std::time::Instant::now()).is_err());
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.0.receive(|| Some(deadline))
    }

    /// Closes the channel, so that a later send fails; returns false if it was closed already.
    ///
    /// A value sent before can still be received.
    ///
    /// ```
    /// let (tx, rx) = indent::chan::oneshot();
    /// rx.close();
    /// assert!(tx.send(1).is_err());
    /// ```
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Whether no further value can be sent.
    ///
    /// This is so once the sender has sent or was dropped, or after [`close`](Self::close). A value
    /// sent before may still be in the channel.
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
