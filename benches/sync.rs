//! Layer: `sync`. One iteration = one lock and its release; in the last group, one hand-over.
//!
//! Iterations of all fibers together count.
//!
//! - `sync/mutex/fN`: so many fibers on two workers add to one number; `/std`: the same with
//!   [`std::sync::Mutex`].
//! - `sync/mutex/t2`: two plain threads.
//! - `sync/read`, `sync/write`, `sync/semaphore`: eight fibers.
//! - `sync/notify`, `sync/condvar`: two fibers on one worker wake each other.
//! - `…/hogs`: beside eight fibers that compute without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::runtime::{Builder, Runtime};
use indent::sync::{Condvar, Mutex, Notify, RwLock, Semaphore};

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

/// Operations of one iteration; with few of them, the time of spawns would count most.
const EACH: u64 = 1_000;

/// Runs `n` times `EACH` operations in many fibers; returns the time of `n`.
fn crowd(
    runtime: &Runtime,
    fibers: u64,
    n: u64,
    operation: impl Fn() + Send + Sync + 'static,
) -> Duration {
    let operation = Arc::new(operation);
    runtime.block_on(move || {
        let start = Instant::now();
        let crowd: Vec<_> = (0..fibers)
            .map(|_| {
                let operation = operation.clone();
                indent::spawn(move || (0..n * EACH / fibers).for_each(|_| operation()))
            })
            .collect();
        crowd.into_iter().for_each(|f| f.join().expect("no panic"));
        start.elapsed() / EACH as u32
    })
}

fn threads(n: u64, operation: impl Fn() + Send + Sync) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..n * EACH / 2).for_each(|_| operation()));
        }
    });
    start.elapsed() / EACH as u32
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
    let two = runtime(2);
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
        b.iter_custom(|n| threads(n, std()));
    });
}

/// Measures locks with many fibers, alone or beside hogs.
fn others(criterion: &mut Criterion, runtime: &Runtime, beside: &str) {
    criterion.bench_function(&format!("sync/mutex{beside}"), |b| {
        b.iter_custom(|n| crowd(runtime, 8, n, ours()));
    });
    criterion.bench_function(&format!("sync/read{beside}"), |b| {
        b.iter_custom(|n| {
            let lock = RwLock::new(0u64);
            crowd(runtime, 8, n, move || {
                std::hint::black_box(*lock.read().expect("no panic"));
            })
        });
    });
    criterion.bench_function(&format!("sync/write{beside}"), |b| {
        b.iter_custom(|n| {
            let lock = RwLock::new(0u64);
            crowd(runtime, 8, n, move || *lock.write().expect("no panic") += 1)
        });
    });
    criterion.bench_function(&format!("sync/semaphore{beside}"), |b| {
        b.iter_custom(|n| {
            let semaphore = Semaphore::new(2);
            crowd(runtime, 8, n, move || {
                drop(semaphore.acquire().expect("open"))
            })
        });
    });
}

/// Runs two fibers that wake each other, `n` times.
fn pair(runtime: &Runtime, n: u64, turn: impl Fn(usize) + Send + Sync + 'static) -> Duration {
    let turn = Arc::new(turn);
    runtime.block_on(move || {
        let start = Instant::now();
        let theirs = turn.clone();
        let other = indent::spawn(move || (0..n * EACH / 2).for_each(|_| theirs(1)));
        (0..n * EACH / 2).for_each(|_| turn(0));
        other.join().expect("no panic");
        start.elapsed() / EACH as u32
    })
}

fn pairs(criterion: &mut Criterion) {
    let one = runtime(1);
    criterion.bench_function("sync/notify", |b| {
        b.iter_custom(|n| {
            let words = [Notify::new(), Notify::new()];
            words[0].notify_one();
            pair(&one, n, move |side| {
                words[side].notified();
                words[1 - side].notify_one();
            })
        });
    });
    criterion.bench_function("sync/condvar", |b| {
        b.iter_custom(|n| {
            let (whose, changed) = (Mutex::new(0), Condvar::new());
            pair(&one, n, move |side| {
                let guard = whose.lock().expect("no panic");
                let mut guard = changed
                    .wait_while(guard, |turn| *turn != side)
                    .expect("no panic");
                *guard = 1 - side;
                changed.notify_one();
            })
        });
    });
}

fn all(criterion: &mut Criterion) {
    let two = runtime(2);
    others(criterion, &two, "");
    let over = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..8)
        .map(|_| {
            let over = over.clone();
            two.spawn(move || {
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    others(criterion, &two, "/hogs");
    over.store(true, Relaxed);
    hogs.into_iter()
        .for_each(|hog| hog.join().expect("no panic"));
}

criterion_group!(benches, mutex, pairs, all);
criterion_main!(benches);
