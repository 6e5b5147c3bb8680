//! A notifier that is interrupted between two batches, and loom models of notifications.

#[cfg(not(indent_loom))]
mod stopped {
    use std::time::Duration;

    use super::super::*;

    /// One more than fit in a batch.
    const WAITERS: usize = 9;

    /// Lets many threads wait for the given time, and calls `stop`, which stops after the first
    /// batch and returns whether waiters are left. On a busy machine the threads may not all wait
    /// at once in so short a time; then it repeats with more time.
    fn wait_in_many_threads(
        issued: impl Fn() -> u64,
        wait: impl Fn(Duration) -> bool + Sync,
        stop: impl Fn() -> bool,
    ) -> [bool; WAITERS] {
        let mut time = Duration::from_millis(20);
        loop {
            let (all, results) = std::thread::scope(|scope| {
                let (before, wait) = (issued(), &wait);
                let threads = [(); WAITERS].map(|()| scope.spawn(move || wait(time)));
                while issued() < before + WAITERS as u64 {
                    std::thread::yield_now();
                }
                (stop(), threads.map(|one| one.join().unwrap()))
            });
            if all {
                return results;
            }
            time *= 2;
        }
    }

    #[test]
    fn a_notification_for_one_is_not_spent_on_a_waiter_that_is_owed_one() {
        let notify = Notify::new();
        let results = wait_in_many_threads(
            || notify.raw.queue.lock().state().tickets.issued(),
            |_| {
                notify.notified();
                true
            },
            || {
                let mut queue = notify.raw.queue.lock();
                queue.state().tickets.owe_all();
                tickets::take_owed(&mut queue);
                drop(queue); // eight of nine
                notify.notify_one();
                true
            },
        );
        assert_eq!(results, [true; WAITERS], "the ninth was notified, too");
        let kept = notify.notified_timeout(Duration::ZERO);
        assert!(kept, "and the notification was kept");
        assert!(!notify.notified_timeout(Duration::ZERO));
    }

    #[test]
    fn a_waiter_that_is_owed_a_notification_has_got_it_after_its_deadline() {
        let notify = Notify::new();
        let results = wait_in_many_threads(
            || notify.raw.queue.lock().state().tickets.issued(),
            |time| notify.notified_timeout(time),
            || {
                let mut queue = notify.raw.queue.lock();
                queue.state().tickets.owe_all();
                tickets::take_owed(&mut queue);
                !queue.is_empty()
            },
        );
        assert_eq!(results, [true; WAITERS]);
    }

    #[test]
    fn a_wait_for_an_event_that_was_set_succeeds_after_its_deadline() {
        let event = Event::new();
        let results = wait_in_many_threads(
            || event.queue.lock().state().issued(),
            |time| event.wait_timeout(time),
            || {
                let mut queue = event.queue.lock();
                queue.state().owe_all();
                event.is_set.store(true, Release);
                tickets::take_owed(&mut queue);
                let is_left = !queue.is_empty();
                drop(queue);
                event.reset(); // the waiters are owed a notification all the same
                is_left
            },
        );
        assert_eq!(results, [true; WAITERS]);
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
    fn loom_a_notification_arrives_or_is_kept_beside_one_for_all() {
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
    fn loom_two_waiters_get_a_notification_each() {
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
