//! The state word, by hand and under loom.

use super::*;

#[cfg(not(indent_loom))]
mod by_hand {
    use super::*;

    fn running() -> State {
        State::runnable()
    }

    fn park(state: &State, cancel: Cancel) -> u32 {
        match state.begin_park(cancel, Signal::Unpark) {
            Begin::Parking(n) => n,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wake_before_the_park_is_kept() {
        let state = running();
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(
            state.begin_park(Cancel::Enabled, Signal::Unpark),
            Begin::Woken(Woken::ByWake)
        );
        let _ = park(&state, Cancel::Enabled); // the token was spent
    }

    #[test]
    fn the_second_wake_of_one_park_waits_for_the_next() {
        let state = running();
        park(&state, Cancel::Enabled);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.wake(Signal::Unpark), Notify::Enqueue);
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(state.end_park(), Woken::ByWake);
        assert_eq!(
            state.begin_park(Cancel::Enabled, Signal::Unpark),
            Begin::Woken(Woken::ByWake)
        );
    }

    #[test]
    fn a_deadline_of_an_earlier_park_does_nothing() {
        let state = running();
        let first = park(&state, Cancel::Enabled);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.wake(Signal::Unpark), Notify::Enqueue);
        let second = park(&state, Cancel::Enabled);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.expire(first), Notify::Nothing);
        assert_eq!(state.expire(second), Notify::Enqueue);
        assert_eq!(state.end_park(), Woken::ByDeadline);
    }

    #[test]
    fn a_cancel_request_ends_open_parks_at_once_and_for_ever() {
        let state = running();
        state.request_cancel();
        for _ in 0..2 {
            assert_eq!(
                state.begin_park(Cancel::Enabled, Signal::Unpark),
                Begin::Woken(Woken::ByCancel)
            );
        }
    }

    #[test]
    fn a_deaf_park_hears_only_the_wake() {
        let state = running();
        state.request_cancel();
        park(&state, Cancel::Disabled);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.deliver_cancel(), Notify::Nothing);
        assert_eq!(state.wake(Signal::Unpark), Notify::Enqueue);
    }

    #[test]
    fn a_later_park_hears_the_delivery_not_the_request() {
        let state = running();
        state.request_cancel();
        park(&state, Cancel::Deferred);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.deliver_cancel(), Notify::Enqueue);
        assert_eq!(state.end_park(), Woken::ByCancel);
    }

    #[test]
    fn an_unpark_during_a_join_is_kept_for_the_next_park() {
        let state = running();
        let begun = state.begin_park(Cancel::Enabled, Signal::Notify);
        assert_eq!(begun, Begin::Parking(1));
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(state.commit_park(), Commit::Parked);
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(state.wake(Signal::Notify), Notify::Enqueue);
        assert_eq!(state.end_park(), Woken::ByWake);
        let kept = state.begin_park(Cancel::Enabled, Signal::Unpark);
        assert_eq!(kept, Begin::Woken(Woken::ByWake));
        park(&state, Cancel::Enabled);
    }

    #[test]
    fn a_call_before_the_park_is_kept_beside_an_unpark() {
        let state = running();
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(state.wake(Signal::Notify), Notify::Nothing);
        for signal in [Signal::Notify, Signal::Unpark] {
            let kept = state.begin_park(Cancel::Enabled, signal);
            assert_eq!(kept, Begin::Woken(Woken::ByWake));
        }
        let begun = state.begin_park(Cancel::Enabled, Signal::Notify);
        assert_eq!(begun, Begin::Parking(1));
        assert_eq!(state.wake(Signal::Notify), Notify::Nothing);
        assert_eq!(state.commit_park(), Commit::Resume);
        assert_eq!(state.end_park(), Woken::ByWake);
    }

    #[test]
    fn nothing_wakes_a_fiber_that_is_over() {
        let state = running();
        state.finish();
        assert_eq!(state.wake(Signal::Unpark), Notify::Nothing);
        assert_eq!(state.phase(), Phase::Done);
    }
}

