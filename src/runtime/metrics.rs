//! What a runtime has done, in numbers.

use crate::fiber::stack::{self, Guard};
use crate::sched::Shared;
use crate::sched::worker::Worker;

/// Numbers of one runtime. Counters are read one after the other while the runtime goes on, so
/// sums may be off by what happened in between.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(2).build()?;
/// rt.block_on(|| indent::spawn(|| ()).join().unwrap());
/// rt.wait_idle();
/// let metrics = rt.metrics();
/// assert_eq!(metrics.workers.len(), 2);
/// assert_eq!((metrics.fibers_spawned, metrics.fibers_alive), (2, 0));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// One entry for each worker there has been.
    pub workers: Vec<WorkerMetrics>,
    /// Workers in service.
    pub workers_now: usize,
    /// CPUs the runtime may use: how many workers there should be.
    pub cpus_allowed: usize,
    /// Fibers spawned since the start.
    pub fibers_spawned: u64,
    /// Fibers that are not over.
    pub fibers_alive: u64,
    /// Fibers that have a stack.
    pub fibers_with_stack: u64,
    /// Unstarted fibers in queues.
    pub fibers_queued: usize,
    /// Unstarted fibers that wait for a stack.
    pub fibers_starved: usize,
    /// Deadlines that have neither passed nor been given up.
    pub timers_active: usize,
    /// Deadlines that passed.
    pub timers_fired_total: u64,
    /// Threads of this runtime.
    pub carriers: usize,
    /// Threads of all runtimes of the process.
    pub process_carriers: usize,
    /// Threads that hold no worker and run nothing.
    pub carriers_resting: usize,
    /// How often a thread was needed and could not be had.
    pub carriers_refused: u64,
    /// Ranges of address space mapped for stacks, by all runtimes of the process.
    pub stack_slabs: usize,
    /// How the ends of stacks are guarded.
    pub stack_guard: Guard,
    /// How many fibers there can be at once, where guards need mappings of their own.
    pub fiber_limit: Option<usize>,
}

/// Numbers of one worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Fibers spawned by fibers it ran.
    pub spawned: u64,
    /// Times it switched to a fiber.
    pub dispatches: u64,
    /// Fibers it started.
    pub started: u64,
    /// Fibers that ended on it.
    pub finished: u64,
    /// Times it stole from another worker.
    pub steals: u64,
    /// Fibers it got that way.
    pub stolen: u64,
    /// Parks that really waited.
    pub parks: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it moved to another carrier.
    pub moves: u64,
    /// Times its queue was full and half went to the shared one.
    pub overflows: u64,
}

impl WorkerMetrics {
    fn of(worker: &Worker) -> Self {
        let counters = &worker.counters;
        WorkerMetrics {
            spawned: counters.spawned.get(),
            dispatches: worker.published.dispatches(),
            started: counters.started.get(),
            finished: counters.finished.get(),
            steals: counters.steals.get(),
            stolen: counters.stolen.get(),
            parks: counters.parks.get(),
            sleeps: counters.sleeps.get(),
            moves: counters.moves.get(),
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
        Metrics {
            timers_active: shared.timers_active(),
            timers_fired_total: shared.timers_fired(),
            workers_now: shared.workers_now(),
            cpus_allowed: shared.count.allowed(),
            fibers_spawned: shared.spawned(),
            fibers_alive: shared.alive(),
            fibers_with_stack: shared.with_stack(),
            fibers_queued: shared.queued(),
            fibers_starved: shared.starved(),
            carriers: shared.carrier_threads(),
            process_carriers: crate::sched::carrier::process_carriers(),
            carriers_resting: shared.resting_carriers(),
            carriers_refused: shared
                .refused_carriers
                .load(std::sync::atomic::Ordering::Relaxed),
            stack_slabs: stack::slabs(),
            stack_guard: shared.settings.guard,
            fiber_limit: shared.fiber_limit,
            workers,
        }
    }
}
