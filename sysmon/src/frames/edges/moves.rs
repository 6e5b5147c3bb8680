//! How far an address of a constant may be from the constant that the function means.
//!
//! An address that is taken is usually the beginning of something. Two kinds of loops over a table
//! make it an end instead: a loop that adds a negative index to the table's end, and a loop that
//! counts a pointer down from the end, or up from one step before the beginning. The compiler makes
//! such loops within one function, so the function shows it: the index is paired with a register
//! that got a negative number somewhere; the pointer is counted.
//!
//! Up to the next branch the register is followed instruction by instruction (for most registers,
//! the next call ends this). Beyond the branch, everything counts that happens anywhere in the
//! function to that register, and to the registers it is copied to for longer than up to the next
//! call. Copies are made by moves, conditional ones too, exchanges and sums. Where the register is
//! stored on the stack before the next branch, every register counts that is loaded from that place
//! and moved before the branch after it.
//!
//! Rejected: counting everything that happens anywhere to a register loaded from the stack, or
//! counting loads from any place. Registers are reused so much that hundreds of functions of a
//! large program become bound.

use super::flow::{ANSWERED, SPOILED};
use super::motion::{Motion, Path, Slot};

/// Size of the largest table entry that a loop steps over.
pub(super) const STRIDE: u32 = 256;

/// How far an address may be from the constant it means, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// How far the address may be behind the constant's end.
    pub(crate) before: u32,
    /// How far the address may be before the constant's beginning.
    pub(crate) after: u32,
}

impl Reach {
    /// Reach of an address that an instruction combines with an index. The compiler may have folded
    /// any offset into it.
    pub(super) const FOLDED: Reach = Reach {
        before: 4 * STRIDE,
        after: 4 * STRIDE,
    };

    /// Reach of such an address when the instruction reads a pointer. The distance is a constant
    /// index of the program times the size of an entry, and everything that near counts. Only in
    /// images with a fixed address.
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
    /// Registers that occur in one address with it.
    partners: [u32; 16],
    counted: [Reach; 16],
    /// Registers it is copied to.
    copies: [u32; 16],
    /// Registers that may hold a negative number.
    negative: u32,
    /// The whole function.
    code: Vec<Motion>,
    /// The result of [`fetches`], computed on first use.
    fetches: Option<Vec<(Slot, u32)>>,
}

impl Moves {
    pub(super) fn read(motions: impl Iterator<Item = Motion>) -> Moves {
        let mut code = Vec::with_capacity(128);
        for motion in motions {
            code.push(motion);
        }
        let mut moves = Moves::default();
        moves.note_all(&code);
        moves.code = code;
        moves
    }

    fn note_all(&mut self, code: &[Motion]) {
        let mut place = 0;
        while place < code.len() {
            self.note(&code[place], &code[place + 1..]);
            place += 1;
        }
        // Until nothing changes: negative numbers are copied and added on.
        let mut before = 0;
        while self.negative != before {
            before = self.negative;
            place = 0;
            while place < code.len() {
                if code[place].into != 0 {
                    self.spread(&code[place]);
                }
                place += 1;
            }
        }
    }

    fn note(&mut self, motion: &Motion, rest: &[Motion]) {
        if motion.base != 0 && motion.index != 0 {
            self.partners[motion.base.trailing_zeros() as usize] |= motion.index;
            self.partners[motion.index.trailing_zeros() as usize] |= motion.base;
        }
        if motion.counted != 0 {
            let counted = &mut self.counted[motion.counted.trailing_zeros() as usize];
            *counted = counted.join(motion.reach);
        }
        // A register that is only passed to a call is no copy: it is used for other things, too.
        let mut to = Registers(motion.copy_to);
        while let Some(register) = to.next() {
            if Fate::within(1 << register, rest).is_open() {
                let mut from = Registers(motion.copy_from);
                while let Some(source) = from.next() {
                    self.copies[source] |= 1 << register;
                }
            }
        }
        self.negative |= motion.negative;
    }

