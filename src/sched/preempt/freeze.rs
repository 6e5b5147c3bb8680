#![expect(unsafe_code, reason = "hands workers over in the middle of a fiber")]
//! Stopping a fiber in the middle of its code, and letting it go on.
//!
//! A fiber that is stopped at an arbitrary instruction may be in the middle of anything that belongs to
//! its thread ([S1]). So the thread stops with it: the carrier *freezes*. It gives its worker to another
//! carrier and waits, inside the signal handler or where the mark went down, until somebody brings it a
//! worker again: it *thaws*. Nothing else runs on it meanwhile.
//!
//! All of this happens on the carrier's own thread with preemption disabled, in a handler: no allocation, no
//! lock, no formatting ([S7]). What it needs is claimed from bitmaps. The worker takes its queues
//! along, so nothing is sorted.
//!
//! **I19** A frozen carrier is in the set *frozen*, or has been claimed from it by somebody who owes it
//! a worker or its release, or holds a worker. It enters the set after it has given up its own worker and
//! before it hands that one on: so whoever claims it finds it without one, and a worker that finds nothing
//! else to do finds it. A claim that cannot be kept (the carrier has got a worker by another way) leaves
//! the claimer with his worker.
//!
//! **I20** A worker is never without a place. Who hands one on and finds the receiver served already
//! looks for another: a carrier that rests, that is wanted, that is frozen. If there is none it becomes an
//! *orphan*, which the next carrier that would wait for a worker takes, and the monitor at its next look.
//!
//! [S1]: docs/invariants.md
//! [S7]: docs/invariants.md

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

use indent_sysmon::Phase;

use crate::sched::Shared;
use crate::sched::diag::overrun::Occupant;
use crate::sched::preempt::slices::Which;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::util::bitmap::SparseBitmap;
use crate::util::preempt_request::PreemptRequest;

/// What a carrier knows of being interrupted.
#[derive(Default)]
pub(crate) struct PreemptState {
    /// For which dispatch somebody wants it to freeze: a [`Worker::stamp`], `WITHOUT_WORKER`, or zero.
    pub(crate) request: PreemptRequest,
    /// How often the monitor has sent it again; its own.
    pub(crate) asked: AtomicU32,
    /// The dispatch in which its fiber was not to be interrupted when we asked.
    pub(crate) refused: AtomicU64,
    /// Since when a long dispatch runs, as far as is known, what the clock of its thread said then, and
    /// which one it is.
    pub(crate) began: AtomicU64,
    pub(crate) cpu_began: AtomicU64,
    pub(crate) long: AtomicU64,
    /// It was frozen in code that is not the program's: it may hold a lock of the allocator.
    pub(crate) suspect: AtomicBool,
    /// Its fiber computes much: others come before it.
    pub(crate) batch: AtomicBool,
    /// Its place among the frozen ones, smallest first.
    pub(crate) ticket: AtomicU64,
    /// When it froze last.
    pub(crate) froze_at: AtomicU64,
    /// Nanoseconds of its slice that it has used.
    pub(crate) used: AtomicU64,
    /// Nanoseconds beyond whole ticks that it computed, and that count at the next freeze; own thread.
    pub(crate) rest: Cell<u64>,
    /// How much its thread had computed when it was last seen asleep without a worker; the monitor's own.
    pub(crate) cpu: AtomicU64,
    /// In which round it was last released; the monitor's own.
    rotated: AtomicU64,
    /// Which fiber was frozen here last; own thread.
    pub(crate) fiber: Cell<u64>,
    /// It slept in a lock at the last look; the monitor's own.
    pub(crate) locked: AtomicBool,
    /// Checkpoints its fibers passed, and how many of them the handler knew of; own thread.
    pub(crate) checkpoints: Cell<u32>,
    pub(crate) known_checkpoints: Cell<u32>,
    pub(crate) known_at: Cell<u64>,
    /// Who runs here, for whoever reports overruns (`overrun.rs`).
    pub(crate) occupant: Occupant,
    /// The carrier of the bound fiber for whose sake it is to freeze, if it is one: a hint, which
    /// may be old.
    pub(crate) pressed_by: AtomicPtr<Carrier>,
    /// Times the handler put the freeze off, and in which dispatch; own thread.
    pub(crate) tries: Cell<(u64, u32)>,
}

impl PreemptState {
    /// A new thread begins under an old number.
    pub(crate) fn forget(&self) {
        self.request.clear();
        self.long.store(0, Relaxed);
        self.locked.store(false, Relaxed);
        self.refused.store(0, Relaxed);
        self.tries.set((0, 0));
    }
}

/// In place of a dispatch: whatever it does without a worker.
pub(crate) const WITHOUT_WORKER: u64 = u64::MAX;

