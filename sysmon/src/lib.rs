//! Watches the workers of a thread pool from two background threads.
//!
//! The crate knows nothing of what the workers run, nor of any runtime: it can watch any pool of
//! threads. A *worker* runs one piece of work after another; a *dispatch* is one such piece.
//!
//! The contract, in one page.
//!
//! **A worker** publishes in its [`Activity`] what it is doing and how many dispatches it has
//! begun: two words on every dispatch, and never a clock. It calls [`Activity::dispatch`] before a
//! piece of work, sets [`Phase::Scheduling`] while it looks for the next one (or calls `dispatch`
//! again at once), and sets [`Phase::Idle`] before it waits for work. A worker that was idle calls
//! [`Monitor::notice`] after it has published that it no longer is. An activity has one writer at a
//! time.
//!
//! **The worker's thread** can be queried if it has stored its number in a [`Thread`]: it
//! [enlists](Thread::enlist) itself before its first work and [leaves](Thread::leave) before it
//! ends. Then the monitor can distinguish a worker that computes from one that sleeps in a system
//! call, by CPU clock and kernel state. Without that, all workers are taken to compute.
//!
//! **The monitor** ([`Monitor`]) looks at all activities once a [tick](TICK) while any worker is
//! awake and compares them with its previous look. So it learns how long a dispatch has lasted at
//! no cost to the worker. [`Policy`], which is plain data, judges what it sees; the pool
//! ([`Pool`], which documents what is called when) decides what to do about it.
//!
//! The monitor must make progress when all other threads hang. So it follows the *monitor's
//! rules*: once started it never allocates, takes no lock, opens no file but those by which
//! [`Thread`] queries the kernel, formats nothing and starts no thread. The functions of [`Pool`]
//! that it calls must not do so either. Whatever needs such things is requested from
//!
//! **the helper** ([`Helper`]), a second thread that may block. No thread waits for it.
//!
//! While all workers are idle both threads sleep: an idle process makes no system call.
//!
//! A pool can react to a worker that overran in several ways: count it; set a flag that its work
//! checks; give its other work to another worker; or signal its thread ([`Thread::signal`]) and
//! have the handler copy the stack ([`frames::Snapshot`]), so that the helper can report where it
//! was. [`stalls`] does the last, ready to use in any program: start there to find out what holds
//! threads up. What a *suspended* stack may do is the other half of [`frames`].
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

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
