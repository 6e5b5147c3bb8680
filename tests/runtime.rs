//! Runtimes: several at once, `block_on` in every place, hooks, counts, lists, and hand-overs.
//!
//! Hand-overs let workers change threads while fibers stay on theirs.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Random;
use indent::JoinError;
use indent::park::{self, ParkReason};
use indent::runtime::{self, Builder, Handle, Runtime};
use indent::task::{self, Phase};

const SEED: u64 = 0xcafe;

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

fn park_for(time: Duration) {
    park::park_until(Some(Instant::now() + time), ParkReason::Park);
}

/// Returns the system's number of the calling thread, while std's belongs to the fiber.
///
/// A fiber that asks for it is bound.
#[expect(unsafe_code, reason = "asks the C library")]
fn thread_id() -> i32 {
    // SAFETY: `gettid` returns a number and does nothing else.
    unsafe { libc::gettid() }
}

#[test]
fn several_runtimes_live_in_one_process() {
    common::within(60, || {
        let names = ["red", "green", "blue"];
        let rts = names.map(|name| Builder::new().workers(2).thread_name(name).build().unwrap());
        let fibers: Vec<_> = (0..300)
            .map(|i| {
                rts[i % 3].spawn(move || {
                    task::yield_now();
                    common::thread_name()
                })
            })
            .collect();
        for (i, fiber) in fibers.into_iter().enumerate() {
            let thread = fiber.join().unwrap();
            assert!(thread.starts_with(names[i % 3]), "{thread}");
        }
        let [red, green, blue] = rts;
        drop(green);
        assert_eq!(red.block_on(|| blue.block_on(|| 5)), 5);
    });
}

#[test]
fn a_runtime_after_another_starts_from_nothing() {
    common::within(60, || {
        for _ in 0..20 {
            let rt = runtime(2);
            let sum: u32 = rt.block_on(|| {
                let fibers: Vec<_> = (0..50).map(|i| indent::spawn(move || i)).collect();
                fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
            });
            assert_eq!(sum, 49 * 50 / 2);
            assert_eq!(rt.metrics().fibers_spawned_total, 51);
        }
    });
}

#[test]
fn block_on_on_a_fiber_of_the_same_runtime_calls_the_closure() {
    let rt = runtime(1);
    rt.block_on(|| {
        let outer = (task::id().unwrap(), thread_id());
        assert_eq!(rt.block_on(|| (task::id().unwrap(), thread_id())), outer);
        assert_eq!(
            Handle::current().block_on(|| (task::id().unwrap(), thread_id())),
            outer
        );
        assert_eq!(indent::block_on(|| task::id().unwrap()), outer.0);
    });
    assert_eq!(rt.metrics().fibers_spawned_total, 1);
}

#[test]
fn block_on_on_a_fiber_of_another_runtime_parks_it() {
    common::within(60, || {
        let (one, two) = (runtime(1), runtime(1));
        one.block_on(|| {
            let steps = Arc::new(AtomicUsize::new(0));
            let (mine, over) = (steps.clone(), Arc::new(AtomicBool::new(false)));
            let ends = over.clone();
            let sibling = indent::spawn(move || {
                while !ends.load(SeqCst) {
                    mine.fetch_add(1, SeqCst);
                    task::yield_now();
                }
            });
            let outer = task::id().unwrap();
            let inner = two.block_on(|| {
                // The only worker of the caller's runtime is free for the caller's sibling.
                let before = steps.load(SeqCst);
                while steps.load(SeqCst) < before + 100 {
                    task::yield_now();
                }
                task::id().unwrap()
            });
            assert_ne!(inner, outer);
            assert_eq!(task::id(), Some(outer));
            over.store(true, SeqCst);
            sibling.join().unwrap();
        });
    });
}

#[test]
fn block_on_nests_between_two_runtimes_that_wait_for_each_other() {
    fn down(here: &Runtime, there: &Runtime, depth: usize) -> usize {
        match depth {
            0 => 0,
            _ => 1 + here.block_on(|| down(there, here, depth - 1)),
        }
    }
    common::within(60, || {
        let (one, two) = (runtime(1), runtime(1));
        assert_eq!(down(&one, &two, 100), 100);
    });
}

