//! What the registers of a function hold.

use iced_x86::Register;

use crate::frames::edges::bit;

/// What registers hold before an instruction; a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// May hold the thread pointer.
    pub(super) pointer: u32,
    /// May hold the address of errno.
    pub(super) errno: u32,
    /// May hold `__errno_location`.
    pub(super) teller: u32,
    /// May hold libc's `syscall`.
    pub(super) gate: u32,
    /// Must hold the number in `numbers`.
    pub(super) known: u32,
    pub(super) numbers: [i32; 16],
}

impl State {
    /// Forgets what the registers hold.
    pub(super) fn clear(&mut self, registers: u32) {
        self.pointer &= !registers;
        self.errno &= !registers;
        self.teller &= !registers;
        self.gate &= !registers;
        self.known &= !registers;
    }

    pub(super) fn number(&self, register: Register) -> Option<i64> {
        let bit = bit(register);
        let known = bit != 0 && self.known & bit != 0;
        known.then(|| i64::from(self.numbers[bit.trailing_zeros() as usize]))
    }

    pub(super) fn set_number(&mut self, register: Register, number: i64) {
        let bit = bit(register);
        self.clear(bit);
        if let Ok(number) = i32::try_from(number)
            && bit != 0
        {
            self.known |= bit;
            self.numbers[bit.trailing_zeros() as usize] = number;
        }
    }

    pub(super) fn copy(&mut self, to: Register, from: Register) {
        let (to, from) = (bit(to), bit(from));
        let before = *self;
        self.clear(to);
        if to == 0 || from == 0 {
            return;
        }
        let moved = |set: u32| if set & from != 0 { to } else { 0 };
        self.pointer |= moved(before.pointer);
        self.errno |= moved(before.errno);
        self.teller |= moved(before.teller);
        self.gate |= moved(before.gate);
        self.known |= moved(before.known);
        self.numbers[to.trailing_zeros() as usize] = before.numbers[from.trailing_zeros() as usize];
    }

    /// Joins another state into this one; returns whether that changed anything.
    pub(super) fn join(&mut self, other: &State) -> bool {
        let before = *self;
        self.pointer |= other.pointer;
        self.errno |= other.errno;
        self.teller |= other.teller;
        self.gate |= other.gate;
        let both = self.known & other.known;
        self.known = (0..16)
            .filter(|&i| both >> i & 1 == 1 && self.numbers[i] == other.numbers[i])
            .fold(0, |set, i| set | 1 << i);
        *self != before
    }
}
