//! Reports: fibers that compute for long, and what every fiber waits for.

pub(in crate::sched) mod dump;
pub(crate) mod overrun;
