//! What one instruction does to an address that is in a register.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::moves::{Reach, STRIDE};
use super::{bit, has_memory};

/// Where control goes after an instruction, as it concerns a register with an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Path {
    #[default]
    Next,
    /// It comes back, and calls preserve some registers.
    Call,
    /// It comes back, and the kernel preserves its own set of registers.
    Kernel,
    /// The function ends.
    End,
    /// A branch, or an interrupt.
    Other,
}

/// A place on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Slot {
    /// No place on the stack.
    #[default]
    Nowhere,
    /// The top of the stack, where `push` and `pop` work.
    Top,
    /// At this distance from the stack pointer.
    Sp(i32),
    /// At this distance from the frame pointer.
    Bp(i32),
}

/// What an instruction does to addresses in registers. Sets of registers have a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Motion {
    /// Of its memory operand, or of the sum of two registers.
    pub(super) base: u32,
    pub(super) index: u32,
    /// The instruction has an index, of any kind.
    pub(super) indexed: bool,
    /// A register that is counted up or down, and how far that reaches.
    pub(super) counted: u32,
    pub(super) reach: Reach,
    /// Whole registers that may receive an address from others, or one near it.
    pub(super) copy_to: u32,
    pub(super) copy_from: u32,
    /// A whole register that is stored in `slot`, or loaded from it.
    pub(super) put: u32,
    pub(super) fetched: u32,
    pub(super) slot: Slot,
    /// A register that may become negative without a negative source.
    pub(super) negative: u32,
    /// A register that may hold a negative number afterwards. It does so if one of `sources` does,
    /// or, with `from_stack`, if any register does.
    pub(super) into: u32,
    pub(super) sources: u32,
    pub(super) from_stack: bool,
    /// A register that certainly gets another value.
    pub(super) replaced: u32,
    pub(super) path: Path,
}

impl Motion {
    /// Motion of an instruction that does nothing. A constant is cheaper than the default without
    /// optimization.
    pub(super) const NONE: Motion = Motion {
        base: 0,
        index: 0,
        indexed: false,
        counted: 0,
        reach: Reach {
            before: 0,
            after: 0,
        },
        copy_to: 0,
        copy_from: 0,
        put: 0,
        fetched: 0,
        slot: Slot::Nowhere,
        negative: 0,
        into: 0,
        sources: 0,
        from_stack: false,
        replaced: 0,
        path: Path::Next,
    };

    /// Motion of a decoded instruction. `brief` has the same for the forms it knows.
    pub(super) fn of(instruction: &Instruction) -> Motion {
        let mut motion = Motion::NONE;
        motion.path = path(instruction);
        if has_memory(instruction) {
            motion.base = bit(instruction.memory_base());
            motion.index = bit(instruction.memory_index());
            motion.indexed = instruction.memory_index() != Register::None;
        }
        if is_sum(instruction) {
            motion.base = bit(instruction.op0_register());
            motion.index = bit(instruction.op1_register());
            motion.indexed = true;
        }
        if let Some((register, reach)) = count(instruction) {
            (motion.counted, motion.reach) = (register, reach);
        }
        if let Some((to, from)) = copy(instruction) {
            (motion.copy_to, motion.copy_from) = (to, from);
        }
        motion.keep(instruction);
        motion.negative = match instruction.mnemonic() {
            Mnemonic::Cdqe => bit(Register::RAX),
            Mnemonic::Cqo => bit(Register::RDX),
            _ if makes_negative(instruction) => bit(instruction.op0_register()),
            _ => 0,
        };
        motion.spread(instruction);
        let replaced = matches!(
            instruction.code(),
            Code::Mov_r64_rm64 | Code::Mov_rm64_imm32 | Code::Lea_r64_m | Code::Mov_r32_imm32
        );
        if replaced {
            motion.replaced = bit(instruction.op0_register());
        }
        motion
    }

    /// Notes what is stored on the stack, or loaded from it.
    fn keep(&mut self, instruction: &Instruction) {
        let mnemonic = instruction.mnemonic();
        if !matches!(mnemonic, Mnemonic::Push | Mnemonic::Pop | Mnemonic::Mov) {
            return;
        }
        let whole = |operand| match instruction.op_kind(operand) {
            OpKind::Register if instruction.op_register(operand).size() == 8 => {
                bit(instruction.op_register(operand))
            }
            _ => 0,
        };
        let distance = instruction.memory_displacement64() as i32;
        let slot = match (instruction.memory_base(), instruction.memory_index()) {
            _ if mnemonic != Mnemonic::Mov => Slot::Top,
            (Register::RSP, Register::None) => Slot::Sp(distance),
            (Register::RBP, Register::None) => Slot::Bp(distance),
            _ => return,
        };
        let (put, fetched) = match mnemonic {
            Mnemonic::Push => (whole(0), 0),
            Mnemonic::Pop => (0, whole(0)),
            _ if instruction.op0_kind() == OpKind::Memory => (whole(1), 0),
            _ => (0, whole(0)),
        };
        if put | fetched != 0 {
            (self.put, self.fetched, self.slot) = (put, fetched, slot);
        }
    }

