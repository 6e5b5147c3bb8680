//! The fiber's side of blocking: park, yield, wake, deadlines, and the limits on unwinding.

pub(crate) mod suspend;
pub(crate) mod time_limit;
pub(in crate::sched) mod timers;
pub(crate) mod unwind_backoff;
pub(in crate::sched) mod unwind_limit;
pub(crate) mod wake;
