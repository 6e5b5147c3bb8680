//! Spawning and joining: every fiber runs once, every result arrives once, every value drops once.

mod common;

use std::collections::HashSet;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indent::runtime::{Builder, Handle, Runtime};
use indent::task::{self, JoinHandle, Phase};
use indent::{SpawnError, park};

/// Fibers of the test that compares workers; fewer where code is slow.
const MANY: usize = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Keeps the only worker busy until it is dropped, so that spawned fibers cannot run.
struct Busy {
    go: Arc<AtomicBool>,
    fiber: Option<JoinHandle<()>>,
}

impl Busy {
    fn occupy(rt: &Runtime) -> Self {
        let go = Arc::new(AtomicBool::new(false));
        let (wait, (tell, told)) = (go.clone(), mpsc::channel());
        let fiber = rt.spawn(move || {
            tell.send(()).unwrap();
            while !wait.load(SeqCst) {
                std::thread::yield_now();
            }
        });
        told.recv().unwrap();
        Busy {
            go,
            fiber: Some(fiber),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.go.store(true, SeqCst);
        if let Some(fiber) = self.fiber.take() {
            fiber.join().unwrap();
        }
    }
}

#[test]
fn a_hundred_fibers_yield_exactly_a_thousand_times_each() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let count = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..100)
            .map(|_| {
                let count = count.clone();
                rt.spawn(move || {
                    for _ in 0..1000 {
                        task::yield_now();
                        count.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        for fiber in fibers {
            fiber.join().unwrap();
        }
        assert_eq!(count.load(SeqCst), 100_000);
    }
}

#[test]
fn spawns_inside_fibers_join() {
    let rt = runtime(2);
    let n = rt.block_on(|| {
        let hs: Vec<_> = (0..100_000u64).map(|i| indent::spawn(move || i)).collect();
        hs.into_iter().map(|h| h.join().unwrap()).sum::<u64>()
    });
    assert_eq!(n, 100_000 * 99_999 / 2);
}

fn fibonacci(n: u32) -> u32 {
    if n < 2 {
        n
    } else {
        fibonacci(n - 1) + fibonacci(n - 2)
    }
}

#[test]
fn fibers_spawned_by_one_are_shared_out_over_two_workers() {
    common::within(240, || {
        let rt = runtime(2);
        let right = rt.block_on(|| {
            let fibers: Vec<_> = (0..MANY)
                .map(|_| {
                    indent::spawn(|| {
                        let result = fibonacci(std::hint::black_box(20));
                        for _ in 0..10 {
                            task::yield_now();
                        }
                        result
                    })
                })
                .collect();
            let results = fibers.into_iter().map(|fiber| fiber.join().unwrap());
            results.filter(|&result| result == 6765).count()
        });
        assert_eq!(right, MANY);
        let metrics = rt.metrics();
        let dispatches: Vec<_> = metrics.workers.iter().map(|w| w.dispatches_total).collect();
        let all: u64 = dispatches.iter().sum();
        assert!(all >= 11 * MANY as u64, "{dispatches:?}");
        let even = all / 2;
        for worker in &dispatches {
            assert!((even / 2..=even * 2).contains(worker), "{dispatches:?}");
        }
    });
}

#[test]
fn each_fiber_of_a_chain_spawns_the_next() {
    fn link(left: usize, end: mpsc::Sender<usize>) {
        if left == 0 {
            end.send(task::id().unwrap() as usize).unwrap();
        } else {
            drop(indent::spawn(move || link(left - 1, end)));
        }
    }
    common::within(60, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let (end, ended) = mpsc::channel();
            drop(rt.spawn(move || link(10_000, end)));
            ended.recv().unwrap();
            rt.wait_idle();
            assert_eq!(rt.metrics().fibers_spawned_total, 10_001);
        }
    });
}

#[test]
fn each_fiber_of_a_chain_joins_the_next() {
    fn depth(left: usize) -> usize {
        match left {
            0 => 0,
            _ => 1 + indent::spawn(move || depth(left - 1)).join().unwrap(),
        }
    }
    common::within(60, || {
        for workers in [1, 2] {
            assert_eq!(runtime(workers).block_on(|| depth(2_000)), 2_000);
        }
    });
}

#[test]
fn a_tree_of_fibers_joins() {
    fn leaves(depth: u32) -> u64 {
        if depth == 0 {
            return 1;
        }
        let left = indent::spawn(move || leaves(depth - 1));
        let right = indent::spawn(move || leaves(depth - 1));
        left.join().unwrap() + right.join().unwrap()
    }
    common::within(60, || {
        for workers in [1, 2] {
            assert_eq!(runtime(workers).block_on(|| leaves(12)), 4096);
        }
    });
}

#[test]
fn several_threads_spawn_at_once() {
    common::within(60, || {
        let rt = runtime(2);
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let handle = rt.handle().clone();
                std::thread::spawn(move || {
                    let fibers: Vec<_> = (0..5_000)
                        .map(|i| handle.spawn(move || n * 5_000 + i))
                        .collect();
                    fibers
                        .into_iter()
                        .map(|fiber| fiber.join().unwrap())
                        .sum::<u64>()
                })
            })
            .collect();
        let sum: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        assert_eq!(sum, 20_000 * 19_999 / 2);
        assert_eq!(rt.metrics().fibers_spawned_total, 20_000);
    });
}

