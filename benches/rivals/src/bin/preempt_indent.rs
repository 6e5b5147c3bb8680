#![expect(unsafe_code, reason = "promises what regions ask for")]
//! What preemption must show besides the heartbeat, one sub-command each.
//!
//! ```text
//! cargo run --release -p indent-rivals --bin preempt_indent -- COMMAND [NUMBER] [NUMBER]
//! ```
//!
//! - `crowd [FIBERS] [SECONDS]`: so many fibers parked on each of 2 workers, then one endless hog for
//!   each; a SCHED_FIFO thread wakes 2,000 fibers a second, all in turn. Do all go on answering?
//! - `burst [FIBERS] [MS]`: fibers that each compute for so long, started together beside a heartbeat.
//!   How late is it, from the first moment on? (`first`: the rings of the first 100 ms.)
//! - `many [FIBERS] [MS]`: the same with many and short ones. How many threads does it take at most?
//! - `regions [FIBERS] [SECONDS]`: so many fibers that compute for ever, each in a region, beside a
//!   heartbeat. How late is it, how many threads does it take, how many fibers have had a turn, and how
//!   often was one switched in place or frozen? Those before every fiber has a stack are not counted.
//! - `share [HOGS] [SECONDS]`: what hogs do in fibers, as a share of what 2 plain threads do, with
//!   nobody woken beside them (`quiet`) and with a heartbeat (`rung`); 5 rounds, alternating.
//! - `sleepers [SECONDS] [MS]`: a fiber sleeps so long in the kernel, on a runtime of one worker. How
//!   long until the worker runs another fiber, which was spawned just before?
//! - `costs [SECONDS]`: nanoseconds of `no_preempt`, of a checkpoint, of a hand-over; of a freeze and a
//!   thaw, as the work two loops on one worker lose, divided by how often they were frozen; the same of
//!   two loops in regions, divided by how often they were switched in place; and the CPU time of the
//!   whole process for a sleep in the kernel, its detach and its return.
//! - `calm [ROUNDS]`: nobody overruns. What do the shapes of `run` cost with preemption, against the
//!   same without it (`on`), and that against itself (`off_again`)? By the clock and by CPU.
//!
//! Each ends in bounded time also where nothing is preempted (INDENT_PREEMPT=off), and prints a line of
//! ` NAME=VALUE`: times in microseconds, shares as ratios.

use std::env;
use std::fs;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use indent::{Runtime, park, runtime, task};
use indent_rivals::beat::{self, Bell, Columns, Heart, Lateness, RINGS, Wake};
use indent_rivals::hog::{self, Hogs, Kind, Rate};
use indent_rivals::indent_heart::Indent;
use indent_rivals::{WORKERS, allocator, fifo};

allocator!();

/// Rounds of `share`.
const ROUNDS: usize = 5;
/// The longest a burst may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// The shapes of `calm`.
const CALM: [&str; 3] = ["spawn_join", "yield", "chain"];

/// Parks `each` fibers on each worker; returns their bells, each for so many rings, and what wakes them.
fn park_crowd(runtime: &Runtime, each: usize, rings: usize) -> Vec<(Arc<Bell>, Wake)> {
    let member = move |worker| {
        let bell = Arc::new(Bell::new(rings));
        let heard = bell.clone();
        let fiber = task::Builder::new().worker(worker).spawn(move || {
            while !heard.is_over() {
                park::park();
                heard.answer();
            }
        });
        let unparker = fiber.unparker();
        let wake: Wake = Arc::new(move || unparker.unpark());
        (bell, wake)
    };
    runtime.block_on(move || {
        let workers = (0..WORKERS).flat_map(|worker| (0..each).map(move |_| worker));
        workers.map(member).collect()
    })
}

