//! The list in order, and its protocol modelled.

use super::*;

/// Waits for a turn, with a name.
#[cfg(not(indent_loom))]
struct Turn {
    in_front: bool,
}

/// So many have come, and so many have left.
#[cfg(not(indent_loom))]
#[derive(Default)]
struct Crowd {
    came: usize,
    left: usize,
}

#[cfg(not(indent_loom))]
impl Plan<Crowd, usize, Waiter> for Turn {
    type Answer = ();

    fn look(&mut self, locked: &mut Locked<'_, Crowd, usize, Waiter>, _: &mut usize) -> Look<()> {
        locked.state().came += 1;
        if self.in_front {
            Look::InFront
        } else {
            Look::Behind
        }
    }

    fn leave(&mut self, locked: &mut Locked<'_, Crowd, usize, Waiter>) {
        locked.state().left += 1;
    }
}

#[cfg(not(indent_loom))]
fn until(soon: bool) -> Until {
    let deadline = soon.then(|| Instant::now() + Duration::from_millis(20));
    Until::open(deadline, ParkReason::Park)
}

#[cfg(not(indent_loom))]
#[test]
fn waiters_are_taken_in_order_those_in_front_first_and_no_more_than_fit() {
    let queue = Queue::<Crowd, usize>::new(Crowd::default());
    std::thread::scope(|scope| {
        for name in 0..2 * BATCH {
            let queue = &queue;
            scope.spawn(move || {
                let in_front = name + 1 == 2 * BATCH;
                let waited = queue.wait(name, &until(false), &mut Turn { in_front });
                assert!(matches!(waited, Waited::Called(n) if n == name + 100));
            });
            while queue.lock().state().came <= name {
                std::thread::yield_now();
            }
        }
        let mut taken = Vec::new();
        let mut rounds = 0;
        loop {
            let mut locked = queue.lock();
            while let Some(name) = locked.take() {
                taken.push(*name);
                *name += 100;
            }
            rounds += 1;
            if !locked.finish() {
                break;
            }
        }
        let last = 2 * BATCH - 1;
        let expected: Vec<_> = std::iter::once(last).chain(0..last).collect();
        assert_eq!((taken, rounds), (expected, 2));
    });
}

#[cfg(not(indent_loom))]
#[test]
fn whoever_leaves_from_the_middle_leaves_the_others_in_order() {
    let queue = Queue::<Crowd, usize>::new(Crowd::default());
    std::thread::scope(|scope| {
        for name in 0..5 {
            let queue = &queue;
            scope.spawn(move || {
                let leaves = name % 2 == 0;
                let waited = queue.wait(name, &until(leaves), &mut Turn { in_front: false });
                assert_eq!(matches!(waited, Waited::TimedOut), leaves);
            });
            while queue.lock().state().came <= name {
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

    /// A waiter of a model. Its deadline passes as soon as it waits. `STARVES`: after its first sleep.
    pub(crate) struct Model<const STARVES: bool>(Arc<(Mutex<bool>, Condvar)>);

    // SAFETY: the flag is set under a lock, and read under it.
    unsafe impl<const STARVES: bool> Waits for Model<STARVES> {
        type DeferredDrop = ();
        const SPINS: u32 = 0;
        const BREATH: usize = 1;
        const PASSES: usize = 1;

        fn caller() -> Self {
            Model(Arc::new((Mutex::new(false), Condvar::new())))
        }

        fn park(&self, until: &Until) -> Woken {
            let mut called = self.0.0.lock().unwrap();
            if until.deadline.is_some() {
                return if *called {
                    Woken::ByWake
                } else {
                    Woken::ByDeadline
                };
            }
            while !*called {
                called = self.0.1.wait(called).unwrap();
            }
            Woken::ByWake
        }

        fn was_notified(&self) -> bool {
            *self.0.0.lock().unwrap()
        }

        unsafe fn notify(_: &PreemptGuard, waiter: *const Self) {
            // SAFETY: by the caller's promise it is there until it is called.
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
        Until::open(Some(Instant::now()), ParkReason::Park)
    }

    /// Waits for the one thing there is.
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
                    usize::from(matches!(waited, Waited::Done(()) | Waited::Called(())))
                })
            });
            let mut locked = queue.lock();
            if locked.take().is_none() {
                *locked.state() = true;
            }
            drop(locked);
            let got: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
            let mut locked = queue.lock();
            assert!(locked.is_empty(), "nobody is left");
            assert_eq!(got + usize::from(*locked.state()), 1, "L1");
        });
    }

    #[test]
    fn loom_nobody_who_waits_is_forgotten() {
        loom::model(|| {
            let queue = Arc::new(Queue::<bool, (), Model<false>>::new(false));
            let taker = loom::thread::spawn({
                let queue = queue.clone();
                move || {
                    let waited = queue.wait((), &patient(), &mut Want);
                    assert!(matches!(waited, Waited::Done(()) | Waited::Called(())));
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
