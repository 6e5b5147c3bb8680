//! The output: progress, the table, lines of JSON.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stderr};

use crate::arguments::Demonstration;
use crate::rows::{Latency, Row};

/// The percentiles that are shown: a name, and the share of the pings that were no slower.
pub(crate) const PARTS: [(&str, f64); 4] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
/// Columns of the bar.
const COLUMNS: usize = 30;

/// Progress on standard error: a bar on a terminal, else a line for each measurement.
pub(crate) struct Progress {
    rows: usize,
    begun: usize,
    doing: String,
    is_bar: bool,
}

impl Progress {
    pub(crate) fn new(rows: usize) -> Progress {
        Progress {
            rows,
            begun: 0,
            doing: String::new(),
            is_bar: stderr().is_terminal(),
        }
    }

    pub(crate) fn begin(&mut self, preempt: bool, crunches: usize) {
        self.begun += 1;
        let preempt = on_or_off(preempt);
        self.doing = format!("preemption {preempt}, {crunches} crunches in flight");
        match self.is_bar {
            true => self.at(0.0),
            false => eprintln!("{} of {}: {}", self.begun, self.rows, self.doing),
        }
    }

    /// Shows how much of the present measurement is done.
    pub(crate) fn at(&self, part: f64) {
        if !self.is_bar {
            return;
        }
        let all = (self.begun as f64 - 1.0 + part.clamp(0.0, 1.0)) / self.rows as f64;
        let full = (all * COLUMNS as f64) as usize;
        let (full, empty) = ("█".repeat(full), "░".repeat(COLUMNS - full));
        let line = format!(
            "\r\x1b[K{full}{empty} {:3.0} %  {}",
            100.0 * all,
            self.doing
        );
        let _closed = stderr().write_all(line.as_bytes());
    }

    pub(crate) fn end(&self) {
        if self.is_bar {
            let _closed = stderr().write_all(b"\r\x1b[K");
        }
    }
}

pub(crate) fn on_or_off(preempt: bool) -> &'static str {
    if preempt { "on" } else { "off" }
}

/// Returns the table for readers.
pub(crate) fn table(rows: &[Row], wanted: &Demonstration) -> String {
    let mut table = String::new();
    table.push_str(&heading(rows, wanted));
    table.push_str(
        "preemption  crunches       p50       p99     p99.9       max      pings answered  crunches/s  bound  threads\n",
    );
    for row in rows {
        let (preempt, crunches) = (on_or_off(row.preempt), row.crunches);
        write!(table, "{preempt:<10}{crunches:>10}").expect("a String has room");
        for (_, part) in PARTS {
            let latency = row.latency(part).map_or("none".to_owned(), in_words);
            write!(table, "{latency:>10}").expect("a String has room");
        }
        let answered = format!("{} of {}", row.answered(), row.pings.len());
        let rate = row.crunched_per_second;
        let (bound, threads) = (row.bound, row.threads);
        writeln!(table, "{answered:>20}{rate:>12.1}{bound:>7}{threads:>9}")
            .expect("a String has room");
    }
    table
}

fn heading(rows: &[Row], wanted: &Demonstration) -> String {
    let first = rows.first().expect("there are rows");
    let (workers, rate, seconds) = (first.workers, wanted.rate, wanted.seconds);
    let fifo = match &first.fifo {
        Ok(()) => "SCHED_FIFO".to_owned(),
        Err(why) => format!("ordinary priority ({why})"),
    };
    format!(
        "/ping, {rate} a second for {seconds} s, beside /crunch of {:?} each, on {workers} workers\n\
         load generator in a process of its own, at {fifo}\n\n",
        wanted.crunch
    )
}

/// Formats a latency with three digits.
pub(crate) fn in_words(latency: Latency) -> String {
    let seconds = latency.time.as_secs_f64();
    let (value, unit) = if seconds < 1.0 {
        (seconds * 1e3, "ms")
    } else {
        (seconds, "s")
    };
    let decimals = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    let sign = if latency.is_at_least { "≥ " } else { "" };
    format!("{sign}{value:.decimals$} {unit}")
}

/// Returns the row for programs: a JSON object in one line.
///
/// Times are in microseconds; those in `at_least` would have been longer.
pub(crate) fn json(row: &Row, wanted: &Demonstration) -> String {
    let mut line = format!(
        r#"{{"preempt":{},"crunches_in_flight":{},"pings":{},"answered":{},"#,
        row.preempt,
        row.crunches,
        row.pings.len(),
        row.answered()
    );
    let mut at_least = Vec::new();
    for (name, part) in PARTS {
        let latency = row.latency(part);
        if latency.as_ref().is_some_and(|latency| latency.is_at_least) {
            at_least.push(format!("{name:?}"));
        }
        let time = latency.map(|latency| latency.time.as_secs_f64() * 1e6);
        let time = time.map_or("null".to_owned(), |time| format!("{time:.1}"));
        write!(line, r#""{name}_us":{time},"#).expect("a String has room");
    }
    write!(
        line,
        r#""at_least":[{}],"crunches_per_s":{:.2},"crunch_ms":{},"seconds":{},"rate":{},"workers":{},"bound":{},"threads":{},"fifo":{}}}"#,
        at_least.join(","),
        row.crunched_per_second,
        wanted.crunch.as_secs_f64() * 1e3,
        wanted.seconds,
        wanted.rate,
        row.workers,
        row.bound,
        row.threads,
        row.fifo.is_ok()
    )
    .expect("a String has room");
    line
}