#[test]
fn threads_and_fibers_spawn_at_once() {
    common::within(60, || {
        let rt = runtime(2);
        let count = Arc::new(AtomicUsize::new(0));
        let spawn_some = |handle: Handle, count: Arc<AtomicUsize>| {
            move || {
                for _ in 0..5_000 {
                    let count = count.clone();
                    drop(handle.spawn(move || count.fetch_add(1, SeqCst)));
                }
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| std::thread::spawn(spawn_some(rt.handle().clone(), count.clone())))
            .collect();
        let other = runtime(1);
        let fibers = [&rt, &rt, &other]
            .map(|home| home.spawn(spawn_some(rt.handle().clone(), count.clone())));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        rt.wait_idle();
        assert_eq!(count.load(SeqCst), 25_000);
    });
}

#[test]
fn a_fiber_whose_handle_is_dropped_still_runs() {
    common::within(60, || {
        let rt = runtime(1);
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let count = count.clone();
            drop(rt.spawn(move || {
                task::yield_now();
                count.fetch_add(1, SeqCst);
            }));
        }
        rt.wait_idle();
        assert_eq!(count.load(SeqCst), 1000);
    });
}

/// Counts its creations and drops, and carries bytes that must arrive unchanged.
struct Counted<const BYTES: usize> {
    bytes: [u8; BYTES],
    alive: Arc<AtomicUsize>,
    drops: Arc<AtomicUsize>,
}

impl<const BYTES: usize> Counted<BYTES> {
    fn new(counts: &(Arc<AtomicUsize>, Arc<AtomicUsize>)) -> Self {
        counts.0.fetch_add(1, SeqCst);
        Counted {
            bytes: std::array::from_fn(|i| (i * 7 + 3) as u8),
            alive: counts.0.clone(),
            drops: counts.1.clone(),
        }
    }

    fn assert_intact(&self) {
        let right = |(i, byte): (usize, &u8)| *byte == (i * 7 + 3) as u8;
        assert!(self.bytes.iter().enumerate().all(right));
    }
}

impl<const BYTES: usize> Drop for Counted<BYTES> {
    fn drop(&mut self) {
        self.assert_intact();
        self.alive.fetch_sub(1, SeqCst);
        self.drops.fetch_add(1, SeqCst);
    }
}

