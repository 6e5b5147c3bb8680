//! Channels: send values between fibers and threads.
//!
//! | | senders | receivers | each value goes to | when receivers fall behind |
//! |---|---|---|---|---|
//! | [`bounded`] | many | many | one receiver | senders block |
//! | [`unbounded`] | many | many | one receiver | memory grows |
//! | [`oneshot`](oneshot()) | one, once | one | the receiver | the value is kept |
//! | [`broadcast`](broadcast()) | many | many | every receiver | the oldest values are dropped |
//! | [`watch`](watch()) | many | many | every receiver, the latest only | the value is replaced |
//!
//! Prefer [`bounded`]: a sender that is faster than its receiver blocks, and this backpressure
//! reaches the code that feeds the sender. `bounded(0)` has no buffer: a send returns when a
//! receiver takes the value. [`unbounded`] is for senders that must not block and send a limited
//! number of values; the channel itself does not limit its memory.
//!
//! Blocking calls suspend the calling fiber, not its thread. On a plain thread they block the
//! thread. Fibers and threads may use the same channel. Every operation that could block is charged
//! to the fiber's budget, so two fibers that exchange values without ever blocking still let other
//! fibers run.
//!
//! *Order.* Waiting senders and waiting receivers are served first come, first served. Values of
//! one sender arrive in the order in which it sent them. A value goes directly to a waiting
//! receiver if there is one, and that receiver runs next if it belongs to the same worker.
//!
//! *Closing.* A channel closes when [`close`](Sender::close) is called on either side, or when the
//! last handle of one side is dropped. After that, sends fail and return their value. Receivers get
//! the values sent before, and then an error.
//!
//! *Cancellation.* A cancelled fiber, or a fiber past its [time limit](crate::time::timeout),
//! unwinds where it would have to block. A value that a receiver was given at that moment is not
//! lost: the call returns it, and the next call unwinds. A value that was not sent is dropped by
//! the unwinding.
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
//! drop(tx); // the workers have their own senders
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
mod notify;
mod oneshot;
mod watch;

pub use broadcast::{BroadcastReceiver, BroadcastSender, broadcast};
pub use error::{
    BroadcastError, RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError,
    TrySendError,
};
pub use iter::{BroadcastIter, WatchIter};
pub use mpmc::{IntoIter, Iter, Receiver, Sender, TryIter, bounded, unbounded};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
pub use watch::{Ref, WatchReceiver, WatchSender, watch};
