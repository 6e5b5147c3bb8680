#![expect(unsafe_code, reason = "lends closures to threads of rayon; see `lend`")]
//! Long computations, on as many threads as there are workers.
//!
//! The threads are a pool of rayon's, so that its iterators and joins inside a closure spread over the
//! same threads, and all closures together use no more CPUs than there are. The closure stays on the
//! caller's stack ([`lend`](crate::park::lend)).
//!
//! A call puts its loan into a queue of ours. Rayon gets a *ticket*, which takes the oldest loan when a
//! thread comes to it; no more tickets are out than loans may run at once, the others are kept *aside*,
//! and whoever ends a loan sends one on. So what waits belongs to no pool, and is served as the number of
//! CPUs is then. A pool of rayon's has a fixed number of threads; when another number is wanted, a new
//! one takes over, and the old one ends by itself when what it runs is done. If the system refuses
//! threads, a smaller pool will do for a while; if it refuses all, tickets stay aside until the helper
//! gets one ([`Service::tend`]).
//!
//! **I16** Every loan in the queue has a ticket, out or aside; and if any are aside, then as many loans
//! run as are wanted and the pool has threads, or there is no pool.
//!
//! The threads give way to workers: they are nicer (`nice`), so that a worker that wakes runs at once
//! even if it has used more than an even share of late. Rejected after measuring (`benches/compute.rs`,
//! `benches/RESULTS.md`): `SCHED_BATCH` and longer or shorter slices change nothing, `SCHED_IDLE`
//! starves the computation when workers are busy.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use rayon_core::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use crate::base::list::List;
use crate::base::loom::{Mutex, lock};
use crate::base::os;
use crate::error::AbortOnUnwind;
use crate::fiber::reason::ParkReason;
use crate::park::lend::{self, Loan};
use crate::sched::service::{Kind, Service};
use crate::sched::shutdown::Patience;
use crate::sched::{Shared, context, retire, shutdown};

/// How much nicer than the others a thread that computes is: beside workers that are busy all the time
/// it gets a tenth of a CPU, and when they are not, it hardly notices.
const NICER: i32 = 10;
/// When to try again for threads that the system refused: if there is none at all, and if there are
/// some.
const RETRY_SOON: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_secs(1);

/// Runs the closure on a thread that is there for computing, while the calling fiber is parked: for
/// what keeps a CPU busy for more than a moment.
///
/// There are as many such threads as workers (see
/// [`compute_threads`](crate::runtime::Builder::compute_threads)); further calls wait in a queue. The threads are a
/// pool of rayon's: parallel iterators, `join` and `scope` inside the closure use them.
///
/// The closure may borrow from the caller, who does not leave before it is done, and cannot be
/// cancelled meanwhile. A panic in it goes on in the caller.
///
/// On a plain thread, and inside another `compute` or [`blocking`](crate::runtime::blocking) call, it
/// is simply called, where the caller is: on a plain thread and inside `blocking` it is neither nice
/// nor one of few, and rayon's iterators in it use rayon's own global pool. The other way round, a
/// `blocking` call inside `compute` is simply called as well, and keeps one of the few threads for as
/// long as it blocks. So let the fiber make both calls, one after the other.
///
/// The threads have a higher nice value than the rest of the runtime: they give way to fibers that
/// have something to do, and get a tenth of the time if those always have. What they start inherits
/// it for good: threads, processes, and all workers of a runtime that is built inside a closure.
///
/// A closure that waits in rayon (`join`, `scope`, an iterator) may be made to run another fiber's
/// closure meanwhile, on top of its own frames. Hold no lock and no borrow of a thread-local across
/// such a call if another closure could want it: it would wait for the one underneath, for ever. For
/// the same reason a [time limit](crate::time::timeout) set inside the closure is not heard: set it
/// around what comes before and after.
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
    lend::lend(f, ParkReason::Compute, |shared, loan| {
        // SAFETY: `lend` keeps it until it has run, and here is the one place it goes to.
        unsafe { hand_out(shared, loan) };
    })
}

