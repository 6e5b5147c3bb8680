#![expect(unsafe_code, reason = "lends closures to threads of rayon; see `lend`")]
//! Long computations, on as many threads as there are workers.
//!
//! The threads are a pool of rayon's, so that its iterators and joins inside a closure spread over the
//! same threads, and all closures together use no more CPUs than there are. The closure stays on the
//! caller's stack ([`lend`](crate::park::lend)).
//!
//! A pool has a fixed number of threads. When another number is wanted, the next call builds a new
//! pool, and the old one ends by itself when its jobs are done: dropping it waits for nobody. If the
//! system refuses threads, a smaller pool will do, for a while; if it refuses all, the closure is run
//! like a call that blocks.
//!
//! The threads give way to workers: they are nicer (`nice`), so that a worker that wakes runs at once
//! even if it has used more than an even share of late. Rejected after measuring (`benches/compute.rs`,
//! DESIGN §9): `SCHED_BATCH` and longer or shorter slices change nothing, `SCHED_IDLE` starves the
//! computation when workers are busy.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use rayon_core::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use crate::base::loom::{Mutex, lock};
use crate::base::os;
use crate::blocking;
use crate::error::AbortOnUnwind;
use crate::fiber::reason::ParkReason;
use crate::park::lend::{self, Loan};
use crate::sched::service::{Kind, Service};
use crate::sched::shutdown::Patience;
use crate::sched::{Shared, context, shutdown};

/// How much nicer than the others a thread that computes is: beside workers that are busy all the time
/// it gets a tenth of a CPU, and when they are not, it hardly notices.
const NICER: i32 = 10;
/// When to try again for threads that the system refused.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the closure on a thread that is there for computing, while the calling fiber is parked: for
/// what keeps a CPU busy for more than a moment.
///
/// There are as many such threads as workers (see
/// [`compute_threads`](crate::runtime::Builder::compute_threads)); further calls wait in a queue. The threads are a
/// pool of rayon's: parallel iterators, `join` and `scope` inside the closure use them.
///
/// The closure may borrow from the caller, who does not leave before it is done, and cannot be
/// cancelled meanwhile. A panic in it goes on in the caller. On a plain thread, and inside another
/// `compute` call, it is simply called.
///
/// The threads have a higher nice value than the rest of the runtime: they give way to fibers that
/// have something to do, and get a tenth of the time if those always have.
///
/// ```
/// use indent::runtime;
///
/// let sum = indent::spawn(|| {
///     let numbers: Vec<u64> = (1..=1000).collect(); // borrowed below
///     runtime::compute(|| numbers.iter().sum::<u64>())
/// });
/// assert_eq!(sum.join().unwrap(), 500_500);
/// ```
///
/// What it borrows and returns crosses threads:
///
/// ```compile_fail
/// let local = std::rc::Rc::new(1);
/// indent::runtime::compute(|| println!("{local}"));
/// ```
pub fn compute<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    if context::current_fiber().is_none() {
        return f();
    }
    lend::lend(f, ParkReason::Compute, |loan| {
        // SAFETY: `lend` keeps it until it has run, and here is the one place it goes to.
        if !unsafe { hand_out(loan) } {
            // SAFETY: as above; nobody else has it.
            unsafe { blocking::hand_out(loan) };
        }
    })
}

/// Queues a loan of the calling fiber; false if there is no thread at all. Not inlined: rayon looks at
/// a thread-local here, whose address must not be kept for the fiber's next call.
///
/// # Safety
/// The loan is valid until it has run, and if this returns true, nobody else runs it.
#[inline(never)]
unsafe fn hand_out(loan: NonNull<Loan>) -> bool {
    /// The address of a loan, on its way to the one who will run it.
    struct Sent(NonNull<Loan>);
    // SAFETY: a loan is made to be run by another thread.
    unsafe impl Send for Sent {}

    let here = context::here().expect("called on a fiber");
    here.marked(|shared| {
        let service = shared.services.get(Kind::Compute, || Compute::new(shared));
        let Some(pool) = service.pool(shared.compute_wanted()) else {
            return false;
        };
        let sent = Sent(loan);
        pool.spawn(move || {
            let Sent(loan) = { sent };
            // SAFETY: by the caller's promise; rayon runs this once.
            unsafe { Loan::run(loan) };
        });
        true
    })
}

struct Compute {
    state: Mutex<State>,
    runtime: Weak<Shared>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<ThreadPool>>,
    /// How many threads it was to have.
    wanted: usize,
    /// It has fewer: try again then.
    retry_at: Option<Instant>,
    /// Of this pool and of earlier ones.
    threads: Vec<ThreadHandle<()>>,
    closed: bool,
}

impl Compute {
    fn new(shared: &Shared) -> Self {
        Compute {
            state: Mutex::default(),
            runtime: Arc::downgrade(&shared.arc()),
        }
    }