/// What happened, for the metrics.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) overruns: AtomicU64,
    pub(crate) freezes: AtomicU64,
    pub(crate) thaws: AtomicU64,
    pub(crate) detaches: AtomicU64,
    pub(crate) in_place: AtomicU64,
    pub(crate) anywhere: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) watchdog_releases: AtomicU64,
    pub(crate) cap_hits: AtomicU64,
    pub(crate) unanswered: AtomicU64,
}

/// A carrier somebody has claimed, to give it a worker.
#[derive(Clone, Copy)]
pub(crate) enum Receiver {
    Spare(usize),
    /// The thread of a bound fiber that was woken; not claimed, so another worker may be faster.
    Tenants(usize),
    Wanted(usize),
    Frozen(usize),
}

impl Receiver {
    fn index(self) -> usize {
        match self {
            Receiver::Spare(index) | Receiver::Tenants(index) => index,
            Receiver::Wanted(index) | Receiver::Frozen(index) => index,
        }
    }
}

/// Why a carrier went on.
enum Thawed {
    WithWorker(NonNull<Worker>),
    Released,
}

impl Carrier {
    /// Own thread, preemption disabled, in the middle of a fiber, holding a worker: gives it away and waits for one.
    /// False if that cannot be now: nobody is there to take it, or somebody has it in hand.
    pub(crate) fn freeze(&self, worker: &Worker, suspect: bool, registers: [usize; 3]) -> bool {
        let shared = self.shared();
        // Who is queued for this worker is of no use to a carrier in the middle of a fiber.
        let to_frozen = !shared.has_queued_for(worker);
        let pressed_by = self.preempt.pressed_by.swap(ptr::null_mut(), Relaxed);
        // SAFETY: null, or a carrier of this runtime: those live as long as `Shared`.
        let tenants = unsafe { pressed_by.as_ref() }.filter(|thread| thread.waits_with_tenant());
        let receiver = match tenants {
            Some(thread) => Some(Receiver::Tenants(thread.index)),
            None => shared.claim_receiver(to_frozen),
        };
        let Some(receiver) = receiver else {
            shared.no_receiver();
            return false;
        };
        let Some(worker) = self.owner.try_surrender() else {
            shared.unclaim(receiver);
            return false;
        };
        // SAFETY: workers live as long as `Shared`.
        let held = unsafe { worker.as_ref() };
        held.published.set_phase(Phase::Scheduling);
        self.note_slice();
        let overrun = self.stops(Some(held), suspect, registers);
        self.preempt.suspect.store(suspect, Relaxed);
        shared.preempted.freezes.fetch_add(1, Relaxed);
        shared.monitor_notified.store(false, Relaxed); // whoever presses next is heard at once
        shared.frozen.set(self.index); // I19: from here on it can be given a worker
        shared.hand(worker, receiver);
        if let Some(facts) = overrun {
            self.report(facts, registers); // now that nobody waits for it
        }
        self.stay_frozen();
        true
    }

    /// The same without a worker to give: it ran on after its own was taken, or was released.
    pub(crate) fn freeze_without_worker(&self, suspect: bool, registers: [usize; 3]) {
        let shared = self.shared();
        shared.detached.claim(self.index);
        self.owner.come_back(); // from here on it can be given a worker
        self.note_slice();
        let overrun = self.stops(None, suspect, registers);
        self.preempt.suspect.store(suspect, Relaxed);
        shared.preempted.freezes.fetch_add(1, Relaxed);
        shared.frozen.set(self.index);
        shared.notify_searcher(self.index); // an idle worker may have time for it
        if let Some(facts) = overrun {
            self.report(facts, registers);
        }
        self.stay_frozen();
        self.preempt.tries.set((0, 0));
    }

    /// Until there is a worker, or it is released. Preemption is disabled before and after.
    fn stay_frozen(&self) {
        let shared = self.shared();
        let thawed = self.wait_frozen();
        shared.frozen.claim(self.index); // it may have been helped without a claim
        self.spread_out();
        self.preempt.request.clear(); // what was asked of it while it stood still is late
        shared.preempted.thaws.fetch_add(1, Relaxed);
        match thawed {
            // SAFETY: workers live as long as `Shared`.
            Thawed::WithWorker(worker) => self.go_on(unsafe { worker.as_ref() }),
            Thawed::Released => {
                self.note_awake();
                shared.detached.set(self.index); // it is watched
                shared.watchers.notice();
            }
        }
    }

    fn wait_frozen(&self) -> Thawed {
        loop {
            if let Some(worker) = self.owner.peek() {
                return Thawed::WithWorker(worker);
            }
            if self.owner.is_released() || self.shared().is_stopping() {
                return Thawed::Released; // at the end for good: it may hold what others need
            }
            if !self.shared().adopt_orphan(self) {
                self.parker.wait(None);
            }
        }
    }

    /// In the middle of a fiber, preemption disabled: a new dispatch of this worker, whose beginning is known.
    fn go_on(&self, worker: &Worker) {
        self.publish(worker);
        self.begin_slice(worker);
    }

    pub(crate) fn rotated_in(&self) -> u64 {
        self.preempt.rotated.load(Relaxed)
    }

