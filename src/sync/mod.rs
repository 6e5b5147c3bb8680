//! Locks and other ways to wait for each other, for fibers and plain threads alike.
//!
//! A fiber that waits lets others run; a plain thread blocks. Fibers and threads may wait for each other. Who waits is
//! served in the order in which they came ([`Mutex`] says when not), and everything that could wait
//!
//! - has a sibling with `_timeout` in its name ([`LazyLock`], as `std`'s, has none), and heeds
//!   [`time::timeout`](crate::time::timeout);
//! - unwinds if the fiber was asked to end. What was handed to it that very moment is not lost: it gets it, and is told
//!   to end by the next call that blocks;
//! - is charged to the fiber's budget, also when it does not have to wait. (What was made or done once is free.)
//!
//! What lets others go on (guards that are dropped, `notify_one`, `set`, `add_permits`) never waits and never yields, and
//! may be called from anywhere. Guards and permits may be dropped on another thread than the one they were taken on.
//!
//! # Which one, and why not `std`'s
//!
//! [`std::sync::Mutex`] works in a fiber. A section of some instructions, with nothing inside that blocks, is as well
//! served by it: if it is contended the *thread* sleeps in the kernel, and the runtime takes its worker
//! away after a millisecond or less. Whoever holds a `std` guard keeps his thread, too: it is not [`Send`], a fiber
//! with one on its stack when it waits may not change threads, and if it is stopped in the middle of its section every
//! thread that wants the lock sleeps until it goes on.
//!
//! A lock of this module costs about the same when it is free. While it is held, others wait as fibers: a switch instead of
//! a sleeping thread, and their worker goes on. So use these when the section may block (I/O, a channel, another
//! lock), is long, or is much wanted; when waiting needs a deadline or must be able to end; and wherever
//! fibers wait for events rather than for a moment. For a handful of instructions on a hot path there is [`SpinLock`].
//!
//! | for | |
//! |---|---|
//! | one at a time | [`Mutex`], with [`Condvar`] to wait for a change |
//! | many who read | [`RwLock`] |
//! | so many at a time, weights | [`Semaphore`] |
//! | it has happened | [`Event`]; for one of those who wait: [`Notify`] |
//! | all are done | [`WaitGroup`]; all have come: [`Barrier`] |
//! | only once | [`Once`], [`OnceLock`], [`LazyLock`] |

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

/// What locks return, as `std`'s do: its own types.
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
