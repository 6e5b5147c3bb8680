//! Many ways to hold something over a park, and the runtime's right verdict on each.
//!
//! A *body* is an ordinary function that runs as a fiber's body: it takes hold of something, parks
//! by [`Probe::park`], checks what it holds and returns whether all was right. [`bodies::all`] is
//! the table of them, each with the verdict ([`Mobility`]) that its frames deserve in every build
//! profile. The table has three uses:
//!
//! - `tests/table.rs` builds the program `table` in several profiles, which runs every body once
//!   and prints its verdict, and compares it with the expected one;
//! - `tests/moving.rs` runs the program `moving`: thousands of fibers with these bodies while
//!   workers are handed from carrier to carrier; every body must find its values right;
//! - `service` and `pipeline` are programs of ordinary size whose parks are counted by verdict.
//!
//! A rule for bodies: a body is reached through a pointer alone ([`Body::run`]), so that no frame
//! of its fiber but its own refers to it or to any other body. It gets everything it needs from
//! outside through memory, from the probe ([`Kit`]).
//!
//! [`Mobility`]: noted::Mobility

pub mod bodies;
pub mod crowd;
pub mod noted;
pub mod probe;
pub mod statistics;

pub use bodies::{Body, Expected, Profile};
pub use probe::{Kit, Probe};
