//! A wheel that keeps its entries itself, packed.
//!
//! Entries on the stacks of the waiting fibers would need no memory of their own. But every stack
//! is a page far from the next: moving the entries of one slot would then miss the caches, and
//! those of the page tables, once per entry, and what is due would wait for that.
//!
//! **W4** An entry of the arena is in its wheel or in the free list. A [`Key`] names an entry and
//! stays after it fired. The payload distinguishes it from a later use of the same memory, so the
//! caller promises that no two payloads are equal while a key to one of them is kept.

use std::ptr::NonNull;

use super::{Entry, Link, Step, Wheel};

/// Entries made at a time.
const CHUNK: usize = 128;

/// A wheel and the memory of its entries.
pub(crate) struct Arena<T> {
    wheel: Wheel<T>,
    /// Linked by `next`.
    free: Option<Link<T>>,
    chunks: Option<Box<Chunk<T>>>,
}

// SAFETY: W1 and W4: it owns its entries, and payloads are `Send`.
unsafe impl<T: Send> Send for Arena<T> {}

/// Memory for more entries, allocated without the lock. The chunks of an arena form a list.
pub(crate) struct Chunk<T> {
    entries: NonNull<[Entry<T>]>,
    next: Option<Box<Chunk<T>>>,
}

// SAFETY: it owns its entries.
unsafe impl<T: Send> Send for Chunk<T> {}

impl<T: Copy> Chunk<T> {
    /// Allocates a chunk. `filler` is any payload; it is never read.
    pub(crate) fn new(filler: T) -> Box<Self> {
        let entries: Box<[_]> = (0..CHUNK).map(|_| Entry::new(0, filler)).collect();
        Box::new(Chunk {
            entries: NonNull::from(Box::leak(entries)),
            next: None,
        })
    }
}

impl<T> Drop for Chunk<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, once; no key is used after the arena.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
    }
}

/// Names an entry of an arena.
pub(crate) struct Key<T>(NonNull<Entry<T>>);

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T: Copy + PartialEq> Arena<T> {
    pub(crate) fn new(now: u64) -> Self {
        Arena {
            wheel: Wheel::new(now),
            free: None,
            chunks: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// See [`Wheel::next`].
    pub(crate) fn next(&self, look: usize) -> Option<u64> {
        self.wheel.next(look)
    }

    /// True if the next insertion needs a chunk first.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_none()
    }

    pub(crate) fn add(&mut self, mut chunk: Box<Chunk<T>>) {
        let entries = chunk.entries;
        chunk.next = self.chunks.take();
        self.chunks = Some(chunk);
        let first: NonNull<Entry<T>> = entries.cast();
        for i in (0..entries.len()).rev() {
            // SAFETY: within the chunk.
            self.put(unsafe { first.add(i) });
        }
    }

    fn put(&mut self, entry: NonNull<Entry<T>>) {
        let link = Link(entry);
        link.next.set(self.free);
        self.free = Some(link);
    }

    /// Inserts a deadline.
    ///
    /// # Panics
    /// If it [is full](Self::is_full).
    pub(crate) fn insert(&mut self, when: u64, payload: T) -> Key<T> {
        let Link(entry) = self.free.expect("the caller adds a chunk first");
        self.free = Link(entry).next.get();
        // SAFETY: W4: it was free, so there is no other reference to it.
        unsafe { entry.write(Entry::new(when, payload)) };
        // It stays in its chunk until it fired or is removed, in this wheel alone (W1).
        self.wheel.link(Link(entry));
        Key(entry)
    }

    /// Removes the deadline with this payload; false if it has fired.
    pub(crate) fn remove(&mut self, key: Key<T>, payload: T) -> bool {
        // SAFETY: keys are of this arena, whose chunks stay.
        let entry = unsafe { key.0.as_ref() };
        // SAFETY: in this wheel or in none.
        let there = entry.payload == payload && unsafe { self.wheel.remove(entry) };
        if there {
            self.put(key.0);
        }
        there
    }

    /// See [`Wheel::step`].
    pub(crate) fn step(&mut self, now: u64) -> Step<T> {
        match self.wheel.advance(now) {
            Step::Fired(Link(entry)) => {
                let payload = Link(entry).payload;
                self.put(entry);
                Step::Fired(payload)
            }
            Step::Moved => Step::Moved,
            Step::Nothing => Step::Nothing,
        }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        // One after the other: a long list would nest deeply.
        let mut next = self.chunks.take();
        while let Some(mut chunk) = next {
            next = chunk.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn fire(arena: &mut Arena<u32>, now: u64) -> Vec<u32> {
        let mut fired = Vec::new();
        loop {
            match arena.step(now) {
                Step::Fired(payload) => fired.push(payload),
                Step::Moved => {}
                Step::Nothing => return fired,
            }
        }
    }

    fn insert(arena: &mut Arena<u32>, when: u64, payload: u32) -> Key<u32> {
        if arena.is_full() {
            arena.add(Chunk::new(0));
        }
        arena.insert(when, payload)
    }

    #[test]
    fn a_key_of_a_deadline_that_fired_removes_nothing_even_if_its_place_is_used_again() {
        let mut arena = Arena::new(0);
        let first = insert(&mut arena, 5, 1);
        assert_eq!(fire(&mut arena, 5), [1]);
        let second = insert(&mut arena, 9, 2);
        assert_eq!(first.0, second.0, "the same place");
        assert!(!arena.remove(first, 1));
        assert_eq!(arena.len(), 1);
        assert!(arena.remove(second, 2));
        assert!(!arena.remove(second, 2));
        assert_eq!((arena.len(), arena.next(1)), (0, None));
    }

    #[test]
    fn deadlines_that_come_and_go_fire_as_a_map_says() {
        let mut arena = Arena::new(0);
        let mut model: BTreeMap<(u64, u32), Key<u32>> = BTreeMap::new();
        let (mut now, mut seed) = (0u64, 7u64);
        for payload in 1..20_000u32 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let random = seed >> 33;
            let when = now + 1 + random % 5_000;
            model.insert((when, payload), insert(&mut arena, when, payload));
            if random % 3 == 0
                && let Some((&(when, payload), &key)) =
                    model.range((now + random % 700, 0)..).next()
            {
                assert!(arena.remove(key, payload));
                model.remove(&(when, payload));
            }
            if random % 5 == 0 {
                now += random % 90;
                let later = model.split_off(&(now + 1, 0));
                let due: Vec<_> = std::mem::replace(&mut model, later).into_keys().collect();
                let due: Vec<_> = due.into_iter().map(|(_, payload)| payload).collect();
                assert_eq!(fire(&mut arena, now), due);
            }
            assert_eq!(arena.len(), model.len());
        }
        assert!(model.len() > 50);
        assert_eq!(fire(&mut arena, u64::MAX).len(), model.len());
    }
}
