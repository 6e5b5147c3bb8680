//! L3, the scheduler: which fiber runs when, on which thread.
//!
//! A *worker* is a right to run fibers, with queues. There are as many workers as fibers may run at
//! once. A *carrier* is an OS thread that can hold a worker; a worker takes its queues along when
//! it moves from carrier to carrier.
//!
//! A fiber that holds nothing of its thread, because it has not started or because its frames prove
//! it, waits in the queues of workers and runs on any thread. A parked fiber that may hold
//! something of its thread has that thread to itself, and the *worker* comes to it.
//!
//! - `threads/`, carriers: `carrier` (states of a thread), `owner` (which worker it holds),
//!   `tenant` (the bound fiber that has it to itself), `admission` (whether a fiber may start),
//!   `start`, `table`, `by_number`, `plain`, `retire`
//! - `workers/`: `worker`, `find` and `run` (what runs next, and what happens when it comes back),
//!   `idle` and `sleep` (searching, sleeping, notifying), `spawn`, `context` (the current carrier,
//!   the `Entered` token), `count` and `resize` (the number of workers), `pace`, `latency`,
//!   `no_stack`, `service`, `shutdown`
//! - `block/`, the fiber's side: `suspend` (park, yield, hand over), `wake`, `timers`,
//!   `time_limit`, `unwind_limit`, `unwind_backoff`
//! - `preempt/`: `interrupt` (the signal and its handler), `freeze`, `slices` (which frozen fiber
//!   runs next), `in_place`, `anywhere`, `detach`, `make_room`, `class`
//! - `mobility/`: `verdict` (whether a fiber may change threads), `bound` (what binds the others),
//!   `survey` (reading the program's code)
//! - `background/`: what the `monitor` and the `helper` do for a runtime
//! - `diag/`: `overrun` (fibers that compute for long), `dump` (what every fiber waits for)
//! - `io/`: waiting for descriptors

use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::driver::Driver;
use crate::error::StartError;
use crate::fiber::overflow;
use crate::fiber::slab::Slab;
use crate::fiber::stack::{self, StackGuard};
use crate::queue::global::Global;
use crate::sys::affinity::Allowed;
use crate::util::bitmap::{Bitmap, SparseBitmap};
use crate::util::loom::{Mutex, lock};
use crate::util::preempt_check;

mod background;
pub(crate) mod block;
pub(crate) mod diag;
pub(crate) mod io;
pub(crate) mod mobility;
pub(crate) mod preempt;
pub(crate) mod threads;
pub(crate) mod workers;

use threads::carrier::Carrier;
use workers::idle::Idle;
use workers::worker::{WakeReason, Worker};

/// A function that each carrier thread calls when it starts or ends.
pub(crate) type Hook = Arc<dyn Fn() + Send + Sync>;

/// The settings a runtime was started with.
pub(crate) struct Settings {
    /// Number of workers at first.
    pub(crate) workers: usize,
    /// Largest number of workers there can ever be.
    pub(crate) most_workers: usize,
    /// Whether the number was set by the user and does not follow the number of CPUs.
    pub(crate) workers_set: bool,
    /// Number of CPUs that could be used when the runtime was built.
    pub(crate) cpus: usize,
    /// Number of CPUs that may be used now, and so the number of workers there should be; at least
    /// one.
    pub(crate) count_cpus: Arc<dyn Fn() -> usize + Send + Sync>,
    /// Fibers that may need a thread start while there are fewer threads than this.
    pub(crate) soft_carriers: usize,
    /// No fiber that may need a thread starts while there are as many threads as this.
    pub(crate) max_carriers: usize,
    pub(crate) stack_class: u8,
    pub(crate) guard: StackGuard,
    pub(crate) budget: u32,
    /// Whether fibers that compute for longer than the quantum while others wait are interrupted.
    pub(crate) preempt: bool,
    /// Whether those fibers may leave their threads then, outside of regions too.
    pub(crate) preempt_in_place: bool,
    pub(crate) quantum: Duration,
    /// The number of the signal that interrupts fibers.
    pub(crate) preempt_signal: i32,
    /// How long a worker without work keeps looking before it sleeps.
    pub(crate) idle_spin: Duration,
    /// How long a fiber that gets no thread waits before it fails.
    pub(crate) start_timeout: Duration,
    /// How long dropping the runtime waits for fibers.
    pub(crate) shutdown_timeout: Duration,
    /// The tick of the runtime's clock.
    pub(crate) timer_resolution: Duration,
    pub(crate) local_queue: usize,
    pub(crate) global_interval: u32,
    /// Largest number of threads for calls that block.
    pub(crate) blocking_threads: usize,
    /// How long such a thread stays without work.
    pub(crate) blocking_keep_alive: Duration,
    /// Number of threads for `compute`, if not one per worker.
    pub(crate) compute_threads: Option<usize>,
    pub(crate) thread_name: String,
    pub(crate) log_overruns: bool,
    /// Whether fibers have their own thread-locals.
    pub(crate) own_locals: bool,
    /// Formats the line about a spawn site whose fibers keep threads, if those are reported.
    pub(crate) log_bound: Option<fn(&mobility::bound::BoundSite) -> String>,
    pub(crate) warn_stripped: bool,
    /// The name of the setting that asked for io_uring, if it is used for sockets.
    pub(crate) uring_asked_by: Option<&'static str>,
    /// Whether io_uring may be used for files.
    pub(crate) uring_allowed: bool,
    pub(crate) on_overrun: Vec<diag::overrun::reporter::Listener>,
    pub(crate) on_start: Option<Hook>,
    pub(crate) on_stop: Option<Hook>,
}

