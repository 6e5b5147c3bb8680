//! Layer: `sched`. One iteration = one fiber spawned, run and joined.
//!
//! - `spawn/join/1`: spawn one, join it.
//! - `spawn/local/10k`: spawn ten thousand from a fiber, then join them.
//! - `spawn/outside/10k`: the same from a plain thread, through the global queue.
//! - `spawn/chain`: each fiber spawns the next.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::park::{self, Unparker};
use indent::runtime::{Builder, Handle};

fn batch(handle: &Handle, n: u64) -> Duration {
    let start = Instant::now();
    let mut left = n;
    while left > 0 {
        let now = left.min(10_000);
        let fibers: Vec<_> = (0..now).map(|i| handle.spawn(move || i)).collect();
        fibers
            .into_iter()
            .for_each(|fiber| assert!(fiber.join().is_ok()));
        left -= now;
    }
    start.elapsed()
}

fn chain(left: u64, done: Unparker) {
    match left {
        0 => done.unpark(),
        _ => drop(indent::spawn(move || chain(left - 1, done))),
    }
}

fn spawn(criterion: &mut Criterion) {
    let runtime = Builder::new().workers(2).build().expect("a runtime");
    let handle = runtime.handle().clone();
    criterion.bench_function("spawn/join/1", |b| {
        b.iter_custom(|n| {
            runtime.block_on(|| {
                let start = Instant::now();
                (0..n).for_each(|i| assert!(indent::spawn(move || i).join().is_ok()));
                start.elapsed()
            })
        });
    });
    criterion.bench_function("spawn/local/10k", |b| {
        b.iter_custom(|n| runtime.block_on(|| batch(&handle, n)));
    });
    criterion.bench_function("spawn/outside/10k", |b| {
        b.iter_custom(|n| batch(&handle, n))
    });
    criterion.bench_function("spawn/chain", |b| {
        b.iter_custom(|n| {
            runtime.block_on(|| {
                let start = Instant::now();
                chain(n, park::unparker());
                park::park();
                start.elapsed()
            })
        });
    });
}

criterion_group!(benches, spawn);
criterion_main!(benches);
