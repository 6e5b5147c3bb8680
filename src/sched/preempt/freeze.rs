#![expect(unsafe_code, reason = "hands workers over in the middle of a fiber")]
//! Stops a fiber in the middle of its code, and lets it continue later.
//!
//! A fiber that is stopped at an arbitrary instruction may be in the middle of anything that
//! belongs to its thread ([S1]). So the thread stops with it: the carrier *freezes*. It gives its
//! worker to another carrier and waits, inside the signal handler or at the point where preemption
//! was enabled again, until another thread gives it a worker or releases it: it *thaws*. No other
//! fiber runs on the carrier meanwhile.
//!
//! A freeze runs on the carrier's own thread with preemption disabled, possibly in a signal
//! handler: no allocation, no lock, no formatting ([S7]). It claims what it needs from bitmaps. The
//! worker takes its queues along, so no fiber changes its queue.
//!
//! **I19** A frozen carrier is in the set *frozen*, or another thread has claimed it from that set
//! and owes it a worker or its release, or it holds a worker. The carrier enters the set after it
//! has given up its own worker and before it hands that worker on. So a claimer finds the carrier
//! without a worker, and a worker that finds nothing else to do finds the carrier. If a claim
//! cannot be kept, because the carrier has got a worker in another way, the claimer keeps its
//! worker.
//!
//! **I20** A worker is never without a place. If a carrier hands a worker on and the receiver
//! already has one, it looks for another receiver: a spare carrier, a carrier in the set *wanted*,
//! a frozen carrier. If there is none the worker becomes an *orphan*. The next carrier that would
//! wait for a worker takes the orphan, or the monitor places it at its next tick.
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

/// State of a carrier that concerns its preemption.
#[derive(Default)]
pub(crate) struct PreemptState {
    /// The dispatch in which the carrier is asked to freeze.
    ///
    /// Holds a [`Worker::stamp`], `WITHOUT_WORKER`, or zero.
    pub(crate) request: PreemptRequest,
    /// How often the monitor has repeated the request; written by the monitor only.
    pub(crate) asked: AtomicU32,
    /// Stamp of the dispatch that had a request inside a `no_preempt` section.
    pub(crate) refused: AtomicU64,
    /// Start of the current long dispatch, as far as it is known.
    ///
    /// `began` is the time, `cpu_began` the CPU clock of the thread at that time, `long` the stamp
    /// of the dispatch.
    pub(crate) began: AtomicU64,
    pub(crate) cpu_began: AtomicU64,
    pub(crate) long: AtomicU64,
    /// Whether it froze outside the program's code, so it may hold a lock of the allocator.
    pub(crate) suspect: AtomicBool,
    /// Whether its fiber is batch, so that other fibers come first.
    pub(crate) batch: AtomicBool,
    /// Position among the frozen carriers; the smallest number is first.
    pub(crate) ticket: AtomicU64,
    /// Time of its last freeze.
    pub(crate) froze_at: AtomicU64,
    /// Nanoseconds used of its slice.
    pub(crate) used: AtomicU64,
    /// Computed nanoseconds beyond whole ticks, which count at the next freeze; own thread.
    pub(crate) rest: Cell<u64>,
    /// CPU time when the thread was last seen asleep without a worker; monitor only.
    pub(crate) cpu: AtomicU64,
    /// Round of its last release; monitor only.
    rotated: AtomicU64,
    /// Id of the fiber that was frozen here last; own thread.
    pub(crate) fiber: Cell<u64>,
    /// Whether it slept in a lock when last looked at; monitor only.
    pub(crate) locked: AtomicBool,
    /// Number of checkpoints its fibers have passed; own thread.
    ///
    /// `known_checkpoints` is the number the handler has seen, `known_at` the time of that.
    pub(crate) checkpoints: Cell<u32>,
    pub(crate) known_checkpoints: Cell<u32>,
    pub(crate) known_at: Cell<u64>,
    /// The fiber that runs here, as the overrun reporter sees it (`overrun.rs`).
    pub(crate) occupant: Occupant,
    /// Carrier of the bound fiber for which this carrier is to make room.
    ///
    /// Null if there is none. This is a hint, and may be old.
    pub(crate) pressed_by: AtomicPtr<Carrier>,
    /// The dispatch in which the handler put freezes off, and how often; own thread.
    pub(crate) tries: Cell<(u64, u32)>,
}

