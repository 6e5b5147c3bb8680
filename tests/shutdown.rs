//! The end of a runtime: what ends immediately, what it waits for, and what it abandons and names.
//!
//! Tests that count threads or abandon some run in a process of their own (module `child`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason, Unparker};
use indent::runtime::{Builder, Handle, Runtime, ThreadLocals};
use indent::task::{self, Phase};

mod common;

/// Time limit that no clean shutdown comes close to.
const LONG: Duration = Duration::from_secs(100);
/// Time limit for a shutdown that cannot be clean.
const SHORT: Duration = Duration::from_millis(300);

/// Polls until the condition holds; fails after a long time.
fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !there() {
        assert!(Instant::now() < patience, "waited in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().expect("a runtime")
}

fn wait_until_parked(handle: &Handle, n: usize) {
    wait_for("fibers to park", || {
        let parked = |fiber: &task::Fiber| fiber.phase() == Phase::Parked;
        handle.fibers().iter().filter(|fiber| parked(fiber)).count() == n
    });
}

/// Counts how often it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Parks when it is dropped, until its unparker is taken from the board and used.
struct ParksWhenDropped(Arc<Mutex<Vec<Unparker>>>, Arc<AtomicUsize>);

impl Drop for ParksWhenDropped {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(park::unparker());
        let _ = park::park_until(None, ParkReason::Park);
        self.1.fetch_add(1, SeqCst);
    }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    match payload.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => payload.downcast_ref::<&str>().map_or("?", |t| t).to_owned(),
    }
}

/// Returns the message of the panic in `f`.
fn panic_of(f: impl FnOnce()) -> String {
    panic_text(&*catch_unwind(AssertUnwindSafe(f)).expect_err("it should panic"))
}

#[test]
fn parked_fibers_end_at_once_and_take_their_threads_with_them() {
    common::alone("parked_fibers_end_at_once");
}

#[test]
fn an_endless_loop_is_named_in_the_report() {
    common::alone("endless_loop");
}

#[test]
fn a_blocked_thread_is_named_in_the_report() {
    common::alone("blocked_thread");
}

#[test]
fn a_destructor_that_parks_for_ever_is_named_in_the_report() {
    common::alone("destructor_parks_for_ever");
}

#[test]
fn dropping_a_runtime_that_cannot_end_says_what_was_left() {
    let text = common::alone("drop_with_a_blocked_thread");
    assert!(text.contains("1 fibers did not end in time"), "{text}");
    assert!(
        text.contains("'sleeper', spawned at tests/shutdown.rs:"),
        "{text}"
    );
}

#[test]
fn a_thousand_destructors_that_park_do_not_need_a_thousand_threads() {
    common::alone("destructors_park_by_the_thousand");
}

#[test]
fn dropping_a_runtime_on_its_own_fiber_is_refused_in_words() {
    common::alone("drop_on_own_fiber");
}

#[test]
fn two_hundred_runtimes_one_after_the_other_leave_nothing() {
    if common::sanitizer_forbids("its shadow and its own mappings count as ours") {
        return;
    }
    common::alone("many_runtimes");
}

#[test]
fn a_runtime_that_was_shut_down_starts_no_thread_any_more() {
    common::alone("handoff_after_the_end");
}

#[test]
fn unstarted_fibers_are_dropped_and_spawns_refused() {
    let rt = runtime(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let started = Arc::new(AtomicBool::new(false));
    let busy = rt.spawn({
        let started = started.clone();
        move || {
            started.store(true, SeqCst);
            let me = task::current().unwrap();
            // Keeps the only worker, without a call into the runtime, until the runtime is shut
            // down.
            while !me.is_cancelled() {
                std::hint::spin_loop();
            }
            let refused = task::Builder::new().try_spawn(|| ()).map(drop);
            let late = indent::spawn(|| unreachable!("it was refused"));
            let was_over = late.is_finished();
            (refused, was_over, late.join().map_err(|e| e.is_cancelled()))
        }
    });
    wait_for("the busy fiber", || started.load(SeqCst));
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let counted = Counted(drops.clone());
            rt.spawn(move || {
                drop(counted);
                unreachable!("the only worker is busy until the end")
            })
        })
        .collect();
    let begun = Instant::now();
    let handle = rt.handle().clone();
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(begun.elapsed() < LONG / 10);
    assert_eq!(drops.load(SeqCst), 50);
    for fiber in waiting {
        let error = fiber.join().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
    }
    let (refused, was_over, late) = busy.join().unwrap();
    assert_eq!(refused, Err(indent::SpawnError::ShuttingDown));
    assert!(was_over, "a refused fiber is over before it began");
    assert_eq!(late, Err(true));
    let counted = Counted(drops.clone());
    let after = handle.spawn(move || drop(counted));
    assert_eq!(
        drops.load(SeqCst),
        51,
        "a refused closure is dropped at once"
    );
    assert!(after.join().unwrap_err().is_cancelled());
}

