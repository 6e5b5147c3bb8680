//! L2: what a worker waits for besides other fibers, turned into fibers that are ready.
//!
//! - `wheel`: deadlines, as plain data
//! - `epoll`: descriptors
//!
//! Nothing here calls the scheduler: it hands out what is due, and the caller wakes.

pub(crate) mod epoll;
pub(crate) mod wheel;
