//! Metrics: what a runtime has done and holds, in numbers.
//!
//! Names follow Prometheus: a counter, which only grows, ends in `_total`; everything else is a
//! gauge. There is no text exposition; an exporter reads the fields.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::blocking;
use crate::driver::Driver;
use crate::fiber::stack::{self, StackGuard};
use crate::runtime::histogram::Histogram;
use crate::sched::Shared;
use crate::sched::workers::worker::Worker;
use crate::sys::{futex, membarrier};

/// Metrics of one runtime.
///
/// Fields that end in `_total` are counters since the start of the runtime; the others are gauges.
/// They are read one after the other while the runtime runs, so sums may be off by what happened in
/// between. It corresponds to `tokio::runtime::RuntimeMetrics`.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(2).build()?;
/// rt.block_on(|| indent::spawn(|| ()).join().unwrap());
/// rt.wait_idle();
/// let metrics = rt.metrics();
/// assert_eq!((metrics.workers_in_service, metrics.workers.len()), (2, 2));
/// assert_eq!((metrics.fibers_spawned_total, metrics.fibers_alive), (2, 0));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// One entry for each worker that has ever been in service.
    pub workers: Vec<WorkerMetrics>,
    /// Workers in service now.
    pub workers_in_service: usize,
    /// CPUs the process may use, as last seen; the number of workers follows it unless it is set.
    pub cpus_allowed: usize,
    /// Fibers that have not finished.
    pub fibers_alive: u64,
    /// Fibers spawned since the start.
    pub fibers_spawned_total: u64,
    /// Unstarted fibers that wait for a stack.
    pub fibers_waiting_for_stack: usize,
    /// Fibers that failed before they started, because there was no stack or no thread for them.
    pub fibers_never_started_total: u64,
    /// Fibers in the global queue, started or not, except those that wait for a stack or a thread.
    pub global_queue_depth: usize,
    /// Wakes by threads that hold no worker which had to notify a sleeping worker.
    pub outside_wakes_sent_total: u64,
    /// Wakes by threads that hold no worker which found a worker awake.
    pub outside_wakes_coalesced_total: u64,
    /// Calls of [`blocking`](crate::runtime::blocking) that wait for a thread.
    pub blocking_queue_depth: usize,
    /// Threads of the blocking pool that run a call.
    pub blocking_threads_active: usize,
    /// Threads of the blocking pool that are idle.
    pub blocking_threads_idle: usize,
    /// Deadlines that have neither passed nor been cancelled.
    pub timers_active: usize,
    /// Deadlines that passed.
    pub timers_fired_total: u64,
    /// Stacks of fibers that have not finished.
    pub stacks_in_use: u64,
    /// Free stacks cached by workers.
    pub stacks_cached: usize,
    /// Ranges of address space mapped for stacks, by all runtimes of the process.
    pub stack_slabs: usize,
    /// How the ends of stacks are guarded.
    pub stack_guard: StackGuard,
    /// The limit on fibers alive at once, where guards need mappings of their own.
    pub fiber_limit: Option<usize>,
    /// Threads of this runtime that run fibers: the sum of the next six.
    pub carriers: usize,
    /// Carriers that hold a worker.
    pub carriers_with_worker: usize,
    /// Carriers that hold no worker and run nothing.
    pub carriers_spare: usize,
    /// Carriers without a worker that belong to one parked fiber, which is bound to its thread.
    pub carriers_bound: usize,
    /// Carriers frozen in the middle of a fiber, until it is that fiber's turn again.
    pub carriers_frozen: usize,
    /// Carriers whose fiber blocks in the kernel, and whose worker moved to another carrier.
    pub carriers_detached: usize,
    /// Carriers whose fiber has returned from the kernel and waits for a worker.
    pub carriers_waiting: usize,
    /// Times a carrier was needed and the system or the limit refused it.
    pub carriers_refused_total: u64,
    /// Carriers that ended because a fiber changed attributes of their thread; see
    /// [`retire_thread`](crate::runtime::retire_thread).
    pub carriers_retired_total: u64,
    /// Times a fiber ran for its whole quantum while others waited for their turn.
    pub overruns_total: u64,
    /// Times a fiber was frozen in the middle of its code, together with its thread.
    pub freezes_total: u64,
    /// Times a frozen fiber continued.
    pub thaws_total: u64,
    /// Times a worker was taken from a thread that had blocked in the kernel.
    pub detaches_total: u64,
    /// Preemptions postponed because the fiber was in libc, the loader or a foreign library.
    pub preemptions_postponed_total: u64,
    /// In-place preemptions: times a fiber left its thread at an instruction, inside a
    /// [`preemptible`](crate::runtime::preemptible) region or outside.
    pub in_place_preemptions_total: u64,
    /// How many of the in-place preemptions were outside of regions
    /// ([`preempt_in_place`](crate::runtime::Builder::preempt_in_place)).
    pub in_place_outside_regions_total: u64,
    /// Times a frozen fiber ran for a moment because others may have waited for a lock it held.
    pub frozen_fibers_released_total: u64,
    /// Preemptions and detaches not done because there was no spare thread for the worker.
    pub preemptions_without_thread_total: u64,
    /// Times a fiber did not react to the preemption signal for 5 ms: it blocks the signal, or is
    /// in [`no_preempt`](crate::runtime::no_preempt).
    pub signals_unanswered_total: u64,
    /// Overrun reports that were dropped: too many at once, or a slow
    /// [listener](crate::runtime::Builder::on_overrun).
    pub overrun_reports_lost_total: u64,
    /// Times the kernel refused a `membarrier` it had granted before, in the whole process.
    ///
    /// The cause is a seccomp filter in most cases. Workers are then taken only from threads that
    /// are seen asleep.
    pub membarriers_refused_total: u64,
    /// System calls of the runtime that were interrupted by a signal (`EINTR`).
    pub interrupted_calls_total: u64,
    /// Fibers that wait for a thread to start on, because parked bound fibers hold as many as are
    /// allowed.
    pub fibers_waiting_for_thread: usize,
    /// Times a fiber was delayed because it caught its cancellation and blocked again.
    ///
    /// A blocking call unwinds when the fiber is cancelled or its [time
    /// limit](crate::time::timeout) has passed. Two such unwindings are immediate, the next is
    /// delayed by 1 ms, and each further one for twice as long, up to 100 ms. One line on standard
    /// error names such a fiber. If this number grows, some code catches every panic: it should
    /// pass the payload on with [`resume_unwind`](std::panic::resume_unwind), or stop.
    pub unwind_delays_total: u64,
    /// The I/O driver for sockets, pipes, and everything else that can be polled.
    pub io_sockets: IoDriver,
    /// The I/O driver for files.
    ///
    /// This crate has no file operations yet: files are read and written inside
    /// [`blocking`](crate::runtime::blocking).
    pub io_files: IoDriver,
    /// Operations submitted to io_uring that have not completed.
    pub io_operations_active: usize,
    /// Carriers of all runtimes of the process.
    pub process_carriers: usize,
    /// Time from the wake of a parked fiber until it runs, sampled for one wake in 64 of each
    /// fiber.
    pub wake_to_run: Histogram,
}

