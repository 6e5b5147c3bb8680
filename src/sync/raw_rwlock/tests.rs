//! Readers and writers against a sequential model, and loom models of the protocol.

#[cfg(not(indent_loom))]
mod properties {
    use proptest::prelude::*;

    use crate::sync::raw_rwlock::{Access, RawRwLock};

    #[derive(Clone, Debug)]
    enum Step {
        Lock(Access),
        Unlock,
        Downgrade,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Lock(Access::Read)),
            2 => Just(Step::Lock(Access::Write)),
            3 => Just(Step::Unlock),
            1 => Just(Step::Downgrade),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn readers_and_a_writer_are_those_of_two_numbers(steps in steps()) {
            let lock = RawRwLock::<crate::sched::block::wake::Waiter>::new();
            let (mut readers, mut writers) = (0, 0);
            for step in steps {
                match step {
                    Step::Lock(access) => {
                        let free = writers == 0 && (access == Access::Read || readers == 0);
                        prop_assert_eq!(lock.try_lock(access), free);
                        let count = if access == Access::Read { &mut readers } else { &mut writers };
                        *count += usize::from(free);
                    }
                    Step::Unlock if writers > 0 => {
                        lock.unlock_write();
                        writers = 0;
                    }
                    Step::Unlock if readers > 0 => {
                        lock.unlock_read();
                        readers -= 1;
                    }
                    Step::Downgrade if writers > 0 => {
                        lock.downgrade();
                        (readers, writers) = (1, 0);
                    }
                    Step::Unlock | Step::Downgrade => {}
                }
            }
        }
    }
}

#[cfg(indent_loom)]
#[expect(unsafe_code, reason = "loom's cell checks exclusion")]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use crate::sync::queue::tests::model::{Model, hasty, patient};
    use crate::sync::raw_rwlock::{Access, RawRwLock};

    struct Shared {
        lock: RawRwLock<Model<false>>,
        value: UnsafeCell<usize>,
    }

    // SAFETY: the cell checks exclusion itself; that is what the model is for.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    impl Shared {
        fn new() -> Arc<Self> {
            Arc::new(Shared {
                lock: RawRwLock::new(),
                value: UnsafeCell::new(0),
            })
        }

        fn write(&self) {
            self.lock
                .lock(Access::Write, patient)
                .expect("only the lock ends this wait");
            // SAFETY: checked by loom's cell.
            self.value.with_mut(|n| unsafe { *n += 1 });
            self.lock.unlock_write();
        }

        fn read(&self) -> usize {
            self.lock
                .lock(Access::Read, patient)
                .expect("only the lock ends this wait");
            // SAFETY: checked by loom's cell.
            let value = self.value.with(|n| unsafe { *n });
            self.lock.unlock_read();
            value
        }
    }

    #[test]
    fn loom_readers_and_writers_exclude_each_other_and_no_waiter_is_forgotten() {
        loom::model(|| {
            let shared = Shared::new();
            let reader = thread::spawn({
                let shared = shared.clone();
                move || assert!(shared.read() <= 2)
            });
            let writer = thread::spawn({
                let shared = shared.clone();
                move || shared.write()
            });
            shared.write();
            reader.join().unwrap();
            writer.join().unwrap();
            assert_eq!(shared.read(), 2);
        });
    }

    #[test]
    fn loom_a_writer_that_gives_up_lets_the_readers_behind_it_in() {
        loom::model(|| {
            let shared = Shared::new();
            shared.lock.lock(Access::Read, patient).expect("it is free");
            let writer = thread::spawn({
                let shared = shared.clone();
                move || assert!(shared.lock.lock(Access::Write, hasty).is_err())
            });
            assert_eq!(shared.read(), 0); // although another reads, and a writer may be waiting
            writer.join().unwrap();
            shared.lock.unlock_read();
        });
    }
}