impl PreemptState {
    /// Resets the state for a new thread that reuses the number.
    pub(crate) fn forget(&self) {
        self.request.clear();
        self.long.store(0, Relaxed);
        self.locked.store(false, Relaxed);
        self.refused.store(0, Relaxed);
        self.tries.set((0, 0));
    }
}

/// The stamp of a carrier that runs without a worker.
pub(crate) const WITHOUT_WORKER: u64 = u64::MAX;

/// Counters for the metrics.
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

/// A carrier chosen to receive a worker; all but `Tenants` are claimed.
#[derive(Clone, Copy)]
pub(crate) enum Receiver {
    Spare(usize),
    /// The thread of a bound fiber that was woken.
    ///
    /// It is not claimed, so another worker may reach it first.
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

/// Why a frozen carrier continues.
enum Thawed {
    WithWorker(NonNull<Worker>),
    Released,
}

impl Carrier {
    /// Gives the worker away and waits for one: freezes the carrier.
    ///
    /// Called on the own thread with preemption disabled, in the middle of a fiber, while it holds
    /// a worker. Returns false if a freeze is impossible now: there is no receiver, or another
    /// thread has the worker in hand.
    pub(crate) fn freeze(&self, worker: &Worker, suspect: bool, registers: [usize; 3]) -> bool {
        let shared = self.shared();
        // Fibers queued at this worker need its scheduler; a carrier in the middle of a fiber
        // cannot serve them.
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
        // the next urgent request reaches the monitor at once
        shared.monitor_notified.store(false, Relaxed);
        shared.frozen.set(self.index); // I19: from here on another thread can give it a worker
        shared.hand(worker, receiver);
        if let Some(facts) = overrun {
            self.report(facts, registers); // no other thread waits for this one now
        }
        self.stay_frozen();
        true
    }

    /// Freezes a carrier that has no worker to give.
    ///
    /// Its worker was taken while the fiber ran, or the carrier was released.
    pub(crate) fn freeze_without_worker(&self, suspect: bool, registers: [usize; 3]) {
        let shared = self.shared();
        shared.detached.claim(self.index);
        self.owner.come_back(); // from here on another thread can give it a worker
        self.note_slice();
        let overrun = self.stops(None, suspect, registers);
        self.preempt.suspect.store(suspect, Relaxed);
        shared.preempted.freezes.fetch_add(1, Relaxed);
        shared.frozen.set(self.index);
        shared.notify_searcher(self.index); // an idle worker may serve it
        if let Some(facts) = overrun {
            self.report(facts, registers);
        }
        self.stay_frozen();
        self.preempt.tries.set((0, 0));
    }

    /// Waits until it gets a worker or is released.
    ///
    /// Preemption is disabled before and after.
    fn stay_frozen(&self) {
        let shared = self.shared();
        let thawed = self.wait_frozen();
        shared.frozen.claim(self.index); // it may have got a worker without a claim
        self.spread_out();
        self.preempt.request.clear(); // a request made while it was frozen is late
        shared.preempted.thaws.fetch_add(1, Relaxed);
        match thawed {
            // SAFETY: workers live as long as `Shared`.
            Thawed::WithWorker(worker) => self.go_on(unsafe { worker.as_ref() }),
            Thawed::Released => {
                self.note_awake();
                shared.detached.set(self.index); // the monitor observes it from here on
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
                // final release at shutdown: it may hold a lock others need
                return Thawed::Released;
            }
            if !self.shared().adopt_orphan(self) {
                self.parker.wait(None);
            }
        }
    }

    /// Begins a new dispatch of this worker, whose start is known.
    ///
    /// Called in the middle of a fiber with preemption disabled.
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

    /// Sort key for releases; the greatest is released first.
    ///
    /// Carriers stopped outside the program's code come first, then those that froze last.
    pub(crate) fn rotation_order(&self) -> (bool, u64) {
        let preempt = &self.preempt;
        (
            preempt.suspect.load(Relaxed),
            preempt.froze_at.load(Relaxed),
        )
    }

