//! The programs, a few in a file by theme.
//!
//! Each runs until its stage is over, and at least one round, on fibers that it starts itself. A
//! program must be right on threads: then it must be right on fibers.

use crate::run::can_preempt;
use crate::stage::Stage;

mod allocation;
mod arithmetic;
mod blocking;
mod bound;
#[cfg(target_arch = "x86_64")]
mod control;
mod foreign;
mod fork;
mod inside;
mod interrupts;
mod libraries;
mod locals;
mod locks;
mod neighbours;
mod panics;
mod printing;
mod processes;
#[cfg(target_arch = "x86_64")]
mod registers;
mod signals;
mod stacks;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod workloads;

/// What is missing unless the function returns true.
type Needs = (&'static str, fn() -> bool);

/// A program.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Its purpose, in one line.
    pub(crate) why: &'static str,
    pub(crate) body: fn(&'static Stage),
    /// Called before there is a runtime.
    pub(crate) before: Option<fn()>,
    /// Changes something of the whole process: signals, descriptors.
    pub(crate) apart: bool,
    /// The heartbeat may starve.
    pub(crate) silences: bool,
    /// Its fibers wait for each other without the runtime's knowledge: without preemption they
    /// hang.
    needs_preemption: bool,
    /// Catches panics.
    unwinds: bool,
    /// Has parts that run in regions if the command line asks for it.
    pub(crate) pure: bool,
    /// Is about regions.
    pub(crate) regions: bool,
    /// Must be switched away from in some region.
    pub(crate) switches: bool,
    /// Whether the CPU has the instructions it needs, and the message if not.
    cpu: Option<Needs>,
}

impl Program {
    const fn new(name: &'static str, why: &'static str, body: fn(&'static Stage)) -> Self {
        Program {
            name,
            why,
            body,
            before: None,
            apart: false,
            silences: false,
            needs_preemption: false,
            unwinds: false,
            pure: false,
            regions: false,
            switches: false,
            cpu: None,
        }
    }

    const fn needs_preemption(mut self) -> Self {
        self.needs_preemption = true;
        self
    }

    const fn unwinds(mut self) -> Self {
        self.unwinds = true;
        self
    }

    const fn pure(mut self) -> Self {
        self.pure = true;
        self
    }

    const fn regions(mut self) -> Self {
        self.regions = true;
        self.switches = true;
        self
    }

    /// Marks a program that may never be switched away from.
    const fn seldom(mut self) -> Self {
        self.switches = false;
        self
    }

    const fn cpu(mut self, missing: &'static str, has: fn() -> bool) -> Self {
        self.cpu = Some((missing, has));
        self
    }

    const fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    const fn silences(mut self) -> Self {
        self.silences = true;
        self
    }

    const fn before(mut self, before: fn()) -> Self {
        self.before = Some(before);
        self
    }

    /// Returns the reason why it cannot run in this build, if there is one.
    pub(crate) fn impossible(&self) -> Option<&'static str> {
        if self.unwinds && cfg!(panic = "abort") {
            Some("a panic aborts")
        } else if self.needs_preemption && !can_preempt() {
            Some("nothing preempts")
        } else {
            let missing = self.cpu.filter(|(_, has)| !has());
            missing.map(|(what, _)| what)
        }
    }
}

/// Returns all programs.
pub(crate) fn all() -> Vec<Program> {
    [
        arithmetic::PROGRAMS,
        allocation::PROGRAMS,
        locals::PROGRAMS,
        locks::PROGRAMS,
        panics::PROGRAMS,
        libraries::PROGRAMS,
        foreign::PROGRAMS,
        printing::PROGRAMS,
        blocking::PROGRAMS,
        interrupts::PROGRAMS,
        processes::PROGRAMS,
        fork::PROGRAMS,
        stacks::PROGRAMS,
        neighbours::PROGRAMS,
        bound::PROGRAMS,
        signals::PROGRAMS,
        workloads::PROGRAMS,
        inside::PROGRAMS,
        #[cfg(target_arch = "x86_64")]
        control::PROGRAMS,
        #[cfg(target_arch = "x86_64")]
        registers::PROGRAMS,
        #[cfg(target_arch = "x86_64")]
        vectors::PROGRAMS,
    ]
    .concat()
}
