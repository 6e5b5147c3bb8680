#![expect(
    unsafe_code,
    reason = "wakes waiters by address and posts fibers to inboxes"
)]
//! Making a parked fiber, or a plain thread, run again.
//!
//! A fiber goes to its home, or elsewhere if its home cannot run it now and it may move
//! (`moving.rs`).
//!
//! From the moment the state word gives a fiber to its waker until it is in a queue, nobody else can
//! run it: the mark is up for as long (S6). So it is from the swap of a word that holds a waiter until
//! the waiter is called, since who finds the word swapped waits for the call. What may be the last
//! reference to something, [`Kept`], is dropped afterwards: that frees memory, and a runtime holds
//! things of the user's.

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use crate::base::fork;
use crate::base::loom::atomic::{
    self, AtomicU32,
    Ordering::{Acquire, Release},
};
use crate::base::loom::pause;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Hearing, Notify, Signal, Woken};
use crate::fiber::{FiberRef, Record};
use crate::sched::carrier::Carrier;
use crate::sched::context::Marked;
use crate::sched::moving::Whereto;
use crate::sched::overrun::MaybeGone;
use crate::sched::thread::ThreadParker;
use crate::sched::worker::Roused;
use crate::sched::{Shared, block, company, context, latency, verdict};

/// Somebody who waits for one call. It lies on the waiter's stack and others know its address,
/// so the waiter stays until it was called, or has made sure that nobody will call.
///
/// The caller says that it is calling, makes the fiber runnable, says that it has called, and queues the
/// fiber. After the third step the waiter may leave its stack: if the second gave the fiber to the caller it
/// cannot before the fourth (I1), else there is no fourth. Whoever finds himself awake and being called
/// waits for the third step: the caller has the mark up (S6). So nobody counts references. A plain thread
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
    pub(crate) fn of_fiber(mark: &Marked) -> Option<Self> {
        mark.fiber().map(|fiber| Self::new(Who::Fiber(fiber)))
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
        hearing: Hearing,
    ) -> Woken {
        block::charge();
        self.park_charged(deadline, reason, hearing)
    }

    /// The same for an operation that was charged ahead.
    pub(crate) fn park_charged(
        &self,
        deadline: Option<Instant>,
        reason: ParkReason,
        hearing: Hearing,
    ) -> Woken {
        match &self.who {
            Who::Fiber(_) => {
                let woken = block::park_charged(deadline, reason, hearing, Signal::Call);
                woken.expect("on the same fiber")
            }
            Who::Thread(parker) => parker.park(deadline, hearing, Signal::Call),
        }
    }

    /// The address other threads know this waiter by.
    pub(crate) fn address(&self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// If so the caller does not touch the waiter any more.
    #[inline]
    pub(crate) fn was_called(&self) -> bool {
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
        debug_assert!(self.was_called());
        self.called.store(NOT_CALLED, Release);
    }

    /// Calls the waiter at `address`.
    ///
    /// # Safety
    /// The address came out of a word that a live waiter put it into, and the caller's is the one
    /// call it waits for.
    pub(crate) unsafe fn call(mark: &Marked, address: usize) -> Kept {
        // SAFETY: by the caller's promise it is still there, until `called` says so.
        let waiter = unsafe { &*ptr::with_exposed_provenance::<Waiter>(address) };
        match &waiter.who {
            Who::Fiber(fiber) => {
                let fiber = *fiber;
                waiter.called.store(BEING_CALLED, Release);
                let owed = fiber.state.wake(Signal::Call);
                waiter.called.store(CALLED, Release);
                Kept {
                    _thread: None,
                    runtime: match owed {
                        Notify::Enqueue => enqueue(mark, fiber),
                        Notify::Nothing => None,
                    },
                }
            }
            Who::Thread(parker) => {
                let parker = parker.clone();
                waiter.called.store(CALLED, Release);
                parker.wake(Signal::Call);
                Kept {
                    _thread: Some(parker),
                    runtime: None,
                }
            }
        }
    }
}

/// What a waker relied on. To be dropped when the mark is down.
#[must_use = "dropped without the mark"]
#[derive(Default)]
pub(crate) struct Kept {
    _thread: Option<Arc<ThreadParker>>,
    runtime: Option<Arc<Shared>>,
}

impl Kept {
    /// The runtime of the fiber that was woken, if it was another one.
    pub(crate) fn into_runtime(self) -> Option<Arc<Shared>> {
        self.runtime
    }
}

/// Unparks a fiber, or calls it.
pub(crate) fn wake(fiber: FiberRef, signal: Signal) {
    let mark = context::marked();
    let kept = wake_marked(&mark, fiber, signal);
    drop(mark);
    drop(kept);
}

