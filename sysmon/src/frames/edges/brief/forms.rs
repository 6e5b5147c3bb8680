//! Which opcodes are known, and in which forms.

/// An operand follows in a ModRM byte.
pub(super) const MODRM: u16 = 1;
/// An immediate of one byte follows.
pub(super) const IMM8: u16 = 2;
/// An immediate follows, of four bytes, or two with an operand-size prefix.
pub(super) const IMMZ: u16 = 4;
/// The operand must be in memory.
pub(super) const MEM: u16 = 8;
/// The operand must be a register.
pub(super) const REG: u16 = 16;
/// Whether it is known depends on more than that: see `Brief::is_known`.
pub(super) const MORE: u16 = 32;
/// Continues elsewhere, or nowhere.
pub(super) const FLOW: u16 = 64;
/// Known without a prefix, with `66`, `F2`, `F3`.
pub(super) const P0: u16 = 256;
pub(super) const P66: u16 = 512;
pub(super) const PF2: u16 = 1024;
pub(super) const PF3: u16 = 2048;
/// May be locked if the operand is in memory.
pub(super) const LOCK: u16 = 4096;

pub(super) const PW: u16 = P0 | P66;
pub(super) const PALL: u16 = P0 | P66 | PF2 | PF3;

/// Forms of the one-byte opcodes, then of those behind `0F`; zero means not known.
pub(super) static FORMS: [u16; 512] = forms();

const fn set(mut forms: [u16; 512], from: usize, to: usize, form: u16) -> [u16; 512] {
    let mut at = from;
    while at <= to {
        forms[at] = form;
        at += 1;
    }
    forms
}

const fn forms() -> [u16; 512] {
    let mut f = [0; 512];
    // add, or, adc, sbb, and, sub, xor, cmp
    let mut op = 0;
    while op < 0x40 {
        let lock = if op == 0x38 { 0 } else { LOCK };
        f = set(f, op, op, P0 | MODRM | lock);
        f = set(f, op + 1, op + 1, PW | MODRM | lock);
        f = set(f, op + 2, op + 2, P0 | MODRM);
        f = set(f, op + 3, op + 3, PW | MODRM);
        f = set(f, op + 4, op + 4, P0 | IMM8);
        f = set(f, op + 5, op + 5, PW | IMMZ);
        op += 8;
    }
    f = set(f, 0x50, 0x5F, P0); // push, pop
    f = set(f, 0x63, 0x63, P0 | MODRM | MORE); // movsxd
    f = set(f, 0x68, 0x68, P0 | IMMZ);
    f = set(f, 0x69, 0x69, PW | MODRM | IMMZ); // imul
    f = set(f, 0x6A, 0x6A, P0 | IMM8);
    f = set(f, 0x6B, 0x6B, PW | MODRM | IMM8);
    f = set(f, 0x70, 0x7F, P0 | IMM8 | FLOW);
    f = set(f, 0x80, 0x80, P0 | MODRM | IMM8 | LOCK | MORE);
    f = set(f, 0x81, 0x81, PW | MODRM | IMMZ | LOCK | MORE);
    f = set(f, 0x83, 0x83, PW | MODRM | IMM8 | LOCK | MORE);
    f = set(f, 0x84, 0x84, P0 | MODRM); // test
    f = set(f, 0x85, 0x85, PW | MODRM);
    f = set(f, 0x86, 0x86, P0 | MODRM | LOCK); // xchg
    f = set(f, 0x87, 0x87, PW | MODRM | LOCK);
    f = set(f, 0x88, 0x88, P0 | MODRM); // mov
    f = set(f, 0x89, 0x89, PW | MODRM);
    f = set(f, 0x8A, 0x8A, P0 | MODRM);
    f = set(f, 0x8B, 0x8B, PW | MODRM);
    f = set(f, 0x8D, 0x8D, P0 | MODRM | MEM | MORE); // lea
    f = set(f, 0x90, 0x90, PW | PF3 | MORE); // nop, pause
    f = set(f, 0x98, 0x99, PW);
    f = set(f, 0xA4, 0xA7, P0 | PF2 | PF3); // strings
    f = set(f, 0xA8, 0xA8, P0 | IMM8);
    f = set(f, 0xA9, 0xA9, PW | IMMZ);
    f = set(f, 0xAA, 0xAF, P0 | PF2 | PF3);
    f = set(f, 0xB0, 0xB7, P0 | IMM8);
    f = set(f, 0xB8, 0xBF, PW | MORE);
    f = set(f, 0xC0, 0xC0, P0 | MODRM | IMM8); // shifts
    f = set(f, 0xC1, 0xC1, PW | MODRM | IMM8);
    f = set(f, 0xC3, 0xC3, P0 | FLOW); // ret
    f = set(f, 0xC6, 0xC6, P0 | MODRM | IMM8 | MORE);
    f = set(f, 0xC7, 0xC7, PW | MODRM | IMMZ | MORE);
    f = set(f, 0xC9, 0xC9, P0); // leave
    f = set(f, 0xCC, 0xCC, P0 | FLOW);
    f = set(f, 0xD0, 0xD0, P0 | MODRM);
    f = set(f, 0xD1, 0xD1, PW | MODRM);
    f = set(f, 0xD2, 0xD2, P0 | MODRM);
    f = set(f, 0xD3, 0xD3, PW | MODRM);
    f = set(f, 0xE8, 0xE9, P0 | IMMZ | FLOW); // call, jmp
    f = set(f, 0xEB, 0xEB, P0 | IMM8 | FLOW);
    f = set(f, 0xF6, 0xF6, P0 | MODRM | LOCK | MORE);
    f = set(f, 0xF7, 0xF7, PW | MODRM | LOCK | MORE);
    f = set(f, 0xFC, 0xFD, P0); // cld, std
    f = set(f, 0xFE, 0xFE, P0 | MODRM | LOCK | MORE);
    f = set(f, 0xFF, 0xFF, PW | MODRM | LOCK | MORE);
    behind_0f(f)
}