/// The kernel interface, or the pool, that performs I/O.
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
    /// io_uring: the kernel performs an operation and reports its completion.
    Uring,
    /// epoll: the kernel reports readiness; the fiber performs the operation.
    Epoll,
    /// The threads of [`blocking`](crate::runtime::blocking).
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

/// Metrics of one worker; see [`Metrics`].
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.block_on(|| drop(indent::spawn(|| ())));
/// rt.wait_idle();
/// let worker = &rt.metrics().workers[0];
/// let started = (worker.fibers_spawned_total, worker.fibers_started_total);
/// assert_eq!((started, worker.fibers_finished_total), ((1, 2), 2));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Fibers in its local queue, started or not.
    pub local_queue_depth: usize,
    /// Time it was awake, sampled once a millisecond by the monitor.
    pub busy_duration: Duration,
    /// Times it switched to a fiber.
    pub dispatches_total: u64,
    /// Dispatches of a fiber straight from the global queue.
    pub global_dispatches_total: u64,
    /// Fibers spawned by fibers that it ran.
    pub fibers_spawned_total: u64,
    /// Fibers it started.
    pub fibers_started_total: u64,
    /// Fibers that finished on it.
    pub fibers_finished_total: u64,
    /// Times it stole fibers from another worker.
    pub steals_total: u64,
    /// Times it searched the queues of other workers for fibers to steal.
    pub steal_attempts_total: u64,
    /// Fibers it stole.
    pub fibers_stolen_total: u64,
    /// Parks of its fibers that suspended the fiber.
    pub parks_total: u64,
    /// Wakes and spawns by its fibers that had to notify a sleeping worker.
    pub wakes_sent_total: u64,
    /// Wakes and spawns by its fibers that found a worker awake or already notified.
    pub wakes_coalesced_total: u64,
    /// Times a fiber used up its budget of operations and yielded.
    pub budget_exhausted_total: u64,
    /// Times it went to sleep.
    pub sleeps_total: u64,
    /// Times it moved to another carrier.
    pub carrier_moves_total: u64,
    /// Bound fibers found to be movable when it ran them.
    pub fibers_unbound_total: u64,
    /// Times its local queue was full and half of it moved to the global queue.
    pub queue_overflows_total: u64,
}

