//! L2: fibers waiting to run.
//!
//! Every kind of place where a runnable fiber can wait, started or not, movable or bound to a
//! thread:
//!
//! | place | holds | who pushes | who pops |
//! |---|---|---|---|
//! | LIFO slot of a worker ([`local::Slot`]) | the fiber spawned or woken last | the worker's holder | the holder; a thief whose victim makes no progress |
//! | local queue of a worker ([`local::Queue`]: a ring for started and one for unstarted fibers; `assigned` and `own`, an inbox and a list of fibers that must start on this worker) | its other fibers | the holder; the inbox: any thread | the holder; thieves, except from inbox and list |
//! | global queue ([`global::Global`], with a lane for each reason to wait) | fibers for any worker | any thread | any worker; starts that get no thread for too long: the collector, which fails them |
//! | slot of a thread (`sched/tenant.rs`) | the fiber that is bound to this thread, on its way to the worker that is there | the waker, or a worker that took it off a queue | that worker, or a worker that leaves the thread; the pusher, if no worker is there |
//! | sets of stopped threads (`frozen` and `wanted`, `sched/freeze.rs`) | a thread in the middle of its fiber, which waits for a worker | that thread | any worker; the monitor, which lets frozen threads run for a moment (S9) |
//!
//! A worker that goes to another thread for the sake of a fiber carries that fiber in its `next`:
//! there it runs at once.
//!
//! Fairness: the LIFO slot gets a bounded number of turns in a row, and every so many dispatches
//! the global queue comes first (`sched/find.rs`).

pub(crate) mod global;
pub(crate) mod inject;
pub(crate) mod local;
