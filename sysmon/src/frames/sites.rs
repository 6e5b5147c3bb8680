#![expect(
    unsafe_code,
    reason = "readers follow a pointer to a table that is never freed"
)]
//! What is known about the places where stacks are suspended: a map that any thread may read.
//!
//! A *site* is one instruction that a frame stands at: the last byte of the call it waits in, or,
//! for an interrupted frame, the instruction itself. [`Site`] says what its function allows and how
//! to climb to the caller; it is one 64-bit word. The map grows on demand: a reader that misses a
//! site *wants* it (requests it), and the helper resolves it later.
//!
//! Readers are lock-free and allocate nothing, in a signal handler too: two loads and a comparison.
//! There is one writer at a time, under a lock.
//!
//! Invariants of a table:
//! - V1. A slot's key is written once, from 0, after its value (release); a reader that sees the
//!   key (acquire) sees the value that was written for it. Neither ever changes: what lies in the
//!   executable stays for ever, and code elsewhere is bound whatever is mapped there.
//! - V2. At most half of the slots are used, so each search meets an empty one and ends.
//! - V3. A table is complete before it is published (release) and is never freed. Tables double, so
//!   the sizes of all earlier tables sum to less than the last one's.
//!
//! Steps of a request:
//! 1. Put the address into a free place of `wanted`.
//! 2. Set `asked`. The thread that is the first to set it notifies the helper.
//!
//! Steps of the helper:
//! 1. Clear `asked`.
//! 2. Take all addresses.
//!
//! If the helper misses an address, it was put there after the helper's step 1, so `asked` is set
//! after that, and the thread that sets it notifies the helper. Where there is no free place, the
//! request is dropped: the next walk makes it again.
//!
//! A *bound* site has no unwind row: no walk continues from there. One exception: a site in one of
//! the standard library's functions for thread-locals has a row, only so that a report can name the
//! caller. Movable code without a usable row is bound, too, and so is all code outside the
//! executable: it may be unloaded and replaced by other code at the same addresses (S5).
//!
//! Rejected: a table per object (a second search on each read); sites that expire (a clock); rows
//! of other libraries, to look for a worse frame beyond one that already binds.

#[cfg(indent_loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU64},
};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(not(indent_loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU64},
};

use super::Mobility;
use super::objects::Objects;
use super::rows::{Base, CallersBp, Row, Unwinder};

/// Number of slots of the first table.
const FEW: usize = if cfg!(indent_loom) { 2 } else { 512 };

/// Number of slots of the largest table; past half of that, sites stay unknown.
///
/// Only a program that generates code while it runs has so many.
const MANY: usize = 1 << 20;

/// Number of places for requests.
const WISHES: usize = if cfg!(indent_loom) { 2 } else { 128 };

/// How many places are tried for one request.
const TRIES: usize = 4;

/// What is known about one place in the code, packed into a word that is never 0.
///
/// | bits | meaning |
/// |---|---|
/// | 0 | always set |
/// | 1 | bound, although it can be climbed from |
/// | 2 | if this binds, its caller decides by what |
/// | 4–5 | base of the CFA: none (bound), `rsp`, `rbp` |
/// | 6–7 | caller's `rbp`: same, saved, unknown |
/// | 8–35 | words from base to CFA |
/// | 36–63 | words from the saved `rbp` to the CFA |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site(u64);

impl Site {
    /// A place from which no stack may leave its thread.
    pub(crate) const BOUND: Site = Site(1);
    const HELD: u64 = 1 << 1;
    const ASKS_CALLER: u64 = 1 << 2;
    const SP: u64 = 1 << 4;
    const BP: u64 = 2 << 4;
    const SAVED: u64 = 1 << 6;
    const LOST: u64 = 2 << 6;
    const CFA: u32 = 8;
    const BELOW: u32 = 36;
    const WORDS: u64 = super::rows::MOST_WORDS as u64;

    /// Makes the site of a place in the executable. Bound if it cannot be climbed from.
    pub(crate) fn new(mobility: Mobility, row: Option<Row>) -> Site {
        match (mobility, row) {
            (Mobility::Movable, Some(row)) => Site(1 | Site::pack(row)),
            _ => Site::BOUND,
        }
    }

    /// Makes a site that, if bound, is bound by what its caller passed to it.
    pub(crate) fn asking_caller(mobility: Mobility, row: Option<Row>) -> Site {
        let held = match mobility {
            Mobility::Bound => Site::HELD,
            Mobility::Movable => 0,
        };
        row.map_or(Site::BOUND, |row| {
            Site(1 | held | Site::ASKS_CALLER | Site::pack(row))
        })
    }

