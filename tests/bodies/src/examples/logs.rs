//! Logging: spans are entered by a thread, lines are written into a buffer of the thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::{LazyLock, Mutex, Once, PoisonError};

use crate::body::{Me, Outcome, ensure};
use crate::step::{again, step};

/// Lines by the number at their end.
type Lines = LazyLock<Mutex<HashMap<u64, Vec<String>>>>;

static SPANS: Lines = LazyLock::new(Mutex::default);
static LOG: Lines = LazyLock::new(Mutex::default);

#[inline(never)]
fn keep(lines: &Lines, line: &str) {
    let number = line.trim().rsplit(' ').next();
    let number = number.and_then(|word| word.parse().ok());
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let of_number = lines.entry(number.unwrap_or(u64::MAX)).or_default();
    of_number.push(line.trim().to_owned());
}

#[inline(never)]
fn take(lines: &Lines, number: u64) -> Vec<String> {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.remove(&number).unwrap_or_default()
}

/// Keeps what is written.
struct Keep;

impl io::Write for Keep {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        keep(&SPANS, &String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline(never)]
fn subscribe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_level(false)
            .with_writer(|| Keep);
        let set = tracing::subscriber::set_global_default(subscriber.finish());
        set.expect("the only subscriber");
    });
}

/// Spans are entered, one in the other; every line has those of its own request.
pub(crate) fn tracing(me: &Me) -> Outcome {
    subscribe();
    let number = me.number();
    let mut expected = Vec::new();
    let _request = tracing::info_span!("request", number).entered();
    for i in 0..10 {
        step();
        again(|| tracing::info_span!("other", i).in_scope(|| ()));
        tracing::info!("before {number}");
        expected.push(format!("request{{number={number}}}: before {number}"));
        let part = tracing::info_span!("part", i).entered();
        step();
        tracing::info!("inside {number}");
        let spans = format!("request{{number={number}}}:part{{i={i}}}");
        expected.push(format!("{spans}: inside {number}"));
        step();
        drop(part);
    }
    let found = take(&SPANS, number);
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    Ok(me.n)
}

/// More fibers in spans than the registry knows threads.
pub(crate) fn tracing_many(me: &Me) -> Outcome {
    subscribe();
    let number = me.number();
    let _request = tracing::info_span!("request", number).entered();
    step();
    indent::time::sleep(std::time::Duration::from_millis(300)); // until all are inside
    tracing::info!("inside {number}");
    let (found, expected) = (
        take(&SPANS, number),
        format!("request{{number={number}}}: inside {number}"),
    );
    ensure!(found == [&*expected], "{found:?} instead of {expected}");
    Ok(me.n)
}

/// A logger as many are: the line is put together in a buffer of the thread.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == "bodies"
    }

    fn log(&self, record: &log::Record<'_>) {
        thread_local!(static LINE: RefCell<String> = const { RefCell::new(String::new()) });
        if !self.enabled(record.metadata()) {
            return;
        }
        LINE.with(|line| {
            let mut line = line.borrow_mut(); // by the line that is written, for as long
            line.clear();
            let written = write!(line, "{}: {}", record.level(), record.args());
            keep(&LOG, written.map_or("not written", |()| line.as_str()));
        });
    }

    fn flush(&self) {}
}

/// Slow to write.
struct Slow(u64);

impl fmt::Display for Slow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        step();
        write!(formatter, "slow")?;
        step();
        write!(formatter, " {}", self.0)
    }
}

pub(crate) fn log(me: &Me) -> Outcome {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).expect("the only logger");
        log::set_max_level(log::LevelFilter::Info);
    });
    let number = me.number();
    let mut expected = Vec::new();
    for i in 0..10 {
        log::info!(target: "bodies", "{i} {number}");
        expected.push(format!("INFO: {i} {number}"));
        step();
        log::warn!(target: "bodies", "{}", Slow(number));
        expected.push(format!("WARN: slow {number}"));
        step();
    }
    let found = take(&LOG, number);
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    Ok(me.n)
}
