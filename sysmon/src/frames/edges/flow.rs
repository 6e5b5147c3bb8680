//! Which thread-local it is: follows the thread pointer through the registers of one function.
//!
//! The usual forms: `fs:[-0x38]` says it itself. `fs:[rbx+8]` with a known number in `rbx`.
//! `mov rax, fs:0` and then `[rax-0x38]`, or `lea`, or an offset added to it. The variable is known
//! only if *every* use of the thread pointer is of such a form; passed on, stored or used in any
//! other way it can become any address, and which thread-local the function touches is unknown. Returned, it is
//! followed to the callers where addresses are (`escape`). An address
//! made with a known offset may go anywhere: it stays within its variable.
//!
//! The state before an instruction says for each register: *may* hold the thread pointer, *may* hold
//! the address of errno or the function that hands it out, *must* hold a certain number. States
//! grow until nothing changes. Landing pads, and code that no branch leads to (targets of jump tables),
//! begin with what any call of the function leaves in the registers that calls preserve.
//!
//! The address of errno may be used until the next call at most. The function that hands it out may
//! be kept in a register; a call through a register that was loaded with it anywhere counts as one of
//! it, so it need not be followed through jump tables. Libc's `syscall` is kept the same way, where there
//! are such tables. What it is asked for is the number in its first argument, as that of the
//! instruction is in `rax`. Passed on or stored, it can be called with anything.
//!
//! Numbers are only told where every way to an instruction is seen: at the targets of jump tables
//! (`tables`) none is known, and where two parts of a function jump into each other, none at all.

mod state;
mod step;
pub(super) mod tables;

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};

use super::{ERRNO, Form, How, SYSCALL, Touch, bit};
use crate::frames::image::Image;
use crate::frames::image::unwind::{self, Function};
use state::State;
pub(super) use step::{ANSWERED, ASKED};
use step::{Held, Step, is_slot_of};

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
    /// Registers that are loaded with a function that is followed, anywhere.
    loaded: Held,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            info: InstructionInfoFactory::new(),
            states: Vec::new(),
            work: Vec::new(),
            numbers: false,
            loaded: Held::default(),
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
        let tables = code.iter().any(jumps_anywhere);
        let parted = function.cold || code.iter().any(|i| jumps_to_part(image, range, i));
        self.numbers = !(parted || tables && image.fixed);
        self.loaded = Held {
            teller: loaded(image, code, ERRNO),
            gate: match tables {
                true => loaded(image, code, SYSCALL),
                false => 0,
            },
        };
        self.reach(0, &State::default());
        self.settle(image, range, code);
        let mut entries = landing_pads(image, function, code);
        if tables {
            entries.extend(tables::places(image, range, code));
        }
        // Where every way is seen, what none leads to may be the padding before a loop.
        let all_seen = self.numbers;
        let padding = |i: &Instruction| all_seen && i.mnemonic() == Mnemonic::Nop;
        loop {
            let state = self.after_any_call();
            let mut states = self.states.iter().zip(code);
            let unseen = states.position(|(state, i)| state.is_none() && !padding(i));
            for &entry in entries.iter().chain(&unseen) {
                self.reach(entry, &state);
            }
            if self.work.is_empty() {
                break;
            }
            self.settle(image, range, code);
        }
        for (instruction, state) in code.iter().zip(&self.states) {
            let state = state.unwrap_or_default();
            let mut step = Step::new(image, range, self.loaded, &mut self.info, state);
            step.take(instruction);
            touches.extend(step.touches);
        }
    }

    /// What any call may leave in the registers it preserves, numbers excepted.
    fn after_any_call(&self) -> State {
        let mut all = State::default();
        for state in self.states.iter().flatten() {
            all.pointer |= state.pointer;
            all.teller |= state.teller;
            all.gate |= state.gate;
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
            let mut step = Step::new(image, range, self.loaded, &mut self.info, state);
            let exits = step.take(&code[place]);
            let mut after = step.state;
            if !self.numbers {
                after.known = 0;
            }
            if exits.next && place + 1 < code.len() {
                self.reach(place + 1, &after);
            }
            if let Some(target) = exits.to
                && let Some(target) = place_of(code, target as usize)
            {
                self.reach(target, &after);
            }
        }
    }
}

/// Whether an instruction that reads the slot of an import is one that is followed: calls it, jumps
/// to it (libc's `syscall` alone: errno's address is then returned) or loads it.
pub(super) fn follows(name: &str, form: &Form) -> bool {
    let call = form.how == How::Call;
    match name {
        ERRNO => form.seen && (call || form.load),
        SYSCALL => form.seen && (form.load || form.turns),
        _ => false,
    }
}

/// Registers that are loaded with an import, anywhere.
fn loaded(image: &Image, code: &[Instruction], name: &str) -> u32 {
    let loads = code.iter().filter(|i| {
        i.code() == Code::Mov_r64_rm64
            && i.is_ip_rel_memory_operand()
            && is_slot_of(image, i.ip_rel_memory_address() as usize, name)
    });
    loads.fold(0, |set, i| set | bit(i.op0_register()))
}

/// The instruction at an address.
pub(super) fn place_of(code: &[Instruction], address: usize) -> Option<usize> {
    let place = code.binary_search_by_key(&(address as u64), Instruction::ip);
    place.ok()
}

/// A jump to another part of the function, which may come back to anywhere in this one.
fn jumps_to_part(image: &Image, range: &Range<usize>, instruction: &Instruction) -> bool {
    let direct = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    let target = instruction.near_branch_target() as usize;
    direct
        && !range.contains(&target)
        && is_other_part(image, target)
        && image.stub(target).is_none()
}

/// Whether code is a part of some function, rather than a function.
pub(super) fn is_other_part(image: &Image, target: usize) -> bool {
    let function = image.function_at(target).map(|f| &image.functions[f]);
    function.is_none_or(|f| f.cold || f.range.start != target)
}

/// A jump whose targets are not known, perhaps in this function.
pub(super) fn jumps_anywhere(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::IndirectBranch
        && !instruction.is_ip_rel_memory_operand()
}

/// Where the function is entered by unwinding. If its table cannot be read: wherever nothing, or
/// only a call that may not return, leads on from the instruction before.
pub(super) fn landing_pads(image: &Image, function: &Function, code: &[Instruction]) -> Vec<usize> {
    if let Some(pads) = unwind::landing_pads(&image.memory, function) {
        let places = pads.into_iter().filter_map(|pad| place_of(code, pad));
        return places.collect();
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
