#![expect(unsafe_code, reason = "carriers are shared by pointer; see the header")]
//! Carriers: OS threads that can hold a worker, and how they get and lose one.
//!
//! A carrier is in one of these states:
//!
//! | state | worker | what its thread does | how a worker comes to it |
//! |---|---|---|---|
//! | holding | yes | runs the scheduler loop, or a fiber | |
//! | spare | no | waits at the bottom of its stack, without a fiber | set `spares` |
//! | occupied | no | waits with a parked fiber bound to it | with its tenant (`tenant.rs`) |
//! | frozen | no | waits in the middle of an interrupted fiber | set `frozen` (`freeze.rs`) |
//! | wanting | no | waits in the middle of a fiber whose worker was taken | set `wanted` |
//! | detached | no | runs or sleeps in the kernel, in the middle of a fiber | none (`detach.rs`) |
//!
//! The sets hold numbers of carriers (claims as in `bitmap.rs`): the thread that claims a carrier
//! owes it a worker. A worker moves from carrier to carrier with its queues, so nothing is sorted
//! when it leaves.
//!
//! A `Carrier` lives as long as `Shared`; its thread keeps `Shared` alive. A thread ends only with
//! no worker and no fiber. Its number is then given to the next thread.
//!
//! In the docs of functions, *own thread* means that only the carrier's own thread may call the
//! function, and *any thread* that every thread may.

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

/// How long a spare thread beyond those that are kept waits for a worker before it ends.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A thread that can run fibers, with its owner word and its tenant.
///
/// Aligned to a pair of cache lines, because another thread writes its neighbour in the table.
#[repr(align(128))]
pub(crate) struct Carrier {
    pub(crate) index: usize,
    shared: NonNull<Shared>,
    pub(crate) owner: Owner<Worker>,
    pub(crate) parker: Parker,
    /// The switched-out fiber that has this thread to itself, or null. Written by the own thread,
    /// and by the thread that holds the fiber when that thread finds that the fiber may leave.
    tenant: AtomicPtr<Record>,
    /// The runnable tenant on its way to the worker on this thread.
    delivered: Slot<Record>,
    /// The fiber that runs now. From here on: own thread only.
    pub(crate) current: Cell<Option<FiberRef>>,
    /// Operations left in this dispatch.
    pub(crate) budget: Cell<u32>,
    /// How long that fiber has run. Written by the own thread and read by the monitor.
    pub(crate) run_time: RunTime,
    /// Whether the fiber that was last interrupted and left was outside every region.
    pub(crate) outside_region: Cell<bool>,
    /// Whether its thread ends with its fiber (`retire.rs`).
    pub(crate) retires: Cell<bool>,
    /// The thread-locals of fibers that live in its thread's memory.
    pub(crate) block: Block,
    /// What its signal handler needs. Set before the thread runs a fiber.
    own: UnsafeCell<Own>,
    /// Its thread, for the monitor. From here on: used by any thread.
    pub(crate) thread: Thread,
    pub(crate) preempt: PreemptState,
    /// On which CPUs its thread may run.
    placement: Placement,
    /// Whether it rests as a spare in excess, and ends unless it is needed soon. Set by the
    /// monitor.
    pub(crate) rests_in_excess: AtomicBool,
}

/// What the signal handler of a carrier's thread needs.
#[derive(Default)]
pub(crate) struct Own {
    /// Calls the handler again after a time. Made when it is first needed.
    pub(crate) alarm: Option<Alarm>,
    /// The stack its handlers run on.
    pub(crate) signal_stack: Range<usize>,
    /// Properties of this thread that a fiber must not have when it leaves at an instruction; see
    /// `anywhere.rs`.
    pub(crate) identity: Option<Identity>,
}

// SAFETY: the cells are touched by the carrier's own thread only; the rest is atomic.
unsafe impl Sync for Carrier {}
// SAFETY: as above; a carrier is made by one thread before its own thread starts.
unsafe impl Send for Carrier {}