impl WorkerMetrics {
    fn of(worker: &Worker) -> Self {
        let counters = &worker.counters;
        WorkerMetrics {
            local_queue_depth: worker.queue.len() + usize::from(!worker.lifo.is_empty()),
            busy_duration: worker.published.busy(),
            dispatches_total: worker.published.dispatches(),
            global_dispatches_total: counters.from_shared.get(),
            fibers_spawned_total: counters.spawned.get(),
            fibers_started_total: counters.started.get(),
            fibers_finished_total: counters.finished.get(),
            steals_total: counters.steals.get(),
            steal_attempts_total: counters.steal_attempts.get(),
            fibers_stolen_total: counters.stolen.get(),
            parks_total: counters.parks.get(),
            wakes_sent_total: counters.wakes_sent.get(),
            wakes_coalesced_total: counters.wakes_coalesced.get(),
            budget_exhausted_total: counters.budget_exhausted.get(),
            sleeps_total: counters.sleeps.get(),
            carrier_moves_total: counters.moves.get(),
            fibers_unbound_total: counters.released.get(),
            queue_overflows_total: counters.overflows.get(),
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
        let preempted = &shared.preempted;
        Metrics {
            workers,
            workers_in_service: shared.workers_now(),
            cpus_allowed: shared.cpus.load(Relaxed),
            fibers_alive: shared.alive(),
            fibers_spawned_total: shared.spawned(),
            fibers_waiting_for_stack: shared.starved(),
            fibers_never_started_total: shared.never_started(),
            global_queue_depth: shared.queued_for_all(),
            outside_wakes_sent_total: shared.outside_wakes_sent.load(Relaxed),
            outside_wakes_coalesced_total: shared.outside_wakes_coalesced.load(Relaxed),
            blocking_queue_depth: blocking.queue_depth,
            blocking_threads_active: blocking.threads_active,
            blocking_threads_idle: blocking.threads_idle,
            timers_active: shared.timers_active(),
            timers_fired_total: shared.timers_fired(),
            stacks_in_use: shared.with_stack(),
            stacks_cached: cached.sum(),
            stack_slabs: stack::slabs(),
            stack_guard: shared.settings.guard,
            fiber_limit: shared.fiber_limit,
            carriers,
            carriers_with_worker: holding,
            carriers_spare: spare,
            carriers_bound: left - frozen - detached - waiting,
            carriers_frozen: frozen,
            carriers_detached: detached,
            carriers_waiting: waiting,
            carriers_refused_total: shared.refused_carriers.load(Relaxed),
            carriers_retired_total: shared.retired_carriers.load(Relaxed),
            overruns_total: preempted.overruns.load(Relaxed),
            freezes_total: preempted.freezes.load(Relaxed),
            thaws_total: preempted.thaws.load(Relaxed),
            detaches_total: preempted.detaches.load(Relaxed),
            preemptions_postponed_total: preempted.retries.load(Relaxed),
            in_place_preemptions_total: preempted.in_place.load(Relaxed),
            in_place_outside_regions_total: preempted.anywhere.load(Relaxed),
            frozen_fibers_released_total: preempted.watchdog_releases.load(Relaxed),
            preemptions_without_thread_total: preempted.cap_hits.load(Relaxed),
            signals_unanswered_total: preempted.unanswered.load(Relaxed),
            overrun_reports_lost_total: shared.reports.lost.load(Relaxed),
            membarriers_refused_total: membarrier::refused(),
            interrupted_calls_total: futex::interrupted_waits(),
            fibers_waiting_for_thread: shared.global.threadless.len(),
            unwind_delays_total: shared.unwind_pauses.load(Relaxed),
            io_sockets: match shared.driver {
                Driver::Uring(_) => IoDriver::Uring,
                Driver::Epoll(_) => IoDriver::Epoll,
            },
            io_files: match shared.files_by_uring() {
                true => IoDriver::Uring,
                false => IoDriver::BlockingPool,
            },
            io_operations_active: shared.driver.in_flight(),
            process_carriers: crate::sched::threads::start::process_carriers(),
            wake_to_run: Histogram::wake_to_run(shared),
        }
    }

    /// The share of dispatches whose fiber was in the worker's own queues; 1 without dispatches.
    ///
    /// The others took it from the global queue or from another worker.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.block_on(|| (0..1000).for_each(|_| indent::task::yield_now()));
    /// assert!(rt.metrics().local_hit_ratio() > 0.9);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn local_hit_ratio(&self) -> f64 {
        let dispatches: u64 = self.workers.iter().map(|w| w.dispatches_total).sum();
        let elsewhere = self
            .workers
            .iter()
            .map(|w| w.global_dispatches_total + w.steals_total);
        1.0 - share(elsewhere.sum::<u64>().min(dispatches), dispatches)
    }

    /// The share of steal attempts that found a fiber; 0 without attempts.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).build()?;
    /// rt.block_on(|| ());
    /// assert!((0.0..=1.0).contains(&rt.metrics().steal_success_rate()));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn steal_success_rate(&self) -> f64 {
        let attempts = self.workers.iter().map(|w| w.steal_attempts_total).sum();
        let steals: u64 = self.workers.iter().map(|w| w.steals_total).sum();
        share(steals.min(attempts), attempts)
    }
}

/// `part / whole`; 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
