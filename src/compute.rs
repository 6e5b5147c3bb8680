#![expect(
    unsafe_code,
    reason = "passes closures to threads of rayon; see `park::scoped`"
)]
//! Long computations, on as many threads as there are workers.
//!
//! The threads are a pool of rayon, so that rayon's iterators and joins inside a closure spread
//! over the same threads, and all closures together use no more CPUs than the runtime may. A call
//! is a [scoped job](crate::park::scoped): the closure stays on the caller's stack.
//!
//! A call appends its job to a queue of this module. Rayon gets a *runner*: a rayon task that takes
//! the oldest job when a thread executes it. At most as many runners are *sent* as jobs may run at
//! once; the others are counted as *unsent*, and a runner that ends sends the next one. So a
//! waiting job belongs to no pool, and is served by the number of threads that is right at that
//! time.
//!
//! A rayon pool has a fixed number of threads. When another number is wanted, a new pool takes
//! over, and the old one ends by itself when its jobs are done. If the system refuses threads, a
//! smaller pool serves for a while; if it refuses all, runners stay unsent until the helper gets a
//! thread ([`Service::tend`]).
//!
//! **I16** Every job in the queue has a runner, sent or unsent; and if any are unsent, then as many
//! jobs run as are wanted and the pool has threads, or there is no pool.
//!
//! The threads have a higher nice value than workers, so that a worker that wakes runs at once even
//! if it has used more than an even share recently. Rejected after measuring (`benches/compute.rs`,
//! `benches/RESULTS.md`): `SCHED_BATCH` and longer or shorter slices change nothing, `SCHED_IDLE`
//! starves the computation when workers are busy.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use rayon_core::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use crate::error::AbortOnUnwind;
use crate::fiber::reason::ParkReason;
use crate::park::scoped::{self, ScopedJob};
use crate::sched::Shared;
use crate::sched::threads::retire;
use crate::sched::workers::context;
use crate::sched::workers::service::{Kind, Service};
use crate::sched::workers::shutdown;
use crate::sched::workers::shutdown::Patience;
use crate::sys;
use crate::util::list::List;
use crate::util::loom::{Mutex, lock};

/// How much higher the nice value of a compute thread is than that of other threads.
///
/// Beside workers that are busy all the time such a thread gets a tenth of a CPU; otherwise it is
/// hardly slowed down.
const NICER: i32 = 10;
/// How long to wait before asking again for refused threads, if the pool has none at all.
const RETRY_SOON: Duration = Duration::from_millis(10);
/// The same, if the pool has some threads.
const RETRY: Duration = Duration::from_secs(1);

/// Runs a CPU-heavy closure on a compute thread, while the calling fiber waits.
///
/// Use it for whatever keeps a CPU busy for more than a few milliseconds. There are as many such
/// threads as workers (see [`compute_threads`](crate::runtime::Builder::compute_threads)); further
/// calls wait in a queue. The threads are a rayon pool: parallel iterators, `join` and `scope`
/// inside the closure use them.
///
/// The calling fiber parks until the closure has returned and cannot be cancelled meanwhile; so the
/// closure may borrow from the caller.
///
/// On a plain thread and inside another `compute` or [`blocking`](crate::runtime::blocking) call
/// the closure is called in place. On a plain thread and inside `blocking` it then has no higher
/// nice value, the number of such calls is not limited, and rayon's iterators use rayon's own
/// global pool. The reverse also holds: a `blocking` call inside `compute` runs in place and
/// occupies a compute thread while it blocks. So make both calls from the fiber, one after the
/// other.
///
/// Compute threads have a higher nice value than the rest of the runtime: fibers that are ready to
/// run take precedence, and leave a tenth of the CPU time if they are always busy. Threads and
/// processes started by the closure inherit the nice value for good; so do all workers of a runtime
/// that is built inside it.
///
/// # Deadlocks
/// While a closure waits in rayon (`join`, `scope`, an iterator), rayon may run another fiber's
/// closure on top of its frames. Hold no lock and no borrow of a thread-local across such a call if
/// another closure could want it: that closure would wait for the one underneath for ever. For the
/// same reason a [time limit](crate::time::timeout) set inside the closure has no effect: set it
/// around what comes before and after.
///
/// # Panics
/// A panic of the closure is resumed in the caller.
///
/// # Examples
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
/// The closure and its result cross threads, so both must be `Send`:
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
    scoped::run_on_pool(f, ParkReason::Compute, |shared, job| {
        // SAFETY: `run_on_pool` keeps it until it has run, and this is the one place it goes to.
        unsafe { submit(shared, job) };
    })
}

