//! L3: who runs what, where.
//!
//! A *worker* is a right to run fibers, with queues; there are as many as there may be fibers
//! running at once. A *carrier* is an OS thread that can hold one, and takes its queues along when
//! it moves. A fiber that holds nothing of its thread, because it has not started or because its
//! frames say so, waits in the queues of workers and runs on any thread. A parked fiber that may
//! hold something of its thread has that thread to itself, and the *worker* comes to it.
//!
//! | folder | what it holds |
//! |---|---|
//! | `threads/` | carriers: `carrier` (states of a thread), `owner` (which worker it holds), `tenant` (the bound fiber that has it to itself), `admission` (whether a fiber may start), `start`, `table`, `by_number`, `plain`, `retire` |
//! | `workers/` | `worker`, `find` and `run` (what runs next, and what happens when it comes back), `idle` and `sleep` (searching, sleeping, notifying), `spawn`, `context` (the current carrier, the `Entered` token), `count` and `resize` (how many, live), `pace`, `latency`, `no_stack`, `service`, `shutdown` |
//! | `block/` | the fiber's side: `suspend` (park, yield, hand over), `wake`, `timers`, `time_limit`, `unwind_limit`, `unwind_backoff` |
//! | `preempt/` | `interrupt` (the signal and its handler), `freeze`, `slices` (whose turn it is among the frozen), `in_place`, `anywhere`, `detach`, `make_room`, `class` |
//! | `mobility/` | `verdict` (whether a fiber may change threads), `bound` (what binds the others), `survey` (reading the program's code) |
//! | `background/` | what the `monitor` and the `helper` do for a runtime |
//! | `diag/` | `overrun` (fibers that compute for long), `dump` (what every fiber waits for) |
//! | `io/` | waiting for descriptors |

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

/// What a runtime was started with.
pub(crate) struct Settings {
    /// How many there are at first.
    pub(crate) workers: usize,
    /// The most there can ever be.
    pub(crate) most_workers: usize,
    /// The number was set by hand and does not follow that of CPUs.
    pub(crate) workers_set: bool,
    /// How many CPUs could be used when the runtime was built.
    pub(crate) cpus: usize,
    /// How many CPUs may be used now, and so how many workers there should be; at least one.
    pub(crate) count_cpus: Arc<dyn Fn() -> usize + Send + Sync>,
    /// Fibers that may need a thread start while there are fewer threads than this.
    pub(crate) soft_carriers: usize,
    /// No fiber that may need a thread starts while there are as many threads as this.
    pub(crate) max_carriers: usize,
    pub(crate) stack_class: u8,
    pub(crate) guard: StackGuard,
    pub(crate) budget: u32,
    /// Fibers that compute for longer than the quantum while others wait are interrupted.
    pub(crate) preempt: bool,
    /// They may leave their threads then, outside of regions too.
    pub(crate) preempt_in_place: bool,
    pub(crate) quantum: Duration,
    /// The number of the signal that interrupts.
    pub(crate) preempt_signal: i32,
    /// How long a worker without work looks on before it sleeps.
    pub(crate) idle_spin: Duration,
    /// How long a fiber that can get no thread waits before it fails.
    pub(crate) start_timeout: Duration,
    /// How long dropping the runtime waits.
    pub(crate) shutdown_timeout: Duration,
    /// The tick of its clock.
    pub(crate) timer_resolution: Duration,
    pub(crate) local_queue: usize,
    pub(crate) global_interval: u32,
    /// Most threads for calls that block.
    pub(crate) blocking_threads: usize,
    /// How long such a thread stays without work.
    pub(crate) blocking_keep_alive: Duration,
    /// Threads that compute, if not one per worker.
    pub(crate) compute_threads: Option<usize>,
    pub(crate) thread_name: String,
    pub(crate) log_overruns: bool,
    /// Fibers have thread-locals of their own.
    pub(crate) own_locals: bool,
    /// Makes the line about a spawn site whose fibers keep threads, if those are reported.
    pub(crate) log_bound: Option<fn(&mobility::bound::BoundSite) -> String>,
    pub(crate) warn_stripped: bool,
    /// The name of the setting that asked for io_uring, if it is used for sockets.
    pub(crate) uring_asked_by: Option<&'static str>,
    /// io_uring may be used for files.
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

    /// What other threads than carriers call when they start and end.
    pub(crate) fn hooks(&self) -> (Option<Hook>, Option<Hook>) {
        (self.on_start.clone(), self.on_stop.clone())
    }
}

