#![expect(unsafe_code, reason = "carriers are shared by pointer; see the header")]
//! The OS thread that can hold a worker, and how it gets and loses one.
//!
//! A carrier is in one of these states:
//!
//! | state | worker | what its thread does | how a worker comes to it |
//! |---|---|---|---|
//! | holding | yes | runs the scheduler loop, or a fiber | |
//! | spare | no | waits at the bottom of its stack; it has no fiber | set `spares` |
//! | occupied | no | the same, but it has a tenant: a parked fiber that is bound to it | with its tenant (`tenant.rs`) |
//! | frozen | no | waits in the middle of a fiber that was interrupted | set `frozen` (`freeze.rs`) |
//! | wanting | no | waits in the middle of a fiber whose worker was taken | set `wanted` |
//! | detached | no | runs, or sleeps in the kernel, in the middle of a fiber | none; see `detach.rs` |
//!
//! The sets hold numbers of carriers (claims as in `bitmap.rs`): the thread that claims a carrier
//! owes it a worker. A worker moves from carrier to carrier with its queues; nothing is sorted when
//! it leaves.
//!
//! A `Carrier` lives as long as `Shared`; its thread keeps `Shared` alive. A thread ends only with
//! no worker and no fiber, and its number is given to the next one.

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, Ordering::Relaxed, Ordering::SeqCst, compiler_fence,
};
use std::time::Duration;

use indent_sysmon::Thread;

use crate::fiber::locals::Block;
use crate::fiber::{FiberRef, Record};
use crate::queue::lane::popped;
use crate::sched::Shared;
use crate::sched::diag::overrun::RunTime;
use crate::sched::preempt::anywhere::Identity;
use crate::sched::preempt::freeze::PreemptState;
use crate::sched::preempt::interrupt;
use crate::sched::threads::owner::Owner;
use crate::sched::threads::tenant::{Delivered, Slot};
use crate::sched::workers::context;
use crate::sched::workers::run;
use crate::sched::workers::worker::{WakeReason, Worker};
use crate::sys::affinity::Placement;
use crate::sys::alarm::Alarm;
use crate::sys::parker::Parker;
use crate::util::loom::atomic;

/// How long a spare thread beyond those that are kept waits for the next fiber before it ends.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Aligned to a pair of cache lines: its neighbour in the table is written by another thread.
#[repr(align(128))]
pub(crate) struct Carrier {
    pub(crate) index: usize,
    shared: NonNull<Shared>,
    pub(crate) owner: Owner<Worker>,
    pub(crate) parker: Parker,
    /// The switched-out fiber that has this thread to itself, or null. Written by the own thread,
    /// and by the thread that holds the fiber when it finds that the fiber may leave.
    tenant: AtomicPtr<Record>,
    /// The tenant, runnable, on its way to the worker that is here.
    delivered: Slot<Record>,
    /// The fiber that runs now. From here on: own thread only.
    pub(crate) current: Cell<Option<FiberRef>>,
    /// Operations left in this dispatch.
    pub(crate) budget: Cell<u32>,
    /// How long that fiber has run; written by the own thread, and read by the monitor.
    pub(crate) run_time: RunTime,
    /// The fiber that was interrupted last, and left, was in no region.
    pub(crate) outside_region: Cell<bool>,
    /// Its thread ends with its fiber (`retire.rs`).
    pub(crate) retires: Cell<bool>,
    /// The thread-locals of fibers in its thread's memory.
    pub(crate) block: Block,
    /// What its handler needs; set before the thread runs a fiber.
    own: UnsafeCell<Own>,
    /// Its thread, for the monitor. From here on: any thread.
    pub(crate) thread: Thread,
    pub(crate) preempt: PreemptState,
    /// On which CPUs its thread may run.
    placement: Placement,
    /// It rests as a spare in excess, and ends unless it is needed before long. Set by the monitor.
    pub(crate) rests_in_excess: AtomicBool,
}

/// Of the thread of a carrier.
#[derive(Default)]
pub(crate) struct Own {
    /// Reminds the handler; made when it is first needed.
    pub(crate) alarm: Option<Alarm>,
    /// The stack its handlers run on.
    pub(crate) signal_stack: Range<usize>,
    /// What a fiber must not have of it when it leaves at an instruction; see `anywhere.rs`.
    pub(crate) identity: Option<Identity>,
}