/// Whether a worker has found a carrier; if not, the worker is returned.
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

    /// Whether this carrier seems to wait with its tenant and without a worker. Any thread.
    pub(crate) fn waits_with_tenant(&self) -> bool {
        self.has_tenant() && self.owner.peek().is_none()
    }

    /// Makes `fiber`, which has switched out here and is bound to this thread, the tenant.
    ///
    /// Own thread, in the scheduler.
    #[inline]
    pub(crate) fn let_in(&self, fiber: FiberRef) {
        let here = ptr::from_ref(self).cast_mut().cast();
        fiber.thread.store(here, atomic::Ordering::Relaxed); // its park publishes the store
        self.tenant.store(fiber.pointer().as_ptr(), SeqCst);
    }

    /// Ends the tenancy: the tenant runs again, or is found to be movable.
    ///
    /// The caller holds the tenant (I1).
    #[inline]
    pub(crate) fn let_out(&self, fiber: FiberRef) {
        fiber
            .thread
            .store(ptr::null_mut(), atomic::Ordering::Relaxed);
        self.tenant.store(ptr::null_mut(), SeqCst);
    }

    /// Takes the tenant if it was delivered. Own thread, in the scheduler.
    #[inline]
    pub(crate) fn delivered(&self) -> Option<FiberRef> {
        self.delivered.take().map(popped)
    }

    /// Whether the tenant was delivered. Own thread, in the scheduler.
    #[inline]
    pub(crate) fn has_delivery(&self) -> bool {
        !self.delivered.is_empty()
    }

    /// Leaves this carrier's runnable tenant to the worker on this thread.
    ///
    /// For any thread that holds the tenant. False if there is no worker; the caller then still has
    /// the tenant.
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

    /// Gives up the owner word and takes along a tenant that was delivered meanwhile (I10).
    ///
    /// Own thread, preemption disabled, with a worker that is its own to use.
    pub(crate) fn leave_with_delivery(&self) -> NonNull<Worker> {
        let worker = self.owner.surrender();
        if let Some(fiber) = self.delivered.take_after_leaving().map(popped) {
            // SAFETY: workers live as long as `Shared`.
            self.shared().push_local(unsafe { worker.as_ref() }, fiber);
        }
        worker
    }

    /// Asks for a worker in the middle of a fiber and waits for it. Preemption is disabled.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_for_worker(&self) -> NonNull<Worker> {
        self.shared().detached.claim(self.index);
        self.owner.come_back();
        self.shared().want(self.index);
        let worker = self.wait_for_worker();
        // If a worker came another way (a taker gave ours back), the request is void.
        self.shared().wanted.claim(self.index);
        // SAFETY: workers live as long as `Shared`.
        self.publish(unsafe { worker.as_ref() });
        worker
    }

    /// Records that this worker runs the fiber on this thread from here on.
    ///
    /// In the middle of a fiber, preemption disabled.
    pub(crate) fn publish(&self, worker: &Worker) {
        self.shared().awake(worker);
        worker.published.dispatch();
    }

    /// Undoes a release of this carrier, which waits for a worker.
    ///
    /// Own thread, preemption disabled. The releasing thread took this carrier for a frozen one.
    pub(crate) fn ignore_release(&self) {
        if self.owner.is_released() {
            self.owner.come_back();
        }
    }

    /// Sleeps until this carrier is given a worker. Own thread, preemption disabled.
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

    /// Gives this carrier's worker to `other`, which the caller claimed.
    ///
    /// False if `other` has got a worker another way; this carrier then keeps its worker. True
    /// means that the caller's token is void.
    pub(crate) fn hand_to(&self, other: &Carrier) -> bool {
        let worker = self.leave_with_delivery();
        if other.receive(worker).is_ok() {
            return true;
        }
        !self.keep(worker)
    }

    /// Gives this carrier's worker to a carrier without a fiber.
    ///
    /// False if there is no such thread and none can be started; this carrier then keeps its
    /// worker. True means that the caller's token is void.
    pub(crate) fn hand_over(&self) -> bool {
        match self.shared().place(self.leave_with_delivery()) {
            Ok(()) => true,
            Err(worker) => !self.keep(worker),
        }
    }

    /// Takes back a worker that found no other place; true if this carrier holds it again.
    ///
    /// If this carrier has been given another worker meanwhile (another thread still followed an
    /// old request), looks for a place again. The caller's token is void then.
    #[must_use]
    pub(crate) fn keep(&self, worker: NonNull<Worker>) -> bool {
        let Err(worker) = self.accept(worker) else {
            return true; // our own thread, so no thread needs to be notified
        };
        if let Err(worker) = self.shared().place(worker) {
            self.shared().place_quietly(worker); // I20
        }
        false
    }

    /// Gives back the worker that was taken from this carrier, if its thread has not noticed.
    ///
    /// For any thread that took the worker.
    fn take_back(&self, worker: NonNull<Worker>) -> Placed {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        word.store(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner.give_back(worker)
    }

    /// Gives a worker to this carrier and notifies its thread. Any thread.
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

    /// Waits at the bottom of the stack for a worker, or until this thread is not needed.
    ///
    /// Own thread, preemption disabled.
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
                self.spread_out(); // a hook of the program runs at the end
                return Rested::End;
            }
            if self.has_tenant() {
                self.drop_alarm();
                self.parker.wait(None);
            } else if self.retires() {
                // If this fails, a worker has just come.
                if self.owner.close() {
                    shared.retired_carriers.fetch_add(1, Relaxed);
                    return Rested::End;
                }
            } else if !listed {
                shared.spares.set(self.index);
                listed = true; // before the wait, the loop looks for a worker again
            } else if !shared.has_too_many_spares() {
                // Before the wait: if the monitor finds it in excess from here on, it notifies this
                // thread.
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

    /// Gives this carrier, which waits for it, a worker, and makes it run on the caller's CPU.
    ///
    /// For any thread that is about to stop. May be called in a signal handler.
    pub(crate) fn receive_here(&self, worker: NonNull<Worker>) -> Placed {
        let number = self.thread.number().filter(|_| self.placement.claim());
        let given = self.accept(worker);
        if let Some(number) = number {
            match given {
                Ok(()) => self.placement.narrow(number, &self.shared().allowed_cpus),
                // It has got a worker another way, and may already run.
                Err(_) => self.placement.leave_wide(),
            }
        }
        given.inspect(|()| self.parker.notify())
    }

    /// Lets this thread run on all CPUs again. Own thread, before it runs user code.
    #[inline]
    pub(crate) fn spread_out(&self) {
        self.placement.widen(&self.shared().allowed_cpus);
    }

    /// Lets a new thread run on all CPUs, wherever the thread that made it may run. Own thread.
    pub(crate) fn begin_spread_out(&self) {
        self.placement.begin(&self.shared().allowed_cpus);
    }

    /// Enables preemption again and follows a request that came while it was disabled.
    ///
    /// Own thread only.
    #[inline]
    pub(crate) fn leave(&self) {
        self.owner.leave();
        compiler_fence(SeqCst); // the handler sees preemption enabled, or we see its request
        if self.preempt.request.is_some() && self.owner.depth() == 0 {
            self.look_at_request();
        }
    }

    /// Sets what the signal handler needs. Own thread, before and after it runs fibers.
    pub(crate) fn set_own(&self, own: Own) {
        // SAFETY: own thread, and no handler needs it now: no thread has sent this thread a
        // request.
        unsafe { *self.own.get() = own };
    }

    /// Sets the thread's properties that a leaving fiber must not have. Own thread, before it runs
    /// a fiber.
    pub(crate) fn set_identity(&self, identity: Option<Identity>) {
        let own = self.own.get();
        // SAFETY: own thread; no handler looks at it before there is a fiber.
        unsafe { (*own).identity = identity };
    }

    pub(crate) fn own(&self) -> &Own {
        // SAFETY: own thread; written only before and after it runs fibers, except for the alarm.
        unsafe { &*self.own.get() }
    }

    /// Has the signal handler called after this time; false if the kernel has no timer for it.
    ///
    /// Own thread, preemption disabled. The timer is made when it is first needed, because most
    /// threads never need one, and parked threads must be cheap.
    pub(crate) fn set_alarm(&self, after: Duration) -> bool {
        // SAFETY: own thread, preemption disabled, so no handler that could use it is running,
        // except perhaps this one.
        let alarm = unsafe { &mut (*self.own.get()).alarm };
        if alarm.is_none() {
            *alarm = Alarm::new(interrupt::signal(), interrupt::ours());
        }
        if let Some(alarm) = alarm {
            alarm.set(after);
        }
        alarm.is_some()
    }

    /// Frees the alarm before this thread parks with its tenant, perhaps for long.
    ///
    /// Own thread, preemption disabled.
    fn drop_alarm(&self) {
        // SAFETY: as in `set_alarm`.
        unsafe { (*self.own.get()).alarm = None };
    }

    /// Whether this address is on the stack where handlers run. Own thread.
    pub(crate) fn on_signal_stack(&self, address: usize) -> bool {
        self.own().signal_stack.contains(&address)
    }

    /// Gives the thread its `worker` before it starts.
    pub(crate) fn open_with(&self, worker: NonNull<Worker>) {
        // SAFETY: workers live as long as `Shared`.
        let word = unsafe { &worker.as_ref().carrier };
        word.store(ptr::from_ref(self).cast_mut(), SeqCst);
        self.owner.open(worker);
    }

    /// Runs the thread from its first wait for a worker to its end.
    pub(crate) fn live(&self, spare: bool) {
        context::set_carrier(self);
        self.retires.set(false);
        if spare {
            self.owner.open_empty();
        }
        // Preemption was disabled before the thread started: it is disabled in the scheduler, and
        // fibers enable it.
        self.block.begin(self.shared().settings.own_locals);
        let mut first = spare;
        while let Rested::Holding = self.rest(std::mem::take(&mut first)) {
            if let run::Left::Stopping = run::run_fibers() {
                break;
            }
        }
        while self.has_tenant() {
            self.parker.wait(None); // abandoned: other threads may point into this thread's memory
        }
        self.block.end();
        self.owner.leave();
        context::set_carrier(ptr::null());
    }
}

