//! Locks and other synchronization, for fibers and plain threads alike.
//!
//! A waiting fiber is suspended and lets others run; a waiting plain thread is blocked. Fibers and
//! threads may wait for each other. Waiters are served first come, first served, except where
//! [`Mutex`] says otherwise. Every operation that could block
//!
//! - has a sibling with `_timeout` in its name (not [`LazyLock`], as in `std`), and obeys
//!   [`time::timeout`](crate::time::timeout);
//! - unwinds if the fiber is cancelled. What a waiter was handed at that moment is not lost: the
//!   call returns it, and the next call that blocks unwinds;
//! - is charged to the fiber's budget, even if it does not have to wait. (A completed
//!   [`Once`] and an initialized cell are free.)
//!
//! Operations that let others proceed (dropping a guard, `notify_one`, `set`, `add_permits`) never
//! block and never yield, and may be called from anywhere. Guards and permits may be dropped on
//! another thread than the one they were taken on.
//!
//! # Which one, and why not `std`'s
//!
//! [`std::sync::Mutex`] works in a fiber. It serves a critical section of some instructions,
//! without blocking calls inside, just as well. If it is contended, the *thread* sleeps in the
//! kernel, and the runtime takes the worker away from that thread after a millisecond or less. A
//! fiber that holds a `std` guard also keeps its thread: the guard is not [`Send`], so the fiber
//! cannot move to another thread while it waits with the guard on its stack. And if the fiber is
//! preempted inside its section, every thread that wants the lock sleeps until the fiber continues.
//!
//! A lock of this module costs about the same when it is free. While it is held, others wait as
//! fibers: a switch of fibers instead of a sleeping thread, and their worker continues. So use
//! these locks when the section may block (I/O, a channel, another lock), is long, or is contended;
//! when waiting needs a deadline or cancellation; and wherever fibers wait for events rather than
//! for a moment. For a few instructions on a hot path there is [`SpinLock`].
//!
//! | to | use |
//! |---|---|
//! | exclude others | [`Mutex`], with [`Condvar`] to wait for a change |
//! | allow many readers or one writer | [`RwLock`] |
//! | limit how many run at a time | [`Semaphore`] |
//! | wait until something has happened | [`Event`]; to notify one waiter: [`Notify`] |
//! | wait until all are done | [`WaitGroup`]; until all have arrived: [`Barrier`] |
//! | run or initialize once | [`Once`], [`OnceLock`], [`LazyLock`] |

mod barrier;
mod condvar;
mod event;
mod mutex;
mod once;
mod once_lock;
pub(crate) mod queue;
mod raw_mutex;
mod raw_rwlock;
mod raw_semaphore;
mod rwlock;
mod semaphore;
mod spin;
mod tickets;
mod wait_group;

/// The types that locks return, which are those of `std`.
pub use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use event::{Event, Notify};
pub use mutex::{Mutex, MutexGuard};
pub use once::{Once, OnceState};
pub use once_lock::{LazyLock, OnceLock};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{
    AcquireError, OwnedSemaphorePermit, Permit, Semaphore, SemaphorePermit, TryAcquireError,
};
pub use spin::{SpinLock, SpinLockGuard};
pub use wait_group::{Member, WaitGroup};
