//! Slices of time: whose turn it is among frozen fibers, and what is owed to those that others come
//! before.
//!
//! Whose turn it is. A carrier that has not used up its slice when it is frozen, because somebody
//! pressing came, keeps its place; else it goes behind all others. So a stream of short
//! interruptions does not deal out more slices than time.
//!
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use indent_sysmon::{Phase, TICK};

use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::preempt::class;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::sys;

/// Frozen carriers per worker that are not many.
const FEW_FROZEN: usize = 8;
/// So much longer is a slice when there are many.
const LONGER: u32 = 10;

/// Which of the frozen carriers are meant.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    Any,
    Interactive,
    Batch,
}

impl Carrier {
    /// Own thread: this dispatch may be a long one; from here on its time counts.
    pub(crate) fn begin_slice(&self, worker: &Worker) {
        let now = self.shared().clock.nanos();
        self.note_long(worker.stamp(), now, sys::thread::cpu_time());
        self.shared().arm_io(worker);
        if !worker.queue.is_empty() || self.shared().has_batch() {
            self.shared().notify_searcher(worker.index + 1); // they waited for a short dispatch
        }
    }

    /// This dispatch is a long one, and runs since then at least.
    pub(crate) fn note_long(&self, stamp: u64, began: u64, cpu: u64) {
        if self.preempt.long.load(Relaxed) != stamp {
            self.preempt.began.store(began, Relaxed);
            self.preempt.cpu_began.store(cpu, Relaxed);
            self.preempt.long.store(stamp, SeqCst);
        }
    }

    /// Own thread, at the end of a dispatch the monitor has seen for long: for how many ticks it
    /// computed. Time without a CPU does not count if the clock of the thread is known: where
    /// threads wait for CPUs, a fiber that hardly computes would be taken for one that does, and
    /// wait behind all of those.
    pub(crate) fn ticks_in(&self, worker: &Worker) -> u64 {
        if self.preempt.long.load(Relaxed) != worker.stamp() {
            return 1;
        }
        let began = self.preempt.cpu_began.load(Relaxed);
        let ran = match began {
            0 => (self.shared().clock.nanos()).saturating_sub(self.preempt.began.load(Relaxed)),
            _ => sys::thread::cpu_time().saturating_sub(began),
        };
        let tick = TICK.as_nanos() as u64;
        // It ran for up to two ticks before its clock was read.
        ran / tick + u64::from(ran > tick / 2)
    }

    /// How much of its slice is used up, and so whether it keeps its place.
    pub(crate) fn note_slice(&self) {
        let (shared, preempt) = (self.shared(), &self.preempt);
        let fiber = self.current.get().map_or(0, |fiber| fiber.id());
        if preempt.fiber.replace(fiber) != fiber {
            preempt.used.store(0, Relaxed); // another one was frozen here before
            preempt.ticket.store(shared.tickets.load(Relaxed), Relaxed); // behind those who wait already
            preempt.rest.set(0);
        }
        let now = shared.clock.nanos();
        preempt.froze_at.store(now, Relaxed);
        let ran = sys::thread::cpu_time().saturating_sub(preempt.cpu_began.load(Relaxed));
        self.run_time.add(ran);
        if let Some(fiber) = self.current.get() {
            let (tick, computed) = (
                TICK.as_nanos() as u64,
                preempt.rest.get().saturating_add(ran),
            );
            class::raise_score(&fiber, computed / tick);
            preempt.rest.set(computed % tick);
            preempt.batch.store(class::is_batch(&fiber), Relaxed);
        }
        let used = preempt.used.load(Relaxed).saturating_add(ran);
        if used < shared.slice_nanos() {
            return preempt.used.store(used, Relaxed);
        }
        preempt.used.store(0, Relaxed);
        let ticket = shared.tickets.fetch_add(1, Relaxed) + 1;
        preempt.ticket.store(ticket, Relaxed);
    }
}

impl Shared {
    /// The frozen carrier whose turn it is; claimed.
    pub(crate) fn claim_frozen(&self, which: Which) -> Option<usize> {
        if self.frozen.is_empty() {
            return None;
        }
        loop {
            let order = |index: &usize| {
                let preempt = &self.carrier(*index).preempt;
                (preempt.ticket.load(Relaxed), preempt.froze_at.load(Relaxed))
            };
            let fits = |index: &usize| self.is_frozen_as(*index, which);
            let first = self.frozen.members().filter(fits).min_by_key(order)?;
            if self.frozen.claim(first) {
                return Some(first);
            }
        }
    }

    /// Whether there is such a one.
    pub(crate) fn has_frozen(&self, which: Which) -> bool {
        let mut frozen = self.frozen.members();
        frozen.any(|index| self.is_frozen_as(index, which))
    }

    fn is_frozen_as(&self, index: usize, which: Which) -> bool {
        let is_batch = self.carrier(index).preempt.batch.load(Relaxed);
        match which {
            Which::Any => true,
            Which::Interactive => !is_batch,
            Which::Batch => is_batch,
        }
    }

    /// So many are frozen that each further one is one too many.
    pub(crate) fn has_many_frozen(&self) -> bool {
        self.frozen.len() > self.few_frozen()
    }

    /// Even of those of which nothing bad is known.
    pub(crate) fn has_too_many_frozen(&self) -> bool {
        self.frozen.len() > 2 * self.few_frozen()
    }

    /// Even of those of which only good is known: they are not as short as they were.
    pub(crate) fn has_far_too_many_frozen(&self) -> bool {
        self.frozen.len() > 3 * self.few_frozen()
    }

    fn few_frozen(&self) -> usize {
        let workers = self.count.allowed();
        let room = self.settings.max_carriers.saturating_sub(2 * workers) / 4;
        (FEW_FROZEN * workers).min(room)
    }

    /// How long one may run while others wait for their turn: longer if many wait, since each of
    /// them costs a thread.
    pub(crate) fn slice(&self) -> Duration {
        // Not while starts are deferred: they wait for decisions.
        let many = self.has_many_frozen() && self.global.deferred.len() == 0;
        let longer = if many { LONGER } else { 1 };
        self.settings.quantum * longer
    }

    /// On the monitor's thread, every other tick: if those that others come before wait, each
    /// worker that does not run one of them owes them a slice. It lasts 200 µs at least, a tenth of
    /// the time.
    pub(crate) fn owe_batch(&self) {
        let wait = !self.frozen.is_empty() || self.has_batch();
        let owed = self.count.allowed().saturating_sub(self.running_long());
        self.owed.store(if wait { owed } else { 0 }, Relaxed);
    }

    /// Workers in a dispatch that is known to be long: of one that others come before, or soon
    /// will.
    fn running_long(&self) -> usize {
        let runs = |worker: &&Worker| {
            let long = |carrier: &Carrier| carrier.preempt.long.load(Relaxed) == worker.stamp();
            worker.published.phase() == Phase::Fiber && worker.carrier().is_some_and(long)
        };
        self.present().iter().filter(runs).count()
    }

    /// One of them has got its slice.
    pub(crate) fn pay_batch(&self) {
        let owed = self.owed.load(Relaxed);
        if owed > 0 {
            self.owed.store(owed - 1, Relaxed); // two at once: one slice more, or less
        }
    }

    #[inline]
    pub(crate) fn is_batch_owed(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }

    /// How long a slice is.
    pub(crate) fn slice_nanos(&self) -> u64 {
        nanos(self.slice())
    }
}