// SAFETY: the cells are touched by the carrier's own thread only; the rest is atomic.
unsafe impl Sync for Carrier {}
// SAFETY: as above; a carrier is made by one thread before its own thread starts.
unsafe impl Send for Carrier {}

/// Whether a worker has found a carrier; if not, it comes back.
pub(crate) type Placed = Result<(), NonNull<Worker>>;

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
            parker: Parker::new(),
            tenant: AtomicPtr::new(ptr::null_mut()),
            delivered: Slot::new(),
            current: Cell::new(None),
            budget: Cell::new(0),
            run_time: RunTime::default(),
            outside_region: Cell::new(false),
            retires: Cell::new(false),
            block: Block::new(),
            own: UnsafeCell::default(),
            thread: Thread::new(),
            preempt: PreemptState::default(),
            placement: Placement::new(),
            rests_in_excess: AtomicBool::new(false),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: `Shared` owns its carriers and outlives them.
        unsafe { self.shared.as_ref() }
    }

    /// Whether a switched-out fiber has this thread to itself.
    #[inline]
    pub(crate) fn has_tenant(&self) -> bool {
        !self.tenant.load(SeqCst).is_null()
    }

    /// Any thread: whether it seems to wait, without a worker, with its tenant.
    pub(crate) fn waits_with_tenant(&self) -> bool {
        self.has_tenant() && self.owner.peek().is_none()
    }

    /// Own thread, in the scheduler: `fiber` has switched out here and is bound to this thread.
    #[inline]
    pub(crate) fn let_in(&self, fiber: FiberRef) {
        let here = ptr::from_ref(self).cast_mut().cast();
        fiber.thread.store(here, atomic::Ordering::Relaxed); // its park releases it
        self.tenant.store(fiber.pointer().as_ptr(), SeqCst);
    }

    /// The tenant, which the caller holds (I1), runs again, or is found to be movable.
    #[inline]
    pub(crate) fn let_out(&self, fiber: FiberRef) {
        fiber
            .thread
            .store(ptr::null_mut(), atomic::Ordering::Relaxed);
        self.tenant.store(ptr::null_mut(), SeqCst);
    }

    /// Own thread, in the scheduler: the tenant, if it was delivered.
    #[inline]
    pub(crate) fn delivered(&self) -> Option<FiberRef> {
        self.delivered.take().map(popped)
    }

    /// Own thread, in the scheduler: whether the tenant was delivered.
    #[inline]
    pub(crate) fn has_delivery(&self) -> bool {
        !self.delivered.is_empty()
    }

    /// Any thread that holds this carrier's runnable tenant: leaves it to the worker that is here.
    /// False if there is none, and the tenant is still the caller's.
    pub(crate) fn deliver(&self, fiber: FiberRef) -> bool {
        match self.delivered.deliver(&self.owner, fiber.pointer()) {
            Delivered::To(worker) => {
                // SAFETY: workers live as long as `Shared`.
                let worker = unsafe { worker.as_ref() };
                let asleep = self.shared().idle.claim(worker.index);
                if asleep {
                    self.shared().notify_worker(worker, WakeReason::TO_WORK);
                }
                self.shared().count_wake(asleep);
                true
            }
            Delivered::Taken => true,
            Delivered::Back => false,
        }
    }

    /// Own thread, preemption disabled, and its worker in hand: gives up the owner word, and takes along a
    /// tenant that was delivered meanwhile (I10).
    pub(crate) fn leave_with_delivery(&self) -> NonNull<Worker> {
        let worker = self.owner.surrender();
        if let Some(fiber) = self.delivered.take_after_leaving().map(popped) {
            // SAFETY: workers live as long as `Shared`.
            self.shared().push_local(unsafe { worker.as_ref() }, fiber);
        }
        worker
    }

    /// In the middle of a fiber, preemption disabled: asks for a worker and waits for it.
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

    /// In the middle of a fiber, preemption disabled: this worker runs it from here on.
    pub(crate) fn publish(&self, worker: &Worker) {
        self.shared().awake(worker);
        worker.published.dispatch();
    }

    /// Own thread, preemption disabled, and it waits for a worker: somebody thought that it was frozen, and told it to go
    /// on without.
    pub(crate) fn ignore_release(&self) {
        if self.owner.is_released() {
            self.owner.come_back();
        }
    }

    /// Own thread, preemption disabled: sleeps until somebody gives a worker.
    pub(crate) fn wait_for_worker(&self) -> NonNull<Worker> {
        loop {
            self.ignore_release();
            match self.owner.peek() {
                Some(worker) => {
                    self.spread_out();
                    return worker;
                }
                None if self.shared().adopt_orphan(self) => {}
                None => drop(self.parker.wait(None)),
            }
        }
    }

    /// Gives this carrier's worker to `other`, which the caller claimed; false if that one has got
    /// a worker by another way, and ours stays. True means that the caller's token is void.
    pub(crate) fn hand_to(&self, other: &Carrier) -> bool {
        let worker = self.leave_with_delivery();
        if other.receive(worker).is_ok() {
            return true;
        }
        !self.keep(worker)
    }

    /// Gives this carrier's worker to one without a fiber; false if no thread can be had, and ours
    /// stays. True means that the caller's token is void.
    pub(crate) fn hand_over(&self) -> bool {
        match self.shared().place(self.leave_with_delivery()) {
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
        self.accept(worker).inspect(|()| self.parker.notify())
    }

    fn accept(&self, worker: NonNull<Worker>) -> Result<(), NonNull<Worker>> {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        let before = word.swap(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner
            .give(worker)
            .inspect_err(|_| word.store(before, SeqCst))
    }

    /// At the bottom of the stack, preemption disabled: until there is a worker, or no need for this thread.
    fn rest(&self, first_of_spare: bool) -> Rested {
        let shared = self.shared();
        let mut listed = first_of_spare;
        if first_of_spare {
            shared.spares.set(self.index);
            shared.watchers.starting.fetch_sub(1, SeqCst);
            shared.watchers.started.fetch_add(1, SeqCst);
        }
        loop {
            self.ignore_release();
            if self.owner.peek().is_some() {
                if listed {
                    shared.spares.claim(self.index);
                }
                self.spread_out();
                return Rested::Holding;
            }
            if !self.retires() && shared.adopt_orphan(self) {
                continue;
            }
            if shared.is_stopping() {
                shared.spares.claim(self.index);
                self.spread_out(); // a hook of the program's runs at the end
                return Rested::End;
            }
            if self.has_tenant() {
                self.drop_alarm();
                self.parker.wait(None);
            } else if self.retires() {
                // Otherwise a worker has just come.
                if self.owner.close() {
                    shared.retired_carriers.fetch_add(1, Relaxed);
                    return Rested::End;
                }
            } else if !listed {
                shared.spares.set(self.index);
                listed = true; // and looks again
            } else if !shared.has_too_many_spares() {
                // Before the wait: if the monitor finds it in excess from here on, it rings.
                self.rests_in_excess.store(false, SeqCst);
                self.parker.wait(None);
            } else if !self.parker.wait(Some(KEEP_ALIVE))
                && shared.has_too_many_spares()
                && shared.spares.claim(self.index)
            {
                if self.owner.close() {
                    return Rested::End;
                }
                listed = false; // a worker has just come
            }
        }
    }

    /// Any thread that is about to stop: gives this carrier, which waits for it, a worker, and
    /// makes it run where the caller runs. May be called in a signal handler.
    pub(crate) fn receive_here(&self, worker: NonNull<Worker>) -> Placed {
        let number = self.thread.number().filter(|_| self.placement.claim());
        let given = self.accept(worker);
        if let Some(number) = number {
            match given {
                Ok(()) => self.placement.narrow(number, &self.shared().allowed_cpus),
                // It has got one by another way, and may run by now.
                Err(_) => self.placement.leave_wide(),
            }
        }
        given.inspect(|()| self.parker.notify())
    }

    /// Own thread, before it runs user code: on all CPUs again.
    #[inline]
    pub(crate) fn spread_out(&self) {
        self.placement.widen(&self.shared().allowed_cpus);
    }

    /// Own thread, when it starts: where its maker may run is of no importance.
    pub(crate) fn begin_spread_out(&self) {
        self.placement.begin(&self.shared().allowed_cpus);
    }

    /// Own thread: preemption is enabled again, and a request that came while it was up is looked at.
    #[inline]
    pub(crate) fn leave(&self) {
        self.owner.leave();
        compiler_fence(SeqCst); // the handler sees preemption enabled, or we see its request
        if self.preempt.request.is_some() && self.owner.depth() == 0 {
            self.look_at_request();
        }
    }

    /// Own thread, before and after it runs anybody.
    pub(crate) fn set_own(&self, own: Own) {
        // SAFETY: own thread, and no handler needs it now: nobody has asked this thread for anything.
        unsafe { *self.own.get() = own };
    }

    /// Own thread, before it runs a fiber.
    pub(crate) fn set_identity(&self, identity: Option<Identity>) {
        let own = self.own.get();
        // SAFETY: own thread; no handler looks at it before there is a fiber.
        unsafe { (*own).identity = identity };
    }

    pub(crate) fn own(&self) -> &Own {
        // SAFETY: own thread; written only before and after it runs fibers, but for the alarm.
        unsafe { &*self.own.get() }
    }

    /// Own thread, preemption disabled: has its handler called after this time; false if the kernel has no
    /// timer for it. The timer is made when it is first needed, since most threads never do, and
    /// parked ones must be cheap.
    pub(crate) fn set_alarm(&self, after: Duration) -> bool {
        // SAFETY: own thread, preemption disabled, so no handler that could use it is under way but, perhaps,
        // this one.
        let alarm = unsafe { &mut (*self.own.get()).alarm };
        if alarm.is_none() {
            *alarm = Alarm::new(interrupt::signal(), interrupt::ours());
        }
        if let Some(alarm) = alarm {
            alarm.set(after);
        }
        alarm.is_some()
    }

    /// Own thread, preemption disabled: it parks with its tenant, perhaps for long.
    fn drop_alarm(&self) {
        // SAFETY: as in `set_alarm`.
        unsafe { (*self.own.get()).alarm = None };
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
        self.block.begin(self.shared().settings.own_locals);
        let mut first = spare;
        while let Rested::Holding = self.rest(std::mem::take(&mut first)) {
            if let run::Left::Stopping = run::run_fibers() {
                break;
            }
        }
        while self.has_tenant() {
            self.parker.wait(None); // abandoned: others may have addresses in this thread's memory
        }
        self.block.end();
        self.owner.leave();
        context::set_carrier(ptr::null());
    }
}

impl Shared {
    /// Finds a carrier without a fiber for a worker that has none: a spare, else a new one. If the
    /// system refuses a thread the worker comes back.
    pub(crate) fn place(&self, worker: NonNull<Worker>) -> Placed {
        while let Some(index) = self.spares.claim_any() {
            // Fails if the carrier got a worker by another way; then it has no need of ours.
            if self.carrier(index).receive(worker).is_ok() {
                return Ok(());
            }
        }
        if self.start_carrier(worker).is_ok() {
            return Ok(());
        }
        self.refused_carriers.fetch_add(1, Relaxed);
        Err(worker)
    }

    /// Takes a worker from a carrier that is outside runtime code and gives it to another one.
    pub(crate) fn take_and_place(&self, worker: &Worker) -> bool {
        let Some(carrier) = worker.carrier() else {
            return false;
        };
        if self.is_stopping() {
            return false;
        }
        // Perhaps not `worker` any more but the one this carrier holds now, which will do.
        let Some((taken, ())) = carrier.owner.take(|| carrier.sleeps(), || ()) else {
            carrier.parker.notify(); // given back: in case it noticed
            return false;
        };
        match self.place(taken) {
            Ok(()) => true,
            Err(taken) => {
                // No thread to be had. If it noticed meanwhile it waits for one.
                if let Err(taken) = carrier.take_back(taken) {
                    let _with_it_or_elsewhere = carrier.keep(taken);
                }
                carrier.parker.notify(); // it may have noticed, and waits
                false
            }
        }
    }
}