#[test]
fn destructors_of_unstarted_fibers_may_park() {
    let rt = runtime(1);
    let (board, woken) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let started = Arc::new(AtomicBool::new(false));
    let busy = rt.spawn({
        let started = started.clone();
        move || {
            started.store(true, SeqCst);
            while !task::current().unwrap().is_cancelled() {}
        }
    });
    wait_for("the busy fiber", || started.load(SeqCst));
    let parks = ParksWhenDropped(Arc::clone(&board), woken.clone());
    let unstarted = rt.spawn(move || drop(parks));
    let waker = std::thread::spawn(move || wake_all(&board, 1));
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    waker.join().unwrap();
    assert_eq!(woken.load(SeqCst), 1);
    assert!(unstarted.join().unwrap_err().is_cancelled());
    busy.join().unwrap();
}

/// Unparks every fiber that registers on the board, `n` of them.
fn wake_all(board: &Mutex<Vec<Unparker>>, n: usize) {
    let mut left = n;
    wait_for("parked destructors", || {
        let here = std::mem::take(&mut *board.lock().unwrap());
        left -= here.len();
        here.iter().for_each(Unparker::unpark);
        left == 0
    });
}

#[test]
fn a_destructor_that_parks_is_waited_for() {
    let rt = runtime(2);
    let (board, woken) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let parks = ParksWhenDropped(Arc::clone(&board), woken.clone());
    let fiber = rt.spawn(move || {
        let _parks = parks;
        park::park();
    });
    wait_until_parked(rt.handle(), 1);
    let waker = std::thread::spawn(move || wake_all(&board, 1));
    let begun = Instant::now();
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(begun.elapsed() < LONG / 10);
    assert_eq!(woken.load(SeqCst), 1);
    waker.join().unwrap();
    assert!(fiber.join().unwrap_err().is_cancelled());
}

#[test]
fn a_caught_cancellation_comes_again_at_the_next_blocking_call() {
    let rt = runtime(1);
    let fiber = rt.spawn(|| {
        let mut caught = 0;
        let calls: [fn(); 6] = [
            park::park,
            park::park,
            task::yield_now,
            task::checkpoint,
            || drop(indent::spawn(park::park).join()), // refused, so it has ended: does not block
            || {
                let rest = Duration::from_secs(3600);
                assert_eq!(
                    park::park_until(Instant::now().checked_add(rest), ParkReason::Park),
                    park::Woken::ByCancel
                );
                park::park();
            },
        ];
        for call in calls {
            caught += usize::from(catch_unwind(call).is_err());
        }
        caught
    });
    wait_until_parked(rt.handle(), 1);
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert_eq!(
        fiber.join().unwrap(),
        5,
        "all but the join, which had nothing to wait for"
    );
}

#[test]
fn computing_with_checkpoints_and_yielding_end_when_asked() {
    let rt = runtime(2);
    let running = Arc::new(AtomicUsize::new(0));
    let drops = Arc::new(AtomicUsize::new(0));
    let calls: [fn(); 2] = [task::checkpoint, task::yield_now];
    let fibers: Vec<_> = (0..10)
        .map(|i| {
            let (running, counted) = (running.clone(), Counted(drops.clone()));
            rt.spawn(move || {
                let _counted = counted;
                running.fetch_add(1, SeqCst);
                loop {
                    calls[i % 2]();
                }
            })
        })
        .collect();
    wait_for("all to run", || running.load(SeqCst) == 10);
    let begun = Instant::now();
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(begun.elapsed() < LONG / 10);
    assert_eq!(drops.load(SeqCst), 10);
    for fiber in fibers {
        let error = fiber.join().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
    }
}

