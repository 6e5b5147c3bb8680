//! The runtime's half of the monitor and of the helper.

pub(in crate::sched) mod helper;
pub(in crate::sched) mod monitor;