    fn spread(&mut self, instruction: &Instruction) {
        let mnemonic = instruction.mnemonic();
        let kept = matches!(
            mnemonic,
            Mnemonic::Mov
                | Mnemonic::Add
                | Mnemonic::Adc
                | Mnemonic::Lea
                | Mnemonic::Sub
                | Mnemonic::Xchg
        );
        let two = instruction.op_count() >= 2 && instruction.op0_kind() == OpKind::Register;
        if !(kept || is_conditional_move(mnemonic)) || !two {
            return;
        }
        self.into = bit(instruction.op0_register());
        match instruction.op1_kind() {
            OpKind::Register if mnemonic == Mnemonic::Xchg => {
                self.into |= bit(instruction.op1_register());
                self.sources = self.into;
            }
            OpKind::Register => self.sources = bit(instruction.op1_register()),
            OpKind::Memory if mnemonic == Mnemonic::Lea => {
                self.sources = bit(instruction.memory_base()) | bit(instruction.memory_index());
            }
            // A register may be spilled to the stack and loaded again.
            OpKind::Memory => self.from_stack = is_stack(instruction.memory_base()),
            _ => {}
        }
    }
}

fn path(instruction: &Instruction) -> Path {
    match instruction.flow_control() {
        _ if instruction.mnemonic() == Mnemonic::Syscall => Path::Kernel,
        FlowControl::Next => Path::Next,
        FlowControl::Call | FlowControl::IndirectCall => Path::Call,
        FlowControl::Return | FlowControl::Exception => Path::End,
        _ => Path::Other,
    }
}

/// Finds a register that is counted up or down, and how far that reaches.
fn count(instruction: &Instruction) -> Option<(u32, Reach)> {
    let register = bit(instruction.op0_register());
    if instruction.op0_kind() != OpKind::Register || register == 0 {
        return None;
    }
    let step = match instruction.mnemonic() {
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Add | Mnemonic::Adc | Mnemonic::Sub
            if instruction.op1_kind() == OpKind::Register =>
        {
            return Some((register, Reach::BY_REGISTER));
        }
        Mnemonic::Add | Mnemonic::Adc if is_immediate(instruction) => {
            instruction.immediate(1) as i64
        }
        Mnemonic::Sub if is_immediate(instruction) => {
            (instruction.immediate(1) as i64).wrapping_neg()
        }
        Mnemonic::Lea if bit(instruction.memory_base()) == register => {
            instruction.memory_displacement64() as i64
        }
        // The sum goes to another register.
        Mnemonic::Lea => {
            let (_, from) = copy(instruction)?;
            let step = instruction.memory_displacement64() as i64;
            return Some((from, Reach::of_step(step)));
        }
        _ => return None,
    };
    Some((register, Reach::of_step(step)))
}

impl Reach {
    /// Reach of a register that another is added to or subtracted from.
    pub(super) const BY_REGISTER: Reach = Reach {
        before: STRIDE,
        after: STRIDE,
    };

    /// Reach of a register that a number is added to.
    pub(super) fn of_step(step: i64) -> Reach {
        let size = u32::try_from(step.unsigned_abs()).unwrap_or(u32::MAX);
        match step {
            0.. => Reach {
                before: 0,
                after: size,
            },
            _ => Reach {
                before: size,
                after: 0,
            },
        }
    }
}

fn is_immediate(instruction: &Instruction) -> bool {
    !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory)
}

/// Finds a copy between registers: the target and the source.
fn copy(instruction: &Instruction) -> Option<(u32, u32)> {
    let to = bit(instruction.op0_register());
    if instruction.op0_kind() != OpKind::Register || instruction.op0_register().size() != 8 {
        return None;
    }
    let from = match (instruction.mnemonic(), instruction.op1_kind()) {
        // No constant is near the stack pointer.
        (Mnemonic::Lea, _) => match instruction.memory_index() {
            Register::None if instruction.memory_base() != Register::RSP => {
                bit(instruction.memory_base()) & !to
            }
            _ => 0,
        },
        (_, OpKind::Register) => bit(instruction.op1_register()),
        _ => 0,
    };
    if to == 0 || from == 0 {
        return None;
    }
    match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Add | Mnemonic::Adc => Some((to, from)),
        Mnemonic::Xchg => Some((to | from, to | from)),
        mnemonic => is_conditional_move(mnemonic).then_some((to, from)),
    }
}

/// Whether two whole registers are added.
fn is_sum(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Add | Mnemonic::Adc)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register().size() == 8
}

fn is_conditional_move(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Cmova
            | Mnemonic::Cmovae
            | Mnemonic::Cmovb
            | Mnemonic::Cmovbe
            | Mnemonic::Cmove
            | Mnemonic::Cmovg
            | Mnemonic::Cmovge
            | Mnemonic::Cmovl
            | Mnemonic::Cmovle
            | Mnemonic::Cmovne
            | Mnemonic::Cmovno
            | Mnemonic::Cmovnp
            | Mnemonic::Cmovns
            | Mnemonic::Cmovo
            | Mnemonic::Cmovp
            | Mnemonic::Cmovs
    )
}

fn is_stack(register: Register) -> bool {
    matches!(register, Register::RSP | Register::RBP)
}

/// Whether an instruction may make a negative number without a negative source.
fn makes_negative(instruction: &Instruction) -> bool {
    if instruction.op0_kind() != OpKind::Register {
        return false;
    }
    match instruction.mnemonic() {
        Mnemonic::Neg
        | Mnemonic::Not
        | Mnemonic::Dec
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Sbb
        | Mnemonic::Sar
        | Mnemonic::Imul => true,
        Mnemonic::Sub => !is_stack(instruction.op0_register()),
        Mnemonic::Mov
        | Mnemonic::Add
        | Mnemonic::Adc
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::And => {
            is_immediate(instruction)
                && (instruction.immediate(1) as i64) < 0
                && instruction.op0_register().size() == 8
                && !is_stack(instruction.op0_register())
        }
        Mnemonic::Lea => {
            (instruction.memory_displacement64() as i64) < 0 && !is_stack(instruction.memory_base())
        }
        _ => false,
    }
}
