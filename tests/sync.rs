//! Locks for fibers and threads: exclusion, no forgotten waiter, no leaked permit, deadlines.
//!
//! The tests cover every way in which a wait ends.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use indent::park::ParkReason;
use indent::runtime::{Builder, Runtime};
use indent::sync::{
    Barrier, Condvar, Event, LazyLock, Mutex, Notify, Once, OnceLock, RwLock, RwLockWriteGuard,
    Semaphore, SpinLock, TryAcquireError, WaitGroup,
};
use indent::{JoinHandle, task, time};

const SOON: Duration = Duration::from_millis(3);
const NEVER: Duration = Duration::from_secs(3600);

fn runtime(workers: usize) -> Runtime {
    Builder::new().workers(workers).build().unwrap()
}

/// Runs `body` on fibers of runtimes, and on a plain thread.
fn everywhere(body: impl Fn() + Send + Sync) {
    common::within(60, || {
        for workers in [1, 2] {
            runtime(workers).block_on(&body);
        }
        std::thread::scope(|scope| scope.spawn(&body).join().unwrap());
    });
}

/// Waits until this many fibers wait for this reason.
fn until_waiting(runtime: &Runtime, fibers: usize, reason: ParkReason) {
    common::wait_for("fibers that wait", || {
        let all = runtime.handle().fibers();
        let waiting = all
            .iter()
            .filter(|f| f.phase() == task::Phase::Parked && f.park_reason() == reason);
        waiting.count() == fibers
    });
}

fn join_all<T>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    handles.into_iter().map(|h| h.join().unwrap()).collect()
}

fn panics(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_default()
}

#[test]
fn a_mutex_admits_one_holder_at_a_time() {
    common::within(120, || {
        const EACH: usize = 20_000;
        let rt = runtime(2);
        let mutex = Arc::new(Mutex::new(0));
        let add = {
            let mutex = mutex.clone();
            move || (0..EACH).for_each(|_| *mutex.lock().unwrap() += 1)
        };
        let fibers: Vec<_> = (0..8).map(|_| rt.spawn(add.clone())).collect();
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(add.clone())).collect();
        join_all(fibers);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*mutex.lock().unwrap(), 10 * EACH);
    });
}

#[test]
fn a_mutex_is_small() {
    assert!(size_of::<Mutex<()>>() <= 24);
    assert!(size_of::<RwLock<()>>() <= 32);
    assert!(size_of::<Semaphore>() <= 24);
}

#[test]
fn a_held_lock_is_refused_at_once_or_in_time() {
    everywhere(|| {
        let mutex = Mutex::new(1);
        let guard = mutex.lock().unwrap();
        let refused = |result: Result<_, TryLockError<_>>| {
            matches!(result.map(drop), Err(TryLockError::WouldBlock))
        };
        assert!(refused(mutex.try_lock()));
        std::thread::scope(|scope| {
            let begun = Instant::now();
            scope.spawn(|| assert!(refused(mutex.lock_timeout(SOON))));
            let fiber = scope.spawn(|| runtime(1).block_on(|| refused(mutex.lock_timeout(SOON))));
            assert!(fiber.join().unwrap() && begun.elapsed() >= SOON);
        });
        drop(guard);
        assert_eq!(*mutex.lock_timeout(Duration::ZERO).unwrap(), 1);
    });
}

#[test]
fn locking_a_mutex_twice_panics_with_a_clear_message() {
    everywhere(|| {
        let mutex = Mutex::new(1);
        let guard = mutex.lock().unwrap();
        let said = panics(|| drop(mutex.lock()));
        assert!(said.contains("holds it already"), "{said}");
        let said = panics(|| drop(mutex.lock_timeout(NEVER)));
        assert!(said.contains("holds it already"), "{said}");
        drop(guard);
        assert!(mutex.lock().is_ok(), "it is still in order");
    });
}