    /// A pool of so many threads, or of as many as can be had; `None` if there is none.
    fn pool(&self, wanted: usize) -> Option<Arc<ThreadPool>> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.closed {
            return None;
        }
        let too_few = || state.retry_at.is_some_and(|at| at <= Instant::now());
        if state.current.is_none() || state.wanted != wanted || too_few() {
            state.threads.retain(|thread| !thread.is_finished());
            let built = self.build(wanted, &mut state.threads);
            state.wanted = wanted;
            let complete = built.as_ref().is_some_and(|(_, size)| *size == wanted);
            state.retry_at = (!complete).then(|| Instant::now() + RETRY);
            if let Some((pool, _)) = built {
                // The former one ends when its last job is done. If none is to be had, it stays.
                state.current = Some(Arc::new(pool));
            }
        }
        state.current.clone()
    }

    #[cold]
    fn build(
        &self,
        wanted: usize,
        threads: &mut Vec<ThreadHandle<()>>,
    ) -> Option<(ThreadPool, usize)> {
        let mut size = wanted;
        while size > 0 {
            let before = threads.len();
            let builder = ThreadPoolBuilder::new().num_threads(size);
            let builder = builder.spawn_handler(|thread| {
                threads.push(self.start(thread)?);
                Ok(())
            });
            match builder.build() {
                Ok(pool) => return Some((pool, size)),
                // Those that did start end again at once; so many there will be room for.
                Err(_) => {
                    size = (size - 1).min(threads.len() - before);
                    threads.drain(before..).for_each(|t| drop(t.join()));
                }
            }
        }
        None
    }

    fn start(&self, thread: ThreadBuilder) -> std::io::Result<ThreadHandle<()>> {
        let runtime = self.runtime.upgrade().expect("a fiber of it calls us");
        let (start, stop) = runtime.settings.hooks();
        let name = format!(
            "{}-compute-{}",
            runtime.settings.thread_name,
            thread.index()
        );
        let served = self.runtime.clone();
        let body = move || {
            let abort = AbortOnUnwind("the threads that compute");
            context::set_served(served);
            os::be_nicer(NICER);
            start.iter().for_each(|hook| hook());
            thread.run();
            stop.iter().for_each(|hook| hook());
            drop(abort);
        };
        std::thread::Builder::new().name(name).spawn(body)
    }
}

impl Service for Compute {
    fn close(&self, patience: Patience) -> usize {
        let mut state = lock(&self.state);
        state.closed = true;
        let (pool, threads) = (state.current.take(), std::mem::take(&mut state.threads));
        drop(state);
        drop(pool);
        shutdown::join_until(patience, threads.into_iter())
    }

    fn tend(&self) -> Option<Duration> {
        None // the next call tries again
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use crate::runtime::{self, Builder};
    use std::sync::mpsc;

    /// Calls `f` on a fiber of a new runtime with its compute service.
    fn with_service(f: impl FnOnce(&Compute) + Send) {
        let rt = Builder::new().workers(1).build().expect("a runtime");
        rt.block_on(|| {
            runtime::with_current_or_default(|shared| {
                f(shared.services.get(Kind::Compute, || Compute::new(shared)));
            });
        });
        let report = rt.shutdown_timeout(Duration::from_secs(60));
        assert!(report.is_clean(), "{report}");
    }

    #[test]
    fn another_number_of_threads_makes_another_pool_and_the_old_one_ends_its_jobs() {
        with_service(|service| {
            let small = service.pool(1).expect("a pool");
            let again = service.pool(1).expect("a pool");
            assert!(Arc::ptr_eq(&small, &again));
            let (go, wait) = mpsc::channel();
            let (done, result) = mpsc::channel();
            small.spawn(move || done.send(wait.recv()).expect("somebody waits"));
            drop((small, again));
            let large = service.pool(2).expect("a pool");
            assert_eq!(large.current_num_threads(), 2);
            assert_eq!(lock(&service.state).threads.len(), 3);
            go.send(7).expect("the job waits");
            assert_eq!(result.recv().expect("the job ends"), Ok(7));
        });
    }

    #[test]
    fn the_last_owner_of_a_pool_may_be_one_of_its_own_threads() {
        with_service(|service| {
            let pool = service.pool(2).expect("a pool");
            let (go, wait) = mpsc::channel::<()>();
            let (done, ended) = mpsc::channel();
            let owner = pool.clone();
            pool.spawn(move || {
                wait.recv().expect("somebody says go");
                drop(owner);
                done.send(()).expect("somebody waits");
            });
            drop(pool);
            lock(&service.state).current = None;
            go.send(()).expect("the job waits");
            ended.recv().expect("it was dropped");
        });
    }
}
