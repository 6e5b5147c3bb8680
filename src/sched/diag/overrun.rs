#![expect(unsafe_code, reason = "copies the stack of the fiber it interrupts")]
//! Overruns: fibers that run for longer than a quantum, and how they are reported.
//!
//! A fiber's *run time* is the CPU time it has used since it last came back to the scheduler by
//! itself, over all its freezes and thaws; of a fiber that sleeps in the kernel also the time it
//! sleeps. When the run time passes the quantum that is an *overrun*, and there is a *report*. The
//! next report of the same run comes when its run time has doubled, so an endless loop makes few.
//!
//! A fiber that is stopped in the middle stays on its carrier (S1), and a carrier begins a new run
//! time with each fiber it runs: so the run time is kept in the carrier, two words beside its
//! budget. A fiber that is switched out in place takes it along ([`RunTime::put_aside`]).
//!
//! The steps of a report:
//! 1. *Capture* ([`Carrier::note_overrun`] and similar): on the fiber's own thread, in the handler
//!    or where preemption is enabled again, or by the monitor for a fiber that sleeps
//!    (`outside.rs`). It claims a slot (`slots.rs`), copies the innermost words of the stack and
//!    some numbers, and asks the collector.
//! 2. The collector turns the copy into addresses of frames and adds them to a table (`table.rs`).
//!    No names.
//! 3. If there is a listener, a thread of its own looks names up and calls the listener
//!    (`reporter.rs`, `log.rs`).
//!
//! Rules of this file and of `slots.rs`: the code runs in signal handlers (S7), with preemption
//! disabled. No allocation, no lock, no formatting. If no slot is free the report is lost, and
//! counted.
//!
//! A quantum that passes while no other fiber waits is *noticed*: the fiber continues to run. If
//! there is a listener the monitor sends the signal all the same, with a request to report and not
//! to freeze (`LOOK`); else it only counts. Rejected: to send it always; a program that does not
//! ask for reports should not get more signals than preemption needs (S10).

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use indent_sysmon::frames::{Registers, Stack};

use crate::fiber::{FiberRef, Held, Record, switch};
use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::sys;

mod log;
mod outside;
pub(crate) mod report;
pub(crate) mod reporter;
mod slots;
pub(crate) mod summary;
mod table;

use reporter::Reporter;
use slots::{Facts, Slots};

/// What was done about an overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing.
    Noticed = 0,
    Freeze = 1,
    /// A freeze outside the program's code.
    SuspectFreeze = 2,
    /// The fiber slept, and its worker was given to another carrier.
    Detach = 3,
    /// The fiber was switched out in place.
    InPlace = 4,
}

impl Kind {
    pub(crate) const COUNT: usize = 5;

    fn from_number(number: u8) -> Kind {
        match number {
            1 => Kind::Freeze,
            2 => Kind::SuspectFreeze,
            3 => Kind::Detach,
            4 => Kind::InPlace,
            _ => Kind::Noticed,
        }
    }
}

/// Run time of a carrier's fiber in nanoseconds, now and at its last report.
#[derive(Default)]
pub(crate) struct RunTime {
    ran: AtomicU64,
    reported: AtomicU64,
}

impl RunTime {
    /// Starts at zero, as another fiber runs, or the same one anew; own thread.
    #[inline]
    pub(crate) fn begin(&self) {
        self.ran.store(0, Relaxed);
        self.reported.store(0, Relaxed);
    }

    /// Adds the length of a part of the run that has ended; own thread.
    pub(crate) fn add(&self, nanos: u64) {
        let ran = self.ran.load(Relaxed).saturating_add(nanos);
        self.ran.store(ran, Relaxed);
    }

    /// Returns the run time of a fiber that is switched out in place.
    ///
    /// The fiber has not come back by itself. Called on the own thread. The fiber takes it up with
    /// `resume` on whatever carrier it continues.
    pub(crate) fn put_aside(&self) -> (u64, u64) {
        (self.ran.load(Relaxed), self.reported.load(Relaxed))
    }

    pub(crate) fn resume(&self, (ran, reported): (u64, u64)) {
        self.ran.store(ran, Relaxed);
        self.reported.store(reported, Relaxed);
    }

    /// Returns whether a run time of `ran` is to be reported.
    fn is_due(&self, ran: u64, quantum: u64) -> bool {
        ran >= quantum && ran / 2 >= self.reported.load(Relaxed)
    }
}

/// A fiber that may be over when it is looked at.
///
/// Records stay mapped, so its record can be read.
#[derive(Default)]
pub(crate) struct MaybeGone {
    record: AtomicPtr<Record>,
    id: AtomicU64,
}

