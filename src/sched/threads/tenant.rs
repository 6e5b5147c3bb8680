//! Tenants: fibers bound to one thread, and how a worker and that thread find each other.
//!
//! A parked fiber that is *bound* to its thread has that thread to itself: it is the thread's
//! *tenant*, and no other fiber starts or resumes there (S4, S12). When the tenant becomes runnable
//! it is an entry in the queues of workers, like any other fiber. Three parties take part:
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
//! other party has nothing left to do.
//!
//! A deliverer that is late between its two steps takes back its own fiber only: the worker may
//! have run it, and the slot may hold the thread's next tenant. A worker that stays looks into the
//! slot after it has announced its sleep, so it finds the fiber or the deliverer claims the worker.
//!
//! The slot has room for one fiber: only the tenant is ever delivered, and only by the one party
//! that holds it (I1).

use std::ptr::{self, NonNull};

use crate::sched::threads::owner::Owner;
use crate::util::loom::atomic::{AtomicPtr, Ordering::SeqCst, fence};
use crate::util::loom::load_to_exchange;

/// The place where a tenant waits for the worker on its thread.
pub(crate) struct Slot<F> {
    fiber: AtomicPtr<F>,
}

/// The outcome of a delivery.
#[must_use]
#[derive(Debug)]
pub(crate) enum Delivered<W> {
    /// This worker is on the thread and will find the fiber. The caller notifies it if it sleeps.
    To(NonNull<W>),
    /// A worker that is or was on the thread has taken the fiber.
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
        // Pairs with the fence in `take_after_leaving` and that of a worker that goes to sleep.
        fence(SeqCst);
        match owner.peek() {
            Some(worker) => Delivered::To(worker),
            None => self.take_back(fiber),
        }
    }

    /// Takes out this fiber and no other.
    ///
    /// The deliverer may be late: its fiber may have run and left the thread, and the slot may hold
    /// the next tenant, which belongs to another delivery.
    fn take_back<W>(&self, fiber: NonNull<F>) -> Delivered<W> {
        let own = (self.fiber).compare_exchange(fiber.as_ptr(), ptr::null_mut(), SeqCst, SeqCst);
        match own {
            Ok(_) => Delivered::Back,
            Err(_) => Delivered::Taken,
        }
    }

    /// Takes the fiber out. Called by the worker on the thread.
    pub(crate) fn take(&self) -> Option<NonNull<F>> {
        if load_to_exchange(&self.fiber).is_null() {
            return None;
        }
        NonNull::new(self.fiber.swap(ptr::null_mut(), SeqCst))
    }

    /// Like [`take`](Self::take), for a worker that has just given up the owner word.
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
#[expect(unsafe_code, reason = "loom's cell stands for the worker")]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use loom::thread;

    /// One thread with a tenant, another thread, and two workers.
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
                        self.run(); // notified: the worker looks into the slot
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
                    self.runs.fetch_add(1, SeqCst); // the worker brought the entry along
                    return;
                }
                if self.deliver() {
                    return;
                }
            }
        }

        /// The worker on the thread looks into the slot, and then sleeps there.
        fn stay(&self) {
            self.run();
            self.asleep.swap(1, SeqCst); // as `bitmap.rs` sets a bit
            fence(SeqCst);
            if !self.slot.is_empty() && self.asleep.swap(0, SeqCst) == 1 {
                self.run();
            }
        }

        /// The worker on the thread leaves the thread.
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

    /// Numbers of the two fibers of [`LateFreeze`].
    const FIRST: usize = 0;
    const SECOND: usize = 1;

    fn fiber(number: usize) -> NonNull<u64> {
        let address = 8 * (number + 1);
        NonNull::without_provenance(std::num::NonZero::new(address).expect("not zero"))
    }

    fn number(fiber: NonNull<u64>) -> usize {
        fiber.as_ptr().addr() / 8 - 1
    }

    /// A worker whose cell panics when two threads are in it at once.
    #[repr(align(128))]
    struct Exclusive(UnsafeCell<u64>);

    /// One thread that a worker comes to, and whose fibers may be frozen under it.
    ///
    /// The first fiber is the thread's tenant. When it has run it ends, and the second one starts
    /// there and parks as the next tenant. A request to freeze is followed whenever it comes, while
    /// preemption is enabled, as the signal handler follows it.
    struct LateFreeze {
        owner: Owner<Exclusive>,
        slot: Slot<u64>,
        workers: [Exclusive; 2],
        /// Workers that are on no thread of the model, as a bit set.
        free: AtomicUsize,
        /// Whether the fiber on the thread has to give way.
        request: AtomicUsize,
        /// The number plus one of the fiber in whose middle the thread waits, or 0.
        frozen: AtomicUsize,
        /// For each fiber: whether it is parked, its entries in queues, and how often it ran.
        parked: [AtomicUsize; 2],
        queued: [AtomicUsize; 2],
        runs: [AtomicUsize; 2],
    }

    // SAFETY: the cells check exclusion themselves; that is what the model is for.
    unsafe impl Sync for LateFreeze {}
    // SAFETY: as above.
    unsafe impl Send for LateFreeze {}

    impl LateFreeze {
        /// A worker is on the thread, preemption disabled, and the first fiber is parked there.
        fn new() -> Arc<Self> {
            let pair = |first| [AtomicUsize::new(first), AtomicUsize::new(0)];
            let worker = || Exclusive(UnsafeCell::new(0));
            let model = Arc::new(LateFreeze {
                owner: Owner::new(),
                slot: Slot::new(),
                workers: [worker(), worker()],
                free: AtomicUsize::new(0b10),
                request: AtomicUsize::new(0),
                frozen: AtomicUsize::new(0),
                parked: pair(1),
                queued: pair(0),
                runs: pair(0),
            });
            model.owner.open(NonNull::from(&model.workers[0]));
            model.owner.disable();
            model
        }

        /// The thread that holds the worker uses it.
        fn touch(&self, worker: NonNull<Exclusive>) {
            let which = usize::from(worker == NonNull::from(&self.workers[1]));
            // SAFETY: exclusive if I7 holds, which the cell checks.
            self.workers[which].0.with_mut(|n| unsafe { *n += 1 });
        }

        fn set_free(&self, worker: NonNull<Exclusive>) {
            self.touch(worker);
            let which = usize::from(worker == NonNull::from(&self.workers[1]));
            let before = self.free.fetch_or(1 << which, SeqCst);
            assert_eq!(before & 1 << which, 0, "I7: free twice");
        }

        fn take_free(&self) -> Option<NonNull<Exclusive>> {
            for (which, worker) in self.workers.iter().enumerate() {
                if self.free.fetch_and(!(1 << which), SeqCst) & 1 << which != 0 {
                    self.touch(NonNull::from(worker));
                    return Some(NonNull::from(worker));
                }
            }
            None
        }

        /// Wakes a fiber if it is parked.
        fn wake(&self, number: usize) {
            if self.parked[number].swap(0, SeqCst) == 1 {
                match self.slot.deliver(&self.owner, fiber(number)) {
                    Delivered::To(_) | Delivered::Taken => {}
                    Delivered::Back => self.queue(number),
                }
            }
        }

        fn queue(&self, number: usize) {
            let before = self.queued[number].swap(1, SeqCst);
            assert_eq!(before, 0, "I1: queued twice");
        }

        /// A worker elsewhere looks for work once: entries, then a frozen thread.
        fn look(&self) {
            let Some(worker) = self.take_free() else {
                return;
            };
            for number in [FIRST, SECOND] {
                if self.queued[number].swap(0, SeqCst) == 1 {
                    return self.go_to_thread(worker, number);
                }
            }
            self.thaw(worker);
        }

        fn go_to_thread(&self, worker: NonNull<Exclusive>, number: usize) {
            loop {
                match self.slot.deliver(&self.owner, fiber(number)) {
                    Delivered::To(_) | Delivered::Taken => return self.set_free(worker),
                    Delivered::Back => {}
                }
                if self.owner.give(worker).is_ok() {
                    return self.on_thread(Some(number)); // the worker brought the entry along
                }
                loom::thread::yield_now();
            }
        }

        /// Gives a worker to the frozen thread.
        fn thaw(&self, worker: NonNull<Exclusive>) {
            let frozen = self.frozen.swap(0, SeqCst);
            if frozen == 0 {
                return self.set_free(worker);
            }
            self.owner.give(worker).expect("the claim is kept");
            self.owner.leave(); // the handler returns
            self.switches_out(frozen - 1);
            self.on_thread(None);
        }

        /// Runs the scheduler on the thread until its worker leaves or is frozen away.
        fn on_thread(&self, brought: Option<usize>) {
            self.touch(self.owner.peek().expect("it came here"));
            let mut next = brought;
            loop {
                let delivered = || self.slot.take().map(number);
                let Some(number) = next.take().or_else(delivered) else {
                    break;
                };
                assert_eq!(self.parked[number].load(SeqCst), 0, "I1: not woken");
                self.runs[number].fetch_add(1, SeqCst);
                self.owner.leave();
                if self.handler(number) {
                    return;
                }
                self.switches_out(number);
            }
            let worker = self.owner.surrender();
            if let Some(taken) = self.slot.take_after_leaving() {
                self.queue(number(taken));
            }
            self.set_free(worker);
        }

        /// The signal handler while the fiber runs.
        ///
        /// True if the thread froze; preemption then stays disabled.
        fn handler(&self, number: usize) -> bool {
            if self.request.swap(0, SeqCst) == 0 {
                return false;
            }
            self.owner.disable();
            let Some(worker) = self.owner.try_surrender() else {
                self.owner.leave();
                return false;
            };
            self.frozen.swap(number + 1, SeqCst);
            self.set_free(worker);
            true
        }

        /// Attempts an exchange of the owner word that fails.
        ///
        /// Loom reorders an access only against the latest one to the same word. Without this, the
        /// loads of this thread would hide that the loads of a deliverer may come after its
        /// exchanges.
        fn nudge(&self) {
            let worker = NonNull::from(&self.workers[0]);
            assert!(self.owner.give(worker).is_err());
        }

        /// The fiber enters the runtime: it ends, and the other one may come after it.
        fn switches_out(&self, number: usize) {
            self.nudge();
            let worker = self.owner.enter().expect("it holds one");
            self.touch(worker);
            if number == FIRST {
                self.parked[SECOND].swap(1, SeqCst);
            }
        }

        /// Does the remaining work after all threads have ended, and checks that nothing is lost.
        fn is_not_forgotten(&self) {
            while self.frozen.load(SeqCst) != 0 {
                self.thaw(self.take_free().expect("no worker is lost"));
            }
            for number in [FIRST, SECOND] {
                let (runs, queued) = (&self.runs[number], &self.queued[number]);
                let (runs, queued) = (runs.load(SeqCst), queued.load(SeqCst));
                let parked = self.parked[number].load(SeqCst);
                let exists = number == FIRST || self.runs[FIRST].load(SeqCst) == 1;
                assert_eq!(
                    runs + queued + parked,
                    usize::from(exists),
                    "I10, fiber {number}: {runs} runs, {queued} entries, parked: {parked}"
                );
            }
            assert!(self.slot.is_empty(), "I10: left in the slot");
            assert_eq!(self.free.load(SeqCst), 0b11, "I20: a worker is lost");
        }
    }

    /// Runs these parts concurrently, and then checks that no fiber and no worker is lost.
    fn play<const N: usize>(preemptions: usize, parts: [fn(&LateFreeze); N]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let model = LateFreeze::new();
            let threads = parts.map(|part| {
                let model = model.clone();
                thread::spawn(move || part(&model))
            });
            for thread in threads {
                thread.join().unwrap();
            }
            model.is_not_forgotten();
        });
    }

    #[test]
    fn loom_a_late_freeze_beside_wakers_and_a_taker_forgets_no_tenant() {
        play(
            3,
            [
                |model| model.wake(FIRST),
                |model| model.on_thread(None),
                |model| {
                    model.request.swap(1, SeqCst);
                    model.wake(SECOND);
                },
                |model| model.look(),
            ],
        );
    }

    #[test]
    fn loom_a_late_deliverer_does_not_take_the_next_tenant() {
        play(
            4,
            [
                |model| model.wake(FIRST),
                |model| model.on_thread(None),
                |model| model.wake(SECOND),
            ],
        );
    }
}