#[test]
fn joins_and_timed_joins_end_when_asked() {
    let rt = runtime(2);
    let sleeper = rt.spawn(park::park);
    let unparker = sleeper.unparker();
    let joiner = rt.spawn(move || drop(sleeper.join()));
    let timed = rt.spawn(|| {
        let child = indent::spawn(park::park);
        drop(child.join_timeout(Duration::from_secs(3600)));
    });
    wait_until_parked(rt.handle(), 4);
    let begun = Instant::now();
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert!(begun.elapsed() < LONG / 10);
    // The sleeper may have ended first, so that the join returned its result.
    let _ = joiner.join();
    let _ = timed.join();
    unparker.unpark();
}

#[test]
fn block_on_a_runtime_that_is_gone_panics_in_words() {
    let rt = runtime(1);
    let handle = rt.handle().clone();
    let within = std::thread::spawn({
        let handle = handle.clone();
        move || panic_of(|| handle.block_on(park::park))
    });
    wait_until_parked(rt.handle(), 1);
    assert!(rt.shutdown_timeout(LONG).is_clean());
    let text = within.join().unwrap();
    assert!(text.contains("tests/shutdown.rs:"), "{text}");
    assert!(text.contains("was cancelled"), "{text}");
    assert!(text.ends_with("the runtime was shut down"), "{text}");

    let text = panic_of(|| handle.block_on(|| unreachable!("nobody could run it")));
    assert!(text.contains("tests/shutdown.rs:"), "{text}");
    assert!(text.ends_with("the runtime is shutting down"), "{text}");
}

#[test]
fn what_outlives_its_runtime_is_harmless() {
    let rt = runtime(2);
    let parked = rt.spawn(|| {
        park::park();
        String::from("never")
    });
    let done = rt.spawn(|| String::from("done"));
    wait_for("one to end", || done.is_finished());
    wait_until_parked(rt.handle(), 1);
    let handle = rt.handle().clone();
    let (unparker, fiber, other) = (parked.unparker(), parked.fiber(), handle.fibers());
    drop(rt);
    for _ in 0..3 {
        unparker.unpark();
        unparker.clone().unpark();
    }
    assert_eq!(fiber.phase(), Phase::Done);
    assert!(fiber.is_cancelled());
    assert!(fiber.location().file().ends_with("shutdown.rs"));
    assert_eq!(other[0].id(), fiber.id());
    assert_eq!(handle.fibers().len(), 0);
    let metrics = handle.metrics();
    assert_eq!((metrics.fibers_spawned_total, metrics.fibers_alive), (2, 0));
    assert_eq!(metrics.carriers, 0);
    assert!(handle.spawn(|| 1).join().unwrap_err().is_cancelled());
    assert!(format!("{handle:?} {fiber:?} {unparker:?}").contains("fibers_alive: 0"));
    assert!(parked.is_finished());
    // Other runtimes use the same records meanwhile.
    let next = runtime(2);
    let sum: usize = next.block_on(|| {
        let fibers: Vec<_> = (0..100).map(|i| indent::spawn(move || i)).collect();
        fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
    });
    assert_eq!(sum, 4950);
    unparker.unpark();
    assert_eq!(done.join().unwrap(), "done");
    assert!(parked.join().unwrap_err().is_cancelled());
}

#[test]
fn two_runtimes_that_wait_for_each_other_end_together() {
    let (one, two) = (runtime(2), runtime(2));
    let fibers: Vec<_> = [(&one, &two), (&two, &one)]
        .into_iter()
        .map(|(here, there)| {
            let there = there.handle().clone();
            here.spawn(move || there.block_on(park::park))
        })
        .collect();
    wait_until_parked(one.handle(), 2);
    wait_until_parked(two.handle(), 2);
    let begun = Instant::now();
    let first = std::thread::spawn(move || one.shutdown_timeout(LONG));
    let second = two.shutdown_timeout(LONG);
    let first = first.join().unwrap();
    assert!(first.is_clean(), "{first}");
    assert!(second.is_clean(), "{second}");
    assert!(begun.elapsed() < LONG / 10);
    for fiber in fibers {
        // Each was refused by the other one, or was unwound first.
        let error = fiber.join().unwrap_err();
        assert!(error.is_panic() || error.is_cancelled(), "{error}");
    }
}

