//! A decoder for the instructions of ordinary code, fast without optimization.
//!
//! A program's debug build compiles this crate and its dependencies without optimization, and a
//! complete decoder then takes most of the time of a survey. This decoder knows only what compilers
//! emit all the time. It reports how long such an instruction is, where its operand is, and what it
//! does to addresses in registers. Everything else is *not known*, and then the complete decoder
//! reads the whole function: `fs` and `gs`, `syscall`, vectors beyond SSE2, the x87 unit,
//! everything that cannot be decoded, odd prefixes. A test compares the two decoders for every
//! opcode with every operand.
//!
//! Without optimization each call and each iterator costs more than the work in it. So this code
//! uses tables, indexes and plain loops, and [`skip`], which steps over instructions that lead
//! nowhere, is one loop without a call.

mod forms;
mod motion;

use super::starts::{START, TARGET};
use forms::*;

/// Length of the longest instruction.
const LONGEST: usize = 15;
/// More bytes than are read of an instruction before its length is known.
pub(super) const MARGIN: usize = 32;

/// The code of a function.
#[derive(Clone, Copy)]
pub(super) struct Code<'a> {
    /// With [`MARGIN`] bytes of any content behind its end.
    bytes: &'a [u8],
    pub(super) end: usize,
}

impl<'a> Code<'a> {
    /// Wraps code of length `end`; `None` if less than the margin is behind it.
    pub(super) fn new(bytes: &'a [u8], end: usize) -> Option<Code<'a>> {
        (bytes.len() >= end + MARGIN).then_some(Code { bytes, end })
    }

    /// Returns the code from an offset on.
    pub(super) fn from(&self, at: usize) -> &'a [u8] {
        &self.bytes[at..self.end]
    }
}

/// Steps over instructions that are known and lead nowhere else.
///
/// These have no prefix but REX, no operand relative to the instruction, and no branch but one to a
/// byte of the function other than its first. Returns where the first other instruction begins, and
/// whether the last skipped one continues with the next. Marks where instructions begin and
/// branches lead (`starts`).
pub(super) fn skip(code: &Code<'_>, from: usize, marks: &mut [u8]) -> (usize, bool) {
    let mut goes_on = true;
    let (code, end) = (code.bytes, code.end);
    let marks = &mut marks[..end];
    let mut start = from;
    while start < end {
        let mut at = start;
        let mut opcode = code[at] as usize;
        let mut rex = 0;
        if opcode & 0xF0 == 0x40 {
            rex = opcode;
            at += 1;
            opcode = code[at] as usize;
        }
        if opcode == 0x0F {
            at += 1;
            opcode = 0x100 | code[at] as usize;
        }
        let step = STEPS[opcode];
        if step & QUICK == 0 {
            return (start, goes_on);
        }
        at += 1;
        let mut stays = true;
        if step & SPECIAL != 0 {
            let modrm = code[at];
            match opcode {
                0xB8..=0xBF => at += if rex & 8 != 0 { 4 } else { 0 }, // more
                0x8D if modrm >= 0xC0 => return (start, goes_on),
                0x8D => {}
                0xC6 | 0xC7 if modrm & 0x38 != 0 => return (start, goes_on),
                0xC6 | 0xC7 => {}
                0xC3 => stays = false,
                _ => {
                    stays = !matches!(opcode, 0xE9 | 0xEB);
                    let distance = match opcode {
                        0x70..=0x7F | 0xEB => modrm as i8 as isize + 1,
                        _ => half(code, at) as isize + 4,
                    };
                    let target = at as isize + distance;
                    if target <= 0 || target >= end as isize {
                        return (start, goes_on);
                    }
                    marks[target as usize] |= TARGET;
                }
            }
        }
        if step & OPERAND != 0 {
            let length = OPERANDS[code[at] as usize];
            if length >= PERHAPS {
                if length >= RELATIVE {
                    return (start, goes_on);
                }
                if code[at + 1] & 7 == 5 {
                    at += 4;
                }
            }
            at += (length & 0xF) as usize;
        }
        at += (step & NUMBER) as usize;
        if at > end {
            return (start, goes_on);
        }
        marks[start] |= START;
        goes_on = stays;
        start = at;
    }
    (start, goes_on)
}

