//! The owner word of a carrier: which worker it holds, and how the worker changes hands.
//!
//! The protocol uses one word and a count of how often preemption is disabled. Three parties use
//! them:
//!
//! - The *enterer* is the carrier's own thread. It enters runtime code and leaves it again.
//! - *Takers* are other threads that want the worker of a carrier that is stuck in user code.
//! - *Givers* bring a worker to a carrier that waits for one.
//!
//! The word is a worker or one of these states:
//!
//! | state | meaning |
//! |---|---|
//! | *empty* | the carrier waits for a worker |
//! | *away* | the carrier's thread continues without a worker |
//! | *in hand* | a taker has the worker and decides whether it keeps it |
//! | *released* | the carrier has been asked to continue without a worker |
//! | *closed* | the carrier has no thread |
//!
//! - **Enter**: disable preemption, light barrier, read the word. If it is a worker, that worker is
//!   the enterer's until preemption is enabled again. If it is *in hand*, the enterer spins until
//!   the word is something else, which takes a moment. Otherwise there is no worker.
//! - **Disable**: disable preemption and do nothing else, for code that needs no worker but must
//!   not be interrupted (S6).
//! - **Take**: exchange the worker for *in hand*, heavy barrier, read the count. If the kernel
//!   refuses the barrier, check whether the carrier's thread sleeps. If preemption is disabled, or
//!   there was no barrier and the thread does not sleep, put the worker back. Otherwise the word
//!   becomes *away* and the worker is the taker's. The enterer makes the word *empty* when it
//!   begins to wait: nothing can be given to a carrier that would not notice.
//! - **Give**: exchange *empty* for the worker. If that fails, the giver keeps the worker.
//! - **Release**: exchange *empty* for *released*: the waiting carrier stops waiting. A giver and a
//!   releaser therefore do not both succeed.
//! - **Surrender**: the enterer, with preemption disabled, exchanges its worker for *empty*. If the
//!   worker is in hand, it waits for the taker first.
//!
//! **I7** No two threads have one worker. Every transfer is an exchange of the word, so of several
//! takers one gets the worker. Between an enterer and a taker the barriers decide:
//!
//! - If the taker read that preemption is enabled, the enterer disabled it after the taker's heavy
//!   barrier. The enterer's read of the word then comes after the exchange and does not find the
//!   worker.
//! - If the taker read that preemption is disabled, it does not touch the worker. While the worker
//!   is in hand nothing can be given, so putting it back cannot fail. An enterer whose worker was
//!   in hand has the same one afterwards.
//!
//! A carrier whose thread ends **closes** its word: it exchanges null for a value that no worker
//! has. If that fails, the carrier has been given a worker and continues. Nothing can be given to a
//! closed carrier, so a giver that comes late (an old request, a give-back) keeps its worker.
//!
//! The enterer pays no fence: the heavy barrier (`membarrier`) is on the taker's side, and takers
//! are rare.
//!
//! **I7 without `membarrier`** (S18). A seccomp filter that is installed later may refuse the call,
//! on all threads or on some. Light barriers order nothing then. A flag that makes them fences from
//! now on does not help, because an enterer may have read the flag before.
//!
//! So the taker looks at the enterer's thread instead, *after* the exchange. It reads
//! `/proc/self/task/N/syscall`, a file that the kernel fills in under the lock of the thread's run
//! queue and only while the thread is off its CPU. (`stat` proves nothing, because a thread changes
//! the state it shows before it sleeps.)
//!
//! - What the enterer did before that sleep happens before the taker's next step. If the enterer
//!   went to sleep with preemption disabled, the taker reads that.
//! - What the enterer does after it wakes happens after the exchange, so it does not find the
//!   worker.
//!
//! The file is the enterer's own: a thread does not end while its worker is in hand. A thread that
//! is not seen asleep keeps its worker. If it computes, it is interrupted on its own thread, where
//! no barrier is needed. Each take decides for itself, so it does not matter on which threads the
//! filter is. Model: `loom_without_membarrier_only_a_sleeper_loses_its_worker`.

use std::ptr::{self, NonNull};

use crate::util::loom::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use crate::util::loom::{heavy_barrier, light_barrier, load_to_exchange, spin};

pub(crate) struct Owner<W> {
    word: AtomicPtr<W>,
    /// How many nested sections have preemption disabled. Written by the carrier's own thread only.
    depth: AtomicU32,
}

/// *Closed*: the word of a carrier without a thread.
fn closed<W>() -> *mut W {
    ptr::without_provenance_mut(align_of::<W>())
}

