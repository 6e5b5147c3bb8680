//! Panics in fibers: where they are reported, what continues, and what an unwinding fiber may do.
//!
//! Rule S3: a fiber that parks while it unwinds keeps its thread to itself, since std counts panics
//! by thread; its worker continues elsewhere.

mod common;
mod limit;

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, Once};
use std::thread::panicking;
use std::time::{Duration, Instant};

use indent::park::{self, ParkReason, Unparker, Woken};
use indent::runtime::{Builder, Runtime};
use indent::task;
use limit::Limit;

/// Payload with which the tests panic on purpose.
struct Expected(usize);

/// Installs a hook that prints nothing for [`Expected`] and the default text for other panics.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Expected>() {
                usual(info);
            }
        }));
    });
}

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Runs a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_panic_is_delivered_by_join_with_its_payload() {
    quiet();
    let rt = runtime(2);
    let fiber = rt.spawn(|| -> u32 { panic_any(Expected(7)) });
    let id = fiber.id();
    let error = fiber.join().unwrap_err();
    assert!(error.is_panic() && !error.is_cancelled() && !error.is_no_stack());
    assert_eq!(error.id(), id);
    assert_eq!(error.to_string(), format!("fiber {id} panicked"));
    let payload = error.into_panic();
    assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(7));
}

#[test]
fn the_error_of_a_join_repeats_the_message_of_the_panic() {
    let rt = runtime(1);
    for text in ["a word", "a number: 5"] {
        let fiber = rt.spawn(move || match text {
            "a word" => std::panic::resume_unwind(Box::new("a word")),
            _ => std::panic::resume_unwind(Box::new(format!("a number: {}", 5))),
        });
        let id = fiber.id();
        let error = fiber.join().unwrap_err();
        assert_eq!(error.to_string(), format!("fiber {id} panicked: {text}"));
    }
}

#[test]
fn a_fiber_that_joins_gets_the_payload_too() {
    quiet();
    for workers in [1, 2] {
        let rt = runtime(workers);
        let seen = rt.block_on(|| {
            let fiber = indent::spawn(|| -> () { panic_any(Expected(3)) });
            let payload = fiber.join().unwrap_err().into_panic();
            payload.downcast::<Expected>().map(|e| e.0).ok()
        });
        assert_eq!(seen, Some(3));
    }
}

#[test]
fn siblings_go_on_when_a_fiber_panics() {
    quiet();
    for workers in [1, 2] {
        let rt = runtime(workers);
        let steps = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..300)
            .map(|i| {
                let steps = steps.clone();
                rt.spawn(move || {
                    for _ in 0..10 {
                        task::yield_now();
                        steps.fetch_add(1, SeqCst);
                    }
                    if i % 3 == 0 {
                        panic_any(Expected(i));
                    }
                    i
                })
            })
            .collect();
        for (i, fiber) in fibers.into_iter().enumerate() {
            match fiber.join() {
                Ok(value) => assert!(value == i && i % 3 != 0),
                Err(error) => {
                    let payload = error.into_panic().downcast::<Expected>().ok().unwrap();
                    assert!(payload.0 == i && i % 3 == 0);
                }
            }
        }
        assert_eq!(steps.load(SeqCst), 3000);
    }
}

/// Returns the lines of a child's standard error about a panic that was never joined.
fn complaints(child: &std::process::Output) -> Vec<String> {
    let err = String::from_utf8_lossy(&child.stderr);
    let about = |line: &&str| line.contains("nobody joined it");
    err.lines().filter(about).map(str::to_owned).collect()
}

/// Returns the child's description of its fiber: `fiber N 'lonely', spawned at FILE:LINE`.
fn announced(child: &std::process::Output) -> String {
    let out = String::from_utf8_lossy(&child.stdout);
    let (_, rest) = out
        .split_once("IT IS ")
        .unwrap_or_else(|| panic!("{}", common::text(child)));
    rest.lines().next().unwrap().to_owned()
}

