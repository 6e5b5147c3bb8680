//! What a runtime has done, in numbers.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::base::os;
use crate::blocking;
use crate::driver::Driver;
use crate::fiber::stack::{self, Guard};
use crate::runtime::histogram::Histogram;
use crate::sched::Shared;
use crate::sched::worker::Worker;

/// Numbers of one runtime, as they are at one moment or nearly so: counters are read one after the
/// other while the runtime goes on, so sums may be off by what happened in between.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(2).build()?;
/// rt.block_on(|| indent::spawn(|| ()).join().unwrap());
/// rt.wait_idle();
/// let metrics = rt.metrics();
/// assert_eq!((metrics.workers_now, metrics.workers.len()), (2, 2));
/// assert_eq!((metrics.tasks_spawned_total, metrics.tasks_alive), (2, 0));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// One entry for each worker there has been.
    pub workers: Vec<WorkerMetrics>,
    /// Workers in service.
    pub workers_now: usize,
    /// CPUs the process may use, as last seen; there are as many workers, unless the number is set.
    pub cpus_allowed: usize,
    /// Fibers that are not over.
    pub tasks_alive: u64,
    /// Fibers spawned since the start.
    pub tasks_spawned_total: u64,
    /// Unstarted fibers that wait for a stack.
    pub tasks_starved: usize,
    /// Fibers that failed before they started, because there was no stack or no thread for them.
    pub tasks_never_started_total: u64,
    /// Started and unstarted fibers in the queue that all workers share, except those that wait for
    /// a stack or a thread.
    pub queue_depth_global: usize,
    /// Wakes by threads that hold no worker which had to rouse a sleeping one.
    pub wakes_sent_outside: u64,
    /// Wakes by threads that hold no worker which found one awake.
    pub wakes_coalesced_outside: u64,
    /// Calls of [`blocking`](crate::runtime::blocking) that wait for a thread.
    pub blocking_queue_depth: usize,
    /// Threads that run such calls.
    pub blocking_threads_active: usize,
    /// Threads that could.
    pub blocking_threads_idle: usize,
    /// Deadlines that have neither passed nor been given up.
    pub timers_active: usize,
    /// Deadlines that passed.
    pub timers_fired_total: u64,
    /// Stacks of fibers that are not over.
    pub stacks_in_use: u64,
    /// Free stacks that workers keep at hand.
    pub stacks_cached: usize,
    /// Ranges of address space mapped for stacks, by all runtimes of the process.
    pub stack_slabs: usize,
    /// How the ends of stacks are guarded.
    pub stack_guard: Guard,
    /// How many fibers there can be at once, where guards need mappings of their own.
    pub task_limit: Option<usize>,
    /// Threads of this runtime that run fibers: the sum of the next six.
    pub carriers: usize,
    /// Threads that hold a worker.
    pub carriers_holding: usize,
    /// Threads that hold no worker and run nothing.
    pub carriers_spare: usize,
    /// Threads without a worker that a parked fiber has to itself, because it is bound to its
    /// thread.
    pub carriers_occupied: usize,
    /// Threads that were stopped in the middle of a fiber, and wait until it is its turn again.
    pub carriers_frozen: usize,
    /// Threads whose fiber blocked in the kernel, and whose worker went on elsewhere.
    pub carriers_detached: usize,
    /// Threads that wait for a worker in the middle of a fiber, whose call in the kernel has
    /// returned.
    pub carriers_waiting: usize,
    /// How often a thread was needed and could not be had.
    pub carriers_refused: u64,
    /// Threads that ended because a fiber changed what the kernel keeps for them; see
    /// [`retire_thread`](crate::runtime::retire_thread).
    pub carriers_retired: u64,
    /// Times a fiber ran for its whole quantum while others waited for their turn.
    pub overruns: u64,
    /// Times a fiber was stopped in the middle of its code, with its thread.
    pub freezes: u64,
    /// Times such a fiber went on.
    pub thaws: u64,
    /// Times a worker was taken from a thread that had blocked in the kernel.
    pub detaches: u64,
    /// Times a stop was put off because the fiber was in libc, the loader or a foreign library.
    pub retries: u64,
    /// Times a fiber left its thread at an instruction, inside a
    /// [`preemptible`](crate::runtime::preemptible) region or outside.
    pub in_place: u64,
    /// How many of those were outside of regions
    /// ([`preempt_in_place`](crate::runtime::Builder::preempt_in_place)).
    pub in_place_anywhere: u64,
    /// Times a stopped fiber went on for a moment because others may have waited for what it held.
    pub watchdog_releases: u64,
    /// Times a fiber should have been stopped, or a worker taken, and there was no thread to go on with.
    pub cap_hits: u64,
    /// Times a fiber was asked to stop by a signal and did not for 5 ms: it blocks the signal, or is in
    /// [`no_preempt`](crate::runtime::no_preempt).
    pub signals_unanswered: u64,
    /// Reports of fibers that ran for too long for which there was no room: too many at once, or whoever
    /// [listens](crate::runtime::Builder::on_overrun) takes too long.
    pub reports_lost: u64,
    /// Times the kernel refused a `membarrier` it had granted before: a seccomp filter, in most
    /// cases. Workers are then taken only from threads that are seen asleep. Of the whole process.
    pub barriers_refused: u64,
    /// Times a system call of the runtime's own was interrupted by a signal.
    pub eintr: u64,
    /// Fibers that wait for a thread to start on, because fibers that are bound to their threads
    /// hold as many as are allowed.
    pub tasks_threadless: usize,
    /// Times a fiber was delayed because it was asked to end, or its [time
    /// limit](crate::time::timeout) had passed, and it caught the unwinding of its blocking calls
    /// and blocked again. Two such unwindings are immediate, the next is delayed by 1 ms, and each
    /// further one for twice as long, up to 100 ms. One line on standard error names such a fiber.
    /// If this grows, some code catches every panic: it should pass the payload on with
    /// [`resume_unwind`](std::panic::resume_unwind), or stop.
    pub unwind_pauses: u64,
    /// What fibers wait by for sockets, pipes, and whatever else can be polled.
    pub io_sockets: IoDriver,
    /// What file operations would be done by. There are none in this crate so far: files are read and written
    /// inside [`blocking`](crate::runtime::blocking).
    pub io_files: IoDriver,
    /// Operations that were given to io_uring and are not over.
    pub io_operations: usize,
    /// Threads of all runtimes of the process that run fibers.
    pub process_carriers: usize,
    /// How long parked fibers waited from the moment they were made runnable until they ran, of one
    /// wake in 64 of each fiber.
    pub wake_to_run: Histogram,
}

