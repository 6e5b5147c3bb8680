//! What an instruction of a known form does to addresses in registers.

use super::{Brief, NONE, Turn};
use crate::frames::edges::motion::{Motion, Path, Slot};
use crate::frames::edges::moves::Reach;

/// An instruction's name, as far as [`Motion`] distinguishes names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// With the carry or without.
    Add,
    Sub,
    /// `or`, `and`, `xor`.
    Bits,
    Mov,
    Lea,
    /// On any condition.
    Cmov,
    Xchg,
    Push,
    Pop,
    Inc,
    Dec,
    /// Any other instruction that may make a number negative.
    Negates,
    Other,
}

/// A register, or a part of one.
#[derive(Clone, Copy, Debug, Default)]
struct Register {
    number: u8,
    size: u8,
}

impl Register {
    fn bit(self) -> u32 {
        // Without REX the upper four numbers mean the second bytes of the first four registers.
        let number = if self.size == 0 {
            self.number & 3
        } else {
            self.number
        };
        1 << number
    }

    fn is_stack(self) -> bool {
        self.size == 8 && matches!(self.number, 4 | 5)
    }

    /// Returns the register's bit if the number makes it negative.
    fn negative_by(self, source: &Source) -> u32 {
        match source {
            Source::Number(..0) if self.size == 8 && !self.is_stack() => self.bit(),
            _ => 0,
        }
    }
}

/// The second operand.
#[derive(Clone, Copy, Debug)]
enum Source {
    Register(u32),
    Memory,
    Number(i64),
    None,
}

fn bit(register: u8) -> u32 {
    if register == NONE { 0 } else { 1 << register }
}

impl Brief {
    /// Returns the same as [`Motion::of`] does for the decoded instruction.
    pub(in crate::frames::edges) fn motion(&self) -> Motion {
        let mut motion = Motion::NONE;
        motion.path = match self.turn() {
            Turn::Next | Turn::Pad => Path::Next,
            Turn::Call(_) | Turn::IndirectCall => Path::Call,
            Turn::Return | Turn::Trap => Path::End,
            Turn::Jump(_) | Turn::Branch(_) | Turn::IndirectJump | Turn::Break => Path::Other,
        };
        if self.memory {
            motion.base = bit(self.base);
            motion.index = bit(self.index);
            motion.indexed = self.index != NONE;
        }
        let (name, into, source) = self.operands();
        let Some(into) = into else {
            if let (0x89, true, Source::Register(from)) = (self.opcode, self.is_wide(), source) {
                self.keep(&mut motion, from, 0);
            }
            return motion;
        };
        let register = into.bit();
        let wide = into.size == 8;
        match name {
            Name::Mov => {
                match source {
                    Source::Register(from) if wide => {
                        (motion.copy_to, motion.copy_from) = (register, from);
                    }
                    Source::Memory if wide => self.keep(&mut motion, 0, register),
                    _ => {}
                }
                motion.negative = into.negative_by(&source);
                self.spread(&mut motion, register, &source);
                self.replace(&mut motion, register);
            }
            Name::Lea => self.lea(&mut motion, into),
            Name::Add => {
                match source {
                    Source::Number(number) => {
                        (motion.counted, motion.reach) = (register, Reach::of_step(number));
                    }
                    Source::Register(from) => {
                        (motion.counted, motion.reach) = (register, Reach::BY_REGISTER);
                        if wide {
                            (motion.copy_to, motion.copy_from) = (register, from);
                            (motion.base, motion.index, motion.indexed) = (register, from, true);
                        }
                    }
                    _ => {}
                }
                motion.negative = into.negative_by(&source);
                self.spread(&mut motion, register, &source);
            }
            Name::Sub => {
                match source {
                    Source::Number(number) => {
                        let reach = Reach::of_step(number.wrapping_neg());
                        (motion.counted, motion.reach) = (register, reach);
                    }
                    Source::Register(_) => {
                        (motion.counted, motion.reach) = (register, Reach::BY_REGISTER);
                    }
                    _ => {}
                }
                motion.negative = if into.is_stack() { 0 } else { register };
                self.spread(&mut motion, register, &source);
            }
            Name::Cmov => {
                if let (true, Source::Register(from)) = (wide, &source) {
                    (motion.copy_to, motion.copy_from) = (register, *from);
                }
                self.spread(&mut motion, register, &source);
            }
            Name::Xchg => {
                if let Source::Register(other) = source {
                    let both = register | other;
                    (motion.into, motion.sources) = (both, both);
                    if wide {
                        (motion.copy_to, motion.copy_from) = (both, both);
                    }
                }
            }
            Name::Push => (motion.put, motion.slot) = (register, Slot::Top),
            Name::Pop => (motion.fetched, motion.slot) = (register, Slot::Top),
            Name::Inc => (motion.counted, motion.reach) = (register, Reach::of_step(1)),
            Name::Dec => {
                (motion.counted, motion.reach) = (register, Reach::of_step(-1));
                motion.negative = register;
            }
            Name::Bits => motion.negative = into.negative_by(&source),
            Name::Negates => motion.negative = register,
            Name::Other => {}
        }
        motion
    }

