//! Log lines about overruns, for standard error: grouped, and limited in number.
//!
//! Plain data; the time is an argument.
//!
//! A *group* is a spawn site and a function. The first overrun of a group is printed at once,
//! whole; then one line per [`PAUSE`] at most, with the number of further ones and the longest. At
//! most [`MOST`] groups are distinguished; the others are one.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::sched::diag::overrun::report::Overrun;

const PAUSE: Duration = Duration::from_secs(1);
const MOST: usize = 256;
/// Frames of the stack that the first line of a group shows.
const PLACES: usize = 8;

/// Spawn site, by address, and function.
type Key = Option<(usize, Option<String>)>;

struct Group {
    what: String,
    /// When the group may be printed again.
    at: Instant,
    more: u64,
    longest: Duration,
}

impl Group {
    /// Returns a line about the overruns that were not printed yet.
    fn tell(&mut self, now: Instant) -> Option<String> {
        if self.more == 0 || now < self.at {
            return None;
        }
        let times = if self.more == 1 {
            "overrun"
        } else {
            "overruns"
        };
        let line = format!(
            "indent: {} more {times} of {}, the longest {:.1?}\n",
            self.more, self.what, self.longest
        );
        (self.more, self.longest, self.at) = (0, Duration::ZERO, now + PAUSE);
        Some(line)
    }
}

#[derive(Default)]
pub(crate) struct Log {
    groups: HashMap<Key, Group>,
}

impl Log {
    /// Adds an overrun, and returns what to print of it now, if anything.
    pub(crate) fn add(&mut self, now: Instant, overrun: &Overrun) -> Option<String> {
        let function = overrun.function();
        let site = std::ptr::from_ref(overrun.location).addr();
        let key = Some((site, function.clone()));
        let known = self.groups.contains_key(&key) || self.groups.len() < MOST;
        let key = key.filter(|_| known);
        if let Some(group) = self.groups.get_mut(&key) {
            group.more += 1;
            group.longest = group.longest.max(overrun.ran);
            return group.tell(now);
        }
        let (file, line) = (overrun.location.file(), overrun.location.line());
        let what = match (&key, function) {
            (None, _) => "other functions".to_owned(),
            (_, Some(function)) => format!("{function} by fibers spawned at {file}:{line}"),
            (_, None) => format!("fibers spawned at {file}:{line}"),
        };
        let group = Group {
            what,
            at: now + PAUSE,
            more: 0,
            longest: Duration::ZERO,
        };
        self.groups.insert(key, group);
        Some(first(overrun))
    }

    /// Returns the lines that have become due.
    pub(crate) fn due(&mut self, now: Instant) -> String {
        let lines = self.groups.values_mut().filter_map(|group| group.tell(now));
        lines.collect()
    }

    /// Returns all lines that were not printed, at shutdown.
    pub(crate) fn rest(&mut self, now: Instant) -> String {
        self.groups.values_mut().for_each(|group| group.at = now);
        self.due(now)
    }

    /// Returns when the next line becomes due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let waiting = self.groups.values().filter(|group| group.more > 0);
        waiting.map(|group| group.at).min()
    }
}

/// Formats the first overrun of a group.
fn first(overrun: &Overrun) -> String {
    let text = overrun.to_string();
    let mut lines = text.lines();
    let mut told = format!("indent: {}\n", lines.next().unwrap_or_default());
    for line in lines.by_ref().take(PLACES) {
        let _ = writeln!(told, "{line}");
    }
    let left = lines.count();
    if left > 0 {
        let _ = writeln!(told, "    … and {left} more");
    }
    told
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::sched::diag::overrun::report::{OverrunAction, Waited};

    #[track_caller]
    fn overrun(milliseconds: u64) -> Overrun {
        Overrun {
            fiber: 1,
            name: None,
            location: Location::caller(),
            ran: Duration::from_millis(milliseconds),
            action: OverrunAction::Frozen,
            waited: Waited::default(),
            stack: Vec::new(),
        }
    }

    #[test]
    fn a_group_is_told_of_at_once_and_then_a_line_a_pause() {
        let mut log = Log::default();
        let start = Instant::now();
        let site = overrun(10);
        let with = |milliseconds| Overrun {
            ran: Duration::from_millis(milliseconds),
            ..site.clone()
        };
        let text = log.add(start, &with(10)).unwrap();
        assert!(text.starts_with("indent: fiber 1, spawned at "), "{text}");
        for ran in [11, 90, 12] {
            assert_eq!(log.add(start, &with(ran)), None);
        }
        assert!(log.add(start, &overrun(10)).is_some(), "another group");
        assert_eq!(log.next(), Some(start + PAUSE));
        assert_eq!(log.due(start), "");
        let text = log.due(start + PAUSE);
        assert!(text.starts_with("indent: 3 more overruns of "), "{text}");
        assert!(text.ends_with(", the longest 90.0ms\n"), "{text}");
        assert_eq!(log.next(), None);
        assert_eq!(log.add(start + PAUSE, &with(10)), None);
        assert!(log.rest(start + PAUSE).contains("1 more overrun of "));
        assert_eq!(log.rest(start + PAUSE), "");
    }
}
