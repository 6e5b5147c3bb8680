#![expect(
    unsafe_code,
    reason = "intrusive links: entries are known by pointer while they are in"
)]
//! The timing wheel: deadlines in order, as plain data. No clock, no lock, no allocation.
//!
//! Time is a number of *ticks*; what a tick is, and that deadlines are rounded up to one, is the
//! caller's business. The *hand* is the tick the wheel has come to. Write ticks in base `SLOTS`: an
//! entry lies at the *level* of the highest digit in which its tick differs from the hand, in the
//! *slot* that this digit of its tick names. When the hand reaches a slot of level 0, its entries
//! are due; when it reaches one of a higher level, its entries are *spread*: they now agree with
//! the hand in that digit too, so each moves to a lower level.
//!
//! ```text
//!   hand      3  17  40     the digits of levels 2, 1, 0
//!   entry     3  17  52     level 0, slot 52: exact
//!   entry     3  20   5     level 1, slot 20: spread when the hand comes to 3 20 0
//!   entry     9   0  61     level 2, slot 9
//! ```
//!
//! Invariants:
//! - **W1** From `insert` until it is unlinked (it fires, or `remove`), an entry stays alive and in
//!   place, and its links are touched by its wheel alone. The holder of the lock around
//!   the wheel therefore owns the links of all entries in it.
//! - **W2** An entry's tick is its deadline, or the hand if that was later when it was inserted.
//!   Its place is the one above, except while its slot is being spread: then it may still be in
//!   there.
//! - **W3** A slot has a bit in its level's word if and only if it has entries.
//!
//! What follows from W2:
//! - Entries of a lower level come before all of a higher one: they share with the hand the digit
//!   in which the others are ahead of it. So the earliest entry is in the lowest occupied slot of
//!   the lowest occupied level, nothing ever wraps around, and finding it is a few words to read.
//! - The place depends on hand and tick alone, so entries of one tick are always in one slot, and
//!   spreading keeps their order. **They fire by tick, and in order of insertion within a tick.**
//!   One that is late when inserted counts as of the hand's tick: it fires behind those of that
//!   tick that are already in and before all later ones.
//! - The hand may jump to any tick before the next occupied slot without a look at what is between.
//!
//! Cost: insertion is a xor, a count of leading zeros and the link of one neighbour, removal those
//! of two. Every move takes an entry to a lower level, so it moves at most as often as the number
//! of the level it came in at, however far time jumps: five times for the usual deadline, since
//! with ticks of a millisecond level 6 begins two years ahead. Timeouts that are removed long
//! before they are due hardly move at all. A slot may hold any number of entries, so spreading one
//! at once could keep the lock for milliseconds: [`step`] fires one entry or moves one, and the
//! lock may be released after each. What is due waits meanwhile, as it must for the order to hold;
//! new entries that belong into the slot being spread queue up in it.
//!
//! Rejected:
//! - A binary heap or a search tree: O(log n) cache misses for each of insertion and removal, and
//!   memory that grows under a lock.
//! - One level of hashed slots: each entry is looked at once per turn of the wheel, and the
//!   earliest can only be found by looking at all.
//! - Fewer levels and a horizon beyond which entries are parked at the edge: a case of its own in
//!   every operation, entries that come round again and again, for a few kilobytes per worker. With
//!   `LEVELS` as it is every tick has a place, and unused rows are not touched.
//! - Never spreading, and firing a whole slot of a high level at once: deadlines off by up to a
//!   64th of their distance.
//!
//! [`step`]: Wheel::step

use std::cell::Cell;
use std::marker::PhantomPinned;
use std::ops::Deref;
use std::ptr::NonNull;

/// Bits of a digit: the slots of a level are the bits of one word.
const DIGIT: u32 = u64::BITS.ilog2();
const SLOTS: usize = 1 << DIGIT;
/// The number of digits of the largest tick.
const LEVELS: usize = u64::BITS.div_ceil(DIGIT) as usize;

/// A deadline and its payload, in memory that the wheel does not own.
pub(crate) struct Entry<T> {
    when: u64,
    payload: T,
    prev: Cell<Option<Link<T>>>,
    next: Cell<Option<Link<T>>>,
    /// Where it is linked, if it is.
    place: Cell<Option<Place>>,
    _in_place: PhantomPinned,
}

