#![expect(unsafe_code, reason = "fills records and queues them")]
//! Spawning: from a closure to a queued fiber.
//!
//! On a worker of the same runtime the record comes from the worker's slab and the fiber goes into
//! its LIFO slot. Any other thread takes a record from the slab behind the lock and pushes to the
//! global queue.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::error::{JoinError, SpawnError};
use crate::fiber::job::{self, Job, Packed};
use crate::fiber::record::{ANY_WORKER, Name, NewFiber};
use crate::fiber::slab::Slab;
use crate::fiber::{FiberRef, Held, Record};
use crate::sched::Shared;
use crate::sched::workers::context::{self, Entered};
use crate::sched::workers::worker::WakeReason;
use crate::sys::fork;
use crate::util::loom::atomic::fence;
use crate::util::loom::lock;

/// What a caller specifies about its fiber; the runtime adds itself.
pub(crate) struct SpawnRequest {
    pub(crate) birth: NewFiber,
    /// The worker to start on, if that worker sleeps.
    pub(crate) preferred: Option<usize>,
}

/// Which limits a spawn respects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Refuse beyond the largest number of stacks.
    Stacks,
    /// Queue until there is a stack.
    None,
}

impl Shared {
    /// Checks everything that can be wrong with a spawn.
    #[inline]
    pub(crate) fn admit(&self, request: &SpawnRequest, limit: Limit) -> Result<(), SpawnError> {
        if self.is_closing() {
            return Err(refusal());
        }
        let worker = request.birth.worker;
        if worker != ANY_WORKER && worker as usize >= self.workers.len() {
            let workers = self.workers.len();
            return Err(SpawnError::NoSuchWorker {
                worker: worker as usize,
                workers,
            });
        }
        match self.fiber_limit {
            Some(limit_) if limit == Limit::Stacks && self.alive() >= limit_ as u64 => {
                Err(SpawnError::TooManyFibers { limit: limit_ })
            }
            _ => Ok(()),
        }
    }

    /// Queues a new fiber and returns its handle's reference.
    ///
    /// Returns the closure if the runtime began to shut down since [`admit`](Self::admit), or
    /// belongs to the parent of a fork. [`refusal`] returns the reason.
    ///
    /// # Safety
    /// Whatever `f` borrows outlives the fiber.
    pub(crate) unsafe fn spawn<F, T>(&self, request: SpawnRequest, f: F) -> Result<Held, F>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let SpawnRequest {
            mut birth,
            preferred,
        } = request;
        birth.runtime = std::ptr::from_ref(self).cast_mut().cast();
        let assigned = birth.worker;
        let f = Job::pack(f); // allocates, so before all else
        let token = context::enter().filter(|t| std::ptr::eq(t.carrier().shared(), self));
        let Some(mut token) = token else {
            if fork::in_child() {
                return Err(f.unpack());
            }
            let guard = context::disable_preempt(); // no worker, or another runtime's
            // Counted first: either the shutdown sees the count and waits, or we see that it has
            // begun.
            self.outside_spawned.fetch_add(1, SeqCst);
            if self.is_closing() {
                self.outside_spawned.fetch_sub(1, SeqCst);
                self.tell_observers();
                return Err(f.unpack());
            }
            let counted = Uncount(self);
            let mut outside = lock(&self.outside);
            let slab = outside.as_mut().expect("taken when the runtime is dropped");
            let free = slab.take();
            // SAFETY: by the caller's promise.
            let (fiber, handle, former) = unsafe { fill(free, birth, f) };
            drop(outside);
            std::mem::forget(counted);
            self.queue_from_outside(fiber, assigned, preferred);
            drop(guard);
            drop(former); // frees, so after all else
            return Ok(handle);
        };
        let free = token.local().slab.take();
        // SAFETY: by the caller's promise.
        let (fiber, handle, former) = unsafe { fill(free, birth, f) };
        token.worker().counters.spawned.add(1);
        match assigned {
            ANY_WORKER => self.queue_unstarted(&token, fiber, preferred),
            worker => self.assign(worker as usize, fiber),
        }
        drop(token);
        drop(former);
        Ok(handle)
    }

    #[inline]
    fn queue_unstarted(&self, token: &Entered, fiber: FiberRef, preferred: Option<usize>) {
        let worker = token.worker();
        if preferred.is_some_and(|p| p != worker.index) && self.assign_if_asleep(preferred, fiber) {
            return;
        }
        match worker.lifo.replace(fiber) {
            None => {} // the usual case; the monitor looks after the slot
            Some(older) => {
                self.push_local(worker, older);
                self.notify_searcher_from(worker);
            }
        }
    }

    fn queue_from_outside(&self, fiber: FiberRef, assigned: u16, preferred: Option<usize>) {
        if assigned != ANY_WORKER {
            self.assign(assigned as usize, fiber);
        } else if !self.assign_if_asleep(preferred, fiber) {
            let id = fiber.id(); // once it is pushed, it may end
            self.global.unstarted.push(fiber);
            let sent = self.notify_searcher(0);
            if !sent {
                self.has_urgent.store(true, Relaxed);
                self.make_room(id, None);
            }
            self.count_wake(sent);
        }
    }

    /// Queues an unstarted fiber again.
    pub(crate) fn queue_again(&self, fiber: FiberRef) {
        let assigned = fiber.worker.load(Relaxed);
        self.queue_from_outside(fiber, assigned, None);
    }

    /// Queues a fiber for the worker it must start on.
    fn assign(&self, index: usize, fiber: FiberRef) {
        let worker = &self.workers[index];
        // SAFETY: a new fiber, in no list, alive while it is queued (I3).
        unsafe { worker.assigned.post(fiber.pointer()) };
        fence(SeqCst);
        if self.idle.claim(index) {
            self.notify_worker(worker, WakeReason::TO_WORK);
        } else if self.count.is_retired(index) {
            self.release_assigned(worker);
        }
    }

    /// Queues a fiber for a preferred worker that sleeps; false if there is none.
    fn assign_if_asleep(&self, preferred: Option<usize>, fiber: FiberRef) -> bool {
        let Some(index) = preferred.filter(|&p| p < self.workers.len()) else {
            return false;
        };
        if !self.idle.claim(index) {
            return false;
        }
        // SAFETY: as in `assign`.
        unsafe { self.workers[index].assigned.post(fiber.pointer()) };
        self.notify_worker(&self.workers[index], WakeReason::TO_WORK);
        true
    }
}

