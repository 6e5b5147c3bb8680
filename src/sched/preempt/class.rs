//! Who computes much and who does not: an order for the queues, and nothing more.
//!
//! A fiber's *heat* says how much it computes between two parks. Nobody reads a clock for it: the monitor
//! notes the dispatches it has seen for a tick and more, and a freeze knows how long its fiber ran. When the
//! fiber switches out, what was noted is added; each park takes a quarter away. So 9 ms between two parks
//! make a fiber hot after one or two of them, and one park does not wash it clean. A hot fiber is *batch*:
//! it is served when nobody else waits, and has a share guaranteed (`Shared::owe_batch`).
//!
//! A *site* is a place in the program that spawns fibers. It is good if fibers from there ended
//! without getting hot, with few exceptions. That is no property of the fiber that comes next (one
//! accept loop spawns pings and crunches alike), so it only orders starts: while many threads are
//! frozen, starts from sites whose fibers got hot are deferred, then those from sites that are not
//! known to be good (`starts.rs`).

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

use crate::fiber::Record;
use crate::util::loom::atomic;

/// Heat of a fiber that is batch: so many ticks of computing, more or less.
const BATCH: u8 = 8;
/// No fiber gets hotter: ten parks or so cool it down.
const HIGHEST: u8 = 64;

/// Whether others come first.
#[inline]
pub(crate) fn is_batch(fiber: &Record) -> bool {
    fiber.cpu_score.load(atomic::Ordering::Relaxed) >= BATCH
}

/// It has computed for so many ticks. True if that made it batch.
pub(crate) fn raise_score(fiber: &Record, ticks: u64) -> bool {
    let before = fiber.cpu_score.load(atomic::Ordering::Relaxed);
    let ticks = u8::try_from(ticks).unwrap_or(HIGHEST);
    let cpu_score = before.saturating_add(ticks).min(HIGHEST);
    fiber.cpu_score.store(cpu_score, atomic::Ordering::Relaxed);
    let became = before < BATCH && cpu_score >= BATCH;
    if became {
        Sites::get(fiber.location()).overran();
    }
    became
}

/// It has just had its time, however little that was: until it parks others come before it.
pub(crate) fn be_batch(fiber: &Record) {
    let cpu_score = fiber.cpu_score.load(atomic::Ordering::Relaxed);
    let higher = cpu_score.saturating_add(1).clamp(BATCH, HIGHEST);
    fiber.cpu_score.store(higher, atomic::Ordering::Relaxed);
}

/// It parks.
#[inline]
pub(crate) fn lower_score(fiber: &Record) {
    let cpu_score = fiber.cpu_score.load(atomic::Ordering::Relaxed);
    if cpu_score > 0 {
        let lower = cpu_score - cpu_score.div_ceil(4);
        fiber.cpu_score.store(lower, atomic::Ordering::Relaxed);
    }
}

/// Fibers that came from one site and ended, and how many of those, or of those still alive, got hot. Both
/// are halved when they get large.
struct Site {
    location: AtomicUsize,
    /// Ended in the lower half, hot in the upper.
    counts: AtomicU32,
}

const ROOM: usize = 1024;
static SITES: [Site; ROOM] = [const {
    Site {
        location: AtomicUsize::new(0),
        counts: AtomicU32::new(0),
    }
}; ROOM];
/// So many places of the table are looked at; a site that finds none is never known.
const PROBES: usize = 8;
/// Ends after which a site can be good.
const ENOUGH: u32 = 8;
/// More than one hot fiber in so many is too much.
const RATIO: u32 = 8;
/// Ends that are counted; then all is known, until somebody gets hot.
const COUNTED: u32 = 64;
const MOST: u32 = 0x4000;

/// One site, or none if there is no room.
#[derive(Clone, Copy)]
pub(crate) struct Sites(Option<&'static Site>);

impl Sites {
    #[inline]
    pub(crate) fn get(location: &'static Location<'static>) -> Self {
        let address = ptr::from_ref(location).addr();
        let start = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 10);
        let places = (0..PROBES).map(|probe| &SITES[(start + probe) % ROOM]);
        for site in places {
            let there = site.location.load(Acquire);
            if there == address {
                return Sites(Some(site));
            }
            if there == 0 {
                let claimed = site.location.compare_exchange(0, address, Acquire, Acquire);
                if claimed.is_ok() || claimed == Err(address) {
                    return Sites(Some(site));
                }
            }
        }
        Sites(None)
    }

    /// Fibers from here come to their end without computing much.
    #[inline]
    pub(crate) fn is_good(self) -> bool {
        self.0.is_some_and(|site| {
            let counts = site.counts.load(Relaxed);
            let (hot, ended) = (counts >> 16, counts & 0xffff);
            ended >= ENOUGH && hot * RATIO <= ended
        })
    }

    /// Fibers from here compute much, more often than not.
    pub(crate) fn is_bad(self) -> bool {
        self.0.is_some_and(|site| {
            let counts = site.counts.load(Relaxed);
            (counts >> 16) * RATIO > counts & 0xffff
        })
    }

    /// A fiber from here has ended.
    #[inline]
    pub(crate) fn ended(self) {
        if let Some(site) = self.0 {
            let counts = site.counts.load(Relaxed);
            if counts < COUNTED || counts >> 16 > 0 {
                add(site, 1);
            }
        }
    }

    /// A fiber from here has become batch.
    fn overran(self) {
        if let Some(site) = self.0 {
            add(site, 1 << 16);
        }
    }
}

#[cold]
fn add(site: &Site, one: u32) {
    let _ = site.counts.fetch_update(Relaxed, Relaxed, |counts| {
        let sum = counts + one;
        let large = sum >> 16 >= MOST || sum & 0xffff >= MOST;
        Some(if large { (sum >> 1) & 0x7fff_7fff } else { sum })
    });
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[track_caller]
    fn here() -> &'static Location<'static> {
        Location::caller()
    }

    #[test]
    fn a_site_is_good_when_most_of_its_fibers_end_without_computing_much() {
        let site = Sites::get(here());
        assert!(!site.is_good(), "nothing is known");
        (0..ENOUGH).for_each(|_| site.ended());
        assert!(site.is_good());
        site.overran();
        assert!(site.is_good(), "one of eight");
        site.overran();
        assert!(!site.is_good());
        (0..8).for_each(|_| site.ended());
        assert!(site.is_good(), "two of sixteen");
        let other = Sites::get(here());
        assert!(!other.is_good(), "another line");
    }

    #[test]
    fn counts_are_halved_before_they_overflow() {
        let site = Sites::get(here());
        site.overran();
        (0..200_000).for_each(|_| site.ended());
        assert!(site.is_good());
        (0..200_000).for_each(|_| site.overran());
        assert!(!site.is_good());
    }
}
