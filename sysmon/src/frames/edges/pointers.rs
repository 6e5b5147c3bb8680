//! Whether a call goes through a pointer that may have been written anywhere.
//!
//! A slot that the loader filled in is no such pointer, and what is read from one counts as an edge
//! already. Without optimization compilers load a slot into a register, compute arguments, and call
//! the register. So a call of a register is no pointer call if three conditions hold: the last
//! instruction that loaded the register loaded a slot, only a few simple moves come after it, and
//! no branch leads in between.
//!
//! The function by which a thread-local is found (its *accessor*) is called through a pointer, in a
//! constant that is private to std. As long as the address of that constant is only passed to std's
//! functions for thread-locals, nothing else calls the accessor.

use std::ops::Range;

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::brief::{Brief, Code};
use super::{
    How, Into, Pass, Reader, Touch, bit, has_memory, has_near_target, is_writable, starts,
};
use crate::frames::harmless::paths;
use crate::frames::image::{Image, Target, symbols};

/// A call of a register, or a jump to one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indirect {
    /// Where the call is, as an offset into the function.
    pub(super) at: usize,
    /// Where the register was last loaded from a fixed place, if it was.
    pub(super) load: Option<usize>,
    pub(super) register: u8,
}

impl Indirect {
    /// Finds the constant slot that the call goes through, if there is one. All branches are
    /// marked, and the code begins at `start`.
    fn slot(&self, image: &Image, start: usize, code: &Code<'_>, marks: &[u8]) -> Option<usize> {
        let mut brief = Brief::default();
        let loads =
            |brief: &Brief| brief.is_load() && brief.relative && brief.register() == self.register;
        if !brief.read(code, self.load?) || !loads(&brief) {
            return None;
        }
        let next = start + brief.next;
        let slot = next.wrapping_add_signed(brief.displacement as isize);
        if is_writable(image, slot) {
            return None;
        }
        let mut at = brief.next;
        while at < self.at {
            let simple = brief.read(code, at) && brief.is_move_beside(self.register);
            if !simple || starts::is_led_to(marks, at) {
                return None;
            }
            at = brief.next;
        }
        (at == self.at && !starts::is_led_to(marks, at)).then_some(slot)
    }
}

impl Pass<'_> {
    /// Notes an indirect call or jump, given the instructions before it.
    pub(super) fn indirect_call(&mut self, instruction: &Instruction, before: &[Instruction]) {
        if has_memory(instruction) {
            let slot = instruction.ip_rel_memory_address() as usize;
            let fixed = instruction.is_ip_rel_memory_operand() && !is_writable(self.image, slot);
            if !fixed {
                let at = instruction.ip() as usize - self.range.start;
                self.facts.pointers.add(at);
            }
            return;
        }
        let register = instruction.op0_register();
        if is_by_table(instruction, before.last()) {
            return;
        }
        let loads = |i: &&Instruction| {
            i.code() == Opcode::Mov_r64_rm64
                && i.is_ip_rel_memory_operand()
                && i.op0_register() == register
        };
        let load = before.iter().rev().find(loads);
        self.indirect.push(Indirect {
            at: instruction.ip() as usize - self.range.start,
            load: load.map(|i| i.ip() as usize - self.range.start),
            register: bit(register).trailing_zeros() as u8,
        });
    }

    /// Notes whether any of the calls goes through a pointer, once all branches are marked. A
    /// function that is loaded from a slot only to be called counts as called, not as referred to.
    pub(super) fn note_indirect(&mut self, code: &Code<'_>) {
        let (image, start) = (self.image, self.range.start);
        for call in &self.indirect {
            let Some(slot) = call.slot(image, start, code, self.marks) else {
                self.facts.pointers.add(call.at);
                continue;
            };
            if let Some(Target::Code(target)) = image.pointer(slot) {
                let mut edges = self.facts.code.iter_mut();
                if let Some(edge) = edges.find(|edge| **edge == (target, How::Refer)) {
                    edge.1 = How::Call;
                }
            }
        }
    }

    /// Marks the constants that are only passed to std's functions for thread-locals. The next call
    /// behind the instruction that takes the address is one of those, and the address is an
    /// argument.
    pub(super) fn note_given(&mut self) {
        for (taken, found) in self.taken.iter().zip(&mut self.facts.constants) {
            // It is the second argument if the first one says where to put the result.
            if let Into::Register(register @ (Register::RDI | Register::RSI)) = taken.into
                && let Some(Target::Code(_)) = self.image.pointer(taken.address)
            {
                found.given = is_given_to_std(self.image, taken.end..self.range.end, register);
            }
        }
    }
}

