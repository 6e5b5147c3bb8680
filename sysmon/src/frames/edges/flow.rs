//! Which thread-local it is: follows the thread pointer through the registers of one function.
//!
//! The usual forms: `fs:[-0x38]` says it itself. `fs:[rbx+8]` with a known number in `rbx`.
//! `mov rax, fs:0` and then `[rax-0x38]`, or `lea`, or an offset added to it. The variable is known
//! only if *every* use of the thread pointer is of such a form; passed on, stored, returned or used
//! in any other way it can become any address, and the function touches who knows what. An address
//! made with a known offset may go anywhere: it stays within its variable.
//!
//! The state before an instruction says for each register: *may* hold the thread pointer, *may* hold
//! the address of errno or the function that hands it out, *must* hold a certain number. States
//! grow until nothing changes. Landing pads, and code that no branch leads to (targets of jump tables),
//! begin with what any call of the function leaves in the registers that calls preserve.
//!
//! The address of errno may be used until the next call at most. The function that hands it out may
//! be kept in a register; a call through a register that was loaded with it anywhere counts as one of
//! it, so it need not be followed through jump tables.

mod state;
mod step;

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory};

use super::{Touch, bit};
use crate::frames::image::Image;
use crate::frames::image::unwind::{self, Function};
use state::State;
use step::{Step, is_errno_slot};

const RAX: u32 = 1;
/// rcx, rdx, rsi, rdi, r8, r9: what a call is given, besides what it may spoil.
const ARGUMENTS: u32 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9;
/// Arguments, rax, r10, r11.
pub(super) const SPOILED: u32 = ARGUMENTS | RAX | 1 << 10 | 1 << 11;
/// Too large to be worth it: counts as unknown.
const TOO_LONG: usize = 20_000;
const LOST: &str = "the thread pointer";

/// Follows functions one after the other; keeps its memory.
pub(super) struct Flow {
    info: InstructionInfoFactory,
    states: Vec<Option<State>>,
    work: Vec<usize>,
    /// Whether numbers can be told: no jump comes from who knows where.
    numbers: bool,
    /// Registers that are loaded with the function that tells errno, anywhere.
    tellers: u32,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            info: InstructionInfoFactory::new(),
            states: Vec::new(),
            work: Vec::new(),
            numbers: false,
            tellers: 0,
        }
    }
}

impl Flow {
    /// Adds what the function touches by way of the thread pointer.
    pub(super) fn follow(
        &mut self,
        image: &Image,
        function: &Function,
        code: &[Instruction],
        touches: &mut Vec<(usize, Touch)>,
    ) {
        let range = &function.range;
        if code.len() > TOO_LONG {
            touches.push((range.start, Touch::Unknown(LOST)));
            return;
        }
        self.states.clear();
        self.states.resize(code.len(), None);
        self.work.clear();
        self.numbers = !code.iter().any(jumps_anywhere);
        self.tellers = self.loaded_tellers(image, code);
        self.reach(0, &State::default());
        self.settle(image, range, code);
        let pads = landing_pads(image, function, code);
        loop {
            let state = self.after_any_call();
            let unseen = self.states.iter().position(Option::is_none);
            for &entry in pads.iter().chain(&unseen) {
                self.reach(entry, &state);
            }
            if self.work.is_empty() {
                break;
            }
            self.settle(image, range, code);
        }
        for (instruction, state) in code.iter().zip(&self.states) {
            let state = state.unwrap_or_default();
            let mut step = Step::new(image, range, self.tellers, &mut self.info, state);
            step.take(instruction);
            touches.extend(step.touches);
        }
    }

    fn loaded_tellers(&self, image: &Image, code: &[Instruction]) -> u32 {
        let loads = code.iter().filter(|i| {
            i.code() == Code::Mov_r64_rm64
                && i.is_ip_rel_memory_operand()
                && is_errno_slot(image, i.ip_rel_memory_address() as usize)
        });
        loads.fold(0, |set, i| set | bit(i.op0_register()))
    }

    /// What any call may leave in the registers it preserves, numbers excepted.
    fn after_any_call(&self) -> State {
        let mut all = State::default();
        for state in self.states.iter().flatten() {
            all.pointer |= state.pointer;
            all.teller |= state.teller;
        }
        all.clear(SPOILED);
        all
    }

    fn reach(&mut self, place: usize, state: &State) {
        let changed = match &mut self.states[place] {
            Some(known) => known.join(state),
            empty => {
                *empty = Some(*state);
                true
            }
        };
        if changed {
            self.work.push(place);
        }
    }

    /// Hands states on until nothing changes.
    fn settle(&mut self, image: &Image, range: &Range<usize>, code: &[Instruction]) {
        while let Some(place) = self.work.pop() {
            let state = self.states[place].unwrap_or_default();
            let mut step = Step::new(image, range, self.tellers, &mut self.info, state);
            let exits = step.take(&code[place]);
            let mut after = step.state;
            if !self.numbers {
                after.known = 0;
            }
            if exits.next && place + 1 < code.len() {
                self.reach(place + 1, &after);
            }
            if let Some(target) = exits.to
                && let Ok(target) = code.binary_search_by_key(&target, Instruction::ip)
            {
                self.reach(target, &after);
            }
        }
    }
}

/// A jump whose targets are not known, perhaps in this function.
fn jumps_anywhere(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::IndirectBranch
        && !instruction.is_ip_rel_memory_operand()
}

/// Where the function is entered by unwinding. If its table cannot be read: wherever nothing, or
/// only a call that may not return, leads on from the instruction before.
fn landing_pads(image: &Image, function: &Function, code: &[Instruction]) -> Vec<usize> {
    if let Some(pads) = unwind::landing_pads(&image.memory, function) {
        let place = |pad: usize| {
            code.binary_search_by_key(&(pad as u64), Instruction::ip)
                .ok()
        };
        return pads.into_iter().filter_map(place).collect();
    }
    let ends = |i: &Instruction| {
        !matches!(
            i.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch
        )
    };
    let after = |&i: &usize| ends(&code[i - 1]);
    (1..code.len()).filter(after).collect()
}