    pub(crate) fn note_rotation(&self, round: u64) {
        self.preempt.rotated.store(round, Relaxed);
    }

    /// Whose release is likely to help: who was stopped in foreign code, then who froze last.
    pub(crate) fn rotation_order(&self) -> (bool, u64) {
        let preempt = &self.preempt;
        (
            preempt.suspect.load(Relaxed),
            preempt.froze_at.load(Relaxed),
        )
    }

    /// On the monitor's thread: a claimed frozen carrier goes on without a worker.
    pub(crate) fn release(&self) -> bool {
        let released = self.owner.release();
        if released {
            self.note_cpu();
            self.parker.notify();
        }
        released
    }
}

impl Shared {
    /// Somebody to give a worker to who is there: one that waits for a worker, a spare, or else a frozen
    /// one.
    pub(crate) fn claim_receiver(&self, to_frozen: bool) -> Option<Receiver> {
        let wanted = || self.wanted.claim_any().map(Receiver::Wanted);
        let spare = || self.spares.claim_any().map(Receiver::Spare);
        let frozen = || self.claim_frozen(Which::Any).map(Receiver::Frozen);
        let there = wanted().or_else(spare);
        there.or_else(|| to_frozen.then(frozen)?)
    }

    /// Whether a fiber waits at this worker.
    pub(crate) fn has_queued_here(&self, worker: &Worker) -> bool {
        !worker.queue.is_empty()
            || !worker.lifo.is_empty()
            || !worker.assigned.is_empty()
            || worker.timers.is_due()
            || worker.has_own.load(Relaxed)
    }

    /// Whether a fiber waits that needs this worker at its scheduler.
    pub(crate) fn has_queued_for(&self, worker: &Worker) -> bool {
        self.has_queued_here(worker)
            || self.count.is_excess(worker.index)
            || self.has_batch()
            || self.global.unstarted.len() + self.global.started.len() > 0
    }

    /// The claim is not needed after all.
    pub(crate) fn unclaim(&self, receiver: Receiver) {
        match receiver {
            Receiver::Tenants(_) => {}
            Receiver::Spare(index) => {
                self.spares.set(index);
                self.void_if_served(&self.spares, index);
                self.carrier(index).parker.notify(); // perhaps it is not needed any more
            }
            Receiver::Wanted(index) => {
                self.want(index);
                self.void_if_served(&self.wanted, index);
            }
            Receiver::Frozen(index) => {
                self.frozen.set(index);
                self.void_if_served(&self.frozen, index);
                self.notify_searcher(index);
            }
        }
    }

    /// It has got a worker meanwhile, and does not wait any more.
    fn void_if_served(&self, set: &SparseBitmap, index: usize) {
        if self.carrier(index).owner.peek().is_some() {
            set.claim(index);
        }
    }

    /// Gives a worker to a claimed carrier, on the CPU of the caller, or else to another.
    pub(crate) fn hand(&self, worker: NonNull<Worker>, receiver: Receiver) {
        if let Err(worker) = self.carrier(receiver.index()).receive_here(worker) {
            self.place_quietly(worker);
        }
    }

    /// I20: without a lock and without a new thread.
    pub(crate) fn place_quietly(&self, mut worker: NonNull<Worker>) {
        while let Some(receiver) = self.claim_receiver(true) {
            match self.carrier(receiver.index()).receive(worker) {
                Ok(()) => return,
                Err(back) => worker = back,
            }
        }
        self.make_orphan(worker);
    }

    /// I20: it is taken by the next carrier that would wait for one, or placed by the monitor.
    pub(crate) fn make_orphan(&self, worker: NonNull<Worker>) {
        // SAFETY: workers live as long as `Shared`.
        self.orphans.set(unsafe { worker.as_ref() }.index);
        self.watchers.notice();
    }

    /// A carrier that would wait takes a worker that has no carrier.
    pub(crate) fn adopt_orphan(&self, carrier: &Carrier) -> bool {
        let Some(index) = self.orphans.claim_any(0) else {
            return false;
        };
        if carrier
            .receive(NonNull::from(&self.workers[index]))
            .is_err()
        {
            self.orphans.set(index);
            self.watchers.notice();
        }
        true
    }

    /// On the monitor's thread.
    pub(crate) fn place_orphans(&self) {
        while let Some(index) = self.orphans.claim_any(0) {
            let Some(receiver) = self.claim_receiver(true) else {
                self.orphans.set(index);
                return self.no_receiver();
            };
            self.hand(NonNull::from(&self.workers[index]), receiver);
        }
    }

    /// No thread is there to take a worker over: the helper is asked for one.
    pub(crate) fn no_receiver(&self) {
        if self.carrier_threads() >= self.settings.max_carriers || self.watchers.is_refused() {
            self.preempted.cap_hits.fetch_add(1, Relaxed);
        }
        self.watchers.note_missed_receiver();
        self.ask_for_spares();
    }
}