#[test]
fn block_on_borrows_from_the_callers_stack() {
    common::within(60, || {
        let (rt, other) = (runtime(2), runtime(1));
        let mut words = vec!["one".to_owned()];
        let prefix = String::from("tw");
        let length = rt.block_on(|| {
            task::yield_now();
            words.push(format!("{prefix}o"));
            other.block_on(|| {
                park_for(Duration::from_millis(1));
                words.push("three".to_owned());
            });
            words.len()
        });
        assert_eq!(length, 3);
        assert_eq!(words, ["one", "two", "three"]);
        let borrowed: &str = rt.block_on(|| words[1].as_str());
        assert_eq!(borrowed, "two");
    });
}

#[test]
fn many_threads_block_on_one_runtime() {
    common::within(60, || {
        let rt = runtime(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (rt, total) = (&rt, &total);
                scope.spawn(move || {
                    for i in 0..200 {
                        let sum = rt.block_on(|| {
                            task::yield_now();
                            n * i
                        });
                        assert_eq!(sum, n * i);
                        total.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.load(SeqCst), 1600);
    });
}

#[test]
fn a_panic_in_block_on_goes_on_in_the_caller() {
    let (rt, other) = (runtime(1), runtime(1));
    let panics = || -> () { resume_unwind(Box::new(7)) };
    let on_thread = catch_unwind(AssertUnwindSafe(|| rt.block_on(panics)));
    assert_eq!(on_thread.unwrap_err().downcast_ref(), Some(&7));
    let on_fiber = rt.block_on(|| catch_unwind(AssertUnwindSafe(|| other.block_on(panics))));
    assert_eq!(on_fiber.unwrap_err().downcast_ref(), Some(&7));
    let nested = rt.block_on(|| catch_unwind(AssertUnwindSafe(|| rt.block_on(panics))));
    assert_eq!(nested.unwrap_err().downcast_ref(), Some(&7));
    assert_eq!(rt.block_on(|| other.block_on(|| 8)), 8);
}

#[test]
fn block_on_a_runtime_that_is_gone_panics_with_a_reason() {
    let rt = runtime(1);
    let handle = rt.handle().clone();
    drop(rt);
    let caught = catch_unwind(AssertUnwindSafe(|| handle.block_on(|| 5)));
    let message = caught.unwrap_err().downcast::<String>().unwrap();
    assert!(
        message.ends_with("the runtime is shutting down"),
        "{message}"
    );
    assert!(message.contains(file!()), "{message}");
}

#[test]
fn waiting_for_its_own_end_is_refused_on_a_fiber() {
    common::within(60, || {
        let (rt, other) = (runtime(1), runtime(1));
        let refused = rt.block_on(|| catch_unwind(AssertUnwindSafe(|| rt.wait_idle())));
        let message = refused.unwrap_err().downcast::<String>().unwrap();
        assert!(
            message.starts_with("wait_idle on a fiber of the same runtime"),
            "{message}"
        );
        other.block_on(|| rt.wait_idle()); // another runtime's is fine
    });
}

#[test]
#[ignore = "run in a child process by the test below: here another test starts the default runtime"]
fn child_that_asks_for_the_current_runtime() {
    assert!(Handle::try_current().is_err());
    let rt = runtime(1);
    assert!(
        Handle::try_current().is_err(),
        "a plain thread is on no runtime"
    );
    let seen = rt.block_on(|| {
        let here = Handle::try_current().unwrap();
        here.spawn(|| ()).join().unwrap();
        here.metrics().fibers_spawned_total
    });
    assert_eq!(seen, 2);
    assert!(Handle::try_current().is_err());
    Handle::current().spawn(|| ()).join().unwrap(); // starts the default runtime
    let default = Handle::try_current().unwrap();
    assert!(default.metrics().fibers_spawned_total == 1);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(default.metrics().workers.len(), cpus);
    // A fiber still gets its own runtime.
    assert!(rt.block_on(|| Handle::current().metrics().workers.len() == 1));
}

#[test]
fn the_current_runtime_is_the_fibers_or_else_the_default() {
    let child = common::in_child("child_that_asks_for_the_current_runtime", &[]);
    assert!(child.status.success(), "{}", common::text(&child));
}

#[test]
fn each_thread_calls_the_start_hook_and_later_the_stop_hook() {
    common::within(60, || {
        let (starts, stops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let threads = Arc::new(Mutex::new(Vec::new()));
        let (start, stop, seen) = (starts.clone(), stops.clone(), threads.clone());
        let rt = Builder::new()
            .workers(2)
            .on_thread_start(move || {
                start.fetch_add(1, SeqCst);
                seen.lock().unwrap().push(thread_id());
            })
            .on_thread_stop(move || {
                stop.fetch_add(1, SeqCst);
            })
            .build()
            .unwrap();
        rt.block_on(|| {
            let here = thread_id();
            assert!(
                threads.lock().unwrap().contains(&here),
                "a fiber on a thread not announced"
            );
            // More threads than workers.
            let fibers: Vec<_> = (0..50)
                .map(|_| {
                    indent::spawn(|| {
                        (0..20).for_each(|_| runtime::handoff());
                        thread_id()
                    })
                })
                .collect();
            for fiber in fibers {
                let thread = fiber.join().unwrap();
                assert!(threads.lock().unwrap().contains(&thread));
            }
        });
        assert!(stops.load(SeqCst) < starts.load(SeqCst));
        let report = rt.shutdown_timeout(Duration::from_secs(30));
        assert!(report.is_clean(), "{report}");
        assert!(starts.load(SeqCst) >= 2);
        assert_eq!(starts.load(SeqCst), stops.load(SeqCst));
        let mut distinct = threads.lock().unwrap().clone();
        distinct.dedup();
        assert_eq!(
            distinct.len(),
            starts.load(SeqCst),
            "one start for each thread"
        );
    });
}

#[test]
fn wait_idle_returns_when_the_last_fiber_is_over() {
    common::within(60, || {
        let rt = runtime(2);
        rt.wait_idle(); // there never was a fiber
        for round in 0..50 {
            let done = Arc::new(AtomicUsize::new(0));
            for i in 0..20 {
                let done = done.clone();
                drop(rt.spawn(move || {
                    (0..i).for_each(|_| task::yield_now());
                    if i % 5 == 0 {
                        park_for(Duration::from_micros(100));
                    }
                    let inner = done.clone();
                    drop(indent::spawn(move || inner.fetch_add(1, SeqCst)));
                    done.fetch_add(1, SeqCst);
                }));
            }
            rt.wait_idle();
            assert_eq!(done.load(SeqCst), 40, "round {round}");
            assert_eq!(rt.metrics().fibers_alive, 0);
        }
    });
}

#[test]
fn the_numbers_add_up() {
    common::within(60, || {
        let rt = runtime(2);
        let before = rt.metrics();
        assert_eq!((before.fibers_spawned_total, before.fibers_alive), (0, 0));
        rt.block_on(|| {
            let parked: Vec<_> = (0..10).map(|_| indent::spawn(park::park)).collect();
            let yielding: Vec<_> = (0..90).map(|_| indent::spawn(task::yield_now)).collect();
            for fiber in yielding {
                fiber.join().unwrap();
            }
            while parked
                .iter()
                .any(|fiber| fiber.fiber().phase() != Phase::Parked)
            {
                task::yield_now();
            }
            let now = Handle::current().metrics();
            assert_eq!(now.fibers_spawned_total, 101);
            assert!(now.fibers_alive >= 11);
            assert!(now.stacks_in_use >= 11);
            for fiber in parked {
                fiber.unparker().unpark();
                fiber.join().unwrap();
            }
        });
        rt.wait_idle();
        let after = rt.metrics();
        let sum =
            |get: fn(&runtime::WorkerMetrics) -> u64| after.workers.iter().map(get).sum::<u64>();
        assert_eq!(after.workers.len(), 2);
        assert_eq!((after.fibers_spawned_total, after.fibers_alive), (101, 0));
        assert_eq!(sum(|w| w.fibers_spawned_total), 100); // one came from outside
        assert_eq!(sum(|w| w.fibers_started_total), 101);
        assert_eq!(sum(|w| w.fibers_finished_total), 101);
        // Counts each start, each yield, and each park that waited.
        assert!(sum(|w| w.dispatches_total) >= 101 + 90 + 10);
        assert!(sum(|w| w.parks_total) >= 10);
        assert!(sum(|w| w.fibers_stolen_total) >= sum(|w| w.steals_total));
        assert_eq!(
            (
                after.stacks_in_use,
                after.global_queue_depth,
                after.fibers_waiting_for_stack
            ),
            (0, 0, 0)
        );
        assert!(after.carriers >= 2 && after.process_carriers >= after.carriers);
    });
}

#[test]
fn the_smallest_settings_work() {
    common::within(60, || {
        let rt = Builder::new()
            .workers(2)
            .stack_size(1)
            .coop_budget(1)
            .local_queue(4)
            .global_interval(1)
            .build()
            .unwrap();
        let sum: usize = rt.block_on(|| {
            let fibers: Vec<_> = (0..1000)
                .map(|i| {
                    indent::spawn(move || {
                        task::yield_now();
                        i
                    })
                })
                .collect();
            fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum()
        });
        assert_eq!(sum, 999 * 1000 / 2);
        assert!(
            rt.metrics()
                .workers
                .iter()
                .map(|w| w.queue_overflows_total)
                .sum::<u64>()
                > 0
        );
    });
}

#[test]
fn listing_fibers_while_they_come_and_go_shows_only_real_ones() {
    common::within(120, || {
        let (rt, other) = (runtime(2), runtime(1));
        let over = Arc::new(AtomicBool::new(false));
        let line = Arc::new(AtomicUsize::new(0));
        let makers: Vec<_> = (0..4)
            .map(|n| {
                let (over, line) = (over.clone(), line.clone());
                let home = if n == 3 { &other } else { &rt };
                home.spawn(move || {
                    let mut made = 0;
                    while !over.load(SeqCst) {
                        let builder = task::Builder::new().name(format!("child {n}"));
                        line.store(line!() as usize + 1, SeqCst);
                        let child = builder.spawn(task::yield_now);
                        if made % 3 == 0 {
                            drop(child);
                        } else {
                            child.join().unwrap();
                        }
                        made += 1;
                    }
                    made
                })
            })
            .collect();
        let (mut listed, mut children) = (0, 0);
        while listed < 2_000 || children < 100 {
            for fiber in rt.handle().fibers() {
                assert_eq!(fiber.location().file(), file!());
                match fiber.name() {
                    Some(name) => {
                        assert!(["child 0", "child 1", "child 2"].contains(&name), "{name}");
                        assert_eq!(fiber.location().line() as usize, line.load(SeqCst));
                        children += 1;
                    }
                    None => assert_ne!(fiber.location().line() as usize, line.load(SeqCst)),
                }
                assert!(fiber.id() > 0);
                let _shown = (format!("{fiber:?}"), fiber.phase(), fiber.park_reason());
            }
            listed += 1;
        }
        over.store(true, SeqCst);
        for maker in makers {
            assert!(maker.join().unwrap() > 0);
        }
        rt.wait_idle();
        assert!(rt.handle().fibers().is_empty());
    });
}

#[test]
fn a_listed_fiber_keeps_its_name_after_its_end() {
    let rt = runtime(1);
    let parked = rt.block_on(|| task::Builder::new().name("kept").spawn(park::park));
    let listed: Vec<_> = rt.handle().fibers();
    let kept = listed
        .iter()
        .find(|fiber| fiber.id() == parked.id())
        .unwrap();
    parked.unparker().unpark();
    parked.join().unwrap();
    rt.wait_idle();
    for _ in 0..100 {
        rt.block_on(|| {
            task::Builder::new()
                .name("new")
                .spawn(|| ())
                .join()
                .unwrap()
        });
    }
    assert_eq!((kept.name(), kept.phase()), (Some("kept"), Phase::Done));
}

/// Puts values on the stack and calls `between` repeatedly.
///
/// Returns true if all of the values, and the thread, are unchanged.
fn stays_itself(rounds: u64, mut between: impl FnMut(u64)) -> bool {
    let thread = thread_id();
    let id = task::id();
    let mut values: [u64; 64] = std::array::from_fn(|i| i as u64);
    let text = format!("fiber {id:?}");
    for round in 0..rounds {
        between(round);
        for (i, value) in values.iter_mut().enumerate() {
            if *value != i as u64 + round {
                return false;
            }
            *value += 1;
        }
        if thread_id() != thread || task::id() != id || text != format!("fiber {id:?}") {
            return false;
        }
    }
    true
}

#[test]
fn a_fiber_that_hands_its_worker_over_keeps_its_stack_and_its_thread() {
    common::within(240, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let fibers: Vec<_> = (0..10)
                .map(|_| rt.spawn(|| stays_itself(1_000, |_| runtime::handoff())))
                .collect();
            for fiber in fibers {
                assert!(fiber.join().unwrap());
            }
            let moves: u64 = rt
                .metrics()
                .workers
                .iter()
                .map(|w| w.carrier_moves_total)
                .sum();
            assert!(moves >= 5_000, "{moves} moves");
            rt.wait_idle();
        }
    });
    runtime::handoff(); // does nothing on a plain thread
}

#[test]
fn handing_over_among_parks_yields_and_spawns_loses_nothing() {
    println!("seed {SEED}");
    common::within(240, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let children = Arc::new(AtomicUsize::new(0));
            let fibers: Vec<_> = (0..20)
                .map(|n| {
                    let children = children.clone();
                    rt.spawn(move || {
                        let mut random = Random::new(SEED + n);
                        stays_itself(200, |_| match random.below(6) {
                            0 => park_for(Duration::from_micros(random.below(100))),
                            1 => {
                                let count = children.clone();
                                let child = indent::spawn(move || {
                                    runtime::handoff();
                                    count.fetch_add(1, SeqCst);
                                });
                                child.join().unwrap();
                                children.fetch_add(1, SeqCst);
                            }
                            2 => task::yield_now(),
                            _ => runtime::handoff(),
                        })
                    })
                })
                .collect();
            for fiber in fibers {
                assert!(fiber.join().unwrap());
            }
            rt.wait_idle();
            assert_eq!(children.load(SeqCst) % 2, 0);
        }
    });
}