/// Rings one bell after the other, at an even rate, until `ends`.
fn ring_in_turn(crowd: &[(Arc<Bell>, Wake)], ends: Instant) {
    let period = Duration::from_nanos(1_000_000_000 / RINGS);
    let mut due = Instant::now();
    for (bell, wake) in crowd.iter().cycle() {
        due += period;
        if due >= ends {
            break;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        bell.ring(wake);
    }
    thread::sleep(ends.saturating_duration_since(Instant::now()));
}

fn crowd(each: usize, seconds: u64) -> Columns {
    let Indent(runtime) = Indent::start();
    let time = Duration::from_secs(seconds);
    let rings = 2 + (seconds * RINGS) as usize / (WORKERS * each);
    let crowd = park_crowd(&runtime, each, rings);
    for _ in 0..5 {
        crowd.iter().for_each(|(_, wake)| wake());
        thread::sleep(Duration::from_millis(100)); // all are known by then
    }
    let hogs = Arc::new(Hogs::new(Kind::Arith, WORKERS));
    let running = hogs.clone();
    runtime.block_on(move || {
        for worker in 0..WORKERS {
            let hogs = running.clone();
            let on = task::Builder::new().worker(worker);
            drop(on.spawn(move || hogs.run(worker)));
        }
    });
    let lateness: Vec<Lateness> = thread::scope(|scope| {
        let ringer = scope.spawn(|| {
            fifo::claim();
            ring_in_turn(&crowd, Instant::now() + time);
            crowd.iter().map(|(bell, _)| bell.lateness()).collect()
        });
        ringer.join().expect("the ringer does not panic")
    });
    hogs.stop();
    for (bell, wake) in &crowd {
        bell.close();
        wake();
    }
    runtime.wait_idle();
    let silent = lateness.iter().filter(|member| member.served() == 0);
    let silent = silent.filter(|member| !member.in_order.is_empty()).count();
    let served = lateness.iter().map(Lateness::served).sum();
    let all = lateness.into_iter().flat_map(|member| member.in_order);
    let mut columns = Lateness::new(all.collect(), served).columns();
    columns.whole("fibers", crowd.len() as f64);
    columns.whole("silent", silent as f64);
    columns
}

/// The most threads this process had, asked often enough until told to stop.
fn most_threads(over: &AtomicBool) -> usize {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        let status = fs::read_to_string("/proc/self/status").expect("/proc/self/status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Threads:"));
        most = most.max(
            line.expect("a known field")
                .trim()
                .parse()
                .expect("a number"),
        );
        thread::sleep(Duration::from_millis(5));
    }
    most
}

fn burst(fibers: usize, ms: u64) -> Columns {
    let each = hog::multiplications(Duration::from_millis(ms));
    let heart = Indent::start();
    let bell = Arc::new(Bell::new((PATIENCE.as_secs() * RINGS) as usize));
    let wake = heart.beat(bell.clone());
    beat::get_to_know(&wake);
    let over = AtomicBool::new(false);
    let (lateness, first, threads, took) = thread::scope(|scope| {
        let ringer = scope.spawn(|| {
            fifo::claim();
            bell.ring_until(Instant::now() + PATIENCE, RINGS, &wake)
        });
        let sampler = scope.spawn(|| most_threads(&over));
        while bell.sent() < 20 {
            thread::sleep(Duration::from_millis(1));
        }
        let (first, start) = (bell.sent(), Instant::now());
        compute_together(&heart.0, fibers, each);
        let took = start.elapsed();
        bell.close();
        over.store(true, Ordering::Relaxed);
        let lateness = ringer.join().expect("the ringer does not panic");
        let threads = sampler.join().expect("the sampler does not panic");
        (lateness, first, threads, took)
    });
    wake();
    heart.end();
    let mut columns = lateness.columns();
    let early = lateness
        .in_order
        .iter()
        .skip(first)
        .take(RINGS as usize / 10);
    let early = Lateness::new(early.copied().collect(), 0);
    columns.add("first_p99_us", early.quantile(0.99));
    columns.add("first_max_us", early.quantile(1.0));
    columns.whole("threads", threads as f64);
    columns.whole("wall_ms", took.as_secs_f64() * 1e3);
    columns
}

/// Spawns all at once, from one fiber, and waits for them.
fn compute_together(runtime: &Runtime, fibers: usize, multiplications: u64) {
    runtime.block_on(move || {
        let body = |seed: usize| move || black_box(hog::multiply(seed as u64, multiplications));
        let all: Vec<_> = (0..fibers).map(|seed| indent::spawn(body(seed))).collect();
        for fiber in all {
            fiber.join().expect("no fiber panics");
        }
    });
}