impl<T> Entry<T> {
    pub(crate) const fn new(when: u64, payload: T) -> Self {
        Entry {
            when,
            payload,
            prev: Cell::new(None),
            next: Cell::new(None),
            place: Cell::new(None),
            _in_place: PhantomPinned,
        }
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        let place = self.place.get();
        debug_assert!(
            place.is_none(),
            "W1: an entry for tick {} dies at {place:?}; remove it first",
            self.when
        );
    }
}

/// A pointer to an entry that is linked, or was when the call that holds it began: made by
/// `insert`, and gone from the wheel before the entry is out of it.
struct Link<T>(NonNull<Entry<T>>);

impl<T> Clone for Link<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Link<T> {}

impl<T> Deref for Link<T> {
    type Target = Entry<T>;

    fn deref(&self) -> &Entry<T> {
        // SAFETY: W1: alive and in place while linked, and to the end of the call that unlinks it,
        // since its owner learns of that only afterwards. There is no `&mut` to it in that time,
        // and what changes is in cells.
        unsafe { self.0.as_ref() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    level: u8,
    slot: u8,
}

impl Place {
    /// The slot that `tick`'s digit at this level names.
    fn of(tick: u64, level: u8) -> Place {
        let slot = tick >> (DIGIT * u32::from(level)) & (SLOTS as u64 - 1);
        Place {
            level,
            slot: slot as u8, // a digit
        }
    }
}

/// The entries of a slot, first in, first out.
struct Slot<T> {
    head: Option<Link<T>>,
    tail: Option<Link<T>>,
}

impl<T> Slot<T> {
    const EMPTY: Self = Slot {
        head: None,
        tail: None,
    };
}

/// What one [`Wheel::step`] did.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// This entry was due. It is out of the wheel.
    Fired(T),
    /// An entry moved to a lower level. There may be more to do at once.
    Moved,
    /// Nothing is due.
    Nothing,
}

/// Deadlines in order; see the module.
pub(crate) struct Wheel<T> {
    /// No entry's tick is before it. It never goes back.
    hand: u64,
    /// The level whose slot at the hand is being spread; zero if none is.
    spreading: u8,
    len: usize,
    /// One bit per slot (W3).
    occupied: [u64; LEVELS],
    slots: [[Slot<T>; SLOTS]; LEVELS],
}

// SAFETY: W1: the wheel owns the links of the entries in it, wherever they lie, and hands out their
// payloads, which are `Send`. Entries are never handed out.
unsafe impl<T: Send> Send for Wheel<T> {}

impl<T: Copy> Wheel<T> {
    pub(crate) const fn new(now: u64) -> Self {
        Wheel {
            hand: now,
            spreading: 0,
            len: 0,
            occupied: [0; LEVELS],
            slots: [const { [const { Slot::EMPTY }; SLOTS] }; LEVELS],
        }
    }

    /// Entries that have neither fired nor been removed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts an entry. An entry that is late already is due at the next [`step`](Wheel::step).
    ///
    /// # Safety
    /// W1: until `entry` has fired or has been removed, it neither moves nor dies, there is no
    /// `&mut` to it, and it is in no other wheel. Its owner learns that it fired from `remove`, or
    /// from something that happens after the `step` that returned it, such as the wake it led to.
    #[cfg(test)]
    pub(crate) unsafe fn insert(&mut self, entry: &Entry<T>) {
        self.link(Link(NonNull::from(entry)));
    }

    /// As [`insert`](Wheel::insert); the pointer comes back when the entry fires.
    fn link(&mut self, entry: Link<T>) {
        debug_assert!(
            entry.place.get().is_none(),
            "W1: an entry for tick {} is inserted twice",
            entry.when
        );
        let tick = self.tick(&entry);
        // What would go below the slot being spread belongs into it, and goes to its end.
        let level = self.level(tick).max(self.spreading);
        self.push(Place::of(tick, level), entry);
        self.len += 1;
    }

    /// Removes an entry; false if it had fired, or was never in.
    ///
    /// # Safety
    /// `entry` is in this wheel or in none.
    pub(crate) unsafe fn remove(&mut self, entry: &Entry<T>) -> bool {
        let Some(place) = entry.place.get() else {
            return false;
        };
        self.unlink(place, entry);
        self.len -= 1;
        true
    }

    /// Fires or moves one entry that is due at `now`, in the order that the header gives.
    ///
    /// A `now` before the hand counts as the hand: time does not go back.
    ///
    /// Everything due has fired when it returns [`Step::Nothing`]. Between calls the wheel may be
    /// unlocked, and used in any way.
    #[cfg(test)]
    pub(crate) fn step(&mut self, now: u64) -> Step<T> {
        match self.advance(now) {
            Step::Fired(entry) => Step::Fired(entry.payload),
            Step::Moved => Step::Moved,
            Step::Nothing => Step::Nothing,
        }
    }

