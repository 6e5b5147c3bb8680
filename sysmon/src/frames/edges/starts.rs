//! Checks that every branch inside a function leads to an instruction that was read.
//!
//! A branch into the middle of an instruction runs other instructions than those that were read,
//! and they may touch anything. Compilers never emit one. A function with such a branch is
//! therefore unknown.
//!
//! There is one mark for each byte of the function: a branch leads here, an instruction begins
//! here, or both. At the end, a byte with only the branch mark is a target that is no instruction.
//! Each decoder stores one byte for each instruction, which costs little without optimization, and
//! searches the marks once.

/// An instruction begins here.
pub(super) const START: u8 = 1;
/// A branch leads here.
pub(super) const TARGET: u8 = 2;

/// Where a function's instructions begin and its branches lead; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct Starts {
    marks: Vec<u8>,
}

impl Starts {
    /// Returns unmarked bytes for a function of this length.
    pub(super) fn of(&mut self, length: usize) -> &mut [u8] {
        if self.marks.len() < length {
            self.marks = vec![0; length.next_power_of_two()];
        } else {
            self.marks[..length].fill(0);
        }
        &mut self.marks[..length]
    }
}

/// Marks the target of a branch, as an offset into the function.
pub(super) fn lead_to(marks: &mut [u8], target: usize) {
    if target < marks.len() {
        marks[target] |= TARGET;
    }
}

/// Whether a branch of the function leads to this offset, once all are marked.
pub(super) fn is_led_to(marks: &[u8], at: usize) -> bool {
    marks.get(at).is_none_or(|mark| mark & TARGET != 0)
}

/// Whether a branch leads to no instruction, once all are marked.
pub(super) fn are_missed(marks: &[u8]) -> bool {
    marks.contains(&TARGET)
}
