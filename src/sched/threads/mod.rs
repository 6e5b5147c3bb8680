//! Carriers: the threads that run fibers, which worker each holds, and which fiber is bound to
//! which.

pub(in crate::sched) mod admission;
pub(in crate::sched) mod by_number;
pub(crate) mod carrier;
pub(in crate::sched) mod owner;
pub(crate) mod plain;
pub(crate) mod retire;
pub(crate) mod start;
pub(in crate::sched) mod table;
pub(in crate::sched) mod tenant;
