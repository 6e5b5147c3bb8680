//! Layer: `sched`. The cost of fibers that compute all the time, with and without a thread each.
//!
//! 64 and 1,000 of them run for some seconds on two workers, beside a fiber that repeatedly sleeps
//! for a millisecond. Printed for each setting of `preempt_in_place`, and for as many plain
//! threads: the most threads that ran fibers, what was computed for each second of CPU compared
//! with the plain threads, and how late the sleeper was. `-- --seconds S` and `--quantum MS` change
//! how long each case takes and the quantum.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use indent::runtime::{Builder, Metrics};

const WORKERS: usize = 2;
const BEAT: Duration = Duration::from_millis(1);
const HOGS: [usize; 2] = [64, 1_000];

/// A piece of work.
type Work = fn(u64) -> u64;

/// Numbers only.
#[inline(never)]
fn arithmetic(seed: u64) -> u64 {
    (0..20_000).fold(seed, |x: u64, n| {
        black_box(x.wrapping_mul(6_364_136_223_846_793_005) ^ n)
    })
}

/// Allocates, compares and frees.
#[inline(never)]
fn trees(seed: u64) -> u64 {
    let mut tree = BTreeMap::new();
    for n in 0..100 {
        let key = (seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        tree.insert(format!("{key:x}"), n);
    }
    tree.values().rev().fold(0, |sum, n| sum * 31 + n)
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Shared {
    fn hog(&self, work: Work) {
        let mut seed = 1;
        while !self.stop.load(Relaxed) {
            seed = black_box(work(seed));
            self.done.fetch_add(1, Relaxed);
        }
    }
}

/// Sleeps repeatedly; returns how late each wake was.
fn beat(shared: &Shared) -> Vec<Duration> {
    let mut late = Vec::new();
    while !shared.stop.load(Relaxed) {
        let due = Instant::now() + BEAT;
        indent::time::sleep(BEAT);
        late.push(due.elapsed());
    }
    late.sort_unstable();
    late
}

/// Returns the pieces of work that as many plain threads do in a second of CPU.
fn plain(hogs: usize, work: Work, time: Duration) -> f64 {
    let shared = Arc::new(Shared::default());
    let start = |_| {
        let shared = shared.clone();
        let thread = thread::Builder::new().stack_size(256 << 10);
        thread.spawn(move || shared.hog(work)).expect("a thread")
    };
    let threads: Vec<_> = (0..hogs).map(start).collect();
    let done = measure(&shared, time, || ());
    shared.stop.store(true, Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    done
}

/// Returns the CPU time of this process so far.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock");
    Duration::from(time).as_secs_f64()
}

/// Returns the work done in that time for each second of CPU, after a quarter of the time to warm
/// up.
fn measure(shared: &Shared, time: Duration, mut look: impl FnMut()) -> f64 {
    thread::sleep(time / 4);
    let (before, cpu_before) = (shared.done.load(Relaxed), cpu());
    let end = Instant::now() + time;
    while Instant::now() < end {
        look();
        thread::sleep(Duration::from_millis(5));
    }
    (shared.done.load(Relaxed) - before) as f64 / (cpu() - cpu_before)
}

fn fibers(hogs: usize, work: Work, time: Duration, quantum: Duration, in_place: bool, plain: f64) {
    let builder = Builder::new().workers(WORKERS).preempt_quantum(quantum);
    let runtime = builder
        .preempt_in_place(in_place)
        .build()
        .expect("a runtime");
    runtime.wait_until_surveyed(None);
    let shared = Arc::new(Shared::default());
    let late = runtime.spawn({
        let shared = shared.clone();
        move || beat(&shared)
    });
    let fibers = runtime.block_on({
        let shared = &shared;
        move || {
            let hog = |_| {
                let shared = shared.clone();
                indent::spawn(move || shared.hog(work))
            };
            (0..hogs).map(hog).collect::<Vec<_>>()
        }
    });
    let mut threads = 0;
    let look = || threads = threads.max(runtime.metrics().carriers);
    let done = measure(&shared, time, look);
    let Metrics {
        in_place_outside_regions_total,
        freezes_total,
        ..
    } = runtime.metrics();
    shared.stop.store(true, Relaxed);
    let late = late.join().expect("no panic");
    fibers
        .into_iter()
        .for_each(|fiber| fiber.join().expect("no panic"));
    let percent = done * 100.0 / plain;
    let at = |share: usize| late[(late.len() - 1) * share / 1_000].as_secs_f64() * 1e3;
    let word = if in_place { "on" } else { "off" };
    println!(
        "  {word:<4}{threads:>5} threads {percent:>6.1} % late {:.2} / {:.2} / {:.2} ms, \
         {in_place_outside_regions_total} in place, {freezes_total} freezes",
        at(500),
        at(990),
        at(1_000),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, preset: f64| {
        let at = arguments.iter().position(|argument| argument == name);
        let value = at.and_then(|at| arguments.get(at + 1)?.parse().ok());
        Duration::from_secs_f64(value.unwrap_or(preset))
    };
    let time = number("--seconds", 3.0);
    let quantum = number("--quantum", 10.0) / 1_000;
    let kinds: [(&str, Work); 2] = [("arithmetic", arithmetic), ("trees", trees)];
    for (name, work) in kinds {
        for hogs in HOGS {
            println!("{hogs} fibers, {name}; late: p50 / p99 / max");
            let plain = plain(hogs, work, time);
            for in_place in [false, true] {
                fibers(hogs, work, time, quantum, in_place, plain);
            }
        }
    }
}