impl MaybeGone {
    pub(crate) fn set(&self, (record, id): (*mut Record, u64)) {
        self.record.store(record, Relaxed);
        self.id.store(id, Relaxed);
    }

    /// Returns the value for [`set`](Self::set).
    ///
    /// The caller must be allowed to look at the fiber now.
    pub(crate) fn of(fiber: FiberRef) -> (*mut Record, u64) {
        (fiber.pointer().as_ptr(), fiber.id())
    }

    /// Returns a counted reference, if the record still belongs to that fiber.
    fn hold(&self) -> Option<Held> {
        // SAFETY: null, or a record: memory of slabs is never unmapped.
        let record = unsafe { self.record.load(Relaxed).as_ref() }?;
        let held = record.try_hold()?;
        (held.id() == self.id.load(Relaxed)).then_some(held)
    }
}

/// What other threads need to know of a carrier's fiber.
///
/// Part of [`PreemptState`](crate::sched::preempt::freeze::PreemptState).
#[derive(Default)]
pub(crate) struct Occupant {
    /// The fiber that was stopped or fell asleep; valid while the carrier is frozen or detached.
    who: MaybeGone,
    /// Registers with which it was stopped.
    registers: [AtomicUsize; 3],
    /// Time at which it fell asleep, by the runtime's clock.
    slept_at: AtomicU64,
    /// The fiber for which others make room; `pressed_in` is the stamp of that dispatch.
    pressed_for: AtomicU64,
    pressed_in: AtomicU64,
    /// The last dispatch counted as unseen; monitor only.
    unseen_in: AtomicU64,
}

impl Occupant {
    /// Returns the fiber that was stopped or sleeps, while the carrier is frozen or detached.
    pub(crate) fn fiber(&self) -> Option<Held> {
        self.who.hold()
    }

    /// Records that a waker needs room for this fiber, in a dispatch of the carrier's worker.
    pub(crate) fn has_urgent(&self, fiber: u64, stamp: u64) {
        self.pressed_for.store(fiber, Relaxed);
        self.pressed_in.store(stamp, Relaxed);
    }
}

/// State of a runtime's overrun reports.
pub(crate) struct Reports {
    /// Made by the collector when the first dispatch has lasted for a tick.
    ///
    /// Few programs need them.
    slots: OnceLock<Slots>,
    pub(crate) lost: AtomicU64,
    /// Overruns that were counted, but not captured.
    pub(crate) unseen: AtomicU64,
    /// Whether there is a listener.
    listens: AtomicBool,
    pub(crate) reporter: std::sync::Arc<Reporter>,
}

impl Reports {
    pub(crate) fn new(mut reporter: Reporter) -> Self {
        let listens = reporter.listens();
        Reports {
            slots: OnceLock::new(),
            lost: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            listens: AtomicBool::new(listens),
            reporter: std::sync::Arc::new(reporter),
        }
    }

    pub(crate) fn listens(&self) -> bool {
        self.listens.load(Relaxed)
    }

    pub(crate) fn begin_to_listen(&self) {
        self.listens.store(true, SeqCst);
    }

    /// Allocates the slots; called on the collector's thread.
    fn make_slots(&self) {
        self.slots.get_or_init(Slots::new);
    }
}

impl Carrier {
    /// Records where the fiber is stopped, and returns what to report of it.
    ///
    /// Called on the own thread with preemption disabled, in the middle of a fiber, when
    /// `note_slice` has recorded the slice that ends here. Returns facts to [report](Self::report)
    /// if the fiber has run for too long.
    pub(crate) fn stops(
        &self,
        worker: Option<&Worker>,
        suspect: bool,
        registers: [usize; 3],
    ) -> Option<Facts> {
        let occupant = &self.preempt.occupant;
        let who = self.current.get().map(MaybeGone::of);
        occupant.who.set(who.unwrap_or((ptr::null_mut(), 0)));
        for (place, value) in occupant.registers.iter().zip(registers) {
            place.store(value, Relaxed);
        }
        let kind = if suspect {
            Kind::SuspectFreeze
        } else {
            Kind::Freeze
        };
        self.overrun(kind, worker, self.run_time.ran.load(Relaxed))
    }

