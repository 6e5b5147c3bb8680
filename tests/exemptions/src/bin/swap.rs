//! Measures `ArcSwap::store` before and after many fibers have used an `ArcSwap`.
//!
//! `swap COUNT`: each fiber loads the value and keeps the guard while it is parked; meanwhile the
//! value is replaced. A guard's value must stay as it was, and every value must be dropped once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use indent::sync::Barrier;
use indent::{task, time};
use indent_exemptions::{crowd, number, report, run, thread};

/// Number of stores in one measurement; the fastest of several counts.
const STORES: u32 = 200;
const MEASUREMENTS: usize = 10;

static MADE: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// A value that shows whether it was dropped.
struct Value {
    number: usize,
    copy: Box<usize>,
}

impl Value {
    fn new() -> Arc<Value> {
        let number = MADE.fetch_add(1, SeqCst);
        let copy = Box::new(number);
        Arc::new(Value { number, copy })
    }

    fn check(&self) -> usize {
        assert_eq!(self.number, *self.copy, "not a value any more");
        self.number
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check();
        *self.copy = usize::MAX;
        DROPPED.fetch_add(1, SeqCst);
    }
}

#[inline(never)]
fn load(shared: &ArcSwap<Value>) -> Guard<Arc<Value>> {
    shared.load()
}

#[inline(never)]
fn load_full(shared: &ArcSwap<Value>) -> Arc<Value> {
    shared.load_full()
}

#[inline(never)]
fn store(shared: &ArcSwap<Value>) {
    shared.store(Value::new());
}

/// Returns the nanoseconds that a store takes on a plain thread.
fn cost(shared: &ArcSwap<Value>) -> f64 {
    let measure = |_| {
        let values: Vec<_> = (0..STORES).map(|_| Value::new()).collect();
        let start = Instant::now();
        values.into_iter().for_each(|value| shared.store(value));
        start.elapsed()
    };
    let fastest = (0..MEASUREMENTS).map(measure).min();
    let fastest: Duration = fastest.expect("some measurements");
    fastest.as_nanos() as f64 / f64::from(STORES)
}

fn main() {
    let count = number(1);
    let shared = Arc::new(ArcSwap::new(Value::new()));
    run(
        |builder| builder,
        |rt| {
            rt.wait_until_surveyed(None);
            let before = cost(&shared);
            // The fibers and this thread, which measures in between.
            let all_inside = Arc::new(Barrier::new(count + 1));
            let measured = Arc::new(Barrier::new(count + 1));
            let inside = (all_inside.clone(), measured.clone(), shared.clone());
            let (during, moved) = std::thread::scope(|scope| {
                let fibers = scope.spawn(|| {
                    crowd(rt, count, move |n| {
                        let (all_inside, measured, shared) = &inside;
                        let before = thread();
                        let kept = load(shared);
                        let number = kept.check();
                        all_inside.wait();
                        measured.wait();
                        assert_eq!(kept.check(), number, "the guard's value has changed");
                        // Other fibers' debts are paid and made while this guard's is open.
                        for turn in 0..4 {
                            let now = load(shared).check();
                            assert!(now >= number, "a value that was replaced long ago");
                            match (n + turn) % 3 {
                                0 => task::yield_now(),
                                1 => time::sleep(Duration::from_millis(1)),
                                _ if n % 100 == 2 => store(shared),
                                _ => drop(load_full(shared)),
                            }
                        }
                        assert_eq!(kept.check(), number, "the guard's value has changed");
                        thread() != before
                    })
                });
                all_inside.wait();
                let during = cost(&shared);
                measured.wait();
                (during, fibers.join().expect("all fibers end"))
            });
            let after = cost(&shared);
            report("before", before);
            report("during", during);
            report("after", after);
            report("moved", moved.iter().filter(|moved| **moved).count());
            report("threads", rt.metrics().carriers);
        },
    );
    assert_eq!(
        MADE.load(SeqCst) - DROPPED.load(SeqCst),
        1,
        "the current one"
    );
    drop(shared);
    assert_eq!(MADE.load(SeqCst), DROPPED.load(SeqCst));
}