/// Queues a scoped job of the calling fiber.
///
/// Not inlined: rayon reads a thread-local here, whose address must not be kept for the fiber's
/// next call.
///
/// # Safety
/// The job is valid until it has run, and nothing else runs it.
#[inline(never)]
unsafe fn submit(shared: &Shared, job: NonNull<ScopedJob>) {
    let service = shared.services.get(Kind::Compute, || Compute::new(shared));
    // SAFETY: by the caller's promise.
    unsafe { service.0.push(job) };
}

struct Compute(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    runtime: Weak<Shared>,
}

struct State {
    queue: List<ScopedJob>,
    /// Runners that were sent: jobs that run, or are about to.
    running: usize,
    /// Runners not yet sent to rayon.
    unsent: usize,
    current: Option<Arc<ThreadPool>>,
    /// How many threads `current` was meant to have.
    wanted: usize,
    /// When to ask for more threads, if `current` has fewer.
    retry_at: Option<Instant>,
    /// How many threads the system granted when it refused more.
    room: Option<usize>,
    /// Threads of this rayon pool and of earlier ones.
    threads: Vec<ThreadHandle<()>>,
    closed: bool,
}

impl State {
    /// Whether the pool has fewer threads than it should and it is time to ask again.
    fn retry_is_due(&self) -> bool {
        self.retry_at.is_some_and(|at| at <= Instant::now())
    }
}

impl Compute {
    fn new(shared: &Shared) -> Self {
        let state = State {
            queue: List::new(),
            running: 0,
            unsent: 0,
            current: None,
            wanted: 0,
            retry_at: None,
            room: None,
            threads: Vec::new(),
            closed: false,
        };
        Compute(Arc::new(Inner {
            state: Mutex::new(state),
            runtime: Arc::downgrade(&shared.arc()),
        }))
    }
}

impl Inner {
    /// # Safety
    /// As for [`submit`].
    unsafe fn push(self: &Arc<Self>, job: NonNull<ScopedJob>) {
        let mut state = lock(&self.state);
        // SAFETY: by the caller's promise; it is in no other list.
        unsafe { state.queue.push(job) };
        state.unsent += 1;
        self.adapt(&mut state);
        self.send(&mut state);
    }

    /// Sends as many runners to rayon as may run now.
    fn send(self: &Arc<Self>, state: &mut State) {
        let Some(pool) = &state.current else { return };
        let most = state.wanted.min(pool.current_num_threads());
        while state.unsent > 0 && state.running < most {
            state.unsent -= 1;
            state.running += 1; // counted as running from here on
            let inner = self.clone();
            pool.spawn(move || inner.serve());
        }
    }

    /// The code of a runner, on a thread of rayon: runs one job.
    fn serve(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let job = if state.closed {
            None
        } else {
            state.queue.pop()
        };
        drop(state);
        if let Some(job) = job {
            // SAFETY: taken from the queue, so this thread alone has it; valid by its pusher's
            // promise.
            unsafe { ScopedJob::run(job) };
        }
        state = lock(&self.state);
        state.running -= 1;
        self.send(&mut state);
        // A compute thread starts no threads: they would inherit its nice value.
        if state.unsent > 0
            && let Some(runtime) = self.runtime.upgrade()
            && (state.wanted != runtime.compute_wanted() || state.retry_is_due())
        {
            runtime.tend_soon();
        }
    }

    /// Makes `current` a pool of as many threads as are wanted, or as many as the system grants.
    fn adapt(self: &Arc<Self>, state: &mut State) {
        let Some(runtime) = self.runtime.upgrade() else {
            return;
        };
        let wanted = runtime.compute_wanted();
        let complete = state.wanted == wanted && state.current.is_some() && !state.retry_is_due();
        if state.closed || complete {
            return;
        }
        if state.current.is_none() && !state.retry_is_due() && state.retry_at.is_some() {
            return; // refused recently: wait for `retry_at`
        }
        if retire::is_here() {
            return runtime.tend_soon(); // S16: the helper, an unchanged thread, starts them
        }
        state.threads.retain(|thread| !thread.is_finished());
        let size = state.room.take().unwrap_or(wanted).min(wanted);
        let before = state.threads.len();
        let built = self.build(size, &runtime, &mut state.threads);
        let started = state.threads.len() - before;
        let has = state
            .current
            .as_ref()
            .map_or(0, |pool| pool.current_num_threads());
        match built {
            // Too many threads are better than fewer than before: the number of runners is the
            // limit.
            Some(pool) if size > has || size == wanted => state.current = Some(Arc::new(pool)),
            Some(_) => {}
            // The threads that did start end by themselves; as many will fit next time.
            None => state.room = Some(started).filter(|room| (1..size).contains(room)),
        }
        state.wanted = wanted;
        let pause = if state.current.is_some() {
            RETRY
        } else {
            RETRY_SOON
        };
        let complete = started == wanted && state.room.is_none();
        state.retry_at = (!complete).then(|| Instant::now() + pause);
        if state.current.is_none() {
            runtime.tend_soon();
        }
    }

