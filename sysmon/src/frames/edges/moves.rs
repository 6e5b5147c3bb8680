//! What a function does with the address of a constant: whether it may mean the constant before or
//! behind the one the address lies in.
//!
//! An address that is taken is usually the beginning of something. Two kinds of loops over a table
//! make it an end instead: one that adds a negative index to the table's end, and one that counts a
//! pointer down from its end, or up from one step before its beginning. The compiler makes such
//! loops within one function, so the function shows it: the index is paired with a register that
//! got a negative number somewhere; the pointer is counted.
//!
//! Up to the next branch the register is followed instruction by instruction (for most, the next
//! call ends it). Beyond that, what happens anywhere to a register of that name counts, and to those
//! it is copied to for longer than up to the next call.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::flow::{ANSWERED, SPOILED};
use super::{bit, has_memory};

/// The largest entry of a table that a loop steps over.
const STRIDE: u32 = 256;

/// How far an address may be from what it means, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Behind the end of it.
    pub(crate) before: u32,
    /// Before the beginning of it.
    pub(crate) after: u32,
}

impl Reach {
    /// Of an address with an index that is part of the instruction: anything may be folded into it.
    pub(super) const FOLDED: Reach = Reach {
        before: 4 * STRIDE,
        after: 4 * STRIDE,
    };

    /// The same for one that reads a pointer. The distance is a constant index of the program's
    /// times the size of an entry, and all that lies that near counts. Only in images with a fixed
    /// address.
    pub(crate) const FAR: Reach = Reach {
        before: 1 << 16,
        after: 1 << 16,
    };

    fn join(self, other: Reach) -> Reach {
        Reach {
            before: self.before.max(other.before),
            after: self.after.max(other.after),
        }
    }
}

/// What a function does with each register, anywhere.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Registers it shares an address with.
    partners: [u32; 16],
    counted: [Reach; 16],
    /// Registers it is copied to.
    copies: [u32; 16],
    /// Registers that may hold a negative number.
    negative: u32,
}

impl Moves {
    pub(super) fn read(code: &[Instruction]) -> Moves {
        let mut moves = Moves::default();
        for (place, instruction) in code.iter().enumerate() {
            moves.note(instruction, &code[place + 1..]);
        }
        // Until nothing changes: negative numbers are copied and added on.
        loop {
            let before = moves.negative;
            for instruction in code {
                moves.spread(instruction);
            }
            if moves.negative == before {
                return moves;
            }
        }
    }

    fn note(&mut self, instruction: &Instruction, rest: &[Instruction]) {
        if has_memory(instruction) {
            let base = bit(instruction.memory_base());
            let index = bit(instruction.memory_index());
            for (one, other) in [(base, index), (index, base)] {
                if one != 0 {
                    self.partners[one.trailing_zeros() as usize] |= other;
                }
            }
        }
        if let Some((register, reach)) = count(instruction) {
            let counted = &mut self.counted[register.trailing_zeros() as usize];
            *counted = counted.join(reach);
        }
        // What is only handed to a call is no copy: its register is used for other things, too.
        if let Some((to, from)) = copy(instruction)
            && matches!(fate(instruction.op0_register(), rest), Fate::Open)
        {
            self.copies[from.trailing_zeros() as usize] |= to;
        }
        if makes_negative(instruction) {
            self.negative |= bit(instruction.op0_register());
        }
    }

    fn spread(&mut self, instruction: &Instruction) {
        if instruction.op_count() < 2 || instruction.op0_kind() != OpKind::Register {
            return;
        }
        let source = match instruction.op1_kind() {
            OpKind::Register => bit(instruction.op1_register()),
            OpKind::Memory if instruction.mnemonic() == Mnemonic::Lea => {
                bit(instruction.memory_base()) | bit(instruction.memory_index())
            }
            // Put away on the stack and fetched again.
            OpKind::Memory if on_stack(instruction) => self.negative,
            _ => 0,
        };
        let kept = matches!(
            instruction.mnemonic(),
            Mnemonic::Mov | Mnemonic::Add | Mnemonic::Lea | Mnemonic::Sub | Mnemonic::Cmove
        );
        if kept && source & self.negative != 0 {
            self.negative |= bit(instruction.op0_register());
        }
    }

    /// What is done with a register, and with those it is copied to.
    fn of(&self, register: u32) -> Reach {
        let mut all = register;
        loop {
            let copies = registers(all).fold(all, |set, r| set | self.copies[r]);
            if copies == all {
                break;
            }
            all = copies;
        }
        registers(all).fold(Reach::default(), |reach, r| {
            let end_based = self.partners[r] & self.negative != 0;
            let before = if end_based { STRIDE } else { 0 };
            reach.join(self.counted[r]).join(Reach { before, after: 0 })
        })
    }
}

