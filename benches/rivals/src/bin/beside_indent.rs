//! What channels, locks and select do beside hogs, and without them.
//!
//! ```text
//! cargo run --release -p indent-rivals --bin beside_indent -- COMMAND [SECONDS]
//! ```
//!
//! - `primitives [SECONDS] [NAME]`: each of them, or that one, is used by two or four fibers for so long
//!   (2), on a runtime of 2 workers: first alone, then beside 8 endless loops of arithmetic in the same
//!   runtime. How many operations a second, and how long does one take?
//! - `fairness [SECONDS]`: 8 fibers lock one mutex as often as they can. In each second (of 5): how many
//!   locks, and what part of its fair share, an eighth, did the fiber get that got the least?
//!
//! What one operation of `primitives` is:
//!
//! | | fibers | operation |
//! |---|---|---|
//! | `bounded` | 2 | a round trip over two channels of capacity 1 |
//! | `rendezvous` | 2 | the same with capacity 0 |
//! | `oneshot` | 2 | a request through a channel, with a oneshot channel for the answer |
//! | `broadcast` | 4 | one sends to three, and waits for a word of each |
//! | `watch` | 2 | a round trip over two watched values |
//! | `mutex` | 4 | one lock |
//! | `rwlock` | 4 | one lock, every fourth to write |
//! | `semaphore` | 4 | one of two permits, taken and given back |
//! | `condvar` | 2 | its turn is awaited, and given to the other |
//! | `notify` | 2 | the same |
//! | `barrier` | 4 | one wait for all |
//! | `select` | 2 | a round trip; one receives from two channels, by turns the one and the other |
//!
//! Each includes a look at the clock. An operation that had begun when the time was over counts, with
//! all it took: who starves shows in the maximum.

use std::env;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indent::chan;
use indent::sync::{Barrier, Condvar, Mutex, Notify, RwLock, Semaphore};
use indent::{JoinHandle, Runtime, runtime, select};
use indent_rivals::hog::{self, Hogs, Kind, Rate};
use indent_rivals::latency::Histogram;
use indent_rivals::{LOCKING_FIBERS, WORKERS, allocator};

allocator!();

/// Hogs beside which everything is done once more.
const HOGS: usize = 8;
/// Fibers of what more than two may use.
const FOUR: usize = 4;
/// How long the fibers, and then the hogs beside them, run before anything is measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// How long after the end somebody may still wait until he counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time is not measured yet.
const BEFORE: u8 = 0;
/// What begins now is measured.
const MEASURED: u8 = 1;
/// All shall end.
const OVER: u8 = 2;

/// What a fiber measures of what it does.
struct Meter {
    phase: Arc<AtomicU8>,
    /// In which phase the operation began, and when.
    began: (u8, Instant),
    latencies: Histogram,
}

impl Meter {
    fn new(phase: Arc<AtomicU8>) -> Self {
        Meter {
            phase,
            began: (BEFORE, Instant::now()),
            latencies: Histogram::default(),
        }
    }

    fn is_over(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OVER
    }

    /// An operation is done, and the next one begins.
    fn next(&mut self) {
        let (phase, began) = self.began;
        let now = Instant::now();
        if phase == MEASURED {
            self.latencies.record(now - began);
        }
        self.began = (self.phase.load(Ordering::Relaxed), now);
    }

    /// One operation after the other, until the time is over.
    fn repeat(&mut self, mut operation: impl FnMut()) {
        self.began.1 = Instant::now();
        while !self.is_over() {
            operation();
            self.next();
        }
    }
}

/// The fibers that use a primitive.
struct Crew<'a> {
    runtime: &'a Runtime,
    phase: Arc<AtomicU8>,
    measuring: Vec<JoinHandle<Histogram>>,
    helping: Vec<JoinHandle<()>>,
}

impl<'a> Crew<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        Crew {
            runtime,
            phase: Arc::new(AtomicU8::new(BEFORE)),
            measuring: Vec::new(),
            helping: Vec::new(),
        }
    }

    /// One more fiber, whose operations count.
    fn measure(&mut self, body: impl FnOnce(&mut Meter) + Send + 'static) {
        let mut meter = Meter::new(self.phase.clone());
        let fiber = self.runtime.spawn(move || {
            body(&mut meter);
            meter.latencies
        });
        self.measuring.push(fiber);
    }

    /// One more fiber, which ends when those that measure have.
    fn help(&mut self, body: impl FnOnce() + Send + 'static) {
        self.helping.push(self.runtime.spawn(body));
    }

    fn fibers(&self) -> usize {
        self.measuring.len() + self.helping.len()
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    /// Waits for all, and gives what they measured.
    fn end(self, name: &str) -> Histogram {
        self.enter(OVER);
        let mut all = Histogram::default();
        for fiber in self.measuring {
            all.add(&ended(fiber, name));
        }
        self.helping
            .into_iter()
            .for_each(|fiber| ended(fiber, name));
        all
    }
}

