//! A fiber that may run on one thread only, and how a worker and its thread find each other.
//!
//! A parked fiber that is *bound* to its thread has that thread to itself: it is the thread's
//! *tenant*, and no other fiber starts or resumes there. When the tenant becomes runnable it is an
//! entry in the queues of workers, like any other fiber. The parties:
//!
//! - The **waker** made the tenant runnable. If a worker is on the tenant's thread, the waker
//!   leaves the tenant in the thread's slot and notifies that worker ([`Slot::deliver`]). Otherwise
//!   the waker queues the tenant.
//! - A **taker**, owner or thief, has taken the entry off a queue and holds a worker on another
//!   thread. If no worker is on the tenant's thread, the taker gives its own worker to that thread.
//!   Otherwise the taker does what the waker does.
//! - The **worker on the thread** looks into the slot before it looks for other work and before it
//!   sleeps. When it leaves, it looks again after it has given up the owner word, and takes along
//!   what it finds.
//!
//! **I10** *A runnable tenant is never forgotten.* The slot holds a fiber only between a delivery
//! and the look of a worker that is on the thread. The deliverer stores the fiber and then reads
//! the owner word; a leaving worker exchanges the owner word and then reads the slot. Between the
//! two steps both have a fence, so either the deliverer finds no worker and takes the fiber back,
//! or the leaving worker finds the fiber. If both do, the exchange of the slot decides, and the
//! other one has nothing left to do. A worker that stays looks into the slot after it has announced
//! its sleep, so it finds the fiber or the deliverer claims it.
//!
//! The slot has room for one fiber: only the tenant is ever delivered, by the one party that holds
//! it (I1).

use std::ptr::{self, NonNull};

use crate::base::loom::atomic::{AtomicPtr, Ordering::SeqCst, fence};
use crate::sched::owner::Owner;

/// Where a tenant is left for the worker on its thread.
pub(crate) struct Slot<F> {
    fiber: AtomicPtr<F>,
}

/// What became of a delivery.
#[must_use]
#[derive(Debug)]
pub(crate) enum Delivered<W> {
    /// This worker is on the thread and will find the fiber. The caller wakes it if it sleeps.
    To(NonNull<W>),
    /// A worker that left the thread took the fiber along.
    Taken,
    /// No worker is on the thread: the fiber is the caller's again.
    Back,
}