/// What the workers of one runtime share.
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
    /// Workers that found no carrier.
    orphans: Bitmap,
    /// Turns of frozen carriers that have been dealt out.
    tickets: AtomicU64,
    /// Somebody from outside has queued a fiber for all while everybody was busy.
    has_urgent: AtomicBool,
    /// The monitor has been rung since it last took its time.
    monitor_notified: AtomicBool,
    pub(crate) preempted: preempt::freeze::Counters,
    pub(crate) reports: diag::overrun::Reports,
    /// On which CPUs our threads may run.
    allowed_cpus: Allowed,
    pub(crate) refused_carriers: AtomicU64,
    pub(crate) retired_carriers: AtomicU64,
    /// Fibers for any worker.
    pub(crate) global: Global,
    /// A deferred start may happen now.
    deferred_is_due: AtomicBool,
    /// How fibers that wait for a thread get one.
    pub(crate) threadless: threads::admission::Threadless,
    /// Parks of bound fibers, by what binds them.
    bound_parks: mobility::bound::BoundParks,
    /// So many slices the fibers that others come before are to get next.
    owed: AtomicUsize,
    idle: Idle,
    /// Records for spawns from threads that hold no worker.
    outside: Mutex<Option<Slab>>,
    outside_spawned: AtomicU64,
    /// Delays of fibers that catch their unwinding (`swallow.rs`).
    pub(crate) unwind_pauses: AtomicU64,
    pub(crate) outside_wakes_sent: AtomicU64,
    pub(crate) outside_wakes_coalesced: AtomicU64,
    /// Fibers for which there was no stack.
    starved_count: AtomicUsize,
    starved_reported: AtomicBool,
    /// Fibers with a stack of another than the default class, by class.
    odd_stacks: [AtomicU64; stack::CLASSES],
    odd_changes: AtomicU64,
    /// Fibers that failed because there was no stack or no thread for them.
    never_started: AtomicU64,
    /// How many fibers there can be, if that is limited by more than memory.
    pub(crate) fiber_limit: Option<usize>,
    closing: AtomicBool,
    stopping: AtomicBool,
    unwind_limit: block::unwind_limit::UnwindLimit,
    /// Threads that wait for fibers to end, and the word they sleep on, another one after every end.
    /// No lock: an observer may be a fiber of another runtime, asleep or stopped.
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
    /// How many CPUs there were when somebody last looked.
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
        let guard = workers::context::disable_preempt(); // on a fiber of another runtime
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
        // Not `allowed`: that may change from here on.
        let workers = &self.workers[..self.settings.workers];
        for (started, worker) in workers.iter().enumerate() {
            let _guard = workers::context::disable_preempt(); // one at a time: a fiber of another runtime may be stopped
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

    /// Carriers without a worker and without fibers that are kept for the next hand-over.
    fn spares_kept(&self) -> usize {
        let allowed = self.count.allowed();
        // A freeze takes one that it gives back only when another one freezes or ends.
        allowed + (2 * self.frozen.len()).min(4 * allowed)
    }

    fn has_too_many_spares(&self) -> bool {
        self.spares.len() > self.spares_kept()
    }

    /// Workers worth looking at.
    fn present(&self) -> &[Worker] {
        &self.workers[..self.count.present()]
    }

    /// How many threads should compute now.
    pub(crate) fn compute_wanted(&self) -> usize {
        let set = self.settings.compute_threads;
        set.unwrap_or_else(|| self.count.allowed())
    }

    /// Fibers wait that compute much, or will, or were interrupted.
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

    /// Asks for a worker to be brought to a carrier that waits in the middle of a fiber.
    fn want(&self, carrier: usize) {
        self.wanted.set(carrier);
        if !self.notify_searcher(carrier) {
            self.make_room(0, None);
        }
    }

    /// After a push that any worker may take: rouses one if none is looking; true if it did.
    pub(crate) fn notify_searcher(&self, start: usize) -> bool {
        let wake_reason = self.idle.submit(start);
        if let Some(index) = wake_reason {
            self.notify_worker(&self.workers[index], WakeReason::TO_SEARCH);
        }
        wake_reason.is_some()
    }

    /// The same by the holder of a worker, which counts it.
    #[inline]
    fn notify_searcher_from(&self, worker: &Worker) {
        let sent = self.notify_searcher(worker.index + 1);
        worker.counters.count_wake(sent);
    }

    /// Counts a wake by whoever calls: on the caller's worker, if it holds one.
    fn count_wake(&self, sent: bool) {
        let token = workers::context::enter().filter(|t| std::ptr::eq(t.carrier().shared(), self));
        match token {
            Some(token) => token.worker().counters.count_wake(sent),
            None if sent => drop(self.outside_wakes_sent.fetch_add(1, Relaxed)),
            None => drop(self.outside_wakes_coalesced.fetch_add(1, Relaxed)),
        }
    }

    /// Wakes a worker whose sleep the caller claimed.
    #[expect(unsafe_code, reason = "workers know their carrier by pointer")]
    fn notify_worker(&self, worker: &Worker, why: u8) {
        worker.wake_reason.store(why, SeqCst);
        // SAFETY: set when the worker was first given away; carriers live as long as `Shared`.
        unsafe { &*worker.carrier.load(SeqCst) }.parker.notify();
    }

    /// Fibers that are not over. Finished ones are counted first: if the sums are equal there was
    /// a moment with none.
    pub(crate) fn alive(&self) -> u64 {
        let failed = self.never_started();
        let finished: u64 = self.workers.iter().map(|w| w.counters.finished.get()).sum();
        self.spawned() - finished - failed
    }

    /// Fibers that failed before they started.
    pub(crate) fn never_started(&self) -> u64 {
        self.never_started.load(SeqCst)
    }

    pub(crate) fn spawned(&self) -> u64 {
        let inside: u64 = self.workers.iter().map(|w| w.counters.spawned.get()).sum();
        inside + self.outside_spawned.load(SeqCst)
    }

    /// Carrier threads of this runtime.
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

    /// Those that hold a worker.
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
            // F1: slabs go behind a lock, and pools may wait for threads. Ours stay where they are.
            std::mem::forget(std::mem::take(&mut self.workers));
            let none = workers::service::Services::new();
            std::mem::forget(std::mem::replace(&mut self.services, none));
            std::mem::forget(self.reports.reporter.clone());
            return;
        }
        // By whoever had the last reference, perhaps a fiber of another runtime: slabs and stacks go
        // to where all runtimes take them from. What is the user's (hooks) goes later, unmarked.
        let _guard = workers::context::disable_preempt();
        // No thread is left, so nobody holds a worker: its slab can serve the next runtime.
        for worker in std::mem::take(&mut self.workers) {
            worker.local.into_inner().slab.retire();
        }
        if let Some(outside) = lock(&self.outside).take() {
            outside.retire();
        }
    }
}
