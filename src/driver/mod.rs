//! L2: what a worker waits for besides other fibers, turned into fibers that are ready.
//!
//! - `wheel`: deadlines, as plain data
//!
//! Nothing here calls the scheduler: it hands out what is due, and the caller wakes.

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "no worker has a wheel of its own yet")
)]
pub(crate) mod wheel;
