#![expect(unsafe_code, reason = "carriers are shared by pointer; see the header")]
//! The OS thread that can hold a worker, and how it gets and loses one.
//!
//! A carrier is *holding* a worker and runs the scheduler loop; or it *rests* at the bottom of its
//! stack, without one; or it *waits* for one in the middle of a fiber that wants to block and
//! whose worker was taken; or it is *blocked* by a fiber that parked while unwinding. Started
//! fibers belong to their carrier: its home queue, and its inbox for wakes from other threads.
//!
//! Sets say which carriers may be given a worker (numbers of carriers, claims as in `bitmap.rs`):
//! *resting*, by any giver, and *homes*, the same with fibers at home, if there is no other;
//! *frozen* (`freeze.rs`); *keeping*, carriers that rest and keep fibers which want to be alone
//! (`moving.rs`), and *retiring*, whose threads end with their fibers (`retire.rs`), both for the
//! sake of those fibers only; *wanted*, by the next worker that looks; *vacant* numbers have no
//! thread. A thread that claims a resting, keeping or retiring carrier owes it a worker.
//!
//! **I10** A runnable started fiber is never forgotten. A waker posts to the inbox, then looks:
//! the carrier holds a worker → that worker is roused if it sleeps, and looks into the inbox before
//! it sleeps; it holds none → the waker claims it from *resting* or *keeping* and puts it into *wanted*.
//! If the claim fails, the carrier is on its way into its set and looks into its inbox after it has
//! announced itself; or somebody else claimed it and owes it a worker; or a fiber blocks it, and it
//! will look when that fiber is done.
//!
//! A `Carrier` lives as long as `Shared`; its thread keeps `Shared` alive. A thread ends only with
//! no worker and no started fiber, and its number is given to the next one.

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, compiler_fence,
};

use indent_sysmon::Thread;

use crate::base::alarm::Alarm;
use crate::base::bitmap::Bitmap;

use crate::base::inbox::Inbox;
use crate::base::list::List;
use crate::base::os::{self, Doorbell};
use crate::fiber::{FiberRef, Record};
use crate::sched::freeze::Ice;
use crate::sched::overrun::Stretch;
use crate::sched::owner::Owner;
use crate::sched::worker::Worker;
use crate::sched::{Shared, class, context, run};

/// Aligned to a pair of cache lines: its neighbour in the table is written by another thread.
#[repr(align(128))]
pub(crate) struct Carrier {
    pub(crate) index: usize,
    shared: NonNull<Shared>,
    pub(crate) owner: Owner<Worker>,
    pub(crate) bell: Doorbell,
    /// Started fibers woken by others.
    pub(crate) inbox: Inbox<Record>,
    /// The fiber that runs now. From here on: own thread only.
    pub(crate) current: Cell<Option<FiberRef>>,
    /// Operations left in this dispatch.
    pub(crate) budget: Cell<u32>,
    /// How long that fiber has run; written by the own thread, and read by the monitor.
    pub(crate) stretch: Stretch,
    /// Fibers that started here or came here and are not over; those of them that left are in `left`
    /// (I18). Written by the own thread.
    pub(crate) started: AtomicUsize,
    /// Switched-out fibers that want to be alone.
    pub(crate) alone: Cell<usize>,
    /// Its thread ends with its fibers (`retire.rs`).
    pub(crate) retires: Cell<bool>,
    home: UnsafeCell<Home>,
    /// Switched-out fibers that may not leave.
    pub(crate) bound: AtomicUsize,
    /// What its handler needs; set before the thread runs anybody.
    own: UnsafeCell<Own>,
    /// Fibers that others adopted. From here on: anybody.
    pub(crate) left: AtomicUsize,
    /// Its thread, for whoever watches it.
    pub(crate) thread: Thread,
    pub(crate) ice: Ice,
    /// Whether somebody made its thread run on one CPU only: `WIDE`, `NARROWING`, `NARROW`.
    narrowed: AtomicU8,
}

/// Runnable started fibers; of the carrier's own thread, but see I17.
pub(crate) struct Home {
    pub(crate) queue: List<Record>,
    /// Those that others come before.
    pub(crate) batch: List<Record>,
    /// Woken last by a sibling: next to run.
    pub(crate) next: Option<FiberRef>,
}

/// Of the thread of a carrier.
#[derive(Default)]
pub(crate) struct Own {
    /// Reminds the handler.
    pub(crate) alarm: Option<Alarm>,
    /// The stack its handlers run on.
    pub(crate) signal_stack: Range<usize>,
}

impl Home {
    /// # Safety
    /// It is runnable, in no list, and alive (I3).
    #[inline]
    pub(crate) unsafe fn push(&mut self, fiber: FiberRef) {
        let queue = if class::is_batch(&fiber) {
            &mut self.batch
        } else {
            &mut self.queue
        };
        // SAFETY: by the caller's promise.
        unsafe { queue.push(fiber.pointer()) };
    }
}