#[test]
fn workers_taken_from_busy_fibers_lose_nothing() {
    const FIBERS: u64 = 20;
    const TAKES: u64 = 300;
    println!("seed {SEED}");
    common::within(240, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let enough = Arc::new(AtomicBool::new(false));
            let (handle, over) = (rt.handle().clone(), enough.clone());
            let taker = std::thread::spawn(move || {
                let (mut tries, mut taken) = (0, 0);
                while taken < TAKES {
                    taken += u64::from(handle.handoff(tries as usize % workers));
                    tries += 1;
                    if tries % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
                over.store(true, SeqCst);
                assert!(!handle.handoff(workers), "there is no such worker");
                tries
            });
            let fibers: Vec<_> = (0..FIBERS)
                .map(|n| {
                    let enough = enough.clone();
                    rt.spawn(move || compute_spawn_and_park(SEED + n, &enough))
                })
                .collect();
            let mut joined = 0;
            for fiber in fibers {
                let (same, children) = fiber.join().unwrap();
                assert!(same);
                joined += children;
            }
            let tries = taker.join().unwrap();
            println!("{workers} workers: {TAKES} of {tries} tries, {joined} children");
            rt.wait_idle();
            assert_eq!(rt.metrics().fibers_spawned_total, FIBERS + 2 * joined);
        }
    });
}