/// Runs what computes on its own numbers, in a region.
fn in_region<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: arithmetic on numbers of its own and a counter, in fibers that do nothing else.
    unsafe { runtime::preemptible(f) }
}

/// Starts them all, and waits until each has had a turn or the time is over; how many had one.
fn start_in_regions(runtime: &Runtime, hogs: &Arc<Hogs>, patience: Duration) -> usize {
    let shared = hogs.clone();
    runtime.block_on(move || {
        for index in 0..shared.count() {
            let hogs = shared.clone();
            drop(task::spawn(move || in_region(|| hogs.run(index))));
        }
    });
    let start = Instant::now();
    while hogs.started() < hogs.count() && start.elapsed() < patience {
        thread::sleep(Duration::from_millis(10));
    }
    hogs.started()
}

fn regions(fibers: usize, seconds: u64) -> Columns {
    let heart = Indent::start();
    let time = Duration::from_secs(seconds);
    let bell = Arc::new(Bell::new((seconds + 1) as usize * RINGS as usize));
    let wake = heart.beat(bell.clone());
    beat::get_to_know(&wake);
    let hogs = Arc::new(Hogs::new(Kind::Arith, fibers));
    let began = Instant::now();
    let started = start_in_regions(&heart.0, &hogs, PATIENCE);
    let (all_started, before) = (began.elapsed(), heart.0.metrics());
    let over = AtomicBool::new(false);
    let (lateness, threads) = thread::scope(|scope| {
        let ringer = scope.spawn(|| {
            fifo::claim();
            bell.ring_until(Instant::now() + time, RINGS, &wake)
        });
        let sampler = scope.spawn(|| most_threads(&over));
        let lateness = ringer.join().expect("the ringer does not panic");
        over.store(true, Ordering::Relaxed);
        let threads = sampler.join().expect("the sampler does not panic");
        (lateness, threads)
    });
    let after = heart.0.metrics();
    hogs.stop();
    bell.close();
    wake();
    heart.end();
    let mut columns = lateness.columns();
    columns.whole("fibers", fibers as f64);
    columns.whole("started", started as f64);
    columns.whole("all_started_ms", all_started.as_secs_f64() * 1e3);
    columns.whole("threads", threads as f64);
    columns.whole("carriers", after.carriers as f64);
    columns.whole(
        "in_place",
        (after.in_place_preemptions_total - before.in_place_preemptions_total) as f64,
    );
    columns.whole(
        "freezes",
        (after.freezes_total - before.freezes_total) as f64,
    );
    columns
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What the hogs of one round do, with so many rings a second.
fn in_fibers(hogs: usize, time: Duration, rings: u64) -> Rate {
    let warm_up = Duration::from_millis(100 + 12 * hogs as u64);
    let hogs = Arc::new(Hogs::new(Kind::Arith, hogs));
    beat::measure::<Indent>(&hogs, time, warm_up, rings).hogs
}

fn share(hogs: usize, seconds: u64) -> Columns {
    let time = Duration::from_secs(seconds);
    let mut columns = Columns::default();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let before = hog::plain(Kind::Arith, WORKERS, time / 2);
        let quiet = in_fibers(hogs, time, 0);
        let rung = in_fibers(hogs, time, RINGS);
        let plain = Rate::mean(&[before, hog::plain(Kind::Arith, WORKERS, time / 2)]);
        rounds.push((plain, quiet, rung));
    }
    type Ratio = fn(&Rate, &Rate) -> f64;
    let wall: Ratio = |rate, plain| rate.iterations / plain.iterations;
    let cpu: Ratio = |rate, plain| rate.each() / plain.each();
    for (name, ratio) in [("share", wall), ("share_of_cpu", cpu)] {
        let quiet = rounds.iter().map(|(plain, quiet, _)| ratio(quiet, plain));
        columns.ratio(&format!("quiet_{name}"), median(quiet.collect()));
        let rung = rounds.iter().map(|(plain, _, rung)| ratio(rung, plain));
        columns.ratio(&format!("rung_{name}"), median(rung.collect()));
    }
    let cpus = rounds.iter().map(|(plain, ..)| plain.cpus);
    columns.ratio("plain_cpus", median(cpus.collect()));
    columns
}