/// Takes every path of a closure and its result; checks that each is made and dropped once.
fn everything_is_dropped_once<const CAPTURE: usize, const RESULT: usize>() {
    let counts = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let check = |what: &str, made: usize| {
        let (alive, drops) = (counts.0.load(SeqCst), counts.1.swap(0, SeqCst));
        assert_eq!(
            (alive, drops),
            (0, made),
            "{what}, {CAPTURE} bytes in, {RESULT} out"
        );
    };
    let rt = runtime(1);
    let fiber = || {
        let (capture, counts) = (Counted::<CAPTURE>::new(&counts), counts.clone());
        move || {
            capture.assert_intact();
            Counted::<RESULT>::new(&counts)
        }
    };

    let result = rt.spawn(fiber()).join().unwrap();
    result.assert_intact();
    rt.wait_idle();
    assert_eq!(counts.0.load(SeqCst), 1, "the result is still ours");
    drop(result);
    check("joined", 2);

    rt.block_on(|| drop(indent::spawn(fiber()).join().unwrap()));
    check("joined by a fiber", 2);

    let busy = Busy::occupy(&rt);
    let handle = rt.spawn(fiber());
    drop(handle);
    drop(busy);
    rt.wait_idle();
    check("detached before it ran", 2);

    let handle = rt.spawn(fiber());
    common::wait_for("the end", || handle.is_finished());
    drop(handle);
    rt.wait_idle();
    check("detached after it finished", 2);

    let handle = rt.spawn(fiber());
    common::wait_for("the end", || handle.is_finished());
    drop(handle.join_timeout(Duration::ZERO).unwrap().unwrap());
    rt.wait_idle();
    check("joined with a time limit", 2);

    let busy = Busy::occupy(&rt);
    let (kept, dropped) = (rt.spawn(fiber()), rt.spawn(fiber()));
    drop(dropped);
    let handle = rt.handle().clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        drop(busy);
    });
    let report = rt.shutdown_timeout(Duration::from_secs(30));
    assert!(report.is_clean(), "{report}");
    release.join().unwrap();
    assert!(kept.join().is_err_and(|error| error.is_cancelled()));
    check("never run, because of a shutdown", 2);

    assert!(
        handle
            .spawn(fiber())
            .join()
            .is_err_and(|e| e.is_cancelled())
    );
    check("refused", 1);
}

#[test]
fn small_closures_and_results_are_dropped_once() {
    common::within(120, everything_is_dropped_once::<1, 1>);
}

#[test]
fn large_closures_are_dropped_once() {
    common::within(120, everything_is_dropped_once::<1000, 1>);
}

#[test]
fn large_results_are_dropped_once() {
    common::within(120, everything_is_dropped_once::<1, 1000>);
}

#[test]
fn closures_and_results_about_as_large_as_a_record_are_dropped_once() {
    common::within(120, everything_is_dropped_once::<112, 112>);
    common::within(120, everything_is_dropped_once::<113, 88>);
    common::within(120, everything_is_dropped_once::<96, 104>);
}

/// A type that needs more alignment than a record gives.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(64))]
struct Aligned([u8; 5]);

impl Aligned {
    fn is_aligned(&self) -> bool {
        std::ptr::from_ref(self).addr().is_multiple_of(64)
    }
}

#[test]
fn over_aligned_closures_and_results_arrive_intact() {
    let rt = runtime(1);
    let value = Aligned([1, 2, 3, 4, 5]);
    let fiber = rt.spawn(move || {
        assert!(value.is_aligned());
        Aligned(value.0.map(|byte| byte * 2))
    });
    let result = fiber.join().unwrap();
    assert!(result.is_aligned());
    assert_eq!(result, Aligned([2, 4, 6, 8, 10]));
    // Larger than a record, too.
    let many = [value; 20];
    let back = rt.spawn(move || many).join().unwrap();
    assert_eq!(back, [value; 20]);
}

#[test]
fn closures_and_results_of_no_size_join() {
    let rt = runtime(1);
    for _ in 0..100 {
        rt.spawn(|| ()).join().unwrap();
        let () = rt.block_on(|| indent::spawn(task::yield_now).join().unwrap());
    }
    let nothing: [u8; 0] = rt.spawn(|| []).join().unwrap();
    assert!(nothing.is_empty());
}

#[test]
fn a_handle_tells_when_its_fiber_has_finished() {
    common::within(60, || {
        let rt = runtime(1);
        rt.block_on(|| {
            let fiber = indent::spawn(park::park);
            assert!(!fiber.is_finished());
            assert_eq!(fiber.fiber().phase(), Phase::Unstarted);
            while fiber.fiber().phase() != Phase::Parked {
                task::yield_now();
            }
            assert!(!fiber.is_finished());
            fiber.unparker().unpark();
            assert!(!fiber.is_finished());
            while !fiber.is_finished() {
                task::yield_now();
            }
            fiber.join().unwrap();
        });
    });
}

