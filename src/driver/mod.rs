//! L2: what a worker waits for besides other fibers, turned into fibers that are ready.
//!
//! - `wheel`: deadlines, as plain data
//! - `epoll`: descriptors that become ready
//! - `uring`: requests that are completed
//!
//! Nothing here calls the scheduler: it hands out what is due, and the caller wakes.

pub(crate) mod epoll;
pub(crate) mod uring;
pub(crate) mod wheel;