/// One fiber goes to sleep, with another one behind it on the worker; how long that one waits.
fn behind_a_sleeper(runtime: &Runtime, sleep: Duration) -> Duration {
    let (tell, told) = mpsc::channel();
    drop(runtime.spawn(move || {
        let start = Instant::now();
        drop(indent::spawn(move || {
            let waited = start.elapsed();
            tell.send(waited).expect("somebody waits for it");
        }));
        thread::sleep(sleep);
    }));
    told.recv().expect("the other fiber runs in the end")
}

fn sleepers(seconds: u64, ms: u64) -> Columns {
    let runtime = runtime::Builder::new().workers(1).build();
    let runtime = runtime.expect("the runtime starts");
    let ends = Instant::now() + Duration::from_secs(seconds);
    let mut waits = Vec::new();
    let mut most = 0;
    while Instant::now() < ends {
        let waited = behind_a_sleeper(&runtime, Duration::from_millis(ms));
        waits.push(waited.as_nanos() as u64);
        most = most.max(runtime.metrics().carriers);
        thread::sleep(Duration::from_micros(
            50_000 + 7_919 * waits.len() as u64 % 20_000,
        ));
    }
    runtime.wait_idle();
    let served = waits.len();
    let mut columns = Lateness::new(waits, served).columns();
    columns.whole("carriers", most as f64);
    columns
}

/// Nanoseconds of an operation, on a fiber of a runtime with one worker.
fn each(runtime: &Runtime, times: u64, operation: impl Fn() + Send + 'static) -> f64 {
    runtime.block_on(move || {
        let start = Instant::now();
        (0..times).for_each(|_| operation());
        start.elapsed().as_nanos() as f64 / times as f64
    })
}

/// How two loops that share one worker take turns.
#[derive(Clone, Copy)]
enum Turns {
    Frozen,
    InPlace,
}

/// What a turn takes from two loops that share one worker, in slices of half a millisecond, as their work
/// lost against a plain thread's; and how many turns there are a second.
fn turns(how: Turns, time: Duration) -> (f64, f64) {
    let runtime = runtime::Builder::new()
        .workers(1)
        .preempt_quantum(Duration::from_micros(500))
        .build()
        .expect("the runtime starts");
    let hogs = Arc::new(Hogs::new(Kind::Arith, 2));
    for index in 0..2 {
        let hogs = hogs.clone();
        drop(runtime.spawn(move || match how {
            Turns::Frozen => hogs.run(index),
            Turns::InPlace => in_region(|| hogs.run(index)),
        }));
    }
    let taken = || match how {
        Turns::Frozen => runtime.metrics().freezes_total,
        Turns::InPlace => runtime.metrics().in_place_preemptions_total,
    };
    thread::sleep(time / 4);
    let (before, begin) = (taken(), hogs.begin());
    thread::sleep(time);
    let rate = begin.end(&hogs);
    let turns = taken() - before;
    hogs.stop();
    runtime.wait_idle();
    let plain = hog::plain(Kind::Arith, 1, time);
    let lost = 1.0 - rate.iterations / plain.iterations;
    let each = lost * time.as_nanos() as f64 / turns as f64;
    (each, turns as f64 / time.as_secs_f64())
}

/// CPU time of the process for one sleep of two milliseconds in the kernel and all that follows.
fn sleep_and_return(times: u32) -> (f64, f64) {
    let runtime = runtime::Builder::new().workers(1).build();
    let runtime = runtime.expect("the runtime starts");
    let began = indent_rivals::cpu_time();
    runtime.block_on(move || {
        for _ in 0..times {
            thread::sleep(Duration::from_millis(3));
            task::yield_now();
        }
    });
    let cpu = indent_rivals::cpu_time() - began;
    let detaches = runtime.metrics().detaches_total as f64;
    (
        cpu.as_nanos() as f64 / f64::from(times),
        detaches / f64::from(times),
    )
}