/// What a fiber returns, which is asked to come to its end; there is nothing to measure if it does not.
fn ended<T>(fiber: JoinHandle<T>, name: &str) -> T {
    match fiber.join_timeout(PATIENCE) {
        Ok(result) => result.expect("no fiber panics"),
        Err(_) => {
            eprintln!("{name}: a fiber is STUCK, {PATIENCE:?} after the end");
            process::exit(1);
        }
    }
}

/// Has a crew begin to use a primitive.
type Begin = fn(&mut Crew<'_>);

/// All primitives.
const PRIMITIVES: [(&str, Begin); 12] = [
    ("bounded", |crew| channels(crew, 1)),
    ("rendezvous", |crew| channels(crew, 0)),
    ("oneshot", oneshots),
    ("broadcast", broadcasts),
    ("watch", watches),
    ("mutex", mutexes),
    ("rwlock", rwlocks),
    ("semaphore", semaphores),
    ("condvar", condvars),
    ("notify", notifies),
    ("barrier", barriers),
    ("select", selects),
];

fn channels(crew: &mut Crew<'_>, capacity: usize) {
    let (there, from_here) = chan::bounded(capacity);
    let (back, from_there) = chan::bounded(capacity);
    crew.help(move || {
        from_here
            .iter()
            .for_each(|number: u64| back.send(number).expect("somebody receives"));
    });
    crew.measure(move |meter| {
        meter.repeat(|| {
            there.send(1).expect("somebody receives");
            from_there.recv().expect("somebody sends");
        });
    });
}

fn oneshots(crew: &mut Crew<'_>) {
    let (requests, served) = chan::bounded(1);
    crew.help(move || {
        let serve = |answer: chan::OneshotSender<u64>| answer.send(1).expect("somebody receives");
        served.iter().for_each(serve);
    });
    crew.measure(move |meter| {
        meter.repeat(|| {
            let (tx, mut rx) = chan::oneshot();
            requests.send(tx).expect("somebody receives");
            rx.recv().expect("somebody sends");
        });
    });
}

fn broadcasts(crew: &mut Crew<'_>) {
    const HEARERS: usize = FOUR - 1;
    let (tx, rx) = chan::broadcast(1);
    let (word, words) = chan::bounded(HEARERS);
    for _ in 0..HEARERS {
        let (mut rx, word) = (tx.subscribe(), word.clone());
        crew.help(move || {
            while let Ok(number) = rx.recv() {
                word.send(number).expect("somebody receives");
            }
        });
    }
    drop(rx);
    crew.measure(move |meter| {
        meter.repeat(|| {
            tx.send(1_u64).expect("somebody receives");
            for _ in 0..HEARERS {
                words.recv().expect("somebody sends");
            }
        });
    });
}

fn watches(crew: &mut Crew<'_>) {
    let (there, mut from_here) = chan::watch(0_u64);
    let (back, mut from_there) = chan::watch(0_u64);
    crew.help(move || {
        while let Ok(number) = from_here.recv() {
            back.send(*number).expect("somebody receives");
        }
    });
    crew.measure(move |meter| {
        let mut number = 0;
        meter.repeat(|| {
            number += 1;
            there.send(number).expect("somebody receives");
            let answer = from_there.recv().expect("somebody sends");
            assert_eq!(*answer, number);
        });
    });
}

/// So many fibers that all do the same, with what they share.
fn alike<T: Send + Sync + 'static>(
    crew: &mut Crew<'_>,
    fibers: usize,
    shared: T,
    body: fn(usize, &T, &mut Meter),
) {
    let shared = Arc::new(shared);
    for index in 0..fibers {
        let shared = shared.clone();
        crew.measure(move |meter| body(index, &shared, meter));
    }
}

fn mutexes(crew: &mut Crew<'_>) {
    alike(crew, FOUR, Mutex::new(0), |_, mutex, meter| {
        meter.repeat(|| *mutex.lock().expect("no fiber panics") += 1);
    });
}

