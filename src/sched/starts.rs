#![expect(unsafe_code, reason = "looks at fibers that have not started")]
//! Whether a fiber may start now.
//!
//! A fiber that parks while it is bound keeps its thread, so each start may cost a thread. Fibers
//! that are known to be movable start at any time. For others there are limits:
//!
//! - Up to a *soft* number of threads they start at once; before the program's code has been read,
//!   when every fiber is unjudged, that number is smaller ([`COLD_THREADS`] a worker). Beyond it
//!   they wait, and start when threads become free; or, since the fibers that hold the threads may
//!   wait for those that have not started, whenever no worker has dispatched anything for
//!   [`STILL`], and in any case when none of them has started for [`STARVED`]: the fibers that hold
//!   the threads may look now and then.
//! - Beyond a *hard* number (`max_carriers`), or when the system refuses threads, they wait until
//!   threads become free. After [`START_TIMEOUT`] without any progress they end with an error,
//!   oldest first, and a dump on standard error says what every fiber waits for.
//!
//! A fiber that has started always gets a thread, beyond both limits.
//!
//! Besides, while many threads are frozen in the middle of computations, starts from places whose
//! fibers computed much before are *deferred*: one starts every [`DEFERRED_EVERY`] ticks of the
//! monitor.

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use indent_sysmon::frames;

use crate::base::loom::atomic;
use crate::base::os;
use crate::error::JoinError;
use crate::fiber::FiberRef;
use crate::fiber::record::ANY_WORKER;
use crate::queue::inject::{Inject, popped};
use crate::sched::class::Sites;
use crate::sched::timers::nanos;
use crate::sched::{Shared, context, mobility};

/// Threads a worker for fibers that are unjudged because the program's code has not been read.
const COLD_THREADS: usize = 64;
/// No dispatch for so long: the fibers that hold threads wait for those that have not started.
const STILL: Duration = Duration::from_millis(10);
/// The same before the program's code has been read.
const STILL_COLD: Duration = Duration::from_millis(2);
/// The same for fibers that get no thread although others run.
const STARVED: Duration = Duration::from_millis(100);
/// Most threads that are added at once. The first time it is one, then twice as many each time.
const MOST_ADDED: usize = 32;
/// How long a fiber waits for a thread while no other fiber gets one.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Ticks of the monitor between two deferred starts.
const DEFERRED_EVERY: u64 = 20;

/// What becomes of a start.
pub(crate) enum Start {
    Now,
    /// Fibers that compute much come first.
    Deferred,
    /// There are too many threads.
    WithoutThread,
}

/// Fibers that wait for a thread to start on.
pub(crate) struct Threadless {
    queue: Inject,
    /// Threads beyond the limit that were granted because nothing was dispatched.
    granted: AtomicUsize,
    /// How many are granted next; the monitor's own.
    step: AtomicUsize,
    /// Dispatches at the monitor's last look, and since when that number stands; the monitor's own.
    dispatches: AtomicU64,
    still_since: AtomicU64,
    /// When a fiber last began to wait while none did, or one started.
    progress: AtomicU64,
    /// When threads were last granted; the monitor's own.
    granted_at: AtomicU64,
    reported: AtomicBool,
    /// The system refused the last thread.
    refused: AtomicBool,
}