    fn spread(&mut self, motion: &Motion) {
        let from_stack = motion.from_stack && self.negative != 0;
        if from_stack || motion.sources & self.negative != 0 {
            self.negative |= motion.into;
        }
    }

    /// Registers that may hold an address that was in this register. If the register is open, these
    /// are itself and those it is copied to; the registers it is loaded into from the stack count
    /// likewise.
    pub(super) fn holders(&mut self, register: u32, fate: &Fate) -> u32 {
        let mut all = if fate.is_open() { register } else { 0 };
        if !fate.slots.is_empty() {
            let code = &self.code;
            for (slot, fetched) in self.fetches.get_or_insert_with(|| fetches(code)) {
                if fate.slots.contains(slot) {
                    all |= *fetched;
                }
            }
        }
        loop {
            let before = all;
            let mut holders = Registers(all);
            while let Some(register) = holders.next() {
                all |= self.copies[register];
            }
            if all == before {
                return all;
            }
        }
    }

    /// How far an address in these registers may be from the constant that is meant.
    pub(super) fn reach(&self, holders: u32) -> Reach {
        let mut reach = Reach::default();
        let mut holders = Registers(holders);
        while let Some(register) = holders.next() {
            let end_based = self.partners[register] & self.negative != 0;
            let before = if end_based { STRIDE } else { 0 };
            let counted = self.counted[register];
            reach = reach.join(counted).join(Reach { before, after: 0 });
        }
        reach
    }
}

/// Stack slots, with the registers loaded from them and moved before the next branch.
fn fetches(code: &[Motion]) -> Vec<(Slot, u32)> {
    let mut found = Vec::new();
    let mut place = 0;
    while place < code.len() {
        let motion = &code[place];
        place += 1;
        if motion.fetched != 0 && Fate::within(motion.fetched, &code[place..]).moved {
            found.push((motion.slot, motion.fetched));
        }
    }
    found
}

/// Numbers of the registers in a set. Not an iterator, because builds without optimization make
/// iterators slow.
struct Registers(u32);

impl Registers {
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let number = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(number as usize)
    }
}

/// What happens to an address in a register, up to the next branch.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// The register is moved, or copied.
    moved: bool,
    /// A branch comes before its end.
    branch: bool,
    /// Stack slots it is stored in.
    slots: Vec<Slot>,
}

impl Fate {
    /// Follows a register, given as a set, up to the next branch.
    pub(super) fn of(register: u32, rest: impl Iterator<Item = Motion>) -> Fate {
        let mut fate = Fate::default();
        for motion in rest {
            if fate.ends(register, &motion) {
                break;
            }
        }
        fate
    }

    /// Does the same in decoded code, up to the first move.
    fn within(register: u32, rest: &[Motion]) -> Fate {
        let mut fate = Fate::default();
        let mut place = 0;
        while place < rest.len() && !fate.moved && !fate.ends(register, &rest[place]) {
            place += 1;
        }
        fate
    }

    /// Follows a register over one more instruction; returns whether that is the last one.
    fn ends(&mut self, register: u32, motion: &Motion) -> bool {
        self.moved |= motion.indexed && (motion.base | motion.index) & register != 0
            || (motion.counted | motion.copy_from) & register != 0;
        self.branch = motion.path == Path::Other;
        if motion.put & register != 0 {
            self.slots.push(motion.slot);
        }
        match motion.path {
            Path::Kernel => register & ANSWERED != 0,
            Path::Call => register & SPOILED != 0,
            // A register that `lea` adds to itself still holds an address.
            Path::Next => (motion.replaced & !motion.counted | motion.fetched) & register != 0,
            Path::End | Path::Other => true,
        }
    }

    /// Whether nothing moves the address and no copy of it remains.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open() && self.slots.is_empty()
    }

    /// Whether only the whole function shows what happens to the register.
    fn is_open(&self) -> bool {
        self.moved || self.branch
    }
}