/// What brings about an end of a wait for a descriptor.
///
/// ```
/// use indent::runtime::{Builder, Io};
///
/// let rt = Builder::new().io(Io::Epoll).build()?;
/// let metrics = rt.metrics();
/// assert_eq!(metrics.io_sockets.to_string(), "epoll");
/// assert_eq!(metrics.io_files.to_string(), "blocking pool");
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoDriver {
    /// io_uring: the kernel does what is asked, and says when it is done.
    Uring,
    /// epoll: the kernel says when something can be done.
    Epoll,
    /// Threads that may block, those of [`blocking`](crate::runtime::blocking).
    BlockingPool,
}

impl fmt::Display for IoDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoDriver::Uring => "uring",
            IoDriver::Epoll => "epoll",
            IoDriver::BlockingPool => "blocking pool",
        })
    }
}

/// Numbers of one worker.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.block_on(|| drop(indent::spawn(|| ())));
/// rt.wait_idle();
/// let worker = &rt.metrics().workers[0];
/// assert_eq!((worker.spawned, worker.started, worker.finished), (1, 2, 2));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Started and unstarted fibers in its own queue.
    pub queue_depth_local: usize,
    /// Time it was awake, sampled once a millisecond by the thread that watches it.
    pub busy_duration: Duration,
    /// Times it switched to a fiber.
    pub dispatches: u64,
    /// Dispatches of a fiber straight from the shared queue.
    pub dispatches_shared: u64,
    /// Fibers spawned by fibers it ran.
    pub spawned: u64,
    /// Fibers it started.
    pub started: u64,
    /// Fibers that ended on it.
    pub finished: u64,
    /// Times it stole from another worker.
    pub steals_total: u64,
    /// Times it looked through the others' queues for something to steal.
    pub steal_attempts: u64,
    /// Fibers it got by stealing.
    pub stolen: u64,
    /// Parks of its fibers that really waited.
    pub park_count: u64,
    /// Wakes and spawns by its fibers that had to rouse a sleeping worker.
    pub wakes_sent: u64,
    /// Wakes and spawns by its fibers that found a worker awake, or already roused.
    pub wakes_coalesced: u64,
    /// Times a fiber used up its budget of operations and gave way.
    pub budget_exhausted: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it moved to another carrier.
    pub moves: u64,
    /// Bound fibers that were found to be movable when it ran them.
    pub released: u64,
    /// Times its queue was full and half went to the shared one.
    pub overflows: u64,
}

impl WorkerMetrics {
    fn of(worker: &Worker) -> Self {
        let counters = &worker.counters;
        WorkerMetrics {
            queue_depth_local: worker.queue.len() + usize::from(!worker.lifo.is_empty()),
            busy_duration: worker.published.busy(),
            dispatches: worker.published.dispatches(),
            dispatches_shared: counters.from_shared.get(),
            spawned: counters.spawned.get(),
            started: counters.started.get(),
            finished: counters.finished.get(),
            steals_total: counters.steals.get(),
            steal_attempts: counters.steal_attempts.get(),
            stolen: counters.stolen.get(),
            park_count: counters.parks.get(),
            wakes_sent: counters.wakes_sent.get(),
            wakes_coalesced: counters.wakes_coalesced.get(),
            budget_exhausted: counters.budget_exhausted.get(),
            sleeps: counters.sleeps.get(),
            moves: counters.moves.get(),
            released: counters.released.get(),
            overflows: counters.overflows.get(),
        }
    }
}

