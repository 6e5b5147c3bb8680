//! Counts the verdicts on a whole program's fibers when they parked.
//!
//! A program parks by [`pause`] or asks by [`sample`]. With `--statistics` on its command line
//! every such place takes the verdict on its fiber, and [`print()`] shows at the end how many were
//! movable and bound, and by which function and variable. The functions here are on the stack when
//! the verdict is taken, so they are as plain as those of the probe.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::noted::{self, Noted, word};

static WANTED: AtomicBool = AtomicBool::new(false);
static SAMPLES: Mutex<Vec<Noted>> = Mutex::new(Vec::new());

/// Reads the command line; call it first.
pub fn begin() {
    let wanted = std::env::args().any(|argument| argument == "--statistics");
    WANTED.store(wanted, Relaxed);
}

/// Takes the verdict on the calling fiber, if statistics are on.
#[inline(never)]
pub fn sample() {
    if WANTED.load(Relaxed) {
        let noted = noted::now();
        let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(noted);
    }
}

/// Takes a sample and parks like any other park.
pub fn pause() {
    sample();
    indent::task::yield_now();
}

/// Prints the figures, if statistics are on.
pub fn print() {
    if !WANTED.load(Relaxed) {
        return;
    }
    noted::image().iter().for_each(|line| println!("{line}"));
    let samples = std::mem::take(&mut *SAMPLES.lock().unwrap_or_else(PoisonError::into_inner));
    table(&samples).iter().for_each(|line| println!("{line}"));
}

/// Returns the shares of the verdicts, most frequent first, each with its reasons below.
fn table(samples: &[Noted]) -> Vec<String> {
    let all = samples.len();
    let share = |n: usize| 100.0 * n as f64 / all.max(1) as f64;
    let mut lines = vec![format!("{all} parks")];
    let by_verdict = count(samples.iter().map(|noted| word(noted.mobility)));
    for (verdict, n) in by_verdict {
        lines.push(format!("{verdict:<8}{n:>9}{:>7.1} %", share(n)));
        let these = samples
            .iter()
            .filter(|noted| word(noted.mobility) == verdict);
        let reasons = these.filter_map(|noted| {
            let variable = noted.variable.as_deref().unwrap_or("?");
            Some(format!("{} by {variable}", noted.function.as_deref()?))
        });
        for (reason, n) in count(reasons) {
            lines.push(format!("        {n:>9}{:>7.1} %  {reason}", share(n)));
        }
    }
    lines
}

/// Counts how often each value occurs, most frequent first.
fn count<T: Ord>(of: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut counts = BTreeMap::new();
    for what in of {
        *counts.entry(what).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noted::Mobility;

    #[test]
    fn the_most_frequent_verdict_comes_first_with_its_reasons() {
        let noted = |mobility, function: Option<&str>| Noted {
            mobility,
            function: function.map(str::to_owned),
            variable: None,
            path: Vec::new(),
        };
        let bound = noted(Mobility::Bound, Some("keeps"));
        let samples = [noted(Mobility::Movable, None), bound.clone(), bound];
        let lines = table(&samples).join("\n");
        assert_eq!(
            lines,
            "3 parks\n\
             bound           2   66.7 %\n\
             \x20               2   66.7 %  keeps by ?\n\
             movable         1   33.3 %"
        );
    }
}
