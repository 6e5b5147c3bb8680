#![expect(
    unsafe_code,
    reason = "wakes waiters by address, and knows runtimes and threads by pointer"
)]
//! Making a parked fiber, or a plain thread, run again.
//!
//! A fiber that may run on any thread goes to the worker of its waker. One that is bound to a
//! thread is left to the worker on that thread, if there is one (`tenant.rs`), and else queued like
//! the others.
//!
//! From the moment the state word gives a fiber to its waker until it is in a queue, nobody else can
//! run it: preemption is disabled for as long (S6). So it is from the swap of a word that holds a waiter until
//! the waiter is called, since who finds the word swapped waits for the call. What may be the last
//! reference to something, [`DeferredDrop`], is dropped afterwards: that frees memory, and a runtime holds
//! things of the user's.

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use crate::fiber::FiberRef;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Notify, Signal, Woken};
use crate::sched::Shared;
use crate::sched::block::suspend;
use crate::sched::preempt::class;
use crate::sched::threads::carrier::Carrier;
use crate::sched::threads::plain::ThreadParker;
use crate::sched::workers::context;
use crate::sched::workers::context::{Entered, PreemptGuard};
use crate::sched::workers::latency;
use crate::sys::fork;
use crate::util::loom::atomic::{
    self, AtomicU32,
    Ordering::{Acquire, Release},
};
use crate::util::loom::pause;

/// Somebody who waits for one call. It lies on the waiter's stack and others know its address,
/// so the waiter stays until it was called, or has made sure that nobody will call.
///
/// The caller says that it is calling, makes the fiber runnable, says that it has called, and queues the
/// fiber. After the third step the waiter may leave its stack: if the second gave the fiber to the caller it
/// cannot before the fourth (I1), else there is no fourth. Whoever finds himself awake and being called
/// waits for the third step: the caller has the preemption disabled (S6). So nobody counts references. A plain thread
/// goes its own way as soon as it was called, and is woken by a reference of the caller's.
pub(crate) struct Waiter {
    who: Who,
    called: AtomicU32,
}

const NOT_CALLED: u32 = 0;
const BEING_CALLED: u32 = 1;
const CALLED: u32 = 2;

enum Who {
    /// The waiter's own: it is not over while it waits (I3).
    Fiber(FiberRef),
    Thread(Arc<ThreadParker>),
}

impl Waiter {
    /// The calling fiber or plain thread.
    #[inline]
    pub(crate) fn caller() -> Self {
        Self::new(match context::current_fiber() {
            Some(fiber) => Who::Fiber(fiber),
            None => Who::Thread(context::thread_parker()),
        })
    }

    /// The calling fiber, by the mark; `None` on a plain thread. Nothing is allocated.
    #[inline]
    pub(crate) fn of_fiber(guard: &PreemptGuard) -> Option<Self> {
        guard.fiber().map(|fiber| Self::new(Who::Fiber(fiber)))
    }

    /// One more of the same fiber or thread, for another call. A thread is not asked for its parker again: at its
    /// end it has none of its own.
    pub(crate) fn another(&self) -> Self {
        Self::new(match &self.who {
            Who::Fiber(fiber) => Who::Fiber(*fiber),
            Who::Thread(parker) => Who::Thread(parker.clone()),
        })
    }

    fn new(who: Who) -> Self {
        Waiter {
            who,
            called: AtomicU32::new(NOT_CALLED),
        }
    }

    /// A thread of a model, which has no thread-locals.
    #[cfg(all(test, indent_loom))]
    pub(crate) fn of_model() -> Self {
        Self::new(Who::Thread(ThreadParker::new()))
    }

    /// Parks the caller, whose waiter this is.
    pub(crate) fn park(
        &self,
        deadline: Option<Instant>,
        reason: ParkReason,
        cancel: Cancel,
    ) -> Woken {
        suspend::charge();
        self.park_charged(deadline, reason, cancel)
    }