#[test]
#[ignore = "run in a child process by the tests below"]
fn child_with_a_panic_nobody_joins() {
    let rt = runtime(1);
    let order = std::env::var("HANDLE").unwrap();
    let (go, gone) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (go_, gone_) = (go.clone(), gone.clone());
    let fiber = rt.block_on(move || {
        let named = match std::env::var("NAME") {
            Ok(name) => task::Builder::new().name(name),
            Err(_) => task::Builder::new(),
        };
        let line = line!() + 1;
        let fiber = named.spawn(move || {
            while !go_.load(SeqCst) {
                task::yield_now();
            }
            let _last = OnDrop(|| gone_.store(true, SeqCst));
            panic!("on purpose");
        });
        let name = fiber
            .fiber()
            .name()
            .map_or(String::new(), |n| format!(" '{n}'"));
        println!(
            "IT IS fiber {}{name}, spawned at {}:{line}",
            fiber.id(),
            file!()
        );
        fiber
    });
    match order.as_str() {
        "dropped before" => {
            drop(fiber);
            go.store(true, SeqCst);
        }
        "dropped after" => {
            go.store(true, SeqCst);
            common::wait_for("the fiber's end", || fiber.is_finished());
            drop(fiber);
        }
        "joined" => {
            go.store(true, SeqCst);
            assert!(fiber.join().unwrap_err().is_panic());
        }
        other => panic!("HANDLE={other}"),
    }
    rt.wait_idle();
    assert!(gone.load(SeqCst));
}

#[test]
fn a_panic_nobody_joins_prints_one_line_after_the_usual_message() {
    for order in ["dropped before", "dropped after"] {
        let variables = [("HANDLE", order), ("NAME", "lonely")];
        let child = common::in_child("child_with_a_panic_nobody_joins", &variables);
        let text = common::text(&child);
        assert!(child.status.success(), "{text}");
        let expected = format!("{}, panicked; nobody joined it", announced(&child));
        assert!(expected.contains(" 'lonely', spawned at "), "{text}");
        assert_eq!(complaints(&child), [expected.as_str()], "{order}: {text}");
        let err = String::from_utf8_lossy(&child.stderr);
        let usual = err.find("on purpose").expect(&text);
        assert!(usual < err.find(&expected).unwrap(), "{text}");
        assert_eq!(err.matches("on purpose").count(), 1, "{text}");
    }
}

#[test]
fn a_panic_nobody_joins_of_a_fiber_without_name_is_told_by_its_place() {
    let child = common::in_child(
        "child_with_a_panic_nobody_joins",
        &[("HANDLE", "dropped before")],
    );
    assert!(child.status.success(), "{}", common::text(&child));
    let expected = format!("{}, panicked; nobody joined it", announced(&child));
    assert!(!expected.contains('\''), "{expected}");
    assert_eq!(complaints(&child), [expected]);
}

#[test]
fn a_joined_panic_prints_the_usual_message_only() {
    let child = common::in_child("child_with_a_panic_nobody_joins", &[("HANDLE", "joined")]);
    let text = common::text(&child);
    assert!(child.status.success(), "{text}");
    assert!(complaints(&child).is_empty(), "{text}");
    assert_eq!(text.matches("on purpose").count(), 1, "{text}");
}

#[test]
#[ignore = "run in a child process by the test below"]
fn child_with_results_nobody_joins() {
    let rt = runtime(2);
    for i in 0..50 {
        drop(rt.spawn(move || vec![i; 100]));
    }
    rt.wait_idle();
    let parked: Vec<_> = (0..50).map(|_| rt.spawn(park::park)).collect();
    drop(parked);
    let report = rt.shutdown_timeout(Duration::from_secs(30)); // cancelled: no panic either
    assert!(report.is_clean(), "{report}");
}

#[test]
fn results_and_cancellations_nobody_joins_print_nothing() {
    let child = common::in_child("child_with_results_nobody_joins", &[]);
    let text = common::text(&child);
    assert!(child.status.success(), "{text}");
    assert!(child.stderr.is_empty(), "{text}");
}

