//! One who sets or notifies and is stopped between two breaths; and the words modelled.

#[cfg(not(indent_loom))]
mod stopped {
    use std::time::Duration;

    use super::super::*;

    /// One more than are called in one breath.
    const CROWD: usize = 9;

    /// A crowd of threads waits, in the given time; then `stop`, by one who leaves off after the first breath: true if
    /// somebody is left. On a busy machine they are not all there at once in so short a time: then once more.
    fn crowd(
        came: impl Fn() -> u64,
        wait: impl Fn(Duration) -> bool + Sync,
        stop: impl Fn() -> bool,
    ) -> [bool; CROWD] {
        let mut time = Duration::from_millis(20);
        loop {
            let (all, told) = std::thread::scope(|scope| {
                let (before, wait) = (came(), &wait);
                let crowd = [(); CROWD].map(|()| scope.spawn(move || wait(time)));
                while came() < before + CROWD as u64 {
                    std::thread::yield_now();
                }
                (stop(), crowd.map(|one| one.join().unwrap()))
            });
            if all {
                return told;
            }
            time *= 2;
        }
    }

    #[test]
    fn a_word_for_one_is_not_spent_on_somebody_who_was_told_already() {
        let notify = Notify::new();
        let told = crowd(
            || notify.raw.queue.lock().state().tickets.came(),
            |_| {
                notify.notified();
                true
            },
            || {
                let mut queue = notify.raw.queue.lock();
                queue.state().tickets.tell_all();
                tickets::take_owed(&mut queue);
                drop(queue); // eight of nine
                notify.notify_one();
                true
            },
        );
        assert_eq!(told, [true; CROWD], "the ninth was called, too");
        let kept = notify.notified_timeout(Duration::ZERO);
        assert!(kept, "and the word was kept");
        assert!(!notify.notified_timeout(Duration::ZERO));
    }

    #[test]
    fn whoever_is_owed_a_word_has_got_it_though_its_time_is_over() {
        let notify = Notify::new();
        let told = crowd(
            || notify.raw.queue.lock().state().tickets.came(),
            |time| notify.notified_timeout(time),
            || {
                let mut queue = notify.raw.queue.lock();
                queue.state().tickets.tell_all();
                tickets::take_owed(&mut queue);
                !queue.is_empty()
            },
        );
        assert_eq!(told, [true; CROWD]);
    }

    #[test]
    fn a_wait_for_what_has_happened_says_so_though_its_time_is_over() {
        let event = Event::new();
        let told = crowd(
            || event.queue.lock().state().came(),
            |time| event.wait_timeout(time),
            || {
                let mut queue = event.queue.lock();
                queue.state().tell_all();
                event.is_set.store(true, Release);
                tickets::take_owed(&mut queue);
                let is_left = !queue.is_empty();
                drop(queue);
                event.reset(); // it has happened all the same
                is_left
            },
        );
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
