//! L1: one fiber. It knows no scheduler: who runs it, and where, is decided above.
//!
//! - `record`: what there is of a fiber from spawn to the last handle's end
//! - `slab`: where records come from, and how all of them are listed
//! - `job`: the closure and, later, its result, inside the record
//! - `state`: the state word
//! - `limits`: the time limits a fiber is in
//! - `locals`: the thread-locals of a fiber, exchanged when it is switched in and out
//! - `stack`: slabs of stacks, guards, pools
//! - `switch`: corosensei behind `resume` and `suspend`
//! - `overflow`: what a touched guard prints

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