#[test]
fn a_destructor_that_parks_while_unwinding_lets_others_go_on() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = log.clone();
        let unwinding = rt.spawn(move || {
            let _parks = OnDrop(move || {
                assert!(panicking());
                tell.send(park::unparker()).unwrap();
                park::park();
                assert!(panicking());
                note.lock().unwrap().push("unwound");
            });
            panic_any(Expected(1));
        });
        let unparker: Unparker = told.recv().unwrap();
        let others: Vec<_> = (0..20)
            .map(|_| {
                let log = log.clone();
                rt.spawn(move || {
                    task::yield_now();
                    assert!(!panicking());
                    log.lock().unwrap().push("other");
                })
            })
            .collect();
        for other in others {
            other.join().unwrap();
        }
        assert!(!unwinding.is_finished());
        unparker.unpark();
        assert!(unwinding.join().unwrap_err().is_panic());
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 21);
        assert_eq!(log.last(), Some(&"unwound"));
        drop(log);
        rt.block_on(|| assert!(!panicking()));
    });
}

#[test]
fn twenty_destructors_park_at_once_and_end_in_any_order() {
    quiet();
    common::within(120, || {
        for workers in [1, 2] {
            let rt = runtime(workers);
            let (tell, told) = mpsc::channel();
            let fibers: Vec<_> = (0..20)
                .map(|i| {
                    let tell = tell.clone();
                    rt.spawn(move || {
                        let _parks = OnDrop(move || {
                            tell.send((i, park::unparker())).unwrap();
                            park::park();
                            assert!(panicking());
                            park::park(); // parks once more
                            assert!(panicking());
                        });
                        panic_any(Expected(i));
                    })
                })
                .collect();
            let mut unparkers: Vec<_> = (0..20).map(|_| told.recv().unwrap()).collect();
            assert!(!rt.block_on(|| indent::spawn(panicking).join().unwrap()));
            assert!(fibers.iter().all(|fiber| !fiber.is_finished()));
            unparkers.sort_by_key(|(i, _)| i * 7 % 20);
            for (i, unparker) in &unparkers {
                unparker.unpark();
                while !fibers[*i].is_finished() {
                    unparker.unpark(); // two tokens may have become one
                    std::thread::yield_now();
                }
            }
            for (i, fiber) in fibers.into_iter().enumerate() {
                let payload = fiber.join().unwrap_err().into_panic();
                assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(i));
            }
            rt.wait_idle();
            assert_eq!(rt.metrics().fibers_alive, 0);
        }
    });
}

#[test]
fn stress_destructors_park_and_are_woken_by_fibers_and_threads() {
    const ROUNDS: usize = 300;
    quiet();
    common::within(120, || {
        let rt = runtime(2);
        let (tell, told) = mpsc::channel::<Unparker>();
        let ended = Arc::new(AtomicUsize::new(0));
        let waker = {
            let handle = rt.handle().clone();
            std::thread::spawn(move || {
                for (i, unparker) in told.iter().enumerate() {
                    if i % 2 == 0 {
                        unparker.unpark();
                    } else {
                        drop(handle.spawn(move || unparker.unpark()));
                    }
                }
            })
        };
        let mut fibers = Vec::new();
        for round in 0..ROUNDS {
            let (tell, ended) = (tell.clone(), ended.clone());
            let fiber = rt.spawn(move || {
                let _parks = OnDrop(move || {
                    tell.send(park::unparker()).unwrap();
                    park::park();
                    assert!(panicking());
                    ended.fetch_add(1, SeqCst);
                });
                panic_any(Expected(round));
            });
            fibers.push(fiber);
            if fibers.len() == 10 {
                for fiber in fibers.drain(..) {
                    assert!(fiber.join().unwrap_err().is_panic());
                }
            }
        }
        drop(tell);
        waker.join().unwrap();
        rt.wait_idle();
        assert_eq!(ended.load(SeqCst), ROUNDS);
    });
}

