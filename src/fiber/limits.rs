//! The time limits that a fiber, or a plain thread, is in. Values only.
//!
//! Frames that enter limits need not nest: a coroutine library may suspend a frame inside a limit
//! and resume it inside another one, on another thread, or never. So nothing here refers to a
//! frame (S14). A limit is named by an [`Id`], unique in the process for all time, and is removed
//! by that name from wherever it stands; if it is not found, nothing is removed.
//!
//! Limits are kept in the order in which they were entered. The first few need no allocation.
//!
//! One fact about the frame is kept beside the value: whether it is on the own stack of the fiber
//! or thread, or on another one. Code on the own stack was not called by a frame on another stack:
//! such a frame is suspended, and its limit does not apply to that code.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Limits that fit without an allocation.
const INSIDE: usize = 4;

/// Ids are taken in blocks, so that threads rarely meet at the counter.
const BLOCK: u64 = 1024;

/// The name of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

#[derive(Clone, Copy)]
struct Limit {
    id: Id,
    /// `None`: limits entered before this one do not apply.
    at: Option<Instant>,
}

/// A bit of an id: the limit was entered on another stack than the own one.
const ELSEWHERE: u64 = 1;

impl Limit {
    const NONE: Limit = Limit {
        id: Id(0),
        at: None,
    };

    fn is_elsewhere(self) -> bool {
        self.id.0 & ELSEWHERE != 0
    }
}

/// The combined effect of all limits that apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) at: Option<Instant>,
    /// Cancellation requests from outside do not apply.
    pub(crate) cancel_disabled: bool,
}

/// The limits that do not fit inside.
#[derive(Default)]
struct Rest(Vec<Limit>);

/// A list of limits. Touched by its fiber or thread only.
pub(crate) struct Limits {
    len: Cell<u32>,
    /// How many of them were entered on another stack.
    elsewhere: Cell<u32>,
    inside: [Cell<Limit>; INSIDE],
    /// Freed when it is empty.
    outside: Cell<Option<Box<Rest>>>,
    /// The next id; a multiple of `BLOCK` if the block is used up.
    next: Cell<u64>,
}

