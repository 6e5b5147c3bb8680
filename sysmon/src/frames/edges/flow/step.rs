//! What one instruction does to the registers.

use std::ops::Range;

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::state::State;
use super::{ARGUMENTS, LOST, RAX, SPOILED, is_other_part};
use crate::frames::edges::{ERRNO, PROTECTOR, SYSCALL, Touch, bit, has_memory, has_near_target};
use crate::frames::image::{Image, Target};

const RESULTS: u32 = RAX | 1 << 2;
/// rdi, rsi, rdx.
const FIRST_THREE: u32 = 1 << 7 | 1 << 6 | 1 << 2;
/// Registers that the kernel receives: rax, rdi, rsi, rdx, r10, r8, r9.
pub(in crate::frames::edges) const ASKED: u32 = RAX | FIRST_THREE | 1 << 8 | 1 << 9 | 1 << 10;
/// Registers that the kernel spoils: rax, rcx, r11.
pub(in crate::frames::edges) const ANSWERED: u32 = RAX | 1 << 1 | 1 << 11;
/// Registers that may pass values to the target of a jump: all but rax, r10, r11.
const LEFT: u32 = !(SPOILED & !ARGUMENTS);
/// std's initialization of a thread-local, which takes no more arguments than `FIRST_THREE`.
const SLOW_START: &str = "get_or_init_slow";

/// Registers that hold functions that are followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Those that hold `__errno_location`.
    pub(super) teller: u32,
    /// Those that hold libc's `syscall`.
    pub(super) gate: u32,
}

/// Where control goes after an instruction.
pub(super) struct Exits {
    pub(super) next: bool,
    pub(super) to: Option<u64>,
}