    fn pack(row: Row) -> u64 {
        let base = match row.base {
            Base::Sp => Site::SP,
            Base::Bp => Site::BP,
        };
        let bp = match row.bp {
            CallersBp::Same => 0,
            CallersBp::Saved(below) => Site::SAVED | u64::from(below) << Site::BELOW,
            CallersBp::Unknown => Site::LOST,
        };
        base | bp | u64::from(row.cfa) << Site::CFA
    }

    /// Returns how to climb, unless it is bound.
    #[inline]
    pub(crate) fn row(self) -> Option<Row> {
        let mut bound = false;
        let row = self.row_after(&mut bound);
        row.filter(|_| !bound)
    }

    /// Returns how to climb to the next frame, if the walk continues.
    ///
    /// Once a frame was bound, it continues only up to the frame that decides by what.
    #[inline]
    pub(crate) fn row_after(self, bound: &mut bool) -> Option<Row> {
        let asks_caller = self.0 & Site::ASKS_CALLER != 0;
        *bound |= self.0 & Site::HELD != 0;
        (!*bound || asks_caller).then(|| self.any_row()).flatten()
    }

    #[inline]
    fn any_row(self) -> Option<Row> {
        let base = match self.0 & (Site::SP | Site::BP) {
            Site::SP => Base::Sp,
            Site::BP => Base::Bp,
            _ => return None,
        };
        let bp = match self.0 & (Site::SAVED | Site::LOST) {
            0 => CallersBp::Same,
            Site::SAVED => CallersBp::Saved((self.0 >> Site::BELOW) as u32),
            _ => CallersBp::Unknown,
        };
        let cfa = (self.0 >> Site::CFA & Site::WORDS) as u32;
        Some(Row { base, cfa, bp })
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.row() {
            Some(row) => f.debug_tuple("Movable").field(&row).finish(),
            None => f.write_str("Bound"),
        }
    }
}

struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

struct Table {
    slots: Box<[Slot]>,
}

impl Table {
    fn new(slots: usize) -> Table {
        let empty = || Slot {
            key: AtomicU64::new(0),
            value: AtomicU64::new(0),
        };
        Table {
            slots: (0..slots).map(|_| empty()).collect(),
        }
    }

    /// Returns the slot with this key, or the empty one where it would be (V2: there is one).
    #[inline]
    fn search(&self, key: u64) -> (&Slot, bool) {
        let last = self.slots.len() - 1; // of a power of two
        let mut at = spread(key) as usize & last;
        loop {
            let slot = &self.slots[at & last];
            match slot.key.load(Acquire) {
                0 => return (slot, false),
                found if found == key => return (slot, true),
                _ => at += 1,
            }
        }
    }

    /// Adds a key, under the writer's lock. Returns true if it took an empty slot.
    fn put(&self, key: u64, value: u64) -> bool {
        let (slot, found) = self.search(key);
        if !found {
            slot.value.store(value, Relaxed);
            slot.key.store(key, Release); // V1
        }
        !found
    }
}

/// Spreads neighbouring addresses far apart.
#[inline]
fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// The map of sites. There is one for the process ([`sites`]); tests make their own.
pub(crate) struct Sites {
    table: AtomicPtr<Table>,
    /// Number of slots used; for the one writer.
    used: Mutex<usize>,
    wanted: [AtomicU64; WISHES],
    asked: AtomicBool,
    /// Start and end of the executable's text, once known. The end is written first.
    text: [AtomicUsize; 2],
}

#[cfg(not(indent_loom))]
pub(crate) fn sites() -> &'static Sites {
    static SITES: Sites = Sites::new();
    &SITES
}

#[cfg(indent_loom)]
pub(crate) fn sites() -> &'static Sites {
    loom::lazy_static! {
        static ref SITES: Sites = Sites::new();
    }
    &SITES
}

impl Sites {
    #[cfg(not(indent_loom))]
    pub(crate) const fn new() -> Sites {
        Sites {
            table: AtomicPtr::new(ptr::null_mut()),
            used: Mutex::new(0),
            wanted: [const { AtomicU64::new(0) }; WISHES],
            asked: AtomicBool::new(false),
            text: [const { AtomicUsize::new(0) }; 2],
        }
    }