    /// As [`step`](Wheel::step), with the entry itself.
    fn advance(&mut self, now: u64) -> Step<Link<T>> {
        if self.spreading == 0 {
            let now = now.max(self.hand);
            match self.first() {
                Some((place, start)) if start <= now => {
                    self.hand = start;
                    self.spreading = place.level;
                }
                _ => {
                    self.hand = now;
                    return Step::Nothing;
                }
            }
        }
        let place = Place::of(self.hand, self.spreading);
        let entry = self
            .slot(place)
            .head
            .expect("W3: a slot that counts as occupied has an entry");
        self.unlink(place, &entry);
        if place.level == 0 {
            self.len -= 1;
            return Step::Fired(entry);
        }
        let tick = self.tick(&entry);
        self.push(Place::of(tick, self.level(tick)), entry);
        Step::Moved
    }

    /// The next tick at which there is something to do; `None` if the wheel is empty.
    ///
    /// It is not after the tick of the earliest entry.
    ///
    /// If all that is due has fired, it is the earliest entry's own tick, provided that this entry
    /// is at level 0 or has fewer than `look` others in its slot. Else it is where its slot begins:
    /// a thread that sleeps until then spreads the slot, and calls this again. Looks at no more
    /// than `look` entries.
    pub(crate) fn next(&self, look: usize) -> Option<u64> {
        if self.spreading != 0 {
            return Some(self.hand);
        }
        let (place, start) = self.first()?;
        if place.level == 0 {
            return Some(start);
        }
        let mut earliest = u64::MAX;
        let mut rest = self.slot(place).head;
        for _ in 0..look {
            let Some(entry) = rest else { break };
            earliest = earliest.min(entry.when); // not late: those are at level 0 or being spread
            rest = entry.next.get();
        }
        Some(if rest.is_none() { earliest } else { start })
    }

    /// The occupied slot that comes first, and the tick at which it begins.
    fn first(&self) -> Option<(Place, u64)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = DIGIT * level as u32;
        let above = self.hand >> shift & !(SLOTS as u64 - 1);
        let place = Place {
            level: level as u8, // below LEVELS
            slot: slot as u8,   // below SLOTS
        };
        Some((place, (above | u64::from(slot)) << shift))
    }

    /// The tick at which an entry fires (W2).
    fn tick(&self, entry: &Entry<T>) -> u64 {
        entry.when.max(self.hand)
    }

    /// The level of the highest digit in which `tick` differs from the hand, or 0.
    fn level(&self, tick: u64) -> u8 {
        let differing = (tick ^ self.hand) | 1;
        (differing.ilog2() / DIGIT) as u8 // below LEVELS
    }

    fn slot(&self, place: Place) -> &Slot<T> {
        &self.slots[usize::from(place.level)][usize::from(place.slot)]
    }

    fn push(&mut self, place: Place, entry: Link<T>) {
        let (level, slot) = (usize::from(place.level), usize::from(place.slot));
        self.occupied[level] |= 1 << slot;
        let slot = &mut self.slots[level][slot];
        entry.place.set(Some(place));
        entry.next.set(None);
        entry.prev.set(slot.tail);
        match slot.tail {
            Some(tail) => tail.next.set(Some(entry)),
            None => slot.head = Some(entry),
        }
        slot.tail = Some(entry);
    }

    /// Takes `entry` out of its slot, which is at `place`.
    fn unlink(&mut self, place: Place, entry: &Entry<T>) {
        let (level, number) = (usize::from(place.level), usize::from(place.slot));
        let slot = &mut self.slots[level][number];
        let (prev, next) = (entry.prev.get(), entry.next.get());
        match prev {
            Some(prev) => prev.next.set(next),
            None => slot.head = next,
        }
        match next {
            Some(next) => next.prev.set(prev),
            None => slot.tail = prev,
        }
        entry.place.set(None);
        if slot.head.is_none() {
            self.occupied[level] &= !(1 << number);
            if place == Place::of(self.hand, self.spreading) {
                self.spreading = 0;
            }
        }
    }
}

mod arena;
#[cfg(test)]
mod tests;

pub(crate) use arena::{Arena, Chunk, Key};
