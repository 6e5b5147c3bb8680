#![expect(
    unsafe_code,
    reason = "wakes waiters by address, and knows runtimes and threads by pointer"
)]
//! Makes a parked fiber, or a plain thread, run again.
//!
//! A fiber that may run on any thread goes to the worker of its waker. One that is bound to a
//! thread is left to the worker on that thread, if there is one (`tenant.rs`), and else queued like
//! the others.
//!
//! From the moment the state word gives a fiber to its waker until the fiber is in a queue, no
//! other thread can run it: preemption is disabled for as long (S6). It is also disabled from the
//! swap of a word that holds a waiter until the waiter is notified, since a thread that finds the
//! word swapped waits for the notification. What may be the last reference to something,
//! [`DeferredDrop`], is dropped afterwards: that frees memory, and a runtime holds objects of the
//! user's.

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

/// A fiber or thread that waits for one notification.
///
/// It lies on the stack of the waiting fiber or thread, and other threads know its address. So the
/// fiber or thread stays in that frame until it was notified, or has made sure that no thread will
/// notify it.
///
/// A thread that notifies a fiber
/// 1. records that it is notifying;
/// 2. makes the fiber runnable;
/// 3. records that it has notified;
/// 4. queues the fiber.
///
/// After the third step the fiber may leave the frame of its waiter. If the second step gave the
/// fiber to the notifying thread it cannot do so before the fourth (I1), else there is no fourth. A
/// fiber that finds itself awake while it is being notified waits for the third step: the notifying
/// thread has preemption disabled (S6). So no reference counts are needed. A plain thread continues
/// as soon as it was notified, and is woken through a reference that the notifying thread holds.
pub(crate) struct Waiter {
    who: Who,
    called: AtomicU32,
}

const NOT_CALLED: u32 = 0;
const BEING_CALLED: u32 = 1;
const CALLED: u32 = 2;

enum Who {
    /// The waiting fiber: it is not over while it waits (I3).
    Fiber(FiberRef),
    Thread(Arc<ThreadParker>),
}

impl Waiter {
    /// Creates a waiter for the calling fiber or plain thread.
    #[inline]
    pub(crate) fn caller() -> Self {
        Self::new(match context::current_fiber() {
            Some(fiber) => Who::Fiber(fiber),
            None => Who::Thread(context::thread_parker()),
        })
    }

    /// Creates a waiter for the calling fiber; `None` on a plain thread.
    ///
    /// The guard knows the fiber. Nothing is allocated.
    #[inline]
    pub(crate) fn of_fiber(guard: &PreemptGuard) -> Option<Self> {
        guard.fiber().map(|fiber| Self::new(Who::Fiber(fiber)))
    }

    /// Creates another waiter of the same fiber or thread, for another notification.
    ///
    /// It uses the thread's parker again instead of asking for it: a thread at its end has none of
    /// its own.
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

    /// Creates a waiter for a thread of a model, which has no thread-locals.
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

    /// Parks the caller for an operation that was charged before.
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

    /// Records what the caller, whose waiter this is, waits for.
    ///
    /// This is the address of a lock, or the id of a fiber.
    pub(crate) fn set_awaited(&self, name: usize) {
        if let Who::Fiber(fiber) = &self.who {
            fiber.set_awaited(name);
        }
    }

