//! Waiting for the first of several operations.
//!
//! [`select!`](crate::select!) takes arms that are known at compile time, as Go's `select` does;
//! [`Select`] takes a list of arms built at run time.
//!
//! ```
//! use indent::{chan, select};
//! use std::time::Duration;
//!
//! let (tx, numbers) = chan::bounded(1);
//! let (out, sink) = chan::bounded(1);
//! tx.send(7).unwrap();
//! sink.close(); // sends fail from now on
//!
//! for _ in 0..10 {
//!     select! {
//!         recv(&numbers) -> number => { assert_eq!(number, Ok(7)); break }
//!         send(&out, 8) -> sent => assert!(sent.is_err()),
//!         after(Duration::from_secs(60)) => panic!("nothing happens"),
//!     }
//! }
//! ```
//!
//! # Arms
//!
//! | arm | fires when | output |
//! |---|---|---|
//! | `recv(&receiver) -> value` | a value was received, or the channel is closed | as of `recv` |
//! | `send(&sender, value) -> sent` | the value was sent, or the channel is closed | as of `send` |
//! | `send_from(&sender, &mut option) -> sent` | as `send`, if there is a value | as `send` |
//! | `join(handle) -> result` | the fiber has ended | `Result<T, JoinError>` |
//! | `finished(&handle)` | the fiber has ended, so a join will not block | `()` |
//! | `readable(&source) -> ready` | a read would not block | `io::Result<()>` |
//! | `writable(&source) -> ready` | a write would not block | `io::Result<()>` |
//! | `after(duration)`, `at(instant)` | the time has come | `()` |
//! | `default` | no other arm can fire at once | |
//!
//! The handle in `join` is a variable or a field; it is moved if that arm fires.
//!
//! The part `-> name` may be left out. After `=>` comes an expression and a comma, or a block. The
//! value of the expression of the arm that fires is the value of the `select!`.
//!
//! *One arm fires.* The operations of the other arms have no effect: nothing was received from
//! their channels, and nothing was sent. The value in `send` is evaluated first, and dropped if
//! another arm fires. With `send_from` the value stays in its `Option`, for the next select.
//!
//! *Fair.* If several arms can fire, one is chosen at random. Waiting arms stand in the queues of
//! their channels like other waiters, first come, first served.
//!
//! *Absent arms never fire.* `recv` of a `None` is absent: it takes an `Option<&Receiver<T>>`, for
//! example `option.as_ref()`, or `option.as_mut()` for the other kinds of receivers. The same holds
//! for `send`, `finished`, `readable` and `writable`, and for `send_from` of an empty `Option`. If
//! all arms are absent, the select blocks forever, or until the fiber is cancelled.
//!
//! *A select is one operation that could block.* It is charged to the fiber's budget. A cancelled
//! fiber, or a fiber past its time limit, unwinds where it would have to block. With a `default`
//! arm a select never yields and never unwinds.
//!
//! *On a plain thread* a select blocks the thread. For file descriptors, which do not notify plain
//! threads, it then polls every few milliseconds. Any select also polls for the end of a fiber that
//! has a waiter already.

mod arms;
mod builder;
mod macros;

#[doc(hidden)]
pub use crate::park::select::{ArmRef, Fires};
#[doc(hidden)]
pub use arms::{
    FinishedArm, ReadinessArm, TimerArm, at, finished, in_time, join_arm, now_or_never, readable,
    recv, send, wait, writable,
};
pub use arms::{RecvFrom, SendTo};
pub use builder::{Fired, Select, Token};
