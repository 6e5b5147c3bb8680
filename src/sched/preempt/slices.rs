//! Time slices: which frozen fiber runs next, and how much time batch fibers are owed.
//!
//! A carrier that has not used up its slice when it is frozen, because an urgent fiber came, keeps
//! its place; otherwise it goes behind all others. So a stream of short interruptions does not hand
//! out more slices than there is time.
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use indent_sysmon::{Phase, TICK};

use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::preempt::class;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::sys;

/// Frozen carriers per worker that are still few.
const FEW_FROZEN: usize = 8;
/// Factor by which a slice is longer when many carriers are frozen.
const LONGER: u32 = 10;

/// Which of the frozen carriers are meant.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    Any,
    Interactive,
    Batch,
}

impl Carrier {
    /// Begins to measure this dispatch, which may be a long one; own thread.
    pub(crate) fn begin_slice(&self, worker: &Worker) {
        let now = self.shared().clock.nanos();
        self.note_long(worker.stamp(), now, sys::thread::cpu_time());
        self.shared().arm_io(worker);
        if !worker.queue.is_empty() || self.shared().has_batch() {
            // they waited for what could have been a short dispatch
            self.shared().notify_searcher(worker.index + 1);
        }
    }

    /// Records that this dispatch is long, and has run at least since `began`.
    pub(crate) fn note_long(&self, stamp: u64, began: u64, cpu: u64) {
        if self.preempt.long.load(Relaxed) != stamp {
            self.preempt.began.store(began, Relaxed);
            self.preempt.cpu_began.store(cpu, Relaxed);
            self.preempt.long.store(stamp, SeqCst);
        }
    }

    /// Returns for how many ticks a dispatch has computed.
    ///
    /// Called on the own thread, at the end of a dispatch the monitor has seen to be long. Time
    /// without a CPU does not count if the clock of the thread is known. Otherwise, where threads
    /// wait for CPUs, a fiber that hardly computes would be taken for one that does, and wait
    /// behind all of those.
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

    /// Records how much of its slice is used, and so whether it keeps its place.
    pub(crate) fn note_slice(&self) {
        let (shared, preempt) = (self.shared(), &self.preempt);
        let fiber = self.current.get().map_or(0, |fiber| fiber.id());
        if preempt.fiber.replace(fiber) != fiber {
            preempt.used.store(0, Relaxed); // another fiber was frozen here before
            // behind those that wait already
            preempt.ticket.store(shared.tickets.load(Relaxed), Relaxed);
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
    /// Claims the frozen carrier whose turn it is.
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

    /// Returns whether a frozen carrier of this kind exists.
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

    /// Returns whether so many are frozen that each further one should be avoided.
    pub(crate) fn has_many_frozen(&self) -> bool {
        self.frozen.len() > self.few_frozen()
    }

    /// Returns whether too many are frozen to start fibers not known to be good.
    pub(crate) fn has_too_many_frozen(&self) -> bool {
        self.frozen.len() > 2 * self.few_frozen()
    }

    /// Returns whether too many are frozen to start even fibers from good sites.
    pub(crate) fn has_far_too_many_frozen(&self) -> bool {
        self.frozen.len() > 3 * self.few_frozen()
    }

    fn few_frozen(&self) -> usize {
        let workers = self.count.allowed();
        let room = self.settings.max_carriers.saturating_sub(2 * workers) / 4;
        (FEW_FROZEN * workers).min(room)
    }

    /// Returns how long a fiber may run while others wait for their turn.
    ///
    /// Longer if many wait, since each of them costs a thread.
    pub(crate) fn slice(&self) -> Duration {
        // Not while starts are deferred: they wait for decisions.
        let many = self.has_many_frozen() && self.global.deferred.len() == 0;
        let longer = if many { LONGER } else { 1 };
        self.settings.quantum * longer
    }

    /// Makes workers owe batch fibers a slice; called on the monitor's thread, every other tick.
    ///
    /// If batch fibers wait, each worker that does not run one owes them a slice. It lasts at least
    /// 200 µs, a tenth of the time.
    pub(crate) fn owe_batch(&self) {
        let wait = !self.frozen.is_empty() || self.has_batch();
        let owed = self.count.allowed().saturating_sub(self.running_long());
        self.owed.store(if wait { owed } else { 0 }, Relaxed);
    }

    /// Counts workers in a dispatch known to be long.
    ///
    /// Its fiber is batch, or soon will be.
    fn running_long(&self) -> usize {
        let runs = |worker: &&Worker| {
            let long = |carrier: &Carrier| carrier.preempt.long.load(Relaxed) == worker.stamp();
            worker.published.phase() == Phase::Fiber && worker.carrier().is_some_and(long)
        };
        self.present().iter().filter(runs).count()
    }

    /// Records that a batch fiber has got its slice.
    pub(crate) fn pay_batch(&self) {
        let owed = self.owed.load(Relaxed);
        if owed > 0 {
            self.owed.store(owed - 1, Relaxed); // a race of two costs one slice more or less
        }
    }

    #[inline]
    pub(crate) fn is_batch_owed(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }

    /// Returns the length of a slice in nanoseconds.
    pub(crate) fn slice_nanos(&self) -> u64 {
        nanos(self.slice())
    }
}
