#![expect(unsafe_code, reason = "lends closures to the pool; see `lend`")]
//! Calls that block the thread, on threads made for that.
//!
//! The closure stays on the caller's stack ([`lend`](crate::park::lend)) and is queued by a link in
//! it: a call allocates nothing. `pool.rs` has the threads, `crew.rs` says how many are awake.

use crate::fiber::reason::ParkReason;
use crate::park::lend;
use crate::sched::Shared;
use crate::sched::service::Kind;

mod crew;
mod pool;

pub(crate) use pool::{Pool, Stats};

/// Runs the closure on a thread that may block, while the calling fiber is parked: for calls that
/// wait in the kernel (files, name look-ups, `wait`) or in a library of another language.
///
/// The closure may borrow from the caller, who does not leave before it is done, and cannot be
/// cancelled meanwhile. A panic in it goes on in the caller. On a plain thread, and inside another
/// `blocking` call, it is simply called; inside `compute` as well, where it keeps a thread that computes
/// from its work.
///
/// Threads are made as they are needed, as many as
/// [`blocking_threads`](crate::runtime::Builder::blocking_threads) at most, and end when they have had nothing to
/// do for a while. Further calls wait in a queue. If the system refuses a thread, the others serve
/// the queue, and a new one is asked for again later.
///
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
/// What it borrows and returns crosses threads:
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
    lend::lend(f, ParkReason::Blocking, |shared, loan| {
        // SAFETY: `lend` keeps it until it has run, and here is the one place it goes to.
        unsafe { shared.pool().push(loan) };
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
