//! Finds which thread-local is touched by following the thread pointer through registers.
//!
//! It works on one function. The usual forms are:
//!
//! - `fs:[-0x38]`, which names the variable itself;
//! - `fs:[rbx+8]` with a known number in `rbx`;
//! - `mov rax, fs:0` and then `[rax-0x38]`, or `lea`, or an offset added to it.
//!
//! The variable is known only if *every* use of the thread pointer is of such a form. If the thread
//! pointer is passed on, stored or used in any other way, it can become any address, and which
//! thread-local the function touches is unknown. If it is returned, it is followed to the callers
//! where addresses are (`escape`). An address made with a known offset may go anywhere: it stays
//! within its variable.
//!
//! The state before an instruction says for each register that it *may* hold the thread pointer,
//! that it *may* hold the address of errno or the function that returns this address, and that it
//! *must* hold a certain number. States grow until nothing changes. Landing pads, and code that no
//! branch leads to (targets of jump tables), begin with what any call of the function leaves in the
//! registers that calls preserve.
//!
//! The address of errno may be used until the next call at most. The function that returns it may
//! be kept in a register. A call through a register that was loaded with this function anywhere
//! counts as a call of it, so the function need not be followed through jump tables. Libc's
//! `syscall` is kept the same way in functions with such tables. The system call it makes is the
//! number in its first argument, as that of the instruction is in `rax`. If `syscall` is passed on
//! or stored, other code can call it with any number.
//!
//! Numbers are known only where every path to an instruction is visible: at the targets of jump
//! tables (`tables`) no number is known, and where two parts of a function jump into each other,
//! none is known at all.

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
/// rcx, rdx, rsi, rdi, r8, r9: registers of arguments. A call may also spoil them.
const ARGUMENTS: u32 = 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9;
/// Registers that a call may spoil: arguments, rax, r10, r11.
pub(super) const SPOILED: u32 = ARGUMENTS | RAX | 1 << 10 | 1 << 11;
/// Functions with more instructions count as unknown: following them costs too much.
const TOO_LONG: usize = 20_000;
const LOST: &str = "the thread pointer";

/// Follows one function after another and reuses its memory.
pub(super) struct Flow {
    info: InstructionInfoFactory,
    states: Vec<Option<State>>,
    work: Vec<usize>,
    /// Whether numbers can be known: no jump comes from an unknown place.
    numbers: bool,
    /// Registers that are loaded with a followed function, anywhere.
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
        // Where every path is visible, code that no path leads to may be the padding before a loop.
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

    /// What any call may leave in the registers it preserves, except numbers.
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

    /// Propagates states until nothing changes.
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

/// Whether an instruction that reads the slot of an import is one that is followed. Such an
/// instruction calls the import, jumps to it (libc's `syscall` only: with errno's function, the
/// address would be returned) or loads it.
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

/// Index of the instruction at an address.
pub(super) fn place_of(code: &[Instruction], address: usize) -> Option<usize> {
    let place = code.binary_search_by_key(&(address as u64), Instruction::ip);
    place.ok()
}

/// Whether it jumps to another part of the function, which may jump back anywhere.
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

/// Whether it is a jump with unknown targets, perhaps in this function.
pub(super) fn jumps_anywhere(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::IndirectBranch
        && !instruction.is_ip_rel_memory_operand()
}

/// Places where the function is entered by unwinding. If its table cannot be read, these are all
/// instructions whose predecessor does not continue with them, or is only a call that may not
/// return.
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
