//! Which workers sleep, which search, and which to notify.
//!
//! A *searching worker*, or searcher, is awake without work. While one exists, new work notifies no
//! worker: the last searcher to find work notifies the next. So workers wake one after another for
//! as long as there is something to find, and no push pays for more than one wake-up.
//!
//! - **Submit**: 1 push, 2 fence, 3 if no worker searches, become the notifier and claim a sleeper.
//! - **Sleep**: 1 stop searching and set one's own sleeping bit, 2 fence, 3 look at every queue
//!   again.
//!
//! **I8** No push is missed. If the sleeper's look (3) does not see the push, its fence comes
//! before the push. So the submitter's fence comes after it, and the submitter's step 3 sees the
//! bit. Whether the submitter notifies a worker then depends on `searching`. If that is not zero,
//! some searcher has yet to do its own step 1 and look after it, or its notifier is on the way. A
//! notifier that finds no sleeper to claim takes its announcement back and looks at the sleepers
//! again, because a submitter may have relied on it.
//!
//! A push into an empty LIFO slot, the usual spawn, notifies no worker: chains of short fibers stay
//! on one worker. The monitor looks after a slot whose worker makes no progress
//! (`background/monitor.rs`).
//!
//! Rejected: notify on every push (a system call per spawn, and both workers thrash on short work).

use crate::util::bitmap::Bitmap;
use crate::util::loom::atomic::{AtomicU32, Ordering::SeqCst, fence};

pub(crate) struct Idle {
    sleeping: Bitmap,
    searching: AtomicU32,
    workers: usize,
}

impl Idle {
    pub(crate) fn new(workers: usize) -> Self {
        Idle {
            sleeping: Bitmap::new(workers),
            searching: AtomicU32::new(0),
            workers,
        }
    }

    /// Returns the worker to notify as a searcher, if one is needed.
    ///
    /// Called after a push that any worker may take.
    #[must_use]
    pub(crate) fn submit(&self, start: usize) -> Option<usize> {
        fence(SeqCst);
        loop {
            if self.searching.load(SeqCst) > 0 || self.sleeping.is_empty() {
                return None;
            }
            if self
                .searching
                .compare_exchange(0, 1, SeqCst, SeqCst)
                .is_err()
            {
                return None; // another thread notifies
            }
            if let Some(worker) = self.sleeping.claim_any(start % self.workers) {
                return Some(worker); // this worker searches from now on, counted by us
            }
            // There is no worker to notify. But other threads may have relied on our announcement:
            // look again.
            self.searching.fetch_sub(1, SeqCst);
        }
    }

    /// Claims one particular sleeper, which has something to do and need not search.
    #[must_use]
    pub(crate) fn claim(&self, worker: usize) -> bool {
        self.sleeping.claim(worker)
    }

    /// Claims some sleeper, which has something to do and need not search.
    #[must_use]
    pub(crate) fn claim_any(&self) -> Option<usize> {
        self.sleeping.claim_any(0)
    }

    /// How many workers have announced their sleep.
    pub(crate) fn asleep(&self) -> usize {
        self.sleeping.len()
    }

    /// Whether this worker has announced its sleep.
    pub(crate) fn is_asleep(&self, worker: usize) -> bool {
        self.sleeping.contains(worker)
    }

    /// Makes a worker without work a searcher, unless half of `workers` search already.
    #[must_use]
    pub(crate) fn begin_search(&self, workers: usize) -> bool {
        let searching = self.searching.load(SeqCst);
        if 2 * searching as usize >= workers {
            return false;
        }
        self.searching.fetch_add(1, SeqCst);
        true
    }

    /// Ends the search of a worker that found work; true if it was the last searcher.
    ///
    /// The last one must `submit` for its successor.
    #[must_use]
    pub(crate) fn found(&self) -> bool {
        self.searching.fetch_sub(1, SeqCst) == 1
    }

    /// Announces sleep. The caller must look at every queue once more before it sleeps.
    pub(crate) fn announce_sleep(&self, worker: usize, searching: bool) {
        self.sleeping.set(worker);
        if searching {
            self.searching.fetch_sub(1, SeqCst);
        }
        fence(SeqCst);
    }

    /// Whether some worker sleeps or searches: fibers in a local queue will be stolen.
    pub(crate) fn has_free_hands(&self) -> bool {
        self.searching.load(SeqCst) > 0 || !self.sleeping.is_empty()
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// Workers that pop from one counter.
    ///
    /// A worker that goes to sleep ends its thread, and the thread that notifies it continues it
    /// from there. A worker that stays asleep with work left is a lost wake-up.
    struct Model {
        idle: Idle,
        queue: AtomicUsize,
        done: AtomicUsize,
    }

    impl Model {
        fn new(workers: usize) -> Arc<Self> {
            Arc::new(Model {
                idle: Idle::new(workers),
                queue: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
            })
        }

        fn pop(&self) -> bool {
            let popped = self
                .queue
                .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
                .is_ok();
            if popped {
                self.done.fetch_add(1, SeqCst);
            }
            popped
        }

        fn submit(&self) {
            if let Some(worker) = self.idle.submit(0) {
                self.work(worker, true);
            }
        }

        /// Runs a worker from waking up until it sleeps for good.
        fn work(&self, worker: usize, mut searching: bool) {
            loop {
                if self.pop() {
                    if std::mem::take(&mut searching) && self.idle.found() {
                        self.submit();
                    }
                    continue;
                }
                self.idle
                    .announce_sleep(worker, std::mem::take(&mut searching));
                if self.queue.load(SeqCst) == 0 || !self.idle.claim(worker) {
                    return;
                }
            }
        }

        fn push(&self) {
            self.queue.fetch_add(1, SeqCst);
            self.submit();
        }
    }

    #[test]
    fn loom_a_push_beside_a_worker_falling_asleep_is_seen() {
        loom::model(|| {
            let model = Model::new(1);
            let other = model.clone();
            let worker = thread::spawn(move || {
                let searching = other.idle.begin_search(other.idle.workers);
                other.work(0, searching);
            });
            model.push();
            worker.join().unwrap();
            assert_eq!(model.done.load(SeqCst), 1, "I8");
        });
    }

    #[test]
    fn loom_last_searcher_sees_late_push() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Model::new(2);
            let other = model.clone();
            let worker = thread::spawn(move || {
                let searching = other.idle.begin_search(other.idle.workers);
                other.work(0, searching);
            });
            let third = model.clone();
            let pusher = thread::spawn(move || third.push());
            model.push();
            worker.join().unwrap();
            pusher.join().unwrap();
            assert_eq!(model.done.load(SeqCst), 2, "I8");
        });
    }
}
