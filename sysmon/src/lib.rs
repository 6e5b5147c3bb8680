//! Watches the workers of a pool, from two threads beside them.
//!
//! It knows nothing of what the workers run, nor of any runtime: any pool of threads can be watched.
//! A *worker* is whoever takes one piece of work after the other; a *dispatch* is one such piece.
//!
//! The contract, in one page.
//!
//! **A worker** publishes in its [`Activity`] what it is doing and how often it has begun something new: two
//! words on every dispatch, and never a clock. It says [`Activity::dispatch`] before a piece of work,
//! [`Phase::Scheduling`] when it looks for the next one (or says at once `dispatch` again), and
//! [`Phase::Idle`] before it waits for work. One that was idle calls [`Monitor::notice`] after it has
//! published that it is not. A slot has one writer at a time.
//!
//! **Its thread** can be asked about if it has left its number in a [`Thread`]: it
//! [enlists](Thread::enlist) itself before its first work and [leaves](Thread::leave) before it ends.
//! Then the monitor tells a worker that computes from one that sleeps in a system call, by CPU clock
//! and kernel state. Without that all are taken to compute.
//!
//! **The monitor** ([`Monitor`]) looks at all slots once a [tick](TICK) while any worker is awake,
//! remembers what it saw the last time, and so learns how long a dispatch has lasted without costing
//! the worker anything. What it thinks of it is decided by [`Policy`], which is plain data; what is done
//! about it is up to the pool ([`Pool`], which says what is called when).
//!
//! The monitor is the thread that must go on when all others hang, so it keeps a law: once started
//! it never allocates, takes no lock, opens no file but those by which [`Thread`] asks the kernel,
//! formats nothing and starts no thread; neither may the functions of [`Pool`] that it calls. What
//! does need such things is asked of
//!
//! **the helper** ([`Helper`]), a second thread that may block, and nobody waits for it.
//!
//! While all workers are idle both threads sleep: an idle process makes no system call.
//!
//! What a pool may do about a worker that overran: count it; set a flag that its work looks at; give
//! its other work to somebody else; or signal its thread ([`Thread::signal`]) and have the handler copy
//! the stack ([`frames::Snapshot`]), so that the helper can tell where it was. [`stalls`] does the
//! last, ready to use in any program: who only wants to know what holds its threads up starts there.
//! What a *suspended* stack may do is the other half of [`frames`].
//!
//! For Linux on x86_64.
//!
//! ```
//! use indent_sysmon::{Monitor, Phase, Pool, Activity};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use std::time::{Duration, Instant};
//!
//! struct One {
//!     activity: Activity,
//!     overran: AtomicU64,
//! }
//!
//! impl Pool for One {
//!     fn workers(&self) -> usize {
//!         1
//!     }
//!     fn activity(&self, _: usize) -> &Activity {
//!         &self.activity
//!     }
//!     fn overran(&self, _: usize, _dispatch: u64) {
//!         self.overran.fetch_add(1, Relaxed);
//!     }
//! }
//!
//! let pool = Arc::new(One { activity: Activity::new(), overran: AtomicU64::new(0) });
//! let monitor = Monitor::start("watch", 1, pool.clone())?;
//! pool.activity.dispatch(); // the worker begins something, and takes its time
//! monitor.notice();
//! while pool.overran.load(Relaxed) == 0 {
//!     std::thread::sleep(Duration::from_millis(1));
//! }
//! pool.activity.set_phase(Phase::Idle);
//! monitor.stop();
//! assert!(pool.activity.busy() > Duration::ZERO);
//! # Ok::<(), std::io::Error>(())
//! ```

mod activity;
mod background_thread;
pub mod frames;
mod helper;
mod monitor;
mod monitor_sleep;
pub mod names;
mod policy;
pub mod stalls;
pub mod symbols;
mod system_call;
mod thread;
pub mod thread_locals;

pub use activity::{Activity, Phase};
pub use helper::{Chores, Helper};
pub use monitor::{Monitor, Pool, TICK};
pub use policy::{GRACE, Judgement, Look, Policy, Rest, Waiting};
pub use system_call::SystemCall;
pub use thread::{Thread, ThreadState, be_prompt, own_stack};

/// So that the README's example is tried.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
