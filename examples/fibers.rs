//! A hundred thousand fibers on a few threads: which workers ran them, and their memory.
//!
//! ```text
//! cargo run --release --example fibers [fibers] [workers]
//! ```
//!
//! One fiber spawns all others. Each computes a little, parks until all others have parked,
//! computes again and ends. While all are parked, the program measures its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use indent::runtime::{Builder, Metrics, Runtime};
use indent::{park, task};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |what: &str| {
        let text = arguments.next()?;
        Some(
            text.parse::<usize>()
                .unwrap_or_else(|_| panic!("{what}: {text} is no number")),
        )
    };
    let fibers = number("fibers").unwrap_or(100_000);
    let builder = Builder::new();
    let builder = match number("workers") {
        Some(workers) => builder.workers(workers),
        None => builder,
    };
    let runtime = builder.build().expect("a runtime");
    run(&runtime, fibers);
}

fn run(runtime: &Runtime, fibers: usize) {
    let empty = memory();
    let start = Instant::now();
    let arrived = Arc::new(AtomicUsize::new(0));
    let counter = arrived.clone();
    let handles = runtime.block_on(move || {
        let body = move |seed: usize| {
            let before = fibonacci(seed % 10);
            counter.fetch_add(1, SeqCst);
            park::park();
            before + fibonacci(10 - seed % 10)
        };
        (0..fibers)
            .map(|seed| {
                let body = body.clone();
                indent::spawn(move || body(seed))
            })
            .collect::<Vec<_>>()
    });
    while arrived.load(SeqCst) < fibers {
        std::thread::yield_now();
    }
    let (all_parked, full, parked) = (start.elapsed(), memory(), runtime.metrics());
    let sum: u64 = runtime.block_on(|| {
        for fiber in &handles {
            fiber.unparker().unpark();
        }
        task::yield_now();
        handles
            .into_iter()
            .map(|fiber| fiber.join().expect("no fiber panics"))
            .sum()
    });
    runtime.wait_idle();
    let took = start.elapsed();
    println!("{fibers} fibers, each computing, parking and computing; sum of results {sum}");
    println!("all parked after {all_parked:.2?}, all over after {took:.2?}\n");
    table(&runtime.metrics());
    println!();
    let each = full.saturating_sub(empty) as f64 / fibers.max(1) as f64;
    println!(
        "stacks in use while all were parked   {:>10}",
        parked.stacks_in_use
    );
    println!("memory per parked fiber               {each:>10.0} B");
    println!(
        "ranges mapped for stacks              {:>10}",
        parked.stack_slabs
    );
    println!(
        "threads                               {:>10}",
        parked.carriers
    );
}

fn table(metrics: &Metrics) {
    println!(
        "worker  dispatches     started    finished      steals      stolen       parks  sleeps"
    );
    for (i, w) in metrics.workers.iter().enumerate() {
        println!(
            "{i:>6}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>8}",
            w.dispatches_total,
            w.fibers_started_total,
            w.fibers_finished_total,
            w.steals_total,
            w.fibers_stolen_total,
            w.parks_total,
            w.sleeps_total
        );
    }
}

/// Returns the resident memory and page tables of this process, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let field = |name: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a known field");
        line.split_whitespace()
            .nth(1)
            .and_then(|n| n.parse::<u64>().ok())
            .expect("kilobytes")
    };
    (field("VmRSS:") + field("VmPTE:")) * 1024
}

fn fibonacci(n: usize) -> u64 {
    if n < 2 {
        n as u64
    } else {
        fibonacci(n - 1) + fibonacci(n - 2)
    }
}

#[test]
fn a_thousand_fibers_run() {
    run(
        &Builder::new().workers(2).build().expect("a runtime"),
        1_000,
    );
}
