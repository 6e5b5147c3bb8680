#![expect(unsafe_code, reason = "keeps spawn sites as pointers")]
//! Counts the parks of fibers that are bound to their threads, by what binds them.
//!
//! A parked bound fiber costs a thread, so a program should be able to find out which of its fibers
//! are bound, and why. The worker that parks a bound fiber counts the park in a table. The key is
//! the place where the fiber was spawned, and the place in the code that binds it.
//!
//! An entry is claimed by its first user, with a compare-and-exchange of its key, and is never
//! freed. Counting is a probe and an addition: no lock, no allocation, no clock (S9). Movable
//! fibers do not come here.
//!
//! Function names are looked up by the thread that asks for the report. With `log_bound` the
//! collector thread reports each new entry.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use indent_sysmon::frames;

use crate::base::loom::atomic;
use crate::base::os;
use crate::fiber::state::Phase;
use crate::fiber::{FiberRef, Held};
use crate::sched::mobility::{self, Mobility};
use crate::sched::{Shared, dump, wake};

/// Entries of the table. Parks that find no entry are counted without a key.
const ENTRIES: usize = 512;
/// Entries that are tried for a key.
const PROBES: usize = 8;

/// Why a fiber keeps its thread while it is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A frame that may hold something of the thread; an address in its code.
    Frame(usize),
    /// The fiber is pinned.
    Pin,
    /// The fiber parks in a destructor while it unwinds (S3).
    Unwinding,
    /// A test has bound all fibers.
    Setting,
}

impl Cause {
    /// Addresses of code are larger than these numbers.
    fn to_word(self) -> usize {
        match self {
            Cause::Frame(address) => address,
            Cause::Pin => 1,
            Cause::Unwinding => 2,
            Cause::Setting => 3,
        }
    }

    fn of_word(word: usize) -> Self {
        match word {
            1 => Cause::Pin,
            2 => Cause::Unwinding,
            3 => Cause::Setting,
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

/// The parks of bound fibers of one runtime.
pub(crate) struct BoundParks {
    entries: Box<[Entry]>,
    /// Parks that found no entry.
    others: AtomicU64,
    /// Parks before the program's code had been read.
    unjudged: AtomicU64,
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

/// A report without names.
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
        }
    }

    /// Counts a park; true if it is the first of its key.
    fn count(&self, location: &'static Location<'static>, cause: Cause) -> bool {
        let key = key(location, cause);
        for probe in 0..PROBES {
            let entry = &self.entries[(key as usize).wrapping_add(probe) % ENTRIES];
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
                return claimed.is_ok();
            }
        }
        self.others.fetch_add(1, Relaxed);
        false
    }

    /// Calls `see` with each complete entry.
    fn each(&self, mut see: impl FnMut(&Entry, BoundSite)) {
        for entry in &self.entries {
            let location = entry.location.load(Acquire);
            // SAFETY: null, or a location that lives for ever, stored by `count`.
            if let Some(location) = unsafe { location.as_ref() } {
                let site = BoundSite {
                    location,
                    cause: Cause::of_word(entry.cause.load(Relaxed)),
                    parks: entry.parks.load(Relaxed),
                    threads: 0,
                };
                see(entry, site);
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
    /// Counts a fiber that is about to park and keeps its thread. `place` is the frame that binds
    /// it, if it is bound by one. The fiber is the caller's (I1).
    #[inline(never)]
    pub(crate) fn count_bound_park(&self, fiber: FiberRef, place: Option<usize>) {
        match cause(fiber, || place) {
            Some(cause) => self.count_bound_cause(fiber, cause),
            None => {
                self.bound_parks.unjudged.fetch_add(1, Relaxed);
            }
        }
    }

    /// The same where the cause is known.
    pub(crate) fn count_bound_cause(&self, fiber: FiberRef, cause: Cause) {
        let first = self.bound_parks.count(fiber.location(), cause);
        if first && self.settings.log_bound.is_some() {
            self.ask_to_log_bound();
        }
    }

    /// The parks of bound fibers so far, and the threads that they keep now.
    pub(crate) fn bound_report(&self) -> BoundReport {
        let mut report = BoundReport {
            others: self.bound_parks.others.load(Relaxed),
            unjudged: self.bound_parks.unjudged.load(Relaxed),
            ..BoundReport::default()
        };
        self.bound_parks.each(|_, site| report.sites.push(site));
        self.each_fiber(|fiber| {
            if let Some(cause) = keeps_thread_for(&fiber) {
                let same = |site: &&mut BoundSite| {
                    site.cause == cause && ptr::eq(site.location, fiber.location())
                };
                if let Some(site) = report.sites.iter_mut().find(same) {
                    site.threads += 1;
                }
            }
        });
        report
    }

    /// On the collector's thread: reports entries that are new.
    pub(crate) fn log_bound(&self) {
        let Some(line_of) = self.settings.log_bound else {
            return;
        };
        self.bound_parks.each(|entry, site| {
            if !entry.logged.swap(true, Relaxed) {
                os::complain(&line_of(&site));
            }
        });
    }
}

/// Why a switched-out fiber keeps its thread, if that is known. `place` finds the frame that binds
/// it.
fn cause(fiber: FiberRef, place: impl FnOnce() -> Option<usize>) -> Option<Cause> {
    match mobility::noted(&fiber) {
        _ if fiber.blocks_carrier() => Some(Cause::Unwinding),
        Mobility::Unjudged if frames::has_failed() => Some(Cause::Setting),
        Mobility::Unjudged => None,
        Mobility::Bound => Some(place().map_or(Cause::Setting, Cause::Frame)),
        Mobility::Movable if fiber.pins.load(atomic::Ordering::Relaxed) > 0 => Some(Cause::Pin),
        Mobility::Movable => None,
    }
}

/// For which cause a fiber keeps a thread at this moment. It may run meanwhile: then the answer is
/// of no use, and does no harm.
fn keeps_thread_for(fiber: &Held) -> Option<Cause> {
    let parked = fiber.phase() == Phase::Parked && wake::thread_of(fiber.fiber()).is_some();
    parked
        .then(|| cause(fiber.fiber(), || dump::binding(fiber)))
        .flatten()
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn sites(table: &BoundParks) -> Vec<BoundSite> {
        let mut sites = Vec::new();
        table.each(|_, site| sites.push(site));
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
            table.count(location, cause);
        }
        let mut counts: Vec<_> = sites(&table).iter().map(|site| site.parks).collect();
        counts.sort_unstable();
        // One or two sites, as the compiler likes.
        assert!(counts == [1, 1, 1, 2] || counts == [1, 1, 3], "{counts:?}");
    }

    #[test]
    fn only_the_first_park_of_a_key_is_new() {
        let table = BoundParks::new();
        let here = Location::caller();
        let counted: Vec<_> = (0..3)
            .map(|_| table.count(here, Cause::Unwinding))
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