    #[cfg(indent_loom)]
    pub(crate) fn new() -> Sites {
        Sites {
            table: AtomicPtr::new(ptr::null_mut()),
            used: Mutex::new(0),
            wanted: std::array::from_fn(|_| AtomicU64::new(0)),
            asked: AtomicBool::new(false),
            text: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// Returns what is known about a place in the code.
    #[inline]
    pub(crate) fn get(&self, pc: usize) -> Option<Site> {
        let (slot, found) = self.current()?.search(pc as u64);
        found.then(|| Site(slot.value.load(Relaxed)))
    }

    #[inline]
    fn current(&self) -> Option<&Table> {
        let table = self.table.load(Acquire);
        // SAFETY: V3: null, or a table that is complete and never freed.
        unsafe { table.as_ref() }
    }

    /// Requests a site. Returns true if the caller must notify the helper.
    pub(crate) fn want(&self, pc: usize) -> bool {
        let pc = pc as u64;
        for next in 0..TRIES.min(WISHES) {
            let place = &self.wanted[(spread(pc) as usize + next) % WISHES];
            if place.load(Relaxed) == pc {
                return false; // the thread that put it there notifies the helper
            }
            match place.compare_exchange(0, pc, AcqRel, Relaxed) {
                Ok(_) => return !self.asked.swap(true, AcqRel),
                Err(same) if same == pc => return false,
                Err(_) => {}
            }
        }
        false
    }

    /// Whether something was requested and the helper has not begun to look.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// Returns the executable's text, if the helper has published it.
    pub(crate) fn text(&self) -> Option<Range<usize>> {
        let start = self.text[0].load(Acquire);
        (start != 0).then(|| start..self.text[1].load(Relaxed))
    }

    fn set_text(&self, objects: &Objects) {
        let text = objects.list.first();
        let text = text.and_then(|own| own.segments.iter().find(|s| s.executable));
        if let Some(text) = text {
            self.text[1].store(text.range.end, Relaxed);
            self.text[0].store(text.range.start, Release);
        }
    }

    /// Resolves what was requested; called by the helper. Returns how many sites it found.
    pub(crate) fn resolve(&self, mut find: impl FnMut(usize) -> Site) -> usize {
        let mut used = self.write();
        self.asked.swap(false, AcqRel);
        let mut found = 0;
        for place in &self.wanted {
            let pc = place.swap(0, AcqRel) as usize;
            if pc != 0 && self.get(pc).is_none() {
                found += usize::from(self.put(&mut used, pc, find(pc)));
            }
        }
        found
    }

    /// Adds a site, unless there are too many.
    fn put(&self, used: &mut usize, pc: usize, site: Site) -> bool {
        let table = match self.current() {
            Some(table) if 2 * (*used + 1) <= table.slots.len() => table,
            old => match self.grow(*used, old) {
                Some(table) => table,
                None => return false,
            },
        };
        *used += usize::from(table.put(pc as u64, site.0));
        true
    }

    /// Publishes a larger table with everything known so far.
    fn grow(&self, used: usize, old: Option<&Table>) -> Option<&Table> {
        let slots = (4 * used).next_power_of_two().max(FEW);
        if slots > MANY {
            return None;
        }
        let table = Table::new(slots);
        for slot in old.into_iter().flat_map(|old| &old.slots) {
            let key = slot.key.load(Relaxed);
            if key != 0 {
                table.put(key, slot.value.load(Relaxed));
            }
        }
        self.table.store(Box::into_raw(Box::new(table)), Release); // V3
        self.current()
    }

    fn write(&self) -> MutexGuard<'_, usize> {
        self.used
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a site as the helper would, for tests.
    #[cfg(test)]
    pub(crate) fn insert(&self, pc: usize, site: Site) -> bool {
        let mut used = self.write();
        self.put(&mut used, pc, site)
    }
}

/// Resolves what walks have requested, and returns how many sites it found.
///
/// `mobility` gets an address inside a function of the executable. For the helper's thread: takes
/// long, allocates, takes the loader's lock.
///
/// ```
/// use indent_sysmon::frames::{self, Mobility};
/// // Nothing was requested yet.
/// assert_eq!(frames::resolve(|_address| Mobility::Bound), 0);
/// ```
pub fn resolve(mut mobility: impl FnMut(usize) -> Mobility) -> usize {
    resolve_in(sites(), |pc, row| Site::new(mobility(pc), row))
}

/// [`resolve`] for any map: makes sites from places in the executable and their unwind rows.
pub(crate) fn resolve_in(sites: &Sites, mut site: impl FnMut(usize, Option<Row>) -> Site) -> usize {
    let objects = Objects::now();
    sites.set_text(&objects);
    let mut unwinder = Unwinder::new();
    sites.resolve(|pc| match objects.list.first() {
        Some(own) if own.contains(pc) => site(pc, unwinder.row(own, pc)),
        _ => Site::BOUND,
    })
}

#[cfg(test)]
mod tests;
