//! Fibers that are bound to their thread: each has its thread to itself, and makes progress under
//! any load.
//!
//! A crate that changes a thread-local around a callback and restores it afterwards is correct on
//! threads, and breaks if two fibers of one thread are inside the callback at once.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use indent::runtime::{Builder, Runtime};
use indent::task;

mod common;

thread_local! {
    /// Value for which this thread works now.
    static CONTEXT: Cell<u64> = const { Cell::new(0) };
    static BORROWED: RefCell<u64> = const { RefCell::new(0) };
}

/// Sets a thread-local around a callback, as tracing spans, scoped thread-locals and runtimes'
/// contexts do.
#[inline(never)]
fn with_context(value: u64, f: impl FnOnce()) -> bool {
    let old = CONTEXT.replace(value);
    f();
    let kept = CONTEXT.get() == value;
    CONTEXT.set(old);
    kept && old == 0
}

#[inline(never)]
fn park_a_little() {
    indent::time::sleep(Duration::from_micros(500));
}

fn runtime() -> Runtime {
    Builder::new().workers(2).build().unwrap()
}

/// Fibers in endless loops: one more than there are workers.
struct Hogs {
    stop: Arc<AtomicBool>,
    fibers: Vec<task::JoinHandle<()>>,
}

impl Hogs {
    fn start(rt: &Runtime) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = || {
            let stop = stop.clone();
            rt.spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let fibers = (0..3).map(|_| hog()).collect();
        Hogs { stop, fibers }
    }

    fn end(self) {
        self.stop.store(true, SeqCst);
        self.fibers.into_iter().for_each(|hog| hog.join().unwrap());
    }
}

#[test]
fn fibers_inside_a_changed_thread_local_never_meet_on_one_thread() {
    let rt = runtime();
    // Spawned immediately, before the program's code has been read.
    let fibers: Vec<_> = (1..=400)
        .map(|i| {
            rt.spawn(move || {
                (0..5).all(|_| with_context(i, || (0..3).for_each(|_| park_a_little())))
            })
        })
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap(), "another fiber's context");
    }
    common::wait_for("threads end", || rt.metrics().carriers <= 8);
}

#[test]
fn fibers_that_hold_a_borrow_of_a_thread_local_do_not_meet() {
    let rt = runtime();
    let fibers: Vec<_> = (1..=400)
        .map(|i| {
            rt.spawn(move || {
                BORROWED.with_borrow_mut(|borrowed| {
                    *borrowed = i;
                    park_a_little();
                    *borrowed == i
                })
            })
        })
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap(), "another fiber has written");
    }
}

#[test]
fn fibers_that_hold_a_mutex_of_std_across_a_sleep_take_turns() {
    let rt = runtime();
    let mutex = Arc::new(Mutex::new(0));
    let fibers: Vec<_> = (0..16)
        .map(|_| {
            let mutex = mutex.clone();
            rt.spawn(move || {
                let mut count = mutex.lock().unwrap();
                park_a_little();
                *count += 1;
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*mutex.lock().unwrap(), 16);
}

#[test]
fn fibers_that_race_for_a_lazy_value_whose_maker_sleeps_all_get_it() {
    static VALUE: LazyLock<u64> = LazyLock::new(|| {
        indent::time::sleep(Duration::from_millis(20));
        7
    });
    let rt = runtime();
    let fibers: Vec<_> = (0..64).map(|_| rt.spawn(|| *VALUE)).collect();
    for fiber in fibers {
        assert_eq!(fiber.join().unwrap(), 7);
    }
}

#[test]
fn bound_fibers_started_after_endless_loops_are_served() {
    let rt = runtime();
    let hogs = Hogs::start(&rt);
    let fibers: Vec<_> = (1..=20)
        .map(|i| rt.spawn(move || with_context(i, || (0..20).for_each(|_| park_a_little()))))
        .collect();
    for fiber in fibers {
        assert!(fiber.join().unwrap());
    }
    hogs.end();
}

#[test]
fn bound_fibers_leave_threads_for_the_others() {
    let rt = runtime();
    // Each keeps a thread while it waits for the last one.
    let here = Arc::new(AtomicUsize::new(0));
    let kept: Vec<_> = (1..=300)
        .map(|i| {
            let here = here.clone();
            rt.spawn(move || {
                with_context(i, || {
                    here.fetch_add(1, SeqCst);
                    while here.load(SeqCst) < 300 {
                        park_a_little();
                    }
                })
            })
        })
        .collect();
    common::wait_for("all are inside", || here.load(SeqCst) == 300);
    for fiber in kept {
        assert!(fiber.join().unwrap());
    }
}

#[test]
fn beyond_the_limit_of_threads_bound_fibers_wait_to_start_and_others_do_not() {
    common::wait_for_the_survey();
    let rt = Builder::new().workers(2).max_carriers(8).build().unwrap();
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
    let bound: Vec<_> = (1..=60)
        .map(|i| rt.spawn(move || with_context(i, || (0..20).for_each(|_| park_a_little()))))
        .collect();
    let mut most = 0;
    for fiber in bound {
        most = most.max(rt.metrics().carriers);
        assert!(fiber.join().unwrap(), "another fiber's context");
    }
    let before = steps.load(Relaxed);
    common::wait_for("the plain one goes on", || {
        steps.load(Relaxed) > before + 10
    });
    stop.store(true, SeqCst);
    plain.join().unwrap();
    // Both workers may admit a start at the same moment. Each gets a thread in any case when it
    // leaves the thread of a bound fiber, and keeps one more thread ready.
    assert!(most <= 8 + 3 * 2, "{most} threads, {:?}", rt.metrics());
}