    #[cold]
    fn build(
        &self,
        size: usize,
        runtime: &Shared,
        threads: &mut Vec<ThreadHandle<()>>,
    ) -> Option<ThreadPool> {
        let builder = ThreadPoolBuilder::new().num_threads(size);
        let builder = builder.spawn_handler(|thread| {
            threads.push(start(thread, runtime, self.runtime.clone())?);
            Ok(())
        });
        builder.build().ok()
    }
}

fn start(
    thread: ThreadBuilder,
    runtime: &Shared,
    served: Weak<Shared>,
) -> std::io::Result<ThreadHandle<()>> {
    let (start, stop) = runtime.settings.hooks();
    let name = format!(
        "{}-compute-{}",
        runtime.settings.thread_name,
        thread.index()
    );
    let body = move || {
        let abort = AbortOnUnwind("a compute thread");
        context::set_served(served);
        context::ignore_limits();
        sys::thread::be_nicer(NICER);
        start.iter().for_each(|hook| hook());
        thread.run();
        context::serves_no_more();
        stop.iter().for_each(|hook| hook());
        drop(abort);
    };
    std::thread::Builder::new().name(name).spawn(body)
}

impl Service for Compute {
    fn close(&self, patience: Patience) -> usize {
        let guard = context::disable_preempt();
        let mut state = lock(&self.0.state);
        state.closed = true;
        let (pool, threads) = (state.current.take(), std::mem::take(&mut state.threads));
        // A rayon pool ends as a whole: while one job does not return, all its threads stay.
        let patience = if state.running > 0 && patience.is_for_abandoned() {
            patience.at_least()
        } else {
            patience
        };
        drop(state);
        drop(pool);
        drop(guard);
        shutdown::join_until(patience, threads.into_iter())
    }

    fn tend(&self) -> Option<Duration> {
        let mut state = lock(&self.0.state);
        if state.unsent > 0 {
            self.0.adapt(&mut state);
            self.0.send(&mut state);
        }
        let waits = state.current.is_none() && !state.closed && state.unsent > 0;
        waits.then_some(RETRY_SOON)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use crate::runtime::{self, Builder};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// The rayon pool of the calling fiber's runtime.
    fn pool() -> Option<Arc<ThreadPool>> {
        runtime::with_current_or_default(|shared| {
            let _guard = context::disable_preempt();
            let service: Option<&Compute> = shared.services.find(Kind::Compute);
            service.and_then(|service| lock(&service.0.state).current.clone())
        })
        .ok()?
    }

    #[test]
    fn changing_the_number_of_workers_replaces_the_pool() {
        let rt = Builder::new().workers(3).build().expect("a runtime");
        for workers in [3, 1, 2] {
            rt.handle().resize(workers);
            let threads = rt.block_on(|| {
                compute(|| ());
                pool().expect("a pool").current_num_threads()
            });
            assert_eq!(threads, workers);
        }
    }

    #[test]
    fn while_workers_change_never_more_closures_run_than_there_were_workers() {
        let rt = Builder::new().workers(4).build().expect("a runtime");
        let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let call = |i: usize| {
            let counts = counts.clone();
            rt.spawn(move || {
                compute(|| {
                    let [inside, most] = &*counts;
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    std::thread::sleep(Duration::from_micros(200));
                    inside.fetch_sub(1, SeqCst);
                });
                i
            })
        };
        let calls: Vec<_> = (0..200).map(call).collect();
        for (i, call) in calls.into_iter().enumerate() {
            if i % 20 == 0 {
                rt.handle().resize(1 + i / 20 % 4);
            }
            assert_eq!(call.join().expect("no panic"), i);
        }
        let most = counts[1].load(SeqCst);
        assert!((1..=4).contains(&most), "{most} at once");
    }
}