#[test]
fn a_fiber_of_another_runtime_may_shut_one_down() {
    let (one, two) = (runtime(1), runtime(1));
    let parked = one.spawn(park::park);
    wait_until_parked(one.handle(), 1);
    let report = two.block_on(move || one.shutdown_timeout(LONG));
    assert!(report.is_clean(), "{report}");
    assert!(parked.join().unwrap_err().is_cancelled());
}

#[test]
fn fibers_that_spawn_while_they_are_ended_leave_nobody_behind() {
    let rt = runtime(2);
    let drops = Arc::new(AtomicUsize::new(0));
    let made = Arc::new(AtomicUsize::new(0));
    fn breed(made: &Arc<AtomicUsize>, drops: &Arc<AtomicUsize>) {
        made.fetch_add(1, SeqCst);
        let (made, drops, counted) = (made.clone(), drops.clone(), Counted(drops.clone()));
        drop(indent::spawn(move || {
            let _counted = counted;
            breed(&made, &drops);
            task::yield_now();
        }));
    }
    rt.block_on(|| (0..20).for_each(|_| breed(&made, &drops)));
    wait_for("a few generations", || made.load(SeqCst) > 1000);
    let report = rt.shutdown_timeout(LONG);
    assert!(report.is_clean(), "{report}");
    assert_eq!(made.load(SeqCst), drops.load(SeqCst));
}

#[test]
fn waiting_for_itself_is_refused_in_words() {
    let rt = Arc::new(runtime(1));
    let same = rt.clone();
    let refused = rt.spawn(move || same.wait_idle()).join().unwrap_err();
    assert_eq!(
        panic_text(&*refused.into_panic()),
        "wait_idle on a fiber of the same runtime would wait for itself; \
         do it on a plain thread or on a fiber of another runtime"
    );
    assert_eq!(rt.spawn(|| 1).join().unwrap(), 1);
}

mod child {
    use super::*;

    /// Holds the only owner of a runtime until the first thread that ends takes it.
    type Owner = Arc<Mutex<Option<Runtime>>>;

    fn take(owner: &Owner) -> Option<Runtime> {
        owner.lock().unwrap().take()
    }

    /// Drops the runtime when its thread ends.
    struct DropsRuntime(Owner);

    impl Drop for DropsRuntime {
        fn drop(&mut self) {
            drop(take(&self.0));
        }
    }

    thread_local! {
        static AT_END: std::cell::RefCell<Option<DropsRuntime>> = const { std::cell::RefCell::new(None) };
    }

    /// Runs many fibers that block their threads at once, and releases them after `then`.
    ///
    /// Each fiber calls `f` first. Most of the threads end soon afterwards, because there is no
    /// work for them.
    fn on_many_threads(
        handle: &Handle,
        f: impl Fn() + Clone + Send + 'static,
        then: impl FnOnce(),
    ) {
        const THREADS: usize = 12;
        let all_there = Arc::new(std::sync::Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let (f, all_there) = (f.clone(), all_there.clone());
            drop(handle.spawn(move || {
                f();
                all_there.wait();
                all_there.wait();
            }));
        }
        all_there.wait();
        then();
        all_there.wait();
    }

    /// Waits until one of the runtime's threads has dropped it, and its threads have ended.
    fn is_over_soon(owner: &Owner, before: usize) {
        wait_for("the runtime to be dropped", || {
            owner.lock().unwrap().is_none()
        });
        threads_are_back_to(before);
    }