#[test]
fn a_join_with_a_time_limit_gives_the_handle_back() {
    common::within(60, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let wait = || {
                let fiber = Handle::current().spawn(|| {
                    park::park();
                    vec![5; 100]
                });
                let id = fiber.id();
                let fiber = fiber.join_timeout(Duration::ZERO).unwrap_err();
                let fiber = fiber.join_timeout(Duration::from_millis(3)).unwrap_err();
                assert_eq!(fiber.id(), id);
                assert!(!fiber.is_finished());
                fiber.unparker().unpark();
                let result = fiber.join_timeout(Duration::from_secs(3600)).unwrap();
                assert_eq!(result.unwrap(), [5; 100]);
                // A time that is too far away to be represented.
                assert_eq!(
                    indent::spawn(|| 6)
                        .join_timeout(Duration::MAX)
                        .unwrap()
                        .unwrap(),
                    6
                );
            };
            rt.block_on(wait);
            wait(); // on a plain thread, with the default runtime
        }
    });
}

#[test]
fn stress_joins_with_short_limits_get_each_result_once() {
    const ROUNDS: u64 = 2_000;
    common::within(120, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let wait = |i: u64| {
                let mut fiber = Handle::current().spawn(move || {
                    (0..i % 5).for_each(|_| task::yield_now());
                    i
                });
                loop {
                    match fiber.join_timeout(Duration::from_micros(i % 40)) {
                        Ok(result) => break result.unwrap(),
                        Err(again) => fiber = again,
                    }
                }
            };
            rt.block_on(|| (0..ROUNDS).for_each(|i| assert_eq!(wait(i), i)));
            (0..ROUNDS).for_each(|i| assert_eq!(wait(i), i));
        }
    });
}

#[test]
fn ids_are_unique_among_ten_thousand_fibers() {
    let rts = [runtime(1), runtime(2)];
    let fibers: Vec<_> = (0..10_000)
        .map(|i| {
            let fiber = rts[i % 2].spawn(|| task::id().unwrap());
            (fiber.id(), fiber)
        })
        .collect();
    let mut seen = HashSet::new();
    for (id, fiber) in fibers {
        assert_eq!(fiber.join().unwrap(), id);
        assert!(seen.insert(id), "{id} twice");
    }
    assert_eq!(task::id(), None);
}

#[test]
fn a_fiber_knows_itself() {
    let rt = runtime(1);
    assert!(task::current().is_none());
    let (me, id) = rt.block_on(|| {
        let named = task::Builder::new().name("me");
        let fiber = named.spawn(|| (task::current().unwrap(), task::id().unwrap()));
        assert_eq!(fiber.fiber().name(), Some("me"));
        fiber.join().unwrap()
    });
    assert_eq!(me.id(), id);
    assert_eq!(me.name(), Some("me"));
    assert_eq!(me.phase(), Phase::Done);
    assert!(!me.is_cancelled());
    assert_eq!(
        rt.spawn(task::current).join().unwrap().unwrap().name(),
        None
    );
}

#[test]
fn a_stack_size_outside_what_there_is_is_refused() {
    let rt = runtime(1);
    rt.block_on(|| {
        for bad in [0, (1 << 30) + 1, usize::MAX] {
            let refused = task::Builder::new().stack_size(bad).try_spawn(|| ());
            let Err(SpawnError::BadStackSize { asked, largest }) = refused else {
                panic!("{bad}: {refused:?}");
            };
            assert_eq!((asked, largest), (bad, 1 << 30));
            let text = refused.unwrap_err().to_string();
            assert!(
                text.contains(&bad.to_string()) && text.contains(&largest.to_string()),
                "{text}"
            );
        }
        for good in [1, 4096, 100_000, 8 << 20] {
            let fiber = task::Builder::new()
                .stack_size(good)
                .try_spawn(move || good);
            assert_eq!(fiber.unwrap().join().unwrap(), good);
        }
    });
}

