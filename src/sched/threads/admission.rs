#![expect(unsafe_code, reason = "looks at fibers that have not started")]
//! Whether a fiber may start now.
//!
//! A fiber that parks while it is bound keeps its thread, so each start may cost a thread. Fibers
//! that are known to be movable start at any time. For others there are two limits:
//!
//! - **Soft limit.** Up to this number of threads they start at once. Before the program's code has
//!   been read, when every fiber is unjudged, the number is smaller ([`COLD_THREADS`] for each
//!   worker). Beyond the limit they wait, and start when threads become free. The fibers that hold
//!   the threads may wait for those that have not started, so waiting fibers also start whenever no
//!   worker has dispatched anything for [`STILL`]. In any case some start when none of them has
//!   started for [`STARVED`]: the fibers that hold the threads may poll now and then.
//! - **Hard limit** (`max_carriers`, or the system refuses threads). Beyond it they wait until
//!   threads become free. A fiber that has waited for `start_timeout`, while none of the waiting
//!   fibers has started for as long, ends with an error. A dump on standard error then says what
//!   every fiber waits for.
//!
//! Waiting fibers start in the order in which they came: while some wait, a fiber that may need a
//! thread goes behind them even if a thread is free. None of them starts unless each worker has a
//! spare thread, on which it can run movable fibers whatever happens to the started fiber. A fiber
//! that has started always gets a thread, beyond both limits.
//!
//! In addition, while many threads are frozen in the middle of computations, starts from places
//! whose fibers computed much before are *deferred*: one starts every [`DEFERRED_EVERY`] ticks of
//! the monitor.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use indent_sysmon::frames;

use crate::error::JoinError;
use crate::fiber::FiberRef;
use crate::fiber::record::ANY_WORKER;
use crate::queue::lane::popped;
use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::mobility::verdict;
use crate::sched::preempt::class::Sites;
use crate::sched::threads::retire;
use crate::sched::workers::context;
use crate::sys::stderr;
use crate::util::list::List;
use crate::util::loom::atomic;

/// Threads per worker for fibers that are unjudged because the program's code has not been read.
const COLD_THREADS: usize = 64;
/// After this time without a dispatch, fibers with threads are assumed to wait for unstarted ones.
const STILL: Duration = Duration::from_millis(10);
/// Like [`STILL`], before the program's code has been read.
const STILL_COLD: Duration = Duration::from_millis(2);
/// After this time without a start, threads are added although other fibers run.
const STARVED: Duration = Duration::from_millis(100);
/// Largest number of threads added at once. The number starts at one and doubles each time.
const MOST_ADDED: usize = 32;
/// Pause between two looks for fibers that have waited for `start_timeout`.
const FAIL_PAUSE: Duration = Duration::from_millis(100);
/// Ticks of the monitor between two deferred starts.
const DEFERRED_EVERY: u64 = 20;

/// The reason why a fiber gets no thread to start on.
#[derive(Clone, Copy)]
enum Shortage {
    /// `soft_carriers` threads are in use.
    Soft,
    /// `max_carriers` threads are in use.
    Hard,
    /// The system refused the last thread.
    Refused,
}

impl Shortage {
    fn message(self) -> &'static str {
        match self {
            Shortage::Soft => {
                "indent: parked fibers that are bound to their threads hold as many threads as \
                 INDENT_SOFT_CARRIERS allows; fibers that may need one more wait to start (raise \
                 it, or see what binds them: Runtime::binding, INDENT_LOG_BOUND=1)\n"
            }
            Shortage::Hard => {
                "indent: parked fibers that are bound to their threads hold as many threads as \
                 INDENT_MAX_CARRIERS allows; fibers that may need one more wait to start, and fail \
                 after INDENT_START_TIMEOUT_MS (raise the limit, or see what binds them: Runtime::binding, \
                 INDENT_LOG_BOUND=1)\n"
            }
            Shortage::Refused => {
                "indent: the system refuses to start another thread; fibers that may need one wait \
                 to start, and fail after INDENT_START_TIMEOUT_MS (raise ulimit -u, pids.max of the control \
                 group or vm.max_map_count, or set INDENT_MAX_CARRIERS to what it allows)\n"
            }
        }
    }
}