fn registers(set: u32) -> impl Iterator<Item = usize> {
    (0..16).filter(move |r| set >> r & 1 == 1)
}

/// A register that is counted up or down, and how far that reaches.
fn count(instruction: &Instruction) -> Option<(u32, Reach)> {
    let register = bit(instruction.op0_register());
    if instruction.op0_kind() != OpKind::Register || register == 0 {
        return None;
    }
    let step = match instruction.mnemonic() {
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Add | Mnemonic::Sub if instruction.op1_kind() == OpKind::Register => {
            let reach = Reach {
                before: STRIDE,
                after: STRIDE,
            };
            return Some((register, reach));
        }
        Mnemonic::Add if is_immediate(instruction) => instruction.immediate(1) as i64,
        Mnemonic::Sub if is_immediate(instruction) => -(instruction.immediate(1) as i64),
        Mnemonic::Lea if bit(instruction.memory_base()) == register => {
            instruction.memory_displacement64() as i64
        }
        _ => return None,
    };
    let size = u32::try_from(step.unsigned_abs()).unwrap_or(u32::MAX);
    let reach = match step {
        0.. => Reach {
            before: 0,
            after: size,
        },
        _ => Reach {
            before: size,
            after: 0,
        },
    };
    Some((register, reach))
}

fn is_immediate(instruction: &Instruction) -> bool {
    !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory)
}

/// To and from.
fn copy(instruction: &Instruction) -> Option<(u32, u32)> {
    let move_ = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64);
    let both =
        instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    let (to, from) = (
        bit(instruction.op0_register()),
        bit(instruction.op1_register()),
    );
    (move_ && both && to != 0 && from != 0).then_some((to, from))
}

fn on_stack(instruction: &Instruction) -> bool {
    matches!(instruction.memory_base(), Register::RSP | Register::RBP)
}

/// An instruction that may make a negative number out of none.
fn makes_negative(instruction: &Instruction) -> bool {
    if instruction.op0_kind() != OpKind::Register {
        return false;
    }
    let stack = |register| matches!(register, Register::RSP | Register::RBP);
    match instruction.mnemonic() {
        Mnemonic::Neg
        | Mnemonic::Not
        | Mnemonic::Dec
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Sbb
        | Mnemonic::Sar
        | Mnemonic::Imul => true,
        Mnemonic::Sub => !stack(instruction.op0_register()),
        Mnemonic::Mov | Mnemonic::Add | Mnemonic::Or | Mnemonic::Xor | Mnemonic::And => {
            is_immediate(instruction)
                && (instruction.immediate(1) as i64) < 0
                && instruction.op0_register().size() == 8
                && !stack(instruction.op0_register())
        }
        Mnemonic::Lea => {
            (instruction.memory_displacement64() as i64) < 0 && !stack(instruction.memory_base())
        }
        _ => false,
    }
}

/// What becomes of a register with an address, as far as the next branch tells.
pub(super) enum Fate {
    /// It is over, and nothing moved it.
    Left,
    /// Look at the whole function.
    Open,
}

/// Follows a register up to the next branch.
pub(super) fn fate(register: Register, rest: &[Instruction]) -> Fate {
    let register = bit(register);
    for instruction in rest {
        let places = bit(instruction.memory_base()) | bit(instruction.memory_index());
        let indexed = has_memory(instruction) && instruction.memory_index() != Register::None;
        let moved = indexed && places & register != 0
            || count(instruction).is_some_and(|(counted, _)| counted == register)
            || copy(instruction).is_some_and(|(_, from)| from == register);
        match instruction.flow_control() {
            _ if moved => return Fate::Open,
            // The kernel keeps the others.
            _ if instruction.mnemonic() == Mnemonic::Syscall && register & ANSWERED == 0 => {}
            FlowControl::Call | FlowControl::IndirectCall if register & SPOILED != 0 => {
                return Fate::Left;
            }
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Next => {}
            FlowControl::Return | FlowControl::Exception => return Fate::Left,
            _ => return Fate::Open,
        }
        let replaced = matches!(
            instruction.code(),
            Code::Mov_r64_rm64 | Code::Mov_rm64_imm32 | Code::Lea_r64_m | Code::Mov_r32_imm32
        );
        if replaced && bit(instruction.op0_register()) == register {
            return Fate::Left;
        }
    }
    Fate::Left
}

/// How far an address in a register may be from what is meant.
pub(super) fn reach(moves: &Moves, register: Register) -> Reach {
    moves.of(bit(register))
}