fn costs(seconds: u64) -> Columns {
    let mut columns = Columns::default();
    let runtime = runtime::Builder::new().workers(1).build();
    let runtime = runtime.expect("the runtime starts");
    let no_preempt = || runtime::no_preempt(|| black_box(()));
    columns.ratio("no_preempt_ns", each(&runtime, 5_000_000, no_preempt));
    columns.ratio("checkpoint_ns", each(&runtime, 5_000_000, task::checkpoint));
    columns.ratio("handover_ns", each(&runtime, 20_000, runtime::handoff));
    let time = Duration::from_secs(seconds);
    let (freeze, a_second) = turns(Turns::Frozen, time);
    columns.ratio("freeze_and_thaw_ns", freeze);
    columns.whole("freezes_a_second", a_second);
    let (in_place, a_second) = turns(Turns::InPlace, time);
    columns.ratio("in_place_ns", in_place);
    columns.whole("in_place_a_second", a_second);
    let (sleep, detached) = sleep_and_return(200);
    columns.ratio("detach_and_return_cpu_ns", sleep);
    columns.ratio("detached", detached);
    columns
}

/// Nanoseconds an operation takes in another process, and the seconds of CPU of all of it.
fn run_shape(shape: &str, preempt: &str) -> (f64, f64) {
    let before = indent_rivals::children_cpu_time();
    let own = env::current_exe().expect("a program knows its path");
    let output = Command::new(own.with_file_name("shapes_indent"))
        .arg(shape)
        .env("INDENT_PREEMPT", preempt)
        .output()
        .expect("shapes_indent stands beside this program: build the whole package");
    let text = String::from_utf8(output.stdout).expect("shapes_indent prints text");
    let ns = text.split_whitespace().nth(1).expect("two words");
    let cpu = indent_rivals::children_cpu_time() - before;
    (ns.parse().expect("a number"), cpu.as_secs_f64())
}

fn calm(rounds: usize) -> Columns {
    let mut columns = Columns::default();
    for shape in CALM {
        let mut runs: [Vec<(f64, f64)>; 3] = Default::default();
        for round in 0..rounds {
            for turn in 0..3 {
                let which = (round + turn) % 3;
                runs[which].push(run_shape(shape, ["off", "on", "off"][which]));
            }
        }
        let middle = |of: fn(&(f64, f64)) -> f64| {
            let [off, on, again] = &runs;
            [off, on, again].map(|runs| median(runs.iter().map(of).collect()))
        };
        let [off, on, again] = middle(|run| run.0);
        columns.add(&format!("{shape}_off_ns"), off);
        columns.ratio(&format!("{shape}_on"), on / off);
        columns.ratio(&format!("{shape}_off_again"), again / off);
        let [off, on, again] = middle(|run| run.1);
        columns.ratio(&format!("{shape}_on_cpu"), on / off);
        columns.ratio(&format!("{shape}_off_again_cpu"), again / off);
    }
    columns
}

/// The words of the command line after the command.
struct Words<I>(I);

impl<I: Iterator<Item = String>> Words<I> {
    /// The next one as a number; `other` if there is none.
    fn number(&mut self, other: u64) -> u64 {
        self.0.next().map_or(other, |word| {
            let number = word.parse().ok().filter(|&number| number > 0);
            number.unwrap_or_else(|| panic!("{word} is no number"))
        })
    }

    fn count(&mut self, other: usize) -> usize {
        self.number(other as u64) as usize
    }
}

fn main() -> ExitCode {
    let mut words = Words(env::args().skip(1));
    let command = words.0.next().unwrap_or_default();
    let columns = match command.as_str() {
        "crowd" => crowd(words.count(1_000), words.number(10)),
        "burst" => burst(words.count(64), words.number(200)),
        "many" => burst(words.count(1_000), words.number(50)),
        "regions" => regions(words.count(10_000), words.number(10)),
        "share" => share(words.count(8), words.number(3)),
        "sleepers" => sleepers(words.number(10), words.number(1_000)),
        "costs" => costs(words.number(2)),
        "calm" => calm(words.count(7)),
        _ => {
            eprintln!(
                "usage: preempt_indent crowd|burst|many|regions|share|sleepers|costs|calm [NUMBER] [NUMBER]"
            );
            return ExitCode::from(2);
        }
    };
    println!("{command}{}", columns.0);
    ExitCode::SUCCESS
}