impl Reader {
    /// Whether the function just read is std's and found its thread-local without a pointer call.
    ///
    /// That is one of std's functions for keys; then it is treated like any other function. The
    /// other functions of std for keys call the pointer in the key before anything else, or call
    /// another one of them.
    pub(crate) fn knows_variable(&self, image: &Image, index: u32) -> bool {
        let start = image.functions[index as usize].range.start;
        let variable = |touch: &(usize, Touch)| matches!(touch.1, Touch::Variable(_));
        self.facts.touches.iter().any(variable)
            && image.symbols.are_all(start, is_of_key)
            && !self.begins_with_pointer(image, index)
    }

    /// Whether the function just read calls a pointer before anything else.
    fn begins_with_pointer(&self, image: &Image, index: u32) -> bool {
        let Some(first) = self.facts.pointers.first else {
            return false;
        };
        let range = image.functions[index as usize].range.clone();
        let bytes = image.memory.bytes(range.clone()).unwrap_or_default();
        let decoder = Decoder::with_ip(64, bytes, range.start as u64, DecoderOptions::NONE);
        let mut turns = decoder
            .into_iter()
            .filter(|i| i.flow_control() != FlowControl::Next);
        turns.next().is_some_and(|turn| {
            turn.flow_control() == FlowControl::IndirectCall
                && turn.ip() as usize == range.start.wrapping_add(first)
        })
    }
}

/// Whether a jump goes through a table of distances. A distance was added to the table's address
/// just before.
pub(super) fn is_by_table(jump: &Instruction, before: Option<&Instruction>) -> bool {
    jump.flow_control() == FlowControl::IndirectBranch
        && jump.op0_kind() == OpKind::Register
        && before.is_some_and(|before| {
            before.mnemonic() == Mnemonic::Add && before.op0_register() == jump.op0_register()
        })
}

/// Whether a mangled name is one of std's functions for thread-locals. Traits of other crates for
/// keys are not.
pub(crate) fn is_of_key(name: &str) -> bool {
    const KEY: &str = "std::thread::local::LocalKey::";
    name.contains("LocalKey") && paths::path(&symbols::plain(name)).starts_with(KEY)
}

/// Whether code begins with a call of std's functions for thread-locals. The value that was in a
/// register before the code is an argument of the call.
fn is_given_to_std(image: &Image, code: Range<usize>, register: Register) -> bool {
    /// Number of instructions that are looked at.
    const MOST: usize = 8;
    let bytes = image.memory.bytes(code.clone()).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, bytes, code.start as u64, DecoderOptions::NONE);
    let of_key = |target: usize| image.symbols.are_all(target, is_of_key);
    let mut loaded = None;
    for _ in 0..MOST {
        let instruction = decoder.decode();
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch if has_near_target(&instruction) => {
                let target = instruction.near_branch_target() as usize;
                if !code.contains(&target) {
                    return of_key(target);
                }
                // Branches back are not followed: there are few.
                if decoder.set_position(target - code.start).is_err() {
                    return false;
                }
                decoder.set_ip(target as u64);
                continue;
            }
            FlowControl::Call if has_near_target(&instruction) => {
                return of_key(instruction.near_branch_target() as usize);
            }
            FlowControl::IndirectCall => {
                let slot = match loaded {
                    _ if instruction.is_ip_rel_memory_operand() => {
                        instruction.ip_rel_memory_address() as usize
                    }
                    Some((into, slot)) if into == instruction.op0_register() => slot,
                    _ => return false,
                };
                let function = image.pointer(slot).filter(|_| !is_writable(image, slot));
                return matches!(function, Some(Target::Code(target)) if of_key(target));
            }
            FlowControl::Next => {}
            _ => return false,
        }
        let names = |register: Register| {
            (0..instruction.op_count()).any(|operand| {
                instruction.op_kind(operand) == OpKind::Register
                    && instruction.op_register(operand).full_register() == register
            })
        };
        if names(register) {
            return false;
        }
        if loaded.is_some_and(|(into, _)| names(into)) {
            loaded = None;
        }
        let slot = instruction.ip_rel_memory_address() as usize;
        if instruction.code() == Opcode::Mov_r64_rm64
            && instruction.is_ip_rel_memory_operand()
            && !is_writable(image, slot)
        {
            loaded = Some((instruction.op0_register(), slot));
        }
    }
    false
}
