//! Counts overruns by function and by the place where the fiber was spawned. Plain data.
//!
//! A *key* is a spawn site and the beginnings of the innermost functions of the program that were
//! on the stack. No names: a caller that asks for the table looks them up and adds rows together
//! that name the same function (`summary.rs`). So only such callers pay for names.
//!
//! There are at most [`MOST`] keys. A key that comes later counts for its site alone, and beyond
//! twice as many keys for one entry without a site.

use std::collections::HashMap;
use std::panic::Location;

use crate::sched::diag::overrun::Kind;
use crate::sched::diag::overrun::slots::Facts;

const MOST: usize = 512;
/// Number of functions in a key.
pub(crate) const DEPTH: usize = 6;

/// A spawn site, by address, and beginnings of functions.
pub(crate) type Key = (usize, [usize; DEPTH]);

/// Counts of one key.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) location: Option<&'static Location<'static>>,
    /// The frames of the first report.
    pub(crate) frames: Vec<usize>,
    pub(crate) overruns: u64,
    pub(crate) longest: u64,
    pub(crate) total: u64,
    pub(crate) by_kind: [u64; Kind::COUNT],
}

#[derive(Default)]
pub(crate) struct Table {
    entries: HashMap<Key, Entry>,
}

impl Table {
    /// Adds a report of a fiber from this site.
    pub(crate) fn add(
        &mut self,
        location: &'static Location<'static>,
        functions: [usize; DEPTH],
        frames: &[usize],
        facts: &Facts,
    ) {
        let site = std::ptr::from_ref(location).addr();
        let keys = [(site, functions), (site, [0; DEPTH]), (0, [0; DEPTH])];
        let limits = [MOST, 2 * MOST, usize::MAX];
        let fits = |(key, limit): &(Key, usize)| {
            self.entries.len() < *limit || self.entries.contains_key(key)
        };
        let found = keys.into_iter().zip(limits).find(fits);
        let key = found.map_or((0, [0; DEPTH]), |(key, _)| key);
        let is_whole = key.1 == functions;
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            location: (key.0 != 0).then_some(location),
            frames: if is_whole {
                frames.to_vec()
            } else {
                Vec::new()
            },
            overruns: 0,
            longest: 0,
            total: 0,
            by_kind: [0; Kind::COUNT],
        });
        entry.overruns += u64::from(facts.reported == 0);
        entry.longest = entry.longest.max(facts.ran);
        entry.total += facts.ran.saturating_sub(facts.reported);
        entry.by_kind[facts.kind as usize] += 1;
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.values().cloned().collect()
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn facts(ran: u64, reported: u64) -> Facts {
        Facts {
            kind: Kind::Freeze,
            ran,
            reported,
            call: 0,
            interactive: 0,
            batch: 0,
            pressed_for: 0,
        }
    }

    #[test]
    fn reports_of_one_stretch_are_one_overrun_as_long_as_the_last_of_them() {
        let mut table = Table::default();
        for (ran, reported) in [(10, 0), (20, 10), (45, 20)] {
            table.add(Location::caller(), [1; DEPTH], &[7], &facts(ran, reported));
        }
        table.add(Location::caller(), [1; DEPTH], &[8], &facts(10, 0));
        let entries = table.entries();
        let sites = entries.len();
        assert_eq!(sites, 2, "two lines");
        let first = entries.iter().find(|entry| entry.total > 10).unwrap();
        assert_eq!((first.overruns, first.longest, first.total), (1, 45, 45));
        assert_eq!(first.by_kind[Kind::Freeze as usize], 3);
        assert_eq!(first.frames, [7]);
    }

    #[test]
    fn a_table_is_bounded_and_loses_no_overrun() {
        let mut table = Table::default();
        let here = Location::caller();
        for n in 0..10 * MOST {
            table.add(here, [n + 1; DEPTH], &[n], &facts(10, 0));
        }
        let entries = table.entries();
        assert!(entries.len() <= MOST + 1, "{}", entries.len());
        let sum: u64 = entries.iter().map(|entry| entry.overruns).sum();
        assert_eq!(sum, 10 * MOST as u64);
        let longest = entries.iter().max_by_key(|entry| entry.overruns).unwrap();
        assert!(longest.frames.is_empty(), "the rest of its site");
        assert!(longest.location.is_some());
    }
}