fn rwlocks(crew: &mut Crew<'_>) {
    alike(crew, FOUR, RwLock::new(0), |index, lock, meter| {
        let mut done = index;
        meter.repeat(|| {
            done += 1;
            if done.is_multiple_of(4) {
                *lock.write().expect("no fiber panics") = done;
            } else {
                std::hint::black_box(*lock.read().expect("no fiber panics"));
            }
        });
    });
}

fn semaphores(crew: &mut Crew<'_>) {
    alike(crew, FOUR, Semaphore::new(2), |_, semaphore, meter| {
        meter.repeat(|| drop(semaphore.acquire().expect("nobody closes it")));
    });
}

fn condvars(crew: &mut Crew<'_>) {
    let turn = (Mutex::new(0), Condvar::new());
    alike(crew, 2, turn, |index, (turn, changed), meter| {
        meter.repeat(|| {
            let turn = turn.lock().expect("no fiber panics");
            let turn = changed.wait_while(turn, |turn| *turn != index);
            *turn.expect("no fiber panics") = 1 - index;
            changed.notify_one();
        });
        // Who saw the end has given the turn away; who did not may still wait for it.
        *turn.lock().expect("no fiber panics") = 1 - index;
        changed.notify_one();
    });
}

fn notifies(crew: &mut Crew<'_>) {
    let turns = [Notify::new(), Notify::new()];
    turns[0].notify_one();
    alike(crew, 2, turns, |index, turns, meter| {
        meter.repeat(|| {
            turns[index].notified();
            turns[1 - index].notify_one();
        });
        turns[1 - index].notify_one(); // as with the condition variable
    });
}

fn barriers(crew: &mut Crew<'_>) {
    let shared = (Barrier::new(FOUR), AtomicU64::new(u64::MAX));
    alike(crew, FOUR, shared, |index, (barrier, last), meter| {
        // All must leave after the same wait: the first says before it which one that is.
        for round in 0.. {
            if index == 0 && meter.is_over() {
                last.store(round, Ordering::Relaxed);
            }
            barrier.wait();
            meter.next();
            if round >= last.load(Ordering::Relaxed) {
                break;
            }
        }
    });
}

fn selects(crew: &mut Crew<'_>) {
    let (there, from_here) = chan::bounded::<u64>(1);
    let (also, from_also) = chan::bounded::<u64>(1);
    let (back, from_there) = chan::bounded(1);
    crew.help(move || {
        let receive = || {
            select! {
                recv(&from_here) -> number => number,
                recv(&from_also) -> number => number,
            }
        };
        while let Ok(number) = receive() {
            back.send(number).expect("somebody receives");
        }
    });
    crew.measure(move |meter| {
        let mut turns = [&there, &also].into_iter().cycle();
        meter.repeat(|| {
            let turn = turns.next().expect("it goes round");
            turn.send(1).expect("somebody receives");
            from_there.recv().expect("somebody sends");
        });
    });
}

/// Some hogs as fibers of a runtime.
struct Beside {
    hogs: Arc<Hogs>,
    fibers: Vec<JoinHandle<()>>,
}

impl Beside {
    fn new(runtime: &Runtime, count: usize) -> Self {
        let hogs = Arc::new(Hogs::new(Kind::Arith, count));
        let start = |index| {
            let hogs = hogs.clone();
            runtime.spawn(move || hogs.run(index))
        };
        let fibers = (0..count).map(start).collect();
        Beside { hogs, fibers }
    }

    fn end(self) {
        self.hogs.stop();
        self.fibers
            .into_iter()
            .for_each(|fiber| ended(fiber, "hogs"));
    }
}

/// What one use of a primitive has shown.
struct Used {
    fibers: usize,
    per_second: f64,
    latencies: Histogram,
    /// What the hogs beside it did.
    hogs: Rate,
}

fn start() -> Runtime {
    let builder = runtime::Builder::new().workers(WORKERS);
    builder.build().expect("the runtime starts")
}

fn measure(name: &str, begin: Begin, hogs: usize, time: Duration) -> Used {
    let runtime = start();
    let mut crew = Crew::new(&runtime);
    begin(&mut crew);
    let fibers = crew.fibers();
    thread::sleep(WARM_UP);
    let beside = Beside::new(&runtime, hogs);
    thread::sleep(WARM_UP);
    let (worked, start) = (beside.hogs.begin(), Instant::now());
    crew.enter(MEASURED);
    thread::sleep(time);
    crew.enter(OVER);
    let took = start.elapsed();
    let hogs = worked.end(&beside.hogs);
    beside.end();
    let latencies = crew.end(name);
    Used {
        fibers,
        per_second: latencies.count() as f64 / took.as_secs_f64(),
        latencies,
        hogs,
    }
}