    /// Keeps the runtime busy until the owner is gone.
    ///
    /// Threads in excess end only while something happens.
    fn stir(handle: &Handle, owner: &Owner) {
        while owner.lock().unwrap().is_some() {
            drop(
                handle
                    .spawn(|| std::thread::sleep(Duration::from_millis(1)))
                    .join(),
            );
        }
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn a_runtime_dropped_in_a_thread_local_of_its_own_carrier_ends() {
        let before = common::threads();
        let rt = Builder::new()
            .workers(2)
            .thread_locals(ThreadLocals::Thread) // with its own fiber the drop would be refused
            .shutdown_timeout(LONG)
            .build()
            .unwrap();
        let handle = rt.handle().clone();
        let owner: Owner = Arc::new(Mutex::new(None));
        let kept = owner.clone();
        let keep = move || AT_END.set(Some(DropsRuntime(kept.clone())));
        on_many_threads(&handle, keep, || *owner.lock().unwrap() = Some(rt));
        stir(&handle, &owner);
        drop(handle); // the last handle may be its own thread's
        is_over_soon(&owner, before);
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn a_runtime_dropped_in_a_thread_local_of_its_own_pool_ends() {
        let before = common::threads();
        let rt = Builder::new()
            .workers(1)
            .blocking_keep_alive(Duration::from_millis(1))
            .shutdown_timeout(LONG)
            .build()
            .unwrap();
        let handle = rt.handle().clone();
        let owner: Owner = Arc::new(Mutex::new(Some(rt)));
        let kept = owner.clone();
        handle.block_on(|| {
            indent::runtime::blocking(|| AT_END.set(Some(DropsRuntime(kept))));
        });
        drop(handle);
        is_over_soon(&owner, before);
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn a_runtime_dropped_in_its_own_stop_hook_ends() {
        let before = common::threads();
        let owner: Owner = Arc::new(Mutex::new(None));
        let stops = owner.clone();
        let rt = Builder::new()
            .workers(2)
            .shutdown_timeout(LONG)
            .on_thread_stop(move || drop(take(&stops)))
            .build()
            .unwrap();
        let handle = rt.handle().clone();
        on_many_threads(&handle, || (), || *owner.lock().unwrap() = Some(rt));
        stir(&handle, &owner);
        drop(handle);
        is_over_soon(&owner, before);
    }

    fn threads_are_back_to(before: usize) {
        wait_for("threads to end", || common::threads() <= before);
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn parked_fibers_end_at_once() {
        let before = common::threads();
        let rt = runtime(3);
        let drops = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..500)
            .map(|_| {
                let counted = Counted(drops.clone());
                rt.spawn(move || {
                    let _counted = counted;
                    park::park();
                })
            })
            .collect();
        wait_until_parked(rt.handle(), 500);
        assert!(common::threads() >= before + 3);
        let begun = Instant::now();
        let report = rt.shutdown_timeout(LONG);
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.to_string(), "every fiber ended");
        assert!(begun.elapsed() < LONG / 10);
        assert_eq!(drops.load(SeqCst), 500);
        for fiber in fibers {
            let error = fiber.join().unwrap_err();
            assert!(error.is_cancelled(), "{error}");
            assert!(error.to_string().ends_with("was cancelled"), "{error}");
        }
        threads_are_back_to(before);
    }

    /// Shuts down a runtime with one fiber that does not end, named `name`; returns its report
    /// entry.
    fn expect_abandoned(rt: Runtime, name: &str, line: u32) -> indent::runtime::Abandoned {
        let begun = Instant::now();
        let report = rt.shutdown_timeout(SHORT);
        let took = begun.elapsed();
        assert!(took >= SHORT, "{took:?}");
        assert!(took < SHORT * 10, "{took:?}");
        assert!(!report.is_clean());
        assert_eq!(report.threads_left, 1, "{report}");
        assert_eq!(report.abandoned.len(), 1, "{report}");
        let text = report.to_string();
        let line = format!("'{name}', spawned at tests/shutdown.rs:{line}: ");
        assert!(text.contains(&line), "{text}");
        assert!(text.starts_with("1 fibers did not end in time and keep 1 threads:"));
        let abandoned = report.abandoned.into_iter().next().unwrap();
        assert_eq!(abandoned.name.as_deref(), Some(name));
        abandoned
    }

    #[test]
    #[ignore = "leaves a thread behind"]
    fn endless_loop() {
        let rt = runtime(2);
        // Each starts on a worker of its own.
        let elsewhere = task::Builder::new().worker(0);
        let innocent = rt.block_on(|| elsewhere.spawn(park::park));
        let handle = rt.handle().clone();
        let named = task::Builder::new().name("spinner").worker(1);
        let (fiber, line) = rt.block_on(|| {
            let fiber = named.spawn(|| -> () {
                loop {
                    std::hint::spin_loop();
                }
            });
            (fiber, line!() - 5)
        });
        wait_for("the loop", || fiber.fiber().phase() == Phase::Runnable);
        let abandoned = expect_abandoned(rt, "spinner", line);
        assert_eq!(abandoned.id, fiber.id());
        assert_eq!(abandoned.phase, Phase::Runnable);
        assert!(innocent.join().unwrap_err().is_cancelled());
        assert!(!fiber.is_finished());
        // What is abandoned does not disturb lists or other runtimes.
        assert_eq!(handle.fibers().len(), 1);
        assert_eq!(
            runtime(2).block_on(|| indent::spawn(|| 7).join().unwrap()),
            7
        );
        let timed = fiber.join_timeout(Duration::from_millis(5));
        assert!(timed.is_err(), "it runs for ever");
    }

    #[test]
    #[ignore = "leaves a thread behind"]
    fn blocked_thread() {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let named = task::Builder::new().name("sleeper");
        let line = rt.block_on(move || {
            drop(named.spawn(move || {
                tell.send(()).unwrap();
                std::thread::sleep(Duration::from_secs(3600));
            }));
            line!() - 4
        });
        told.recv().unwrap();
        let abandoned = expect_abandoned(rt, "sleeper", line);
        assert_eq!(abandoned.phase, Phase::Runnable);
    }

    #[test]
    #[ignore = "leaves a thread behind"]
    fn drop_with_a_blocked_thread() {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let named = task::Builder::new().name("sleeper");
        rt.block_on(move || {
            drop(named.spawn(move || {
                tell.send(()).unwrap();
                std::thread::sleep(Duration::from_secs(3600));
            }));
        });
        told.recv().unwrap();
        let begun = Instant::now();
        drop(rt); // waits five seconds, the default limit
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    #[ignore = "leaves a thread behind"]
    fn destructor_parks_for_ever() {
        let rt = runtime(1);
        let (board, woken) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let parks = ParksWhenDropped(Arc::clone(&board), woken.clone());
        let named = task::Builder::new().name("stubborn");
        let line = rt.block_on(move || {
            drop(named.spawn(move || {
                let _parks = parks;
                park::park();
            }));
            line!() - 4
        });
        wait_until_parked(rt.handle(), 1);
        let abandoned = expect_abandoned(rt, "stubborn", line);
        assert_eq!(abandoned.phase, Phase::Parked);
        assert_eq!(abandoned.reason, ParkReason::Park);
        assert_eq!(woken.load(SeqCst), 0);
        // A wake that comes too late finds no thread that could run the fiber, and does no harm.
        board.lock().unwrap().iter().for_each(Unparker::unpark);
        assert_eq!(runtime(1).block_on(|| 7), 7);
    }

    #[test]
    #[ignore = "counts the carriers of its process"]
    fn destructors_park_by_the_thousand() {
        const FIBERS: usize = 1000;
        const CARRIERS: usize = 32; // so a quarter of them may unwind at once
        let before = common::threads();
        let rt = Builder::new()
            .workers(2)
            .max_carriers(CARRIERS)
            .build()
            .unwrap();
        let (board, woken) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let parks = ParksWhenDropped(Arc::clone(&board), woken.clone());
                rt.spawn(move || {
                    let _parks = parks;
                    park::park();
                })
            })
            .collect();
        wait_until_parked(rt.handle(), FIBERS);
        let handle = rt.handle().clone();
        let waker = std::thread::spawn(move || {
            let (mut left, mut most) = (FIBERS, 0);
            wait_for("parked destructors", || {
                let here = std::mem::take(&mut *board.lock().unwrap());
                left -= here.len();
                most = handle.metrics().carriers.max(most);
                here.iter().for_each(Unparker::unpark);
                left == 0
            });
            most
        });
        let report = rt.shutdown_timeout(LONG);
        assert!(report.is_clean(), "{report}");
        let most = waker.join().unwrap();
        println!("{FIBERS} destructors parked; at most {most} carriers were seen");
        // A worker that leaves the thread of a started fiber gets another in any case, and each of
        // the two keeps one more ready.
        assert!(most <= CARRIERS + 2 * 2, "{most} carriers");
        assert_eq!(woken.load(SeqCst), FIBERS);
        for fiber in fibers {
            assert!(fiber.join().unwrap_err().is_cancelled());
        }
        threads_are_back_to(before);
    }

    #[test]
    #[ignore = "leaves a runtime running"]
    fn drop_on_own_fiber() {
        let sentence = |what: &str| {
            format!(
                "{what} on a fiber of the same runtime would wait for itself; \
                 do it on a plain thread or on a fiber of another runtime"
            )
        };
        let rt = runtime(1);
        let handle = rt.handle().clone();
        let refused = handle.spawn(move || drop(rt)).join().unwrap_err();
        let text = panic_text(&*refused.into_panic());
        assert_eq!(text, sentence("dropping a Runtime"));
        assert_eq!(handle.spawn(|| 7).join().unwrap(), 7, "it goes on");

        let rt = runtime(1);
        let handle = rt.handle().clone();
        let ends = move || drop(rt.shutdown_timeout(LONG));
        let refused = handle.spawn(ends).join().unwrap_err();
        let text = panic_text(&*refused.into_panic());
        assert_eq!(text, sentence("shutdown_timeout"));
        assert_eq!(handle.spawn(|| 7).join().unwrap(), 7, "it goes on");

        // Dropped by another panic, which remains the cause.
        let rt = runtime(1);
        let handle = rt.handle().clone();
        let refused = handle.spawn(move || {
            let _rt = rt;
            panic!("the first one");
        });
        let text = panic_text(&*refused.join().unwrap_err().into_panic());
        assert_eq!(text, "the first one");
        assert_eq!(handle.spawn(|| 7).join().unwrap(), 7, "it goes on");
    }

    fn rss_in_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    }