/// Queues a loan of the calling fiber. Not inlined: rayon looks at a thread-local here, whose address
/// must not be kept for the fiber's next call.
///
/// # Safety
/// The loan is valid until it has run, and nobody else runs it.
#[inline(never)]
unsafe fn hand_out(shared: &Shared, loan: NonNull<Loan>) {
    let service = shared.services.get(Kind::Compute, || Compute::new(shared));
    // SAFETY: by the caller's promise.
    unsafe { service.0.push(loan) };
}

struct Compute(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    runtime: Weak<Shared>,
}

struct State {
    queue: List<Loan>,
    /// Tickets that are out: loans that run, or are about to.
    running: usize,
    /// Tickets not yet given to rayon.
    aside: usize,
    current: Option<Arc<ThreadPool>>,
    /// How many threads it was to have.
    wanted: usize,
    /// It has fewer: try again then.
    retry_at: Option<Instant>,
    /// So many threads could be had when more were refused.
    room: Option<usize>,
    /// Of this pool and of earlier ones.
    threads: Vec<ThreadHandle<()>>,
    closed: bool,
}

impl State {
    /// The pool has fewer threads than it should, and it is time to try again.
    fn retry_is_due(&self) -> bool {
        self.retry_at.is_some_and(|at| at <= Instant::now())
    }
}

impl Compute {
    fn new(shared: &Shared) -> Self {
        let state = State {
            queue: List::new(),
            running: 0,
            aside: 0,
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
    /// As for [`hand_out`].
    unsafe fn push(self: &Arc<Self>, loan: NonNull<Loan>) {
        let mut state = lock(&self.state);
        // SAFETY: by the caller's promise; it is in no other list.
        unsafe { state.queue.push(loan) };
        state.aside += 1;
        self.adapt(&mut state);
        self.send(&mut state);
    }

    /// Sends tickets on their way, as many as may run now.
    fn send(self: &Arc<Self>, state: &mut State) {
        let Some(pool) = &state.current else { return };
        let most = state.wanted.min(pool.current_num_threads());
        while state.aside > 0 && state.running < most {
            state.aside -= 1;
            state.running += 1; // counted as running from here on
            let inner = self.clone();
            pool.spawn(move || inner.serve());
        }
    }

    /// A ticket, on a thread of rayon's: runs one loan.
    fn serve(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let loan = if state.closed {
            None
        } else {
            state.queue.pop()
        };
        drop(state);
        if let Some(loan) = loan {
            // SAFETY: out of the queue it is ours alone; valid by its pusher's promise.
            unsafe { Loan::run(loan) };
        }
        state = lock(&self.state);
        state.running -= 1;
        self.send(&mut state);
        // A thread that computes is no place to make others: they would inherit that they are nice.
        if state.aside > 0
            && let Some(runtime) = self.runtime.upgrade()
            && (state.wanted != runtime.compute_wanted() || state.retry_is_due())
        {
            runtime.tend_soon();
        }
    }

    /// Makes `current` a pool of as many threads as are wanted now, or of as many as can be had.
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
            return; // refused a moment ago
        }
        if retire::is_here() {
            return runtime.tend_soon(); // S16: by the helper, whose thread is as it should be
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
            // Rather too many threads than fewer than before; the number of tickets holds.
            Some(pool) if size > has || size == wanted => state.current = Some(Arc::new(pool)),
            Some(_) => {}
            // Those that did start end again by themselves; so many there will be room for then.
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
        let abort = AbortOnUnwind("the threads that compute");
        context::set_served(served);
        context::ignore_limits();
        os::be_nicer(NICER);
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
        // A pool ends as a whole: with one loan that does not come back, all its threads stay.
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
        if state.aside > 0 {
            self.0.adapt(&mut state);
            self.0.send(&mut state);
        }
        let waits = state.current.is_none() && !state.closed && state.aside > 0;
        waits.then_some(RETRY_SOON)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use crate::runtime::{self, Builder};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// The pool that serves the calling fiber's runtime.
    fn pool() -> Option<Arc<ThreadPool>> {
        runtime::with_current_or_default(|shared| {
            let _guard = context::disable_preempt();
            let service: Option<&Compute> = shared.services.find(Kind::Compute);
            service.and_then(|service| lock(&service.0.state).current.clone())
        })
        .ok()?
    }

    #[test]
    fn another_number_of_workers_makes_another_pool() {
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
    fn while_the_number_changes_no_more_run_at_once_than_it_ever_was() {
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