impl Settings {
    fn on_thread_start(&self) {
        self.on_start.iter().for_each(|hook| hook());
    }

    fn on_thread_stop(&self) {
        self.on_stop.iter().for_each(|hook| hook());
    }

    /// The hooks for threads other than carriers, called when such a thread starts and ends.
    pub(crate) fn hooks(&self) -> (Option<Hook>, Option<Hook>) {
        (self.on_start.clone(), self.on_stop.clone())
    }
}

/// The state that the workers of one runtime share.
pub(crate) struct Shared {
    this: Weak<Shared>,
    pub(crate) settings: Settings,
    pub(crate) workers: Box<[Worker]>,
    pub(crate) count: workers::count::Count,
    resizing: std::sync::Mutex<()>,
    carriers: threads::table::Carriers,
    threads: Mutex<threads::table::Threads>,
    /// Carriers without a worker and without a fiber.
    spares: SparseBitmap,
    /// Carriers that wait for a worker in the middle of a fiber whose worker was taken.
    wanted: SparseBitmap,
    /// Carriers that stopped in the middle of a fiber and wait for a worker (`freeze.rs`).
    frozen: SparseBitmap,
    /// Carriers whose worker was taken while they slept in the kernel, and that have not come back.
    detached: SparseBitmap,
    /// Workers that found no carrier (I20).
    orphans: Bitmap,
    /// Number of turns that frozen carriers have been given.
    tickets: AtomicU64,
    /// Whether a thread that holds no worker has queued a fiber for any worker while all were busy.
    has_urgent: AtomicBool,
    /// Whether the monitor has been notified since its last tick.
    monitor_notified: AtomicBool,
    pub(crate) preempted: preempt::freeze::Counters,
    pub(crate) reports: diag::overrun::Reports,
    /// The CPUs on which the runtime's threads may run.
    allowed_cpus: Allowed,
    pub(crate) refused_carriers: AtomicU64,
    pub(crate) retired_carriers: AtomicU64,
    /// Fibers for any worker.
    pub(crate) global: Global,
    /// Whether a deferred start may happen now.
    deferred_is_due: AtomicBool,
    /// Which fibers that wait for a thread get one, and when.
    pub(crate) threadless: threads::admission::Threadless,
    /// Parks of bound fibers, by what binds them.
    bound_parks: mobility::bound::BoundParks,
    /// Number of slices owed to the fibers that come last.
    owed: AtomicUsize,
    idle: Idle,
    /// Records for spawns from threads that hold no worker.
    outside: Mutex<Option<Slab>>,
    outside_spawned: AtomicU64,
    /// Delays of fibers that catch their unwinding (`unwind_backoff.rs`).
    pub(crate) unwind_pauses: AtomicU64,
    pub(crate) outside_wakes_sent: AtomicU64,
    pub(crate) outside_wakes_coalesced: AtomicU64,
    /// Number of fibers for which there was no stack.
    starved_count: AtomicUsize,
    starved_reported: AtomicBool,
    /// Fibers whose stack is not of the default class, by class.
    odd_stacks: [AtomicU64; stack::CLASSES],
    odd_changes: AtomicU64,
    /// Number of fibers that failed because there was no stack or no thread for them.
    never_started: AtomicU64,
    /// Largest number of fibers, if more than memory limits it.
    pub(crate) fiber_limit: Option<usize>,
    closing: AtomicBool,
    stopping: AtomicBool,
    unwind_limit: block::unwind_limit::UnwindLimit,
    /// Number of threads that wait for fibers to end, and the word they sleep on, which changes
    /// after every end. There is no lock: an observer may be a fiber of another runtime, asleep or
    /// stopped.
    observers: AtomicUsize,
    ended: AtomicU32,
    clock: block::timers::Clock,
    /// The I/O backend: epoll, or io_uring.
    pub(crate) driver: Driver,
    /// The thread that takes events while workers compute.
    io_poller: io::poller::Poller,
    /// The right of one worker to sleep in the epoll instance.
    polling_right: io::polling_right::PollingRight,
    pace: workers::pace::Pace,
    runtime_drops: io::RuntimeDrops,
    files_by_uring: OnceLock<bool>,
    missed_timers: AtomicBool,
    /// Number of CPUs at the last look.
    pub(crate) cpus: AtomicUsize,
    watchers: background::monitor::Watchers,
    pub(crate) services: workers::service::Services,
}

