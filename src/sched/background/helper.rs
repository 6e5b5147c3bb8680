//! What the helper and the collector do for a runtime: chores the monitor may not do.
//!
//! The *helper* makes spare carriers, so that a worker finds a thread at once when it must leave
//! its own; asks how many CPUs the process may use, which sets the number of workers; tends to
//! services (`service.rs`); and gives back pages of stacks that are not needed. Workers wait for
//! the threads that it makes, so it waits for nothing that it could avoid: the locks of thread
//! creation, and no others.
//!
//! The *collector* does what takes the loader's lock, writes to standard error, or drops what may
//! be the user's: it has the program's code read, to know which fibers may change threads
//! (`mobility/`), records which fibers overran (`overrun.rs`), and fails fibers that get no thread
//! (`admission.rs`). A fiber that computes inside `dl_iterate_phdr` holds the loader's lock for as
//! long, and hands it to the next one that does: the collector can wait there for seconds.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use indent_sysmon::Chores;

use crate::fiber::stack;
use crate::sched::Shared;
use crate::sched::preempt::detach;
use crate::sched::preempt::interrupt;
use crate::sys::stderr;
use crate::util::loom::lock;

/// Chores: the bits of a request to the helper or the collector.
pub(in crate::sched) const SPARES: u32 = 1;
pub(in crate::sched) const CPUS: u32 = 2;
pub(in crate::sched) const TEND: u32 = 4;
pub(in crate::sched) const TRIM: u32 = 8;
pub(in crate::sched) const STUDY: u32 = 16;
pub(in crate::sched) const REPORTS: u32 = 32;
pub(in crate::sched) const RUNTIME_DROPS: u32 = 64;
pub(in crate::sched) const FEED: u32 = 128;
pub(in crate::sched) const POLLER: u32 = 256;
pub(in crate::sched) const BARRIER: u32 = 512;
pub(in crate::sched) const NO_THREAD: u32 = 1024;
pub(in crate::sched) const BOUND: u32 = 2048;

/// Chores of the collector; all others, and `CPUS` as well, are for the helper.
pub(in crate::sched) const COLLECTORS: u32 =
    CPUS | STUDY | REPORTS | RUNTIME_DROPS | BARRIER | NO_THREAD | BOUND;
pub(in crate::sched) const HELPERS: u32 = CPUS | SPARES | TEND | TRIM | FEED | POLLER;

/// How long the helper waits after the system refused it a thread.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// How long a stack must have been unneeded before it gives back its pages.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

impl Chores for Shared {
    fn help(&self, asked: u32) -> Option<Duration> {
        if !self.watchers.begun.load(SeqCst) {
            return Some(Duration::from_millis(1));
        }
        if self.watchers.helper_thread.number().is_none() {
            self.watchers.helper_thread.enlist();
        }
        self.watchers.helps.store(true, SeqCst);
        let again = self.do_chores(asked);
        self.watchers.helps.store(false, SeqCst);
        again
    }
}

/// A runtime, for the collector's thread.
pub(in crate::sched) struct Collector(pub(in crate::sched) Arc<Shared>);

impl Chores for Collector {
    fn help(&self, asked: u32) -> Option<Duration> {
        let shared = &self.0;
        if !shared.watchers.begun.load(SeqCst) {
            return Some(Duration::from_millis(1));
        }
        // First the chore that fibers wait for.
        if asked & NO_THREAD != 0 {
            shared.fail_threadless();
        }
        let again = shared.study_if(asked);
        if asked & CPUS != 0 {
            shared.check_handler();
        }
        if asked & BARRIER != 0 {
            detach::report_barrier();
        }
        if asked & REPORTS != 0 {
            shared.collect_reports();
        }
        if asked & BOUND != 0 {
            shared.log_bound();
        }
        if asked & RUNTIME_DROPS != 0 {
            crate::sched::io::drop_deferred_runtimes();
        }
        again
    }
}

impl Shared {
    /// Asks the helper to look after services that could not do what they should.
    pub(crate) fn tend_soon(&self) {
        self.watchers.ask(TEND);
    }

    /// Asks the collector to find out what binds fibers, for places in the code met since.
    pub(crate) fn study_soon(&self) {
        self.watchers.ask(STUDY);
    }

    /// Sets the number of workers to the number of CPUs.
    ///
    /// False if threads for them could not be had.
    fn follow_cpus(&self) -> bool {
        self.allowed_cpus.remember();
        let cpus = (self.settings.count_cpus)();
        self.cpus.store(cpus, Relaxed);
        if self.settings.workers_set {
            return true;
        }
        let as_wished = cpus.min(self.workers.len()) == self.count.allowed();
        as_wished && self.count.is_complete() || self.resize(cpus)
    }

    /// Resizes if asked to, or if some worker found no thread the last time.
    ///
    /// The latter after a pause.
    fn resize_again(&self, asked: u32) -> Option<Duration> {
        let mut at = lock(&self.watchers.resize_at);
        let now = Instant::now();
        if asked & CPUS != 0 || at.is_some_and(|at| at <= now) {
            *at = (!self.follow_cpus()).then(|| now + REFUSED_PAUSE);
        }
        at.map(|at| at.saturating_duration_since(now))
    }

