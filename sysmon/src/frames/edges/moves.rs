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
//! it is copied to for longer than up to the next call. Copies are made by moves, conditional ones
//! too, exchanges and sums. Where the register is put on the stack before the next branch, every
//! register counts that is fetched from that place and moved before the branch after it.
//!
//! Rejected: counting whatever happens anywhere to a fetched register, or fetches from any place.
//! Registers are reused so much that hundreds of functions of a large program become bound.

use super::flow::{ANSWERED, SPOILED};
use super::motion::{Motion, Path, Slot};

/// The largest entry of a table that a loop steps over.
pub(super) const STRIDE: u32 = 256;

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
    /// All of the function.
    code: Vec<Motion>,
    /// See [`fetches`], once that was asked.
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
        // What is only handed to a call is no copy: its register is used for other things, too.
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

    /// Registers that may hold an address that is in a register: if that one is open, itself and
    /// those it is copied to; those it is fetched into again, likewise.
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

    /// How far an address in these registers may be from what is meant.
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

/// Places on the stack, and registers that are fetched from there and moved before the next branch.
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

/// The numbers of the registers in a set. No iterator, for the sake of builds without optimization.
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

/// What becomes of a register with an address, as far as the next branch tells.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// It is moved, or copied.
    moved: bool,
    /// A branch comes before its end.
    branch: bool,
    /// Places on the stack it is put into.
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

    /// The same in code that is at hand, up to the first move.
    fn within(register: u32, rest: &[Motion]) -> Fate {
        let mut fate = Fate::default();
        let mut place = 0;
        while place < rest.len() && !fate.moved && !fate.ends(register, &rest[place]) {
            place += 1;
        }
        fate
    }

    /// Follows a register over one more instruction; whether that is the last one.
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
            // What `lea` adds to itself is still an address.
            Path::Next => (motion.replaced & !motion.counted | motion.fetched) & register != 0,
            Path::End | Path::Other => true,
        }
    }

    /// Nothing moves it, and it is nowhere else.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open() && self.slots.is_empty()
    }

    /// The whole function says what becomes of the register.
    fn is_open(&self) -> bool {
        self.moved || self.branch
    }
}