/// Whether and how a fiber may start.
pub(crate) enum Start {
    /// The fiber is known to be movable.
    Now,
    /// The fiber may need a thread. The caller has a reservation until it has brought the fiber to
    /// the thread where it starts ([`Shared::end_reservation`]).
    Reserved,
    /// The fiber computes much and waits, because many threads are frozen.
    Deferred,
    /// There are too many threads.
    WithoutThread,
}

/// Which fibers that wait for a thread (`Global::threadless`) get one, and when.
pub(crate) struct Threadless {
    /// Workers that are about to start a fiber that may need a thread, and have not yet brought it
    /// to its thread. Each takes one of the spares if it is on the thread of a parked fiber.
    reserved: AtomicUsize,
    /// Threads beyond the limit, granted because nothing was dispatched.
    granted: AtomicUsize,
    /// How many threads are granted next. The monitor's own.
    step: AtomicUsize,
    /// Dispatches at the monitor's last look, and the time since when that number stands. The
    /// monitor's own.
    dispatches: AtomicU64,
    still_since: AtomicU64,
    /// When a fiber last began to wait while none did, or when a waiting fiber last started.
    progress: AtomicU64,
    /// When threads were last granted, and when the collector was last asked to fail fibers. The
    /// monitor's own.
    granted_at: AtomicU64,
    failed_at: AtomicU64,
    /// Shortages that have been reported, as bits.
    reported: AtomicU8,
    /// Whether there has been a dump since fibers began to wait. The collector's own.
    dumped: AtomicBool,
    /// Whether the system refused the last thread.
    refused: AtomicBool,
}

