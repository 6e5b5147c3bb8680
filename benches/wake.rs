//! Layer: `park`. One iteration = one wake-up and the answer to it.
//!
//! - `wake/sibling`: two fibers on one worker wake each other.
//! - `wake/worker`: on two workers.
//! - `wake/thread`: a plain thread and a fiber.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::park::{self, Unparker};
use indent::runtime::{Builder, Runtime};
use indent::task;

/// Plays one side of a game, `n` times: waits for its turn and passes it on.
fn play(ball: &AtomicU64, parity: u64, n: u64, other: &Unparker) {
    for round in 0..n {
        while ball.load(SeqCst) != 2 * round + parity {
            park::park();
        }
        ball.fetch_add(1, SeqCst);
        other.unpark();
    }
}

fn ping_pong(runtime: &Runtime, n: u64, partner: task::Builder) -> Duration {
    let body = || {
        let ball = Arc::new(AtomicU64::new(0));
        let (here, theirs) = (park::unparker(), ball.clone());
        let start = Instant::now();
        let other = partner.spawn(move || play(&theirs, 1, n, &here));
        play(&ball, 0, n, &other.unparker());
        other.join().expect("no panic");
        start.elapsed()
    };
    runtime.block_on(body)
}

fn wake(criterion: &mut Criterion) {
    let one = Builder::new().workers(1).build().expect("a runtime");
    let two = Builder::new().workers(2).build().expect("a runtime");
    criterion.bench_function("wake/sibling", |b| {
        b.iter_custom(|n| ping_pong(&one, n, task::Builder::new()));
    });
    criterion.bench_function("wake/worker", |b| {
        b.iter_custom(|n| ping_pong(&two, n, task::Builder::new().preferred_worker(1)));
    });
    criterion.bench_function("wake/thread", |b| {
        b.iter_custom(|n| {
            let ball = Arc::new(AtomicU64::new(0));
            let (here, theirs) = (park::unparker(), ball.clone());
            let start = Instant::now();
            let fiber = one.spawn(move || play(&theirs, 1, n, &here));
            play(&ball, 0, n, &fiber.unparker());
            fiber.join().expect("no panic");
            start.elapsed()
        });
    });
}

criterion_group!(benches, wake);
criterion_main!(benches);
