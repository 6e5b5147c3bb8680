//! Permits against a sequential model, and loom models of the protocol.

#[cfg(not(indent_loom))]
mod properties {
    use proptest::prelude::*;

    use crate::sync::raw_semaphore::{RawSemaphore, Refused};

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Give(usize),
        Forget(usize),
        Close,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5usize).prop_map(Step::Take),
            4 => (0..5usize).prop_map(Step::Give),
            1 => (0..5usize).prop_map(Step::Forget),
            1 => Just(Step::Close),
        ];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn permits_are_those_of_a_number(start in 0..5usize, steps in steps()) {
            let semaphore = RawSemaphore::<crate::sched::block::wake::Waiter>::new(start);
            let (mut permits, mut closed) = (start, false);
            for step in steps {
                match step {
                    Step::Take(n) => {
                        let expected = match () {
                            () if closed => Err(Refused::Closed),
                            () if n > permits => Err(Refused::TooFew),
                            () => Ok(()),
                        };
                        prop_assert_eq!(semaphore.try_take(n), expected);
                        permits -= if expected.is_ok() { n } else { 0 };
                    }
                    Step::Give(n) => {
                        semaphore.give(n);
                        permits += n;
                    }
                    Step::Forget(n) => {
                        prop_assert_eq!(semaphore.forget(n), n.min(permits));
                        permits -= n.min(permits);
                    }
                    Step::Close => {
                        semaphore.close();
                        closed = true;
                    }
                }
                prop_assert_eq!(semaphore.available(), permits);
                prop_assert_eq!(semaphore.is_closed(), closed);
            }
        }
    }
}

#[cfg(indent_loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use crate::sync::queue::tests::model::{Model, hasty};
    use crate::sync::raw_semaphore::RawSemaphore;

    type Semaphore = RawSemaphore<Model<false>>;

    fn spawn(semaphore: &Arc<Semaphore>, permits: usize) -> thread::JoinHandle<()> {
        let semaphore = semaphore.clone();
        thread::spawn(move || {
            semaphore
                .take(permits, || None)
                .expect("only permits end this wait");
            semaphore.give(permits);
        })
    }

    #[test]
    fn loom_permits_reach_the_waiters_and_none_is_lost() {
        loom::model(|| {
            let semaphore = Arc::new(Semaphore::new(1));
            let others = [spawn(&semaphore, 1), spawn(&semaphore, 2)];
            semaphore.give(1);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(semaphore.available(), 2);
        });
    }

    #[test]
    fn loom_a_large_request_that_gives_up_lets_the_next_proceed() {
        loom::model(|| {
            let semaphore = Arc::new(Semaphore::new(1));
            let heavy = thread::spawn({
                let semaphore = semaphore.clone();
                move || semaphore.take(2, || hasty().deadline).is_ok()
            });
            let light = spawn(&semaphore, 1);
            semaphore
                .take(1, || None)
                .expect("only permits end this wait");
            semaphore.give(1);
            light.join().unwrap();
            assert!(!heavy.join().unwrap());
            assert_eq!(semaphore.available(), 1);
        });
    }

    #[test]
    fn loom_closing_notifies_the_waiters() {
        loom::model(|| {
            let semaphore = Arc::new(Semaphore::new(0));
            let waits = thread::spawn({
                let semaphore = semaphore.clone();
                move || assert!(semaphore.take(1, || None).is_err())
            });
            semaphore.close();
            waits.join().unwrap();
        });
    }
}