#[cfg(indent_loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use loom::thread;

    /// A fiber without a stack: who gets the duty to enqueue puts it into `queue`, a count.
    struct Model {
        state: State,
        queued: AtomicUsize,
        data: AtomicUsize,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let state = State::runnable();
            Arc::new(Model {
                state,
                queued: AtomicUsize::new(0),
                data: AtomicUsize::new(0),
            })
        }

        fn owe(&self, notify: Notify) {
            if notify == Notify::Enqueue {
                self.queued.fetch_add(1, AcqRel);
            }
        }

        /// Parks once; `Err` if it stays parked for good (the model's end looks at that).
        fn park(&self, cancel: Cancel, armed: impl FnOnce(u32)) -> Woken {
            match self.state.begin_park(cancel, Signal::Unpark) {
                Begin::Woken(cause) => cause,
                Begin::Parking(number) => {
                    armed(number);
                    if self.state.commit_park() == Commit::Parked {
                        while self.queued.load(Acquire) == 0 {
                            thread::yield_now();
                        }
                        assert_eq!(self.queued.fetch_sub(1, AcqRel), 1, "I1: queued twice");
                    }
                    self.state.end_park()
                }
            }
        }
    }

    #[test]
    fn loom_a_wake_is_never_lost_and_carries_its_data() {
        loom::model(|| {
            let fiber = Model::new();
            let waker = {
                let fiber = fiber.clone();
                thread::spawn(move || {
                    fiber.data.store(7, Relaxed);
                    fiber.owe(fiber.state.wake(Signal::Unpark));
                })
            };
            assert_eq!(fiber.park(Cancel::Enabled, |_| ()), Woken::ByWake);
            assert_eq!(fiber.data.load(Relaxed), 7, "the wake released it");
            waker.join().unwrap();
        });
    }

    #[test]
    fn loom_two_wakes_end_two_parks_or_one() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let fiber = Model::new();
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let fiber = fiber.clone();
                    thread::spawn(move || fiber.owe(fiber.state.wake(Signal::Unpark)))
                })
                .collect();
            assert_eq!(fiber.park(Cancel::Enabled, |_| ()), Woken::ByWake);
            for waker in wakers {
                waker.join().unwrap();
            }
            // Either both fell into one token, or the second waits for the next park.
            assert_eq!(fiber.queued.load(Relaxed), 0);
        });
    }

    #[test]
    fn loom_wake_and_deadline_race_and_one_wins() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let fiber = Model::new();
            let (f, g) = (fiber.clone(), fiber.clone());
            let waker = thread::spawn(move || f.owe(f.state.wake(Signal::Unpark)));
            let mut timer = None;
            let cause = fiber.park(Cancel::Enabled, |number| {
                timer = Some(thread::spawn(move || g.owe(g.state.expire(number))));
            });
            waker.join().unwrap();
            let armed = timer.is_some();
            if let Some(timer) = timer {
                timer.join().unwrap();
            }
            assert_eq!(fiber.queued.load(Relaxed), 0, "I1: a second enqueue");
            match cause {
                Woken::ByWake => {}
                Woken::ByDeadline => {
                    assert!(armed);
                    // I2: the wake that lost is kept.
                    assert_eq!(
                        fiber.state.begin_park(Cancel::Enabled, Signal::Unpark),
                        Begin::Woken(Woken::ByWake)
                    );
                }
                Woken::ByCancel => panic!("nobody cancelled"),
            }
        });
    }

    #[test]
    fn loom_cancel_and_wake_race_and_one_wins() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let fiber = Model::new();
            let (f, g) = (fiber.clone(), fiber.clone());
            let waker = thread::spawn(move || f.owe(f.state.wake(Signal::Unpark)));
            let canceller = thread::spawn(move || {
                g.state.request_cancel();
                g.owe(g.state.deliver_cancel());
            });
            let cause = fiber.park(Cancel::Enabled, |_| ());
            waker.join().unwrap();
            canceller.join().unwrap();
            assert_eq!(fiber.queued.load(Relaxed), 0, "I1: a second enqueue");
            match cause {
                Woken::ByCancel => assert_eq!(
                    fiber.state.begin_park(Cancel::Enabled, Signal::Unpark),
                    Begin::Woken(Woken::ByWake),
                    "I2: the wake that lost is kept"
                ),
                Woken::ByWake => assert_eq!(
                    fiber.state.begin_park(Cancel::Enabled, Signal::Unpark),
                    Begin::Woken(Woken::ByCancel),
                    "the request stays"
                ),
                Woken::ByDeadline => panic!("no deadline"),
            }
        });
    }
}
