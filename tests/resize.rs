//! The number of workers changes while fibers run: no fiber waits for that, and none is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use indent::park;
use indent::runtime::{Builder, Runtime};
use indent::task::{self, Phase};

mod common;

use common::{Random, wait_for};

fn start(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Returns how many fibers run at the same time when more than enough want to.
///
/// Waits for at least `expected` of them.
fn parallelism(rt: &Runtime, expected: usize) -> usize {
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let fibers: Vec<_> = (0..2 * expected + 2)
        .map(|_| {
            let (inside, most) = (inside.clone(), most.clone());
            rt.spawn(move || {
                most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                // Computes, because a thread that slept would lose its worker to another fiber.
                compute_until(|_| most.load(SeqCst) >= expected);
                // Leaves time for one fiber too many to appear.
                compute_until(|time| time >= Duration::from_millis(20));
                inside.fetch_sub(1, SeqCst);
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    most.load(SeqCst)
}

/// Keeps the thread and the CPU until `done`, called with the time that has passed, returns true.
fn compute_until(mut done: impl FnMut(Duration) -> bool) {
    let start = Instant::now();
    while !done(start.elapsed()) {
        assert!(start.elapsed().as_secs() < 60, "the others do not come");
        std::thread::yield_now();
    }
}

#[test]
fn fibers_parked_on_every_carrier_finish_on_one_worker() {
    const EACH: usize = 1000;
    let workers = 4;
    let rt = start(workers);
    let fibers: Vec<_> = (0..workers * EACH)
        .map(|i| {
            let body = move || {
                let here = std::thread::current().id();
                park::park();
                assert_eq!(std::thread::current().id(), here, "a started fiber moved");
                i
            };
            rt.block_on(|| task::Builder::new().worker(i % workers).spawn(body))
        })
        .collect();
    wait_for("parked fibers", || {
        let fibers = rt.handle().fibers();
        fibers.iter().filter(|f| f.phase() == Phase::Parked).count() == workers * EACH
    });
    rt.handle().resize(1);
    wait_for("one worker", || rt.metrics().workers_in_service == 1);
    fibers.iter().for_each(|fiber| fiber.unparker().unpark());
    for (i, fiber) in fibers.into_iter().enumerate() {
        assert_eq!(fiber.join().unwrap(), i);
    }
}

#[test]
fn as_many_fibers_run_at_once_as_there_are_workers_now() {
    // Without preemption, because a preempted fiber would still be inside.
    let rt = Builder::new().workers(4).preempt(false).build().unwrap();
    assert_eq!(parallelism(&rt, 4), 4);
    rt.handle().resize(1);
    wait_for("one worker", || rt.metrics().workers_in_service == 1);
    assert_eq!(parallelism(&rt, 1), 1);
    rt.handle().resize(3);
    wait_for("three workers", || rt.metrics().workers_in_service == 3);
    assert_eq!(parallelism(&rt, 3), 3);
}

#[test]
fn a_worker_that_retires_leaves_its_queue_to_the_others() {
    let rt = start(2);
    let (go, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    // Holds the second worker and fills its queue.
    let (held, finished) = (go.clone(), done.clone());
    let hog = move || {
        let fibers = (0..100).map(|_| {
            let finished = finished.clone();
            indent::spawn(move || finished.fetch_add(1, SeqCst))
        });
        let fibers: Vec<_> = fibers.collect();
        while !held.load(SeqCst) {
            std::thread::yield_now();
        }
        fibers
    };
    let hog = rt.block_on(|| task::Builder::new().worker(1).spawn(hog));
    rt.handle().resize(1);
    go.store(true, SeqCst);
    let fibers = hog.join().unwrap();
    fibers
        .into_iter()
        .for_each(|fiber| assert!(fiber.join().unwrap() < 100));
    assert_eq!(done.load(SeqCst), 100);
    wait_for("one worker", || rt.metrics().workers_in_service == 1);
}

#[test]
fn a_fiber_for_a_worker_that_retires_starts_elsewhere() {
    let rt = start(2);
    for _ in 0..200 {
        let fiber = rt.block_on(|| task::Builder::new().worker(1).spawn(|| 7));
        rt.handle().resize(1);
        assert_eq!(fiber.join().unwrap(), 7);
        let other = rt.block_on(|| task::Builder::new().worker(1).try_spawn(|| 8));
        assert_eq!(other.unwrap().join().unwrap(), 8);
        rt.handle().resize(2);
    }
}

#[test]
fn stress_nothing_is_lost_while_the_number_changes_all_the_time() {
    let rt = start(6);
    let stop = Arc::new(AtomicBool::new(false));
    let (handle, stopped) = (rt.handle().clone(), stop.clone());
    let changer = std::thread::spawn(move || {
        let mut random = Random::new(3);
        let mut changes = 0;
        while !stopped.load(SeqCst) {
            handle.resize(1 + random.below(6) as usize);
            changes += 1;
            if random.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
        }
        changes
    });
    for round in 0..40 {
        let fibers: Vec<_> = (0..100u64)
            .map(|i| {
                rt.spawn(move || {
                    let children: Vec<_> = (0..i % 4)
                        .map(|k| {
                            indent::spawn(move || {
                                for _ in 0..k {
                                    task::yield_now();
                                }
                                k
                            })
                        })
                        .collect();
                    let me = park::unparker();
                    let waker = indent::spawn(move || me.unpark());
                    park::park();
                    waker.join().unwrap();
                    i + children.into_iter().map(|c| c.join().unwrap()).sum::<u64>()
                })
            })
            .collect();
        for (i, fiber) in fibers.into_iter().enumerate() {
            let children = [0, 0, 1, 3][i % 4];
            assert_eq!(fiber.join().unwrap(), i as u64 + children, "round {round}");
        }
    }
    stop.store(true, SeqCst);
    assert!(changer.join().unwrap() > 10);
    rt.handle().resize(6);
    wait_for("all workers", || rt.metrics().workers_in_service == 6);
    assert!(rt.shutdown_timeout(Duration::from_secs(10)).is_clean());
}