    #[test]
    #[ignore = "counts the threads and the memory of its process"]
    fn many_runtimes() {
        let before = common::threads();
        let once = || {
            let rt = runtime(2);
            rt.block_on(|| {
                let fibers: Vec<_> = (0..20)
                    .map(|i| task::Builder::new().name("one of many").spawn(move || i))
                    .collect();
                fibers.into_iter().for_each(|fiber| drop(fiber.join()));
                drop(indent::spawn(park::park));
                drop(indent::spawn(park::park).join_timeout(Duration::from_micros(1)));
            });
            let report = rt.shutdown_timeout(LONG);
            assert!(report.is_clean(), "{report}");
        };
        common::wait_for_the_survey();
        // Runs until the allocator's arenas have the pages that they keep.
        (0..200).for_each(|_| once());
        threads_are_back_to(before);
        let (rss, maps) = (rss_in_kib(), mappings());
        (0..200).for_each(|_| once());
        threads_are_back_to(before);
        let (rss_after, maps_after) = (rss_in_kib(), mappings());
        println!("RSS {rss} KiB, then {rss_after} KiB; mappings {maps}, then {maps_after}");
        assert!(rss_after < rss + 2048, "{rss} KiB, then {rss_after} KiB");
        assert!(maps_after < maps + 20, "{maps} mappings, then {maps_after}");
    }