    /// The same for an operation that was charged ahead.
    pub(crate) fn park_charged(
        &self,
        deadline: Option<Instant>,
        reason: ParkReason,
        cancel: Cancel,
    ) -> Woken {
        match &self.who {
            Who::Fiber(_) => {
                let woken = suspend::park_charged(deadline, reason, cancel, Signal::Notify);
                woken.expect("on the same fiber")
            }
            Who::Thread(parker) => parker.park(deadline, cancel, Signal::Notify),
        }
    }

    /// Names what the caller, whose waiter this is, waits for: the address of a lock, or the id of
    /// a fiber.
    pub(crate) fn set_awaited(&self, name: usize) {
        if let Who::Fiber(fiber) = &self.who {
            fiber.set_awaited(name);
        }
    }

    /// The address other threads know this waiter by.
    pub(crate) fn address(&self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// If so the caller does not touch the waiter any more.
    #[inline]
    pub(crate) fn was_notified(&self) -> bool {
        match self.called.load(Acquire) {
            NOT_CALLED => false,
            CALLED => true,
            _ => self.is_soon_called(),
        }
    }

    /// The caller has not come to the third step.
    #[cold]
    fn is_soon_called(&self) -> bool {
        let mut failures = 0;
        while self.called.load(Acquire) != CALLED {
            pause(failures);
            failures += 1;
        }
        true
    }

    /// Nobody knows this waiter, nor will anybody call it: as if it had been called.
    pub(crate) fn call_off(&self) {
        self.called.store(CALLED, Release);
    }

    /// It was called, and waits for another call.
    pub(crate) fn reset(&self) {
        debug_assert!(self.was_notified());
        self.called.store(NOT_CALLED, Release);
    }

    /// Calls the waiter at `address`.
    ///
    /// # Safety
    /// The address came out of a word that a live waiter put it into, and the caller's is the one
    /// call it waits for.
    pub(crate) unsafe fn notify(guard: &PreemptGuard, address: usize) -> DeferredDrop {
        // SAFETY: by the caller's promise it is still there, until `called` says so.
        let waiter = unsafe { &*ptr::with_exposed_provenance::<Waiter>(address) };
        match &waiter.who {
            Who::Fiber(fiber) => {
                let fiber = *fiber;
                waiter.called.store(BEING_CALLED, Release);
                let owed = fiber.state.wake(Signal::Notify);
                waiter.called.store(CALLED, Release);
                DeferredDrop {
                    _thread: None,
                    runtime: match owed {
                        Notify::Enqueue => enqueue(guard, fiber),
                        Notify::Nothing => None,
                    },
                }
            }
            Who::Thread(parker) => {
                let parker = parker.clone();
                waiter.called.store(CALLED, Release);
                parker.wake(Signal::Notify);
                DeferredDrop {
                    _thread: Some(parker),
                    runtime: None,
                }
            }
        }
    }
}

/// What a waker relied on. To be dropped when preemption is enabled.
#[must_use = "dropped with preemption enabled"]
#[derive(Default)]
pub(crate) struct DeferredDrop {
    _thread: Option<Arc<ThreadParker>>,
    runtime: Option<Arc<Shared>>,
}

impl DeferredDrop {
    /// The runtime of the fiber that was woken, if it was another one.
    pub(crate) fn into_runtime(self) -> Option<Arc<Shared>> {
        self.runtime
    }
}

/// Unparks a fiber, or calls it.
pub(crate) fn wake(fiber: FiberRef, signal: Signal) {
    let guard = context::disable_preempt();
    let kept = wake_with_guard(&guard, fiber, signal);
    drop(guard);
    drop(kept);
}

fn wake_with_guard(guard: &PreemptGuard, fiber: FiberRef, signal: Signal) -> Option<Arc<Shared>> {
    match fiber.state.wake(signal) {
        Notify::Enqueue => enqueue(guard, fiber),
        Notify::Nothing => None,
    }
}

/// Queues a started fiber that has just become runnable by the caller's hand (I1).
///
/// `Shared` lives as long as any fiber that is not over, so up to the post, or the release, all is
/// there. From then on the fiber may run, end, and take the runtime with it: a caller that is no
/// thread of this runtime keeps it alive for the rest, and until its mark is down.
#[must_use = "dropped with preemption enabled"]
pub(crate) fn enqueue(guard: &PreemptGuard, fiber: FiberRef) -> Option<Arc<Shared>> {
    if guard.carrier().is_none() && fork::in_child() {
        return None; // F1: it is the parent's
    }
    let runtime = fiber.runtime.load(atomic::Ordering::Relaxed);
    // SAFETY: a fiber that is not over keeps its runtime alive; see above.
    let shared = unsafe { &*runtime.cast::<Shared>() };
    let own_thread = (guard.carrier()).is_some_and(|here| ptr::eq(here.shared(), shared));
    let keep = (!own_thread).then(|| shared.arc());
    latency::woken(fiber, &shared.clock);
    let token = guard.enter().filter(|_| own_thread);
    shared.queue_woken(token, fiber);
    keep
}

/// The carrier that a switched-out fiber is bound to, which the caller holds (I1).
#[inline]
pub(crate) fn thread_of(fiber: FiberRef) -> Option<&'static Carrier> {
    let thread = fiber.thread.load(atomic::Ordering::Relaxed);
    // SAFETY: null, or a carrier, which lives as long as `Shared`, and so longer than the fiber.
    // The lifetime is not used beyond that: callers keep the reference while they hold the fiber.
    unsafe { thread.cast::<Carrier>().as_ref() }
}

