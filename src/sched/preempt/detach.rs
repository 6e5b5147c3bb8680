#![expect(unsafe_code, reason = "takes workers from carriers that sleep")]
//! Carriers that sleep in the kernel under a fiber, and those that run without a worker.
//!
//! A fiber that calls something which blocks takes its thread with it, not its worker: the monitor
//! sees the thread asleep, takes the worker away (`owner.rs`) and gives it to a spare. The carrier
//! is *detached*. When it wakes it just goes on; at its next blocking call it asks for a worker. If
//! it goes on computing instead it runs beside the workers, without a right to: the monitor
//! interrupts it at its next look, and it freezes and waits for its turn like the others. So at no
//! time does a fiber compute unwatched. With preemption off threads that sleep are detached all the
//! same, because other fibers may have to run before they can wake; one that computes afterwards is
//! not interrupted, and runs beside the workers until its next blocking call.
//!
//! All of this runs on the monitor's thread and keeps its law.
//!
//! **Rotation** ([S9]). A frozen fiber may hold a lock that others need: the allocator's, a mutex
//! of the program. If a worker makes no progress although it runs no fiber, or a carrier waits for
//! another thread inside the kernel, frozen carriers are *released* for about a tick each, without
//! a worker, as many at a time as there are workers: suspects first, then the newest. They are
//! interrupted again like any other that runs without a worker. A carrier that waits for another
//! thread mostly waits for something else, so after each round the pause before the next one
//! doubles, until another carrier begins to wait.
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
    /// On the monitor's thread: how much it has computed so far.
    pub(crate) fn note_cpu(&self) {
        let cpu = self.thread.cpu_time().map_or(0, nanos);
        self.preempt.cpu.store(cpu, Relaxed);
        self.preempt.cpu_began.store(cpu, Relaxed);
    }

    /// What the clock of its thread will have said so long ago, if it has run since.
    pub(crate) fn cpu_before(&self, time: Duration) -> u64 {
        let cpu = self.thread.cpu_time().unwrap_or_default();
        nanos(cpu.saturating_sub(time))
    }

    /// Whether the kernel has its thread off the CPU at this moment, as a proof (`owner.rs`). To be
    /// asked on another thread.
    pub(crate) fn sleeps(&self) -> bool {
        self.thread.system_call().is_some()
    }

    /// On the monitor's thread: whether it has computed for some time since it was last seen asleep. One
    /// that wakes for a moment between two sleeps would be hit in the second (S10).
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
            self.detached.set(carrier.index); // before it can ask for another one
        };
        // Perhaps not `worker` any more but the one this carrier holds now: as good.
        let Some((taken, ())) = carrier.owner.take(|| carrier.sleeps(), meanwhile) else {
            carrier.parker.notify(); // given back: in case it noticed
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

    /// At a tick: those who run without a worker are to freeze.
    pub(crate) fn mind_detached(&self) {
        let (mut locked, mut newly) = (false, false);
        for carrier in self.detached.members().map(|index| self.carrier(index)) {
            let request = carrier.preempt.request.get(); // a later one is for a worker it got since
            if carrier.owner.peek().is_some() {
                self.detached.claim(carrier.index); // it has got one by another way
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

    /// Something that a frozen fiber holds may be what others wait for.
    pub(crate) fn rotate(&self) {
        // Those that were released for this, not those that came back from the kernel.
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

    /// The next frozen carrier in this round: suspects first, then those that froze last.
    fn claim_for_rotation(&self) -> Option<&Carrier> {
        let round = self.watchers.round();
        let carriers = || self.frozen.members().map(|index| self.carrier(index));
        let next = carriers()
            .filter(|carrier| carrier.rotated_in() != round)
            .max_by_key(|carrier| carrier.rotation_order());
        let Some(next) = next else {
            self.watchers.next_round(); // all have had their time: once more, at the next look
            return None;
        };
        next.note_rotation(round);
        self.frozen.claim(next.index).then_some(next)
    }
}

/// On the monitor's thread: whether the kernel refuses barriers (S18) and that is to be reported,
/// which is once in a process.
pub(crate) fn has_barrier_to_report() -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    membarrier::refused() > 0 && !REPORTED.swap(true, SeqCst)
}

/// On the collector's thread, since a full pipe may block it.
pub(crate) fn report_barrier() {
    stderr::print(
        "indent: the kernel refuses membarrier since the runtime started (a seccomp filter?); \
         workers are taken only from threads that /proc/self/task/*/syscall shows asleep, and \
         fibers that wait behind a busy one wait longer. Allow membarrier in the filter\n",
    );
}
