//! Layer: `chan`. One iteration = one message received, or one round trip.
//!
//! - `chan/alone/…`: send and receive in one fiber; no fiber waits.
//! - `chan/ping/…`: a round trip over two channels of capacity one, on one worker, or on two.
//! - `chan/crowd/…`: four producers, `bounded(64)`, one consumer.
//! - `chan/skynet`: a tree of fibers, ten children each, a million leaves, sums through channels;
//!   one iteration is all of it.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::chan::{self, Receiver, Sender};
use indent::runtime::{Builder, Runtime};
use indent::task;

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

fn alone(n: u64) -> Duration {
    let (tx, rx) = chan::bounded(1);
    let start = Instant::now();
    for i in 0..n {
        tx.send(i).unwrap();
        assert_eq!(rx.recv(), Ok(i));
    }
    start.elapsed()
}

fn ping(n: u64, partner: task::Builder) -> Duration {
    let (there, from_here) = chan::bounded(1);
    let (back, from_there) = chan::bounded(1);
    let other = partner.spawn(move || {
        for value in from_here {
            back.send(value).unwrap();
        }
    });
    let start = Instant::now();
    for i in 0..n {
        there.send(i).unwrap();
        assert_eq!(from_there.recv(), Ok(i));
    }
    let time = start.elapsed();
    drop(there);
    other.join().unwrap();
    time
}

fn crowd(n: u64) -> Duration {
    let (tx, rx) = chan::bounded(64);
    let start = Instant::now();
    let produce = |tx: Sender<u64>| move || (0..n / 4).for_each(|i| tx.send(i).unwrap());
    let producers: Vec<_> = (0..4).map(|_| indent::spawn(produce(tx.clone()))).collect();
    drop(tx);
    let received = rx.iter().count() as u64;
    assert_eq!(received, n / 4 * 4);
    let time = start.elapsed();
    producers.into_iter().for_each(|p| p.join().unwrap());
    time
}

fn skynet(tx: &Sender<u64>, number: u64, size: u64) {
    if size == 1 {
        tx.send(number).unwrap();
        return;
    }
    let (child, rx): (Sender<u64>, Receiver<u64>) = chan::bounded(10);
    for i in 0..10 {
        let (child, size) = (child.clone(), size / 10);
        drop(indent::spawn(move || {
            skynet(&child, number + i * size, size)
        }));
    }
    drop(child);
    tx.send(rx.iter().sum()).unwrap();
}

fn bench(criterion: &mut Criterion) {
    let (one, two) = (runtime(1), runtime(2));
    criterion.bench_function("chan/alone/fiber", |b| {
        b.iter_custom(|n| one.block_on(|| alone(n)));
    });
    criterion.bench_function("chan/alone/thread", |b| b.iter_custom(alone));
    criterion.bench_function("chan/ping/1", |b| {
        b.iter_custom(|n| one.block_on(|| ping(n, task::Builder::new())));
    });
    criterion.bench_function("chan/ping/2", |b| {
        b.iter_custom(|n| two.block_on(|| ping(n, task::Builder::new().preferred_worker(1))));
    });
    criterion.bench_function("chan/crowd/1", |b| {
        b.iter_custom(|n| one.block_on(|| crowd(n)));
    });
    criterion.bench_function("chan/crowd/2", |b| {
        b.iter_custom(|n| two.block_on(|| crowd(n)));
    });
    let mut group = criterion.benchmark_group("chan");
    group.sample_size(10);
    group.bench_function("skynet", |b| {
        b.iter(|| {
            two.block_on(|| {
                let (tx, rx) = chan::bounded(1);
                skynet(&tx, 0, 1_000_000);
                assert_eq!(rx.recv(), Ok(499_999_500_000));
            });
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
