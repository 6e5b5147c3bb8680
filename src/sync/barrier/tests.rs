//! Loom models of the rounds.

#[cfg(indent_loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use crate::sync::barrier::{Ended, Raw};
    use crate::sync::queue::tests::model::{Model, hasty, patient};

    type Barrier = Raw<Model<false>>;

    fn leads(barrier: &Barrier) -> usize {
        match barrier.wait(&patient()) {
            Ended::Leads => 1,
            other => {
                assert_eq!(other, Ended::Complete);
                0
            }
        }
    }

    #[test]
    fn loom_a_round_of_more_than_one_batch_is_complete_with_one_leader() {
        loom::model(|| {
            let barrier = Arc::new(Barrier::new(3));
            let others = [(); 2].map(|()| {
                let barrier = barrier.clone();
                thread::spawn(move || leads(&barrier))
            });
            let own = leads(&barrier);
            let leaders: usize = others.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(own + leaders, 1);
        });
    }

    #[test]
    fn loom_rounds_follow_each_other() {
        loom::model(|| {
            let barrier = Arc::new(Barrier::new(2));
            let other = thread::spawn({
                let barrier = barrier.clone();
                move || leads(&barrier) + leads(&barrier)
            });
            let own = leads(&barrier) + leads(&barrier);
            assert_eq!(own + other.join().unwrap(), 2);
        });
    }

    #[test]
    fn loom_a_caller_that_leaves_a_barrier_does_not_count() {
        loom::model(|| {
            let barrier = Arc::new(Barrier::new(2));
            let other = thread::spawn({
                let barrier = barrier.clone();
                move || match barrier.wait(&hasty()) {
                    Ended::TimedOut => leads(&barrier),
                    Ended::Leads => 1,
                    ended => {
                        assert_eq!(ended, Ended::Complete);
                        0
                    }
                }
            });
            assert_eq!(leads(&barrier) + other.join().unwrap(), 1);
        });
    }
}