impl Shared {
    /// Queues a started fiber that the caller made runnable (I1). `token` is the caller's, if it
    /// holds a worker of this runtime.
    fn queue_woken(&self, token: Option<Entered>, fiber: FiberRef) {
        let here = token
            .as_ref()
            .map_or(ptr::null(), |token| ptr::from_ref(token.carrier()));
        // On its own thread the scheduler takes it off the queue, unless it waits there inside its
        // frames.
        if let Some(thread) = thread_of(fiber)
            && (!ptr::eq(thread, here) || fiber.blocks_carrier())
            && thread.deliver(fiber)
        {
            return;
        }
        if class::is_batch(&fiber) {
            return self.queue_batch(fiber);
        }
        match token {
            // A dispatch that has ended counts as the last one until the next begins.
            Some(token) if token.carrier().current.get().is_none() => {
                self.queue_here(&token, fiber)
            }
            Some(token) if !token.worker().is_in_long_dispatch() => self.queue_here(&token, fiber),
            _ => self.queue_for_all(fiber),
        }
    }

    /// To the worker of the caller. What a fiber wakes runs next; what the scheduler wakes, for the
    /// sake of timers or descriptors, waits for its turn.
    fn queue_here(&self, token: &Entered, fiber: FiberRef) {
        let worker = token.worker();
        if token.carrier().current.get().is_none() {
            let waiting = worker.queue.len(); // the first one this worker runs itself, at once
            self.push_local(worker, fiber);
            self.notify_for_backlog(worker, waiting);
        } else if let Some(behind) = worker.lifo.replace(fiber) {
            self.push_local(worker, behind);
            self.notify_for_backlog(worker, worker.queue.len());
        }
    }

    /// To the first worker that has time.
    fn queue_for_all(&self, fiber: FiberRef) {
        let id = fiber.id(); // from then on it may end
        let thread = thread_of(fiber);
        self.global.started.push(fiber);
        let sent = self.notify_searcher(0);
        if !sent {
            self.make_room(id, thread);
        }
        self.count_wake(sent);
    }

    /// Behind all fibers that compute less.
    pub(crate) fn queue_batch(&self, fiber: FiberRef) {
        self.global.batch.push(fiber);
        self.notify_searcher(0);
    }
}
