#![expect(
    unsafe_code,
    reason = "lets the kernel write to the stacks of parked fibers, and calls waiters by address"
)]
//! Operations that the kernel completes, and the fibers that wait for them.
//!
//! Where `INDENT_IO` is `uring`, a fiber whose call would have had to wait gives it to the ring of the worker it
//! runs on (`driver/uring.rs`), with its own buffer, and parks. An *operation* is a result and a waiter, on the
//! stack of that fiber; the ring knows it by its address.
//!
//! **I25** *An operation stays until its completion was taken.* There is exactly one completion for each entry,
//! whatever becomes of it. From the push on the fiber is in `Operation::wait`, which returns when the waiter
//! was called, and for no other reason; nothing in there unwinds (if it did, the process would end: [`Flight`]).
//! The waiter is called by whoever took the completion, in the same stretch with preemption disabled, and that is the last
//! thing it does with the operation. So the kernel writes to a buffer, and we to a result, only while their owner
//! waits. Between the push and the park the fiber may be stopped at any instruction, with all that is on its
//! stack. A fiber that is abandoned at the end of a runtime keeps its stack for ever, and the runtime with all
//! rings (`shutdown.rs`); a ring that goes has nothing in flight.
//!
//! **I26** *What was transferred is told.* A deadline or a request to end asks for the operation to be cancelled
//! and parks on, deaf. If the completion says that something was transferred, that is the answer, and the next
//! call that blocks hears of the request. Only an operation that was cancelled ends by the deadline or the
//! request. A late cancel that meets another operation at the same address makes that one try again, no more:
//! the kernel cancels on its own account, too, when a thread that has submitted ends (S17).
//!
//! *Who submits.* Entries are pushed to the ring of the fiber's worker, which waits for one if it has none: its
//! holder is awake, and submits and looks when it looks for other work, or sleeps in it. In a dispatch that is
//! known to be long the watch does both in its place (`watch.rs`), and so it does for a retired worker. A cancel
//! is submitted at once, by the worker's holder or the watch: nobody else submits, since completions, and
//! the bell, depend on whoever did.
//!
//! In the child of a fork nobody is a fiber, so nothing comes here (F1).

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::base::descriptor;
use crate::base::request::Request;
use crate::driver::uring::{self, Answer, BATCH, Completion, Entry, POLL, Room, Uring};
use crate::error::StartError;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::io::Ended;
use crate::sched::wake::{DeferredDrop, Waiter};
use crate::sched::worker::Worker;
use crate::sched::{Shared, context};

/// How a request came to an end.
#[must_use]
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The answer of the call.
    Done(io::Result<usize>),
    /// Nothing was done.
    Ended(Ended),
    /// The ring does not wait for this: poll, and try.
    NotByRing,
    /// There is no ring, or the kernel takes nothing: that passes.
    NotNow,
}

/// Whether the calling fiber waits by a ring.
pub(crate) fn is_used() -> bool {
    let guard = context::disable_preempt();
    guard
        .shared()
        .is_some_and(|shared| shared.settings.ring.is_some())
}

/// Aligned so that its address leaves room for the ring's own bits.
#[repr(align(8))]
struct Operation {
    waiter: Waiter,
    result: AtomicI32,
    room: UnsafeCell<Room>,
}

/// An operation is in flight.
struct Flight;

impl Drop for Flight {
    fn drop(&mut self) {
        std::process::abort(); // I25: the kernel would write to a stack that is used for something else
    }
}

impl Operation {
    fn new() -> Self {
        Operation {
            waiter: Waiter::caller(),
            result: AtomicI32::new(0),
            room: UnsafeCell::new(Room::new()),
        }
    }

    fn number(&self) -> u64 {
        ptr::from_ref(self).expose_provenance() as u64
    }