impl Threadless {
    pub(crate) fn new() -> Self {
        Threadless {
            reserved: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            step: AtomicUsize::new(1),
            dispatches: AtomicU64::new(0),
            still_since: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            granted_at: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
            reported: AtomicU8::new(0),
            dumped: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    /// Whether the system refused the last thread.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// Records whether the system refused a thread when it was last asked.
    pub(crate) fn note_refused(&self, refused: bool) {
        if self.refused.load(Relaxed) != refused {
            self.refused.store(refused, Relaxed);
        }
    }
}

impl Shared {
    /// Decides whether a fiber that was taken off a queue (I1) may start now.
    ///
    /// `deferred` says that the fiber's turn among the deferred ones has come; `occupied` says that
    /// the worker is on the thread of a parked fiber.
    pub(crate) fn admit_start(&self, fiber: FiberRef, deferred: bool, occupied: bool) -> Start {
        if self.is_closing() {
            return Start::Now; // to be dropped: no thread is made for that any more
        }
        if !deferred && self.has_many_frozen() && self.is_put_off(fiber) {
            return Start::Deferred;
        }
        // Fibers that wait for a thread come first. A fiber that must start on a certain worker
        // does not take part in their order.
        let anywhere = fiber.worker.load(atomic::Ordering::Relaxed) == ANY_WORKER;
        let is_behind = anywhere && self.global.threadless.len() > 0;
        let has_thread = !is_behind && self.has_thread_for_start();
        if has_thread && self.reserve(occupied, || false) {
            return Start::Reserved;
        }
        // SAFETY: by the caller's promise.
        if unsafe { verdict::starts_movable(fiber) } && self.trusts_verdicts() {
            Start::Now
        } else if has_thread && self.reserve(occupied, || self.make_spare()) {
            Start::Reserved
        } else {
            Start::WithoutThread
        }
    }

    /// Makes a reservation if there are enough threads without a fiber.
    ///
    /// `make` is called to start the threads that are missing; the reservation fails if it cannot.
    ///
    /// A fiber that may need a thread starts only if each worker that is awake has a spare
    /// afterwards. If the system refused a thread after such fibers have parked, movable fibers
    /// would have no thread to run on. Two workers may ask at the same time, so each counts what
    /// the other may take. Only threads that exist count.
    fn reserve(&self, occupied: bool, make: impl Fn() -> bool) -> bool {
        let reserved = &self.threadless.reserved;
        let others = reserved.fetch_add(1, SeqCst);
        if retire::is_here() {
            return true; // a thread that starts none; the worker is about to leave it
        }
        let is_short = || {
            let awake = self.count.allowed().saturating_sub(self.idle.asleep());
            let needed = awake + others + usize::from(occupied);
            self.spares.len() + self.starting_spares() < needed
        };
        let made = loop {
            match is_short() {
                false => break true,
                true if make() => {}
                true => break false,
            }
        };
        if !made {
            self.end_reservation();
        }
        made
    }

    /// Ends a reservation: the fiber is on the thread where it starts, or starts later.
    pub(crate) fn end_reservation(&self) {
        self.threadless.reserved.fetch_sub(1, SeqCst);
    }

    /// Starts a spare thread; false if the system refuses it.
    ///
    /// After a refusal the helper tries, and no fiber that may need a thread starts before there is
    /// a spare for each worker.
    #[cold]
    fn make_spare(&self) -> bool {
        let made = self.start_spare().is_ok();
        if !made {
            self.threadless.note_refused(true);
        }
        made
    }

    /// Whether this fiber starts later because many threads are frozen.
    ///
    /// While many are frozen, this is a fiber from a place whose fibers compute much. While far too
    /// many are frozen, it is any fiber.
    fn is_put_off(&self, fiber: FiberRef) -> bool {
        let anywhere = fiber.worker.load(atomic::Ordering::Relaxed) == ANY_WORKER;
        let site = Sites::get(fiber.location());
        let put_off = site.is_bad()
            || !site.is_good() && self.has_too_many_frozen()
            || self.has_far_too_many_frozen();
        self.settings.preempt && anywhere && put_off
    }

    /// Number of threads that hold a fiber or a worker.
    fn used_threads(&self) -> usize {
        self.carrier_threads().saturating_sub(self.spares.len())
    }

    /// Whether the program's code has been read, or never will be.
    fn has_studied(&self) -> bool {
        frames::judge().is_some() || frames::has_failed()
    }

    fn soft_limit(&self) -> usize {
        let soft = self.settings.soft_carriers.min(self.settings.max_carriers);
        if self.has_studied() {
            soft
        } else {
            soft.min(COLD_THREADS * self.count.allowed())
        }
    }

    fn has_thread_for_start(&self) -> bool {
        let threadless = &self.threadless;
        // The number does not depend on how many workers are awake: a worker that looks here before
        // it sleeps and then looks for work must get the same answer twice.
        if threadless.is_refused() && self.spares.len() < self.spares_for_starts() {
            return false;
        }
        let granted = threadless.granted.load(Relaxed);
        let most = (self.soft_limit() + granted).min(self.settings.max_carriers);
        self.used_threads() < most.max(self.count.allowed() + 1)
    }

    /// Number of spares with which every reservation succeeds.
    ///
    /// One for each worker, and one for each worker that is about to start a fiber on another
    /// thread.
    pub(crate) fn spares_for_starts(&self) -> usize {
        2 * self.count.allowed()
    }

    /// Queues a fiber that may not start until it gets a thread.
    #[cold]
    pub(crate) fn wait_for_thread(&self, fiber: FiberRef) {
        let threadless = &self.threadless;
        if self.global.threadless.len() == 0 {
            threadless.progress.store(self.clock.nanos(), Relaxed);
        }
        if fiber.waits_since() == 0 {
            fiber.note_wait(self.clock.set(Instant::now()).max(1) as u32);
        }
        self.global.threadless.push(fiber);
        // A soft limit that holds while the code is being read is not worth a message.
        match self.shortage() {
            Shortage::Soft if !self.has_studied() => {}
            shortage => {
                let bit = 1 << shortage as u8;
                if threadless.reported.fetch_or(bit, Relaxed) & bit == 0 {
                    stderr::print(shortage.message());
                }
            }
        }
        self.watchers.notice();
    }

    fn shortage(&self) -> Shortage {
        if self.threadless.is_refused() {
            Shortage::Refused
        } else if self.used_threads().max(self.soft_limit()) >= self.settings.max_carriers {
            Shortage::Hard
        } else {
            Shortage::Soft
        }
    }

    /// Whether a fiber waits for a thread and may have one.
    pub(crate) fn may_start_threadless(&self) -> bool {
        self.global.threadless.len() > 0 && self.has_thread_for_start()
    }

    /// Queues all fibers that wait for a thread again, once the program's code has been read.
    ///
    /// Fibers that are now known to be movable need no thread, and the limit for the others is
    /// different.
    pub(crate) fn requeue_threadless(&self) {
        let guard = context::disable_preempt();
        let mut waiting = self.global.threadless.pop(usize::MAX);
        while let Some(fiber) = waiting.pop() {
            self.queue_again(popped(fiber));
        }
        drop(guard);
    }

    /// Takes the oldest fiber that waits for a thread, if it may have one.
    ///
    /// The caller then has a reservation, as for [`Start::Reserved`].
    pub(crate) fn next_threadless(&self, occupied: bool) -> Option<FiberRef> {
        let make = || self.make_spare();
        if !self.may_start_threadless() || !self.reserve(occupied, make) {
            return None;
        }
        let fiber = self.global.threadless.pop(1).pop().map(popped);
        if fiber.is_some() {
            self.threadless.progress.store(self.clock.nanos(), Relaxed);
        }
        let anywhere =
            |fiber: &FiberRef| fiber.worker.load(atomic::Ordering::Relaxed) == ANY_WORKER;
        match fiber {
            Some(fiber) if anywhere(&fiber) => return Some(fiber),
            Some(fiber) => self.queue_again(fiber),
            None => {}
        }
        self.end_reservation();
        None
    }

    /// Grants threads beyond the limit while nothing is dispatched or no waiting fiber starts.
    ///
    /// Runs on the monitor's thread at each tick.
    pub(crate) fn mind_threadless(&self) {
        let threadless = &self.threadless;
        if self.global.threadless.len() == 0 {
            threadless.granted.store(0, Relaxed);
            threadless.step.store(1, Relaxed);
            return;
        }
        let now = self.clock.nanos();
        let dispatches = self.workers.iter().map(|w| w.published.dispatches()).sum();
        let before = threadless.dispatches.swap(dispatches, Relaxed);
        let still = nanos(if self.has_studied() {
            STILL
        } else {
            STILL_COLD
        });
        if before != dispatches {
            threadless.still_since.store(now, Relaxed);
        }
        let since = |at: &AtomicU64| now.saturating_sub(at.load(Relaxed));
        let starves = since(&threadless.progress).min(since(&threadless.granted_at));
        if since(&threadless.still_since) >= still || starves >= nanos(STARVED) {
            let step = threadless.step.load(Relaxed);
            let granted = (self.used_threads() + step).saturating_sub(self.soft_limit());
            threadless.granted.store(granted, SeqCst);
            threadless.step.store((2 * step).min(MOST_ADDED), Relaxed);
            threadless.still_since.store(now, Relaxed);
            threadless.granted_at.store(now, Relaxed);
        }
        if self.may_start_threadless() {
            self.notify_searcher(0);
        } else if since(&threadless.progress) >= nanos(self.settings.start_timeout)
            && since(&threadless.failed_at) >= nanos(FAIL_PAUSE)
        {
            threadless.failed_at.store(now, Relaxed);
            self.ask_to_fail_threadless();
        }
    }

    /// Ends fibers that have waited too long for a thread with an error. Runs on the collector's
    /// thread.
    pub(crate) fn fail_threadless(&self) {
        let threadless = &self.threadless;
        let timeout = self.settings.start_timeout;
        let progress = self.clock.at(threadless.progress.load(Relaxed));
        if progress.elapsed() < timeout {
            threadless.dumped.store(false, Relaxed);
            return;
        }
        if !threadless.dumped.swap(true, Relaxed) {
            stderr::print(&self.dump());
        }
        let now = self.clock.set(Instant::now()) as u32;
        let guard = context::disable_preempt();
        let mut waiting = self.global.threadless.pop(usize::MAX);
        let (mut overdue, mut others) = (List::new(), List::new());
        while let Some(member) = waiting.pop() {
            let fiber = popped(member);
            let is_overdue = self.clock.between(fiber.waits_since(), now) >= timeout;
            let list = if is_overdue {
                &mut overdue
            } else {
                &mut others
            };
            // SAFETY: just popped, so in no list; and ours, so alive (I3).
            unsafe { list.push(fiber.pointer()) };
        }
        self.global.threadless.push_all(others);
        drop(guard);
        if !overdue.is_empty() {
            self.fail_unstarted(overdue, JoinError::no_thread);
        }
    }

    /// Makes a deferred start due every [`DEFERRED_EVERY`] ticks. Runs on the monitor's thread.
    pub(crate) fn mind_deferred(&self, ticks: u64) {
        if ticks.is_multiple_of(DEFERRED_EVERY) && self.global.deferred.len() > 0 {
            self.deferred_is_due.store(true, Relaxed);
        }
    }

    /// Whether a deferred fiber may start: one is due, or few threads are frozen.
    pub(crate) fn may_start_deferred(&self) -> bool {
        self.global.deferred.len() > 0
            && (self.deferred_is_due.swap(false, Relaxed) || !self.has_many_frozen())
    }
}