/// Steps over instructions that do nothing to addresses in registers, in code that is known.
///
/// With `puts`, stops at those that store an address on the stack. Returns where the first other
/// instruction begins.
pub(super) fn skip_still(code: &Code<'_>, from: usize, puts: bool) -> usize {
    let (code, end) = (code.bytes, code.end);
    let mut start = from;
    while start < end {
        let mut at = start;
        let mut opcode = code[at] as usize;
        let mut rex = 0;
        if opcode & 0xF0 == 0x40 {
            rex = opcode;
            at += 1;
            opcode = code[at] as usize;
        }
        if opcode == 0x0F {
            at += 1;
            opcode = 0x100 | code[at] as usize;
        }
        let step = STEPS[opcode];
        if step & (STILL | STORES) == 0 {
            return start;
        }
        at += 1;
        if step & OPERAND != 0 {
            let modrm = code[at];
            let in_memory = modrm < 0xC0;
            if step & STILL == 0 && (!in_memory || opcode >= 0xC6 && modrm & 0x38 != 0) {
                return start;
            }
            if puts && opcode == 0x89 && rex & 8 != 0 {
                return start;
            }
            let length = (OPERANDS[modrm as usize] & 0xF) as usize;
            if in_memory && modrm & 7 == 4 {
                let sib = code[at + 1];
                let indexed = rex & 2 != 0 || sib & 0x38 != 0x20;
                if indexed {
                    return start;
                }
                if modrm < 0x40 && sib & 7 == 5 {
                    at += 4;
                }
            }
            at += length;
        }
        start = at + (step & NUMBER) as usize;
    }
    start
}

/// Reads four bytes as a number.
fn half(code: &[u8], at: usize) -> i32 {
    let [a, b, c, d] = [code[at], code[at + 1], code[at + 2], code[at + 3]];
    (a as u32 | (b as u32) << 8 | (c as u32) << 16 | (d as u32) << 24) as i32
}

/// Whether three bytes are an `add` of a whole register to this one.
pub(super) fn adds_to(code: &[u8], register: u8) -> bool {
    let [rex, opcode, modrm] = *code else {
        return false;
    };
    let (named, other) = (modrm >> 3 & 7 | (rex & 4) << 1, modrm & 7 | (rex & 1) << 3);
    let into = match opcode {
        0x01 => other,
        0x03 => named,
        _ => return false,
    };
    rex & 0xF8 == 0x48 && modrm >= 0xC0 && into == register
}

/// The number that stands for no register.
pub(super) const NONE: u8 = 16;

/// One instruction of a known form.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brief {
    /// With 0x100 added if it follows `0F`.
    pub(super) opcode: u16,
    /// Where the next instruction begins.
    pub(super) next: usize,
    rex: u8,
    /// `66`, `F2`, `F3` or none.
    prefix: u8,
    modrm: u8,
    /// The operand is in memory.
    pub(super) memory: bool,
    /// The operand is relative to the next instruction.
    pub(super) relative: bool,
    pub(super) base: u8,
    pub(super) index: u8,
    /// As a power of two.
    pub(super) scale: u8,
    pub(super) displacement: i32,
    number: i64,
}

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Next,
    /// Continues with the next instruction and does nothing.
    Pad,
    /// The target is at this distance from the next instruction.
    Call(i32),
    Jump(i32),
    Branch(i32),
    /// The target is in a register or memory.
    IndirectCall,
    IndirectJump,
    Return,
    /// Not meant to be reached.
    Trap,
    /// A breakpoint.
    Break,
}

