//! Classifies fibers by how much they compute: an order for the queues, nothing more.
//!
//! A fiber's *CPU score* measures how much it computes between two parks. It needs no clock: the
//! monitor notes the dispatches it has seen for a tick and more, and a freeze knows how long its
//! fiber ran. When the fiber switches out, the noted ticks are added; each park takes a quarter
//! away. So 9 ms between two parks give a fiber a high score after one or two of them, and one park
//! does not remove it. A fiber with a high score is *batch*: it is served when no other fiber
//! waits, and has a guaranteed share (`Shared::owe_batch`).
//!
//! A *site* is a place in the program that spawns fibers. It is good if fibers from there ended
//! without becoming batch, with few exceptions. That does not predict the next fiber (one accept
//! loop spawns short and long ones alike), so it only orders starts: while many threads are frozen,
//! starts from sites whose fibers became batch are deferred, then those from sites that are not
//! known to be good (`admission.rs`).

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

use crate::fiber::Record;
use crate::util::loom::atomic;

/// CPU score of a batch fiber: about so many ticks of computing.
const BATCH: u8 = 8;
/// Greatest CPU score; about ten parks bring it down.
const HIGHEST: u8 = 64;

/// Returns whether other fibers come first.
#[inline]
pub(crate) fn is_batch(fiber: &Record) -> bool {
    fiber.cpu_score.load(atomic::Ordering::Relaxed) >= BATCH
}

/// Adds ticks of computing to the score; true if that made the fiber batch.
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

/// Makes the fiber batch until it parks.
///
/// It has just had its time, however short that was.
pub(crate) fn be_batch(fiber: &Record) {
    let cpu_score = fiber.cpu_score.load(atomic::Ordering::Relaxed);
    let higher = cpu_score.saturating_add(1).clamp(BATCH, HIGHEST);
    fiber.cpu_score.store(higher, atomic::Ordering::Relaxed);
}

/// Lowers the score of a fiber that parks.
#[inline]
pub(crate) fn lower_score(fiber: &Record) {
    let cpu_score = fiber.cpu_score.load(atomic::Ordering::Relaxed);
    if cpu_score > 0 {
        let lower = cpu_score - cpu_score.div_ceil(4);
        fiber.cpu_score.store(lower, atomic::Ordering::Relaxed);
    }
}

/// Counts of the fibers of one site: those that ended, and those that became batch.
///
/// A live fiber that became batch is counted already. Both counts are halved when they get large.
struct Site {
    location: AtomicUsize,
    /// Ended fibers in the lower half, batch fibers in the upper.
    counts: AtomicU32,
}

const ROOM: usize = 1024;
static SITES: [Site; ROOM] = [const {
    Site {
        location: AtomicUsize::new(0),
        counts: AtomicU32::new(0),
    }
}; ROOM];
/// Entries of the table that are tried; a site that finds none stays unknown.
const PROBES: usize = 8;
/// Ended fibers after which a site can be good.
const ENOUGH: u32 = 8;
/// A site is bad if more than one in so many fibers became batch.
const RATIO: u32 = 8;
/// Ended fibers to count; later ones count only once a fiber has become batch.
const COUNTED: u32 = 64;
const MOST: u32 = 0x4000;

/// A site, or none if the table has no room.
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

    /// Returns whether fibers from here end without computing much.
    #[inline]
    pub(crate) fn is_good(self) -> bool {
        self.0.is_some_and(|site| {
            let counts = site.counts.load(Relaxed);
            let (hot, ended) = (counts >> 16, counts & 0xffff);
            ended >= ENOUGH && hot * RATIO <= ended
        })
    }

    /// Returns whether more fibers from here than one in `RATIO` became batch.
    pub(crate) fn is_bad(self) -> bool {
        self.0.is_some_and(|site| {
            let counts = site.counts.load(Relaxed);
            (counts >> 16) * RATIO > counts & 0xffff
        })
    }

    /// Counts a fiber from here that has ended.
    #[inline]
    pub(crate) fn ended(self) {
        if let Some(site) = self.0 {
            let counts = site.counts.load(Relaxed);
            if counts < COUNTED || counts >> 16 > 0 {
                add(site, 1);
            }
        }
    }

    /// Counts a fiber from here that has become batch.
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
