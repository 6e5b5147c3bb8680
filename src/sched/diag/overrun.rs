#![expect(unsafe_code, reason = "copies the stack of the fiber it interrupts")]
//! Who is hogging: fibers that run for longer than a quantum, and what a report says of them.
//!
//! A fiber's *stretch* is the CPU time it has used since it last came back to the scheduler by itself,
//! over all its freezes and thaws; of a fiber that sleeps in the kernel also the time it sleeps. When a
//! stretch passes the quantum that is an *overrun*, and there is a *report*; the next one of the same
//! stretch comes when it has doubled, so an endless loop makes few.
//!
//! A fiber that is stopped in the middle stays on its carrier (S1), and a carrier begins a new stretch
//! with each fiber it runs: so the stretch is the carrier's, two words beside its budget. One that is
//! switched out in place takes it along ([`RunTime::put_aside`]).
//!
//! The way of a report:
//! 1. *Capture* ([`Carrier::note_overrun`] and its kin): on the fiber's own thread, in the handler or where
//!    the mark went down, or by the monitor for somebody who sleeps (`outside.rs`). It claims a slot
//!    (`slots.rs`), copies the innermost words of the stack and some numbers, and asks the collector.
//! 2. The collector climbs the copy into addresses and adds them to a table (`table.rs`). No names.
//! 3. If somebody listens, a thread of its own looks names up and calls (`reporter.rs`, `log.rs`).
//!
//! Law of this file and of `slots.rs`: it runs in signal handlers (S7), with preemption disabled. No allocation,
//! no lock, no formatting. If no slot is free the report is lost, and counted.
//!
//! A quantum that passes while nobody waits is *noticed*: nothing is done about it. If somebody listens the
//! monitor sends the signal all the same, with a request to look and not to freeze (`LOOK`); else
//! it only counts. Rejected: to look always; a program that does not ask should not get more signals
//! for it than preemption needs (S10).

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
    /// A freeze in code that is not the program's.
    SuspectFreeze = 2,
    /// It slept, and its worker went on without it.
    Detach = 3,
    /// Switched out in place.
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

/// How long the fiber of a carrier has run, in nanoseconds, and how long it had when it was last reported.
#[derive(Default)]
pub(crate) struct RunTime {
    ran: AtomicU64,
    reported: AtomicU64,
}

impl RunTime {
    /// Own thread: another fiber runs, or the same one anew.
    #[inline]
    pub(crate) fn begin(&self) {
        self.ran.store(0, Relaxed);
        self.reported.store(0, Relaxed);
    }

    /// Own thread: a part of it has ended, and lasted so long.
    pub(crate) fn add(&self, nanos: u64) {
        let ran = self.ran.load(Relaxed).saturating_add(nanos);
        self.ran.store(ran, Relaxed);
    }

    /// Own thread: the fiber is switched out without having come back by itself. When it goes on, on
    /// whatever carrier, its stretch does as well.
    pub(crate) fn put_aside(&self) -> (u64, u64) {
        (self.ran.load(Relaxed), self.reported.load(Relaxed))
    }

    pub(crate) fn resume(&self, (ran, reported): (u64, u64)) {
        self.ran.store(ran, Relaxed);
        self.reported.store(reported, Relaxed);
    }

    /// Whether a stretch of that length is to be reported.
    fn is_due(&self, ran: u64, quantum: u64) -> bool {
        ran >= quantum && ran / 2 >= self.reported.load(Relaxed)
    }
}

/// A fiber that may be over by the time somebody asks. Records stay mapped, so it can be asked.
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

    /// For [`set`](Self::set), by somebody who may look at the fiber now.
    pub(crate) fn of(fiber: FiberRef) -> (*mut Record, u64) {
        (fiber.pointer().as_ptr(), fiber.id())
    }

    /// A counted reference, if it is still that fiber.
    fn hold(&self) -> Option<Held> {
        // SAFETY: null, or a record: memory of slabs is never unmapped.
        let record = unsafe { self.record.load(Relaxed).as_ref() }?;
        let held = record.try_hold()?;
        (held.id() == self.id.load(Relaxed)).then_some(held)
    }
}

/// Of one carrier: what others need to know of its fiber. In [`PreemptState`](crate::sched::preempt::freeze::Ice).
#[derive(Default)]
pub(crate) struct Occupant {
    /// Who was stopped here, or fell asleep; valid while the carrier is frozen or detached.
    who: MaybeGone,
    /// Where it was stopped.
    registers: [AtomicUsize; 3],
    /// Since when it sleeps, by the runtime's clock.
    slept_at: AtomicU64,
    /// For whom somebody pressed, and in which dispatch.
    pressed_for: AtomicU64,
    pressed_in: AtomicU64,
    /// The dispatch that was last counted as one nobody looked at; the monitor's own.
    unseen_in: AtomicU64,
}

impl Occupant {
    /// The fiber that was stopped here or fell asleep, while the carrier is frozen or detached.
    pub(crate) fn fiber(&self) -> Option<Held> {
        self.who.hold()
    }

    /// A waker presses for this fiber in a dispatch of the carrier's worker.
    pub(crate) fn has_urgent(&self, fiber: u64, stamp: u64) {
        self.pressed_for.store(fiber, Relaxed);
        self.pressed_in.store(stamp, Relaxed);
    }
}

/// What a runtime knows of overruns.
pub(crate) struct Reports {
    /// Made by the collector when the first dispatch has lasted for a tick: few programs need them.
    slots: OnceLock<Slots>,
    pub(crate) lost: AtomicU64,
    /// Overruns that nobody looked at.
    pub(crate) unseen: AtomicU64,
    /// Somebody wants to know.
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

    /// On the collector's thread.
    fn make_slots(&self) {
        self.slots.get_or_init(Slots::new);
    }
}

impl Carrier {
    /// Own thread, preemption disabled, in the middle of a fiber: it is being stopped, and this slice of it ended,
    /// of which `note_slice` has told. What to [report](Self::report), if it has run for too long.
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

    /// Own thread, preemption disabled, in the middle of a fiber, at these registers: reports it if it has run for too
    /// long. `InPlace` ends a slice; `Noticed` does not.
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

    /// What is to be said of a stretch that has lasted so long, if anything.
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

    /// Own thread, preemption disabled: the copy, and then the collector's turn.
    pub(crate) fn report(&self, facts: Facts, registers: [usize; 3]) {
        let Some(fiber) = self.current.get() else {
            return;
        };
        // SAFETY: its own thread, and it does not go on before the copy is taken.
        let at = unsafe { switch::running(fiber, registers) };
        // SAFETY: the part of the stack that it uses; nobody else writes to it. Where the stack pointer
        // is elsewhere (on a stack of the program's own) the part is empty, and nothing is read.
        let stack = unsafe { Stack::new(at.inside()) };
        let [code, sp, bp] = registers;
        let start = Registers::interrupted(code, sp, bp);
        self.file(facts, fiber.hold(), (&start, &stack, code), || true);
    }

    /// Any thread that has taken all the facts: puts them into a slot, with a copy of the stack, which is
    /// good if `still` says so afterwards.
    fn file(
        &self,
        facts: Facts,
        fiber: Held,
        (start, stack, code): (&Registers, &Stack, usize),
        still: impl Fn() -> bool,
    ) {
        let shared = self.shared();
        let Some(slots) = shared.reports.slots.get() else {
            return shared.ask_for_reports(); // too early; it comes again
        };
        if !still() {
            return; // it has gone on, and another fiber may be here
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
    /// How many fibers wait for this worker, or for any: those that others come before apart. What can be
    /// seen without a lock.
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
