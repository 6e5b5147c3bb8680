//! One who sets or notifies and is stopped between two breaths; and the words modelled.

#[cfg(not(indent_loom))]
mod stopped {
    use std::time::{Duration, Instant};

    use super::super::*;

    /// One more than are called in one breath.
    const CROWD: usize = 9;

    fn until(deadline: Option<Instant>) -> Until {
        Until::open(deadline, ParkReason::Event)
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(100))
    }

    /// `wait` by a crowd of threads, one after the other; then `stop`, by one who leaves off after the first breath.
    fn crowd<T: Send>(
        came: impl Fn() -> u64,
        wait: impl Fn() -> T + Sync,
        stop: impl FnOnce(),
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let before = came();
            let wait = &wait;
            let crowd: Vec<_> = (0..CROWD).map(|_| scope.spawn(wait)).collect();
            while came() < before + CROWD as u64 {
                std::thread::yield_now();
            }
            stop();
            crowd.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_word_for_one_is_not_spent_on_somebody_who_was_told_already() {
        let notify = Notify::new();
        let came = || notify.raw.queue.lock().state().tickets.came();
        let told = crowd(
            came,
            || notify.notified(),
            || {
                let mut queue = notify.raw.queue.lock();
                queue.state().tickets.tell_all();
                tickets::take_owed(&mut queue);
                drop(queue); // eight of nine
                notify.notify_one();
            },
        );
        assert_eq!(told.len(), CROWD, "the ninth was called, too");
        assert!(
            notify.notified_timeout(Duration::ZERO),
            "and the word was kept"
        );
        assert!(!notify.notified_timeout(Duration::ZERO));
    }

    #[test]
    fn whoever_is_owed_a_word_has_got_it_though_its_time_is_over() {
        let notify = RawNotify::<Waiter>::new();
        let came = || notify.queue.lock().state().tickets.came();
        let wait = || {
            let (waited, owed) = notify.wait(&until(soon()));
            tickets::happened(waited, owed)
        };
        let told = crowd(came, wait, || {
            let mut queue = notify.queue.lock();
            queue.state().tickets.tell_all();
            tickets::take_owed(&mut queue);
        });
        assert_eq!(told, [true; CROWD]);
    }

    #[test]
    fn a_wait_for_what_has_happened_says_so_though_its_time_is_over() {
        let event = Event::new();
        let came = || event.queue.lock().state().came();
        let wait = || event.wait_timeout(Duration::from_millis(100));
        let told = crowd(came, wait, || {
            let mut queue = event.queue.lock();
            queue.state().tell_all();
            event.is_set.store(true, Release);
            tickets::take_owed(&mut queue);
            drop(queue);
            event.reset(); // it has happened all the same
        });
        assert_eq!(told, [true; CROWD]);
    }
}

#[cfg(indent_loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use crate::sync::event::RawNotify;
    use crate::sync::queue::Waited;
    use crate::sync::queue::tests::model::{Model, hasty, patient};

    #[test]
    fn loom_a_word_arrives_or_is_kept_beside_one_for_all() {
        loom::model(|| {
            let notify = Arc::new(RawNotify::<Model<false>>::new());
            let waits = thread::spawn({
                let notify = notify.clone();
                move || {
                    let (waited, owed) = notify.wait(&hasty());
                    owed || !matches!(waited, Waited::TimedOut)
                }
            });
            let all = thread::spawn({
                let notify = notify.clone();
                move || notify.notify_waiters()
            });
            notify.notify_one();
            all.join().unwrap();
            let got = waits.join().unwrap();
            let kept = matches!(notify.wait(&hasty()).0, Waited::Done(()));
            assert!(got || kept, "it is not lost");
            let again = matches!(notify.wait(&hasty()).0, Waited::Done(()));
            assert!(!again, "nor doubled");
        });
    }

    #[test]
    fn loom_two_who_wait_get_a_word_each() {
        loom::model(|| {
            let notify = Arc::new(RawNotify::<Model<false>>::new());
            let first = thread::spawn({
                let notify = notify.clone();
                move || notify.wait(&patient()).1
            });
            notify.notify_one();
            first.join().unwrap();
            let second = thread::spawn({
                let notify = notify.clone();
                move || notify.wait(&patient()).1
            });
            notify.notify_one();
            second.join().unwrap();
        });
    }
}