// No user code runs while the scheduler's state is half-changed, so a panic leaves it whole.
impl std::panic::RefUnwindSafe for Shared {}

impl Shared {
    pub(crate) fn start(mut settings: Settings) -> Result<Arc<Shared>, StartError> {
        crate::sys::fork::watch(&[workers::context::be_plain, threads::by_number::forget_all]);
        crate::sys::membarrier::prepare();
        if settings.preempt {
            crate::sys::memory::allow_arenas(settings.soft_carriers.min(settings.max_carriers));
        }
        preempt_check::ask_by(workers::context::is_preempt_disabled);
        let guard = workers::context::disable_preempt(); // may run on a fiber of another runtime
        overflow::prepare(workers::context::current_fiber)?;
        drop(guard);
        if settings.preempt {
            let signal = settings.preempt_signal;
            preempt::interrupt::prepare(signal)
                .map_err(|source| StartError::PreemptHandler { signal, source })?;
        }
        let (n, most_threads) = (settings.workers, threads::table::MOST);
        let worker = |i| {
            Worker::new(
                i,
                settings.local_queue,
                settings.stack_class,
                settings.guard,
            )
        };
        let most = settings.most_workers.max(n);
        let workers = (0..most).map(worker).collect();
        let driver = match settings.uring_asked_by {
            Some(_) => Driver::uring(most),
            None => Driver::epoll(),
        };
        let listeners = std::mem::take(&mut settings.on_overrun);
        let reporter = diag::overrun::reporter::Reporter::new(listeners, settings.log_overruns);
        let shared = Arc::new_cyclic(|this| Shared {
            this: this.clone(),
            workers,
            carriers: threads::table::Carriers::new(),
            threads: Mutex::new(threads::table::Threads::new()),
            spares: SparseBitmap::new(most_threads),
            wanted: SparseBitmap::new(most_threads),
            frozen: SparseBitmap::new(most_threads),
            detached: SparseBitmap::new(most_threads),
            orphans: Bitmap::new(most),
            tickets: AtomicU64::new(0),
            has_urgent: AtomicBool::new(false),
            monitor_notified: AtomicBool::new(false),
            preempted: preempt::freeze::Counters::default(),
            reports: diag::overrun::Reports::new(reporter),
            allowed_cpus: Allowed::new(),
            refused_carriers: AtomicU64::new(0),
            retired_carriers: AtomicU64::new(0),
            global: Global::new(),
            deferred_is_due: AtomicBool::new(false),
            threadless: threads::admission::Threadless::new(),
            bound_parks: mobility::bound::BoundParks::new(),
            owed: AtomicUsize::new(0),
            idle: Idle::new(most),
            count: workers::count::Count::new(most, n),
            resizing: std::sync::Mutex::new(()),
            outside: Mutex::new(Some(workers::spawn::obtain_slab())),
            outside_spawned: AtomicU64::new(0),
            unwind_pauses: AtomicU64::new(0),
            outside_wakes_sent: AtomicU64::new(0),
            outside_wakes_coalesced: AtomicU64::new(0),
            starved_count: AtomicUsize::new(0),
            starved_reported: AtomicBool::new(false),
            odd_stacks: [const { AtomicU64::new(0) }; stack::CLASSES],
            odd_changes: AtomicU64::new(0),
            never_started: AtomicU64::new(0),
            fiber_limit: stack::limit(settings.guard, settings.max_carriers),
            closing: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            unwind_limit: block::unwind_limit::UnwindLimit::new((settings.max_carriers / 4).max(1)),
            observers: AtomicUsize::new(0),
            ended: AtomicU32::new(0),
            clock: block::timers::Clock::new(settings.timer_resolution),
            driver,
            io_poller: io::poller::Poller::default(),
            polling_right: io::polling_right::PollingRight::new(),
            pace: workers::pace::Pace::new(),
            runtime_drops: io::RuntimeDrops::default(),
            files_by_uring: OnceLock::new(),
            missed_timers: AtomicBool::new(false),
            cpus: AtomicUsize::new(settings.cpus),
            watchers: background::monitor::Watchers::new(),
            services: workers::service::Services::new(),
            settings,
        });
        let begun = shared.start_threads();
        if begun.is_err() {
            shared.stop_threads(shared.patience(None));
        }
        begun.map(|()| shared)
    }

