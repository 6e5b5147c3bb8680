//! A heartbeat beside hogs: how late is whoever is woken while others compute for ever?
//!
//! A *bell* is rung by a plain thread, the *ringer*, some 2,000 times a second. Each ring is an entry
//! in a list, with the clock at the instant before the wake-up call; the *heartbeat*, a fiber or what
//! a rival has instead, reads the clock as the first thing when it is woken and answers all rings that
//! were made before. *Lateness* is the time between the two. A ring that nobody answers counts with the
//! time it had waited when the measurement ended, so that a heartbeat that starves shows in every
//! quantile, and not only in the number of rings served.
//!
//! The ringer runs under SCHED_FIFO where that is allowed, and the output says if it is not: else hogs
//! would delay it, not the heartbeat. It sends its clock, so its own delay is never counted.
//!
//! Neither side allocates or locks while it measures; the pages of both lists are touched before.
//!
//! A program implements [`Heart`] and hands it to [`main`]; it is then called as
//! `PROGRAM HOGS KIND SECONDS [RINGS/S]` and prints one line of ` NAME=VALUE`. The script `heartbeat`
//! next to this package runs all of them; `go/heartbeat` mirrors this file for Go.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::fifo;
use crate::hog::{self, Hogs, Kind, Output, Rate};

/// Rings a second if the command line does not say.
pub const RINGS: u64 = 2_000;

/// What wakes the heartbeat.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The rings, and what became of them. One thread rings, one heartbeat answers.
#[derive(Debug)]
pub struct Bell {
    /// The zero of all clocks here.
    start: Instant,
    /// When each ring was made, in nanoseconds.
    rung: Box<[AtomicU64]>,
    /// How many were made.
    sent: AtomicUsize,
    /// By how much each was answered late.
    late: Box<[AtomicU64]>,
    /// How many were answered.
    answered: AtomicUsize,
    /// Whether the heartbeat shall end.
    over: AtomicBool,
}

impl Bell {
    /// A bell for so many rings.
    #[must_use]
    pub fn new(rings: usize) -> Self {
        // Written, not only reserved: a fresh page costs more than a wake-up.
        let list = || (0..rings).map(|_| AtomicU64::new(u64::MAX)).collect();
        Bell {
            start: Instant::now(),
            rung: list(),
            sent: AtomicUsize::new(0),
            late: list(),
            answered: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// How many rings were made.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Acquire)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Whether the heartbeat shall end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Tells the heartbeat to end when it is next woken.
    pub fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// For the ringer: rings once.
    ///
    /// # Panics
    ///
    /// If there are more rings than the bell was made for.
    pub fn ring(&self, wake: &Wake) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.rung[sent].store(self.now(), Ordering::Relaxed);
        self.sent.store(sent + 1, Ordering::Release);
        wake();
    }

    /// For the heartbeat, as the first thing when it is woken: answers all rings made until now.
    pub fn answer(&self) {
        let now = self.now();
        let sent = self.sent.load(Ordering::Acquire);
        let first = self.answered.load(Ordering::Relaxed);
        let mut next = first;
        while next < sent {
            let rung = self.rung[next].load(Ordering::Relaxed);
            if rung > now {
                break; // made after we were woken: it wakes us again
            }
            self.late[next].store(now - rung, Ordering::Relaxed);
            next += 1;
        }
        self.answered.store(next, Ordering::Release);
    }

    /// Rings at an even rate until `ends` or until the bell is closed or has no rings left, and gives
    /// those that were answered late or never. Call it on a thread of its own.
    #[must_use]
    pub fn ring_until(&self, ends: Instant, rate: u64, wake: &Wake) -> Lateness {
        let begin = Instant::now();
        let period = Duration::from_nanos(1_000_000_000 / rate);
        let mut due = begin + period;
        while due < ends && !self.is_over() && self.sent() < self.rung.len() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.ring(wake);
            due += period;
        }
        thread::sleep(ends.min(due).saturating_duration_since(Instant::now()));
        self.lateness()
    }