#[test]
fn a_guard_may_be_dropped_on_another_thread_or_by_another_fiber() {
    common::within(60, || {
        let rt = runtime(2);
        let mutex: &'static Mutex<i32> = Box::leak(Box::new(Mutex::new(1)));
        let lock: &'static RwLock<i32> = Box::leak(Box::new(RwLock::new(1)));
        for _ in 0..100 {
            let guards = rt.block_on(|| (mutex.lock().unwrap(), lock.write().unwrap()));
            let waiting = rt.spawn(|| *mutex.lock().unwrap() + *lock.read().unwrap());
            std::thread::spawn(move || drop(guards)).join().unwrap();
            assert_eq!(waiting.join().unwrap(), 2);
            let guard = mutex.lock().unwrap();
            let reader = lock.read().unwrap();
            let waiting = std::thread::spawn(|| *mutex.lock().unwrap() + *lock.write().unwrap());
            rt.spawn(move || drop((guard, reader))).join().unwrap();
            assert_eq!(waiting.join().unwrap(), 2);
        }
    });
}

#[test]
fn a_panic_poisons_a_mutex_and_a_writer_but_no_reader() {
    everywhere(|| {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        panics(|| {
            let _reader = lock.read();
            resume_unwind(Box::new("no luck"));
        });
        assert!(!lock.is_poisoned());
        panics(|| {
            let _guards = (mutex.lock(), lock.write());
            resume_unwind(Box::new("no luck"));
        });
        assert!(mutex.is_poisoned() && lock.is_poisoned());
        assert_eq!(*mutex.lock().unwrap_err().into_inner(), 1);
        assert!(matches!(mutex.try_lock(), Err(TryLockError::Poisoned(_))));
        assert!(lock.read().is_err() && lock.write().is_err());
        mutex.clear_poison();
        lock.clear_poison();
        assert!(mutex.lock().is_ok() && lock.read().is_ok());
        assert_eq!(mutex.into_inner().unwrap() + lock.into_inner().unwrap(), 2);
    });
}

#[test]
fn a_guard_that_is_dropped_in_an_older_panic_does_not_poison() {
    struct Locks<'a>(&'a Mutex<i32>);
    impl Drop for Locks<'_> {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }
    everywhere(|| {
        let mutex = Mutex::new(1);
        panics(|| {
            let _locks = Locks(&mutex);
            resume_unwind(Box::new("no luck"));
        });
        assert_eq!(*mutex.lock().unwrap(), 2);
    });
}

#[test]
fn a_time_limit_or_the_end_of_a_runtime_poisons_nothing_and_lets_go() {
    common::within(60, || {
        let mutex = Arc::new(Mutex::new(1));
        let limited = {
            let mutex = mutex.clone();
            move || {
                let _guard = mutex.lock().unwrap();
                time::sleep(NEVER);
            }
        };
        assert!(time::timeout(SOON, limited.clone()).is_err(), "a thread");
        assert_eq!(*mutex.lock().unwrap(), 1);
        let rt = runtime(2);
        assert!(
            rt.block_on(|| time::timeout(SOON, limited.clone()))
                .is_err()
        );
        assert_eq!(*mutex.lock().unwrap(), 1);
        let ended = rt.spawn(limited);
        until_waiting(&rt, 1, ParkReason::Sleep);
        let waits = rt.spawn({
            let mutex = mutex.clone();
            move || drop(mutex.lock())
        });
        until_waiting(&rt, 1, ParkReason::Lock);
        drop(rt);
        assert!(ended.join().unwrap_err().is_cancelled());
        drop(waits.join()); // it got the lock, or ended
        assert_eq!(*mutex.lock().unwrap(), 1);
    });
}

#[test]
fn a_fiber_that_locks_all_the_time_can_be_cancelled() {
    common::within(60, || {
        let rt = runtime(1);
        let mutex = Arc::new(Mutex::new(0u64));
        let locks = {
            let mutex = mutex.clone();
            move || -> () {
                loop {
                    *mutex.lock().unwrap() += 1;
                }
            }
        };
        // Long enough to count as a fiber that computes, alone and beside another.
        let long = Duration::from_millis(200);
        let alone = rt.block_on(|| time::timeout(long, locks.clone()));
        assert!(alone.is_err());
        let fibers: Vec<JoinHandle<()>> = (0..2).map(|_| rt.spawn(locks.clone())).collect();
        assert!(rt.block_on(|| time::timeout(long, locks)).is_err());
        assert!(rt.shutdown_timeout(Duration::from_secs(20)).is_clean());
        assert!(
            fibers
                .into_iter()
                .all(|f| f.join().unwrap_err().is_cancelled())
        );
        assert!(mutex.try_lock().is_ok());
    });
}