#[test]
fn a_park_with_a_deadline_ends_while_unwinding() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let fiber = rt.spawn(move || {
            let _parks = OnDrop(move || {
                let soon = Instant::now() + Duration::from_millis(5);
                tell.send(park::park_until(Some(soon), ParkReason::Park))
                    .unwrap();
            });
            panic_any(Expected(2));
        });
        assert!(fiber.join().unwrap_err().is_panic());
        assert_eq!(told.recv().unwrap(), Woken::ByDeadline);
    });
}

#[test]
fn a_destructor_spawns_and_joins_while_unwinding() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let fiber = rt.spawn(move || {
            let _joins = OnDrop(move || {
                task::yield_now(); // returns at once: the fiber has the thread to itself
                task::checkpoint();
                let fine = indent::spawn(|| (panicking(), 5)).join().unwrap();
                let panics = indent::spawn(|| -> () { panic_any(Expected(8)) });
                let payload = panics.join().unwrap_err().into_panic();
                let payload = payload.downcast::<Expected>().ok().unwrap().0;
                tell.send((fine, payload, panicking())).unwrap();
            });
            panic_any(Expected(9));
        });
        let payload = fiber.join().unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(9));
        assert_eq!(told.recv().unwrap(), ((false, 5), 8, true));
    });
}

#[test]
fn a_fiber_panics_while_another_is_parked_unwinding() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let first = rt.spawn(move || {
            let _parks = OnDrop(move || {
                tell.send(park::unparker()).unwrap();
                park::park();
            });
            panic_any(Expected(1));
        });
        let unparker = told.recv().unwrap();
        let second = rt.spawn(|| -> () { panic_any(Expected(2)) });
        let payload = second.join().unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(2));
        // A third one, woken by a destructor on the same worker.
        let third = rt.spawn(move || {
            let _wakes = OnDrop(move || unparker.unpark());
            panic_any(Expected(3));
        });
        assert!(third.join().unwrap_err().is_panic());
        assert!(first.join().unwrap_err().is_panic());
    });
}

#[test]
fn a_bound_fiber_goes_on_on_its_thread_beside_one_that_parks_while_it_unwinds() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let (bound, unwinding) = rt.block_on(|| {
            // It asks for its thread, so it is bound: while it is parked it has the thread to
            // itself, and the other fiber starts on another one.
            let bound = indent::spawn(|| {
                let before = std::thread::current().id();
                park::park();
                (before == std::thread::current().id(), panicking())
            });
            while bound.fiber().phase() != task::Phase::Parked {
                task::yield_now();
            }
            let unwinding = indent::spawn(move || {
                let _parks = OnDrop(move || {
                    tell.send(park::unparker()).unwrap();
                    park::park();
                });
                panic_any(Expected(1));
            });
            (bound, unwinding)
        });
        let unparker = told.recv().unwrap();
        bound.unparker().unpark();
        unparker.unpark();
        assert!(unwinding.join().unwrap_err().is_panic());
        assert_eq!(bound.join().unwrap(), (true, false));
    });
}

#[test]
#[ignore = "run in a child process by the test below: the limit on threads is the process's"]
fn child_without_a_thread_to_spare() {
    quiet();
    common::within(60, || {
        let Some(limit) = Limit::new() else { return };
        let rt = Builder::new().workers(1).preempt(false).build().unwrap();
        common::wait_for_the_survey();
        // The remaining threads of the start end, and the helper has made its spares.
        common::wait_for("few threads", || rt.metrics().carriers <= 2);
        limit.allow(0);
        let (tell, told) = mpsc::channel();
        let unwinding = rt.spawn(move || {
            let _parks = OnDrop(move || {
                tell.send(park::unparker()).unwrap();
                park::park();
                assert!(panicking());
            });
            panic_any(Expected(1));
        });
        let unparker = told.recv().unwrap();
        let other = rt.spawn(|| 5);
        unparker.unpark();
        assert!(unwinding.join().unwrap_err().is_panic());
        assert_eq!(other.join().unwrap(), 5);
        // With a deadline, no wake from outside is needed.
        let unwinding = rt.spawn(move || {
            let _parks = OnDrop(move || {
                let soon = Instant::now() + Duration::from_millis(5);
                park::park_until(Some(soon), ParkReason::Park);
            });
            panic_any(Expected(1));
        });
        let other = rt.spawn(|| 6);
        assert!(unwinding.join().unwrap_err().is_panic());
        assert_eq!(other.join().unwrap(), 6);
        limit.lift();
    });
}

