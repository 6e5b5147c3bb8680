//! The order of the list, and loom models of its protocol.

use super::*;

/// A waiter with a number.
#[cfg(not(indent_loom))]
struct Request {
    in_front: bool,
}

/// How many waiters have come, and how many have withdrawn.
#[cfg(not(indent_loom))]
#[derive(Default)]
struct Counts {
    came: usize,
    left: usize,
}

#[cfg(not(indent_loom))]
impl Plan<Counts, usize, Waiter> for Request {
    type Answer = ();

    fn look(&mut self, locked: &mut Locked<'_, Counts, usize, Waiter>, _: &mut usize) -> Look<()> {
        locked.state().came += 1;
        if self.in_front {
            Look::InFront
        } else {
            Look::Behind
        }
    }

    fn leave(&mut self, locked: &mut Locked<'_, Counts, usize, Waiter>) {
        locked.state().left += 1;
    }
}

#[cfg(not(indent_loom))]
fn until(soon: bool) -> Until {
    let deadline = soon.then(|| Instant::now() + Duration::from_millis(20));
    Until::cancellable(deadline, ParkReason::Park)
}

#[cfg(not(indent_loom))]
#[test]
fn waiters_are_taken_in_order_those_in_front_first_and_no_more_than_fit() {
    let queue = Queue::<Counts, usize>::new(Counts::default());
    std::thread::scope(|scope| {
        for number in 0..2 * MAX_BATCH {
            let queue = &queue;
            scope.spawn(move || {
                let in_front = number + 1 == 2 * MAX_BATCH;
                let waited = queue.wait(number, &until(false), &mut Request { in_front });
                assert!(matches!(waited, Waited::Notified(n) if n == number + 100));
            });
            while queue.lock().state().came <= number {
                std::thread::yield_now();
            }
        }
        let mut taken = Vec::new();
        let mut rounds = 0;
        loop {
            let mut locked = queue.lock();
            while let Some(number) = locked.take() {
                taken.push(*number);
                *number += 100;
            }
            rounds += 1;
            if !locked.finish() {
                break;
            }
        }
        let last = 2 * MAX_BATCH - 1;
        let expected: Vec<_> = std::iter::once(last).chain(0..last).collect();
        assert_eq!((taken, rounds), (expected, 2));
    });
}

#[cfg(not(indent_loom))]
#[test]
fn a_waiter_that_withdraws_from_the_middle_leaves_the_others_in_order() {
    let queue = Queue::<Counts, usize>::new(Counts::default());
    std::thread::scope(|scope| {
        for number in 0..5 {
            let queue = &queue;
            scope.spawn(move || {
                let leaves = number % 2 == 0;
                let waited = queue.wait(number, &until(leaves), &mut Request { in_front: false });
                assert_eq!(matches!(waited, Waited::TimedOut), leaves);
            });
            while queue.lock().state().came <= number {
                std::thread::yield_now();
            }
        }
        while queue.lock().state().left < 3 {
            std::thread::yield_now();
        }
        let mut locked = queue.lock();
        assert_eq!(locked.first().copied(), Some(1));
        assert_eq!(locked.take().copied(), Some(1));
        assert_eq!(locked.take().copied(), Some(3));
        assert!(locked.take().is_none() && locked.is_empty());
    });
}

#[cfg(indent_loom)]
pub(crate) mod model {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    /// A waiter of a model. Its deadline passes as soon as it waits. With `STARVES` it starves
    /// after its first sleep.
    pub(crate) struct Model<const STARVES: bool>(Arc<(Mutex<bool>, Condvar)>);

    // SAFETY: the flag is set under a lock, and read under it.
    unsafe impl<const STARVES: bool> Waits for Model<STARVES> {
        type DeferredDrop = ();
        const SPINS: u32 = 0;
        const BATCH: usize = 1;
        const PASSES: usize = 1;

        fn caller() -> Self {
            Model(Arc::new((Mutex::new(false), Condvar::new())))
        }

        fn park(&self, until: &Until) -> Woken {
            let mut notified = self.0.0.lock().unwrap();
            if until.deadline.is_some() {
                return if *notified {
                    Woken::ByWake
                } else {
                    Woken::ByDeadline
                };
            }
            while !*notified {
                notified = self.0.1.wait(notified).unwrap();
            }
            Woken::ByWake
        }

        fn was_notified(&self) -> bool {
            *self.0.0.lock().unwrap()
        }

        unsafe fn notify(_: &PreemptGuard, waiter: *const Self) {
            // SAFETY: by the caller's promise the waiter is alive until this call.
            let shared = unsafe { (*waiter).0.clone() };
            *shared.0.lock().unwrap() = true;
            shared.1.notify_one();
        }

        fn starves(_: Instant) -> bool {
            STARVES
        }
    }

    pub(crate) fn patient() -> Until {
        Until::uncancelled(ParkReason::Park)
    }

    pub(crate) fn hasty() -> Until {
        Until::cancellable(Some(Instant::now()), ParkReason::Park)
    }

    /// Waits for the single value there is.
    struct Want;

    impl Plan<bool, (), Model<false>> for Want {
        type Answer = ();

        fn look(
            &mut self,
            locked: &mut Locked<'_, bool, (), Model<false>>,
            (): &mut (),
        ) -> Look<()> {
            if std::mem::take(locked.state()) {
                return Look::Done(());
            }
            Look::Behind
        }
    }

    #[test]
    fn loom_what_is_handed_to_a_waiter_arrives_or_stays() {
        loom::model(|| {
            let queue = Arc::new(Queue::<bool, (), Model<false>>::new(false));
            let takers = [hasty(), hasty()].map(|until| {
                let queue = queue.clone();
                loom::thread::spawn(move || {
                    let waited = queue.wait((), &until, &mut Want);
                    usize::from(matches!(waited, Waited::Done(()) | Waited::Notified(())))
                })
            });
            let mut locked = queue.lock();
            if locked.take().is_none() {
                *locked.state() = true;
            }
            drop(locked);
            let got: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
            let mut locked = queue.lock();
            assert!(locked.is_empty(), "no waiter is left");
            assert_eq!(got + usize::from(*locked.state()), 1, "L1");
        });
    }

    #[test]
    fn loom_no_waiter_is_forgotten() {
        loom::model(|| {
            let queue = Arc::new(Queue::<bool, (), Model<false>>::new(false));
            let taker = loom::thread::spawn({
                let queue = queue.clone();
                move || {
                    let waited = queue.wait((), &patient(), &mut Want);
                    assert!(matches!(waited, Waited::Done(()) | Waited::Notified(())));
                }
            });
            let mut locked = queue.lock();
            if locked.take().is_none() {
                *locked.state() = true;
            }
            drop(locked);
            taker.join().unwrap();
        });
    }
}