    fn start_threads(&self) -> Result<(), StartError> {
        self.start_watchers()
            .map_err(|source| StartError::SpawnCarrier { started: 0, source })?;
        self.make_rings()?;
        // Not `allowed`, which may change from here on.
        let workers = &self.workers[..self.settings.workers];
        for (started, worker) in workers.iter().enumerate() {
            // One at a time, because a fiber of another runtime may have to be stopped in between.
            let _guard = workers::context::disable_preempt();
            self.start_carrier(NonNull::from(worker))
                .map_err(|source| StartError::SpawnCarrier { started, source })?;
        }
        self.watchers.begun.store(true, SeqCst);
        self.study_soon(); // while the program starts up
        Ok(())
    }

    pub(crate) fn arc(&self) -> Arc<Shared> {
        self.this
            .upgrade()
            .expect("called by someone who keeps the runtime alive")
    }

    pub(crate) fn carrier(&self, index: usize) -> &Carrier {
        (self.carriers.get(index)).expect("a number in a set belongs to a carrier")
    }

    /// Number of carriers without a worker and without a fiber that are kept for the next
    /// hand-over.
    fn spares_kept(&self) -> usize {
        let allowed = self.count.allowed();
        // A freeze takes a spare that it gives back only when another carrier freezes or ends.
        allowed + (2 * self.frozen.len()).min(4 * allowed)
    }

    fn has_too_many_spares(&self) -> bool {
        self.spares.len() > self.spares_kept()
    }

    /// The workers that are not retired, or may still have something left.
    fn present(&self) -> &[Worker] {
        &self.workers[..self.count.present()]
    }

    /// Number of threads of `compute` that should compute now.
    pub(crate) fn compute_wanted(&self) -> usize {
        let set = self.settings.compute_threads;
        set.unwrap_or_else(|| self.count.allowed())
    }

