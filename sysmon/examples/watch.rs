//! Watches a pool of plain threads, and reports which job holds its thread up, where, and how.
//!
//! Nothing of the pool is special: threads take closures from a channel and run them. What it takes
//! to watch it are the three lines that mention `stalls`, `enlisted` and `_watched`.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use indent_sysmon::stalls::{Stall, Stalls};

const WORKERS: usize = 2;
/// A job that takes longer is reported.
pub(crate) const LIMIT: Duration = Duration::from_millis(20);

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// The life of a worker's thread.
fn work(stalls: &Stalls, jobs: &Mutex<Receiver<Job>>) {
    let enlisted = stalls.enlist().expect("room for this thread");
    loop {
        let job = jobs.lock().unwrap().recv();
        let Ok((name, job)) = job else { break };
        let _watched = enlisted.begin(name);
        job();
    }
}

/// Computes for a given time, without a pause.
#[inline(never)]
fn crunches_numbers(time: Duration) {
    let began = Instant::now();
    let mut x = 1u64;
    while began.elapsed() < time {
        let mut rounds = 100_000;
        while rounds > 0 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(black_box(1));
            rounds -= 1;
        }
    }
    black_box(x);
}

/// Waits inside the kernel.
#[inline(never)]
fn waits_for_the_disk(time: Duration) {
    thread::sleep(time);
    black_box(time); // no tail call: the frame stays
}

/// What jobs should be like.
#[inline(never)]
fn is_quick() {
    black_box((0..1000u64).sum::<u64>());
}

/// Runs some jobs, two of them too long, and hands every report to `tell`.
pub(crate) fn demonstrate(tell: impl Fn(&Stall) + Send + Sync + 'static) -> std::io::Result<()> {
    let stalls = Stalls::start(LIMIT, tell)?;
    let (sender, jobs) = mpsc::channel::<Job>();
    let time = Duration::from_millis(200);
    for _ in 0..1000 {
        sender.send(("ping", Box::new(is_quick))).unwrap();
    }
    let late: [Job; 2] = [
        ("report", Box::new(move || crunches_numbers(time))),
        ("backup", Box::new(move || waits_for_the_disk(time))),
    ];
    for job in late {
        sender.send(job).unwrap();
    }
    drop(sender); // they end when all is done
    let jobs = Mutex::new(jobs);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let thread = thread::Builder::new().name(format!("worker {worker}"));
            let body = || work(&stalls, &jobs);
            thread.spawn_scoped(scope, body).expect("a thread");
        }
    });
    Ok(())
}

#[cfg_attr(
    test,
    allow(dead_code, reason = "the tests demonstrate, and look at what is told")
)]
fn main() -> std::io::Result<()> {
    demonstrate(|stall| print!("{stall}"))
}
