#![expect(unsafe_code, reason = "looks at the stacks of parked fibers")]
//! Describes, as text, what every fiber of a runtime does and what it waits for.
//!
//! The text is made while fibers run, so each line is true of some moment. The description of the
//! stack of a fiber that has run meanwhile may be wrong. The walk is safe all the same: stacks stay
//! mapped, and the walk relies on nothing in them.
//!
//! Fibers that hold a thread come first, and those that have not started last: where fibers wait
//! for each other, the former are the reason.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

use indent_sysmon::frames::{self, Registers, Stack, TraceCache};

use crate::fiber::state::Phase;
use crate::fiber::{Held, switch};
use crate::sched::Shared;
use crate::sched::block::wake;
use crate::sched::mobility::bound::Cause;
use crate::sched::mobility::verdict::{self, Mobility};
use crate::sched::threads::carrier::Carrier;
use crate::util::loom::atomic::Ordering::Relaxed;

/// Fibers that are listed singly; the others are counted.
const LISTED: usize = 1000;

/// Order in which fibers are listed.
enum Rank {
    /// Runnable, or parked with a thread of its own.
    HoldsThread,
    /// Parked without a thread.
    Parked,
    Unstarted,
}

impl Rank {
    fn of(fiber: &Held) -> Rank {
        match fiber.phase() {
            Phase::Unstarted => Rank::Unstarted,
            Phase::Parked if wake::thread_of(fiber.fiber()).is_none() => Rank::Parked,
            _ => Rank::HoldsThread,
        }
    }
}

impl Shared {
    /// Describes the runtime and its fibers, in one line each.
    ///
    /// A fiber's line has its state, what it waits for and since when, and what binds it.
    pub(crate) fn dump(&self) -> String {
        let mut text = format!(
            "indent: {} fibers, {} of them wait for a thread to start on; {} threads: {} spare, {} frozen, \
             {} detached; at most {}\n",
            self.alive(),
            self.global.threadless.len(),
            self.carrier_threads(),
            self.spares.len(),
            self.frozen.len(),
            self.detached.len(),
            self.settings.max_carriers,
        );
        let stopped = self.stopped();
        let now = self.clock.set(Instant::now()) as u32;
        // Sorted by one look at each, so a fiber that starts meanwhile is not missed.
        let mut fibers: [Vec<Held>; 3] = Default::default();
        let mut all = 0;
        self.each_fiber(|fiber| {
            all += 1;
            let rank = &mut fibers[Rank::of(&fiber) as usize];
            if rank.len() < LISTED {
                rank.push(fiber);
            }
        });
        for fiber in fibers.iter().flatten().take(LISTED) {
            // Writing to a string does not fail.
            let _ = self.describe(&mut text, fiber, now, &stopped);
        }
        if all > LISTED {
            let _ = writeln!(text, "  and {} more", all - LISTED);
        }
        text
    }

    /// Returns the fibers of threads that were stopped or sleep in the kernel, by id.
    fn stopped(&self) -> HashMap<u64, &'static str> {
        let fiber = |index| {
            let carrier: &Carrier = self.carrier(index);
            carrier.preempt.occupant.fiber().map(|held| held.id())
        };
        let frozen = self.frozen.members().filter_map(fiber);
        let detached = self.detached.members().filter_map(fiber);
        let frozen = frozen.map(|id| (id, "interrupted, waiting for its turn"));
        let detached = detached.map(|id| (id, "blocks its thread in the kernel"));
        frozen.chain(detached).collect()
    }

    fn describe(
        &self,
        text: &mut String,
        fiber: &Held,
        now: u32,
        stopped: &HashMap<u64, &'static str>,
    ) -> std::fmt::Result {
        text.push_str("  ");
        fiber.describe(text)?;
        let waits = self.clock.between(fiber.waits_since(), now);
        match fiber.phase() {
            Phase::Unstarted if fiber.waits_since() > 0 => {
                return writeln!(text, ": waits for a thread to start on, for {waits:?}");
            }
            Phase::Unstarted => return writeln!(text, ": not started"),
            Phase::Runnable => {
                let state = stopped.get(&fiber.id());
                write!(text, ": {}", state.unwrap_or(&"running or queued"))?;
            }
            Phase::Parked => {
                let reason = fiber.reason();
                write!(text, ": parked for {waits:?} ({reason}")?;
                match fiber.awaited() {
                    Some(id) if reason.is_join() => write!(text, " of fiber {id})")?,
                    Some(address) => write!(text, " at {address:#x})")?,
                    None => write!(text, ")")?,
                }
            }
            Phase::Done => return writeln!(text, ": over"),
        }
        if fiber.pins.load(Relaxed) > 0 {
            write!(text, ", pinned")?;
        }
        let thread = wake::thread_of(fiber.fiber()).map(|thread| thread.index);
        match verdict::noted(fiber) {
            _ if fiber.phase() != Phase::Parked => {}
            Mobility::Movable => {}
            Mobility::Unjudged => write!(text, ", unjudged")?,
            Mobility::Bound => write!(text, ", bound")?,
        }
        if let Some(index) = thread {
            write!(text, ", on thread {index}")?;
        }
        let found = self
            .last_cause(fiber)
            .filter(|_| verdict::noted(fiber) == Mobility::Bound);
        match found {
            Some(Cause::InRegister) => {
                write!(text, ", by the address of a thread-local in a register")?;
            }
            Some(Cause::InLocal(offset)) => {
                let variable = verdict::local_around(offset);
                let variable = variable.as_deref().unwrap_or("a thread-local");
                write!(text, ", by the address of a thread-local in {variable}")?;
            }
            _ => {}
        }
        if verdict::noted(fiber) == Mobility::Bound
            && let Some(at) = binding(fiber)
            && let Some(judge) = frames::judge()
        {
            let why = judge.explain(at);
            let function = why.function().unwrap_or("a function without a name");
            write!(text, ", by {function}")?;
            if let Some(variable) = why.variable() {
                write!(text, ", which uses {variable}")?;
            }
        }
        writeln!(text)
    }
}

/// Returns the place in the code that binds a parked fiber, if it is visible.
fn binding(fiber: &Held) -> Option<usize> {
    let at = switch::elsewhere(fiber, None)?;
    if at.inside().is_empty() {
        return None;
    }
    let [code, sp, bp] = at.registers;
    // SAFETY: part of a stack; stacks stay mapped. The fiber may write to it: see the header.
    let stack = unsafe { Stack::new(at.stack.clone()) };
    let registers = Registers::interrupted(code, sp, bp);
    let judgement = TraceCache::new().judge(&registers, &stack, at.root);
    judgement.binding.filter(|_| judgement.complete)
}
