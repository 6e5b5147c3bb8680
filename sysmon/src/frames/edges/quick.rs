//! Reads a function with the decoder for ordinary instructions (`brief`).
//!
//! It finds what the complete decoder finds, in the same order, or gives up: at any instruction
//! that `brief` does not know, and where registers must be followed (`flow`). An instruction that
//! leads out of the function in an unusual way is decoded completely, and judged by the same code.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};

use super::brief::{self, Brief, Code, MARGIN, Turn};
use super::motion::Motion;
use super::pointers::Indirect;
use super::starts::{self, Starts};
use super::{Facts, Form, How, Into, Pass, is_writable};
use crate::frames::image::Image;
use crate::frames::image::unwind::Function;

/// The most bytes that an instruction reads or writes.
const WIDEST: usize = 64;

/// Registers in the order of their numbers.
const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// Fills `facts` with what the function does. Returns false if the complete decoder must read the
/// function; then `facts` is invalid.
pub(super) fn read(
    image: &Image,
    function: &Function,
    starts: &mut Starts,
    facts: &mut Facts,
) -> bool {
    let range = &function.range;
    let length = range.len();
    let Some(bytes) = image.memory.bytes(range.start..range.end + MARGIN) else {
        return false;
    };
    // In an image with a fixed address, any number may be an address.
    if image.fixed || bytes.len() < length {
        return false;
    }
    let copy;
    let code = match Code::new(bytes, length) {
        Some(code) => code,
        None => {
            copy = [&bytes[..length], &[0; MARGIN]].concat(); // at the end of what is mapped
            let Some(code) = Code::new(&copy, length) else {
                return false;
            };
            code
        }
    };
    let mut pass = Pass::new(image, range, starts.of(length), facts);
    let Some(goes_on) = scan(&mut pass, &code) else {
        return false;
    };
    if pass.follow || starts::are_missed(pass.marks) {
        return false;
    }
    pass.note_indirect(&code);
    if goes_on {
        pass.go_on();
    }
    if !pass.taken.is_empty() {
        pass.finish(|place| Motions {
            code,
            at: place,
            puts: place != 0,
            brief: Brief::default(),
        });
        pass.note_given();
    }
    true
}

/// Notes an indirect call or jump.
fn indirect(
    pass: &mut Pass<'_>,
    code: &Code<'_>,
    at: usize,
    loads: &[Option<usize>; 16],
    brief: &Brief,
) {
    if brief.memory {
        let next = pass.range.start + brief.next;
        let slot = next.wrapping_add_signed(brief.displacement as isize);
        if !brief.relative || is_writable(pass.image, slot) {
            pass.facts.pointers.add(at);
        }
        return;
    }
    // A jump through a table of distances adds one just before: an instruction of three bytes.
    const ADD: usize = 3;
    let register = brief.other_register();
    let by_table = brief.turn() == Turn::IndirectJump
        && at >= ADD
        && pass.marks[at - ADD] & starts::START != 0
        && brief::adds_to(&code.from(at - ADD)[..ADD], register);
    if !by_table {
        let load = loads[register as usize];
        pass.indirect.push(Indirect { at, load, register });
    }
}