    /// Returns the address by which other threads know this waiter.
    pub(crate) fn address(&self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// Returns whether the waiter was notified.
    ///
    /// If so the notifying thread does not touch the waiter any more.
    #[inline]
    pub(crate) fn was_notified(&self) -> bool {
        match self.called.load(Acquire) {
            NOT_CALLED => false,
            CALLED => true,
            _ => self.is_soon_called(),
        }
    }

    /// Waits for the third step of the notifying thread.
    #[cold]
    fn is_soon_called(&self) -> bool {
        let mut failures = 0;
        while self.called.load(Acquire) != CALLED {
            pause(failures);
            failures += 1;
        }
        true
    }

    /// Makes the waiter look notified.
    ///
    /// For a waiter that no thread knows or will notify.
    pub(crate) fn call_off(&self) {
        self.called.store(CALLED, Release);
    }

    /// Prepares a notified waiter to wait for another notification.
    pub(crate) fn reset(&self) {
        debug_assert!(self.was_notified());
        self.called.store(NOT_CALLED, Release);
    }

    /// Notifies the waiter at `address`.
    ///
    /// # Safety
    /// The address came out of a word that a live waiter put it into, and this is the one
    /// notification it waits for.
    pub(crate) unsafe fn notify(guard: &PreemptGuard, address: usize) -> DeferredDrop {
        // SAFETY: by the caller's promise it is still there, until `called` is `CALLED`.
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

/// References a waker relied on, to be dropped when preemption is enabled.
#[must_use = "dropped with preemption enabled"]
#[derive(Default)]
pub(crate) struct DeferredDrop {
    _thread: Option<Arc<ThreadParker>>,
    runtime: Option<Arc<Shared>>,
}

impl DeferredDrop {
    /// Returns the runtime of the woken fiber, if it was not the caller's.
    pub(crate) fn into_runtime(self) -> Option<Arc<Shared>> {
        self.runtime
    }
}

/// Unparks or notifies a fiber.
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

/// Queues a started fiber that the caller has just made runnable (I1).
///
/// `Shared` lives as long as any fiber that is not over, so it exists until the fiber is posted or
/// released. From then on the fiber may run, end, and drop the last reference to the runtime. A
/// caller that is no thread of this runtime keeps the runtime alive for the rest, and until its
/// preemption is enabled.
#[must_use = "dropped with preemption enabled"]
pub(crate) fn enqueue(guard: &PreemptGuard, fiber: FiberRef) -> Option<Arc<Shared>> {
    if guard.carrier().is_none() && fork::in_child() {
        return None; // F1: it belongs to the parent process
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

/// Returns the carrier that a switched-out fiber, held by the caller, is bound to (I1).
#[inline]
pub(crate) fn thread_of(fiber: FiberRef) -> Option<&'static Carrier> {
    let thread = fiber.thread.load(atomic::Ordering::Relaxed);
    // SAFETY: null, or a carrier, which lives as long as `Shared`, and so longer than the fiber.
    // The lifetime is not used beyond that: callers keep the reference while they hold the fiber.
    unsafe { thread.cast::<Carrier>().as_ref() }
}

impl Shared {
    /// Queues a started fiber that the caller made runnable (I1).
    ///
    /// `token` is the caller's, if it holds a worker of this runtime.
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
            // Between two dispatches the last one still counts as running.
            Some(token) if token.carrier().current.get().is_none() => {
                self.queue_here(&token, fiber)
            }
            Some(token) if !token.worker().is_in_long_dispatch() => self.queue_here(&token, fiber),
            _ => self.queue_for_all(fiber),
        }
    }

    /// Queues the fiber at the caller's worker.
    ///
    /// A fiber woken by a fiber runs next; one that the scheduler wakes, for timers or descriptors,
    /// waits for its turn.
    fn queue_here(&self, token: &Entered, fiber: FiberRef) {
        let worker = token.worker();
        if token.carrier().current.get().is_none() {
            let waiting = worker.queue.len(); // this worker runs the first one itself, at once
            self.push_local(worker, fiber);
            self.notify_for_backlog(worker, waiting);
        } else if let Some(behind) = worker.lifo.replace(fiber) {
            self.push_local(worker, behind);
            self.notify_for_backlog(worker, worker.queue.len());
        }
    }

    /// Queues the fiber for the first worker that has time.
    fn queue_for_all(&self, fiber: FiberRef) {
        let id = fiber.id(); // after the push the fiber may end
        let thread = thread_of(fiber);
        self.global.started.push(fiber);
        let sent = self.notify_searcher(0);
        if !sent {
            self.make_room(id, thread);
        }
        self.count_wake(sent);
    }

    /// Queues the fiber behind all fibers that compute less.
    pub(crate) fn queue_batch(&self, fiber: FiberRef) {
        self.global.batch.push(fiber);
        self.notify_searcher(0);
    }
}
