#![expect(unsafe_code, reason = "keeps spawn sites as pointers")]
//! Counts the parks of fibers that are bound to their threads, by what binds them.
//!
//! A parked bound fiber costs a thread, so a program should be able to find out which of its fibers
//! are bound, and why. The worker that parks a bound fiber counts the park in a table. The key is
//! the place where the fiber was spawned, and the place in the code that binds it.
//!
//! An entry is claimed by its first user, with a compare-and-exchange of its key, and is never
//! freed. Counting is a probe and an addition: no lock, no allocation, no clock (S9). Movable
//! fibers do not come here. The fiber remembers its entry, from which a report knows which threads
//! are kept for which cause.
//!
//! Function names are looked up by the thread that asks for the report. With `log_bound` the
//! collector thread reports each new entry.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};

use indent_sysmon::frames;

use crate::fiber::state::Phase;
use crate::fiber::{FiberRef, Record};
use crate::sched::Shared;
use crate::sched::block::wake;
use crate::sched::mobility::verdict::{self, Mobility};
use crate::sys::stderr;
use crate::util::loom::atomic;

/// Entries of the table. Parks that find no entry are counted without a key.
const ENTRIES: usize = 512;
/// Number of a fiber that has no entry, in its record.
const NONE: u16 = u16::MAX;
/// Entries that are tried for a key.
const PROBES: u64 = 8;

/// Why a fiber keeps its thread while it is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A frame that may hold something of the thread; an address in its code.
    Frame(usize),
    /// The address of a thread-local is in a register of the fiber.
    InRegister,
    /// The address is in a thread-local of the fiber, at this offset from the thread pointer.
    InLocal(isize),
    /// The fiber is pinned.
    Pin,
    /// The fiber parks in a destructor while it unwinds (S3).
    Unwinding,
    /// All fibers are bound: by a test, or because the program's code could not be read.
    Setting,
}

impl Cause {
    /// Flag in a word: the address is in a thread-local. Addresses of code have no such bit.
    const IN_LOCAL: usize = 1 << 62;

    /// Encodes the cause. Addresses of code are larger than the numbers used here.
    fn to_word(self) -> usize {
        match self {
            Cause::Frame(address) => address,
            Cause::InLocal(offset) => offset.unsigned_abs() | Cause::IN_LOCAL,
            Cause::Pin => 1,
            Cause::Unwinding => 2,
            Cause::Setting => 3,
            Cause::InRegister => 4,
        }
    }

    fn of_word(word: usize) -> Self {
        match word {
            1 => Cause::Pin,
            2 => Cause::Unwinding,
            3 => Cause::Setting,
            4 => Cause::InRegister,
            word if word & Cause::IN_LOCAL != 0 => {
                // thread-locals lie below the thread pointer
                Cause::InLocal(-((word & !Cause::IN_LOCAL) as isize))
            }
            address => Cause::Frame(address),
        }
    }
}

#[derive(Default)]
struct Entry {
    /// Hash of the spawn site and the cause; 0: the entry is free.
    key: AtomicU64,
    /// Stored after the cause: null until the entry is complete.
    location: AtomicPtr<Location<'static>>,
    cause: AtomicUsize,
    parks: AtomicU64,
    logged: AtomicBool,
}

/// Counts of the parks of bound fibers of one runtime.
pub(crate) struct BoundParks {
    entries: Box<[Entry]>,
    /// Parks that found no entry.
    others: AtomicU64,
    /// Parks before the program's code had been read.
    unjudged: AtomicU64,
    /// Lines that were printed, since two places in one function make the same line.
    ///
    /// No worker locks it.
    printed: Mutex<Vec<String>>,
}

/// What binds the fibers of one spawn site.
#[derive(Clone, Debug)]
pub(crate) struct BoundSite {
    pub(crate) location: &'static Location<'static>,
    pub(crate) cause: Cause,
    pub(crate) parks: u64,
    /// Threads that parked fibers keep for this cause now.
    pub(crate) threads: usize,
}

/// A report without names of functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundReport {
    pub(crate) sites: Vec<BoundSite>,
    pub(crate) others: u64,
    pub(crate) unjudged: u64,
}

impl BoundParks {
    pub(crate) fn new() -> Self {
        BoundParks {
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            others: AtomicU64::new(0),
            unjudged: AtomicU64::new(0),
            printed: Mutex::new(Vec::new()),
        }
    }

    /// Counts a park.
    ///
    /// Returns the number of the entry, if there is room for one, and whether this is its first
    /// park.
    fn count(&self, location: &'static Location<'static>, cause: Cause) -> (Option<u16>, bool) {
        let key = key(location, cause);
        for probe in 0..PROBES {
            let index = (key >> 1).wrapping_add(probe) as usize % ENTRIES;
            let entry = &self.entries[index];
            let claimed = match entry.key.load(Relaxed) {
                0 => entry.key.compare_exchange(0, key, Relaxed, Relaxed),
                found => Err(found),
            };
            if claimed.is_ok() {
                entry.cause.store(cause.to_word(), Relaxed);
                let location = ptr::from_ref(location).cast_mut();
                entry.location.store(location, Release);
            }
            if claimed.is_ok() || claimed == Err(key) {
                entry.parks.fetch_add(1, Relaxed);
                return (Some(index as u16), claimed.is_ok());
            }
        }
        self.others.fetch_add(1, Relaxed);
        (None, false)
    }

