//! The large request: some CPU time of ordinary Rust.
//!
//! A round writes a report as text, reads it again, counts what is in it and sorts the counts: it formats,
//! allocates, parses, hashes and sorts, with std alone. It knows nothing of fibers. How many rounds make up
//! the CPU time that is wanted is measured once, at the start, on this machine.
//!
//! One thing is not as usual: the hash map has std's hash, but fixed keys. `HashMap::new` counts random keys up in a
//! thread-local, and where the compiler inlines that, the fiber of whoever calls it may not leave its thread: a ping
//! would wait for a crunch that keeps the same one ("Where it ends" in the README).

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Lines of a report.
const LINES: u64 = 200;
/// Rounds that are timed together, and how often: the median counts.
const BATCH: u32 = 50;
const BATCHES: usize = 15;

/// Rounds so far: requests that take turns all end late, but work is done from the beginning.
static DONE: AtomicU64 = AtomicU64::new(0);

type FixedKeys = BuildHasherDefault<DefaultHasher>;

/// How much work one request is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crunch {
    rounds: u32,
}

impl Crunch {
    /// As many rounds as take this CPU time here.
    pub(crate) fn of(time: Duration) -> Crunch {
        let mut batches = [(); BATCHES].map(|()| {
            let before = cpu_time();
            for seed in 0..BATCH {
                black_box(round(seed.into()));
            }
            cpu_time() - before
        });
        batches.sort();
        let one = batches[BATCHES / 2].as_secs_f64() / f64::from(BATCH);
        let rounds = (time.as_secs_f64() / one).round();
        Crunch {
            rounds: (rounds as u32).max(1),
        }
    }

    /// Computes; the result is of no use, but it has to be computed.
    pub(crate) fn run(self) -> u64 {
        (0..self.rounds).fold(0, |sum, seed| {
            DONE.fetch_add(1, Relaxed);
            sum ^ round(black_box(seed.into()))
        })
    }

    /// How many requests' worth of work has been done so far, in the whole process.
    pub(crate) fn done(self) -> f64 {
        DONE.load(Relaxed) as f64 / f64::from(self.rounds)
    }
}

/// What this thread has computed so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every thread has a CPU clock")
        .into()
}

fn round(seed: u64) -> u64 {
    let report = written(seed);
    let mut totals: Vec<(u64, &str)> = counted(&report)
        .into_iter()
        .map(|(name, total)| (total, name))
        .collect();
    totals.sort_unstable();
    let (largest, name) = totals.last().expect("a report has lines");
    largest.rotate_left(name.len() as u32)
}

/// Lines such as `customer-17 4242 3.25`.
fn written(seed: u64) -> String {
    let mut report = String::new();
    let mut x = seed;
    for line in 0..LINES {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(line);
        let (customer, amount, price) = (x >> 59, (x >> 33) % 10_000, (x >> 50) as f64 / 64.0);
        writeln!(report, "customer-{customer} {amount} {price:.2}").expect("a String has room");
    }
    report
}

fn counted(report: &str) -> HashMap<&str, u64, FixedKeys> {
    let mut totals = HashMap::<_, _, FixedKeys>::default();
    for line in report.lines() {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("a line has three words");
        let name = next();
        let amount: u64 = next().parse().expect("an amount is a number");
        let price: f64 = next().parse().expect("a price is a number");
        *totals.entry(name).or_default() += (amount as f64 * price) as u64;
    }
    totals
}
