//! Whether every branch inside a function leads to an instruction that was read.
//!
//! A branch into the middle of an instruction runs other instructions than those that were read,
//! and they may touch anything. Compilers never emit one. So the function is unknown then.
//!
//! There is one mark for each byte of the function. The mark of an instruction replaces that of a
//! branch, so a branch whose mark is left in the end leads to no instruction. Each decoder stores
//! one byte for each instruction, which costs little without optimization, and searches them once.

/// An instruction begins here.
pub(super) const START: u8 = 1;
/// A branch leads here, and no instruction was seen to begin here.
pub(super) const TARGET: u8 = 2;

/// Where the instructions of a function begin and its branches lead; keeps its memory.
#[derive(Debug, Default)]
pub(super) struct Starts {
    marks: Vec<u8>,
}

impl Starts {
    /// Unmarked bytes for a function of this length.
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
    if target < marks.len() && marks[target] != START {
        marks[target] = TARGET;
    }
}

/// Whether a branch leads to no instruction, once all are marked.
pub(super) fn are_missed(marks: &[u8]) -> bool {
    marks.contains(&TARGET)
}
