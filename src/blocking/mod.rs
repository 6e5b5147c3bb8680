#![expect(unsafe_code, reason = "lends closures to the pool; see `lend`")]
//! Calls that block the thread, on threads made for that.
//!
//! The closure stays on the caller's stack ([`lend`](crate::park::lend)) and is queued by a link in
//! it: a call allocates nothing. `pool.rs` has the threads, `crew.rs` says how many are awake.

use std::time::Duration;

use crate::fiber::reason::ParkReason;
use crate::park::lend;
use crate::sched::service::{Kind, Service};
use crate::sched::{Shared, block, context};

mod crew;
mod pool;

pub(crate) use pool::{Pool, Stats};

/// Runs the closure on a thread that may block, while the calling fiber is parked: for calls that
/// wait in the kernel (files, name look-ups, `wait`) or in a library of another language.
///
/// The closure may borrow from the caller, who does not leave before it is done, and cannot be
/// cancelled meanwhile. A panic in it goes on in the caller. On a plain thread, and inside another
/// `blocking` call, it is simply called.
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
    if context::current_fiber().is_none() {
        return f();
    }
    lend::lend(f, ParkReason::Blocking, |loan| {
        // SAFETY: `lend` keeps it until it has run, and the pool runs it once.
        let stranded = with_pool(|pool| unsafe { pool.push(loan) });
        if stranded {
            wait_for_a_thread();
        }
    })
}

/// Calls `f` with the pool of the calling fiber's runtime, mark up; true if the pool has jobs but
/// no thread, and nobody else sees to that.
fn with_pool(f: impl FnOnce(&Pool)) -> bool {
    let here = context::here().expect("on the same fiber");
    here.marked(|shared| {
        let pool = shared.services.get(Kind::Blocking, || Pool::new(shared));
        f(pool);
        pool.is_stranded() && !shared.tend_soon()
    })
}

/// How long a fiber naps between two looks whether a thread can be had.
const NAP: Duration = Duration::from_micros(100);

/// The system refuses the first thread. Without one nobody would ever wake us, so we stay awake.
#[cold]
fn wait_for_a_thread() {
    loop {
        block::give_way();
        std::thread::sleep(NAP);
        let retry = |pool: &Pool| {
            let _looked_at_below = pool.tend();
        };
        if !with_pool(retry) {
            return;
        }
    }
}

/// Numbers of a runtime's pool.
pub(crate) fn stats(shared: &Shared) -> Stats {
    let pool: Option<&Pool> = shared.services.find(Kind::Blocking);
    pool.map_or_else(Stats::default, Pool::stats)
}
