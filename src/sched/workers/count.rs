//! The number of workers, which can change while they run.
//!
//! The table of workers has room for as many as there can ever be. Workers from the *allowed*
//! number on are in excess: the holder of one empties its queues into the global one, gives the
//! worker up and *retires* it. No thread holds a retired worker. The thread that claims its bit
//! *revives* it, and then owes it a carrier. Fibers do not notice: those that were queued at the
//! worker are in the global queue, and any other worker goes to the thread of a bound fiber (I10).
//!
//! - **Lower**: 1 store the number, 2 fence, 3 notify the sleeping workers in excess. An excess
//!   worker looks at the number between announcing its sleep and sleeping, so one of the two sees
//!   the other.
//! - **Retire**: 1 set the bit, 2 fence, 3 look at the number again.
//! - **Raise**: 1 store the number, 2 fence, 3 claim the bits below it. Of a thread that retires
//!   and one that raises, one sees the other, and the bit decides which of them revives the worker.
//!
//! **I12** A worker is held by one carrier, in one thread's hands, or retired. A worker below the
//! allowed number does not stay retired while a thread is available.
//!
//! A retired worker keeps its timers. The first worker, which never retires, looks after them.

use crate::util::bitmap::Bitmap;
use crate::util::loom::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
    fence,
};

pub(crate) struct Count {
    allowed: AtomicUsize,
    retired: Bitmap,
    /// Workers from this number on are retired and have nothing left, so no thread looks at them.
    /// Written by one thread at a time.
    present: AtomicUsize,
    /// The largest number of workers there was at once.
    ever: AtomicUsize,
}

impl Count {
    /// All workers below `now` are about to be given to carriers; the others are retired.
    pub(crate) fn new(capacity: usize, now: usize) -> Self {
        let retired = Bitmap::new(capacity);
        (now..capacity).for_each(|index| assert!(retired.set(index)));
        Count {
            allowed: AtomicUsize::new(now),
            retired,
            present: AtomicUsize::new(now),
            ever: AtomicUsize::new(now),
        }
    }

    /// How many workers there should be.
    #[inline]
    pub(crate) fn allowed(&self) -> usize {
        self.allowed.load(Relaxed)
    }

    /// Where the table ends for threads that look through it.
    #[inline]
    pub(crate) fn present(&self) -> usize {
        self.present.load(Relaxed)
    }

    pub(crate) fn ever(&self) -> usize {
        self.ever.load(Relaxed)
    }

    pub(crate) fn retired(&self) -> usize {
        self.retired.len()
    }

    #[inline]
    pub(crate) fn is_excess(&self, worker: usize) -> bool {
        worker >= self.allowed.load(SeqCst)
    }

    pub(crate) fn is_retired(&self, worker: usize) -> bool {
        self.retired.contains(worker)
    }

    /// Sets the allowed number: the first step of a change, on one thread at a time.
    pub(crate) fn allow(&self, workers: usize) {
        self.present.fetch_max(workers, SeqCst);
        self.ever.fetch_max(workers, SeqCst);
        self.allowed.store(workers, SeqCst);
        fence(SeqCst);
    }

    /// Whether every allowed worker is in service and the table has been trimmed.
    pub(crate) fn is_complete(&self) -> bool {
        let allowed = self.allowed();
        self.present() == allowed && (0..allowed).all(|worker| !self.is_retired(worker))
    }

    /// Claims a retired worker to revive: the caller owes it a carrier.
    #[must_use]
    pub(crate) fn revive(&self) -> Option<usize> {
        (0..self.allowed.load(SeqCst)).find(|&worker| self.retired.claim(worker))
    }

    /// Retires a worker that the caller has given up.
    ///
    /// True if the worker is wanted again: the caller then has to place it.
    #[must_use]
    pub(crate) fn retire(&self, worker: usize) -> bool {
        loop {
            self.retired.set(worker);
            fence(SeqCst);
            if self.is_excess(worker) || !self.retired.claim(worker) {
                return false;
            }
            // The number may have changed again and the table be shorter already: then the worker
            // must not stay in service.
            if !self.is_excess(worker) {
                return true;
            }
        }
    }

    /// Retires a revived worker again for which no carrier was available.
    pub(crate) fn stay_retired(&self, worker: usize) {
        self.retired.set(worker);
    }

    /// Shortens the table for threads that look through it. Called by the thread that changes the
    /// number.
    pub(crate) fn trim(&self, has_something_left: impl Fn(usize) -> bool) {
        let mut present = self.present();
        while present > self.allowed()
            && self.is_retired(present - 1)
            && !has_something_left(present - 1)
        {
            present -= 1;
        }
        self.present.store(present, SeqCst);
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use crate::util::loom::atomic::AtomicBool;
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        count: Count,
        /// How many holders the second worker has.
        held: AtomicUsize,
        asleep: AtomicBool,
    }

    impl Model {
        fn new(now: usize) -> Arc<Self> {
            Arc::new(Model {
                count: Count::new(2, now),
                held: AtomicUsize::new(now - 1),
                asleep: AtomicBool::new(false),
            })
        }

        /// Becomes the holder of the second worker.
        fn place(&self) {
            assert_eq!(self.held.fetch_add(1, SeqCst), 0, "I12: held twice");
        }

        /// One step of the second worker's holder in its loop; true if it still holds the worker.
        fn step(&self) -> bool {
            if !self.count.is_excess(1) {
                return true;
            }
            assert_eq!(self.held.fetch_sub(1, SeqCst), 1);
            let again = self.count.retire(1);
            if again {
                self.place();
            }
            again
        }

        fn resize(&self, workers: usize) {
            self.count.allow(workers);
            while let Some(worker) = self.count.revive() {
                assert_eq!(worker, 1);
                self.place();
            }
        }
    }

    #[test]
    fn loom_a_worker_that_retires_while_it_is_wanted_again_is_held_once() {
        loom::model(|| {
            let model = Model::new(2);
            let other = model.clone();
            let holder = thread::spawn(move || while other.step() && other.count.is_excess(1) {});
            model.resize(1);
            model.resize(2);
            holder.join().unwrap();
            assert_eq!(model.held.load(SeqCst), 1, "I12: wanted and nowhere");
            assert!(!model.count.is_retired(1));
        });
    }

    #[test]
    fn loom_a_worker_in_excess_does_not_fall_asleep() {
        loom::model(|| {
            let model = Model::new(2);
            let other = model.clone();
            let sleeper = thread::spawn(move || {
                other.asleep.store(true, SeqCst);
                fence(SeqCst);
                other.count.is_excess(1) // looks again; true: it stays awake
            });
            model.count.allow(1);
            let rouses = model.asleep.load(SeqCst);
            assert!(sleeper.join().unwrap() || rouses, "asleep in excess");
        });
    }
}
