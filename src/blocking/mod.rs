#![expect(
    unsafe_code,
    reason = "passes closures to the pool; see `park::scoped`"
)]
//! Blocking calls on a pool of threads made for them.
//!
//! A call is a [scoped job](crate::park::scoped): the closure stays on the caller's stack and is
//! queued by a link in it, so a call allocates nothing. `pool.rs` has the threads, `sizing.rs`
//! decides how many run.

use crate::fiber::reason::ParkReason;
use crate::park::scoped;
use crate::sched::Shared;
use crate::sched::workers::service::Kind;

mod pool;
mod sizing;

pub(crate) use pool::{Pool, Stats};

/// Runs a closure on a thread that may block, while the calling fiber waits.
///
/// Use it for calls that block in the kernel (files, name look-ups, `wait`) or in a foreign
/// library. It corresponds to `tokio::task::spawn_blocking`, but waits for the closure, which may
/// therefore borrow from the caller.
///
/// The calling fiber parks until the closure has returned and cannot be cancelled meanwhile. On a
/// plain thread and inside another `blocking` call the closure is called in place. Inside
/// [`compute`](crate::runtime::compute) it is called in place, too, and occupies one of the few
/// compute threads while it blocks.
///
/// Threads are started on demand, at most
/// [`blocking_threads`](crate::runtime::Builder::blocking_threads) of them, and end after they have
/// been idle for [`blocking_keep_alive`](crate::runtime::Builder::blocking_keep_alive). Further
/// calls wait in a queue. If the system refuses a thread, the others serve the queue, and the pool
/// asks again later.
///
/// # Panics
/// A panic of the closure is resumed in the caller.
///
/// # Examples
/// ```
/// use indent::runtime;
///
/// let size = indent::spawn(|| {
///     let path = String::from("Cargo.toml"); // borrowed below
///     runtime::blocking(|| std::fs::metadata(&path).map(|file| file.len()))
/// });
/// assert!(size.join().unwrap().unwrap() > 0);
/// ```
///
/// The closure and its result cross threads, so both must be `Send`:
///
/// ```compile_fail
/// let local = std::rc::Rc::new(1);
/// indent::runtime::blocking(|| println!("{local}"));
/// ```
/// ```compile_fail
/// let local: std::rc::Rc<i32> = indent::runtime::blocking(|| std::rc::Rc::new(1));
/// ```
pub fn blocking<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    scoped::run_on_pool(f, ParkReason::Blocking, |shared, job| {
        // SAFETY: `run_on_pool` keeps it until it has run, and this is the one place it goes to.
        unsafe { shared.pool().push(job) };
    })
}

impl Shared {
    fn pool(&self) -> &Pool {
        self.services.get(Kind::Blocking, || Pool::new(self))
    }
}

/// Numbers of a runtime's pool.
pub(crate) fn stats(shared: &Shared) -> Stats {
    let pool: Option<&Pool> = shared.services.find(Kind::Blocking);
    pool.map_or_else(Stats::default, Pool::stats)
}
