//! A fiber's own thread-locals: they start with initial values, move with it, and end with it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use indent::runtime::{Builder, Runtime, ThreadLocals};
use indent::{task, time};

mod common;

const MS: Duration = Duration::from_millis(1);

/// Reports that a test cannot run where thread-locals belong to threads, and returns.
macro_rules! needs_own_locals {
    () => {
        if common::sanitizer_forbids("thread-locals are the threads' there") {
            return;
        }
        if cfg!(any(target_env = "musl", target_feature = "crt-static")) {
            return common::skip("the C library is linked statically");
        }
    };
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(7) };
    static FLAG: Cell<bool> = const { Cell::new(false) };
    static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static LAZY: Rc<Cell<u64>> = Rc::new(Cell::new(1));
}

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Uses all variables; other fibers run between the steps.
fn use_them(own: u64, pause: impl Fn()) {
    assert_eq!(COUNT.get(), 7, "begins with its initial value");
    assert!(!FLAG.get());
    for turn in 0..20 {
        COUNT.set(own + turn);
        FLAG.set(turn % 2 == 0);
        LIST.with_borrow_mut(|list| list.push(own));
        pause();
        assert_eq!((COUNT.get(), FLAG.get()), (own + turn, turn % 2 == 0));
        LIST.with_borrow(|list| assert_eq!(*list, vec![own; turn as usize + 1]));
        let shared = LAZY.with(Rc::clone);
        shared.set(own);
        pause();
        assert_eq!(
            (Rc::strong_count(&shared), LAZY.with(|lazy| lazy.get())),
            (2, own)
        );
    }
}

#[test]
fn every_fiber_sees_its_own_values_on_any_number_of_workers() {
    needs_own_locals!();
    for workers in [1, 2, 4] {
        let rt = runtime(workers);
        let fibers: Vec<_> = (0..200)
            .map(|own| {
                rt.spawn(move || match own % 3 {
                    0 => use_them(own * 100, task::yield_now),
                    1 => use_them(own * 100, || time::sleep(MS / 4)),
                    _ => use_them(own * 100, || drop(indent::spawn(|| COUNT.set(1)).join())),
                })
            })
            .collect();
        for fiber in fibers {
            fiber.join().unwrap();
        }
    }
}

/// Holds a borrow while others run: the fiber is bound, and the value is in place.
#[test]
fn a_borrow_across_a_pause_is_the_fibers_own() {
    needs_own_locals!();
    let rt = runtime(2);
    let fibers: Vec<_> = (0..100u64)
        .map(|own| {
            rt.spawn(move || {
                for turn in 0..5 {
                    LIST.with_borrow_mut(|list| {
                        list.push(own);
                        time::sleep(MS);
                        assert_eq!(list.len(), turn + 1);
                    });
                    task::yield_now();
                }
            })
        })
        .collect();
    for fiber in fibers {
        fiber.join().unwrap();
    }
}

/// Records when it is dropped.
struct Noted(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Drop for Noted {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

thread_local! {
    static ONE: RefCell<Option<Noted>> = const { RefCell::new(None) };
    static TWO: RefCell<Option<Noted>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

#[test]
fn destructors_run_at_the_fibers_end_last_first_and_before_its_join_returns() {
    needs_own_locals!();
    let rt = runtime(2);
    let seen = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..50 {
        let noted = seen.clone();
        let fiber = rt.spawn(move || {
            ONE.set(Some(Noted("one", noted.clone())));
            time::sleep(MS / 8);
            TWO.set(Some(Noted("two", noted.clone())));
            task::yield_now();
            noted.lock().unwrap().push("closure");
        });
        fiber.join().unwrap();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen, ["closure", "two", "one"]);
    }
}

#[test]
fn a_destructor_may_use_another_thread_local_and_pause() {
    needs_own_locals!();
    struct Uses(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Uses {
        fn drop(&mut self) {
            let noted = self.0.clone();
            LATE.set(Some(Noted("late", noted)));
            time::sleep(MS);
            task::yield_now();
            LATE.with_borrow(|late| assert!(late.is_some()));
            self.0.lock().unwrap().push("uses");
        }
    }
    thread_local!(static USES: RefCell<Option<Uses>> = const { RefCell::new(None) });
    let rt = runtime(2);
    let all: Vec<_> = (0..50)
        .map(|_| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let uses = Uses(seen.clone());
            (seen, rt.spawn(move || USES.set(Some(uses))))
        })
        .collect();
    for (seen, fiber) in all {
        fiber.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), ["uses", "late"]);
    }
}

