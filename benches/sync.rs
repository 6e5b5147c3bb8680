//! Layer: `sync`. One iteration = one lock and its release, of all fibers together.
//!
//! `sync/mutex/free`: one fiber alone. `sync/mutex/f8`: eight fibers on two workers add to one number. Beside each the
//! same with [`std::sync::Mutex`]; `sync/mutex/t2`: two plain threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::runtime::{Builder, Runtime};
use indent::sync::Mutex;

/// `n` additions by so many fibers.
fn crowd(
    runtime: &Runtime,
    fibers: u64,
    n: u64,
    add: impl Fn() + Send + Sync + 'static,
) -> Duration {
    let add = Arc::new(add);
    runtime.block_on(move || {
        let start = Instant::now();
        let crowd: Vec<_> = (0..fibers)
            .map(|_| {
                let add = add.clone();
                indent::spawn(move || (0..n / fibers).for_each(|_| add()))
            })
            .collect();
        crowd.into_iter().for_each(|f| f.join().expect("no panic"));
        start.elapsed()
    })
}

fn threads(n: u64, add: impl Fn() + Send + Sync) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..n / 2).for_each(|_| add()));
        }
    });
    start.elapsed()
}

fn ours() -> impl Fn() + Send + Sync + 'static {
    let mutex = Mutex::new(0u64);
    move || *mutex.lock().expect("no panic") += 1
}

fn std() -> impl Fn() + Send + Sync + 'static {
    let mutex = std::sync::Mutex::new(0u64);
    move || *mutex.lock().expect("no panic") += 1
}

fn mutex(criterion: &mut Criterion) {
    let two = Builder::new().workers(2).build().expect("a runtime");
    for fibers in [1, 2, 8] {
        criterion.bench_function(&format!("sync/mutex/f{fibers}"), |b| {
            b.iter_custom(|n| crowd(&two, fibers, n, ours()));
        });
        criterion.bench_function(&format!("sync/mutex/f{fibers}/std"), |b| {
            b.iter_custom(|n| crowd(&two, fibers, n, std()));
        });
    }
    criterion.bench_function("sync/mutex/t2", |b| b.iter_custom(|n| threads(n, ours())));
    criterion.bench_function("sync/mutex/t2/std", |b| {
        b.iter_custom(|n| threads(n, std()))
    });
}

criterion_group!(benches, mutex);
criterion_main!(benches);