    /// What became of the rings so far.
    #[must_use]
    pub fn lateness(&self) -> Lateness {
        let now = self.now();
        let (served, sent) = (self.answered.load(Ordering::Acquire), self.sent());
        let answered = self.late[..served]
            .iter()
            .map(|late| late.load(Ordering::Relaxed));
        let waiting = self.rung[served..sent]
            .iter()
            .map(|rung| now.saturating_sub(rung.load(Ordering::Relaxed)));
        Lateness::new(answered.chain(waiting).collect(), served)
    }
}

/// By how much rings were answered late.
#[derive(Clone, Debug)]
pub struct Lateness {
    /// In the order of the rings, in nanoseconds.
    pub in_order: Vec<u64>,
    sorted: Vec<u64>,
    served: usize,
}

impl Lateness {
    /// Of rings late by so many nanoseconds; the first `served` of them were answered.
    #[must_use]
    pub fn new(in_order: Vec<u64>, served: usize) -> Self {
        let mut sorted = in_order.clone();
        sorted.sort_unstable();
        Lateness {
            in_order,
            sorted,
            served,
        }
    }

    /// How many rings were answered.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served
    }

    /// The lateness that a share of all rings does not exceed, in microseconds.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1) as f64;
        let at = self.sorted.get((last * share) as usize);
        at.map_or(f64::NAN, |&ns| ns as f64 / 1e3)
    }

    /// The columns of the output.
    #[must_use]
    pub fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        columns.whole("rung", self.sorted.len() as f64);
        columns.whole("served", self.served as f64);
        for (name, share) in [
            ("p50_us", 0.5),
            ("p99_us", 0.99),
            ("p999_us", 0.999),
            ("max_us", 1.0),
        ] {
            columns.add(name, self.quantile(share));
        }
        columns
    }
}

/// The ` NAME=VALUE` part of a line of output.
#[derive(Clone, Debug, Default)]
pub struct Columns(pub String);

impl Columns {
    /// One more, with one decimal.
    pub fn add(&mut self, name: &str, value: f64) {
        write!(self.0, " {name}={value:.1}").expect("a string takes everything");
    }

    /// One more, a whole number.
    pub fn whole(&mut self, name: &str, value: f64) {
        write!(self.0, " {name}={value:.0}").expect("a string takes everything");
    }

    /// One more, a ratio.
    pub fn ratio(&mut self, name: &str, value: f64) {
        write!(self.0, " {name}={value:.3}").expect("a string takes everything");
    }
}

/// A runtime under measurement.
pub trait Heart {
    /// Its name in the output.
    const NAME: &'static str;

    /// Starts it, with [`WORKERS`](crate::WORKERS) workers where there is such a thing.
    fn start() -> Self;

    /// Starts a heartbeat that calls [`Bell::answer`] whenever it is woken, until [`Bell::is_over`].
    /// Returns what wakes it.
    fn beat(&self, bell: Arc<Bell>) -> Wake;