    /// Lets a claimed frozen carrier continue without a worker.
    ///
    /// Called on the monitor's thread.
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
    /// Claims a carrier that can receive a worker.
    ///
    /// In this order: a carrier that waits for a worker, a spare, or else a frozen carrier if
    /// `to_frozen`.
    pub(crate) fn claim_receiver(&self, to_frozen: bool) -> Option<Receiver> {
        let wanted = || self.wanted.claim_any().map(Receiver::Wanted);
        let spare = || self.spares.claim_any().map(Receiver::Spare);
        let frozen = || self.claim_frozen(Which::Any).map(Receiver::Frozen);
        let there = wanted().or_else(spare);
        there.or_else(|| to_frozen.then(frozen)?)
    }

    /// Returns whether a fiber waits at this worker.
    pub(crate) fn has_queued_here(&self, worker: &Worker) -> bool {
        !worker.queue.is_empty()
            || !worker.lifo.is_empty()
            || !worker.assigned.is_empty()
            || worker.timers.is_due()
            || worker.has_own.load(Relaxed)
    }

    /// Returns whether a fiber waits that needs this worker at its scheduler.
    pub(crate) fn has_queued_for(&self, worker: &Worker) -> bool {
        self.has_queued_here(worker)
            || self.count.is_excess(worker.index)
            || self.has_batch()
            || self.global.unstarted.len() + self.global.started.len() > 0
    }

    /// Returns a claimed receiver that is not needed.
    pub(crate) fn unclaim(&self, receiver: Receiver) {
        match receiver {
            Receiver::Tenants(_) => {}
            Receiver::Spare(index) => {
                self.spares.set(index);
                self.void_if_served(&self.spares, index);
                self.carrier(index).parker.notify(); // it may be surplus now
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

    /// Takes a carrier that has got a worker out of the set again.
    fn void_if_served(&self, set: &SparseBitmap, index: usize) {
        if self.carrier(index).owner.peek().is_some() {
            set.claim(index);
        }
    }

    /// Gives a worker to a claimed carrier, or else to another one.
    ///
    /// The claimed carrier receives it on the caller's CPU.
    pub(crate) fn hand(&self, worker: NonNull<Worker>, receiver: Receiver) {
        if let Err(worker) = self.carrier(receiver.index()).receive_here(worker) {
            self.place_quietly(worker);
        }
    }

    /// Gives a worker to any carrier, without a lock and without a new thread (I20).
    pub(crate) fn place_quietly(&self, mut worker: NonNull<Worker>) {
        while let Some(receiver) = self.claim_receiver(true) {
            match self.carrier(receiver.index()).receive(worker) {
                Ok(()) => return,
                Err(back) => worker = back,
            }
        }
        self.make_orphan(worker);
    }

    /// Makes the worker an orphan (I20).
    ///
    /// The next carrier that would wait for a worker takes it, or the monitor places it.
    pub(crate) fn make_orphan(&self, worker: NonNull<Worker>) {
        // SAFETY: workers live as long as `Shared`.
        self.orphans.set(unsafe { worker.as_ref() }.index);
        self.watchers.notice();
    }

    /// Gives an orphaned worker to a carrier that would otherwise wait.
    ///
    /// Returns false if there is no orphan.
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

    /// Places orphaned workers; called on the monitor's thread.
    pub(crate) fn place_orphans(&self) {
        while let Some(index) = self.orphans.claim_any(0) {
            let Some(receiver) = self.claim_receiver(true) else {
                self.orphans.set(index);
                return self.no_receiver();
            };
            self.hand(NonNull::from(&self.workers[index]), receiver);
        }
    }

    /// Asks the helper for a spare thread, as no thread can receive a worker.
    pub(crate) fn no_receiver(&self) {
        if self.carrier_threads() >= self.settings.max_carriers || self.watchers.is_refused() {
            self.preempted.cap_hits.fetch_add(1, Relaxed);
        }
        self.watchers.note_missed_receiver();
        self.ask_for_spares();
    }
}