    /// Calls `see` with each complete entry and its number.
    fn each(&self, mut see: impl FnMut(usize, &Entry, BoundSite)) {
        for (index, entry) in self.entries.iter().enumerate() {
            let location = entry.location.load(Acquire);
            // SAFETY: null, or a location that lives for ever, stored by `count`.
            if let Some(location) = unsafe { location.as_ref() } {
                let site = BoundSite {
                    location,
                    cause: Cause::of_word(entry.cause.load(Relaxed)),
                    parks: entry.parks.load(Relaxed),
                    threads: 0,
                };
                see(index, entry, site);
            }
        }
    }
}

fn key(location: &'static Location<'static>, cause: Cause) -> u64 {
    const FRACTION: u64 = 0x9E37_79B9_7F4A_7C15;
    let site = ptr::from_ref(location).addr() as u64;
    let mixed = (site.wrapping_mul(FRACTION) ^ cause.to_word() as u64).wrapping_mul(FRACTION);
    (mixed ^ (mixed >> 32)) | 1
}

impl Shared {
    /// Counts a park of a fiber that keeps its thread.
    ///
    /// The fiber is about to park, or it has parked and was found to be bound since. `place` is the
    /// frame that binds it, if one does. The fiber is the caller's (I1).
    #[inline(never)]
    pub(crate) fn count_bound_park(&self, fiber: FiberRef, place: Option<usize>) {
        let cause = match verdict::noted(&fiber) {
            Mobility::Unjudged if frames::has_failed() => Cause::Setting,
            Mobility::Unjudged => {
                self.bound_parks.unjudged.fetch_add(1, Relaxed);
                return fiber.bound_entry.store(NONE, atomic::Ordering::Relaxed);
            }
            Mobility::Bound => place.map_or(Cause::Setting, Cause::Frame),
            Mobility::Movable => Cause::Pin,
        };
        self.count_bound_cause(fiber, cause);
    }

    /// Counts a park whose cause is known.
    pub(crate) fn count_bound_cause(&self, fiber: FiberRef, cause: Cause) {
        let (entry, first) = self.bound_parks.count(fiber.location(), cause);
        let entry = entry.unwrap_or(NONE);
        fiber.bound_entry.store(entry, atomic::Ordering::Relaxed);
        if first && self.settings.log_bound.is_some() {
            self.ask_to_log_bound();
        }
    }

    /// Returns what bound the fiber at its last park as a bound one.
    ///
    /// `None` if there was no room to note it.
    pub(crate) fn last_cause(&self, fiber: &Record) -> Option<Cause> {
        let index = usize::from(fiber.bound_entry.load(atomic::Ordering::Relaxed));
        let entry = self.bound_parks.entries.get(index)?;
        Some(Cause::of_word(entry.cause.load(Relaxed)))
    }

    /// Returns the parks of bound fibers so far, and the threads they keep now.
    pub(crate) fn bound_report(&self) -> BoundReport {
        let mut threads = [0; ENTRIES];
        self.each_fiber(|fiber| {
            let entry = usize::from(fiber.bound_entry.load(atomic::Ordering::Relaxed));
            let parked = fiber.phase() == Phase::Parked;
            if parked && entry < ENTRIES && wake::thread_of(fiber.fiber()).is_some() {
                threads[entry] += 1;
            }
        });
        let mut report = BoundReport {
            others: self.bound_parks.others.load(Relaxed),
            unjudged: self.bound_parks.unjudged.load(Relaxed),
            ..BoundReport::default()
        };
        self.bound_parks.each(|index, _, mut site| {
            site.threads = threads[index];
            report.sites.push(site);
        });
        report
    }

    /// Reports new entries; called on the collector's thread, or at shutdown.
    pub(crate) fn log_bound(&self) {
        let Some(line_of) = self.settings.log_bound else {
            return;
        };
        self.bound_parks.each(|_, entry, site| {
            if entry.logged.swap(true, Relaxed) {
                return;
            }
            let line = line_of(&site);
            let printed = &self.bound_parks.printed;
            let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
            if !printed.contains(&line) {
                stderr::print(&line);
                printed.push(line);
            }
        });
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn sites(table: &BoundParks) -> Vec<BoundSite> {
        let mut sites = Vec::new();
        table.each(|_, _, site| sites.push(site));
        sites
    }

    #[test]
    fn parks_are_counted_by_site_and_cause() {
        let table = BoundParks::new();
        let (here, there) = (Location::caller(), Location::caller());
        for (location, cause) in [
            (here, Cause::Frame(0x1000)),
            (here, Cause::Frame(0x1000)),
            (here, Cause::Frame(0x2000)),
            (here, Cause::Pin),
            (there, Cause::Frame(0x1000)),
        ] {
            assert!(table.count(location, cause).0.is_some());
        }
        let mut counts: Vec<_> = sites(&table).iter().map(|site| site.parks).collect();
        counts.sort_unstable();
        // One or two sites, depending on the compiler.
        assert!(counts == [1, 1, 1, 2] || counts == [1, 1, 3], "{counts:?}");
    }

    #[test]
    fn only_the_first_park_of_a_key_is_new() {
        let table = BoundParks::new();
        let here = Location::caller();
        let counted: Vec<_> = (0..3)
            .map(|_| table.count(here, Cause::Unwinding).1)
            .collect();
        assert_eq!(counted, [true, false, false]);
    }

    #[test]
    fn a_full_table_loses_no_park() {
        let table = BoundParks::new();
        for i in 0..4 * ENTRIES {
            table.count(Location::caller(), Cause::Frame(0x1000 + i));
        }
        let found: u64 = sites(&table).iter().map(|site| site.parks).sum();
        assert!(found <= ENTRIES as u64);
        assert_eq!(found + table.others.load(Relaxed), 4 * ENTRIES as u64);
    }
}