#[test]
fn spawn_panics_where_try_spawn_refuses_and_says_where() {
    let rt = runtime(1);
    let (message, line) = rt.block_on(|| {
        let builder = task::Builder::new().worker(3);
        let spawn = || builder.spawn(|| ());
        let line = line!() - 1;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(spawn));
        let message = caught.unwrap_err().downcast::<String>().unwrap();
        (message, line)
    });
    let expected = format!("spawn at {}:{line}:", file!());
    assert!(message.starts_with(&expected), "{message}");
    assert!(
        message.ends_with("worker 3 does not exist: this runtime has workers 0 to 0"),
        "{message}"
    );
}

#[test]
fn a_large_stack_holds_deep_frames() {
    fn deep(left: usize) -> usize {
        let frame = std::hint::black_box([left; 128]); // one KiB
        match left {
            0 => 0,
            _ => deep(left - 1) + frame[127] / frame[0],
        }
    }
    let rt = runtime(1);
    let result = rt.block_on(|| {
        task::Builder::new()
            .stack_size(64 << 20)
            .spawn(|| deep(10_000))
            .join()
    });
    assert_eq!(result.unwrap(), 10_000);
}

#[test]
fn a_fiber_starts_on_the_worker_it_was_sent_to() {
    common::within(60, || {
        let rt = runtime(2);
        let started = || -> Vec<u64> {
            rt.metrics()
                .workers
                .iter()
                .map(|w| w.fibers_started_total)
                .collect()
        };
        for worker in [0, 1] {
            let before = started();
            rt.block_on(|| {
                let builder = task::Builder::new().worker(worker);
                let sent: Vec<_> = (0..100).map(|i| builder.clone().spawn(move || i)).collect();
                for (i, fiber) in sent.into_iter().enumerate() {
                    assert_eq!(fiber.join().unwrap(), i);
                }
            });
            rt.wait_idle();
            let after = started();
            // The spawner itself may start on either worker.
            assert!(
                after[worker] - before[worker] >= 100,
                "{before:?} {after:?}"
            );
            assert!(
                after[1 - worker] - before[1 - worker] <= 1,
                "{before:?} {after:?}"
            );
        }
    });
}

#[test]
fn a_fiber_sent_to_a_busy_worker_waits_for_it() {
    common::within(60, || {
        // Without preemption, because otherwise the busy fiber is interrupted for it.
        let rt = Builder::new().workers(2).preempt(false).build().unwrap();
        let (tell, told) = mpsc::channel();
        let go = Arc::new(AtomicBool::new(false));
        let wait = go.clone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (first, second) = (order.clone(), order.clone());
        let (busy, sent) = rt.block_on(move || {
            let busy = task::Builder::new().worker(1).spawn(move || {
                tell.send(()).unwrap();
                while !wait.load(SeqCst) {
                    std::thread::yield_now();
                }
                first.lock().unwrap().push("busy");
            });
            let sent = task::Builder::new()
                .worker(1)
                .spawn(move || second.lock().unwrap().push("sent"));
            (busy, sent)
        });
        told.recv().unwrap();
        for _ in 0..100 {
            rt.block_on(|| indent::spawn(|| ()).join().unwrap()); // worker 0 is free
        }
        assert!(!sent.is_finished());
        go.store(true, SeqCst);
        busy.join().unwrap();
        sent.join().unwrap();
        assert_eq!(*order.lock().unwrap(), ["busy", "sent"]);
    });
}

#[test]
fn a_worker_that_does_not_exist_is_refused() {
    let rt = runtime(2);
    rt.block_on(|| {
        for bad in [2, 100, usize::MAX] {
            let refused = task::Builder::new()
                .worker(bad)
                .try_spawn(|| ())
                .unwrap_err();
            let SpawnError::NoSuchWorker { workers, .. } = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(workers, 2);
            assert!(
                refused
                    .to_string()
                    .ends_with("this runtime has workers 0 to 1"),
                "{refused}"
            );
        }
    });
}