/// *In hand*: the word while a taker has the worker.
fn in_hand<W>() -> *mut W {
    ptr::without_provenance_mut(2 * align_of::<W>())
}

/// *Released*: the word of a carrier that has to continue without a worker.
fn released<W>() -> *mut W {
    ptr::without_provenance_mut(3 * align_of::<W>())
}

/// *Away*: the word of a carrier that runs in the middle of a fiber without a worker.
fn away<W>() -> *mut W {
    ptr::without_provenance_mut(4 * align_of::<W>())
}

/// The worker in an owner word, if there is one.
///
/// The addresses of workers are larger than the values of all other states.
#[inline]
fn holds<W>(word: *mut W) -> Option<NonNull<W>> {
    NonNull::new(word).filter(|_| word.addr() > away::<W>().addr())
}

impl<W> Owner<W> {
    pub(crate) fn new() -> Self {
        Owner {
            word: AtomicPtr::new(closed()),
            depth: AtomicU32::new(0),
        }
    }

    /// Disables preemption and returns the worker this carrier holds.
    ///
    /// Own thread only. Preemption is disabled afterwards in either case.
    #[inline]
    pub(crate) fn enter(&self) -> Option<NonNull<W>> {
        self.disable();
        let worker = holds(self.word.load(Acquire));
        if worker.is_some() {
            return worker;
        }
        self.enter_without()
    }

    /// Disables preemption without a look at the worker.
    ///
    /// Own thread only. The code up to the matching [`leave`](Self::leave) does without a worker.
    #[inline]
    pub(crate) fn disable(&self) {
        self.depth.store(self.depth.load(Relaxed) + 1, Relaxed);
        light_barrier();
    }