#[test]
fn a_destructor_parks_even_if_there_is_no_thread_for_the_worker() {
    let child = common::in_child("child_without_a_thread_to_spare", &[]);
    assert!(child.status.success(), "{}", common::text(&child));
}

#[test]
fn catch_unwind_nests_in_fibers_that_switch_inside_it() {
    quiet();
    for workers in [1, 2] {
        let rt = runtime(workers);
        let fibers: Vec<_> = (0..100)
            .map(|i| {
                rt.spawn(move || {
                    let outer = catch_unwind(|| {
                        task::yield_now();
                        let inner = catch_unwind(|| {
                            task::yield_now();
                            panic_any(Expected(i));
                        });
                        assert!(!panicking());
                        task::yield_now();
                        let inner = inner.unwrap_err().downcast::<Expected>().ok().unwrap().0;
                        panic_any(Expected(inner + 1));
                    });
                    task::yield_now();
                    assert!(!panicking());
                    outer.unwrap_err().downcast::<Expected>().ok().unwrap().0
                })
            })
            .collect();
        for (i, fiber) in fibers.into_iter().enumerate() {
            assert_eq!(fiber.join().unwrap(), i + 1);
        }
    }
}

#[test]
fn a_panic_caught_inside_a_destructor_leaves_the_first_one_going() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let fiber = rt.spawn(|| {
            let _catches = OnDrop(|| {
                let inner = catch_unwind(|| {
                    let soon = Instant::now() + Duration::from_millis(1);
                    park::park_until(Some(soon), ParkReason::Park);
                    panic_any(Expected(2));
                });
                assert!(inner.is_err() && panicking());
                let soon = Instant::now() + Duration::from_millis(1);
                park::park_until(Some(soon), ParkReason::Park);
                assert!(panicking());
            });
            panic_any(Expected(1));
        });
        let payload = fiber.join().unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(1));
    });
}

/// Panics when it is dropped.
struct Bomb(usize);

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Expected(self.0));
    }
}

#[test]
fn a_capture_that_panics_when_dropped_is_a_panic_of_its_fiber() {
    quiet();
    let rt = runtime(1);
    let bomb = Bomb(4);
    let fiber = rt.spawn(move || {
        let _bomb = bomb;
        5
    });
    let payload = fiber.join().unwrap_err().into_panic();
    assert_eq!(payload.downcast_ref::<Expected>().map(|e| e.0), Some(4));
    assert_eq!(rt.block_on(|| 6), 6);
}

#[test]
fn a_result_that_panics_when_dropped_unwinds_its_joiner() {
    quiet();
    let rt = runtime(1);
    let result = rt.spawn(|| Bomb(5)).join();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(result)));
    assert_eq!(
        dropped.unwrap_err().downcast_ref::<Expected>().map(|e| e.0),
        Some(5)
    );
    assert_eq!(rt.block_on(|| 6), 6);
}