impl Threadless {
    pub(crate) fn new() -> Self {
        Threadless {
            queue: Inject::new(),
            granted: AtomicUsize::new(0),
            step: AtomicUsize::new(1),
            dispatches: AtomicU64::new(0),
            still_since: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            granted_at: AtomicU64::new(0),
            reported: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether the system gave a thread when it was last asked.
    pub(crate) fn note_refused(&self, refused: bool) {
        if self.refused.load(Relaxed) != refused {
            self.refused.store(refused, Relaxed);
        }
    }
}

impl Shared {
    /// Whether a fiber that was taken off a queue (I1) may start now. `deferred`: its turn has
    /// come.
    pub(crate) fn admit_start(&self, fiber: FiberRef, deferred: bool) -> Start {
        if !deferred && self.has_many_frozen() && self.is_put_off(fiber) {
            return Start::Deferred;
        }
        // SAFETY: by the caller's promise.
        if self.has_thread_for_start() || unsafe { mobility::starts_movable(fiber) } {
            Start::Now
        } else {
            Start::WithoutThread
        }
    }

    /// While many are frozen, a fiber from a place whose fibers compute much starts later; while
    /// far too many are, any fiber.
    fn is_put_off(&self, fiber: FiberRef) -> bool {
        let anywhere = fiber.worker.load(atomic::Ordering::Relaxed) == ANY_WORKER;
        let site = Sites::get(fiber.location());
        let put_off = site.is_bad()
            || !site.is_good() && self.has_too_many_frozen()
            || self.has_far_too_many_frozen();
        self.settings.preempt && anywhere && put_off
    }

    /// Threads that hold a fiber or a worker.
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
        if threadless.refused.load(Relaxed) && self.spares.is_empty() {
            return false;
        }
        let granted = threadless.granted.load(Relaxed);
        let most = (self.soft_limit() + granted).min(self.settings.max_carriers);
        self.used_threads() < most.max(self.count.allowed() + 1)
    }

    /// A fiber that may not start waits for a thread.
    #[cold]
    pub(crate) fn wait_for_thread(&self, fiber: FiberRef) {
        let threadless = &self.threadless;
        if threadless.len() == 0 {
            threadless.progress.store(self.clock.nanos(), Relaxed);
        }
        threadless.queue.push(fiber);
        if self.has_studied() && !threadless.reported.swap(true, Relaxed) {
            os::complain(
                "indent: parked fibers that are bound to their threads hold as many threads as allowed; \
                 fibers that may need one more wait to start (raise INDENT_MAX_CARRIERS, or find out what \
                 binds them with task::Fiber::binding)\n",
            );
        }
        self.watchers.notice();
    }

    /// A fiber has started.
    #[inline]
    pub(crate) fn note_start(&self) {
        if self.threadless.len() > 0 {
            self.threadless.progress.store(self.clock.nanos(), Relaxed);
        }
    }

    /// Whether a fiber waits for a thread and may have one.
    pub(crate) fn may_start_threadless(&self) -> bool {
        self.threadless.len() > 0 && self.has_thread_for_start()
    }

    /// The oldest fiber that waits for a thread, if it may have one.
    pub(crate) fn next_threadless(&self) -> Option<FiberRef> {
        if !self.may_start_threadless() {
            return None;
        }
        let fiber = self.threadless.queue.pop(1).pop().map(popped)?;
        if fiber.worker.load(atomic::Ordering::Relaxed) != ANY_WORKER {
            self.queue_again(fiber);
            return None;
        }
        Some(fiber)
    }

    /// On the monitor's thread, at a tick: grants threads beyond the limit while nothing is
    /// dispatched.
    pub(crate) fn mind_threadless(&self) {
        let threadless = &self.threadless;
        if threadless.len() == 0 {
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
            self.rouse_one(0);
        } else if now.saturating_sub(threadless.progress.load(Relaxed)) >= nanos(START_TIMEOUT) {
            self.ask_to_fail_threadless();
        }
    }

    /// On the helper's thread: those that have waited too long end with an error.
    pub(crate) fn fail_threadless(&self) {
        let threadless = &self.threadless;
        let overdue = nanos(START_TIMEOUT);
        if self
            .clock
            .nanos()
            .saturating_sub(threadless.progress.load(Relaxed))
            < overdue
        {
            return;
        }
        os::complain(&self.dump());
        // All that waits now: none of them has got a thread for so long.
        let mark = context::marked();
        let failed = threadless.queue.pop(usize::MAX);
        drop(mark);
        self.fail_unstarted(failed, JoinError::no_thread);
    }

    /// On the monitor's thread, at each tick.
    pub(crate) fn mind_deferred(&self, ticks: u64) {
        if ticks.is_multiple_of(DEFERRED_EVERY) && self.deferred.len() > 0 {
            self.deferred_is_due.store(true, Relaxed);
        }
    }

    /// Whether a deferred fiber may start: its time has come, or few are frozen.
    pub(crate) fn may_start_deferred(&self) -> bool {
        self.deferred.len() > 0
            && (self.deferred_is_due.swap(false, Relaxed) || !self.has_many_frozen())
    }
}