/// One instruction and what it does to the state.
pub(super) struct Step<'a> {
    image: &'a Image,
    range: &'a Range<usize>,
    /// Registers that are loaded with such a function, anywhere in this function.
    loaded: Held,
    info: &'a mut InstructionInfoFactory,
    pub(super) state: State,
    pub(super) touches: Vec<(usize, Touch)>,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        image: &'a Image,
        range: &'a Range<usize>,
        loaded: Held,
        info: &'a mut InstructionInfoFactory,
        state: State,
    ) -> Step<'a> {
        Step {
            image,
            range,
            loaded,
            info,
            state,
            touches: Vec::new(),
        }
    }

    fn touch(&mut self, instruction: &Instruction, touch: Touch) {
        self.touches.push((instruction.ip() as usize, touch));
    }

    fn variable(&mut self, instruction: &Instruction, offset: i64) {
        let touch = match offset {
            0.. => Touch::Unknown("the thread's control block"),
            _ => Touch::Variable(offset),
        };
        self.touch(instruction, touch);
    }

    /// Notes that registers, with what they hold, pass out of the analysis.
    fn lose(&mut self, instruction: &Instruction, registers: u32) {
        self.lose_parts(instruction, registers);
        if self.state.gate & registers != 0 {
            self.touch(instruction, Touch::Kernel(None));
        }
    }

    /// Does the same for parts of registers, from which no code makes a function again. (A landing
    /// pad often reads a flag from a register that held a function elsewhere.)
    fn lose_parts(&mut self, instruction: &Instruction, registers: u32) {
        if self.state.pointer & registers != 0 {
            self.touch(instruction, Touch::Unknown(LOST));
        }
        if (self.state.errno | self.state.teller) & registers != 0 {
            self.touch(instruction, Touch::Errno);
        }
    }

    pub(super) fn take(&mut self, instruction: &Instruction) -> Exits {
        match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Syscall => self.ask(instruction),
            FlowControl::Call | FlowControl::IndirectCall => self.call(instruction),
            FlowControl::Return => {
                if self.state.pointer & RESULTS != 0 {
                    self.touch(instruction, Touch::Returned);
                    self.state.pointer &= !RESULTS;
                }
                self.lose(instruction, RESULTS);
                Exits {
                    next: false,
                    to: None,
                }
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.jump(instruction)
            }
            FlowControl::IndirectBranch => {
                self.ask_through(instruction);
                if has_memory(instruction) {
                    self.address(instruction);
                }
                // These jumps are recognized by their registers, see `Flow::loaded`; copies are
                // not.
                self.state.teller &= !self.loaded.teller;
                self.state.gate &= !self.loaded.gate;
                let last = self.is_last_call(instruction);
                self.lose(instruction, if last { LEFT } else { !0 });
                Exits {
                    next: false,
                    to: None,
                }
            }
            FlowControl::Exception => Exits {
                next: false,
                to: None,
            },
            _ => {
                if !self.known_form(instruction) {
                    self.any_form(instruction);
                }
                Exits {
                    next: true,
                    to: None,
                }
            }
        }
    }

    /// Handles the `syscall` instruction.
    fn ask(&mut self, instruction: &Instruction) -> Exits {
        self.touch(instruction, Touch::Kernel(self.state.number(Register::RAX)));
        self.lose(instruction, ASKED);
        self.state.clear(ANSWERED);
        Exits {
            next: true,
            to: None,
        }
    }

    /// Notes a call of libc's `syscall`, or a jump to it, in any form.
    fn ask_through(&mut self, instruction: &Instruction) {
        let held = self.loaded.gate | self.state.gate;
        if self.leads_to(instruction, SYSCALL, held) {
            let number = self.state.number(Register::RDI);
            self.touch(instruction, Touch::Kernel(number));
        }
    }

    fn call(&mut self, instruction: &Instruction) -> Exits {
        let held = self.loaded.teller | self.state.teller;
        let tells = self.leads_to(instruction, ERRNO, held);
        self.ask_through(instruction);
        if has_memory(instruction) {
            self.address(instruction);
        }
        self.lose(instruction, self.arguments(instruction));
        if self.state.errno & !SPOILED != 0 {
            self.touch(instruction, Touch::Errno);
        }
        self.state.clear(SPOILED);
        if tells {
            self.state.errno |= RAX;
        }
        Exits {
            next: true,
            to: None,
        }
    }

    /// The registers a call may take arguments from. The thread pointer itself is often left in one
    /// of them when a thread-local is set up.
    fn arguments(&self, instruction: &Instruction) -> u32 {
        let beyond = ARGUMENTS & !FIRST_THREE;
        if self.state.pointer & beyond == 0 || !has_near_target(instruction) {
            return ARGUMENTS;
        }
        let target = instruction.near_branch_target() as usize;
        let slow = |name: &str| name.contains(SLOW_START);
        match self.image.symbols.are_all(target, slow) {
            true => FIRST_THREE,
            false => ARGUMENTS,
        }
    }

    /// Whether a call or jump leads to this libc function. Registers in `held` may hold it.
    fn leads_to(&self, instruction: &Instruction, name: &str, held: u32) -> bool {
        let slot = if has_near_target(instruction) {
            self.image.stub(instruction.near_branch_target() as usize)
        } else if instruction.is_ip_rel_memory_operand() {
            Some(instruction.ip_rel_memory_address() as usize)
        } else if instruction.op0_kind() == OpKind::Register {
            return held & bit(instruction.op0_register()) != 0;
        } else {
            None
        };
        slot.is_some_and(|slot| is_slot_of(self.image, slot, name))
    }

    /// Whether a jump through a slot is a tail call: it leads to a function's beginning.
    fn is_last_call(&self, instruction: &Instruction) -> bool {
        let slot = instruction.ip_rel_memory_address() as usize;
        instruction.is_ip_rel_memory_operand()
            && match self.image.pointer(slot) {
                Some(Target::Import(..)) => true,
                Some(Target::Code(target)) => !is_other_part(self.image, target),
                _ => false,
            }
    }

    fn jump(&mut self, instruction: &Instruction) -> Exits {
        let target = instruction.near_branch_target();
        let inside = self.range.contains(&(target as usize));
        let conditional = instruction.flow_control() == FlowControl::ConditionalBranch;
        if !inside {
            self.ask_through(instruction);
            let last = !conditional && !is_other_part(self.image, target as usize);
            self.lose(instruction, if last { LEFT } else { !0 });
        }
        Exits {
            next: conditional,
            to: inside.then_some(target),
        }
    }

    /// Handles the forms in which compilers and linkers find a thread-local.
    fn known_form(&mut self, instruction: &Instruction) -> bool {
        let into = instruction.op0_register();
        match instruction.code() {
            Code::Mov_r64_rm64 if is_thread_pointer(instruction) => {
                self.state.clear(bit(into));
                self.state.pointer |= bit(into);
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if both_registers(instruction) => {
                self.state.copy(into, instruction.op1_register());
            }
            Code::Mov_rm64_imm32 | Code::Mov_r32_imm32 | Code::Mov_rm32_imm32
                if instruction.op0_kind() == OpKind::Register =>
            {
                let number = instruction.immediate(1) as i64;
                self.state.set_number(into, number);
            }
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32 if is_cleared(instruction) => {
                self.state.set_number(into, 0);
            }
            Code::Mov_r32_rm32 | Code::Mov_rm32_r32 if both_registers(instruction) => {
                self.copy_half(instruction);
            }
            Code::Mov_r64_rm64 if self.slot_offset(instruction).is_some() => {
                let offset = self.slot_offset(instruction).unwrap_or(0);
                self.state.set_number(into, offset);
            }
            Code::Mov_r64_rm64 if self.loads(instruction, ERRNO) => {
                self.state.clear(bit(into));
                self.state.teller |= bit(into);
            }
            Code::Mov_r64_rm64 if self.loads(instruction, SYSCALL) => {
                self.state.clear(bit(into));
                self.state.gate |= bit(into);
            }
            Code::Add_r64_rm64
            | Code::Add_rm64_imm32
            | Code::Add_rm64_imm8
            | Code::Add_RAX_imm32
            | Code::Sub_rm64_imm32
            | Code::Sub_rm64_imm8
            | Code::Add_rm64_r64 => return self.sum(instruction),
            Code::Lea_r64_m => return self.lea(instruction),
            _ => return false,
        }
        true
    }

    /// Copies half of a register, and clears the other half.
    fn copy_half(&mut self, instruction: &Instruction) {
        let number = self.state.number(instruction.op1_register());
        self.any_form(instruction);
        if let Some(number @ 0..) = number {
            self.state.set_number(instruction.op0_register(), number);
        }
    }

    fn loads(&self, instruction: &Instruction, name: &str) -> bool {
        instruction.is_ip_rel_memory_operand()
            && is_slot_of(
                self.image,
                instruction.ip_rel_memory_address() as usize,
                name,
            )
    }

    /// The number in a slot that an instruction reads.
    fn slot_offset(&self, instruction: &Instruction) -> Option<i64> {
        if !instruction.is_ip_rel_memory_operand() {
            return None;
        }
        match self
            .image
            .pointer(instruction.ip_rel_memory_address() as usize)
        {
            Some(Target::ThreadOffset(offset)) => Some(offset),
            _ => None,
        }
    }

    /// Adds up thread pointer and offset in a register.
    fn sum(&mut self, instruction: &Instruction) -> bool {
        if instruction.op0_kind() != OpKind::Register {
            return false;
        }
        let into = instruction.op0_register();
        let held = self.state.pointer & bit(into) != 0;
        let sign = if instruction.mnemonic() == Mnemonic::Sub {
            -1
        } else {
            1
        };
        let (pointer, offset) = if instruction.op1_kind() == OpKind::Register {
            let other = instruction.op1_register();
            if held {
                (true, self.state.number(other))
            } else {
                let other_held = self.state.pointer & bit(other) != 0;
                (other_held, self.state.number(into))
            }
        } else if instruction.op1_kind() == OpKind::Memory {
            if is_thread_pointer(instruction) {
                (true, self.state.number(into))
            } else {
                (held, self.slot_offset(instruction))
            }
        } else {
            (held, Some(sign * instruction.immediate(1) as i64))
        };
        match (pointer, offset) {
            (false, _) => return false,
            (true, Some(offset)) => self.variable(instruction, offset),
            (true, None) => self.touch(instruction, Touch::Unknown(LOST)),
        }
        self.state.clear(bit(into));
        true
    }

    fn lea(&mut self, instruction: &Instruction) -> bool {
        if instruction.is_ip_rel_memory_operand() {
            return false;
        }
        self.address(instruction);
        self.state.clear(bit(instruction.op0_register()));
        true
    }

    /// Judges a memory operand by the sum of its base and index.
    fn address(&mut self, instruction: &Instruction) {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let offset = instruction.memory_displacement64() as i64;
        let segment =
            instruction.memory_segment() == Register::FS && instruction.mnemonic() != Mnemonic::Lea;
        if instruction.is_ip_rel_memory_operand() {
            return;
        }
        let scale = i64::from(instruction.memory_index_scale());
        let part = |register: Register, scale: i64, state: &State| match register {
            Register::None => Some(0),
            _ => state.number(register).map(|n| n * scale),
        };
        let held = |register: Register, state: &State| state.pointer & bit(register) != 0;
        let (base_held, index_held) = (held(base, &self.state), held(index, &self.state));
        let rest = match (segment, base_held, index_held) {
            (true, false, false) => {
                part(base, 1, &self.state).and_then(|b| Some(b + part(index, scale, &self.state)?))
            }
            (false, true, false) => part(index, scale, &self.state),
            (false, false, true) if scale == 1 => part(base, 1, &self.state),
            (false, false, false) => return self.errno_address(instruction),
            _ => None,
        };
        let lonely = base == Register::None && index == Register::None;
        if segment && lonely && offset != 0 {
            return; // noted when it was decoded
        }
        match rest {
            Some(rest) if rest + offset == PROTECTOR as i64 => {}
            Some(rest) => self.variable(instruction, rest + offset),
            None => self.touch(instruction, Touch::Unknown(LOST)),
        }
    }

    /// Judges a use of the address of errno. A plain access is harmless, anything more touches.
    fn errno_address(&mut self, instruction: &Instruction) {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let simple = self.state.errno & bit(index) == 0
            && index == Register::None
            && instruction.mnemonic() != Mnemonic::Lea;
        if self.state.errno & (bit(base) | bit(index)) != 0 && !simple {
            self.touch(instruction, Touch::Errno);
        }
        self.lose_tellers(instruction, bit(base) | bit(index));
    }

    /// Notes that registers which may hold a followed function are used as an address. The code of
    /// that function is read, or an unknown place.
    fn lose_tellers(&mut self, instruction: &Instruction, registers: u32) {
        if self.state.teller & registers != 0 {
            self.touch(instruction, Touch::Errno);
        }
        if self.state.gate & registers != 0 {
            self.touch(instruction, Touch::Kernel(None));
        }
    }

    /// Handles any other instruction: what it reads is lost, what it writes is forgotten.
    fn any_form(&mut self, instruction: &Instruction) {
        let mut places = 0;
        if has_memory(instruction) {
            self.address(instruction);
            places = bit(instruction.memory_base()) | bit(instruction.memory_index());
        }
        let info = self.info.info(instruction);
        let (mut read, mut named, mut changed, mut written) = (0, 0, 0, 0);
        let mut parts = 0;
        for operand in 0..instruction.op_count() {
            if instruction.op_kind(operand) == OpKind::Register {
                let register = instruction.op_register(operand);
                let bit = bit(register);
                named |= bit;
                if reads(info.op_access(operand)) {
                    parts |= bit;
                    read |= if register.size() == 8 { bit } else { 0 };
                }
            }
        }
        for register in info.used_registers() {
            let bit = bit(register.register());
            if !matches!(register.access(), OpAccess::Read | OpAccess::CondRead) {
                changed |= bit;
            }
            let whole = matches!(register.access(), OpAccess::Write | OpAccess::ReadWrite)
                && register.register().size() >= 4;
            if whole {
                written |= bit;
            }
            let implied = named & bit == 0 && places & bit == 0;
            if implied && reads(register.access()) {
                read |= bit;
            }
        }
        self.lose(instruction, read);
        self.lose_parts(instruction, parts & !read);
        self.state.clear(written);
        self.state.known &= !changed;
    }
}

/// Whether the loader has put the address of that import into the slot.
pub(super) fn is_slot_of(image: &Image, slot: usize, name: &str) -> bool {
    matches!(image.pointer(slot),
        Some(Target::Import(found, _)) if image.slots.name(found) == name)
}

/// Whether the instruction clears a register by combining it with itself.
fn is_cleared(instruction: &Instruction) -> bool {
    both_registers(instruction) && instruction.op0_register() == instruction.op1_register()
}

fn reads(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Write | OpAccess::NoMemAccess
    )
}

fn both_registers(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register
}

/// Whether the operand is `fs:0`.
fn is_thread_pointer(instruction: &Instruction) -> bool {
    has_memory(instruction)
        && instruction.memory_segment() == Register::FS
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
}
