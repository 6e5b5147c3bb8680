//! What happens to the address of a thread-local in one function.
//!
//! Where stacks take their thread-locals along, a value that was read goes with the stack, but an
//! address does not. So this module finds where addresses go. An address comes from the thread
//! pointer, from a call that returns one, or from the caller (its *colour* says which). Everything
//! computed from an address counts as one. A function
//!
//! - *holds* an address if it may have one while it calls another function: then its frame is
//!   bound, and no other;
//! - *hands out* an address if it may return one: then its callers are looked at;
//! - *loses* an address if it stores it anywhere but in a word of its own frame, passes it to a
//!   call that loses it or that is not known, or compares it with something that is no such
//!   address. Then something may be left of it when the function has returned.
//!
//! The frame is followed word by word. Once the address of a word of it has been taken, any code
//! may read that word and those above it: an address that is stored there at a call is lost.
//!
//! States grow until nothing changes, as in `flow`. Code that no branch leads to begins with what
//! any call or jump through a register leaves.

mod state;
mod step;
#[cfg(test)]
#[expect(unsafe_code, reason = "samples in assembly")]
mod tests;

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory};

use super::decode;
use super::flow::{SPOILED, jumps_anywhere, landing_pads, place_of, tables};
use crate::frames::image::Image;
use crate::frames::image::unwind::Function;
use state::State;
use step::Step;

/// The bit of the stack pointer in a set of registers.
const RSP: u32 = 1 << 4;
/// Functions with more instructions count as losing everything: following them costs too much.
const TOO_LONG: usize = 20_000;
const CROWDED: &str = "it is in too many places of the frame";

/// Origin of an address of a thread-local: made here, or given by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Colours(u8);

impl Colours {
    const NONE: Colours = Colours(0);
    /// Made in the function, or handed out to it.
    pub(crate) const OWN: Colours = Colours(1);
    /// Given by the caller.
    pub(crate) const GIVEN: Colours = Colours(2);

    fn with(self, other: Colours) -> Colours {
        Colours(self.0 | other.0)
    }

    pub(crate) fn has(self, colour: Colours) -> bool {
        self.0 & colour.0 != 0
    }
}

/// What a call receives: a bit for each of the six argument registers, and [`ON_STACK`].
pub(crate) type Arguments = u8;
/// Arguments on the stack.
pub(crate) const ON_STACK: Arguments = 1 << 6;
/// Bits of rdi, rsi, rdx, rcx, r8, r9.
const ARGUMENTS: [u32; 6] = [1 << 7, 1 << 6, 1 << 2, 1 << 1, 1 << 8, 1 << 9];

/// What comes back in rax and rdx: a bit for each.
pub(crate) type Results = u8;
const RESULTS: [u32; 2] = [1, 1 << 2];

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// The code at an address.
    Code(usize),
    /// An imported function.
    Import(u32),
    /// The target is not known.
    Unknown,
}

/// What a call does with the addresses it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) loses: bool,
    /// Where one of the addresses it receives may come back.
    pub(crate) returns: Results,
    /// Where an address it did not receive may come back.
    pub(crate) hands_out: Results,
}

/// What happens to the addresses of one colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    /// How an address is lost, if that happens.
    pub(crate) lost: Option<&'static str>,
    pub(crate) returns: Results,
    /// There may be an address during a call.
    pub(crate) held: bool,
    /// There is an address at all.
    pub(crate) any: bool,
}

/// What happens to addresses in one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Escape {
    pub(crate) own: Fate,
    pub(crate) given: Fate,
}

/// Answers what another function does with its arguments; asked for each call.
pub(crate) type Ask<'a> = dyn FnMut(Callee, Arguments) -> Answer + 'a;

/// Follows one function after another and reuses its memory.
pub(crate) struct Follower {
    info: InstructionInfoFactory,
    code: Vec<Instruction>,
    states: Vec<Option<State>>,
    work: Vec<usize>,
}

impl Default for Follower {
    fn default() -> Follower {
        Follower {
            info: InstructionInfoFactory::new(),
            code: Vec::new(),
            states: Vec::new(),
            work: Vec::new(),
        }
    }
}

