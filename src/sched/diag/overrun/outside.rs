#![expect(unsafe_code, reason = "looks at stacks of other threads")]
//! Overruns as the monitor sees them, from outside the fiber's thread.
//!
//! They concern fibers that sleep in the kernel, and fibers that compute while no other fiber
//! waits. All of this runs on the monitor's thread and follows its rules.
//!
//! A thread that sleeps is not disturbed (S10): the kernel reports in which call it sleeps and
//! where its stack is, the monitor copies that stack, and asks again. If the answer is the same the
//! thread slept all the time, and the copy is valid. A frozen one has left its registers where they
//! can be read, and is frozen before and after. A fiber that runs is asked to capture its own
//! stack.
//!
//! The copy is read while the thread could wake at any moment. Stacks are never unmapped, words are
//! read by single instructions, and the code that walks the copy relies on nothing in it: a torn
//! copy is discarded, or makes a short stack in a report.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use indent_sysmon::frames::{Registers, Stack};
use indent_sysmon::{SystemCall, TICK, Waiting};

use crate::fiber::switch;
use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::diag::overrun::slots::Facts;
use crate::sched::diag::overrun::{Kind, MaybeGone};
use crate::sched::preempt::interrupt::LOOK;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;

impl Carrier {
    /// Records the fiber that sleeps here from now on.
    ///
    /// Called while the monitor has the worker in hand and preemption is enabled.
    pub(crate) fn note_sleeper(&self) {
        let occupant = &self.preempt.occupant;
        // I7: the monitor has the worker in hand, so the thread is in the middle of this fiber.
        if let Some(fiber) = self.current.get() {
            occupant.who.set(MaybeGone::of(fiber));
        }
        self.note_awake();
        // The thread has been standing still since the look before.
        let since = &occupant.slept_at;
        since.store(
            since.load(Relaxed).saturating_sub(TICK.as_nanos() as u64),
            Relaxed,
        );
    }

    /// Records that the carrier, which has no worker, does not sleep now.
    pub(crate) fn note_awake(&self) {
        let now = self.shared().clock.nanos();
        self.preempt.occupant.slept_at.store(now, Relaxed);
    }

    /// Reports a carrier that is detached and asleep, if that is due; at each tick.
    pub(crate) fn look_at_sleeper(&self) {
        let slept = self.has_slept();
        let ran = self.run_time.ran.load(Relaxed).saturating_add(slept);
        if let Some(facts) = self.overrun(Kind::Detach, None, ran) {
            self.capture_sleeper(facts);
        }
    }

    fn has_slept(&self) -> u64 {
        let since = self.preempt.occupant.slept_at.load(Relaxed);
        self.shared().clock.nanos().saturating_sub(since)
    }

    fn capture_sleeper(&self, facts: Facts) {
        let Some(call) = self.thread.system_call() else {
            return self.capture(facts, None); // the kernel does not report where
        };
        self.capture(facts, Some(call));
    }

    fn capture(&self, mut facts: Facts, call: Option<SystemCall>) {
        let occupant = &self.preempt.occupant;
        let Some(fiber) = occupant.who.hold() else {
            return;
        };
        let registers = match call {
            Some(call) => {
                facts.call = call.number;
                [call.pc, call.sp, 0]
            }
            None if facts.kind == Kind::Detach => [0; 3],
            None => [0, 1, 2].map(|i| occupant.registers[i].load(Relaxed)),
        };
        let range = switch::elsewhere(&fiber, Some(registers)).map_or(0..0, |at| at.inside());
        // SAFETY: part of a stack, or empty; stacks stay mapped. The fiber may write to it: see the
        // header.
        let stack = unsafe { Stack::new(range) };
        let [code, sp, bp] = registers;
        let start = match &call {
            Some(call) => Registers::asleep(call),
            None => Registers::interrupted(code, sp, bp),
        };
        let still = || match call {
            Some(_) => self.thread.system_call() == call,
            None => self.shared().frozen.contains(self.index),
        };
        self.file(facts, fiber, (&start, &stack, code), still);
    }

    /// Asks the running fiber to report itself, unless there is another request.
    fn ask_to_look(&self, stamp: u64) {
        let request = &self.preempt.request;
        let asked = request.replace_seen(0, stamp | LOOK);
        if asked && self.computes() {
            self.send();
        } else if asked {
            request.withdraw(stamp | LOOK);
        }
    }
}

impl Shared {
    /// Handles a worker in one dispatch for some time that need not be interrupted.
    pub(crate) fn notice_overrun(&self, worker: &Worker, dispatch: u64) {
        let Some(carrier) = worker.carrier().filter(|_| self.settings.preempt) else {
            return;
        };
        if self.reports.slots.get().is_none() {
            self.ask_for_reports(); // an overrun may follow soon
        }
        let (preempt, quantum) = (&carrier.preempt, nanos(self.settings.quantum));
        let stamp = worker.stamp_of(dispatch);
        let age = (self.clock.nanos()).saturating_sub(preempt.began.load(Relaxed));
        let before = carrier.run_time.ran.load(Relaxed);
        if preempt.long.load(SeqCst) != stamp || age.saturating_add(before) < quantum {
            return;
        }
        // While others wait the fiber is stopped at the end of its slice, and reported then; unless
        // it cannot be stopped.
        if self.who_waits(worker) != Waiting::None && age < 2 * self.slice_nanos() {
            return;
        }
        let cpu = carrier.thread.cpu_time().map_or(0, nanos);
        let ran = before + cpu.saturating_sub(preempt.cpu_began.load(Relaxed));
        if !carrier.run_time.is_due(ran, quantum) {
            return;
        }
        if self.reports.listens() {
            carrier.ask_to_look(stamp);
        } else {
            // Not as a report: the one made when it is stopped is the first.
            if preempt.occupant.unseen_in.swap(stamp, Relaxed) != stamp {
                self.reports.unseen.fetch_add(1, Relaxed);
            }
        }
    }
}
