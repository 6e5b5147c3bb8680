//! Layer: `queue`. One iteration = one fiber of a few microseconds, all spawned on one worker.
//!
//! `steal/even/w1` and `steal/even/w2`: the same work with one worker and with two; the ratio of
//! the two shows how well it spreads.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use indent::runtime::Builder;

fn work(seed: u64) -> u64 {
    (0..2_000u64).fold(seed, |sum, i| {
        black_box(sum.wrapping_mul(31).wrapping_add(i))
    })
}

fn steal(criterion: &mut Criterion) {
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().expect("a runtime");
        criterion.bench_function(&format!("steal/even/w{workers}"), |b| {
            b.iter_custom(|n| {
                runtime.block_on(|| {
                    let start = Instant::now();
                    let fibers: Vec<_> = (0..n)
                        .map(|seed| indent::spawn(move || work(seed)))
                        .collect();
                    fibers
                        .into_iter()
                        .for_each(|fiber| assert!(fiber.join().is_ok()));
                    start.elapsed()
                })
            });
        });
    }
}

criterion_group!(benches, steal);
criterion_main!(benches);