/// Panics with both locks held, after `limit`, which may let a time limit pass and unwind.
fn panics_when_its_time_is_over(limit: impl FnOnce()) -> (bool, bool, bool) {
    let (mutex, lock, once) = (Mutex::new(1), RwLock::new(1), Once::new());
    panics(|| {
        let late = time::timeout(SOON, || {
            let _guards = (mutex.lock(), lock.write());
            once.call_once(|| {
                std::thread::sleep(2 * SOON);
                limit();
                resume_unwind(Box::new("no luck"));
            });
        });
        unreachable!("{late:?}");
    });
    let once = !panics(|| once.call_once(|| ())).is_empty();
    (mutex.is_poisoned(), lock.is_poisoned(), once)
}

#[test]
fn a_panic_poisons_even_after_a_time_limit_has_passed_or_unwound() {
    everywhere(|| {
        let poisoned = (true, true, true);
        assert_eq!(panics_when_its_time_is_over(|| ()), poisoned);
        let returns = || {
            let woken = indent::park::park_until(None, ParkReason::Park);
            assert_eq!(woken, indent::park::Woken::ByCancel);
        };
        assert_eq!(panics_when_its_time_is_over(returns), poisoned);
        let catches = || {
            panics(|| time::sleep(NEVER));
        };
        assert_eq!(panics_when_its_time_is_over(catches), poisoned);
    });
}

#[test]
fn a_payload_that_is_caught_and_thrown_again_poisons_nothing() {
    everywhere(|| {
        let mutex = Mutex::new(1);
        let again = || {
            let _guard = mutex.lock().unwrap();
            let sleeps = catch_unwind(|| time::sleep(NEVER));
            let outer = time::timeout(SOON, || resume_unwind(sleeps.unwrap_err()));
            unreachable!("the limit of another: {outer:?}");
        };
        assert!(time::timeout(SOON, again).is_err());
        assert!(!mutex.is_poisoned());
    });
}

#[test]
fn a_panic_of_a_cancelled_fiber_poisons() {
    common::within(60, || {
        let rt = runtime(1);
        let mutex = Arc::new(Mutex::new(1));
        let fiber = rt.spawn({
            let mutex = mutex.clone();
            move || {
                let _guard = mutex.lock();
                while indent::park::park_until(None, ParkReason::Park)
                    != indent::park::Woken::ByCancel
                {}
                resume_unwind(Box::new("no luck"));
            }
        });
        until_waiting(&rt, 1, ParkReason::Park);
        drop(rt);
        assert!(fiber.join().unwrap_err().is_panic());
        assert!(mutex.is_poisoned());
    });
}

#[test]
fn a_lazy_value_is_made_even_if_the_fiber_that_makes_it_is_cancelled() {
    everywhere(|| {
        let makes = || {
            time::sleep(4 * SOON);
            let own = time::timeout(Duration::from_millis(1), || time::sleep(NEVER));
            assert!(own.is_err(), "limits set inside take effect");
            7
        };
        let lazy = LazyLock::new(makes);
        let late = time::timeout(SOON, || {
            assert_eq!(*lazy, 7);
            time::sleep(NEVER);
        });
        assert!(late.is_err());
        assert_eq!(*lazy, 7);
    });
    common::within(60, || {
        let rt = runtime(2);
        let lazy = Arc::new(LazyLock::new(|| {
            let me = task::current().expect("a fiber");
            while !me.is_cancelled() {
                time::sleep(SOON);
            }
            time::sleep(SOON);
            task::checkpoint();
            7
        }));
        let want = {
            let lazy = lazy.clone();
            move || {
                assert_eq!(**lazy, 7);
                time::sleep(NEVER);
            }
        };
        let first = rt.spawn(want.clone());
        until_waiting(&rt, 1, ParkReason::Sleep);
        let second = rt.spawn(want);
        until_waiting(&rt, 1, ParkReason::Once);
        drop(rt);
        assert!(first.join().unwrap_err().is_cancelled());
        assert!(second.join().unwrap_err().is_cancelled());
        assert_eq!(**lazy, 7);
    });
}