    /// Reports the fiber if it has run for too long.
    ///
    /// Called on the own thread with preemption disabled, in the middle of a fiber, at these
    /// registers. `InPlace` ends a slice; `Noticed` does not.
    pub(crate) fn note_overrun(&self, kind: Kind, registers: [usize; 3]) {
        let began = self.preempt.cpu_began.load(Relaxed);
        let slice = sys::thread::cpu_time().saturating_sub(began);
        let ran = self.run_time.ran.load(Relaxed).saturating_add(slice);
        if kind == Kind::InPlace {
            self.run_time.add(slice);
        }
        let worker = self.owner.peek();
        // SAFETY: workers live as long as `Shared`.
        let worker = worker.map(|worker| unsafe { worker.as_ref() });
        if let Some(facts) = self.overrun(kind, worker, ran) {
            self.report(facts, registers);
        }
    }

    /// Returns the facts to report of a run time of `ran`, if it is due.
    fn overrun(&self, kind: Kind, worker: Option<&Worker>, ran: u64) -> Option<Facts> {
        let quantum = nanos(self.shared().settings.quantum);
        (self.run_time.is_due(ran, quantum)).then(|| self.facts(kind, worker, ran))
    }

    fn facts(&self, kind: Kind, worker: Option<&Worker>, ran: u64) -> Facts {
        let (shared, occupant) = (self.shared(), &self.preempt.occupant);
        let (interactive, batch) = shared.how_many_wait(worker);
        let in_this = worker.is_some_and(|w| w.stamp() == occupant.pressed_in.load(Relaxed));
        Facts {
            kind,
            ran,
            reported: self.run_time.reported.load(Relaxed),
            call: 0,
            interactive,
            batch,
            pressed_for: if in_this {
                occupant.pressed_for.load(Relaxed)
            } else {
                0
            },
        }
    }

    /// Captures the stack, and asks the collector to report it.
    ///
    /// Called on the own thread with preemption disabled.
    pub(crate) fn report(&self, facts: Facts, registers: [usize; 3]) {
        let Some(fiber) = self.current.get() else {
            return;
        };
        // SAFETY: its own thread, and it does not continue before the copy is taken.
        let at = unsafe { switch::running(fiber, registers) };
        // SAFETY: the part of the stack that it uses; no other thread writes to it. Where the stack
        // pointer is elsewhere (on a stack of the program's own) the part is empty, and nothing is
        // read.
        let stack = unsafe { Stack::new(at.inside()) };
        let [code, sp, bp] = registers;
        let start = Registers::interrupted(code, sp, bp);
        self.file(facts, fiber.hold(), (&start, &stack, code), || true);
    }

    /// Puts the facts into a slot, with a copy of the stack.
    ///
    /// May be called on any thread that has all the facts. The copy is valid if `still` returns
    /// true afterwards.
    fn file(
        &self,
        facts: Facts,
        fiber: Held,
        (start, stack, code): (&Registers, &Stack, usize),
        still: impl Fn() -> bool,
    ) {
        let shared = self.shared();
        let Some(slots) = shared.reports.slots.get() else {
            return shared.ask_for_reports(); // too early; the report is due again later
        };
        if !still() {
            return; // it has continued, and another fiber may be here
        }
        self.run_time.reported.store(facts.ran, Relaxed);
        if slots.put(facts, fiber, (start, stack, code), still) {
            shared.ask_for_reports();
        } else {
            shared.reports.lost.fetch_add(1, Relaxed);
        }
    }
}

impl Shared {
    /// Counts the fibers that wait for this worker or for any worker: interactive and batch.
    ///
    /// Counts what is visible without a lock.
    fn how_many_wait(&self, worker: Option<&Worker>) -> (usize, usize) {
        let mut interactive =
            self.global.unstarted.len() + self.global.started.len() + self.wanted.len();
        if let Some(worker) = worker {
            interactive += worker.queue.len() + usize::from(!worker.lifo.is_empty());
            interactive += usize::from(!worker.assigned.is_empty() || worker.timers.is_due());
        }
        let stopped = self.global.interrupted.len() + self.frozen.len();
        let batch = self.global.batch.len() + self.global.deferred.len() + stopped;
        (interactive, batch)
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_due_at_the_quantum_and_whenever_it_has_doubled() {
        let run_time = RunTime::default();
        let mut due = Vec::new();
        for _ in 0..100 {
            run_time.add(1);
            let ran = run_time.ran.load(Relaxed);
            if run_time.is_due(ran, 10) {
                run_time.reported.store(ran, Relaxed);
                due.push(ran);
            }
        }
        assert_eq!(due, [10, 20, 40, 80]);
        let aside = run_time.put_aside();
        run_time.begin();
        assert!(!run_time.is_due(9, 10));
        run_time.resume(aside);
        assert!(!run_time.is_due(150, 10), "it goes on where it was");
        assert!(run_time.is_due(160, 10));
    }
}
