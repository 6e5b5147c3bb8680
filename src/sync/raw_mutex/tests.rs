//! A woken waiter that does not run, and loom models of the lock.

#[cfg(not(indent_loom))]
#[test]
fn a_woken_waiter_that_does_not_run_keeps_no_other_from_a_free_lock() {
    use super::*;
    use std::time::Duration;

    let mutex = RawMutex::<Waiter>::new();
    let until = || lock_until(Some(Instant::now() + Duration::from_secs(20)));
    let (one, other) = (THREAD, 3 * THREAD);
    assert!(mutex.try_lock(one));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let got = mutex.lock(other, until);
            mutex.unlock(other);
            got
        });
        while mutex.word.load(Relaxed) & PARKED == 0 {
            std::thread::yield_now();
        }
        // As if another waiter was woken whose thread does not run.
        mutex.word.fetch_or(WOKEN, Relaxed);
        while !waits.is_finished() {
            mutex.unlock(one);
            std::thread::yield_now();
            mutex.lock(one, until).expect("in time");
        }
        assert_eq!(waits.join().unwrap(), Ok(false));
    });
    mutex.unlock(one);
    assert_eq!(mutex.word.load(Relaxed) & !WAKE_PENDING, 0);
}

#[cfg(indent_loom)]
#[expect(unsafe_code, reason = "loom's cell checks exclusion")]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use crate::sync::queue::tests::model::{Model, hasty, patient};
    use crate::sync::raw_mutex::{Failed, LOCKED, OWNER, RawMutex};

    struct Counter<const STARVES: bool> {
        mutex: RawMutex<Model<STARVES>>,
        count: UnsafeCell<usize>,
    }

    // SAFETY: the cell checks exclusion itself; that is what the model is for.
    unsafe impl<const STARVES: bool> Sync for Counter<STARVES> {}
    // SAFETY: as above.
    unsafe impl<const STARVES: bool> Send for Counter<STARVES> {}

    impl<const STARVES: bool> Counter<STARVES> {
        fn new() -> Arc<Self> {
            Arc::new(Counter {
                mutex: RawMutex::new(),
                count: UnsafeCell::new(0),
            })
        }

        fn add_with_lock(&self) {
            // SAFETY: checked by loom's cell.
            self.count.with_mut(|n| unsafe { *n += 1 });
            self.mutex.unlock(0);
        }

        fn add(&self) {
            self.mutex
                .lock(0, patient)
                .expect("only the lock ends this wait");
            self.add_with_lock();
        }

        fn count(&self) -> usize {
            let word = self.mutex.word.load(loom::sync::atomic::Ordering::SeqCst);
            assert_eq!(word & (LOCKED | OWNER), 0, "free at the end");
            // SAFETY: checked by loom's cell.
            self.count.with(|n| unsafe { *n })
        }
    }

    fn two_add_twice<const STARVES: bool>() {
        let counter = Counter::<STARVES>::new();
        let other = thread::spawn({
            let counter = counter.clone();
            move || (0..2).for_each(|_| counter.add())
        });
        (0..2).for_each(|_| counter.add());
        other.join().unwrap();
        assert_eq!(counter.count(), 4);
    }

    #[test]
    fn loom_a_mutex_excludes_others_and_forgets_no_waiter() {
        loom::model(two_add_twice::<false>);
    }

    #[test]
    fn loom_a_mutex_that_is_handed_over_excludes_others_and_forgets_no_waiter() {
        loom::model(two_add_twice::<true>);
    }

    #[test]
    fn loom_three_callers_all_get_a_mutex() {
        loom::model(|| {
            let counter = Counter::<false>::new();
            let others = [(); 2].map(|()| {
                let counter = counter.clone();
                thread::spawn(move || counter.add())
            });
            counter.add();
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(counter.count(), 3);
        });
    }

    #[test]
    fn loom_a_mutex_that_wakes_two_excludes_others_and_forgets_no_waiter() {
        loom::model(|| {
            let counter = Counter::<true>::new();
            let others = [(); 2].map(|()| {
                let counter = counter.clone();
                thread::spawn(move || counter.add())
            });
            (0..2).for_each(|_| counter.add());
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(counter.count(), 4);
        });
    }

    #[test]
    fn loom_a_waiter_that_gives_up_leaves_the_others_waiting_correctly() {
        loom::model(|| {
            let counter = Counter::<true>::new();
            let hasty = thread::spawn({
                let counter = counter.clone();
                move || match counter.mutex.lock(0, hasty) {
                    Ok(_) => {
                        counter.add_with_lock();
                        1
                    }
                    Err(why) => {
                        assert_eq!(why, Failed::TimedOut);
                        0
                    }
                }
            });
            let other = thread::spawn({
                let counter = counter.clone();
                move || counter.add()
            });
            counter.add();
            other.join().unwrap();
            let got = hasty.join().unwrap();
            assert_eq!(counter.count(), 2 + got);
        });
    }
}