#[test]
fn readers_share_and_a_writer_does_not() {
    everywhere(|| {
        let lock = RwLock::new(1);
        let (one, other) = (lock.read().unwrap(), lock.try_read().unwrap());
        assert!(lock.try_write().is_err() && lock.write_timeout(SOON).is_err());
        assert_eq!(*one + *other, 2);
        drop((one, other));
        let mut writer = lock.write().unwrap();
        assert!(lock.try_read().is_err() && lock.read_timeout(SOON).is_err());
        *writer = 5;
        let reader = RwLockWriteGuard::downgrade(writer);
        assert_eq!(*reader + *lock.read().unwrap(), 10);
        assert!(lock.try_write().is_err());
    });
}

#[test]
fn a_writer_is_not_starved_by_readers_nor_a_reader_by_writers() {
    common::within(120, || {
        let rt = runtime(2);
        let lock = Arc::new(RwLock::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let many = |f: fn(&RwLock<i32>)| -> Vec<_> {
            let spawn = |_| {
                let (lock, over) = (lock.clone(), over.clone());
                rt.spawn(move || {
                    while !over.load(SeqCst) {
                        f(&lock);
                    }
                })
            };
            (0..8).map(spawn).collect()
        };
        // There is always a reader: each holds the lock across a yield.
        let readers = many(|lock| {
            let _reader = lock.read().unwrap();
            task::yield_now();
        });
        for _ in 0..50 {
            *lock.write().unwrap() += 1;
        }
        over.store(true, SeqCst);
        join_all(readers);
        over.store(false, SeqCst);
        let writers = many(|lock| {
            *lock.write().unwrap() += 1;
            task::yield_now();
        });
        let before = *lock.read().unwrap();
        for _ in 0..50 {
            assert!(*lock.read().unwrap() >= before);
        }
        over.store(true, SeqCst);
        join_all(writers);
    });
}

#[test]
fn a_waiter_that_withdraws_from_a_lock_lets_those_behind_proceed() {
    common::within(60, || {
        let rt = runtime(2);
        let lock = Arc::new(RwLock::new(1));
        let semaphore = Arc::new(Semaphore::new(1));
        let reader = lock.read().unwrap();
        // A writer that gives up, and more readers behind it than fit in a batch.
        let writer = rt.spawn({
            let lock = lock.clone();
            move || lock.write_timeout(Duration::from_millis(200)).is_err()
        });
        let heavy = rt.spawn({
            let semaphore = semaphore.clone();
            move || {
                let heavy = semaphore.acquire_many_timeout(2, Duration::from_millis(200));
                heavy.is_err()
            }
        });
        until_waiting(&rt, 1, ParkReason::Lock);
        until_waiting(&rt, 1, ParkReason::Semaphore);
        let behind: Vec<_> = (0..30)
            .map(|_| {
                let (lock, semaphore) = (lock.clone(), semaphore.clone());
                rt.spawn(move || {
                    drop(semaphore.acquire().unwrap());
                    *lock.read().unwrap()
                })
            })
            .collect();
        assert!(writer.join().unwrap() && heavy.join().unwrap());
        assert_eq!(join_all(behind).len(), 30);
        drop(reader);
        assert_eq!(semaphore.available_permits(), 1);
    });
}

#[test]
fn a_condvar_wakes_one_or_all_and_gives_the_mutex_back() {
    common::within(60, || {
        let rt = runtime(2);
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let take = {
            let shared = shared.clone();
            move || {
                let guard = shared.0.lock().unwrap();
                let mut guard = shared.1.wait_while(guard, |n| *n == 0).unwrap();
                *guard -= 1;
            }
        };
        let fibers: Vec<_> = (0..20).map(|_| rt.spawn(take.clone())).collect();
        let thread = std::thread::spawn(take);
        until_waiting(&rt, 20, ParkReason::Condvar);
        for _ in 0..10 {
            *shared.0.lock().unwrap() += 1;
            shared.1.notify_one();
        }
        *shared.0.lock().unwrap() += 11;
        shared.1.notify_all();
        join_all(fibers);
        thread.join().unwrap();
        assert_eq!(*shared.0.lock().unwrap(), 0);
        let (guard, result) = shared
            .1
            .wait_timeout(shared.0.lock().unwrap(), SOON)
            .unwrap();
        assert!(result.timed_out() && shared.0.try_lock().is_err());
        let (_, result) = shared
            .1
            .wait_timeout_while(guard, SOON, |n| *n == 0)
            .unwrap();
        assert!(result.timed_out());
    });
}

#[test]
fn a_wait_for_a_condvar_that_a_time_limit_ends_leaves_the_mutex_free_and_sound() {
    everywhere(|| {
        let (mutex, condvar) = (Mutex::new(1), Condvar::new());
        let wait = || drop(condvar.wait(mutex.lock().unwrap()));
        assert!(time::timeout(SOON, wait).is_err());
        assert_eq!(*mutex.try_lock().unwrap(), 1);
        // The mutex is locked again first, so the limit takes effect only after that.
        let guard = mutex.lock().unwrap();
        std::thread::scope(|scope| {
            let (mutex, condvar) = (&mutex, &condvar);
            let waits = scope
                .spawn(move || time::timeout(SOON, || drop(condvar.wait(mutex.lock().unwrap()))));
            drop(guard);
            assert!(waits.join().unwrap().is_err());
        });
        assert_eq!(*mutex.try_lock().unwrap(), 1);
    });
}

#[test]
fn permits_are_taken_returned_added_and_refused() {
    everywhere(|| {
        let semaphore = Arc::new(Semaphore::new(3));
        let mut two = semaphore.acquire_many(2).unwrap();
        let one = semaphore.clone().acquire_owned().unwrap();
        assert_eq!(
            semaphore.try_acquire().unwrap_err(),
            TryAcquireError::NoPermits
        );
        assert!(semaphore.acquire_timeout(SOON).is_err());
        let split = two.split(1).unwrap();
        assert!(two.split(2).is_none());
        drop(two);
        assert_eq!(semaphore.available_permits(), 1);
        split.forget();
        std::thread::spawn(move || drop(one)).join().unwrap();
        assert_eq!(semaphore.available_permits(), 2);
        semaphore.add_permits(5);
        assert_eq!(semaphore.forget_permits(4), 4);
        assert_eq!(semaphore.try_acquire_many(3).map(|p| p.permits()), Ok(3));
        semaphore.close();
        assert!(semaphore.is_closed() && semaphore.acquire().is_err());
        assert_eq!(
            semaphore.try_acquire().unwrap_err(),
            TryAcquireError::Closed
        );
    });
}

#[test]
fn too_many_permits_are_refused_and_leave_everything_in_order() {
    common::within(60, || {
        let rt = runtime(1);
        let semaphore = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        assert!(panics(|| semaphore.add_permits(1)).contains("at most"));
        assert_eq!(semaphore.available_permits(), Semaphore::MAX_PERMITS);
        // Also with a waiter, and on a fiber, which can be preempted afterwards.
        let some = semaphore.acquire_many(2).unwrap();
        let waiting = rt.spawn({
            let semaphore = semaphore.clone();
            move || drop(semaphore.acquire_many(Semaphore::MAX_PERMITS))
        });
        until_waiting(&rt, 1, ParkReason::Semaphore);
        rt.block_on(|| {
            assert!(panics(|| semaphore.add_permits(3)).contains("at most"));
            task::yield_now();
        });
        // These are two too many when they are returned, which is not an error of the caller that
        // returns them.
        semaphore.add_permits(2);
        drop(some);
        waiting.join().unwrap();
        assert_eq!(semaphore.available_permits(), Semaphore::MAX_PERMITS);
    });
}

#[test]
fn a_large_request_is_served_before_the_small_ones_behind_it() {
    common::within(60, || {
        let rt = runtime(2);
        let semaphore = Arc::new(Semaphore::new(0));
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let waiting: Vec<_> = [10, 1, 1]
            .into_iter()
            .enumerate()
            .map(|(at, weight)| {
                let (semaphore, order) = (semaphore.clone(), order.clone());
                let fiber = rt.spawn(move || {
                    let permit = semaphore.acquire_many(weight).unwrap();
                    order.lock().unwrap().push(weight);
                    drop(permit);
                });
                until_waiting(&rt, at + 1, ParkReason::Semaphore);
                fiber
            })
            .collect();
        for _ in 0..9 {
            semaphore.add_permits(1);
        }
        assert!(
            semaphore.try_acquire().is_err(),
            "they are kept for the first"
        );
        assert!(order.lock().unwrap().is_empty());
        semaphore.add_permits(1);
        join_all(waiting);
        assert_eq!(*order.lock().unwrap(), [10, 1, 1]);
        assert_eq!(semaphore.available_permits(), 10);
    });
}

#[test]
fn closing_a_semaphore_notifies_all_waiters() {
    common::within(60, || {
        let rt = runtime(2);
        let semaphore = Arc::new(Semaphore::new(0));
        let waiting: Vec<_> = (0..50)
            .map(|_| {
                let semaphore = semaphore.clone();
                rt.spawn(move || semaphore.acquire().is_err())
            })
            .collect();
        until_waiting(&rt, 50, ParkReason::Semaphore);
        semaphore.close();
        assert!(join_all(waiting).into_iter().all(|refused| refused));
    });
}

#[test]
fn an_event_releases_all_waiters_and_can_be_reset() {
    common::within(60, || {
        let rt = runtime(2);
        let event = Arc::new(Event::new());
        let wait = {
            let event = event.clone();
            move || event.wait()
        };
        for _ in 0..3 {
            let fibers: Vec<_> = (0..50).map(|_| rt.spawn(wait.clone())).collect();
            let thread = std::thread::spawn(wait.clone());
            until_waiting(&rt, 50, ParkReason::Event);
            event.set();
            event.wait();
            thread.join().unwrap();
            event.reset(); // the present waiters proceed anyway
            join_all(fibers);
            assert!(!event.is_set() && !event.wait_timeout(SOON));
        }
    });
}

#[test]
fn a_notification_is_kept_for_one_and_waiters_are_woken_in_order() {
    common::within(60, || {
        let rt = runtime(2);
        let notify = Arc::new(Notify::new());
        notify.notify_one();
        notify.notify_one(); // at most one notification is stored
        notify.notified();
        assert!(!notify.notified_timeout(SOON));
        let order = Arc::new(AtomicUsize::new(0));
        let waiting: Vec<_> = (0..20)
            .map(|at| {
                let (notify, order) = (notify.clone(), order.clone());
                let fiber = rt.spawn(move || {
                    notify.notified();
                    order.fetch_add(1, SeqCst)
                });
                until_waiting(&rt, at + 1, ParkReason::Event);
                fiber
            })
            .collect();
        for at in 0..5 {
            notify.notify_one();
            common::wait_for("the next one", || order.load(SeqCst) == at + 1);
        }
        notify.notify_waiters();
        let places = join_all(waiting);
        assert_eq!(places[..5], [0, 1, 2, 3, 4]);
        assert!(!notify.notified_timeout(SOON), "nothing is kept");
    });
}

#[test]
fn a_barrier_releases_each_round_together_with_one_leader() {
    common::within(60, || {
        const SIZE: usize = 20;
        let rt = runtime(2);
        let barrier = Arc::new(Barrier::new(SIZE));
        let came = Arc::new(AtomicUsize::new(0));
        assert!(barrier.wait_timeout(SOON).is_none(), "and does not count");
        let fibers: Vec<_> = (0..SIZE)
            .map(|_| {
                let (barrier, came) = (barrier.clone(), came.clone());
                rt.spawn(move || {
                    let mut leads = 0;
                    for round in 1..=50 {
                        came.fetch_add(1, SeqCst);
                        leads += usize::from(barrier.wait().is_leader());
                        assert!(came.load(SeqCst) >= round * SIZE);
                    }
                    leads
                })
            })
            .collect();
        assert_eq!(join_all(fibers).into_iter().sum::<usize>(), 50);
    });
}

#[test]
fn rounds_of_a_barrier_that_overlap_are_all_complete() {
    common::within(60, || {
        // More than fit in a batch, of several rounds at once.
        const SIZE: usize = 12;
        const ROUNDS: usize = 200;
        let quantum = Duration::from_micros(200);
        let rt = Builder::new().workers(2).preempt_quantum(quantum).build();
        let rt = rt.unwrap();
        let shared = Arc::new((Barrier::new(SIZE), AtomicUsize::new(0)));
        let wait = {
            let shared = shared.clone();
            move || {
                while shared.1.load(SeqCst) < ROUNDS {
                    let leads = shared.0.wait().is_leader();
                    shared.1.fetch_add(usize::from(leads), SeqCst);
                }
            }
        };
        let fibers: Vec<_> = (0..3 * SIZE - 2).map(|_| rt.spawn(wait.clone())).collect();
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(wait.clone())).collect();
        common::wait_for("all rounds", || shared.1.load(SeqCst) >= ROUNDS);
        // Fibers that wait for a round that will not be complete.
        let over = Arc::new(AtomicBool::new(false));
        let helpers: Vec<_> = (0..SIZE)
            .map(|_| {
                let (shared, over) = (shared.clone(), over.clone());
                rt.spawn(move || {
                    while !over.load(SeqCst) {
                        let _one_more = shared.0.wait_timeout(SOON);
                    }
                })
            })
            .collect();
        join_all(fibers);
        threads.into_iter().for_each(|t| t.join().unwrap());
        over.store(true, SeqCst);
        join_all(helpers);
    });
}

