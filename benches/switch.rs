//! Layer: `sched`. One iteration = one yield of one fiber.
//!
//! - `switch/yield/1`: a fiber alone, so that each yield is a round through the scheduler.
//! - `switch/yield/1000`: a thousand fibers on two workers, as in `benches/rivals`.
//! - `switch/checkpoint`: the cost of a checkpoint in a loop, a yield in 128 included.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::runtime::{Builder, Runtime};
use indent::task;

fn timed(runtime: &Runtime, f: impl FnOnce() + Send) -> Duration {
    runtime.block_on(|| {
        let start = Instant::now();
        f();
        start.elapsed()
    })
}

fn switch(criterion: &mut Criterion) {
    let one = Builder::new().workers(1).build().expect("a runtime");
    let two = Builder::new().workers(2).build().expect("a runtime");
    criterion.bench_function("switch/yield/1", |b| {
        b.iter_custom(|n| timed(&one, || (0..n).for_each(|_| task::yield_now())));
    });
    criterion.bench_function("switch/yield/1000", |b| {
        b.iter_custom(|n| {
            timed(&two, || {
                let each = n.div_ceil(1000);
                let fiber = |_| indent::spawn(move || (0..each).for_each(|_| task::yield_now()));
                let fibers: Vec<_> = (0..1000).map(fiber).collect();
                fibers
                    .into_iter()
                    .for_each(|fiber| fiber.join().expect("no panic"));
            })
        });
    });
    criterion.bench_function("switch/checkpoint", |b| {
        b.iter_custom(|n| {
            timed(&one, || {
                (0..n).for_each(|i| {
                    black_box(i);
                    task::checkpoint();
                })
            })
        });
    });
}

criterion_group!(benches, switch);
criterion_main!(benches);