impl Follower {
    /// Finds what happens to addresses in a function that receives some.
    pub(crate) fn follow(
        &mut self,
        image: &Image,
        function: &Function,
        given: Arguments,
        ask: &mut Ask<'_>,
    ) -> Escape {
        let range = function.range.clone();
        let bytes = image.memory.bytes(range.clone()).unwrap_or_default();
        decode(bytes, range.start, &mut self.code);
        let mut escape = Escape::default();
        if self.code.len() > TOO_LONG || function.cold {
            let all = Fate {
                lost: Some("the function is too long, or a part of another one"),
                returns: 3,
                held: true,
                any: true,
            };
            escape.own = all;
            escape.given = all;
            return escape;
        }
        let entries = Entries::of(image, function, &self.code);
        // The lowest place in the frame whose address is taken. It is known once nothing changes.
        let mut taken = i32::MAX;
        loop {
            let before = taken;
            escape = Escape::default();
            let mut pass = Pass {
                follower: self,
                image,
                range: &range,
                entries: &entries,
                given,
                taken: &mut taken,
                escape: &mut escape,
            };
            pass.run(ask);
            if taken == before {
                return escape;
            }
        }
    }
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// Entries of a function other than by visible branches.
struct Entries {
    /// Entered by unwinding.
    pads: Vec<usize>,
    /// Entered by jumps through a register.
    tables: Vec<usize>,
    /// There are such jumps, and where they lead is known.
    told: bool,
}

impl Entries {
    fn of(image: &Image, function: &Function, code: &[Instruction]) -> Entries {
        let jumps = code.iter().any(jumps_anywhere);
        let tables = match jumps && !image.fixed {
            true => tables::places(image, &function.range, code),
            false => Vec::new(),
        };
        Entries {
            pads: landing_pads(image, function, code),
            told: !tables.is_empty(),
            tables,
        }
    }
}

/// State of the analysis while it follows one function.
struct Pass<'a, 'b> {
    follower: &'a mut Follower,
    image: &'b Image,
    range: &'b Range<usize>,
    entries: &'b Entries,
    given: Arguments,
    taken: &'a mut i32,
    escape: &'a mut Escape,
}

impl Pass<'_, '_> {
    fn run(&mut self, ask: &mut Ask<'_>) {
        let length = self.follower.code.len();
        self.follower.states.clear();
        self.follower.states.resize(length, None);
        self.follower.work.clear();
        if length == 0 {
            return;
        }
        let registers = ARGUMENTS.iter().enumerate();
        let registers = registers.filter(|(i, _)| self.given >> i & 1 == 1);
        let registers = registers.fold(0, |set, (_, bit)| set | bit);
        self.reach(0, &State::at_entry(registers));
        loop {
            self.settle(ask);
            let Some(state) = self.anywhere() else { break };
            let unseen = self.follower.states.iter().position(Option::is_none);
            let mut entries: Vec<usize> = self.entries.pads.clone();
            entries.extend(unseen);
            for entry in entries {
                self.reach(entry, &state);
            }
            if self.follower.work.is_empty() {
                break;
            }
        }
    }

    /// What there may be after any call, in registers that calls preserve.
    fn anywhere(&mut self) -> Option<State> {
        let code = self.follower.code.iter().zip(&self.follower.states);
        let calls =
            code.filter(|(i, _)| is_call(i) || i.flow_control() == FlowControl::IndirectBranch);
        let mut all: Option<State> = None;
        let mut room = true;
        for mut state in calls.filter_map(|(_, state)| *state) {
            state.clear(SPOILED);
            match &mut all {
                Some(all) => room &= all.join(&state).1,
                None => all = Some(state),
            }
        }
        if !room {
            step::lose(self.escape, Colours::OWN.with(Colours::GIVEN), CROWDED);
        }
        // Code that nothing leads to, in a function without a call, is padding.
        all.or_else(|| self.follower.states[0])
    }

    fn reach(&mut self, place: usize, state: &State) {
        let (changed, room) = match &mut self.follower.states[place] {
            Some(known) => known.join(state),
            empty => {
                *empty = Some(*state);
                (true, true)
            }
        };
        if !room {
            step::lose(self.escape, state.all(), CROWDED);
        }
        if changed {
            self.follower.work.push(place);
        }
    }

    /// Propagates states until nothing changes.
    fn settle(&mut self, ask: &mut Ask<'_>) {
        while let Some(place) = self.follower.work.pop() {
            let Some(state) = self.follower.states[place] else {
                continue;
            };
            let instruction = self.follower.code[place];
            let before = place.checked_sub(1).map(|place| self.follower.code[place]);
            let mut step = Step {
                image: self.image,
                range: self.range,
                info: &mut self.follower.info,
                stack_given: self.given & ON_STACK != 0,
                told: self.entries.told,
                before,
                state,
                taken: self.taken,
                escape: self.escape,
            };
            let exits = step.take(&instruction, ask);
            let after = step.state;
            if exits.next && place + 1 < self.follower.code.len() {
                self.reach(place + 1, &after);
            } else if exits.next && !is_call(&instruction) {
                step::lose(
                    self.escape,
                    after.all(),
                    "the function goes on in another one",
                );
            }
            if let Some(target) = exits.to
                && let Some(target) = place_of(&self.follower.code, target as usize)
            {
                self.reach(target, &after);
            }
            if exits.by_table {
                for at in 0..self.entries.tables.len() {
                    let target = self.entries.tables[at];
                    self.reach(target, &after);
                }
            }
        }
    }
}
