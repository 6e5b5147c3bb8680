//! L1: one fiber. Knows no scheduler: the layers above decide which thread runs it, and when.
//!
//! - `record`: the data of a fiber from spawn to the drop of the last handle
//! - `slab`: where records come from, and how all of them are listed
//! - `job`: the closure and, later, its result, inside the record
//! - `state`: the state word
//! - `limits`: the time limits a fiber is in
//! - `locals`: the thread-locals of a fiber, exchanged when it is switched in and out
//! - `stack`: slabs of stacks, guards, pools
//! - `switch`: corosensei behind `resume` and `suspend`
//! - `overflow`: the report when a guard is touched

pub(crate) mod job;
pub(crate) mod limits;
pub(crate) mod locals;
pub(crate) mod overflow;
pub(crate) mod reason;
pub(crate) mod record;
pub(crate) mod slab;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod switch;

pub(crate) use record::{FiberRef, Held, Record};