#[test]
fn a_once_is_run_once_and_the_others_wait() {
    common::within(60, || {
        let rt = runtime(2);
        let shared = Arc::new((Once::new(), AtomicUsize::new(0)));
        let fibers: Vec<_> = (0..50)
            .map(|_| {
                let shared = shared.clone();
                rt.spawn(move || {
                    shared.0.call_once(|| {
                        time::sleep(SOON);
                        shared.1.fetch_add(1, SeqCst);
                    });
                    shared.1.load(SeqCst)
                })
            })
            .collect();
        shared.0.wait();
        assert!(join_all(fibers).into_iter().all(|calls| calls == 1));
    });
}

#[test]
fn a_panic_poisons_a_once_but_a_time_limit_leaves_it_to_the_next() {
    everywhere(|| {
        let once = Once::new();
        let slow = || once.call_once(|| time::sleep(NEVER));
        assert!(time::timeout(SOON, slow).is_err());
        panics(|| once.call_once(|| resume_unwind(Box::new("no luck"))));
        assert!(panics(|| once.call_once(|| ())).contains("poisoned"));
        assert!(panics(|| once.wait()).contains("poisoned"));
        once.call_once_force(|state| assert!(state.is_poisoned()));
        once.call_once(|| unreachable!());
        let cell = OnceLock::new();
        panics(|| {
            cell.get_or_init(|| resume_unwind(Box::new("no luck")));
        });
        assert_eq!(cell.get_or_try_init(|| Err::<u8, _>("no")), Err("no"));
        assert_eq!((cell.get_or_init(|| 5), cell.set(6)), (&5, Err(6)));
        let lazy = LazyLock::new(|| -> u8 { resume_unwind(Box::new("no luck")) });
        let want = || assert_eq!(*lazy, 0);
        panics(want);
        assert!(panics(want).contains("that makes its value has panicked"));
    });
}

