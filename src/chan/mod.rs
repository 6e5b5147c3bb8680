//! Channels: values from one fiber or thread to another.
//!
//! | | senders | receivers | who gets a value | if nobody receives |
//! |---|---|---|---|---|
//! | [`bounded`] | many | many | one | senders wait |
//! | [`unbounded`] | many | many | one | memory grows |
//! | [`oneshot`](oneshot()) | one, once | one | it | the value waits |
//! | [`broadcast`](broadcast()) | many | many | all | the oldest are dropped |
//! | [`watch`](watch()) | many | many | all, the latest only | it is replaced |
//!
//! Take [`bounded`]: a sender that is faster than its receiver waits, and so do those who wait for the sender.
//! `bounded(0)` has no room at all: a send ends when somebody receives. [`unbounded`] is the exception, for
//! senders that must not wait and are known to be few: nothing else keeps them from filling the memory.
//!
//! Everything here blocks the calling fiber and nobody else; on a plain thread it blocks the thread. Both may
//! use the same channel. Operations that could block are charged to the fiber's budget, so that a pair that never
//! has to wait still lets others run.
//!
//! *Order.* Whoever waits is served in the order in which they came. Values of one sender arrive in the order in
//! which it sent them. A value goes straight to a receiver that waits, which runs next if it lives on
//! the same thread.
//!
//! *Closing.* A channel is closed by [`close`](Sender::close) from either side, or when the last handle of
//! one side is dropped. Then nothing can be sent any more and senders get their values back; receivers get what
//! was sent before, and then an error.
//!
//! *Ends of waits.* A fiber that was asked to end, or is past a [time limit](crate::time::timeout), unwinds where
//! it would have to wait. A value that was handed over at that moment is not lost: the call
//! returns, and the next one unwinds. A value that was not sent is dropped by the unwinding.
//!
//! ```
//! use indent::chan;
//!
//! let (tx, rx) = chan::bounded(16);
//! let workers: Vec<_> = (0..4)
//!     .map(|worker| {
//!         let tx = tx.clone();
//!         indent::spawn(move || (0..100).for_each(|n| tx.send(worker * 100 + n).unwrap()))
//!     })
//!     .collect();
//! drop(tx); // the workers have their own
//! assert_eq!(rx.iter().sum::<i32>(), (0..400).sum());
//! # workers.into_iter().for_each(|worker| worker.join().unwrap());
//! ```

#[doc(hidden)]
pub mod arms;

mod broadcast;
mod buffer;
pub(crate) mod core;
mod error;
mod iter;
mod mpmc;
mod oneshot;
mod told;
mod watch;

pub use broadcast::{BroadcastReceiver, BroadcastSender, broadcast};
pub use error::{
    BroadcastError, RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError,
    TrySendError,
};
pub use iter::{BroadcastIter, WatchIter};
pub use mpmc::{IntoIter, Iter, Receiver, Sender, TryIter, bounded, unbounded};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
pub use watch::{Seen, WatchReceiver, WatchSender, watch};