impl Shared {
    /// Finds a carrier without a fiber for a worker: a spare, or else a new thread.
    ///
    /// Returns the worker if the system refuses a thread.
    pub(crate) fn place(&self, worker: NonNull<Worker>) -> Placed {
        while let Some(index) = self.spares.claim_any() {
            // Fails if the carrier got a worker another way; then it does not need ours.
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

    /// Takes a worker from a carrier that is outside runtime code and gives it to another carrier.
    pub(crate) fn take_and_place(&self, worker: &Worker) -> bool {
        let Some(carrier) = worker.carrier() else {
            return false;
        };
        if self.is_stopping() {
            return false;
        }
        // Takes the worker that this carrier holds now. It need not be `worker` any more; any will
        // do.
        let Some((taken, ())) = carrier.owner.take(|| carrier.sleeps(), || ()) else {
            carrier.parker.notify(); // given back: the carrier may have noticed, and waits
            return false;
        };
        match self.place(taken) {
            Ok(()) => true,
            Err(taken) => {
                // There is no thread. If the carrier noticed meanwhile, it waits for a worker.
                if let Err(taken) = carrier.take_back(taken) {
                    let _with_it_or_elsewhere = carrier.keep(taken);
                }
                carrier.parker.notify(); // it may have noticed, and waits
                false
            }
        }
    }
}