    fn lea(&self, motion: &mut Motion, into: Register) {
        let register = into.bit();
        // No constant is near the stack pointer.
        let near = into.size == 8 && self.index == NONE && self.base != 4;
        let reach = Reach::of_step(i64::from(self.displacement));
        if motion.base == register {
            (motion.counted, motion.reach) = (register, reach);
        } else if near && motion.base != 0 {
            (motion.copy_to, motion.copy_from) = (register, motion.base);
            (motion.counted, motion.reach) = (motion.base, reach);
        }
        if self.displacement < 0 && !self.relative && !matches!(self.base, 4 | 5) {
            motion.negative = register;
        }
        (motion.into, motion.sources) = (register, motion.base | motion.index);
        self.replace(motion, register);
    }

    /// Notes where a negative number may come from.
    fn spread(&self, motion: &mut Motion, register: u32, source: &Source) {
        motion.into = register;
        match source {
            Source::Register(from) => motion.sources = *from,
            Source::Memory => motion.from_stack = matches!(self.base, 4 | 5),
            Source::Number(_) | Source::None => {}
        }
    }

    /// Notes a register that certainly gets another value.
    fn replace(&self, motion: &mut Motion, register: u32) {
        let replaced = match self.opcode {
            0x8B | 0x8D | 0xC7 => self.is_wide(),
            0xB8..=0xBF => !self.is_wide() && self.prefix == 0,
            _ => false,
        };
        if replaced {
            motion.replaced = register;
        }
    }

    /// Notes a register that is stored on the stack or loaded from it. Does nothing if the operand
    /// is not on the stack.
    fn keep(&self, motion: &mut Motion, put: u32, fetched: u32) {
        let slot = match self.base {
            _ if self.index != NONE => return,
            4 => Slot::Sp(self.displacement),
            5 => Slot::Bp(self.displacement),
            _ => return,
        };
        (motion.put, motion.fetched, motion.slot) = (put, fetched, slot);
    }