#[test]
fn destructors_run_once_however_a_fiber_ends() {
    needs_own_locals!();
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Counted {
        fn new() -> Self {
            MADE.fetch_add(1, SeqCst);
            Counted
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    thread_local!(static COUNTED: Counted = Counted::new());
    let rt = runtime(2);
    let mut fibers = Vec::new();
    for how in 0..60 {
        fibers.push(rt.spawn(move || {
            COUNTED.with(|_| ());
            match how % 3 {
                0 => time::sleep(MS),
                1 => std::panic::resume_unwind(Box::new(())),
                _ => indent::park::park(), // until the runtime cancels it
            }
        }));
    }
    common::wait_for("those that end by themselves", || {
        fibers.iter().filter(|fiber| fiber.is_finished()).count() == 40
    });
    assert_eq!(DROPPED.load(SeqCst), 40);
    drop(rt);
    assert_eq!((MADE.load(SeqCst), DROPPED.load(SeqCst)), (60, 60));
}

/// Runs a closure on a fiber without a handle, which drops the result on the fiber only.
fn detached<T: Send + 'static>(rt: &Runtime, f: impl FnOnce() -> T + Send + 'static) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let is_dropped = dropped.clone();
    let handle = rt.spawn(move || {
        while is_dropped.load(SeqCst) == 0 {
            task::yield_now();
        }
        f()
    });
    drop(handle);
    dropped.store(1, SeqCst);
}

/// Checks a thread-local that sends on a channel and sleeps in its destructor.
#[test]
fn a_destructor_that_blocks_in_a_fiber_that_is_told_to_end_is_left_in_peace() {
    needs_own_locals!();
    struct Flushes(Option<indent::chan::Sender<u64>>);
    impl Drop for Flushes {
        fn drop(&mut self) {
            time::sleep(MS);
            (0..200).for_each(|_| task::yield_now()); // more than a budget
            if let Some(tx) = self.0.take() {
                tx.send(1).unwrap();
            }
        }
    }
    thread_local!(static FLUSHES: RefCell<Flushes> = const { RefCell::new(Flushes(None)) });
    let rt = runtime(2);
    let (tx, rx) = indent::chan::unbounded();
    let ready = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let (tx, ready) = (tx.clone(), ready.clone());
        drop(rt.spawn(move || {
            FLUSHES.with_borrow_mut(|flushes| flushes.0 = Some(tx));
            ready.fetch_add(1, SeqCst);
            indent::park::park(); // until the runtime cancels it
        }));
    }
    drop(tx);
    common::wait_for("all are parked", || ready.load(SeqCst) == 20);
    drop(rt);
    assert_eq!(std::iter::from_fn(|| rx.recv().ok()).sum::<u64>(), 20);
}

/// std's channels wake a thread by a handle, which a thread-local of the thread holds.
#[test]
fn fibers_that_moved_are_woken_by_std_channels() {
    needs_own_locals!();
    common::within(60, || {
        let rt = runtime(2);
        let pairs: Vec<_> = (0..20)
            .map(|_| {
                let (tx, rx) = mpsc::channel::<u32>();
                let (back, answers) = mpsc::channel::<u32>();
                let receiver = rt.spawn(move || {
                    for expected in 0..50 {
                        assert_eq!(rx.recv().unwrap(), expected);
                        back.send(expected).unwrap();
                        task::yield_now();
                    }
                });
                let sender = rt.spawn(move || {
                    for number in 0..50 {
                        time::sleep(MS / 4);
                        tx.send(number).unwrap();
                        assert_eq!(answers.recv().unwrap(), number);
                    }
                });
                (receiver, sender)
            })
            .collect();
        for (receiver, sender) in pairs {
            receiver.join().unwrap();
            sender.join().unwrap();
        }
    });
}

#[test]
fn an_unjoined_result_may_use_what_its_closure_used() {
    needs_own_locals!();
    struct Uses(mpsc::Sender<usize>);
    impl Drop for Uses {
        fn drop(&mut self) {
            self.0.send(LIST.with_borrow(Vec::len)).unwrap();
        }
    }
    let rt = runtime(1);
    let (tx, rx) = mpsc::channel();
    for _ in 0..20 {
        let uses = Uses(tx.clone());
        detached(&rt, move || {
            LIST.with_borrow_mut(|list| list.extend([1, 2, 3]));
            uses
        });
        assert_eq!(rx.recv().unwrap(), 3);
    }
}

#[test]
fn an_unjoined_result_may_use_thread_locals() {
    needs_own_locals!();
    struct Uses(mpsc::Sender<u64>);
    impl Drop for Uses {
        fn drop(&mut self) {
            COUNT.set(COUNT.get() + 1);
            LIST.with_borrow_mut(|list| list.push(1));
            self.0.send(COUNT.get()).unwrap();
        }
    }
    let rt = runtime(1);
    let (tx, rx) = mpsc::channel();
    for _ in 0..20 {
        let uses = Uses(tx.clone());
        detached(&rt, move || uses);
    }
    for _ in 0..20 {
        assert_eq!(rx.recv().unwrap(), 8);
    }
}

