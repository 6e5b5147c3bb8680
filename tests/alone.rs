//! Fibers that share their thread with nobody, and fibers that may not leave theirs.
//!
//! A crate that changes a thread-local around a callback and restores it afterwards is right on
//! threads, and breaks if two fibers of one thread are inside at once. Such a fiber is to be alone.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::{Builder, Metrics, Runtime};
use indent::task::{self, Verdict};

mod common;

thread_local! {
    /// Whom this thread works for.
    static CONTEXT: Cell<u64> = const { Cell::new(0) };
}

/// What tracing spans, scoped thread-locals and runtimes' contexts do.
#[inline(never)]
fn with_context(value: u64, f: impl FnOnce()) -> bool {
    let old = CONTEXT.replace(value);
    f();
    let kept = CONTEXT.get() == value;
    CONTEXT.set(old);
    kept && old == 0
}

/// Until it is known what such a fiber holds, it counts as one that may share.
fn study(rt: &Runtime) {
    rt.spawn(|| {
        with_context(1, || {
            let binding = task::current().unwrap().binding();
            assert_eq!(binding.verdict(), Verdict::Alone, "{binding:?}");
        })
    })
    .join()
    .unwrap();
    // Where it parks below is known, too, when it was seen to be alone there.
    let fiber = rt.spawn(|| with_context(1, || (0..2_000).for_each(|_| park_a_little())));
    let alone = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        fiber.fiber().binding().verdict() == Verdict::Alone
    });
    assert!(alone, "it was never noted");
    fiber.join().unwrap();
}

#[inline(never)]
fn park_a_little() {
    indent::time::sleep(Duration::from_micros(500));
}

fn alone_parks(metrics: &Metrics) -> u64 {
    metrics.workers.iter().map(|w| w.alone_parks).sum()
}

#[test]
fn two_fibers_inside_a_changed_thread_local_never_meet_on_one_thread() {
    let rt = Builder::new().workers(2).build().unwrap();
    study(&rt);
    let fibers: Vec<_> = (1..=40)
        .map(|i| {
            rt.spawn(move || {
                (0..20).all(|_| with_context(i, || (0..3).for_each(|_| park_a_little())))
            })
        })
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap(), "somebody else's context");
    }
    assert!(alone_parks(&rt.metrics()) > 0);
    common::wait_for("threads end", || rt.metrics().carriers <= 8);
}

#[test]
fn fibers_that_want_to_be_alone_leave_threads_for_the_others() {
    let rt = Builder::new().workers(2).build().unwrap();
    study(&rt);
    // Each keeps a thread while it waits for the last.
    let here = Arc::new(AtomicUsize::new(0));
    let kept: Vec<_> = (1..=30)
        .map(|i| {
            let here = here.clone();
            rt.spawn(move || {
                with_context(i, || {
                    here.fetch_add(1, SeqCst);
                    while here.load(SeqCst) < 30 {
                        park_a_little();
                    }
                })
            })
        })
        .collect();
    common::wait_for("all are inside", || here.load(SeqCst) == 30);
    for fiber in kept {
        assert!(fiber.join().unwrap());
    }
}

#[test]
fn beyond_a_number_of_threads_they_share_with_each_other_and_go_on() {
    // Half of these may keep a fiber each.
    let rt = Builder::new().workers(2).max_carriers(8).build().unwrap();
    study(&rt);
    let steps = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let plain = rt.spawn({
        let (steps, stop) = (steps.clone(), stop.clone());
        move || {
            while !stop.load(Relaxed) {
                steps.fetch_add(1, Relaxed);
                indent::time::sleep(Duration::from_micros(100));
            }
        }
    });
    let crowd: Vec<_> = (1..=60)
        .map(|i| rt.spawn(move || with_context(i, || (0..20).for_each(|_| park_a_little()))))
        .collect();
    for fiber in crowd {
        let _met = fiber.join().unwrap(); // they do meet now
    }
    let before = steps.load(Relaxed);
    common::wait_for("the plain one goes on", || {
        steps.load(Relaxed) > before + 10
    });
    stop.store(true, SeqCst);
    plain.join().unwrap();
    let metrics = rt.metrics();
    assert!(metrics.carriers <= 8, "{metrics:?}");
}

#[test]
fn a_fiber_that_may_not_leave_a_thread_that_computes_is_counted() {
    // With another thread the hog would start there.
    let rt = Builder::new().workers(2).max_carriers(2).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let bound: Vec<_> = (0..2)
        .map(|worker| {
            let stop = stop.clone();
            rt.block_on(move || {
                let builder = task::Builder::new().worker(worker).pinned();
                builder.spawn(move || {
                    while !stop.load(Relaxed) {
                        park_a_little();
                    }
                })
            })
        })
        .collect();
    let hog = rt.spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    common::wait_for("one of them waits", || rt.metrics().bound_waiting > 0);
    stop.store(true, SeqCst);
    hog.join().unwrap();
    bound.into_iter().for_each(|fiber| fiber.join().unwrap());
}