    /// Returns the operation, the register it changes, if any, and the second operand.
    fn operands(&self) -> (Name, Option<Register>, Source) {
        let opcode = self.opcode;
        let group = self.modrm >> 3 & 7;
        let arithmetic = |number: u8| match number {
            0 | 2 => Name::Add,
            1 | 4 | 6 => Name::Bits,
            3 => Name::Negates, // sbb
            5 => Name::Sub,
            _ => Name::Other,
        };
        match opcode {
            0x00..=0x3F => {
                let name = arithmetic((opcode >> 3) as u8);
                let byte = opcode & 1 == 0;
                let first = Register {
                    number: 0,
                    size: self.size(byte),
                };
                match opcode & 7 {
                    0 | 1 => (name, self.place(byte), self.source_register(byte)),
                    2 | 3 => (name, self.beside(byte), self.source_place(byte)),
                    _ => (name, Some(first), self.source_number(byte, false)),
                }
            }
            0x50..=0x5F => {
                let number = (opcode & 7) as u8 | (self.rex & 1) << 3;
                let name = if opcode < 0x58 { Name::Push } else { Name::Pop };
                (name, Some(Register { number, size: 8 }), Source::None)
            }
            0x80 | 0x81 | 0x83 => {
                let byte = opcode == 0x80;
                let source = self.source_number(byte, opcode == 0x83);
                (arithmetic(group), self.place(byte), source)
            }
            0x86 | 0x87 => {
                let byte = opcode == 0x86;
                (Name::Xchg, self.place(byte), self.source_register(byte))
            }
            0x88 | 0x89 => {
                let byte = opcode == 0x88;
                (Name::Mov, self.place(byte), self.source_register(byte))
            }
            0x8A | 0x8B => {
                let byte = opcode == 0x8A;
                (Name::Mov, self.beside(byte), self.source_place(byte))
            }
            0x8D => (Name::Lea, self.beside(false), Source::Memory),
            0xB0..=0xBF => {
                let byte = opcode < 0xB8;
                let number = (opcode & 7) as u8 | (self.rex & 1) << 3;
                let into = self.part(number, byte);
                (Name::Mov, Some(into), self.source_number(byte, false))
            }
            0xC6 | 0xC7 => {
                let byte = opcode == 0xC6;
                (Name::Mov, self.place(byte), self.source_number(byte, false))
            }
            0xFE | 0xFF => match group {
                0 => (Name::Inc, self.place(opcode == 0xFE), Source::None),
                1 => (Name::Dec, self.place(opcode == 0xFE), Source::None),
                6 => (Name::Push, self.place(false), Source::None),
                _ => (Name::Other, None, Source::None),
            },
            0xF6 | 0xF7 if matches!(group, 2 | 3 | 5) => {
                (Name::Negates, self.place(opcode == 0xF6), Source::None)
            }
            0xC0 | 0xC1 | 0xD0..=0xD3 if group == 7 => {
                (Name::Negates, self.place(opcode & 1 == 0), Source::None)
            }
            0x63 | 0x69 | 0x6B | 0x1AF | 0x1BE | 0x1BF => {
                (Name::Negates, self.beside(false), Source::None)
            }
            // cdqe, cqo
            0x98 | 0x99 if self.is_wide() => {
                let number = if opcode == 0x98 { 0 } else { 2 };
                (
                    Name::Negates,
                    Some(Register { number, size: 8 }),
                    Source::None,
                )
            }
            0x140..=0x14F => (Name::Cmov, self.beside(false), self.source_place(false)),
            _ => (Name::Other, None, Source::None),
        }
    }

    /// Size of a register in bytes. It is 0 for a byte that may be the second one.
    fn size(&self, byte: bool) -> u8 {
        match byte {
            true => u8::from(self.rex != 0),
            false if self.is_wide() => 8,
            false if self.prefix == 0x66 => 2,
            false => 4,
        }
    }

    fn part(&self, number: u8, byte: bool) -> Register {
        let size = self.size(byte);
        Register { number, size }
    }

    fn beside(&self, byte: bool) -> Option<Register> {
        Some(self.part(self.register(), byte))
    }

    fn place(&self, byte: bool) -> Option<Register> {
        (!self.memory).then(|| self.part(self.other_register(), byte))
    }

    fn source_register(&self, byte: bool) -> Source {
        Source::Register(self.part(self.register(), byte).bit())
    }

    fn source_place(&self, byte: bool) -> Source {
        match self.place(byte) {
            Some(register) => Source::Register(register.bit()),
            None => Source::Memory,
        }
    }

    /// The immediate as the operation takes it: with its sign if it is widened.
    fn source_number(&self, byte: bool, widened: bool) -> Source {
        Source::Number(match self.size(byte) {
            8 => self.number,
            _ if widened => self.number,
            4 => i64::from(self.number as u32),
            2 => i64::from(self.number as u16),
            _ => i64::from(self.number as u8),
        })
    }
}