#[test]
fn a_fiber_is_one_thread_to_std_for_as_long_as_it_lives() {
    needs_own_locals!();
    let rt = runtime(2);
    let fibers: Vec<_> = (0..100)
        .map(|_| {
            rt.spawn(|| {
                let me = std::thread::current().id();
                for _ in 0..20 {
                    time::sleep(MS / 8);
                    assert_eq!(std::thread::current().id(), me);
                }
                me
            })
        })
        .collect();
    let mut ids: Vec<_> = fibers
        .into_iter()
        .map(|f| format!("{:?}", f.join().unwrap()))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100, "no two fibers are the same thread");
}

#[test]
fn unpark_finds_the_fiber_that_took_its_own_handle() {
    needs_own_locals!();
    let rt = runtime(2);
    for _ in 0..50 {
        let (tx, rx) = mpsc::channel();
        let fiber = rt.spawn(move || {
            tx.send(std::thread::current()).unwrap();
            time::sleep(MS / 8);
            std::thread::park();
        });
        rx.recv().unwrap().unpark();
        fiber.join().unwrap();
    }
}

#[test]
fn threads_and_fibers_that_a_fiber_starts_begin_anew() {
    needs_own_locals!();
    let rt = runtime(2);
    rt.block_on(|| {
        COUNT.set(100);
        let of_thread = std::thread::spawn(|| COUNT.replace(1));
        let of_fiber = indent::spawn(|| COUNT.replace(2));
        let of_pool = indent::runtime::blocking(|| COUNT.get());
        assert_eq!(
            (
                of_thread.join().unwrap(),
                of_fiber.join().unwrap(),
                of_pool,
                COUNT.get()
            ),
            (7, 7, 7, 100)
        );
    });
    assert_eq!(COUNT.get(), 7, "the caller's is not the fiber's");
}

#[test]
fn several_runtimes_do_not_mix() {
    needs_own_locals!();
    let runtimes: Vec<_> = (0..3).map(|_| runtime(2)).collect();
    let threads = Builder::new()
        .workers(1)
        .thread_locals(ThreadLocals::Thread)
        .build()
        .unwrap();
    let fibers: Vec<_> = (0..120)
        .map(|own| {
            let rt = &runtimes[own as usize % 3];
            rt.spawn(move || use_them(own * 100, task::yield_now))
        })
        .collect();
    let count = || {
        COUNT.set(COUNT.get() + 1);
        COUNT.get()
    };
    // The values are the same thread's, as long as no fiber is bound there in between.
    assert_eq!([threads.block_on(count), threads.block_on(count)], [8, 9]);
    for fiber in fibers {
        fiber.join().unwrap();
    }
}

/// Verdicts rely on thread-locals that move with the fiber, if the process has any.
#[test]
fn fibers_without_thread_locals_of_their_own_keep_their_threads() {
    needs_own_locals!();
    let own = runtime(1);
    own.wait_until_surveyed(None);
    let rt = Builder::new()
        .workers(2)
        .thread_locals(ThreadLocals::Thread)
        .build()
        .unwrap();
    let mobility = || task::current().unwrap().binding().mobility();
    assert_eq!(rt.block_on(mobility), task::Mobility::Bound);
    let fibers: Vec<_> = (0..20).map(|_| rt.spawn(indent::park::park)).collect();
    common::wait_for("all keep a thread", || rt.metrics().carriers_bound == 20);
    for fiber in fibers {
        fiber.unparker().unpark();
        fiber.join().unwrap();
    }
}

/// Seeds and thread numbers are not created once per fiber.
#[test]
fn keys_of_maps_stay_with_the_thread() {
    needs_own_locals!();
    let rt = runtime(1);
    let fibers: Vec<_> = (0..100u64)
        .map(|own| {
            rt.spawn(move || {
                let mut map = std::collections::HashMap::new();
                for key in 0..50 {
                    map.insert(key, own);
                    if key % 10 == 0 {
                        task::yield_now();
                    }
                }
                map.values().all(|value| *value == own)
            })
        })
        .collect();
    assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap()));
}

type Route = Box<dyn Fn() -> Rc<Cell<u64>> + Send + Sync>;

/// A table of boxed closures, so that the analysis cannot see the code that is called.
static ROUTE: OnceLock<Route> = OnceLock::new();

#[test]
fn an_rc_that_a_boxed_closure_hands_out_is_the_fibers_own() {
    needs_own_locals!();
    let route = ROUTE.get_or_init(|| std::hint::black_box(Box::new(|| LAZY.with(Rc::clone))));
    let rt = runtime(4);
    let fibers: Vec<_> = (0..200)
        .map(|own| {
            rt.spawn(move || {
                for _ in 0..50 {
                    let held = route();
                    held.set(own);
                    task::yield_now();
                    let again = route();
                    assert!(Rc::ptr_eq(&held, &again));
                    assert_eq!((Rc::strong_count(&held), held.get()), (3, own));
                }
            })
        })
        .collect();
    for fiber in fibers {
        fiber.join().unwrap();
    }
}