    /// How many times preemption is disabled. Own thread only.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Relaxed)
    }

    #[cold]
    fn enter_without(&self) -> Option<NonNull<W>> {
        loop {
            let word = self.word.load(Acquire);
            if word != in_hand() {
                return holds(word);
            }
            spin();
        }
    }

    /// Undoes one [`enter`](Self::enter) or [`disable`](Self::disable). Own thread only.
    #[inline]
    pub(crate) fn leave(&self) {
        let depth = self.depth.load(Relaxed);
        debug_assert!(depth > 0);
        // Release: a taker that sees preemption enabled also sees what we did to the worker.
        self.depth.store(depth - 1, Release);
    }

    /// The worker this carrier holds now.
    ///
    /// Sequentially consistent, like all transfers: a waker stores a fiber and then looks here; a
    /// carrier gives its worker away and then looks for fibers (I10).
    pub(crate) fn peek(&self) -> Option<NonNull<W>> {
        holds(self.word.load(SeqCst))
    }

    /// Waits until a taker that has the worker in hand gives it back.
    ///
    /// Own thread, preemption disabled. The taker is about to give the worker back.
    #[cold]
    pub(crate) fn await_give_back(&self) -> NonNull<W> {
        loop {
            match self.peek() {
                Some(worker) => return worker,
                None => spin(),
            }
        }
    }

    /// Takes the worker from a carrier that is outside runtime code.
    ///
    /// `meanwhile` runs before the carrier's thread can enter again; it does what must be done to
    /// the carrier's data. `sleeps` reports whether the kernel has that thread off its CPU. It is
    /// called where the kernel refuses a barrier.
    pub(crate) fn take<R>(
        &self,
        sleeps: impl FnOnce() -> bool,
        meanwhile: impl FnOnce() -> R,
    ) -> Option<(NonNull<W>, R)> {
        let mut word = load_to_exchange(&self.word);
        let worker = loop {
            let worker = holds(word)?;
            match self.word.compare_exchange(word, in_hand(), SeqCst, SeqCst) {
                Ok(_) => break worker,
                Err(now) => word = now,
            }
        };
        let ordered = heavy_barrier() || sleeps();
        // No other thread changes the word while it is *in hand*, so a store is enough.
        if ordered && self.depth.load(Acquire) == 0 {
            let done = meanwhile();
            self.word.store(away(), SeqCst);
            return Some((worker, done));
        }
        self.word.store(worker.as_ptr(), SeqCst);
        None
    }

    /// Gives a worker to a carrier that waits for one, or returns it.
    pub(crate) fn give(&self, worker: NonNull<W>) -> Result<(), NonNull<W>> {
        self.word
            .compare_exchange(ptr::null_mut(), worker.as_ptr(), SeqCst, SeqCst)
            .map(|_| ())
            .map_err(|_| worker)
    }

    /// Asks a carrier that waits for a worker to continue without one.
    ///
    /// False if the carrier has been given a worker, or does not wait. The carrier can be given no
    /// worker until it has noticed the release.
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        self.word
            .compare_exchange(ptr::null_mut(), released(), SeqCst, SeqCst)
            .is_ok()
    }

    /// Whether this carrier has been released; if so, its word becomes *away*. Own thread only.
    #[must_use]
    pub(crate) fn is_released(&self) -> bool {
        self.word
            .compare_exchange(released(), away(), SeqCst, SeqCst)
            .is_ok()
    }

    /// Makes the word *empty* if it is *away*: the carrier begins to wait for a worker.
    ///
    /// Own thread, preemption disabled.
    pub(crate) fn come_back(&self) {
        let _ = self
            .word
            .compare_exchange(away(), ptr::null_mut(), SeqCst, SeqCst);
    }

    /// Puts a taken worker back, unless the carrier has begun to wait.
    ///
    /// Called by the taker.
    pub(crate) fn give_back(&self, worker: NonNull<W>) -> Result<(), NonNull<W>> {
        self.word
            .compare_exchange(away(), worker.as_ptr(), SeqCst, SeqCst)
            .map(|_| ())
            .map_err(|_| worker)
    }

    /// Closes the word of a carrier without a worker; false if a worker has been given.
    ///
    /// Own thread only. Nothing can be given to the carrier afterwards.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        self.word
            .compare_exchange(ptr::null_mut(), closed(), SeqCst, SeqCst)
            .is_ok()
    }

    /// Opens the word for a new thread that holds `worker` from the start.
    ///
    /// Called before the thread starts. It is one step, so that no late giver comes in between.
    pub(crate) fn open(&self, worker: NonNull<W>) {
        self.word
            .compare_exchange(closed(), worker.as_ptr(), SeqCst, SeqCst)
            .expect("only a closed word is opened, by the one who starts its thread");
    }

    /// Opens the word of a new thread without a worker, which can then be given one.
    ///
    /// Own thread, preemption disabled.
    pub(crate) fn open_empty(&self) {
        self.word
            .compare_exchange(closed(), ptr::null_mut(), SeqCst, SeqCst)
            .expect("only a closed word is opened, by its own thread");
    }

    /// Takes the worker back after the thread failed to start, and closes the word.
    ///
    /// Both happen in one step.
    pub(crate) fn reclose(&self) -> NonNull<W> {
        self.let_go(closed())
    }

    /// Gives up the worker. Own thread, preemption disabled, holding a worker.
    pub(crate) fn surrender(&self) -> NonNull<W> {
        self.let_go(ptr::null_mut())
    }

    /// Like [`surrender`](Self::surrender), but fails if a taker has the worker in hand.
    ///
    /// For a signal handler, which must not wait for another thread.
    pub(crate) fn try_surrender(&self) -> Option<NonNull<W>> {
        let word = load_to_exchange(&self.word);
        let worker = holds(word)?;
        self.word
            .compare_exchange(word, ptr::null_mut(), SeqCst, SeqCst)
            .ok()
            .map(|_| worker)
    }

    /// Exchanges the worker for `instead`, with preemption disabled.
    ///
    /// If a taker has the worker in hand, waits until it has put the worker back.
    fn let_go(&self, instead: *mut W) -> NonNull<W> {
        loop {
            let word = load_to_exchange(&self.word);
            if let Some(worker) = holds(word)
                && self
                    .word
                    .compare_exchange(word, instead, SeqCst, SeqCst)
                    .is_ok()
            {
                return worker;
            }
            spin();
        }
    }
}