/// Reads all instructions. Returns whether the function continues behind the last one; `None` if an
/// instruction is not known.
fn scan(pass: &mut Pass<'_>, code: &Code<'_>) -> Option<bool> {
    let start = pass.range.start;
    let (mut at, mut goes_on) = (0, true);
    let mut brief = Brief::default();
    // Where registers were last loaded from a fixed place.
    let mut loads = [None; 16];
    while at < code.end {
        let before = at;
        let (skipped, stays) = brief::skip(code, at, pass.marks);
        at = skipped;
        if at != before {
            goes_on = stays;
        }
        if at >= code.end {
            break;
        }
        if !brief.read(code, at) {
            return None;
        }
        pass.marks[at] |= starts::START;
        let next = start + brief.next;
        let to = |distance: i32| next.wrapping_add_signed(distance as isize);
        match brief.turn() {
            Turn::Pad => {
                at = brief.next;
                continue;
            }
            Turn::Next => goes_on = true,
            Turn::Branch(distance) => {
                goes_on = true;
                branch(pass, code, at, to(distance), How::Jump);
            }
            Turn::Jump(distance) => {
                goes_on = false;
                branch(pass, code, at, to(distance), How::Jump);
            }
            Turn::Call(distance) => {
                goes_on = false;
                branch(pass, code, at, to(distance), How::Call);
            }
            turn => {
                goes_on = false;
                if matches!(turn, Turn::IndirectCall | Turn::IndirectJump) {
                    indirect(pass, code, at, &loads, &brief);
                }
            }
        }
        if brief.relative {
            let address = to(brief.displacement);
            if brief.is_lea() {
                pass.next = brief.next;
                pass.end = next;
                pass.take(
                    address,
                    Into::Register(REGISTERS[brief.register() as usize]),
                );
            } else {
                if brief.is_load() {
                    loads[brief.register() as usize] = Some(at);
                }
                access(pass, code, at, address, &brief);
            }
        } else if brief.is_movsxd() && brief.memory && brief.scale == 2 {
            if brief.index == brief::NONE {
                return None;
            }
            if brief.base != brief::NONE {
                pass.distances |= 1 << brief.base;
            }
        }
        at = brief.next;
    }
    Some(goes_on)
}

/// Notes a direct branch.
fn branch(pass: &mut Pass<'_>, code: &Code<'_>, at: usize, target: usize, how: How) {
    let inside = target > pass.range.start && target < pass.range.end;
    if inside {
        return starts::lead_to(pass.marks, target - pass.range.start);
    }
    if pass.is_no_start(target) {
        let form = Form::of(&decode(pass, code, at)); // perhaps a stub
        pass.branch(target, &form);
    } else {
        pass.facts.code.push((target, how));
    }
}

/// Notes a place that is read, written or called through.
fn access(pass: &mut Pass<'_>, code: &Code<'_>, at: usize, address: usize, brief: &Brief) {
    let how = match brief.turn() {
        Turn::IndirectCall => How::Call,
        Turn::IndirectJump => How::Jump,
        _ => How::Refer,
    };
    if how != How::Refer || brief.is_load() {
        let form = Form {
            ip: pass.range.start + at,
            how,
            size: 8,
            seen: true,
            turns: how != How::Refer,
            load: how == How::Refer,
            adds: false,
        };
        return pass.read_at(address, &form);
    }
    let near = address.saturating_sub(7)..address.saturating_add(WIDEST);
    if pass.image.slots.has_within(&near) {
        let form = Form::of(&decode(pass, code, at));
        pass.read_at(address, &form);
    }
}

/// Decodes the instruction at an offset with the complete decoder.
fn decode(pass: &Pass<'_>, code: &Code<'_>, at: usize) -> Instruction {
    let ip = (pass.range.start + at) as u64;
    Decoder::with_ip(64, code.from(at), ip, DecoderOptions::NONE).decode()
}

/// What the instructions from an offset on do to addresses in registers. Instructions that do
/// nothing are left out.
struct Motions<'a> {
    code: Code<'a>,
    at: usize,
    /// Includes what is stored on the stack. That matters behind an address that is taken, and
    /// nowhere else: `Moves` looks only at what is loaded from the stack.
    puts: bool,
    brief: Brief,
}

impl Iterator for Motions<'_> {
    type Item = Motion;

    fn next(&mut self) -> Option<Motion> {
        self.at = brief::skip_still(&self.code, self.at, self.puts);
        if !self.brief.read(&self.code, self.at) {
            return None;
        }
        self.at = self.brief.next;
        Some(self.brief.motion())
    }
}

#[cfg(test)]
mod tests;