/// The reason why a runtime accepts no more fibers.
#[cold]
pub(crate) fn refusal() -> SpawnError {
    if fork::in_child() {
        SpawnError::Forked
    } else {
        SpawnError::ShuttingDown
    }
}

/// Undoes a count if there is no memory for the fiber's record.
struct Uncount<'a>(&'a Shared);

impl Drop for Uncount<'_> {
    fn drop(&mut self) {
        self.0.outside_spawned.fetch_sub(1, SeqCst);
        self.0.tell_observers();
    }
}

/// Makes a fiber of a free record; also returns the name that was left in it.
///
/// # Safety
/// The record comes from a slab just now, and whatever `f` borrows outlives the fiber.
#[inline]
unsafe fn fill<F, T>(
    (record, id): (NonNull<Record>, u64),
    birth: NewFiber,
    f: Packed<F>,
) -> (FiberRef, Held, Option<Name>)
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // SAFETY: a free record: ours alone, and slab memory stays valid.
    let place: &Record = unsafe { record.as_ref() };
    // SAFETY: not queued yet; what it borrows is the caller's promise.
    unsafe { place.job.store(f) };
    let former = place.init(id, birth);
    let (fiber, handle) = both(record);
    (fiber, handle, former)
}

fn both(record: NonNull<Record>) -> (FiberRef, Held) {
    // SAFETY: I3: the caller queues it.
    let fiber = unsafe { FiberRef::new(record) };
    // SAFETY: born with the handle's reference, adopted here and nowhere else.
    let handle = unsafe { Held::adopt(fiber) };
    (fiber, handle)
}

/// A slab of records for a worker or a runtime that has none.
pub(crate) fn obtain_slab() -> Slab {
    let _guard = context::disable_preempt();
    Slab::obtain()
}

/// Makes a handle for a closure that was refused: its fiber is over before it starts.
///
/// The closure is dropped.
pub(crate) fn refused<F, T>(birth: NewFiber, f: F) -> Held
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let f = Job::pack(f);
    let guard = context::disable_preempt();
    let mut slab = Slab::obtain();
    // SAFETY: dropped below, before anything it borrows can end.
    let (fiber, handle, former) = unsafe { fill(slab.take(), birth, f) };
    slab.retire();
    drop(guard);
    drop(former);
    context::assert_preemptible();
    // SAFETY: it never ran and is in no queue.
    unsafe { Job::fail(&fiber, JoinError::cancelled(fiber.id())) };
    let _nobody_waits_yet = job::complete(&fiber.join);
    fiber.state.finish();
    let _the_handle_is_left = fiber.end();
    handle
}

/// Calls `f` with the current runtime, or returns `f` if there is none.
///
/// That is the runtime of the calling fiber, or of the fibers for which the calling thread runs
/// closures.
#[inline]
pub(crate) fn with_current<R, F: FnOnce(&Shared) -> R>(f: F) -> Result<R, F> {
    let Some(fiber) = context::current_fiber() else {
        return match context::served() {
            Some(runtime) => Ok(f(&runtime)),
            None => Err(f),
        };
    };
    let runtime = fiber.runtime.load(Acquire).cast::<Shared>();
    // SAFETY: set at birth from a `Shared`, which lives until its fibers are over; we are one.
    Ok(f(unsafe { &*runtime }))
}
