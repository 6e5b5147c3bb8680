#![doc = include_str!("../README.md")]

// Modules in the order of layers, lowest first; `tests/layering.rs` checks their uses.

// L0: the kernel, one file a facility.
mod sys;

// L0: containers and locks that need no kernel.
mod util;

// L0: errors, one small type per operation.
mod error;

// L1: a fiber: its record, state word and stack, and the switch.
mod fiber;

// L2: epoll and io_uring.
mod driver;

// L2: every queue in which a runnable fiber can wait.
mod queue;

// L3: the scheduler: workers, carriers, preemption, timers, the monitor and the helper.
mod sched;

// L4: blocking and waking a fiber, the one primitive under everything that waits.
pub mod park;

// L5: the pool of threads for calls that block.
mod blocking;

// L5: the pool of threads for long computations.
mod compute;

// L5: channels between fibers and threads.
pub mod chan;

// L5: waiting for file descriptors, with pipes.
pub mod io;

// L5: TCP, UDP and Unix sockets.
pub mod net;

// L5: locks, semaphores and other synchronization.
pub mod sync;

// L5: sleeping, intervals and time limits.
pub mod time;

// L6: waiting for the first of several operations.
pub mod select;

// L6: spawning fibers, and what a fiber can do with itself.
pub mod task;

// L6: starting, using and shutting down a runtime.
pub mod runtime;

pub use error::{JoinError, NoRuntime, SpawnError, StartError};
pub use runtime::{Runtime, block_on};
pub use task::{JoinHandle, spawn};