#[cfg(all(test, indent_loom))]
#[expect(unsafe_code, reason = "loom's cell stands for the worker")]
mod models {
    use super::*;
    use crate::util::loom::let_membarrier_fail;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::AcqRel};
    use loom::thread;

    /// A worker whose cell panics when two threads are in it at once.
    struct Worker(UnsafeCell<usize>);

    struct Model {
        carriers: [Owner<Worker>; 2],
        worker: Worker,
        kept: AtomicUsize,
    }

    // SAFETY: the cell checks exclusion itself; that is what the model is for.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn new() -> Arc<Self> {
            Self::new_by(|| false)
        }

        fn new_by(sleeps: impl FnOnce() -> bool) -> Arc<Self> {
            let model = Arc::new(Model {
                carriers: [Owner::new(), Owner::new()],
                worker: Worker(UnsafeCell::new(0)),
                kept: AtomicUsize::new(0),
            });
            model.carriers[0].open(NonNull::from(&model.worker));
            model.carriers[1].open(NonNull::from(&model.worker));
            model.carriers[1]
                .take(sleeps, || ())
                .expect("nobody else is there");
            model.carriers[1].come_back();
            model
        }

        fn touch(&self, worker: NonNull<Worker>) {
            assert_eq!(worker, NonNull::from(&self.worker));
            // SAFETY: checked by loom's cell.
            self.worker.0.with_mut(|n| unsafe { *n += 1 });
        }

        fn enter_once(&self) -> bool {
            let found = self.carriers[0].enter();
            if let Some(worker) = found {
                self.touch(worker);
            }
            self.carriers[0].leave();
            found.is_some()
        }

        /// Takes from the first carrier, uses the worker, and gives it to the second (or back).
        fn take_over(&self, sleeps: impl FnOnce() -> bool, back: bool) {
            if let Some((worker, ())) = self.carriers[0].take(sleeps, || ()) {
                self.touch(worker);
                let given = if back {
                    self.carriers[0].give_back(worker)
                } else {
                    self.carriers[1].give(worker)
                };
                if given.is_err() {
                    self.kept.fetch_add(1, AcqRel);
                }
            }
        }

        fn worker_is_somewhere_once(&self) {
            let held = self.carriers.iter().filter(|c| c.peek().is_some()).count();
            assert_eq!(held + self.kept.load(Acquire), 1, "I7");
        }
    }

    fn check(bound: usize, run: impl Fn() + Sync + Send + 'static) {
        let_membarrier_fail(false); // another model may have run on this thread
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(bound);
        model.check(run);
    }

    #[test]
    fn loom_enterer_and_taker_never_share_a_worker() {
        check(4, || {
            let model = Model::new();
            let other = model.clone();
            let taker = thread::spawn(move || other.take_over(|| false, false));
            model.enter_once();
            model.enter_once();
            taker.join().unwrap();
            model.worker_is_somewhere_once();
        });
    }

    /// Whether the enterer's thread sleeps, as the kernel knows it under the lock of a run queue.
    struct Kernel(loom::sync::Mutex<bool>);

    impl Kernel {
        /// The enterer calls something that sleeps, and wakes again.
        fn sleep(&self) {
            *self.0.lock().unwrap() = true;
            thread::yield_now();
            *self.0.lock().unwrap() = false;
        }
    }

    /// A taker whose barrier fails and an enterer that enters, sleeps in the kernel and enters
    /// again.
    fn without_membarrier(looks: bool) {
        check(4, move || {
            let_membarrier_fail(true);
            let (model, kernel) = (Model::new_by(|| true), Arc::new(Kernel(false.into())));
            let (other, seen) = (model.clone(), kernel.clone());
            let taker = thread::spawn(move || {
                let sleeps = || !looks || *seen.0.lock().unwrap();
                other.take_over(sleeps, false);
            });
            model.enter_once();
            kernel.sleep();
            model.enter_once();
            taker.join().unwrap();
            model.worker_is_somewhere_once();
        });
    }

    #[test]
    fn loom_without_membarrier_only_a_sleeper_loses_its_worker() {
        without_membarrier(true);
    }

    #[test]
    #[should_panic]
    fn loom_without_membarrier_a_taker_that_does_not_look_shares_a_worker() {
        without_membarrier(false);
    }

    #[test]
    fn loom_of_two_takers_one_wins() {
        check(3, || {
            let model = Model::new();
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let model = model.clone();
                    thread::spawn(move || model.take_over(|| false, false))
                })
                .collect();
            model.enter_once();
            for taker in takers {
                taker.join().unwrap();
            }
            model.worker_is_somewhere_once();
        });
    }

    #[test]
    fn loom_a_late_taker_finds_nothing_or_gives_back() {
        check(3, || {
            let model = Model::new();
            let other = model.clone();
            // The carrier surrenders its worker to the second carrier while a taker runs.
            let taker = thread::spawn(move || other.take_over(|| false, true));
            if model.carriers[0].enter().is_some() {
                let worker = model.carriers[0].surrender();
                model.touch(worker);
                if model.carriers[1].give(worker).is_err() {
                    model.kept.fetch_add(1, AcqRel);
                }
            }
            model.carriers[0].leave();
            taker.join().unwrap();
            model.worker_is_somewhere_once();
        });
    }

    #[test]
    fn loom_a_carrier_that_waits_is_given_a_worker_or_released() {
        check(4, || {
            let model = Model::new();
            let (worker, ()) = model.carriers[0]
                .take(|| false, || ())
                .expect("nobody else is there");
            model.carriers[0].come_back();
            let other = model.clone();
            let releaser = thread::spawn(move || other.carriers[0].release());
            let given = model.carriers[0].give(worker).is_ok();
            let released = releaser.join().unwrap();
            assert!(given != released, "both, or neither");
            assert_eq!(model.carriers[0].is_released(), released);
            assert_eq!(model.carriers[0].peek().is_some(), given);
        });
    }

    #[test]
    fn loom_a_handler_that_gives_its_worker_away_and_a_taker_never_both_have_it() {
        check(3, || {
            let model = Model::new();
            let other = model.clone();
            let taker = thread::spawn(move || other.take_over(|| false, false));
            // The handler disables preemption where it was enabled, and does not wait.
            model.carriers[0].disable();
            if let Some(worker) = model.carriers[0].try_surrender() {
                model.touch(worker);
                if model.carriers[1].give(worker).is_err() {
                    model.kept.fetch_add(1, AcqRel);
                }
            }
            model.carriers[0].leave();
            taker.join().unwrap();
            model.worker_is_somewhere_once();
        });
    }

    #[test]
    fn loom_a_carrier_that_ends_keeps_no_worker() {
        check(4, || {
            let model = Model::new();
            let (worker, ()) = model.carriers[0]
                .take(|| false, || ())
                .expect("nobody else is there");
            model.carriers[0].come_back();
            let other = model.clone();
            let (w, carrier) = (worker.as_ptr().addr(), &model.carriers[0]);
            let giver = thread::spawn(move || {
                // An old request: the carrier is about to end.
                let worker = NonNull::from(&other.worker);
                assert_eq!(worker.as_ptr().addr(), w);
                other.carriers[0].give(worker).is_ok()
            });
            let ended = carrier.close();
            let given = giver.join().unwrap();
            assert_ne!(
                ended, given,
                "a worker is lost with its carrier, or neither goes on"
            );
            assert_eq!(carrier.peek().is_some(), given);
            if ended {
                let _ = carrier.enter();
                carrier.open(worker);
                assert_eq!(carrier.reclose(), worker);
            }
        });
    }

    #[test]
    fn loom_a_worker_in_hand_is_not_replaced_under_its_user() {
        check(3, || {
            let model = Model::new();
            let first =
                |worker: &NonNull<Worker>, model: &Model| *worker == NonNull::from(&model.worker);
            let taker = {
                let model = model.clone();
                thread::spawn(move || {
                    let taken = model.carriers[0]
                        .take(|| false, || ())
                        .map(|(worker, ())| worker);
                    if let Some(worker) = taken.filter(|w| first(w, &model)) {
                        model.touch(worker);
                    }
                })
            };
            // Follows an old request: the carrier has a worker, but it may be in hand just now.
            let second = Arc::new(Worker(UnsafeCell::new(0)));
            let giver = {
                let (model, second) = (model.clone(), second.clone());
                thread::spawn(move || drop(model.carriers[0].give(NonNull::from(&*second))))
            };
            if let Some(worker) = model.carriers[0].enter().filter(|w| first(w, &model)) {
                model.touch(worker);
                let kept = model.carriers[0].surrender();
                assert_eq!(kept, worker, "I7: replaced under its user");
                model.touch(worker);
            }
            model.carriers[0].leave();
            taker.join().unwrap();
            giver.join().unwrap();
        });
    }

    #[test]
    fn loom_a_give_back_never_overwrites_a_newer_worker() {
        check(3, || {
            let model = Model::new();
            let second = Arc::new(Worker(UnsafeCell::new(0)));
            let other = model.clone();
            let taker = thread::spawn(move || {
                let carrier = &other.carriers[0];
                match carrier.take(|| false, || ()) {
                    Some((worker, ())) => other.carriers[1].give(worker).is_ok(),
                    None => false,
                }
            });
            // The enterer finds no worker, waits for one, and is given the second.
            let carrier = &model.carriers[0];
            let mut gave = false;
            if carrier.enter().is_none() {
                carrier.come_back();
                gave = carrier.give(NonNull::from(&*second)).is_ok();
                assert!(carrier.peek().is_some());
            }
            carrier.leave();
            let taken = taker.join().unwrap();
            let holds = carrier.peek();
            if taken {
                assert_eq!(holds.is_some(), gave, "I7");
            } else {
                assert!(holds.is_some(), "lost: taken and not given back");
            }
        });
    }
}
