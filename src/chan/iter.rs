//! Iterators over the values of broadcast and watch channels.

use std::fmt;
use std::iter::FusedIterator;

use super::broadcast::BroadcastReceiver;
use super::error::BroadcastError;
use super::watch::{Ref, WatchReceiver};

/// Iterator that receives until the channel is closed: see [`BroadcastReceiver::iter`].
///
/// ```
/// let (tx, mut rx) = indent::chan::broadcast(2);
/// tx.send(1).unwrap();
/// drop(tx);
/// for value in &mut rx {
///     assert_eq!(value, Ok(1));
/// }
/// ```
#[derive(Debug)]
pub struct BroadcastIter<'a, T>(pub(super) &'a mut BroadcastReceiver<T>);

impl<T: Clone> Iterator for BroadcastIter<'_, T> {
    type Item = Result<T, BroadcastError>;

    fn next(&mut self) -> Option<Self::Item> {
        let received = self.0.recv();
        (received.as_ref().err() != Some(&BroadcastError::Closed)).then_some(received)
    }
}

impl<T: Clone> FusedIterator for BroadcastIter<'_, T> {}

impl<'a, T: Clone> IntoIterator for &'a mut BroadcastReceiver<T> {
    type Item = Result<T, BroadcastError>;
    type IntoIter = BroadcastIter<'a, T>;

    fn into_iter(self) -> BroadcastIter<'a, T> {
        self.iter()
    }
}

/// Iterator that receives until the channel is closed: see [`WatchReceiver::iter`].
///
/// ```
/// let (tx, mut rx) = indent::chan::watch(0);
/// tx.send(1).unwrap();
/// drop(tx);
/// for value in &mut rx {
///     assert_eq!(*value, 1);
/// }
/// ```
pub struct WatchIter<'a, T>(pub(super) &'a mut WatchReceiver<T>);

impl<T> Iterator for WatchIter<'_, T> {
    type Item = Ref<T>;

    fn next(&mut self) -> Option<Ref<T>> {
        self.0.recv().ok()
    }
}

impl<T> FusedIterator for WatchIter<'_, T> {}

impl<'a, T> IntoIterator for &'a mut WatchReceiver<T> {
    type Item = Ref<T>;
    type IntoIter = WatchIter<'a, T>;

    fn into_iter(self) -> WatchIter<'a, T> {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchIter").field(&self.0).finish()
    }
}