    #[test]
    #[ignore = "counts the threads of its process"]
    fn handoff_after_the_end() {
        let before = common::threads();
        let rt = runtime(2);
        let handle = rt.handle().clone();
        rt.block_on(|| indent::spawn(|| ()).join().unwrap());
        drop(rt);
        threads_are_back_to(before);
        for worker in [0, 1, 0, 1] {
            let tried = catch_unwind(AssertUnwindSafe(|| handle.handoff(worker)));
            assert!(matches!(tried, Ok(false)), "handed over after the end");
        }
        assert_eq!(handle.metrics().carriers, 0);
        assert_eq!(common::threads(), before);
    }
}

#[test]
fn a_fiber_abandoned_in_its_park_can_still_be_woken() {
    let (a, b) = (runtime(1), runtime(1));
    let other = b.handle().clone();
    let release = Arc::new(AtomicBool::new(false));
    let go = release.clone();
    // It waits for the other runtime and does not notice its cancellation meanwhile.
    let left = a.spawn(move || {
        other.block_on(|| {
            while !go.load(SeqCst) {
                task::yield_now();
            }
        });
    });
    while left.fiber().phase() != Phase::Parked {
        std::thread::yield_now();
    }
    let unparker = left.unparker();
    let report = a.shutdown_timeout(Duration::from_millis(20));
    assert_eq!(report.abandoned.len(), 1, "{report}");
    release.store(true, SeqCst);
    b.wait_idle(); // its end has notified the abandoned fiber
    unparker.unpark();
}