impl Limits {
    pub(crate) const fn new() -> Self {
        Limits {
            len: Cell::new(0),
            elsewhere: Cell::new(0),
            inside: [const { Cell::new(Limit::NONE) }; INSIDE],
            outside: Cell::new(None),
            next: Cell::new(0),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    /// Removes limits that were never left.
    pub(crate) fn clear(&self) {
        self.len.set(0);
        self.elsewhere.set(0);
        drop(self.outside.take());
    }

    /// Enters a limit; one without a time suspends those before it.
    pub(crate) fn enter(&self, at: Option<Instant>, elsewhere: bool) -> Id {
        let id = Id(self.next_id() << 1 | u64::from(elsewhere));
        let limit = Limit { id, at };
        let len = self.len.get() as usize;
        match self.inside.get(len) {
            Some(place) => place.set(limit),
            None => {
                let mut rest = self.outside.take().unwrap_or_default();
                rest.0.push(limit);
                self.outside.set(Some(rest));
            }
        }
        self.len.set(self.len.get() + 1);
        self.elsewhere
            .set(self.elsewhere.get() + u32::from(elsewhere));
        id
    }

    /// Removes a limit; does nothing if another fiber or thread entered it.
    #[inline]
    pub(crate) fn leave(&self, id: Id) {
        let len = self.len.get() as usize;
        let last = self.inside[..len.min(INSIDE)].last();
        let found = len <= INSIDE && last.is_some_and(|last| last.get().id == id);
        if found || self.take_out(id) {
            self.len.set(self.len.get() - 1);
            let elsewhere = u32::from(id.0 & ELSEWHERE != 0);
            self.elsewhere.set(self.elsewhere.get() - elsewhere);
        }
    }

    /// Removes a limit from the middle; false if it is not there.
    #[cold]
    fn take_out(&self, id: Id) -> bool {
        let mut rest = self.outside.take();
        let outside = rest.as_mut().map(|rest| &mut rest.0);
        let inside = &self.inside[..INSIDE.min(self.len.get() as usize)];
        let found = if let Some(at) = inside.iter().rposition(|limit| limit.get().id == id) {
            for pair in inside[at..].windows(2) {
                pair[0].set(pair[1].get());
            }
            if let Some(outside) = outside {
                inside[INSIDE - 1].set(outside.remove(0));
            }
            true
        } else {
            let at = |all: &Vec<Limit>| all.iter().rposition(|limit| limit.id == id);
            let outside = outside.and_then(|all| Some(all.remove(at(all)?)));
            outside.is_some()
        };
        self.outside.set(rest.filter(|rest| !rest.0.is_empty()));
        found
    }

    /// Returns what applies to the calling code; `on_own_stack` returns whether it is on the own
    /// stack.
    pub(crate) fn effect(&self, on_own_stack: impl FnOnce() -> bool) -> Effect {
        let all = self.elsewhere.get() == 0 || !on_own_stack();
        let mut effect = Effect::default();
        let mut add = |limit: Limit| {
            let applies = !effect.cancel_disabled && (all || !limit.is_elsewhere());
            match limit.at {
                Some(at) if applies => {
                    effect.at = Some(effect.at.map_or(at, |other| other.min(at)));
                }
                None if applies => effect.cancel_disabled = true,
                _ => {}
            }
        };
        let len = self.len.get() as usize;
        if len > INSIDE {
            let rest = self.outside.take().unwrap_or_default();
            rest.0.iter().rev().for_each(|limit| add(*limit));
            self.outside.set(Some(rest));
        }
        let inside = &self.inside[..len.min(INSIDE)];
        inside.iter().rev().for_each(|limit| add(limit.get()));
        effect
    }

    fn next_id(&self) -> u64 {
        static BLOCKS: AtomicU64 = AtomicU64::new(BLOCK);
        let mut next = self.next.get();
        if next.is_multiple_of(BLOCK) {
            next = BLOCKS.fetch_add(BLOCK, Relaxed);
        }
        self.next.set(next + 1);
        next
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// The expected effect, from a plain list.
    fn expected(model: &[(Id, Option<Instant>, bool)], on_own_stack: bool) -> Effect {
        let mut effect = Effect::default();
        for (_, at, elsewhere) in model.iter().rev() {
            match at {
                _ if on_own_stack && *elsewhere => {}
                Some(at) => effect.at = effect.at.into_iter().chain([*at]).min(),
                None => {
                    effect.cancel_disabled = true;
                    break;
                }
            }
        }
        effect
    }

    proptest! {
        #[test]
        fn limits_are_left_in_any_order(
            steps in prop::collection::vec((0_u8..4, 0_u8..100, any::<bool>()), 0..60)
        ) {
            let (limits, start) = (Limits::new(), Instant::now());
            let stranger = Limits::new().enter(None, false);
            let mut model: Vec<(Id, Option<Instant>, bool)> = Vec::new();
            for (step, number, elsewhere) in steps {
                match step {
                    0 if !model.is_empty() => {
                        let (id, ..) = model.remove(usize::from(number) % model.len());
                        limits.leave(id);
                        limits.leave(id);
                    }
                    1 => limits.leave(stranger),
                    _ => {
                        let at = start + Duration::from_secs(number.into());
                        let at = (number % 10 > 0).then_some(at);
                        model.push((limits.enter(at, elsewhere), at, elsewhere));
                    }
                }
                prop_assert_eq!(limits.is_empty(), model.is_empty());
                for own in [false, true] {
                    prop_assert_eq!(limits.effect(|| own), expected(&model, own));
                }
            }
        }
    }

    #[test]
    fn ids_of_all_lists_differ() {
        let lists = [Limits::new(), Limits::new()];
        let mut ids = Vec::new();
        for i in 0..5 * BLOCK as usize {
            let list = &lists[i % 3 % 2];
            let id = list.enter(None, i % 5 == 0);
            list.leave(id);
            ids.push(id.0 >> 1);
        }
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(lists.iter().all(Limits::is_empty));
    }
}