impl Brief {
    /// Reads the instruction at an offset. Returns false if it is not known; then no field is
    /// valid.
    pub(super) fn read(&mut self, code: &Code<'_>, start: usize) -> bool {
        let (code, end) = (code.bytes, code.end);
        if start >= end {
            return false;
        }
        let mut at = start;
        let mut prefix = 0;
        let (mut segment, mut locked, mut narrow) = (false, false, false);
        let mut byte = code[at];
        loop {
            match byte {
                0x66 if prefix == 0 || prefix == 0x66 => prefix = 0x66,
                0xF2 | 0xF3 if prefix == 0 => prefix = byte,
                0xF0 if !locked => locked = true,
                0x2E => segment = true,
                0x67 => narrow = true,
                _ => break,
            }
            at += 1;
            if at - start == LONGEST {
                return false;
            }
            byte = code[at];
        }
        let mut rex = 0;
        if byte & 0xF0 == 0x40 {
            rex = byte;
            at += 1;
            byte = code[at];
        }
        let mut opcode = byte as u16;
        at += 1;
        if opcode == 0x0F {
            opcode = 0x100 | code[at] as u16;
            at += 1;
        }
        let form = FORMS[opcode as usize];
        let allowed = match prefix {
            0 => P0,
            0x66 => P66,
            0xF2 => PF2,
            _ => PF3,
        };
        // Linkers put an address-size prefix before a call that they have made shorter.
        let odd = narrow && opcode != 0xE8 || segment && opcode != 0x11F;
        if form & allowed == 0 || odd {
            return false;
        }
        self.opcode = opcode;
        self.rex = rex;
        self.prefix = prefix;
        self.modrm = 0;
        self.memory = false;
        self.relative = false;
        self.base = NONE;
        self.index = NONE;
        self.scale = 0;
        self.displacement = 0;
        if form & MODRM != 0 {
            at = self.operand(code, at);
        }
        let register = form & MODRM != 0 && !self.memory;
        if form & MEM != 0 && !self.memory || form & REG != 0 && !register {
            return false;
        }
        if locked && (form & LOCK == 0 || !self.memory) {
            return false;
        }
        let mut size = 0;
        if form & IMM8 != 0 {
            size = 1;
        } else if form & IMMZ != 0 {
            size = if prefix == 0x66 && rex & 8 == 0 { 2 } else { 4 };
        }
        if form & MORE != 0 {
            if !self.is_known(locked) {
                return false;
            }
            size = self.size_of_number(size);
        }
        self.number = match size {
            0 => 0,
            1 => code[at] as i8 as i64,
            2 => half(code, at) as i16 as i64,
            4 => half(code, at) as i64,
            _ => half(code, at) as u32 as i64 | (half(code, at + 4) as i64) << 32,
        };
        self.next = at + size;
        self.next <= end && self.next - start <= LONGEST
    }

    /// Reads ModRM, SIB and displacement; returns where they end.
    fn operand(&mut self, code: &[u8], from: usize) -> usize {
        let mut at = from + 1;
        let modrm = code[from];
        self.modrm = modrm;
        let (mode, place) = (modrm >> 6, modrm & 7);
        if mode == 3 {
            return at;
        }
        self.memory = true;
        let mut far = mode == 2;
        if place == 4 {
            let sib = code[at];
            at += 1;
            self.scale = sib >> 6;
            self.index = sib >> 3 & 7 | (self.rex & 2) << 2;
            if self.index == 4 {
                self.index = NONE;
            }
            self.base = sib & 7 | (self.rex & 1) << 3;
            if mode == 0 && sib & 7 == 5 {
                self.base = NONE;
                far = true;
            }
        } else if mode == 0 && place == 5 {
            self.relative = true;
            far = true;
        } else {
            self.base = place | (self.rex & 1) << 3;
        }
        if far {
            self.displacement = half(code, at);
            at += 4;
        } else if mode == 1 {
            self.displacement = code[at] as i8 as i32;
            at += 1;
        }
        at
    }