    /// Parks until it is complete; and what was asked of it meanwhile, if it was.
    fn wait(&self, worker: usize, deadline: Option<Instant>) -> Option<Ended> {
        let (mut deadline, mut mode, mut asked) = (deadline, Cancel::Enabled, None);
        loop {
            let woken = self.waiter.park(deadline, ParkReason::Io, mode);
            if self.waiter.was_notified() {
                return asked;
            }
            if woken == Woken::ByWake || asked.is_some() {
                continue; // meant for an earlier wait
            }
            cancel(worker, self.number());
            asked = Some(match woken {
                Woken::ByCancel => Ended::Cancelled,
                _ => Ended::TimedOut,
            });
            (deadline, mode) = (None, Cancel::Disabled);
        }
    }
}

/// Gives a request to the ring, and parks the calling fiber until it is over.
pub(crate) fn perform(
    fd: BorrowedFd<'_>,
    request: &mut Request<'_, '_>,
    deadline: Option<Instant>,
) -> Outcome {
    let mut operation = Operation::new();
    let Some(entry) = uring::entry(fd, request, operation.room.get_mut()) else {
        return Outcome::NotByRing;
    };
    let Some(worker) = begin(&entry, &operation) else {
        return Outcome::NotNow;
    };
    let flight = Flight;
    let asked = operation.wait(worker, deadline);
    std::mem::forget(flight);
    let result = operation.result.load(Relaxed); // ordered by the call
    if result >= 0 {
        uring::finish(request, &operation.room.into_inner());
    }
    conclude(request, Answer::of(result), asked)
}

/// Pushes it to the ring of the caller's worker; which one that is, if that can be done now.
#[inline(never)] // not part of a frame that waits: what system calls touch would bind it
fn begin(entry: &Entry, operation: &Operation) -> Option<usize> {
    let token = context::here().expect("on a fiber").enter_with_worker();
    let (shared, worker) = (token.carrier().shared(), token.worker());
    // SAFETY: I25; the caller borrows what the entry names, until then.
    let pushed = unsafe { shared.push_to(worker, entry, operation.number()) };
    pushed.then_some(worker.index)
}

/// Asks for an operation to be over, at once.
#[cold]
fn cancel(worker: usize, number: u64) {
    let guard = context::disable_preempt();
    let shared = guard.shared().expect("a fiber has a runtime");
    let ring = shared.workers[worker].uring.get().expect("it is in there");
    ring.cancel(number);
    let token = guard.enter();
    if token.is_some_and(|token| token.worker().index == worker) {
        ring.submit(); // if the kernel takes less, so will whoever looks next
    } else {
        // We hold another worker, or none: what we submit would depend on what we do next.
        shared.urge_watch(ring);
    }
}

fn conclude(request: &Request<'_, '_>, answer: Answer, asked: Option<Ended>) -> Outcome {
    let failed = match answer {
        // Nothing was transferred. What it is ready for may be nothing to us, again and again: what was asked counts.
        Answer::Count(_) if matches!(request, Request::Ready(_)) => {
            return Outcome::Ended(asked.unwrap_or(Ended::Ready));
        }
        Answer::Count(count) => return Outcome::Done(Ok(count)),
        // Not by us: it is to be tried again.
        Answer::Cancelled => return Outcome::Ended(asked.unwrap_or(Ended::Ready)),
        Answer::WouldBlock => None,
        Answer::Failed(error) => Some(error),
    };
    // A descriptor is taken before there is a connection: whoever tries sees whether there is one.
    let of_no_guest =
        |error: &io::Error| matches!(request, Request::Accept(_)) && descriptor::is_shortage(error);
    match failed.filter(|error| !of_no_guest(error)) {
        Some(error) => Outcome::Done(Err(error)),
        None => asked.map_or(Outcome::NotByRing, Outcome::Ended),
    }
}