const fn behind_0f(mut f: [u16; 512]) -> [u16; 512] {
    f = set(f, 0x10B, 0x10B, P0 | FLOW); // ud2
    f = set(f, 0x110, 0x111, PALL | MODRM);
    f = set(f, 0x112, 0x112, P0 | MODRM);
    f = set(f, 0x113, 0x113, PW | MODRM | MEM);
    f = set(f, 0x114, 0x115, PW | MODRM);
    f = set(f, 0x116, 0x116, P0 | MODRM);
    f = set(f, 0x117, 0x117, PW | MODRM | MEM);
    f = set(f, 0x11E, 0x11E, PF3 | MODRM | MORE); // endbr64
    f = set(f, 0x11F, 0x11F, PW | MODRM | MORE); // nop
    f = set(f, 0x128, 0x129, PW | MODRM);
    f = set(f, 0x12A, 0x12A, PF2 | PF3 | MODRM);
    f = set(f, 0x12C, 0x12D, PF2 | PF3 | MODRM);
    f = set(f, 0x12E, 0x12F, PW | MODRM);
    f = set(f, 0x140, 0x14F, PW | MODRM); // cmov
    f = set(f, 0x150, 0x150, PW | MODRM | REG);
    f = set(f, 0x151, 0x151, PALL | MODRM);
    f = set(f, 0x154, 0x157, PW | MODRM);
    f = set(f, 0x158, 0x15A, PALL | MODRM);
    f = set(f, 0x15B, 0x15B, P0 | P66 | PF3 | MODRM);
    f = set(f, 0x15C, 0x15F, PALL | MODRM);
    f = set(f, 0x160, 0x16B, P66 | MODRM);
    f = set(f, 0x16C, 0x16D, P66 | MODRM);
    f = set(f, 0x16E, 0x16E, P66 | MODRM);
    f = set(f, 0x16F, 0x16F, P66 | PF3 | MODRM);
    f = set(f, 0x170, 0x170, P66 | PF2 | PF3 | MODRM | IMM8);
    f = set(f, 0x171, 0x173, P66 | MODRM | REG | IMM8 | MORE); // shifts
    f = set(f, 0x174, 0x176, P66 | MODRM);
    f = set(f, 0x17E, 0x17E, P66 | PF3 | MODRM);
    f = set(f, 0x17F, 0x17F, P66 | PF3 | MODRM);
    f = set(f, 0x180, 0x18F, P0 | IMMZ | FLOW);
    f = set(f, 0x190, 0x19F, P0 | MODRM); // setcc
    f = set(f, 0x1A2, 0x1A2, P0); // cpuid
    f = set(f, 0x1A3, 0x1A3, PW | MODRM); // bt
    f = set(f, 0x1A4, 0x1A4, PW | MODRM | IMM8); // shld
    f = set(f, 0x1A5, 0x1A5, PW | MODRM);
    f = set(f, 0x1AB, 0x1AB, PW | MODRM | LOCK);
    f = set(f, 0x1AC, 0x1AC, PW | MODRM | IMM8);
    f = set(f, 0x1AD, 0x1AD, PW | MODRM);
    f = set(f, 0x1AE, 0x1AE, P0 | MODRM | REG | MORE); // fences
    f = set(f, 0x1AF, 0x1AF, PW | MODRM); // imul
    f = set(f, 0x1B0, 0x1B0, P0 | MODRM | LOCK); // cmpxchg
    f = set(f, 0x1B1, 0x1B1, PW | MODRM | LOCK);
    f = set(f, 0x1B3, 0x1B3, PW | MODRM | LOCK);
    f = set(f, 0x1B6, 0x1B7, PW | MODRM); // movzx
    f = set(f, 0x1BA, 0x1BA, PW | MODRM | IMM8 | LOCK | MORE);
    f = set(f, 0x1BB, 0x1BB, PW | MODRM | LOCK);
    f = set(f, 0x1B8, 0x1B8, PF3 | MODRM); // popcnt
    f = set(f, 0x1BC, 0x1BD, PW | PF3 | MODRM); // bsf, bsr, tzcnt, lzcnt
    f = set(f, 0x1BE, 0x1BF, PW | MODRM); // movsx
    f = set(f, 0x1C0, 0x1C0, P0 | MODRM | LOCK); // xadd
    f = set(f, 0x1C1, 0x1C1, PW | MODRM | LOCK);
    f = set(f, 0x1C2, 0x1C2, PALL | MODRM | IMM8);
    f = set(f, 0x1C4, 0x1C4, P66 | MODRM | IMM8);
    f = set(f, 0x1C5, 0x1C5, P66 | MODRM | REG | IMM8);
    f = set(f, 0x1C6, 0x1C6, PW | MODRM | IMM8);
    f = set(f, 0x1C7, 0x1C7, P0 | MODRM | MEM | LOCK | MORE); // cmpxchg16b
    f = set(f, 0x1C8, 0x1CF, P0); // bswap
    f = set(f, 0x1D1, 0x1D6, P66 | MODRM);
    f = set(f, 0x1D7, 0x1D7, P66 | MODRM | REG);
    f = set(f, 0x1D8, 0x1E5, P66 | MODRM);
    f = set(f, 0x1E6, 0x1E6, P66 | PF2 | PF3 | MODRM);
    f = set(f, 0x1E7, 0x1E7, P66 | MODRM | MEM);
    f = set(f, 0x1E8, 0x1EF, P66 | MODRM);
    f = set(f, 0x1F1, 0x1F6, P66 | MODRM);
    f = set(f, 0x1F8, 0x1FE, P66 | MODRM);
    f
}