#[test]
fn a_fiber_that_never_started_is_dropped_even_after_the_timeout() {
    let rt = Builder::new().workers(1).preempt(false).build().unwrap();
    let (held, free) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (h, f) = (held.clone(), free.clone());
    drop(rt.spawn(move || {
        h.store(true, SeqCst);
        while !f.load(SeqCst) {
            std::hint::spin_loop();
        }
    }));
    while !held.load(SeqCst) {
        std::thread::yield_now();
    }
    let queued = rt.spawn(|| ());
    let report = rt.shutdown_timeout(Duration::from_millis(20));
    assert_eq!(report.abandoned.len(), 2, "{report}");
    free.store(true, SeqCst);
    assert!(queued.join().unwrap_err().is_cancelled());
}

#[test]
fn stress_a_spawn_beside_a_shutdown_ends_one_way_or_the_other() {
    for _ in 0..200 {
        let rt = runtime(1);
        let handle = rt.handle().clone();
        let spawner = std::thread::spawn(move || {
            let fibers: Vec<_> = (0..20).map(|i| handle.spawn(move || i)).collect();
            for fiber in fibers {
                match fiber.join() {
                    Ok(_) => {}
                    Err(error) => assert!(error.is_cancelled(), "{error}"),
                }
            }
        });
        drop(rt);
        spawner.join().unwrap();
    }
}

#[test]
fn stress_a_wake_that_comes_while_the_runtime_ends_touches_nothing_of_it() {
    for _ in 0..300 {
        let rt = runtime(1);
        let fiber = rt.spawn(park::park);
        let unparker = fiber.unparker();
        let waker = std::thread::spawn(move || unparker.unpark());
        let _ended_or_cancelled = fiber.join();
        drop(rt);
        waker.join().unwrap();
    }
}

#[test]
fn a_runtime_dropped_in_a_thread_local_of_its_own_carrier_ends() {
    common::alone("a_runtime_dropped_in_a_thread_local_of_its_own_carrier_ends");
}

#[test]
fn a_runtime_dropped_in_a_thread_local_of_its_own_pool_ends() {
    common::alone("a_runtime_dropped_in_a_thread_local_of_its_own_pool_ends");
}

#[test]
fn a_runtime_dropped_in_its_own_stop_hook_ends() {
    common::alone("a_runtime_dropped_in_its_own_stop_hook_ends");
}

#[test]
fn a_thread_at_its_end_can_still_wait_for_a_closure() {
    struct Late(Handle);
    impl Drop for Late {
        fn drop(&mut self) {
            let mut local = vec![1];
            self.0.block_on(|| local.push(2));
            assert_eq!(local, [1, 2]);
        }
    }
    thread_local!(static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) });
    let rt = runtime(1);
    let handle = rt.handle().clone();
    std::thread::spawn(move || {
        LATE.set(Some(Late(handle.clone())));
        handle.block_on(|| ()); // so that the thread-local that parks this thread is dropped first
    })
    .join()
    .unwrap();
}

#[test]
fn stress_a_fiber_that_unwinds_where_no_thread_can_be_had_runs_once() {
    struct Parks(Arc<AtomicUsize>);
    impl Drop for Parks {
        fn drop(&mut self) {
            park::park();
            self.0.fetch_add(1, SeqCst);
        }
    }
    const ROUNDS: usize = 300;
    let rt = Builder::new().workers(1).max_carriers(1).build().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..ROUNDS {
        let parks = Parks(drops.clone());
        let fiber = rt.spawn(move || {
            let _parks = parks;
            std::panic::resume_unwind(Box::new("quietly"));
        });
        let unparker = fiber.unparker();
        let waker = std::thread::spawn(move || unparker.unpark());
        assert!(fiber.join().unwrap_err().is_panic());
        waker.join().unwrap();
    }
    assert_eq!(drops.load(SeqCst), ROUNDS);
    rt.wait_idle();
}
