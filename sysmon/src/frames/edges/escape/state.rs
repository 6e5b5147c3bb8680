//! What the registers and the frame of a function hold.

use super::{Colours, RSP};

/// Number of stack places that are followed at once. Further ones count as lost.
const SLOTS: usize = 24;
const WORD: i32 = 8;

/// What registers and frame hold before an instruction. Registers are sets with a bit for each;
/// distances are counted from where the stack pointer was when the function began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// May hold an address of a thread-local that was made here, or returned to here.
    own: u32,
    /// May hold one that the caller gave.
    given: u32,
    /// Must hold an address in the frame, at the distance in `distances`.
    frame: u32,
    /// Must hold what a loader's slot holds; `distances` has the slot's distance from the code.
    loaded: u32,
    distances: [i32; 16],
    /// May hold an address in the frame, at any distance.
    near: u32,
    /// Words of the frame that may hold an address of a thread-local.
    slots: [(i32, Colours); SLOTS],
    used: usize,
}

impl State {
    /// The state at the beginning of a function. `given` are the registers that may hold a given
    /// address.
    pub(super) fn at_entry(given: u32) -> State {
        State {
            own: 0,
            given,
            frame: RSP,
            loaded: 0,
            distances: [0; 16],
            near: 0,
            slots: [(0, Colours::NONE); SLOTS],
            used: 0,
        }
    }

    /// What any of the registers may hold.
    pub(super) fn colours(&self, registers: u32) -> Colours {
        let own = if self.own & registers != 0 {
            Colours::OWN
        } else {
            Colours::NONE
        };
        match self.given & registers {
            0 => own,
            _ => own.with(Colours::GIVEN),
        }
    }

    /// What registers and frame may hold together.
    pub(super) fn all(&self) -> Colours {
        self.colours(!0).with(self.somewhere())
    }

    pub(super) fn clear(&mut self, registers: u32) {
        self.own &= !registers;
        self.given &= !registers;
        self.frame &= !registers;
        self.loaded &= !registers;
        self.near &= !registers;
    }

    pub(super) fn add(&mut self, registers: u32, colours: Colours) {
        if colours.has(Colours::OWN) {
            self.own |= registers;
        }
        if colours.has(Colours::GIVEN) {
            self.given |= registers;
        }
    }

    pub(super) fn copy(&mut self, to: u32, from: u32) {
        let before = *self;
        self.clear(to);
        if from == 0 {
            return;
        }
        self.add(to, before.colours(from));
        if before.near & from != 0 {
            self.near |= to;
        }
        if let Some(distance) = before.distance(from) {
            self.set_distance(to, distance);
        }
        if let Some(slot) = before.slot(from) {
            self.set_slot(to, slot);
        }
    }

    /// The slot that a register was loaded from, if that is certain.
    pub(super) fn slot(&self, register: u32) -> Option<i32> {
        let known = register != 0 && self.loaded & register != 0;
        known.then(|| self.distances[register.trailing_zeros() as usize])
    }

    /// Records that a register is loaded from a slot.
    pub(super) fn set_slot(&mut self, register: u32, slot: i32) {
        if register != 0 {
            self.clear(register);
            self.loaded |= register;
            self.distances[register.trailing_zeros() as usize] = slot;
        }
    }

    /// Records that registers hold something else, at least in part.
    pub(super) fn forget_slots(&mut self, registers: u32) {
        self.loaded &= !registers;
    }

    /// Where in the frame a register points to, if that is certain.
    pub(super) fn distance(&self, register: u32) -> Option<i32> {
        let known = register != 0 && self.frame & register != 0;
        known.then(|| self.distances[register.trailing_zeros() as usize])
    }

    pub(super) fn set_distance(&mut self, register: u32, distance: i32) {
        if register != 0 {
            self.clear(register);
            self.frame |= register;
            self.distances[register.trailing_zeros() as usize] = distance;
        }
    }

    /// Those of the registers that must point into the frame.
    pub(super) fn in_frame(&self, registers: u32) -> u32 {
        self.frame & registers
    }

    /// Whether any of the registers may point into the frame.
    pub(super) fn is_near(&self, registers: u32) -> bool {
        (self.frame | self.near) & registers != 0
    }

    pub(super) fn set_near(&mut self, registers: u32) {
        self.frame &= !registers;
        self.near |= registers;
    }

    fn kept(&self) -> &[(i32, Colours)] {
        &self.slots[..self.used]
    }

    /// What the words of the frame may hold together.
    pub(super) fn somewhere(&self) -> Colours {
        let kept = self.kept().iter();
        kept.fold(Colours::NONE, |all, slot| all.with(slot.1))
    }

    /// What words of the frame from `start` to `end` may hold.
    pub(super) fn between(&self, start: i32, end: i32) -> Colours {
        let inside = |slot: &&(i32, Colours)| slot.0 < end && slot.0 + WORD > start;
        let kept = self.kept().iter().filter(inside);
        kept.fold(Colours::NONE, |all, slot| all.with(slot.1))
    }

    /// Stores something into the frame; false if there is no room to remember it.
    pub(super) fn put(&mut self, start: i32, size: i32, colours: Colours) -> bool {
        let end = start.saturating_add(size);
        if colours != Colours::NONE && size != WORD {
            return false;
        }
        let mut place = 0;
        while place < self.used {
            let at = self.slots[place].0;
            if at >= start && at + WORD <= end {
                self.used -= 1;
                self.slots[place] = self.slots[self.used];
                self.slots[self.used] = (0, Colours::NONE);
            } else {
                place += 1;
            }
        }
        colours == Colours::NONE || self.keep((start, colours))
    }

    fn keep(&mut self, slot: (i32, Colours)) -> bool {
        let used = self.used;
        if let Some(known) = self.slots[..used].iter_mut().find(|s| s.0 == slot.0) {
            known.1 = known.1.with(slot.1);
            return true;
        }
        if used == SLOTS {
            return false;
        }
        self.slots[used] = slot;
        self.used += 1;
        self.slots[..self.used].sort_unstable_by_key(|slot| slot.0);
        true
    }

    /// Joins another state into this one. Returns whether that changed anything, and whether all of
    /// it could be remembered.
    pub(super) fn join(&mut self, other: &State) -> (bool, bool) {
        let before = *self;
        self.own |= other.own;
        self.given |= other.given;
        let mut same = !0;
        for register in 0..16 {
            if self.distances[register] != other.distances[register] {
                same &= !(1 << register);
            }
        }
        let frame = self.frame & other.frame & same;
        self.loaded &= other.loaded & same;
        self.near |= other.near | (self.frame | other.frame) & !frame;
        self.frame = frame;
        for register in 0..16 {
            if (frame | self.loaded) >> register & 1 == 0 {
                self.distances[register] = 0;
            }
        }
        let mut room = true;
        for &slot in other.kept() {
            room &= self.keep(slot);
        }
        (*self != before, room)
    }
}