#[test]
fn a_refused_closure_is_dropped() {
    let rt = runtime(1);
    let counts = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let capture = Counted::<200>::new(&counts);
    rt.block_on(|| {
        let refused = task::Builder::new()
            .worker(9)
            .try_spawn(move || capture.assert_intact());
        assert!(refused.is_err());
    });
    assert_eq!((counts.0.load(SeqCst), counts.1.load(SeqCst)), (0, 1));
}

#[test]
fn a_preferred_worker_that_sleeps_gets_the_fiber() {
    common::within(60, || {
        let rt = runtime(3);
        for preferred in [0, 1, 2] {
            let started = || rt.metrics().workers[preferred].fibers_started_total;
            let before = started();
            rt.block_on(|| {
                for i in 0..50 {
                    // Time for the other workers to sleep.
                    park_for(Duration::from_millis(1));
                    let fiber = task::Builder::new()
                        .preferred_worker(preferred)
                        .spawn(move || i);
                    assert_eq!(fiber.join().unwrap(), i);
                }
            });
            let got = started() - before;
            assert!(got >= 20, "worker {preferred} started {got} of 50");
        }
    });
}

fn park_for(time: Duration) {
    park::park_until(
        Some(std::time::Instant::now() + time),
        park::ParkReason::Park,
    );
}

#[test]
fn a_preferred_worker_that_is_busy_or_not_there_does_not_hold_a_fiber_up() {
    common::within(60, || {
        let rt = runtime(2);
        let go = Arc::new(AtomicBool::new(false));
        let (wait, (tell, told)) = (go.clone(), mpsc::channel());
        let busy = rt.block_on(move || {
            task::Builder::new().worker(1).spawn(move || {
                tell.send(()).unwrap();
                while !wait.load(SeqCst) {
                    std::thread::yield_now();
                }
            })
        });
        told.recv().unwrap();
        rt.block_on(|| {
            for preferred in [1, 7, usize::MAX] {
                let fiber = task::Builder::new().preferred_worker(preferred).spawn(|| 5);
                assert_eq!(fiber.join().unwrap(), 5);
            }
        });
        assert!(!busy.is_finished());
        go.store(true, SeqCst);
        busy.join().unwrap();
    });
}

#[test]
fn pinned_fibers_stay_on_their_thread() {
    common::within(60, || {
        let rt = runtime(2);
        let stays = || {
            let thread = std::thread::current().id();
            (0..100).all(|i| {
                if i % 10 == 0 {
                    park_for(Duration::from_micros(100));
                }
                task::yield_now();
                std::thread::current().id() == thread
            })
        };
        let fibers: Vec<_> = rt.block_on(|| {
            (0..20)
                .map(|i| {
                    let builder = task::Builder::new();
                    if i % 2 == 0 {
                        builder.pinned().spawn(stays)
                    } else {
                        builder.spawn(move || {
                            let _pinned = task::pin();
                            let _twice = task::pin();
                            stays()
                        })
                    }
                })
                .collect()
        });
        for fiber in fibers {
            assert!(fiber.join().unwrap());
        }
        drop(task::pin()); // does nothing on a plain thread
    });
}

#[test]
fn a_fiber_was_spawned_where_its_spawner_says_so() {
    let rt = runtime(1);
    let here = || *task::current().unwrap().location();
    let check = |fiber: JoinHandle<Location<'static>>, line: u32| {
        let outside = fiber.fiber().location();
        assert_eq!((outside.file(), outside.line()), (file!(), line));
        let inside = fiber.join().unwrap();
        assert_eq!((inside.file(), inside.line()), (file!(), line));
    };
    check(indent::spawn(here), line!());
    check(task::spawn(here), line!());
    check(rt.spawn(here), line!());
    check(rt.handle().spawn(here), line!());
    check(task::Builder::new().spawn(here), line!());
    check(task::Builder::new().try_spawn(here).unwrap(), line!());
    let line = line!() + 1;
    let blocked_on = rt.block_on(here);
    assert_eq!((blocked_on.file(), blocked_on.line()), (file!(), line));
    rt.block_on(|| check(indent::spawn(here), line!()));
}
