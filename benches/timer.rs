//! Layer: `time`. One iteration = one deadline.
//!
//! - `timer/cancel/1`: a fiber parks with a deadline up to an hour ahead, and a sibling on the same
//!   worker unparks it: set and cancelled, with a switch to the sibling and back.
//! - `timer/bare/1`: the same without a deadline; the difference is the cost of the deadline.
//! - `timer/sleep/1000`: a thousand fibers on two workers repeatedly sleep for a millisecond each:
//!   the wall time of one sleep, at least a thousandth of a millisecond.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use indent::park::{self, ParkReason, Woken};
use indent::runtime::{Builder, Runtime};
use indent::{task, time};

/// Number of fibers that sleep at the same time.
const SLEEPERS: u64 = 1000;

/// Returns a deadline 1 to 3600 s ahead, never the same twice in a row.
fn deadline(round: u64) -> Option<Instant> {
    let seconds = 1 + (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 3600;
    Some(Instant::now() + Duration::from_secs(seconds))
}

fn park(runtime: &Runtime, n: u64, deadline: fn(u64) -> Option<Instant>) -> Duration {
    runtime.block_on(|| {
        let turn = Arc::new(AtomicU64::new(0));
        let (theirs, parked) = (Arc::clone(&turn), park::unparker());
        // Once for each park: a second unpark would be stored, and end the next park before its
        // deadline is set.
        let sibling = indent::spawn(move || {
            for round in 1..=n {
                while theirs.load(Ordering::Relaxed) < round {
                    task::yield_now();
                }
                parked.unpark();
                task::yield_now();
            }
        });
        let start = Instant::now();
        for round in 0..n {
            turn.fetch_add(1, Ordering::Relaxed);
            let woken = park::park_until(deadline(round), ParkReason::Park);
            assert_eq!(woken, Woken::ByWake);
        }
        let time = start.elapsed();
        sibling.join().expect("no panic");
        time
    })
}

fn sleep(runtime: &Runtime, n: u64) -> Duration {
    runtime.block_on(|| {
        let start = Instant::now();
        let body = |times| move || (0..times).for_each(|_| time::sleep(Duration::from_millis(1)));
        let share = |fiber| n / SLEEPERS + u64::from(fiber < n % SLEEPERS);
        let fibers: Vec<_> = (0..SLEEPERS)
            .map(|fiber| indent::spawn(body(share(fiber))))
            .collect();
        fibers
            .into_iter()
            .for_each(|fiber| fiber.join().expect("no panic"));
        start.elapsed()
    })
}

fn timer(criterion: &mut Criterion) {
    let one = Builder::new().workers(1).build().expect("a runtime");
    let two = Builder::new().workers(2).build().expect("a runtime");
    criterion.bench_function("timer/cancel/1", |b| {
        b.iter_custom(|n| park(&one, n, deadline));
    });
    criterion.bench_function("timer/bare/1", |b| {
        b.iter_custom(|n| park(&one, n, |_| None));
    });
    criterion.bench_function("timer/sleep/1000", |b| {
        b.iter_custom(|n| sleep(&two, n));
    });
}

criterion_group!(benches, timer);
criterion_main!(benches);