fn wake_marked(mark: &Marked, fiber: FiberRef, signal: Signal) -> Option<Arc<Shared>> {
    match fiber.state.wake(signal) {
        Notify::Enqueue => enqueue(mark, fiber),
        Notify::Nothing => None,
    }
}

/// Queues a started fiber that has just become runnable by the caller's hand (I1).
///
/// `Shared` lives as long as any fiber that is not over, so up to the post, or the release, all is
/// there. From then on the fiber may run, end, and take the runtime with it: a caller that is no
/// thread of this runtime keeps it alive for the rest, and until its mark is down.
#[must_use = "dropped without the mark"]
pub(crate) fn enqueue(mark: &Marked, fiber: FiberRef) -> Option<Arc<Shared>> {
    if mark.carrier().is_none() && fork::in_child() {
        return None; // F1: it is the parent's
    }
    let home = fiber.home.load(atomic::Ordering::Relaxed).cast::<Carrier>();
    // SAFETY: a started fiber has a home, which lives as long as `Shared`; see above.
    let carrier = unsafe { &*home };
    let shared = carrier.shared();
    let here = mark.carrier();
    let own_thread = here.is_some_and(|here| ptr::eq(here.shared(), shared));
    let keep = (!own_thread).then(|| shared.arc());
    if fiber.blocks_carrier() {
        fiber.release();
        rouse_blocked(carrier);
        return keep;
    }
    latency::woken(fiber, &shared.clock);
    let queued = match here {
        Some(here) if ptr::eq(here, carrier) => queue_sibling(mark, carrier, fiber),
        Some(here) if own_thread => company::pulls(here, fiber),
        _ => false,
    };
    if !queued {
        queue_started(carrier, fiber);
    }
    keep
}

/// On the thread of the fiber's home: it runs next. False if the carrier has lost its worker.
fn queue_sibling(mark: &Marked, carrier: &Carrier, fiber: FiberRef) -> bool {
    let token = mark.enter();
    if token.is_some() {
        // What was next before it goes behind the others.
        if let Some(before) = carrier.home().next.replace(fiber) {
            // SAFETY: runnable by I1, so in no list, and alive by I3.
            unsafe { carrier.home().queue.push(before.pointer()) };
        }
        carrier.note_sibling(); // they wait for whoever runs now
    }
    token.is_some()
}

/// To its home, or elsewhere.
fn queue_started(carrier: &Carrier, fiber: FiberRef) {
    let shared = carrier.shared();
    // SAFETY: made runnable by the caller (I1), and it is switched out since its park was committed.
    let held = match unsafe { shared.whereto(carrier, fiber) } {
        Whereto::Elsewhere => return shared.submit_started(fiber),
        Whereto::Home { held } => held,
    };
    let bound = verdict::is_bound(fiber);
    if !held && !bound {
        return shared.send_home(fiber);
    }
    let who = MaybeGone::of(fiber);
    // SAFETY: as above.
    unsafe { carrier.inbox.post(fiber.pointer()) };
    if !bound {
        carrier.note_fresh_mail();
    }
    if !rouse_for_inbox(carrier, who, bound) && held {
        shared.free_inbox(carrier); // its worker has left it since we looked
    }
}

/// The waker's half of I10, after the post of a fiber that is bound to its thread, or perhaps not. False if the carrier holds no worker and cannot be claimed:
/// it is on its way to rest and will look, or somebody owes it a worker, or a fiber blocks it.
pub(crate) fn rouse_for_inbox(carrier: &Carrier, who: (*mut Record, u64), bound: bool) -> bool {
    let shared = carrier.shared();
    match carrier.owner.peek() {
        None => {
            let sets = [
                &shared.resting,
                &shared.homes,
                &shared.keeping,
                &shared.retiring,
            ];
            let claimed = sets.iter().any(|set| set.claim(carrier.index));
            if claimed {
                shared.want(carrier.index);
            } else if bound {
                carrier.ice.occupant.waits(who);
                carrier.note_bound();
            }
            claimed
        }
        Some(worker) => {
            // SAFETY: workers live as long as `Shared`.
            let worker = unsafe { worker.as_ref() };
            let asleep = shared.idle.claim(worker.index);
            if asleep {
                shared.rouse(worker, Roused::TO_WORK);
            } else if !bound {
                shared.press_on(carrier, worker, who.1);
            } else if worker.is_stuck() {
                carrier.ice.occupant.waits(who);
                carrier.note_bound();
            }
            shared.count_wake(asleep);
            true
        }
    }
}

/// The fiber waits inside its own frames (S3): its carrier needs a worker, or only to be rung.
fn rouse_blocked(carrier: &Carrier) {
    if carrier.owner.peek().is_none() {
        carrier.shared().want(carrier.index);
    }
    carrier.bell.ring();
}
