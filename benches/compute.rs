#![expect(unsafe_code, reason = "sets scheduling policies by system calls")]
//! Layer: `compute`. The effect of a scheduling policy for computing threads on the others.
//!
//! Every computing thread crunches without end, on as many threads as there are workers. A plain
//! thread pings one fiber on each worker every millisecond. Printed is the time from the unpark
//! until the fiber runs (50, 99 and 99.9 of a hundred are faster), and how much was computed
//! compared with no policy at all. The rest of the workers' load is in [`Load`].
//!
//! Each round goes through all candidates, so that they meet the same conditions; the table shows
//! medians over the rounds. `cargo bench --bench compute -- ROUNDS`, with as many CPUs as workers
//! and not under `nice`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::{Builder, Runtime, compute};
use indent::task;

const WORKERS: usize = 2;
const PINGS: usize = 300;
const PAUSE: Duration = Duration::from_millis(1);

/// A request of a thread to the kernel's scheduler.
#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    policy: u32,
    nice: i32,
    /// In microseconds; 0 for the kernel's own.
    slice: u64,
}

const PLAIN: Policy = Policy {
    name: "plain",
    policy: 0,
    nice: 0,
    slice: 0,
};

const fn candidate(name: &'static str, policy: u32, nice: i32, slice: u64) -> Policy {
    Policy {
        name,
        policy,
        nice,
        slice,
    }
}

const BATCH: u32 = 3;
const IDLE: u32 = 5;

const CANDIDATES: [Policy; 10] = [
    PLAIN,
    candidate("batch", BATCH, 0, 0),
    candidate("slice 0.1 ms", 0, 0, 100),
    candidate("slice 0.5 ms", 0, 0, 500),
    candidate("slice 20 ms", 0, 0, 20_000),
    candidate("nice 3", 0, 3, 0),
    candidate("nice 5", 0, 5, 0),
    candidate("batch, nice 5", BATCH, 5, 0),
    candidate("nice 10", 0, 10, 0),
    candidate("idle", IDLE, 0, 0),
];

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Policy {
    /// Sets the policy of the calling thread.
    fn set(self) {
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: self.policy,
            flags: 0,
            nice: self.nice,
            priority: 0,
            runtime: self.slice * 1000,
            deadline: 0,
            period: 0,
        };
        // SAFETY: the call reads the struct, for the calling thread.
        let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        assert_eq!(result, 0, "{}: not here, or not allowed", self.name);
    }
}

/// Load of the workers, beside the computation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// They answer pings.
    Idle,
    /// Each answer takes them three fifths of the time until the next ping.
    Some,
    /// As idle, but each also has a fiber that never parks.
    Full,
}

/// One run of one candidate.
struct Run {
    latencies: Vec<u64>,
    computed: u64,
}

/// Does a little work; how long it takes depends on the machine.
fn work(times: u64) {
    for n in 0..times {
        black_box(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// Returns how much work takes this long.
fn calibrate(time: Duration) -> u64 {
    let measure = || {
        let start = Instant::now();
        work(1_000_000);
        start.elapsed()
    };
    let best = (0..20).map(|_| measure()).min().expect("measured");
    (1e6 * time.as_secs_f64() / best.as_secs_f64()) as u64
}

/// Computes with this policy until the flag is set; returns how much it did.
fn crunch(policy: Policy, stop: &AtomicBool) -> u64 {
    policy.set();
    let mut done = 0;
    while !stop.load(SeqCst) {
        work(2000);
        done += 1;
    }
    PLAIN.set(); // the thread is used again; needs CAP_SYS_NICE
    done
}

/// Answers pings in a fiber, and returns the latencies; `sent` is when the last ping was sent.
fn answer(sent: &AtomicU64, start: Instant, answer: u64) -> Vec<u64> {
    let mut latencies = Vec::new();
    while latencies.len() < PINGS {
        park::park();
        let now = start.elapsed().as_nanos() as u64;
        match sent.swap(0, SeqCst) {
            0 => {}
            sent => latencies.push(now - sent),
        }
        work(answer);
    }
    latencies
}

fn run(rt: &Runtime, policy: Policy, load: Load, answer_work: u64) -> Run {
    let stop = Arc::new(AtomicBool::new(false));
    let crunching: Vec<_> = (0..WORKERS)
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(move || compute(|| crunch(policy, &stop)))
        })
        .collect();
    let spinning: Vec<_> = (0..if load == Load::Full { WORKERS } else { 0 })
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(move || {
                while !stop.load(SeqCst) {
                    work(2000);
                    task::yield_now();
                }
            })
        })
        .collect();
    let answer_work = if load == Load::Some { answer_work } else { 0 };
    let start = Instant::now();
    let pinged: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let sent = Arc::new(AtomicU64::new(0));
            let theirs = sent.clone();
            let body = move || answer(&theirs, start, answer_work);
            let builder = task::Builder::new().worker(worker);
            (rt.block_on(|| builder.spawn(body)), sent)
        })
        .collect();
    while !pinged.iter().all(|(fiber, _)| fiber.is_finished()) {
        std::thread::sleep(PAUSE);
        for (fiber, sent) in &pinged {
            let now = start.elapsed().as_nanos() as u64;
            // A ping that has not been answered yet counts from its own time.
            let _ = sent.compare_exchange(0, now, SeqCst, SeqCst);
            fiber.unparker().unpark();
        }
    }
    stop.store(true, SeqCst);
    let elapsed = start.elapsed().as_micros() as u64;
    let crunched = crunching.into_iter().map(|fiber| fiber.join());
    let computed: u64 = crunched.map(|done| done.expect("no panic")).sum();
    let spun = spinning.into_iter().map(|fiber| fiber.join());
    spun.for_each(|done| done.expect("no panic"));
    let latencies = pinged.into_iter().map(|(fiber, _)| fiber.join());
    let mut latencies: Vec<_> = latencies.flat_map(|l| l.expect("no panic")).collect();
    latencies.sort_unstable();
    Run {
        latencies,
        computed: computed * 1000 / elapsed,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let number = |word: String| word.parse().ok();
    let rounds: usize = std::env::args().skip(1).find_map(number).unwrap_or(5);
    let rt = Builder::new().workers(WORKERS).build().expect("a runtime");
    let answer_work = calibrate(PAUSE * 3 / 5);
    let loads = [
        ("idle", Load::Idle),
        ("some", Load::Some),
        ("full", Load::Full),
    ];
    for (name, load) in loads {
        let mut runs: Vec<Vec<Run>> = CANDIDATES.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (runs, policy) in runs.iter_mut().zip(CANDIDATES) {
                runs.push(run(&rt, policy, load, answer_work));
            }
        }
        println!("compute/{name}");
        let computed = |runs: &[Run]| median(runs.iter().map(|run| run.computed as f64).collect());
        let plain = computed(&runs[0]);
        for (policy, runs) in CANDIDATES.iter().zip(&runs) {
            let part = |part: usize| {
                let at = |run: &Run| run.latencies[run.latencies.len() * part / 1000] as f64 / 1e3;
                median(runs.iter().map(at).collect())
            };
            println!(
                "  {:<14} p50 {:>8.1}  p99 {:>8.1}  p99.9 {:>8.1} µs   computed {:.2} of plain",
                policy.name,
                part(500),
                part(990),
                part(999),
                computed(runs) / plain,
            );
        }
    }
}
