#![expect(unsafe_code, reason = "overrules verdicts")]
//! Movable fibers run on any thread and change threads at any park, and nothing is lost.
//!
//! The bodies here hold nothing that belongs to a thread, whatever the analysis finds. So all
//! verdicts are overruled, and only the mechanism is tested. `tests/verdicts` tests what the
//! analysis finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use indent::runtime::{Builder, Runtime};

mod common;

/// Starts a runtime whose fibers all count as movable.
fn trusting(workers: usize) -> Runtime {
    let rt = Builder::new().workers(workers).build().unwrap();
    // SAFETY: the bodies below hold nothing of a thread.
    unsafe { rt.handle().trust_everything(true) };
    rt
}

fn until(mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > Duration::from_secs(30) {
            return false;
        }
        thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Computes, without a call into the runtime, until the flag is set.
fn hog(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        std::hint::spin_loop();
    }
}

#[test]
fn siblings_of_a_fiber_that_computes_go_on_elsewhere() {
    let rt = trusting(2);
    let (stop, steps) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let at_once = rt.block_on({
        let (stop, steps) = (stop.clone(), steps.clone());
        move || {
            // They start on both workers; then another fiber computes on one of these.
            let siblings: Vec<_> = (0..64)
                .map(|_| {
                    let (stop, steps) = (stop.clone(), steps.clone());
                    indent::spawn(move || {
                        while !stop.load(Relaxed) {
                            steps.fetch_add(1, Relaxed);
                            indent::time::sleep(Duration::from_millis(1));
                        }
                    })
                })
                .collect();
            indent::time::sleep(Duration::from_millis(20));
            let hog = indent::spawn({
                let stop = stop.clone();
                move || hog(&stop)
            });
            indent::time::sleep(Duration::from_millis(20));
            let before = steps.load(Relaxed);
            // All of them make progress, also those in the queue of the worker that ran the hog.
            let moved = (0..6_000).any(|_| {
                indent::time::sleep(Duration::from_millis(5));
                steps.load(Relaxed) > before + 64 * 20
            });
            stop.store(true, SeqCst);
            hog.join().unwrap();
            siblings.into_iter().for_each(|s| s.join().unwrap());
            moved
        }
    });
    assert!(at_once);
}

#[test]
fn a_woken_fiber_whose_thread_computes_runs_elsewhere() {
    let rt = trusting(2);
    let stop = Arc::new(AtomicBool::new(false));
    let (started, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let unparkers: Vec<_> = (0..8)
        .map(|_| {
            let (started, ran) = (started.clone(), ran.clone());
            rt.spawn(move || {
                started.fetch_add(1, SeqCst);
                indent::park::park();
                ran.fetch_add(1, SeqCst);
            })
        })
        .collect();
    assert!(until(|| started.load(SeqCst) == 8));
    let hogs = rt.spawn({
        let stop = stop.clone();
        move || hog(&stop)
    });
    thread::sleep(Duration::from_millis(20));
    for fiber in &unparkers {
        fiber.unparker().unpark();
    }
    assert!(
        until(|| ran.load(SeqCst) == 8),
        "beside one hog on two workers"
    );
    stop.store(true, SeqCst);
    hogs.join().unwrap();
}

#[test]
fn stress_fibers_that_change_threads_all_the_time_lose_nothing() {
    const FIBERS: usize = 2_000;
    const STEPS: u64 = 60;
    let rt = trusting(2);
    let handle = rt.handle();
    let over = Arc::new(AtomicBool::new(false));
    let taker = thread::spawn({
        let (handle, over) = (handle.clone(), over.clone());
        move || {
            let mut taken = 0u64;
            while !over.load(SeqCst) {
                for worker in 0..2 {
                    taken += u64::from(handle.handoff(worker));
                }
                thread::sleep(Duration::from_micros(100));
            }
            taken
        }
    });
    let sum: u64 = rt.block_on(|| {
        let fibers: Vec<_> = (0..FIBERS as u64)
            .map(|i| {
                indent::spawn(move || {
                    let kept = [i; 32];
                    let mut sum = 0;
                    for step in 0..STEPS {
                        match (i + step) % 4 {
                            0 => indent::task::yield_now(),
                            1 => indent::time::sleep(Duration::from_micros(200)),
                            2 => indent::runtime::handoff(),
                            _ => (0..2_000).for_each(|_| std::hint::spin_loop()),
                        }
                        sum += kept[(step % 32) as usize] - i + 1;
                    }
                    sum
                })
            })
            .collect();
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    });
    over.store(true, SeqCst);
    let taken = taker.join().unwrap();
    assert_eq!(sum, FIBERS as u64 * STEPS);
    println!("{taken} workers taken");
    // The last fiber's result is there a little before its end.
    assert!(until(|| rt.metrics().fibers_alive == 0));
    assert!(until(|| rt.metrics().carriers <= 8), "{:?}", rt.metrics());
}

#[test]
fn pinned_fibers_stay_on_their_thread() {
    let rt = trusting(2);
    rt.block_on(|| {
        let fibers: Vec<_> = (0..50)
            .map(|_| {
                indent::task::Builder::new().pinned().spawn(|| {
                    let here = thread::current().id();
                    for _ in 0..50 {
                        indent::runtime::handoff();
                        assert_eq!(thread::current().id(), here);
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn a_crowded_worker_shares_started_fibers_with_an_idle_one() {
    let rt = trusting(2);
    let shared = rt.block_on(|| {
        let stop = Arc::new(AtomicBool::new(false));
        // All start on one worker, and none ever parks.
        let fibers: Vec<_> = (0..16)
            .map(|_| {
                let stop = stop.clone();
                let builder = indent::task::Builder::new().worker(0);
                builder.spawn(move || {
                    while !stop.load(Relaxed) {
                        indent::task::yield_now();
                    }
                })
            })
            .collect();
        let handle = indent::runtime::Handle::current();
        let shared = (0..3_000).any(|_| {
            indent::time::sleep(Duration::from_millis(5));
            handle
                .metrics()
                .workers
                .iter()
                .all(|w| w.dispatches_total > 10_000)
        });
        stop.store(true, SeqCst);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        shared
    });
    assert!(shared, "{:?}", rt.metrics());
}
