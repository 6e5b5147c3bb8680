//! Watches the threads of a pool.
//!
//! So far: [`Slot`], what a worker publishes about itself. A worker writes two words on every
//! dispatch and never reads a clock; a watcher remembers when it first saw a value, and so learns
//! how long a dispatch has lasted without costing the worker anything.

mod slot;

pub use slot::{Phase, Slot};