    /// Whether the instruction is known, where that depends on more than the opcode.
    fn is_known(&self, locked: bool) -> bool {
        let group = self.modrm >> 3 & 7;
        match self.opcode {
            0x80 | 0x81 | 0x83 => !(locked && group == 7),
            0x90 => self.rex == 0,
            0xC6 | 0xC7 | 0x11F => group == 0,
            0xF6 | 0xF7 => !locked || matches!(group, 2 | 3),
            0xFE => group < 2,
            0xFF => group < 2 || !locked && self.prefix == 0 && matches!(group, 2 | 4 | 6),
            0x11E => self.modrm == 0xFA && self.rex == 0,
            0x171 | 0x172 => matches!(group, 2 | 4 | 6),
            0x173 => matches!(group, 2 | 3 | 6 | 7),
            0x1AE => matches!(self.modrm, 0xE8 | 0xF0 | 0xF8) && self.rex == 0,
            0x1BA => group > 4 || group == 4 && !locked,
            0x1C7 => group == 1,
            _ => true,
        }
    }

    /// Size of the immediate in bytes, where that depends on more than the opcode.
    fn size_of_number(&self, otherwise: usize) -> usize {
        let group = self.modrm >> 3 & 7;
        let narrow = self.prefix == 0x66 && !self.is_wide();
        match self.opcode {
            0xB8..=0xBF if self.is_wide() => 8,
            0xB8..=0xBF if narrow => 2,
            0xB8..=0xBF => 4,
            0xF6 if group < 2 => 1,
            0xF7 if group < 2 && narrow => 2,
            0xF7 if group < 2 => 4,
            _ => otherwise,
        }
    }

    /// Whether it is a plain move, or `lea`, that does not involve this register.
    pub(super) fn is_move_beside(&self, register: u8) -> bool {
        let vectors = matches!(self.opcode, 0x110 | 0x111 | 0x128 | 0x129);
        let place = match self.memory {
            true => self.base != register && self.index != register,
            false => vectors || self.other_register() != register,
        };
        match self.opcode {
            0x31 | 0x33 | 0x63 | 0x88 | 0x89 | 0x8B | 0x8D | 0x1B6 | 0x1B7 => {
                place && self.register() != register
            }
            0xC6 | 0xC7 => place,
            0xB8..=0xBF => (self.opcode as u8 & 7 | (self.rex & 1) << 3) != register,
            _ => vectors && place,
        }
    }

    fn is_wide(&self) -> bool {
        self.rex & 8 != 0
    }

    pub(super) fn turn(&self) -> Turn {
        let distance = self.number as i32;
        match self.opcode {
            0x90 if self.prefix != 0xF3 => Turn::Pad,
            0x11F => Turn::Pad,
            0x70..=0x7F | 0x180..=0x18F => Turn::Branch(distance),
            0xE8 => Turn::Call(distance),
            0xE9 | 0xEB => Turn::Jump(distance),
            0xC3 => Turn::Return,
            0xCC => Turn::Break,
            0x10B => Turn::Trap,
            0xFF if self.modrm >> 3 & 7 == 2 => Turn::IndirectCall,
            0xFF if self.modrm >> 3 & 7 == 4 => Turn::IndirectJump,
            _ => Turn::Next,
        }
    }

    /// Whether it is `lea`, which uses no memory.
    pub(super) fn is_lea(&self) -> bool {
        self.opcode == 0x8D
    }

    /// Whether it loads a whole register from memory.
    pub(super) fn is_load(&self) -> bool {
        self.opcode == 0x8B && self.memory && self.is_wide()
    }

    /// Whether it is `movsxd`, by which tables of distances are read.
    pub(super) fn is_movsxd(&self) -> bool {
        self.opcode == 0x63
    }

    /// Number of the register named beside the operand.
    pub(super) fn register(&self) -> u8 {
        self.modrm >> 3 & 7 | (self.rex & 4) << 1
    }

    /// Number of the register that is the operand.
    pub(super) fn other_register(&self) -> u8 {
        self.modrm & 7 | (self.rex & 1) << 3
    }
}
