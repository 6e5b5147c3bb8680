//! L2: fibers waiting to run.
//!
//! Every place where a runnable fiber can wait, started or not, movable or bound to a thread:
//!
//! | place | holds | who pushes | who pops |
//! |---|---|---|---|
//! | LIFO slot of a worker ([`local::Slot`]) | the fiber spawned or woken last | the worker's holder | the holder; a thief whose victim makes no progress |
//! | local queue of a worker ([`local::Ring`], and a list of fibers that must start there) | its other fibers | the holder; the list: any thread | the holder; thieves, except from the list |
//! | global queue ([`inject::Inject`]), with lists for fibers that compute much, for starts that were put off, and for starts that wait for a stack or a thread | fibers for any worker | any thread | any worker |
//! | slot of a thread (`sched/tenant.rs`) | the fiber that is bound to this thread, on its way to the worker that is there | the waker, or a worker that took it off a queue | that worker |
//! | stopped threads (`sched/freeze.rs`, `wanted`) | a thread in the middle of its fiber, which waits for a worker | that thread | any worker |
//!
//! Fairness: the LIFO slot gets a bounded number of turns in a row, and every so many dispatches
//! the global queue comes first (`sched/find.rs`).

pub(crate) mod inject;
pub(crate) mod local;
