//! L2: the places where a runnable fiber can wait.
//!
//! Every kind of place, for fibers started or not, movable or bound to a thread. *Holder* is the
//! thread that holds the worker.
//!
//! ```text
//!     place               holds                        pushed by            popped by
//! 1   LIFO slot           fiber spawned or woken last  holder               holder, thieves (a)
//! 2   local queue         the worker's other fibers    holder               holder, thieves
//! 3   assigned, own       fibers that must start on    any thread           holder
//!                         this worker
//! 4   global queue        fibers for any worker        any thread           any worker (b)
//! 5   slot of a thread    the fiber bound to this      waker, or worker     the worker there (d)
//!                         thread, on its way (c)       that popped it
//! 6   frozen, wanted      a thread stopped in the      that thread          any worker (e)
//!                         middle of its fiber
//! ```
//!
//! 1. [`local::LifoSlot`], one a worker. (a) A thief takes from it only if the victim makes no
//!    progress.
//! 2. [`local::Queue`], one a worker: a ring buffer for started fibers, one for unstarted fibers.
//! 3. An inbox (`assigned`) and a list (`own`) of each worker (`sched/workers/worker.rs`). Thieves
//!    take from neither.
//! 4. [`global::Global`], with one lane for each reason to wait. (b) Except for starts that get no
//!    thread for too long: the collector takes those, and fails them.
//! 5. `sched/threads/tenant.rs`. (c) On its way to the worker that is on that thread. (d) Or a
//!    worker that leaves the thread; or the pusher, if no worker is there.
//! 6. Sets of stopped threads (`sched/preempt/freeze.rs`), which wait for a worker. (e) And the
//!    monitor, which lets frozen threads run for a moment (S9).
//!
//! A worker that moves to another thread for the sake of a fiber carries that fiber in its `next`:
//! the fiber runs there at once.
//!
//! Fairness: the LIFO slot gets a bounded number of turns in a row, and every so many dispatches
//! the global queue comes first (`sched/workers/find.rs`).

pub(crate) mod global;
pub(crate) mod lane;
pub(crate) mod local;