#[test]
fn waiting_for_a_closure_inside_itself_panics_with_a_clear_message() {
    everywhere(|| {
        let waits: [fn(&Once); 4] = [
            |once| once.call_once(|| ()),
            |once| once.wait(),
            |once| once.wait_force(),
            |once| assert!(!once.wait_timeout(NEVER)),
        ];
        for wait in waits {
            let once = Once::new();
            let said = panics(|| once.call_once(|| wait(&once)));
            assert!(said.contains("wait for itself"), "{said}");
        }
        let waits: [fn(&OnceLock<u8>) -> bool; 3] = [
            |cell| *cell.get_or_init(|| 1) == 1,
            |cell| *cell.wait() == 1,
            |cell| cell.wait_timeout(NEVER).is_some(),
        ];
        for wait in waits {
            let cell = OnceLock::new();
            let said = panics(|| {
                cell.get_or_init(|| {
                    wait(&cell);
                    1
                });
            });
            assert!(said.contains("wait for itself"), "{said}");
        }
    });
}

#[test]
fn a_wait_for_another_callers_closure_ends_in_time() {
    everywhere(|| {
        let (once, cell) = (Once::new(), OnceLock::new());
        assert!(!once.wait_timeout(SOON) && cell.wait_timeout(SOON).is_none());
        let (running, let_go) = (Event::new(), Event::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cell.get_or_init(|| {
                    once.call_once(|| {
                        running.set();
                        let_go.wait();
                    });
                    7
                })
            });
            running.wait();
            assert!(!once.wait_timeout(SOON));
            assert!(!once.call_once_timeout(SOON, || unreachable!()));
            assert!(cell.wait_timeout(SOON).is_none());
            assert!(cell.get_or_init_timeout(SOON, || 8).is_none());
            let_go.set();
            assert!(once.call_once_timeout(NEVER, || unreachable!()));
            assert_eq!(cell.get_or_init_timeout(NEVER, || 8), Some(&7));
            assert!(once.wait_timeout(SOON) && cell.wait_timeout(SOON) == Some(&7));
        });
    });
}