impl<F> Slot<F> {
    pub(crate) fn new() -> Self {
        Slot {
            fiber: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Leaves the tenant of a thread for the worker that the owner word names.
    pub(crate) fn deliver<W>(&self, owner: &Owner<W>, fiber: NonNull<F>) -> Delivered<W> {
        if owner.peek().is_none() {
            return Delivered::Back;
        }
        let before = self.fiber.swap(fiber.as_ptr(), SeqCst);
        debug_assert!(before.is_null(), "a thread has one tenant");
        fence(SeqCst); // pairs with the one in `take_after_leaving`, and with that of a worker going to sleep
        match owner.peek() {
            Some(worker) => Delivered::To(worker),
            None if self.take().is_some() => Delivered::Back,
            None => Delivered::Taken,
        }
    }

    /// Takes the fiber out: the worker on the thread, or the deliverer.
    pub(crate) fn take(&self) -> Option<NonNull<F>> {
        if self.is_empty() {
            return None;
        }
        NonNull::new(self.fiber.swap(ptr::null_mut(), SeqCst))
    }

    /// The same by a worker that has just given up the owner word.
    pub(crate) fn take_after_leaving(&self) -> Option<NonNull<F>> {
        fence(SeqCst);
        self.take()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.fiber.load(SeqCst).is_null()
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use loom::thread;

    /// One thread with a tenant, another one, and two workers.
    ///
    /// `queue` says how many entries for the tenant wait in queues, `runs` how often a worker ran
    /// it.
    struct Model {
        tenants: Owner<Worker>,
        slot: Slot<u64>,
        there: Worker,
        elsewhere: Worker,
        asleep: AtomicUsize,
        queue: AtomicUsize,
        runs: AtomicUsize,
    }

    /// Aligned like the real one: the smallest addresses are states of the owner word.
    #[repr(align(128))]
    struct Worker(#[expect(dead_code, reason = "gives it a size")] u64);

    fn tenant() -> NonNull<u64> {
        NonNull::without_provenance(std::num::NonZero::new(8).expect("not zero"))
    }

    impl Model {
        fn new(worker_is_there: bool) -> Arc<Self> {
            let model = Arc::new(Model {
                tenants: Owner::new(),
                slot: Slot::new(),
                there: Worker(0),
                elsewhere: Worker(0),
                asleep: AtomicUsize::new(0),
                queue: AtomicUsize::new(0),
                runs: AtomicUsize::new(0),
            });
            if worker_is_there {
                model.tenants.open(NonNull::from(&model.there));
            } else {
                model.tenants.open_empty();
            }
            model
        }

        fn deliver(&self) -> bool {
            match self.slot.deliver(&self.tenants, tenant()) {
                Delivered::To(_) => {
                    if self.asleep.swap(0, SeqCst) == 1 {
                        self.run(); // notified: it looks into the slot
                    }
                    true
                }
                Delivered::Taken => true,
                Delivered::Back => false,
            }
        }

        fn run(&self) {
            if self.slot.take().is_some() {
                self.runs.fetch_add(1, SeqCst);
            }
        }

        fn wake(&self) {
            if !self.deliver() {
                self.queue.fetch_add(1, SeqCst);
            }
        }

        /// A worker on another thread looks for work once.
        fn look(&self) {
            if self.queue.compare_exchange(1, 0, SeqCst, SeqCst).is_err() {
                return;
            }
            loop {
                if self.tenants.give(NonNull::from(&self.elsewhere)).is_ok() {
                    self.runs.fetch_add(1, SeqCst); // it brought the entry along
                    return;
                }
                if self.deliver() {
                    return;
                }
            }
        }

        /// The worker on the thread looks, and then sleeps there.
        fn stay(&self) {
            self.run();
            self.asleep.swap(1, SeqCst); // as a bit is set in a bitmap
            fence(SeqCst);
            if !self.slot.is_empty() && self.asleep.swap(0, SeqCst) == 1 {
                self.run();
            }
        }

        /// The worker on the thread leaves it.
        fn leave(&self) {
            let _worker = self.tenants.surrender();
            if self.slot.take_after_leaving().is_some() {
                self.queue.fetch_add(1, SeqCst);
            }
        }

        fn is_not_forgotten(&self) {
            let (runs, queued) = (self.runs.load(SeqCst), self.queue.load(SeqCst));
            assert_eq!(runs + queued, 1, "I10: {runs} runs, {queued} entries");
        }
    }

    fn check(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(run);
    }

    #[test]
    fn loom_a_tenant_woken_beside_a_leaving_worker_is_not_forgotten() {
        check(|| {
            let model = Model::new(true);
            let leaver = model.clone();
            let leaver = thread::spawn(move || leaver.leave());
            let thief = model.clone();
            let thief = thread::spawn(move || thief.look());
            model.wake();
            leaver.join().unwrap();
            thief.join().unwrap();
            model.is_not_forgotten();
        });
    }

    #[test]
    fn loom_a_tenant_woken_beside_a_worker_that_falls_asleep_there_runs() {
        check(|| {
            let model = Model::new(true);
            let other = model.clone();
            let stays = thread::spawn(move || other.stay());
            model.wake();
            stays.join().unwrap();
            model.is_not_forgotten();
            assert_eq!(model.runs.load(SeqCst), 1);
        });
    }

    #[test]
    fn loom_of_waker_taker_and_thief_one_brings_the_worker() {
        check(|| {
            let model = Model::new(false);
            let thieves: Vec<_> = (0..2)
                .map(|_| {
                    let model = model.clone();
                    thread::spawn(move || model.look())
                })
                .collect();
            model.wake();
            for thief in thieves {
                thief.join().unwrap();
            }
            model.is_not_forgotten();
        });
    }
}
