//! The table of overruns with names of functions, as `overruns()` returns it.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use indent_sysmon::symbols;

use crate::sched::diag::overrun::Kind;
use crate::sched::diag::overrun::report::culprit;
use crate::sched::diag::overrun::table::Entry;

/// Overruns of a runtime since its start, by spawn site and function, worst first.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.block_on(|| ());
/// let overruns = rt.overruns();
/// assert!(overruns.rows.is_empty());
/// assert_eq!(overruns.to_string(), "no overruns");
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Overruns {
    /// One row for each spawn site and function.
    pub rows: Vec<OverrunRow>,
    /// Overruns that were only counted, so the fiber is unknown.
    ///
    /// A fiber overran while no other fiber waited, and there was no
    /// [listener](crate::runtime::Builder::on_overrun). One that was stopped later is in the rows
    /// as well.
    pub unseen: u64,
    /// Reports that were lost because too many came at once.
    pub lost: u64,
}

/// A row of [`Overruns`].
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// for row in rt.overruns().rows {
///     println!("{:?} overran {} times, {:?} at most", row.function, row.overruns, row.longest);
/// }
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OverrunRow {
    /// Where the fibers were spawned; `None` for what did not fit into the table.
    pub location: Option<&'static Location<'static>>,
    /// The function they ran: see [`Overrun::function`](crate::runtime::Overrun::function).
    ///
    /// `None` if it is not known.
    pub function: Option<String>,
    /// Runs that were in this function when they passed the quantum.
    pub overruns: u64,
    /// The longest run time of them.
    pub longest: Duration,
    /// Sum of their run times, up to the last report of each.
    pub total: Duration,
    /// Reports after which the fiber was stopped with its thread, in the program's code.
    pub frozen: u64,
    /// Reports after which the fiber was stopped with its thread, in a library's code.
    pub frozen_in_library: u64,
    /// Reports of fibers that blocked their thread.
    pub detached: u64,
    /// Reports after which the fiber was switched out in place.
    pub in_place: u64,
    /// Reports after which nothing was done.
    pub noticed: u64,
}

impl OverrunRow {
    fn new(entry: &Entry, function: Option<String>) -> Self {
        let mut row = OverrunRow {
            location: entry.location,
            function,
            overruns: 0,
            longest: Duration::ZERO,
            total: Duration::ZERO,
            frozen: 0,
            frozen_in_library: 0,
            detached: 0,
            in_place: 0,
            noticed: 0,
        };
        row.add(entry);
        row
    }

    fn add(&mut self, entry: &Entry) {
        self.overruns += entry.overruns;
        self.longest = self.longest.max(Duration::from_nanos(entry.longest));
        self.total += Duration::from_nanos(entry.total);
        let by = |kind: Kind| entry.by_kind[kind as usize];
        self.frozen += by(Kind::Freeze);
        self.frozen_in_library += by(Kind::SuspectFreeze);
        self.detached += by(Kind::Detach);
        self.in_place += by(Kind::InPlace);
        self.noticed += by(Kind::Noticed);
    }

    /// Describes what was done, in words.
    fn done(&self) -> String {
        let parts = [
            (self.frozen, "frozen"),
            (self.frozen_in_library, "frozen in a library"),
            (self.detached, "detached"),
            (self.in_place, "in place"),
            (self.noticed, "noticed"),
        ];
        let parts = parts.iter().filter(|(n, _)| *n > 0);
        let parts: Vec<_> = parts.map(|(n, what)| format!("{n} {what}")).collect();
        parts.join(", ")
    }
}

impl Overruns {
    /// Names the functions, and adds rows of the same name together, which takes long.
    pub(crate) fn new(entries: &[Entry], unseen: u64, lost: u64) -> Self {
        let mut rows: HashMap<_, OverrunRow> = HashMap::new();
        for entry in entries {
            let function = culprit(&symbols::name(&entry.frames));
            let site = entry.location.map(std::ptr::from_ref);
            rows.entry((site, function.clone()))
                .and_modify(|row| row.add(entry))
                .or_insert_with(|| OverrunRow::new(entry, function));
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.total));
        Overruns { rows, unseen, lost }
    }
}

impl fmt::Display for Overruns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "function",
            "spawned at",
            "overruns",
            "longest",
            "total",
            "what was done",
        ];
        let mut lines = vec![heads.map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| {
            let at = row.location;
            [
                row.function.clone().unwrap_or_else(|| "?".to_owned()),
                at.map_or("elsewhere".to_owned(), |at| {
                    format!("{}:{}", at.file(), at.line())
                }),
                row.overruns.to_string(),
                format!("{:.1?}", row.longest),
                format!("{:.1?}", row.total),
                row.done(),
            ]
        }));
        if self.rows.is_empty() {
            f.write_str("no overruns")?;
        } else {
            let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
            let widths: Vec<_> = (0..heads.len()).filter_map(width).collect();
            for (i, line) in lines.iter().enumerate() {
                let [function, at, overruns, longest, total, done] = line;
                let [w0, w1, w2, w3, w4, _] = widths[..] else {
                    return Err(fmt::Error);
                };
                let end = if i > 0 { "\n" } else { "" };
                write!(f, "{end}{function:<w0$}  {at:<w1$}  {overruns:>w2$}  ")?;
                write!(f, "{longest:>w3$}  {total:>w4$}  {done}")?;
            }
        }
        for (n, what) in [(self.unseen, "nobody looked at"), (self.lost, "got lost")] {
            if n > 0 {
                write!(f, "\nand {n} that {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_printed_in_columns() {
        let entry = |site: &'static Location<'static>, total| Entry {
            location: Some(site),
            frames: Vec::new(),
            overruns: 2,
            longest: 12_000_000,
            total,
            by_kind: [0, 3, 0, 0, 0],
        };
        let entries = [
            entry(Location::caller(), 20_000_000),
            entry(Location::caller(), 1_220_000_000),
        ];
        let text = Overruns::new(&entries, 7, 1).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("function  spawned at"), "{text}");
        assert!(lines[1].contains("12.0ms"), "{text}");
        assert!(
            lines[1].ends_with("1.2s  3 frozen"),
            "the worst first: {text}"
        );
        assert_eq!(
            lines[1].find("3 frozen"),
            lines[2].find("3 frozen"),
            "{text}"
        );
        assert_eq!(lines[4], "and 1 that got lost");
    }
}
