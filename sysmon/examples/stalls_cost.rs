//! What a stall detector costs: nanoseconds for each piece of work, and CPU of the monitor's
//! thread.
//!
//! ```text
//! cargo run --release -p indent-sysmon --example stalls_cost
//! ```
//!
//! The monitor's CPU time is what the kernel says in `/proc/self/task/N/schedstat`. Pieces are
//! timed in rounds, and the best round counts: the machine may have other things to do.

use std::fs;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use indent_sysmon::stalls::{Enlisted, Stalls};

const PIECES: u32 = 100_000;
const ROUNDS: u32 = 100;
const TIME: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_millis(10);

/// How long the monitor has run, and how often.
fn monitor() -> (Duration, u64) {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc");
    let (mut time, mut turns) = (Duration::ZERO, 0);
    for task in tasks.flatten().map(|task| task.path()) {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let line = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let words: Vec<u64> = line.split(' ').flat_map(|w| w.trim().parse()).collect();
        if let ([ran, _, times], true) = (&words[..], name == "stalls\n") {
            time += Duration::from_nanos(*ran);
            turns += times;
        }
    }
    (time, turns)
}

/// Runs `work` on watched threads, and reports what the monitor did meanwhile.
fn measure(what: &str, stalls: &Stalls, threads: usize, work: impl Fn(&Enlisted) + Sync) {
    let start = Barrier::new(threads + 1);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let enlisted = stalls.enlist().expect("room for this thread");
                start.wait();
                work(&enlisted);
            });
        }
        start.wait();
        let (before, turns_before) = monitor();
        thread::sleep(TIME);
        let (after, turns) = monitor();
        let share = (after - before).as_secs_f64() / TIME.as_secs_f64() * 100.0;
        let turns = (turns - turns_before) as f64 / TIME.as_secs_f64();
        println!("{what:<40} {share:>6.2} % of a CPU, {turns:>6.0} wake-ups a second");
    });
}

fn main() -> std::io::Result<()> {
    let stalls = Stalls::start(LIMIT, |_| ())?;
    let enlisted = stalls.enlist().expect("room for this thread");
    let round = || {
        let began = Instant::now();
        for _ in 0..PIECES {
            let _job = black_box(enlisted.begin(black_box("piece")));
        }
        began.elapsed() / PIECES
    };
    let best = (0..ROUNDS).map(|_| round()).min().expect("rounds");
    println!("begin and end of a piece of work: {best:?}");
    drop(enlisted);

    measure("8 threads without work", &stalls, 8, |_| {
        thread::sleep(TIME + LIMIT);
    });
    for threads in [1, 2, 8] {
        let what = format!("{threads} threads in pieces of 100 µs");
        measure(&what, &stalls, threads, |enlisted| {
            let began = Instant::now();
            while began.elapsed() < TIME + LIMIT {
                let _job = enlisted.begin("piece");
                let piece = Instant::now();
                while piece.elapsed() < Duration::from_micros(100) {}
            }
        });
    }
    measure("1 thread, a piece every 10 ms", &stalls, 1, |enlisted| {
        let began = Instant::now();
        while began.elapsed() < TIME + LIMIT {
            drop(enlisted.begin("piece"));
            thread::sleep(Duration::from_millis(10));
        }
    });
    Ok(())
}