fn primitives(time: Duration, only: Option<&str>) {
    let plain = hog::plain(Kind::Arith, WORKERS, time / 2);
    println!("{:<23}{:<34}beside {HOGS} hogs", "", "alone");
    let columns = format!(
        "{:>10}{:>8}{:>8}{:>9}",
        "op/s", "p50 µs", "p99 µs", "max ms"
    );
    println!(
        "{:<12}{:>6}{columns}{columns}{:>10}{:>7}",
        "primitive", "fibers", "of alone", "hogs"
    );
    for (name, begin) in PRIMITIVES {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let [alone, beside] = [0, HOGS].map(|hogs| measure(name, begin, hogs, time));
        let figures = |used: &Used| {
            let us = |share| used.latencies.quantile(share).as_secs_f64() * 1e6;
            let (ops, max) = (used.per_second, us(1.0) / 1e3);
            format!("{ops:>10.0}{:>8.1}{:>8.1}{max:>9.2}", us(0.5), us(0.99))
        };
        println!(
            "{name:<12}{:>6}{}{}{:>10.3}{:>7.3}",
            alone.fibers,
            figures(&alone),
            figures(&beside),
            beside.per_second / alone.per_second,
            beside.hogs.iterations / plain.iterations,
        );
    }
    println!(
        "hogs: their work as a share of what {WORKERS} plain threads do with nobody beside them"
    );
}

/// How often a fiber had the lock, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Locks(AtomicU64);

fn fairness(seconds: u64, hogs: usize) {
    let runtime = start();
    let phase = Arc::new(AtomicU8::new(BEFORE));
    let mutex = Arc::new(Mutex::new(0_u64));
    let counts: Arc<[Locks]> = (0..LOCKING_FIBERS).map(|_| Locks::default()).collect();
    let lock = |index: usize| {
        let (phase, mutex, counts) = (phase.clone(), mutex.clone(), counts.clone());
        runtime.spawn(move || {
            while phase.load(Ordering::Relaxed) != OVER {
                *mutex.lock().expect("no fiber panics") += 1;
                counts[index].0.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let fibers: Vec<_> = (0..counts.len()).map(lock).collect();
    let beside = Beside::new(&runtime, hogs);
    thread::sleep(WARM_UP);
    let read = || -> Vec<u64> {
        let counts = counts.iter();
        counts
            .map(|locks| locks.0.load(Ordering::Relaxed))
            .collect()
    };
    let mut before = read();
    let mut worst = f64::INFINITY;
    for second in 1..=seconds {
        thread::sleep(Duration::from_secs(1));
        let now = read();
        let made: Vec<u64> = now
            .iter()
            .zip(&before)
            .map(|(now, was)| now - was)
            .collect();
        let (sum, least) = (made.iter().sum::<u64>(), made.iter().min());
        let fair = sum as f64 / made.len() as f64;
        let share = *least.expect("some fibers") as f64 / fair;
        println!("fairness hogs={hogs} second={second} locks={sum} least_share={share:.3}");
        worst = worst.min(share);
        before = now;
    }
    phase.store(OVER, Ordering::Relaxed);
    beside.end();
    fibers.into_iter().for_each(|fiber| ended(fiber, "mutex"));
    println!("fairness hogs={hogs} least_share={worst:.3}");
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let command = words.first().map_or("", String::as_str);
    let seconds = |other: u64| match words.get(1).map(|word| word.parse()) {
        None => Some(other),
        Some(seconds) => seconds.ok().filter(|&seconds| seconds > 0),
    };
    let only = words.get(2).map(String::as_str);
    let known = |name: &str| PRIMITIVES.iter().any(|(primitive, _)| *primitive == name);
    match (command, seconds(if command == "fairness" { 5 } else { 2 })) {
        ("primitives", Some(seconds)) if only.is_none_or(known) => {
            primitives(Duration::from_secs(seconds), only);
        }
        ("fairness", Some(seconds)) => {
            fairness(seconds, 0);
            fairness(seconds, HOGS);
        }
        _ => {
            let names = PRIMITIVES.map(|(name, _)| name).join("|");
            eprintln!("usage: beside_indent primitives [SECONDS] [{names}]");
            eprintln!("       beside_indent fairness [SECONDS]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