/// Known to `skip`. An entry also says whether an operand follows ([`OPERAND`]), and has the size
/// of the immediate in its lowest bits ([`NUMBER`]).
pub(super) const QUICK: u8 = 0x80;
pub(super) const OPERAND: u8 = 0x40;
/// Needs a check of more than the opcode.
pub(super) const SPECIAL: u8 = 0x20;
/// Does nothing to addresses in registers, unless its operand has an index.
pub(super) const STILL: u8 = 0x10;
/// The same if its operand is in memory.
pub(super) const STORES: u8 = 0x08;
/// Mask of the immediate's size in bytes.
pub(super) const NUMBER: u8 = 0x07;

/// What `skip` needs to know of each opcode.
pub(super) static STEPS: [u8; 512] = steps();

const fn steps() -> [u8; 512] {
    let forms = forms();
    let mut steps = [0; 512];
    let mut at = 0;
    while at < 512 {
        let form = forms[at];
        if form & P0 != 0 && form & (MEM | REG | MORE | FLOW) == 0 {
            let operand = if form & MODRM != 0 { OPERAND } else { 0 };
            let byte = if form & IMM8 != 0 { 1 } else { 0 };
            let word = if form & IMMZ != 0 { 4 } else { 0 };
            steps[at] = QUICK | operand | byte | word;
        }
        at += 1;
    }
    steps[0x80] = QUICK | OPERAND | 1;
    steps[0x81] = QUICK | OPERAND | 4;
    steps[0x83] = QUICK | OPERAND | 1;
    steps[0x8D] = QUICK | OPERAND | SPECIAL;
    steps[0xC3] = QUICK | SPECIAL;
    steps[0xE9] = QUICK | SPECIAL | 4;
    steps[0xEB] = QUICK | SPECIAL | 1;
    steps[0xC6] = QUICK | OPERAND | SPECIAL | 1;
    steps[0xC7] = QUICK | OPERAND | SPECIAL | 4;
    let mut at = 0;
    while at < 16 {
        if at < 8 {
            steps[0xB8 + at] = QUICK | SPECIAL | 4;
        }
        steps[0x70 + at] = QUICK | SPECIAL | 1;
        steps[0x180 + at] = QUICK | SPECIAL | 4;
        at += 1;
    }
    let mut at = 0;
    while at < 512 {
        if steps[at] & (QUICK | SPECIAL) == QUICK && is_still(at) {
            steps[at] |= STILL;
        }
        at += 1;
    }
    steps[0x88] |= STORES;
    steps[0x89] |= STORES;
    steps[0xC6] |= STORES;
    steps[0xC7] |= STORES;
    steps
}

/// Whether addresses in registers stay as they are: no arithmetic and no move of numbers.
const fn is_still(opcode: usize) -> bool {
    match opcode {
        0x38..=0x3D | 0x84 | 0x85 | 0xA8 | 0xA9 => true, // cmp, test
        0x140..=0x14F | 0x1AF | 0x1BE | 0x1BF => false,  // cmov, imul, movsx
        0x100..=0x1FF => true,
        _ => false,
    }
}

/// The operand is relative to the instruction.
pub(super) const RELATIVE: u8 = 0x80;
/// Four bytes more if the base in the next byte is number 5.
pub(super) const PERHAPS: u8 = 0x40;

/// Bytes of an operand: ModRM, SIB, displacement.
pub(super) static OPERANDS: [u8; 256] = operands();

const fn operands() -> [u8; 256] {
    let mut lengths = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mode, place) = (at >> 6, at & 7);
        let sib = if mode != 3 && place == 4 { 1 } else { 0 };
        let displacement = match mode {
            0 if place == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        let flag = match (mode, place) {
            (0, 5) => RELATIVE,
            (0, 4) => PERHAPS,
            _ => 0,
        };
        lengths[at] = (1 + sib + displacement) | flag;
        at += 1;
    }
    lengths
}