#[test]
#[ignore = "run in a child process by the test below, which reads what it prints"]
fn child_with_results_that_panic_when_dropped() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let go = Arc::new(AtomicBool::new(false));
        let wait = |go: &Arc<AtomicBool>| {
            let go = go.clone();
            move || {
                while !go.load(SeqCst) {
                    task::yield_now();
                }
            }
        };
        // Dropped by the fiber, on its own stack.
        let waits = wait(&go);
        drop(rt.spawn(move || {
            waits();
            Bomb(1)
        }));
        go.store(true, SeqCst);
        rt.wait_idle();
        // Dropped by the handle, on this thread.
        let handle = rt.spawn(|| Bomb(2));
        common::wait_for("the fiber's end", || handle.is_finished());
        drop(handle);
        assert!(!panicking());
        // Dropped by a handle in another fiber.
        rt.block_on(|| {
            let handle = indent::spawn(|| Bomb(3));
            while !handle.is_finished() {
                task::yield_now();
            }
            drop(handle);
            assert!(!panicking());
        });
        assert_eq!(rt.block_on(|| 6), 6);
    });
}

#[test]
fn results_that_panic_when_dropped_do_not_end_the_process() {
    let child = common::in_child("child_with_results_that_panic_when_dropped", &[]);
    let text = common::text(&child);
    assert!(child.status.success(), "{text}");
    assert_eq!(complaints(&child).len(), 3, "{text}");
}

#[test]
fn a_closure_that_never_ran_may_panic_when_dropped() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let (tell, told) = mpsc::channel();
        let go = Arc::new(AtomicBool::new(false));
        let hold = {
            let go = go.clone();
            rt.spawn(move || {
                tell.send(()).unwrap();
                while !go.load(SeqCst) {
                    std::hint::spin_loop();
                }
            })
        };
        told.recv().unwrap();
        let bombs: Vec<_> = (0..10)
            .map(|i| {
                let bomb = Bomb(i);
                rt.spawn(move || drop(bomb))
            })
            .collect();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            go.store(true, SeqCst);
        });
        let report = rt.shutdown_timeout(Duration::from_secs(30));
        assert!(report.is_clean(), "{report}");
        for bomb in bombs {
            assert!(bomb.join().unwrap_err().is_cancelled());
        }
        hold.join().unwrap();
        release.join().unwrap();
    });
}

#[test]
fn a_payload_that_panics_when_dropped_does_not_end_the_process() {
    quiet();
    common::within(60, || {
        let rt = runtime(1);
        let fiber = rt.spawn(|| -> () { panic_any(Bomb(1)) });
        let error = fiber.join().unwrap_err();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(error)));
        assert!(dropped.unwrap_err().is::<Expected>());
        drop(rt.spawn(|| -> () { panic_any(Bomb(2)) })); // not joined
        rt.wait_idle();
        assert_eq!(rt.block_on(|| 6), 6);
    });
}

#[test]
fn a_panic_in_block_on_goes_on_in_the_caller() {
    quiet();
    let rt = runtime(1);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        rt.block_on(|| -> u32 { panic_any(Expected(4)) })
    }));
    assert_eq!(
        caught.unwrap_err().downcast_ref::<Expected>().map(|e| e.0),
        Some(4)
    );
    assert!(!panicking());
    assert_eq!(rt.block_on(|| 6), 6);
}

#[test]
fn a_worker_that_no_thread_can_take_goes_to_the_next_carrier_that_asks() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let rt = Builder::new().workers(1).max_carriers(2).build().unwrap();
    let first = rt.spawn(|| {
        let _parks = OnDrop(park::park);
        panic!("the first unwinds and waits");
    });
    let parked = |fiber: &indent::task::Fiber| fiber.phase() == indent::task::Phase::Parked;
    common::wait_for("the first to park", || parked(&first.fiber()));
    let (wakes, fiber) = (first.unparker(), first.fiber());
    let mut first = Some(first);
    let second = rt.spawn(move || {
        let _joins = OnDrop(|| drop(first.take().unwrap().join()));
        panic!("the second unwinds and waits for the first");
    });
    // Both threads of the runtime are blocked, and the second has kept the worker.
    common::wait_for("the second to park", || parked(&second.fiber()));
    assert!(parked(&fiber));
    wakes.unpark();
    assert!(second.join().unwrap_err().is_panic());
}
