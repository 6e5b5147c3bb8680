//! Watches the workers of a pool, from two threads beside them.
//!
//! The contract, in one page. A worker publishes what it is doing and how often it has begun
//! something new ([`Slot`]); it writes two words on every dispatch and never reads a clock. The
//! *monitor* ([`Monitor`]) looks at all slots once a tick while any worker is awake, remembers what
//! it saw the last time, and so learns how long a dispatch has lasted without costing the worker
//! anything. What it thinks of it is decided by [`Policy`], which is plain data; what is done about
//! it is up to the pool ([`Pool`]).
//!
//! The monitor is the thread that must go on when all others hang, so it keeps a law: once started
//! it never allocates, takes no lock, opens no file, formats nothing and starts no thread; neither
//! may the functions of [`Pool`] that it calls. Whatever does need such things is asked of the
//! *helper* ([`Helper`]), a second thread that may block, and nobody waits for it.
//!
//! While all workers sleep both threads sleep too: an idle process makes no system call. A worker
//! that wakes up says so with [`Monitor::notice`].
//!
//! ```
//! use indent_sysmon::{Monitor, Phase, Pool, Slot};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use std::time::{Duration, Instant};
//!
//! struct One {
//!     slot: Slot,
//!     overran: AtomicU64,
//! }
//!
//! impl Pool for One {
//!     fn workers(&self) -> usize {
//!         1
//!     }
//!     fn slot(&self, _: usize) -> &Slot {
//!         &self.slot
//!     }
//!     fn overran(&self, _: usize, _dispatch: u64) {
//!         self.overran.fetch_add(1, Relaxed);
//!     }
//! }
//!
//! let pool = Arc::new(One { slot: Slot::new(), overran: AtomicU64::new(0) });
//! let monitor = Monitor::start("watch", 1, pool.clone())?;
//! pool.slot.dispatch(); // the worker begins something, and takes its time
//! monitor.notice();
//! while pool.overran.load(Relaxed) == 0 {
//!     std::thread::sleep(Duration::from_millis(1));
//! }
//! pool.slot.set_phase(Phase::Idle);
//! monitor.stop();
//! assert!(pool.slot.busy() > Duration::ZERO);
//! # Ok::<(), std::io::Error>(())
//! ```

mod companion;
pub mod frames;
mod helper;
mod monitor;
mod policy;
mod slot;
mod thread;
mod vigil;

pub use helper::{Chores, Helper};
pub use monitor::{Monitor, Pool, TICK};
pub use policy::{GRACE, Judgement, Look, Policy, Rest, Waiting};
pub use slot::{Phase, Slot};
pub use thread::{Thread, ThreadState};
