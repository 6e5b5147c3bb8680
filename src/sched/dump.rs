#![expect(unsafe_code, reason = "looks at the stacks of parked fibers")]
//! A text that says what every fiber of a runtime does, and what it waits for.
//!
//! It is made while fibers run, so each line is true of some moment, and what is said of the stack
//! of a fiber that has run on meanwhile may be wrong: stacks stay mapped, and the walk takes
//! nothing in them for granted.

use std::fmt::Write;

use indent_sysmon::frames::{self, Registers, Stack};

use crate::fiber::state::Phase;
use crate::fiber::{Held, switch};
use crate::sched::mobility::{self, Mobility};
use crate::sched::{Shared, wake};

/// Fibers that are listed singly; the others are counted.
const LISTED: usize = 1000;

impl Shared {
    /// One line for the runtime and one for each fiber: its state, what it waits for, and what
    /// binds it.
    pub(crate) fn dump(&self) -> String {
        let mut text = format!(
            "indent: {} fibers, {} of them wait for a thread to start on; {} threads: {} spare, {} frozen, \
             {} detached; at most {}\n",
            self.alive(),
            self.threadless.len(),
            self.carrier_threads(),
            self.spares.len(),
            self.frozen.len(),
            self.detached.len(),
            self.settings.max_carriers,
        );
        let (mut listed, mut more) = (0, 0);
        self.each_fiber(|fiber| {
            if listed == LISTED {
                more += 1;
                return;
            }
            listed += 1;
            // Writing to a string does not fail.
            let _ = describe(&mut text, &fiber);
        });
        if more > 0 {
            let _ = writeln!(text, "  and {more} more");
        }
        text
    }
}

fn describe(text: &mut String, fiber: &Held) -> std::fmt::Result {
    text.push_str("  ");
    fiber.describe(text)?;
    match fiber.phase() {
        Phase::Unstarted => return writeln!(text, ": not started"),
        Phase::Runnable => write!(text, ": running, or waiting for a worker")?,
        Phase::Parked => write!(text, ": parked ({})", fiber.reason())?,
        Phase::Done => return writeln!(text, ": over"),
    }
    match mobility::noted(fiber) {
        Mobility::Movable => writeln!(text),
        Mobility::Unjudged => writeln!(text, ", unjudged"),
        Mobility::Bound => {
            let thread = wake::thread_of(fiber.fiber()).map(|thread| thread.index);
            match thread {
                Some(index) => write!(text, ", bound to thread {index}")?,
                None => write!(text, ", bound")?,
            }
            match binding(fiber).and_then(|at| Some(frames::judge()?.explain(at))) {
                Some(why) => {
                    let function = why.function().unwrap_or("a function without a name");
                    write!(text, " by {function}")?;
                    match why.variable() {
                        Some(variable) => writeln!(text, ", which uses {variable}"),
                        None => writeln!(text),
                    }
                }
                None => writeln!(text),
            }
        }
    }
}

/// What binds a parked fiber to its thread, as far as that can be seen: a place in the code.
fn binding(fiber: &Held) -> Option<usize> {
    let at = switch::elsewhere(fiber, None)?;
    let range = at.inside();
    if range.is_empty() {
        return None;
    }
    let [code, sp, bp] = at.registers;
    // SAFETY: part of a stack; stacks stay mapped. See the header for who writes to it.
    let stack = unsafe { Stack::new(range) };
    let judgement = frames::judge_stack(&Registers::interrupted(code, sp, bp), &stack, at.root);
    judgement.binding.filter(|_| judgement.complete)
}