    /// Starts something that does not return for a long time.
    fn hog(&self, body: impl FnOnce() + Send + 'static);

    /// What it has counted itself, since the start.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Ends it; all hogs and the heartbeat have been told to end.
    fn end(self);
}

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Request {
    hogs: usize,
    kind: Kind,
    seconds: f64,
    rings: u64,
}

/// Reads `HOGS KIND SECONDS [RINGS/S]`.
fn parse(mut args: impl Iterator<Item = String>) -> Option<Request> {
    let request = Request {
        hogs: args.next()?.parse().ok()?,
        kind: Kind::from_name(&args.next()?)?,
        seconds: args.next()?.parse().ok().filter(|&s| s > 0.0 && s < 1e4)?,
        rings: match args.next() {
            Some(rings) => rings
                .parse()
                .ok()
                .filter(|rings| (1..=1_000_000).contains(rings))?,
            None => RINGS,
        },
    };
    args.next().is_none().then_some(request)
}

impl Request {
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How long hogs get until all have begun, if nothing keeps them from it.
    fn warm_up(&self) -> Duration {
        Duration::from_millis(100 + 12 * self.hogs as u64)
    }
}

/// One measurement of a rival.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How late the heartbeat was.
    pub lateness: Lateness,
    /// Whether the ringer ran before all others.
    pub fifo: bool,
    /// What the hogs did in a second.
    pub hogs: Rate,
    /// What the rival counted itself, a second.
    pub counted: Vec<(&'static str, f64)>,
}

/// Wakes a heartbeat for nothing for a while: it waits for the bell by then, and the runtime has had the
/// time to learn what it can know about it.
pub fn get_to_know(wake: &Wake) {
    for _ in 0..250 {
        thread::sleep(Duration::from_millis(2));
        wake();
    }
    thread::sleep(Duration::from_millis(20));
}

/// Runs the heartbeat of a rival beside hogs for some time. Without a rate, nobody rings.
///
/// # Panics
///
/// If a thread cannot be had.
pub fn measure<H: Heart>(
    hogs: &Arc<Hogs>,
    time: Duration,
    warm_up: Duration,
    rate: u64,
) -> Measured {
    let heart = H::start();
    let rings = (time.as_secs_f64() * rate as f64) as usize + 1;
    let bell = Arc::new(Bell::new(rings));
    let wake = heart.beat(bell.clone());
    get_to_know(&wake);
    for index in 0..hogs.count() {
        let hogs = hogs.clone();
        heart.hog(move || hogs.run(index));
    }
    thread::sleep(warm_up);
    let (begin, counted) = (hogs.begin(), heart.counted());
    let ends = Instant::now() + time;
    let ringer = thread::spawn({
        let (bell, wake) = (bell.clone(), wake.clone());
        move || {
            let fifo = fifo::claim();
            if rate == 0 {
                thread::sleep(ends.saturating_duration_since(Instant::now()));
                return (bell.lateness(), fifo);
            }
            (bell.ring_until(ends, rate, &wake), fifo)
        }
    });
    let (lateness, fifo) = ringer.join().expect("the ringer does not panic");
    let rate = begin.end(hogs);
    let counted = heart.counted().into_iter().zip(counted);
    let counted = counted
        .map(|((name, after), (_, before))| (name, (after - before) as f64 / time.as_secs_f64()));
    let counted = counted.collect();
    hogs.stop();
    bell.close();
    wake();
    heart.end();
    Measured {
        lateness,
        fifo,
        hogs: rate,
        counted,
    }
}

/// The `main` of every program.
#[must_use]
pub fn main<H: Heart>() -> ExitCode {
    let Some(request) = parse(std::env::args().skip(1)) else {
        let kinds = Kind::ALL.map(Kind::name).join("|");
        eprintln!("usage: PROGRAM HOGS {kinds} SECONDS [RINGS/S]");
        return ExitCode::from(2);
    };
    let mut output = Output::new(request.kind);
    // The same loops with nobody beside them, half of it before and half after.
    let plain = || hog::plain(request.kind, crate::WORKERS, request.time() / 2);
    let before = plain();
    let hogs = Arc::new(Hogs::new(request.kind, request.hogs));
    let measured = measure::<H>(&hogs, request.time(), request.warm_up(), request.rings);
    let plain = Rate::mean(&[before, plain()]);
    let mut columns = measured.lateness.columns();
    columns.add("hogs_per_s", measured.hogs.iterations);
    columns.ratio("cpus", measured.hogs.cpus);
    if request.kind.computes() {
        columns.add("plain_per_s", plain.iterations);
        columns.ratio("plain_cpus", plain.cpus);
        columns.ratio("share", measured.hogs.iterations / plain.iterations);
        columns.ratio("share_of_cpu", measured.hogs.each() / plain.each());
    }
    for (name, value) in &measured.counted {
        columns.add(name, *value);
    }
    columns.whole("fifo", f64::from(u8::from(measured.fifo)));
    let (name, kind) = (H::NAME, request.kind.name());
    let line = format!(
        "heartbeat {name} hogs={} kind={kind}{}\n",
        request.hogs, columns.0
    );
    output
        .real()
        .write_all(line.as_bytes())
        .expect("the output takes a line");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests;