    /// Gives back pages of unneeded stacks, once a second as long as there are any.
    fn trim_stacks(&self, asked: u32) -> Option<Duration> {
        let mut at = lock(&self.watchers.trim_at);
        let now = Instant::now();
        let due = at.map_or(asked & (CPUS | TRIM) != 0, |at| at <= now);
        if due {
            *at = stack::trim().then(|| now + TRIM_PAUSE);
        }
        at.map(|at| at.saturating_duration_since(now))
    }

    /// Asks the helper for spares. May be called in a signal handler.
    pub(crate) fn ask_for_spares(&self) {
        self.watchers.ask(SPARES);
    }

    /// Asks the collector to collect reports.
    ///
    /// Called when an overrun was captured, or may be soon. May be called in a signal handler.
    pub(crate) fn ask_for_reports(&self) {
        self.watchers.ask(REPORTS);
    }

    /// Asks the collector to drop a runtime that was released where it may not be dropped.
    pub(crate) fn drop_runtimes_soon(&self) {
        self.watchers.ask(RUNTIME_DROPS);
    }

    /// Asks the helper to give fibers that wait for a stack another chance.
    ///
    /// A fiber that ended may not have seen them.
    pub(crate) fn feed_later(&self) {
        self.watchers.ask(FEED);
    }

    /// Asks the helper to start the thread of the I/O poller.
    pub(crate) fn start_poller_soon(&self) {
        self.watchers.ask(POLLER);
    }

    /// Asks the collector to report a new cause that binds a parked fiber.
    pub(crate) fn ask_to_log_bound(&self) {
        self.watchers.ask(BOUND);
    }

    /// Asks the collector to fail fibers that have waited too long for a thread.
    pub(crate) fn ask_to_fail_threadless(&self) {
        self.watchers.ask(NO_THREAD);
    }

    /// Reports a replaced signal handler, once per process.
    ///
    /// Called on the collector's thread.
    fn check_handler(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if self.settings.preempt && !interrupt::is_in_place() && !SAID.swap(true, SeqCst) {
            stderr::print(
                "indent: something has replaced our handler of the signal that interrupts fibers; fibers \
                 that compute are not interrupted any more. Give us another signal with \
                 INDENT_PREEMPT_SIGNAL\n",
            );
        }
    }

    /// Returns whether the helper has to start threads.
    pub(crate) fn spares_missing(&self) -> bool {
        self.spares_short(self.starting_spares())
    }

    /// Returns the number of spares that have been started and do not rest yet.
    pub(crate) fn starting_spares(&self) -> usize {
        let starting = self.watchers.starting.load(SeqCst);
        usize::try_from(starting).unwrap_or(0)
    }

    /// Returns whether spare threads are too few, besides `starting` that are being started.
    pub(crate) fn spares_short(&self, starting: usize) -> bool {
        // More while fibers are frozen: the helper may have to wait for a lock of one of them.
        let frozen = self.frozen.len().min(self.count.allowed());
        let awake = self.watchers.awake.load(Relaxed) + 2 * frozen;
        // Fibers wait for a thread while all workers sleep: the system may grant some again.
        let waits = self.global.threadless.len() > 0;
        let wanted = match waits && self.threadless.is_refused() {
            true => self.spares_for_starts(),
            false => awake.max(usize::from(waits)).min(self.spares_kept()),
        };
        let is_orphan = !self.orphans.is_empty();
        let was_missed = self.watchers.receiver_missed.load(SeqCst);
        let needed = usize::from(is_orphan || was_missed);
        let wanted = wanted.max(needed);
        // The limit is for starts: threads that parked fibers keep leave no worker without one.
        let most = self.settings.max_carriers;
        let stopped = self.frozen.len() + self.detached.len() + self.count.allowed();
        let room = self.carriers.len() < most || is_orphan || was_missed && stopped < most;
        room && self.spares.len() + starting < wanted
    }

    /// Starts one spare for each worker that is awake, and more while fibers are frozen.
    ///
    /// Called on the helper's thread.
    fn make_spares(&self) -> Option<Duration> {
        let mut until = lock(&self.watchers.refused_until);
        let now = Instant::now();
        if let Some(left) = until.and_then(|at| at.checked_duration_since(now)) {
            return Some(left);
        }
        while self.spares_missing() {
            if self.start_spare().is_err() {
                *until = Some(now + REFUSED_PAUSE);
                self.watchers.refused.store(true, Relaxed);
                return Some(REFUSED_PAUSE);
            }
        }
        *until = None;
        self.watchers.refused.store(false, Relaxed);
        self.watchers.receiver_missed.store(false, SeqCst);
        None
    }

    fn do_chores(&self, asked: u32) -> Option<Duration> {
        // Services first: jobs wait there, and a new carrier would take the thread that services
        // lack.
        let refused = self.services.tend();
        if refused.is_some() {
            self.watchers.refused.store(true, Relaxed); // so the monitor need not ask either
        }
        let again = [
            self.resize_again(asked),
            refused.or_else(|| self.make_spares()),
            self.trim_stacks(asked),
            self.io_poller
                .start_if_wanted(self)
                .then_some(REFUSED_PAUSE),
            self.feed_unsure(asked & FEED != 0),
        ];
        again.into_iter().flatten().min()
    }
}