/// Does a bit of everything until `enough` is set.
///
/// Returns whether values and thread stayed unchanged all the time, and how many children the fiber
/// has joined, each with a child of its own.
fn compute_spawn_and_park(seed: u64, enough: &AtomicBool) -> (bool, u64) {
    let mut random = Random::new(seed);
    let (mut same, mut joined) = (true, 0);
    while same && !enough.load(SeqCst) {
        same = stays_itself(20, |_| match random.below(8) {
            0 => park_for(Duration::from_micros(random.below(100))),
            1 => {
                let child = indent::spawn(|| {
                    let me = park::unparker();
                    let waker = indent::spawn(move || me.unpark());
                    park::park();
                    waker.join().unwrap();
                    1
                });
                joined += child.join().unwrap();
            }
            2 => task::yield_now(),
            _ => (0..random.below(20_000)).for_each(|_| std::hint::spin_loop()),
        });
    }
    (same, joined)
}

#[test]
fn fibers_go_on_when_the_worker_is_taken_from_one_that_blocks_its_thread() {
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let others_done = Arc::new(AtomicUsize::new(0));
        let seen = others_done.clone();
        let (sleeper, others) = rt.block_on(|| {
            let sleeper = indent::spawn(move || {
                tell.send(()).unwrap();
                // At least 200 ms, and as long as the others need: they end before this fiber, or
                // never.
                for _ in 0..200 {
                    std::thread::sleep(Duration::from_millis(200));
                    if seen.load(SeqCst) == 20 {
                        return true;
                    }
                }
                false
            });
            let others: Vec<_> = (0..20)
                .map(|_| {
                    let done = others_done.clone();
                    indent::spawn(move || {
                        task::yield_now();
                        done.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            (sleeper, others)
        });
        told.recv().unwrap();
        // The monitor may be faster: then the others have run without this call.
        common::wait_for("the worker can be taken", || {
            rt.handle().handoff(0) || others_done.load(SeqCst) == 20
        });
        for other in others {
            other.join().unwrap();
        }
        assert!(sleeper.join().unwrap());
        // The thread that slept is usable again.
        assert_eq!(rt.block_on(|| indent::spawn(|| 5).join().unwrap()), 5);
    });
}

#[test]
fn a_handle_does_not_keep_a_runtime_running() {
    common::within(60, || {
        let rt = runtime(1);
        let handle = rt.handle().clone();
        let fiber = rt.spawn(park::park);
        drop(rt);
        assert!(
            fiber
                .join()
                .is_err_and(|error: JoinError| error.is_cancelled())
        );
        assert!(handle.spawn(|| ()).join().unwrap_err().is_cancelled());
        assert!(handle.fibers().is_empty());
        assert_eq!(handle.metrics().fibers_alive, 0);
    });
}

#[test]
fn a_runtime_that_is_gone_starts_no_threads() {
    common::within(60, || {
        let starts = Arc::new(AtomicUsize::new(0));
        let count = starts.clone();
        let hook = move || {
            count.fetch_add(1, SeqCst);
        };
        let rt = Builder::new()
            .workers(1)
            .on_thread_start(hook)
            .build()
            .unwrap();
        let handle = rt.handle().clone();
        drop(rt);
        let before = starts.load(SeqCst);
        assert!(!handle.handoff(0));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(
            (starts.load(SeqCst), handle.metrics().carriers),
            (before, 0)
        );
    });
}

#[test]
fn metrics_count_what_happened() {
    let rt = Builder::new().workers(2).coop_budget(16).build().unwrap();
    rt.block_on(|| {
        for _ in 0..100 {
            task::checkpoint(); // six budgets of 16
        }
        let children: Vec<_> = (0..500).map(|_| indent::spawn(park::park)).collect();
        children.iter().for_each(|child| child.unparker().unpark());
        children.into_iter().for_each(|child| child.join().unwrap());
        indent::time::sleep(Duration::from_millis(30));
    });
    rt.wait_idle();
    let metrics = rt.metrics();
    let sum = |f: fn(&indent::runtime::WorkerMetrics) -> u64| -> u64 {
        metrics.workers.iter().map(f).sum()
    };
    assert_eq!(
        (metrics.fibers_spawned_total, metrics.fibers_alive),
        (501, 0)
    );
    assert_eq!(sum(|w| w.fibers_spawned_total), 500);
    assert_eq!(
        (
            sum(|w| w.fibers_started_total),
            sum(|w| w.fibers_finished_total)
        ),
        (501, 501)
    );
    assert_eq!((metrics.timers_active, metrics.timers_fired_total), (0, 1));
    assert_eq!(metrics.global_queue_depth, 0);
    assert!(metrics.workers.iter().all(|w| w.local_queue_depth == 0));
    assert!(sum(|w| w.budget_exhausted_total) >= 6, "{metrics:?}");
    assert!(
        sum(|w| w.wakes_sent_total + w.wakes_coalesced_total) > 0,
        "{metrics:?}"
    );
    assert!(metrics.outside_wakes_sent_total + metrics.outside_wakes_coalesced_total > 0);
    assert!(sum(|w| w.steals_total) <= sum(|w| w.steal_attempts_total));
    let busy: Duration = metrics.workers.iter().map(|w| w.busy_duration).sum();
    assert!(busy < Duration::from_secs(3600), "{metrics:?}");
    assert_eq!(metrics.stacks_in_use, 0);
    assert!(
        metrics.stacks_cached > 0 || cfg!(indent_sanitize),
        "{metrics:?}"
    );
    assert_eq!(metrics.workers_in_service, 2);
    assert!(metrics.cpus_allowed >= 1);
    let carriers = [
        metrics.carriers_with_worker,
        metrics.carriers_spare,
        metrics.carriers_waiting,
    ];
    assert_eq!(carriers.iter().sum::<usize>(), metrics.carriers);
    assert!((0.0..=1.0).contains(&metrics.local_hit_ratio()));
    assert!((0.0..=1.0).contains(&metrics.steal_success_rate()));
}

#[test]
fn a_worker_that_computes_counts_as_busy() {
    let rt = runtime(1);
    rt.block_on(|| {
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
    });
    let busy = rt.metrics().workers[0].busy_duration;
    assert!(
        busy > Duration::from_millis(20),
        "{busy:?} of a hundred milliseconds"
    );
}

#[test]
fn one_wake_in_sixty_four_of_a_fiber_is_measured() {
    let rt = Builder::new().workers(1).preempt(false).build().unwrap();
    rt.block_on(|| (0..6_400).for_each(|_| indent::spawn(|| ()).join().unwrap()));
    // Sometimes the budget lets the other fiber run before it is waited for.
    let measured = rt.metrics().wake_to_run.count();
    assert!((90..=101).contains(&measured), "{measured}");
}

#[test]
fn fibers_that_deadlines_wake_are_measured_too() {
    let rt = Builder::new().workers(1).preempt(false).build().unwrap();
    rt.block_on(|| (0..256).for_each(|_| park_for(Duration::from_micros(1))));
    assert!(rt.metrics().wake_to_run.count() > 0);
}

#[test]
fn a_fiber_that_waits_behind_another_shows_in_the_numbers() {
    const TURN: Duration = Duration::from_millis(1);
    let rt = Builder::new().workers(1).preempt(false).build().unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    rt.block_on(|| {
        let stop = enough.clone();
        let waits = indent::spawn(move || {
            while !stop.load(SeqCst) {
                park::park();
            }
        });
        for _ in 0..130 {
            task::yield_now(); // it parks
            waits.unparker().unpark();
            let start = Instant::now();
            while start.elapsed() < TURN {
                std::hint::spin_loop();
            }
        }
        enough.store(true, SeqCst);
        waits.unparker().unpark();
        waits.join().unwrap();
    });
    let waits = rt.metrics().wake_to_run;
    assert!(waits.max() >= TURN - Duration::from_micros(1), "{waits:?}");
}