// SAFETY: the cells are touched by the carrier's own thread only, `home` by whom I17 says; the rest is
// atomic.
unsafe impl Sync for Carrier {}
// SAFETY: as above; a carrier is made by one thread before its own thread starts.
unsafe impl Send for Carrier {}

/// Whether a worker has found a carrier; if not, it comes back.
pub(crate) type Placed = Result<(), NonNull<Worker>>;

/// Whether a thread may run on one CPU only.
const WIDE: u8 = 0;
const NARROWING: u8 = 1;
const NARROW: u8 = 2;

/// How a rest ended.
enum Rested {
    Holding,
    End,
}

impl Carrier {
    pub(crate) fn new(index: usize, shared: NonNull<Shared>) -> Self {
        Carrier {
            index,
            shared,
            owner: Owner::new(),
            bell: Doorbell::new(),
            inbox: Inbox::new(),
            current: Cell::new(None),
            budget: Cell::new(0),
            stretch: Stretch::default(),
            started: AtomicUsize::new(0),
            alone: Cell::new(0),
            retires: Cell::new(false),
            home: UnsafeCell::new(Home {
                queue: List::new(),
                batch: List::new(),
                next: None,
            }),
            bound: AtomicUsize::new(0),
            own: UnsafeCell::default(),
            left: AtomicUsize::new(0),
            thread: Thread::new(),
            ice: Ice::default(),
            narrowed: AtomicU8::new(WIDE),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: `Shared` owns its carriers and outlives them.
        unsafe { self.shared.as_ref() }
    }

    /// The home queue, on the carrier's own thread; callers keep the reference within one step.
    #[expect(
        clippy::mut_from_ref,
        reason = "own thread only, and never across a call out"
    )]
    pub(crate) fn home(&self) -> &mut Home {
        debug_assert!(ptr::eq(context::carrier(), self));
        // SAFETY: I17: own thread, mark up; no caller holds it across a call that gets here again.
        unsafe { &mut *self.home.get() }
    }

    /// For whoever may touch it by I17.
    pub(crate) fn home_cell(&self) -> *mut Home {
        self.home.get()
    }

    pub(crate) fn has_runnable(&self) -> bool {
        let home = self.home();
        !home.queue.is_empty()
            || !home.batch.is_empty()
            || home.next.is_some()
            || !self.inbox.is_empty()
    }

    /// In the middle of a fiber, mark up: asks for a worker and waits for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_for_worker(&self) -> NonNull<Worker> {
        self.shared().detached.claim(self.index);
        self.owner.come_back();
        self.shared().want(self.index);
        let worker = self.wait_for_worker();
        // If it came another way (a taker gave ours back), the request is void.
        self.shared().wanted.claim(self.index);
        // SAFETY: workers live as long as `Shared`.
        self.publish(unsafe { worker.as_ref() });
        worker
    }

    /// In the middle of a fiber, mark up: this worker runs it from here on.
    pub(crate) fn publish(&self, worker: &Worker) {
        self.shared().awake(worker);
        worker.published.dispatch();
    }

    /// Own thread, mark up, and it waits for a worker: somebody thought that it was frozen, and told it to go
    /// on without.
    fn ignore_release(&self) {
        if self.owner.is_released() {
            self.owner.come_back();
        }
    }

    /// Own thread, mark up: sleeps until somebody gives a worker.
    pub(crate) fn wait_for_worker(&self) -> NonNull<Worker> {
        loop {
            self.ignore_release();
            match self.owner.peek() {
                Some(worker) => {
                    self.spread_out();
                    return worker;
                }
                None if self.shared().adopt_orphan(self) => {}
                None => drop(self.bell.wait(None)),
            }
        }
    }

    /// Gives this carrier's worker to `other`, which the caller claimed; false if that one has got
    /// a worker by another way, and ours stays. True means that the caller's token is void.
    pub(crate) fn hand_to(&self, other: &Carrier) -> bool {
        let worker = self.owner.surrender();
        if other.receive(worker).is_ok() {
            return true;
        }
        !self.keep(worker)
    }

    /// Gives this carrier's worker to any other; false if no thread can be had, and ours stays. True
    /// means that the caller's token is void.
    pub(crate) fn hand_over(&self) -> bool {
        self.hand_over_by(Shared::place)
    }

    /// The same, but only to one that keeps nobody.
    pub(crate) fn hand_over_to_free(&self) -> bool {
        self.hand_over_by(Shared::place_free)
    }

    fn hand_over_by(&self, place: fn(&Shared, NonNull<Worker>) -> Placed) -> bool {
        match place(self.shared(), self.owner.surrender()) {
            Ok(()) => true,
            Err(worker) => !self.keep(worker),
        }
    }

    /// Takes a worker back that found no other place; true if this carrier holds it again. If it has
    /// been given another one meanwhile (somebody still followed an old request), a place is looked
    /// for again: then the caller's token is void.
    #[must_use]
    pub(crate) fn keep(&self, worker: NonNull<Worker>) -> bool {
        let Err(worker) = self.accept(worker) else {
            return true; // our own thread: nobody needs to be rung
        };
        if let Err(worker) = self.shared().place(worker) {
            self.shared().place_quietly(worker); // I20
        }
        false
    }

    /// Any thread that took the worker from this carrier: gives it back, if its thread has not noticed.
    fn take_back(&self, worker: NonNull<Worker>) -> Placed {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        word.store(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner.give_back(worker)
    }

    /// Any thread: gives a worker to this carrier.
    pub(crate) fn receive(&self, worker: NonNull<Worker>) -> Result<(), NonNull<Worker>> {
        self.accept(worker).inspect(|()| self.bell.ring())
    }

    fn accept(&self, worker: NonNull<Worker>) -> Result<(), NonNull<Worker>> {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        let before = word.swap(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner
            .give(worker)
            .inspect_err(|_| word.store(before, SeqCst))
    }

    /// Own thread: where it can be found while it has no worker.
    fn place_of_rest(&self) -> &Bitmap {
        let shared = self.shared();
        if self.retires() {
            &shared.retiring
        } else if self.keeps_fibers() {
            &shared.keeping
        } else if self.has_no_fibers() {
            &shared.resting
        } else {
            &shared.homes
        }
    }

    /// At the bottom of the stack, mark up: until there is a worker, or no need for this thread.
    fn rest(&self, first_of_spare: bool) -> Rested {
        let shared = self.shared();
        // It keeps fibers or it does not, for as long as it holds no worker.
        let mut set = self.place_of_rest();
        set.set(self.index);
        if first_of_spare {
            shared.watchers.starting.fetch_sub(1, SeqCst);
        }
        loop {
            self.ignore_release();
            if self.owner.peek().is_some() {
                set.claim(self.index);
                self.spread_out();
                return Rested::Holding;
            }
            if (!self.retires() || self.has_runnable()) && shared.adopt_orphan(self) {
                continue;
            }
            if shared.is_stopping() {
                set.claim(self.index);
                return Rested::End;
            }
            if self.has_runnable() {
                if set.claim(self.index) {
                    shared.want(self.index);
                }
            } else if !ptr::eq(set, self.place_of_rest()) {
                // The last of its fibers has gone on elsewhere.
                if set.claim(self.index) {
                    set = self.place_of_rest();
                    set.set(self.index);
                    continue;
                }
            } else if self.has_no_fibers()
                && (self.retires() || shared.resting.len() > shared.spares_kept())
                && set.claim(self.index)
            {
                if self.owner.close() {
                    let retired = u64::from(self.retires());
                    shared.retired_carriers.fetch_add(retired, Relaxed);
                    return Rested::End;
                }
                continue; // somebody has just given us a worker
            }
            self.bell.wait(None);
        }
    }

    /// Any thread that is about to stop: gives this carrier, which sleeps, a worker, and makes it run where
    /// the caller runs. May be called in a signal handler.
    pub(crate) fn receive_here(&self, worker: NonNull<Worker>) -> Placed {
        let number = self.thread.number();
        let narrows = number.is_some()
            && self
                .narrowed
                .compare_exchange(WIDE, NARROWING, SeqCst, SeqCst)
                .is_ok();
        if let Some(number) = number.filter(|_| narrows) {
            let narrow = self.shared().cpu_mask.bring_here(number);
            self.narrowed
                .store(if narrow { NARROW } else { WIDE }, SeqCst);
        }
        self.receive(worker).inspect_err(|_| {
            // It has got one by another way, and may run by now.
            if let Some(number) = number.filter(|_| narrows) {
                self.shared().cpu_mask.spread_out(number);
                // A third one may have begun to narrow it again.
                let _ = (self.narrowed).compare_exchange(NARROW, WIDE, SeqCst, SeqCst);
            }
        })
    }

    /// Own thread, before it runs anybody: on all CPUs again.
    #[inline]
    pub(crate) fn spread_out(&self) {
        while self.narrowed.load(SeqCst) == NARROWING {
            os::yield_thread(); // for the length of a system call
        }
        if self.narrowed.load(SeqCst) == NARROW {
            self.shared().cpu_mask.spread_out(0);
            self.narrowed.store(WIDE, SeqCst);
        }
    }

    /// Own thread: the mark goes down, and a request that came while it was up is looked at.
    #[inline]
    pub(crate) fn leave(&self) {
        self.owner.leave();
        compiler_fence(SeqCst); // the handler sees the mark down, or we see its request
        if self.ice.request.load(Relaxed) != 0 && self.owner.depth() == 0 {
            self.look_at_request();
        }
    }

    /// Own thread, before and after it runs anybody.
    pub(crate) fn set_own(&self, own: Own) {
        // SAFETY: own thread, and no handler needs it now: nobody has asked this thread for anything.
        unsafe { *self.own.get() = own };
    }

    fn own(&self) -> &Own {
        // SAFETY: own thread; written only before and after it runs fibers.
        unsafe { &*self.own.get() }
    }

    /// Own thread.
    pub(crate) fn alarm(&self) -> Option<&Alarm> {
        self.own().alarm.as_ref()
    }

    /// Own thread: whether handlers run on this part of the memory.
    pub(crate) fn on_signal_stack(&self, address: usize) -> bool {
        self.own().signal_stack.contains(&address)
    }

    /// Before the thread starts: it will hold `worker`.
    pub(crate) fn open_with(&self, worker: NonNull<Worker>) {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        word.store(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner.open(worker);
    }

    /// The life of the thread.
    pub(crate) fn live(&self, spare: bool) {
        context::set_carrier(self);
        self.retires.set(false);
        if spare {
            self.owner.open_empty();
        }
        // The mark came up with us: it is up in the scheduler, and fibers put it down.
        let mut first = spare;
        while let Rested::Holding = self.rest(std::mem::take(&mut first)) {
            if let run::Left::Stopping = run::run_fibers() {
                break;
            }
        }
        self.owner.leave();
        context::set_carrier(ptr::null());
    }
}

impl Shared {
    /// Finds a carrier for a worker that has none: a resting one, else a new one. At the limit the
    /// worker comes back.
    pub(crate) fn place(&self, worker: NonNull<Worker>) -> Placed {
        self.place_or(worker, Shared::give_to_wanted)
    }

    /// The same without those that keep fibers which want to be alone.
    pub(crate) fn place_free(&self, worker: NonNull<Worker>) -> Placed {
        self.place_or(worker, Shared::give_to_wanted_free)
    }

    fn place_or(
        &self,
        worker: NonNull<Worker>,
        otherwise: fn(&Shared, NonNull<Worker>) -> bool,
    ) -> Placed {
        let rests = || {
            self.resting
                .claim_any(0)
                .or_else(|| self.homes.claim_any(0))
        };
        while let Some(index) = rests() {
            // Fails if the carrier got a worker by another way; then it has no need of ours.
            if self.carrier(index).receive(worker).is_ok() {
                return Ok(());
            }
        }
        if self.start_carrier(worker).is_ok() || otherwise(self, worker) {
            return Ok(());
        }
        self.refused_carriers.fetch_add(1, Relaxed);
        Err(worker)
    }

    /// Gives a worker to a carrier that asked for one.
    fn give_to_wanted(&self, worker: NonNull<Worker>) -> bool {
        while let Some(index) = self.wanted.claim_any(0) {
            if self.carrier(index).receive(worker).is_ok() {
                return true;
            }
        }
        false
    }

    /// The same, to one that keeps nobody; the others go on waiting.
    fn give_to_wanted_free(&self, worker: NonNull<Worker>) -> bool {
        for index in 0..self.settings.max_carriers {
            // It does not begin to keep anybody while it holds no worker.
            if !self.keeps.contains(index)
                && self.wanted.claim(index)
                && self.carrier(index).receive(worker).is_ok()
            {
                return true;
            }
        }
        false
    }

    /// Takes a worker from a carrier that is outside runtime code and gives it to another one.
    pub(crate) fn take_and_place(&self, worker: &Worker) -> bool {
        let Some(carrier) = worker.carrier() else {
            return false;
        };
        if self.is_stopping() {
            return false;
        }
        // Perhaps not `worker` any more but the one this carrier holds now: as good.
        // SAFETY: I17: called while the worker is in our hand and the mark is down.
        let take = || unsafe { carrier.take_runnable() };
        let taken = carrier.owner.take(|| carrier.sleeps(), take);
        let Some((taken, fibers)) = taken else {
            carrier.bell.ring(); // given back: in case it noticed
            return false;
        };
        self.release_taken(carrier, fibers);
        match self.place(taken) {
            Ok(()) => true,
            Err(taken) => {
                // No thread to be had. If it noticed meanwhile it waits for one.
                if let Err(taken) = carrier.take_back(taken) {
                    let _with_it_or_elsewhere = carrier.keep(taken);
                }
                carrier.bell.ring(); // it may have noticed, and waits
                false
            }
        }
    }
}