    /// Whether fibers wait that compute much, or will, or were interrupted.
    pub(crate) fn has_batch(&self) -> bool {
        self.global.batch.len() > 0
            || self.global.deferred.len() > 0
            || self.global.interrupted.len() > 0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Requests a worker for a carrier that waits in the middle of a fiber.
    fn want(&self, carrier: usize) {
        self.wanted.set(carrier);
        if !self.notify_searcher(carrier) {
            self.make_room(0, None);
        }
    }

    /// Notifies a worker after a push that any worker may take; true if it did.
    ///
    /// None is notified while a worker searches.
    pub(crate) fn notify_searcher(&self, start: usize) -> bool {
        let wake_reason = self.idle.submit(start);
        if let Some(index) = wake_reason {
            self.notify_worker(&self.workers[index], WakeReason::TO_SEARCH);
        }
        wake_reason.is_some()
    }

    /// Like [`notify_searcher`](Self::notify_searcher), by the holder of a worker, which counts the
    /// wake.
    #[inline]
    fn notify_searcher_from(&self, worker: &Worker) {
        let sent = self.notify_searcher(worker.index + 1);
        worker.counters.count_wake(sent);
    }

    /// Counts a wake on the caller's worker, or for the runtime if the caller holds none.
    fn count_wake(&self, sent: bool) {
        let token = workers::context::enter().filter(|t| std::ptr::eq(t.carrier().shared(), self));
        match token {
            Some(token) => token.worker().counters.count_wake(sent),
            None if sent => drop(self.outside_wakes_sent.fetch_add(1, Relaxed)),
            None => drop(self.outside_wakes_coalesced.fetch_add(1, Relaxed)),
        }
    }

    /// Notifies a worker whose sleep the caller claimed.
    #[expect(unsafe_code, reason = "workers know their carrier by pointer")]
    fn notify_worker(&self, worker: &Worker, why: u8) {
        worker.wake_reason.store(why, SeqCst);
        // SAFETY: set when the worker was first given away; carriers live as long as `Shared`.
        unsafe { &*worker.carrier.load(SeqCst) }.parker.notify();
    }

    /// Number of fibers that are not over.
    ///
    /// Finished fibers are counted first: if the sums are equal there was a moment without fibers.
    pub(crate) fn alive(&self) -> u64 {
        let failed = self.never_started();
        let finished: u64 = self.workers.iter().map(|w| w.counters.finished.get()).sum();
        self.spawned() - finished - failed
    }

    /// Number of fibers that failed before they started.
    pub(crate) fn never_started(&self) -> u64 {
        self.never_started.load(SeqCst)
    }

    pub(crate) fn spawned(&self) -> u64 {
        let inside: u64 = self.workers.iter().map(|w| w.counters.spawned.get()).sum();
        inside + self.outside_spawned.load(SeqCst)
    }

    /// Number of carrier threads of this runtime.
    pub(crate) fn carrier_threads(&self) -> usize {
        self.carriers.len()
    }

    pub(crate) fn resting_carriers(&self) -> usize {
        self.spares.len()
    }

    pub(crate) fn frozen_carriers(&self) -> usize {
        self.frozen.len()
    }

    pub(crate) fn waiting_carriers(&self) -> usize {
        self.wanted.len()
    }

    pub(crate) fn detached_carriers(&self) -> usize {
        self.detached.len()
    }

    /// Number of carriers that hold a worker.
    pub(crate) fn holding_carriers(&self) -> usize {
        let workers = self.workers.iter();
        let held = |w: &&Worker| {
            w.carrier()
                .is_some_and(|c| c.owner.peek() == Some(NonNull::from(*w)))
        };
        workers.filter(held).count()
    }

    pub(crate) fn queued_for_all(&self) -> usize {
        self.global.unstarted.len()
            + self.global.started.len()
            + self.global.interrupted.len()
            + self.global.batch.len()
            + self.global.deferred.len()
    }

    pub(crate) fn starved(&self) -> usize {
        self.starved_count.load(SeqCst)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if crate::sys::fork::in_child() {
            // F1: slabs are returned under a lock, and pools may wait for threads. Ours stay where
            // they are.
            std::mem::forget(std::mem::take(&mut self.workers));
            let none = workers::service::Services::new();
            std::mem::forget(std::mem::replace(&mut self.services, none));
            std::mem::forget(self.reports.reporter.clone());
            return;
        }
        // The thread that drops the last reference may be a fiber of another runtime: slabs and
        // stacks go to pools that all runtimes share. The user's values (hooks) are dropped later,
        // with preemption enabled.
        let _guard = workers::context::disable_preempt();
        // No thread is left, so none holds a worker: its slab can serve the next runtime.
        for worker in std::mem::take(&mut self.workers) {
            worker.local.into_inner().slab.retire();
        }
        if let Some(outside) = lock(&self.outside).take() {
            outside.retire();
        }
    }
}
