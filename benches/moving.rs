//! The cost of letting a fiber leave its thread, or of keeping it there.
//!
//! One iteration = one yield, or one hand-over, of one fiber, on a runtime of one worker.
//!
//! - `moving/yield/…`: a second fiber yields in turn with it. A plain one (`movable`) shares its
//!   thread with that one; one that is inside a changed thread-local (`bound`) does not, so its
//!   worker goes to another thread and comes back every time.
//! - `moving/handoff/…`: the worker leaves the thread, and the fiber goes along (`movable`) or has
//!   the worker brought back (`pinned`).

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::runtime::Builder;
use indent::task::{self, Mobility};

thread_local!(static CONTEXT: Cell<u64> = const { Cell::new(0) });

/// Yields inside a changed thread-local.
#[inline(never)]
fn bound(count: u64) -> Duration {
    let old = CONTEXT.replace(black_box(7));
    let time = movable(count);
    CONTEXT.set(old);
    time
}

#[inline(never)]
fn movable(count: u64) -> Duration {
    let start = Instant::now();
    (0..count).for_each(|_| task::yield_now());
    start.elapsed()
}

fn handoffs(count: u64) -> Duration {
    let start = Instant::now();
    (0..count).for_each(|_| indent::runtime::handoff());
    start.elapsed()
}

fn yields(count: u64, body: fn(u64) -> Duration, expected: Mobility) -> Duration {
    let rt = Builder::new().workers(1).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    rt.block_on(move || drop(task::current().unwrap().binding())); // the verdict is known
    let other = rt.spawn(move || {
        while !stopped.load(Relaxed) {
            task::yield_now();
        }
    });
    let fiber = rt.spawn(move || body(count));
    let seen = fiber.fiber();
    let time = fiber.join().unwrap();
    stop.store(true, Relaxed);
    other.join().unwrap();
    assert!(count < 100 || seen.binding().mobility() == expected);
    time
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("moving");
    group.bench_function("yield/movable", |b| {
        b.iter_custom(|n| yields(n, movable, Mobility::Movable));
    });
    group.bench_function("yield/bound", |b| {
        b.iter_custom(|n| yields(n, bound, Mobility::Bound));
    });
    for pinned in [false, true] {
        let name = if pinned {
            "handoff/pinned"
        } else {
            "handoff/movable"
        };
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                let rt = Builder::new().workers(1).build().unwrap();
                rt.block_on(move || {
                    drop(task::current().unwrap().binding());
                    let builder = task::Builder::new();
                    let builder = if pinned { builder.pinned() } else { builder };
                    builder.spawn(move || handoffs(n)).join().unwrap()
                })
            });
        });
    }
    group.finish();
}

criterion_group!(moving, benches);
criterion_main!(moving);