#[test]
fn a_cell_is_cloned_and_compared_by_its_value_and_guards_are_shown_as_theirs() {
    let (empty, full) = (OnceLock::new(), OnceLock::from(1));
    assert!(empty.clone() == empty && full.clone() == full && empty != full);
    assert_eq!(*LazyLock::<String>::default(), "");
    let (lock, spin) = (RwLock::new(5), SpinLock::from(5));
    assert_eq!(format!("{}", lock.read().unwrap()), "5");
    assert_eq!(format!("{}{}", lock.write().unwrap(), spin.lock()), "55");
}

#[test]
fn a_wait_group_waits_for_all_its_members_however_they_end() {
    common::within(60, || {
        let rt = runtime(2);
        let group = WaitGroup::new();
        for n in 0..50 {
            let member = group.member();
            drop(rt.spawn(move || {
                let _member = member;
                task::yield_now();
                if n == 7 {
                    resume_unwind(Box::new("no luck"));
                }
            }));
        }
        group.add(1);
        let waiting = rt.spawn({
            let group = group.clone();
            move || group.wait()
        });
        until_waiting(&rt, 1, ParkReason::WaitGroup);
        common::wait_for("the members", || group.pending() == 1);
        assert!(!group.wait_timeout(SOON) && !waiting.is_finished());
        group.done();
        waiting.join().unwrap();
        group.wait();
        assert!(panics(|| group.done()).contains("no task is pending"));
        assert_eq!(group.pending(), 0);
    });
}

#[test]
fn a_spin_lock_admits_one_holder_at_a_time_which_is_not_preempted() {
    common::within(120, || {
        let quantum = Duration::from_micros(200);
        let rt = Builder::new().workers(2).preempt_quantum(quantum).build();
        let rt = rt.unwrap();
        let lock = Arc::new(SpinLock::new((0u64, 0u64)));
        let fibers: Vec<_> = (0..8)
            .map(|_| {
                let lock = lock.clone();
                rt.spawn(move || {
                    for _ in 0..20_000 {
                        let mut both = lock.lock();
                        both.0 += 1;
                        std::hint::black_box(&mut both);
                        both.1 += 1;
                        assert_eq!(both.0, both.1);
                    }
                })
            })
            .collect();
        join_all(fibers);
        assert_eq!(*lock.lock(), (160_000, 160_000));
    });
}