impl Metrics {
    pub(crate) fn of(shared: &Shared) -> Self {
        let workers: Vec<_> = shared.workers[..shared.count.ever()]
            .iter()
            .map(WorkerMetrics::of)
            .collect();
        let cached = shared.workers.iter().map(|w| w.stacks_cached.load(Relaxed));
        let carriers = shared.carrier_threads();
        let holding = shared.holding_carriers().min(carriers);
        let spare = shared.resting_carriers().min(carriers - holding);
        let left = carriers - holding - spare;
        let frozen = shared.frozen_carriers().min(left);
        let detached = shared.detached_carriers().min(left - frozen);
        let waiting = shared.waiting_carriers().min(left - frozen - detached);
        let blocking = blocking::stats(shared);
        let happened = &shared.preempted;
        Metrics {
            workers,
            workers_now: shared.workers_now(),
            cpus_allowed: shared.cpus.load(Relaxed),
            tasks_alive: shared.alive(),
            tasks_spawned_total: shared.spawned(),
            tasks_starved: shared.starved(),
            tasks_never_started_total: shared.never_started(),
            queue_depth_global: shared.queued_for_all(),
            wakes_sent_outside: shared.outside_wakes_sent.load(Relaxed),
            wakes_coalesced_outside: shared.outside_wakes_coalesced.load(Relaxed),
            blocking_queue_depth: blocking.queue_depth,
            blocking_threads_active: blocking.threads_active,
            blocking_threads_idle: blocking.threads_idle,
            timers_active: shared.timers_active(),
            timers_fired_total: shared.timers_fired(),
            stacks_in_use: shared.with_stack(),
            stacks_cached: cached.sum(),
            stack_slabs: stack::slabs(),
            stack_guard: shared.settings.guard,
            task_limit: shared.fiber_limit,
            carriers,
            carriers_holding: holding,
            carriers_spare: spare,
            carriers_occupied: left - frozen - detached - waiting,
            carriers_frozen: frozen,
            carriers_detached: detached,
            carriers_waiting: waiting,
            carriers_refused: shared.refused_carriers.load(Relaxed),
            carriers_retired: shared.retired_carriers.load(Relaxed),
            overruns: happened.overruns.load(Relaxed),
            freezes: happened.freezes.load(Relaxed),
            thaws: happened.thaws.load(Relaxed),
            detaches: happened.detaches.load(Relaxed),
            retries: happened.retries.load(Relaxed),
            in_place: happened.in_place.load(Relaxed),
            in_place_anywhere: happened.anywhere.load(Relaxed),
            watchdog_releases: happened.watchdog_releases.load(Relaxed),
            cap_hits: happened.cap_hits.load(Relaxed),
            signals_unanswered: happened.unanswered.load(Relaxed),
            reports_lost: shared.reports.lost.load(Relaxed),
            barriers_refused: os::barriers_refused(),
            eintr: os::interrupted_calls(),
            tasks_threadless: shared.global.threadless.len(),
            unwind_pauses: shared.unwind_pauses.load(Relaxed),
            io_sockets: match shared.driver {
                Driver::Uring(_) => IoDriver::Uring,
                Driver::Epoll(_) => IoDriver::Epoll,
            },
            io_files: match shared.files_by_uring() {
                true => IoDriver::Uring,
                false => IoDriver::BlockingPool,
            },
            io_operations: shared.driver.in_flight(),
            process_carriers: crate::sched::start::process_carriers(),
            wake_to_run: Histogram::wake_to_run(shared),
        }
    }

    /// The share of dispatches that found their fiber in the worker's own queues, rather than in the
    /// shared one or another worker's; 1 if there were none.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.block_on(|| (0..1000).for_each(|_| indent::task::yield_now()));
    /// assert!(rt.metrics().local_hit_ratio() > 0.9);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn local_hit_ratio(&self) -> f64 {
        let dispatches: u64 = self.workers.iter().map(|w| w.dispatches).sum();
        let elsewhere = self
            .workers
            .iter()
            .map(|w| w.dispatches_shared + w.steals_total);
        1.0 - share(elsewhere.sum::<u64>().min(dispatches), dispatches)
    }

    /// The share of looks through the others' queues that found something; 0 if there were none.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).build()?;
    /// rt.block_on(|| ());
    /// assert!((0.0..=1.0).contains(&rt.metrics().steal_success_rate()));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn steal_success_rate(&self) -> f64 {
        let attempts = self.workers.iter().map(|w| w.steal_attempts).sum();
        let steals: u64 = self.workers.iter().map(|w| w.steals_total).sum();
        share(steals.min(attempts), attempts)
    }
}

/// None of nothing is none.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
