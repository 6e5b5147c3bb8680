//! Waiting for the first of several things: [`select!`](crate::select!) for arms known when the program is written,
//! [`Select`] for arms known when it runs.
//!
//! ```
//! use indent::{chan, select};
//! use std::time::Duration;
//!
//! let (tx, numbers) = chan::bounded(1);
//! let (out, sink) = chan::bounded(1);
//! tx.send(7).unwrap();
//! sink.close(); // nobody will receive
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
//! | arm | fires when | gives |
//! |---|---|---|
//! | `recv(&receiver) -> value` | a value was received, or the channel is closed and drained | `Result<T, RecvError>`, or what the receiver's own `recv` gives |
//! | `send(&sender, value) -> sent` | the value was sent, or the channel is closed | `Result<(), SendError<T>>` |
//! | `send_from(&sender, &mut option) -> sent` | the same, for what is in the `Option` | the same |
//! | `join(handle) -> result` | the fiber is over | `Result<T, JoinError>`; the handle, a variable or a field, is moved |
//! | `finished(&handle)` | the fiber is over | `()`; a join will not block |
//! | `readable(&source) -> ready`, `writable(&source) -> ready` | the kernel says so | `io::Result<()>` |
//! | `after(duration)`, `at(instant)` | the time has come | `()` |
//! | `default` | nothing else can be done at once | |
//!
//! The part from the arrow on may be left out. After `=>` comes an expression and a comma, or a block. The value of
//! the expression of the arm that fires is the value of the `select!`.
//!
//! *One arm fires.* What the others would have done is not done: nothing was received from their channels, nothing
//! sent. A value in `send` is made before and dropped if another arm wins; with `send_from` it stays in its
//! `Option`, for the next time.
//!
//! *Fair.* Of several arms that could fire one is chosen at random. Arms that wait stand in the queues of their
//! channels like anybody else.
//!
//! *Absent arms never fire*: `recv(None)` of an `Option<&Receiver<T>>`, so with `option.as_ref()`, or
//! `option.as_mut()` for receivers of the other kinds; likewise `send`, `finished`, `readable` and `writable`, and `send_from` of an empty `Option`. If all arms are absent it
//! waits for ever, or until the fiber is asked to end.
//!
//! *A select is one operation that could block*: it is charged to the budget; a fiber that was asked to end, or is
//! past a time limit, unwinds where it would have to wait. With a `default` it never yields, and never unwinds.
//! On a plain thread the thread waits; for descriptors it looks again every some milliseconds, as nobody tells a
//! plain thread, and so does whoever is not the first to wait for a fiber's end.

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
