//! Preemption: interrupting, freezing, leaving in place, detaching, and the order of turns.

pub(in crate::sched) mod anywhere;
pub(in crate::sched) mod class;
pub(in crate::sched) mod detach;
pub(in crate::sched) mod freeze;
pub(crate) mod in_place;
pub(in crate::sched) mod interrupt;
pub(in crate::sched) mod make_room;
pub(in crate::sched) mod slices;
