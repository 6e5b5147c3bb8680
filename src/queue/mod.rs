//! L2: fibers waiting to run.
//!
//! | queue | holds | who pushes | who pops |
//! |---|---|---|---|
//! | LIFO slot ([`local::Slot`]) | the unstarted fiber spawned last | the worker's holder | the holder; a thief whose victim does not get on |
//! | ring ([`local::Ring`]) | unstarted fibers | the holder | the holder, thieves |
//! | [`inject::Inject`] | unstarted fibers of all | anyone | any worker |
//! | home queue (`sched/carrier.rs`) | started fibers of one carrier | that carrier; others through its inbox | that carrier |
//!
//! Fairness: started and unstarted fibers take turns, the LIFO slot gets a bounded number of turns
//! in a row, and every so many dispatches the shared queue comes first (`sched/find.rs`).

pub(crate) mod inject;
pub(crate) mod local;
