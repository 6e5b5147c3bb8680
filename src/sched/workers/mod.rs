//! Workers: what they run next, how they sleep, how many there are, and how a runtime ends.

pub(crate) mod context;
pub(in crate::sched) mod count;
pub(in crate::sched) mod find;
pub(in crate::sched) mod idle;
pub(crate) mod latency;
pub(in crate::sched) mod no_stack;
pub(in crate::sched) mod pace;
pub(in crate::sched) mod resize;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod shutdown;
pub(in crate::sched) mod sleep;
pub(crate) mod spawn;
pub(crate) mod worker;
