#![expect(unsafe_code, reason = "takes workers from carriers that sleep")]
//! Detaches carriers whose threads sleep in the kernel, and watches those without a worker.
//!
//! A fiber that calls something which blocks keeps its thread, not its worker: the monitor sees the
//! thread asleep, takes the worker away (`owner.rs`) and gives it to a spare. The carrier is
//! *detached*. When the thread wakes it just continues; at its next blocking call it asks for a
//! worker. If it computes instead it runs beside the workers, without the right to: the monitor
//! interrupts it at its next look, and it freezes and waits for its turn like the others. So no
//! fiber ever computes unobserved. With preemption switched off, threads that sleep are detached
//! all the same, because other fibers may have to run before they can wake. One that computes
//! afterwards is not interrupted, and runs beside the workers until its next blocking call.
//!
//! All of this runs on the monitor's thread and follows its rules.
//!
//! **Rotation** ([S9]). A frozen fiber may hold a lock that others need: the allocator's, or a
//! mutex of the program. Frozen carriers are *released* if a worker makes no progress although it
//! runs no fiber, or if a carrier waits for another thread inside the kernel. They run for about a
//! tick each, without a worker, as many at a time as there are workers: suspects first, then the
//! newest. They are interrupted again like any other carrier that runs without a worker. A carrier
//! that waits for another thread mostly waits for something other than such a lock. So after each
//! round the pause before the next one doubles, until another carrier begins to wait.
//!
//! [S9]: docs/invariants.md

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use indent_sysmon::{GRACE, Phase, ThreadState};

use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::preempt::freeze::WITHOUT_WORKER;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::sys::{membarrier, stderr};

impl Carrier {
    /// Records how much CPU time the thread has used; called on the monitor's thread.
    pub(crate) fn note_cpu(&self) {
        let cpu = self.thread.cpu_time().map_or(0, nanos);
        self.preempt.cpu.store(cpu, Relaxed);
        self.preempt.cpu_began.store(cpu, Relaxed);
    }

    /// Returns the thread's CPU clock as it was `time` ago, if the thread has run since.
    pub(crate) fn cpu_before(&self, time: Duration) -> u64 {
        let cpu = self.thread.cpu_time().unwrap_or_default();
        nanos(cpu.saturating_sub(time))
    }

    /// Proves that the kernel has the thread off the CPU at this moment (`owner.rs`).
    ///
    /// Must be called on another thread.
    pub(crate) fn sleeps(&self) -> bool {
        self.thread.system_call().is_some()
    }

    /// Returns whether the thread has computed for some time since it was last seen asleep.
    ///
    /// Called on the monitor's thread. A thread that wakes for a moment between two sleeps would be
    /// hit in the second (S10).
    fn has_computed(&self) -> bool {
        let cpu = self.thread.cpu_time().map_or(u64::MAX, nanos);
        cpu.saturating_sub(self.preempt.cpu.load(Relaxed)) >= GRACE.as_nanos() as u64
    }
}

impl Shared {
    /// Takes the worker from a carrier whose thread sleeps in the kernel.
    pub(crate) fn detach(&self, worker: &Worker) -> bool {
        let Some(carrier) = worker.carrier() else {
            return false;
        };
        if self.is_stopping() {
            return false;
        }
        let Some(receiver) = self.claim_receiver(!self.has_queued_for(worker)) else {
            self.no_receiver();
            return false;
        };
        let meanwhile = || {
            carrier.note_sleeper();
            self.detached.set(carrier.index); // before it can ask for another worker
        };
        // Possibly not `worker` any more but the one this carrier holds now, which serves equally
        // well.
        let Some((taken, ())) = carrier.owner.take(|| carrier.sleeps(), meanwhile) else {
            carrier.parker.notify(); // the worker is back: wake the thread in case it missed it
            self.unclaim(receiver);
            return false;
        };
        // SAFETY: workers live as long as `Shared`.
        unsafe { taken.as_ref() }
            .published
            .set_phase(Phase::Scheduling);
        carrier.note_cpu();
        self.preempted.detaches.fetch_add(1, Relaxed);
        self.hand(taken, receiver);
        true
    }

    /// Asks carriers that compute without a worker to freeze; called at each tick.
    pub(crate) fn mind_detached(&self) {
        let (mut locked, mut newly) = (false, false);
        for carrier in self.detached.members().map(|index| self.carrier(index)) {
            // A later request is for a worker the carrier has got since.
            let request = carrier.preempt.request.get();
            if carrier.owner.peek().is_some() {
                self.detached.claim(carrier.index); // it has got a worker in another way
                continue;
            }
            let state = carrier.thread.state();
            let is_locked = state == ThreadState::Locked;
            let was_locked = carrier.preempt.locked.swap(is_locked, Relaxed);
            newly |= is_locked && !was_locked;
            match state {
                ThreadState::Running | ThreadState::Unknown
                    if self.settings.preempt && carrier.has_computed() =>
                {
                    if carrier
                        .preempt
                        .request
                        .replace_seen(request, WITHOUT_WORKER)
                    {
                        carrier.send();
                    }
                }
                ThreadState::Running => {}
                ThreadState::Locked => locked = true,
                ThreadState::Sleeping | ThreadState::Unknown => {}
            }
            if state == ThreadState::Running {
                carrier.note_awake();
            } else {
                carrier.note_cpu();
            }
            if matches!(state, ThreadState::Sleeping | ThreadState::Locked) {
                carrier.look_at_sleeper();
            }
        }
        if newly {
            self.watchers.rotate_often();
        }
        if locked && !self.frozen.is_empty() && self.watchers.rotates_now() {
            self.rotate();
        }
    }

    /// Releases frozen carriers, as one may hold a lock that other threads wait for.
    pub(crate) fn rotate(&self) {
        // Carriers released for this, not those that came back from the kernel.
        let round = self.watchers.round();
        let runs = |index: &usize| {
            let carrier = self.carrier(*index);
            carrier.rotated_in() == round && carrier.thread.state() == ThreadState::Running
        };
        let released = self.detached.members().filter(runs).count();
        for _ in released..self.count.allowed() {
            let Some(carrier) = self.claim_for_rotation() else {
                return;
            };
            if carrier.release() {
                self.preempted.watchdog_releases.fetch_add(1, Relaxed);
            }
        }
    }

    /// Claims the next frozen carrier of this round.
    ///
    /// Suspects come first, then those that froze last.
    fn claim_for_rotation(&self) -> Option<&Carrier> {
        let round = self.watchers.round();
        let carriers = || self.frozen.members().map(|index| self.carrier(index));
        let next = carriers()
            .filter(|carrier| carrier.rotated_in() != round)
            .max_by_key(|carrier| carrier.rotation_order());
        let Some(next) = next else {
            // all have had their time; another round starts at the next look
            self.watchers.next_round();
            return None;
        };
        next.note_rotation(round);
        self.frozen.claim(next.index).then_some(next)
    }
}

/// Returns whether the kernel refuses barriers (S18) and that is not reported yet.
///
/// Called on the monitor's thread. True at most once per process.
pub(crate) fn has_barrier_to_report() -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    membarrier::refused() > 0 && !REPORTED.swap(true, SeqCst)
}

/// Reports refused barriers; on the collector's thread, since a full pipe may block it.
pub(crate) fn report_barrier() {
    stderr::print(
        "indent: the kernel refuses membarrier since the runtime started (a seccomp filter?); \
         workers are taken only from threads that /proc/self/task/*/syscall shows asleep, and \
         fibers that wait behind a busy one wait longer. Allow membarrier in the filter\n",
    );
}