impl Shared {
    /// Pushes to the ring of this worker, by its holder. False if that cannot be done now.
    ///
    /// # Safety
    /// As for [`Uring::push`].
    pub(super) unsafe fn push_to(&self, worker: &Worker, entry: &Entry, number: u64) -> bool {
        const TRIES: usize = 8;
        let Ok(ring) = self.ring_of(worker) else {
            return false;
        };
        (0..TRIES).any(|tries| {
            if tries > 0 {
                self.reap(ring); // the kernel takes no more until somebody does
            }
            // SAFETY: by the caller's promise.
            unsafe { ring.push(entry.clone(), number) }
        })
    }

    /// Those of the workers there are at first: if the system refuses them that is known at once.
    pub(crate) fn make_rings(&self) -> Result<(), StartError> {
        let Some(setting) = self.settings.ring else {
            return Ok(());
        };
        let mut workers = self.workers[..self.settings.workers].iter();
        let _guard = context::disable_preempt(); // a fiber of another runtime may be stopped
        let made = workers.try_for_each(|worker| self.ring_of(worker).map(drop));
        made.map_err(|source| StartError::NoUring { setting, source })
    }

    /// The ring of a worker, made if there is none yet. By the worker's holder.
    fn ring_of<'a>(&self, worker: &'a Worker) -> io::Result<&'a Uring> {
        debug_assert!(self.io_set.get().is_none(), "a ring beside a set");
        if worker.uring.get().is_none() {
            let ring = Uring::new()?;
            self.io_watch
                .include(self, ring.raw(), worker.index as u64)?;
            let _ = worker.uring.set(ring); // nobody else does
        }
        Ok(worker.uring.get().expect("just set"))
    }

    /// Submits what was pushed, and waits until an operation is complete, for so long at most.
    pub(crate) fn sleep_ring(&self, worker: &Worker, ring: &Uring, time: Option<Duration>) {
        match (time, worker.carrier()) {
            (None, Some(carrier)) => ring.sleep(carrier.index, None),
            (Some(time), Some(carrier)) if !time.is_zero() => ring.sleep(carrier.index, Some(time)),
            _ => drop(ring.submit()),
        }
    }

    /// Wakes whose operations are complete.
    pub(crate) fn reap(&self, ring: &Uring) {
        loop {
            let mut batch = [Completion::default(); BATCH];
            let mut kept = [const { None::<DeferredDrop> }; BATCH];
            let guard = context::disable_preempt();
            let taken = ring.take(&mut batch);
            for (completion, kept) in batch[..taken].iter().zip(&mut kept) {
                *kept = match completion.operation & POLL {
                    // SAFETY: I25: it was pushed with this address, and this is its completion.
                    0 => Some(unsafe { complete(&guard, completion) }),
                    _ => self.poll_over(&guard, completion),
                };
            }
            drop(guard);
            (kept.into_iter().flatten()).for_each(|kept| self.part_with(kept));
            if taken < BATCH {
                return;
            }
        }
    }

    /// Whether files may be read and written by a ring. Asked once, when somebody wants to know.
    pub(crate) fn may_ring(&self) -> bool {
        let settings = &self.settings;
        let asks = || settings.ring.is_some() || settings.may_ring && uring::refusal().is_none();
        *self.may_ring.get_or_init(asks)
    }

    /// Operations that are in flight.
    pub(crate) fn operations(&self) -> usize {
        let rings = self.workers.iter().filter_map(|worker| worker.uring.get());
        rings.map(Uring::in_flight).sum()
    }
}

/// Tells an operation its result.
///
/// # Safety
/// The operation is in flight, and this is its completion.
unsafe fn complete(guard: &context::PreemptGuard, completion: &Completion) -> DeferredDrop {
    let address = completion.operation as usize;
    // SAFETY: by the caller's promise it is there until it is called.
    let operation = unsafe { &*ptr::with_exposed_provenance::<Operation>(address) };
    operation.result.store(completion.result, Relaxed);
    let waiter = operation.waiter.address();
    // SAFETY: as above; and this is the one call it waits for.
    unsafe { Waiter::notify(guard, waiter) }
}
