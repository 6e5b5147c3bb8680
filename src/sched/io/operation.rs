#![expect(
    unsafe_code,
    reason = "lets the kernel write to the stacks of parked fibers, and notifies waiters by address"
)]
//! Requests that io_uring carries out, and the fibers that wait for them.
//!
//! In a runtime with `INDENT_IO=uring`, a fiber whose call would have had to wait gives the request
//! to the ring of the worker it runs on (`driver/uring.rs`), with its own buffer, and parks. An
//! *operation* is a result and a waiter, on the stack of that fiber; the ring knows it by its
//! address.
//!
//! **I25** *An operation stays until its completion was taken.* There is exactly one completion for
//! each entry, whatever becomes of it. From the push on the fiber is in `Operation::wait`, which
//! returns when the waiter was notified, and for no other reason; nothing in there unwinds (if it
//! did, the process would end: [`InFlight`]). The waiter is notified by the thread that took the
//! completion, before that thread enables preemption again, and that is the last thing it does with
//! the operation. So the kernel writes to a buffer, and the runtime to a result, only while their
//! owner waits. Between the push and the park the fiber may be stopped at any instruction, with all
//! that is on its stack. A fiber that is abandoned at the end of a runtime keeps its stack for
//! ever, and the runtime with all rings (`shutdown.rs`); a ring that is dropped has nothing in
//! flight.
//!
//! **I26** *What was transferred is returned.* At a deadline, or when it is asked to end, the fiber
//! has the operation cancelled and parks on, with cancellation disabled. If the completion says
//! that something was transferred, that is the result, and the next call that blocks notices the
//! cancellation. Only an operation that was cancelled ends by the deadline or the cancellation. A
//! late cancel that meets another operation at the same address makes that one try again, no more:
//! the kernel cancels on its own account, too, when a thread that has submitted ends (S17).
//!
//! *Which thread submits.* Entries are pushed to the ring of the fiber's worker; a fiber without a
//! worker waits for one first. The worker's holder is awake, and submits and polls when it looks
//! for other work, or sleeps in the ring. In a dispatch that is known to be long the I/O poller
//! does both in its place (`poller.rs`), and so it does for a retired worker. A cancel is submitted
//! at once, by the worker's holder or the I/O poller: no other thread submits, since completions,
//! and the polls of the waker, depend on the thread that did.
//!
//! In the child of a fork no code runs on a fiber, so nothing comes here (F1).

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Instant;

use crate::driver::Driver;
use crate::driver::uring::{
    self, Answer, COMPLETION_BATCH, Completion, Entry, Message, POLL, Uring,
};
use crate::error::StartError;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::Shared;
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::io::{Ended, Outcome};
use crate::sched::workers::context;
use crate::sched::workers::worker::Worker;
use crate::sys::descriptor;
use crate::sys::request::Request;

/// How a request that was given to a ring came to an end.
#[must_use]
enum Completed {
    Outcome(Outcome),
    /// The ring does not wait for this: the caller polls, and tries itself.
    Unsupported,
}

/// Aligned so that its address leaves room for the ring's own bits.
#[repr(align(8))]
struct Operation {
    waiter: Waiter,
    result: AtomicI32,
    message: UnsafeCell<Message>,
}

/// Aborts the process if a wait for an operation in flight unwinds.
struct InFlight;

impl Drop for InFlight {
    fn drop(&mut self) {
        // I25: the kernel would write to a stack that is used for something else.
        std::process::abort();
    }
}

impl Operation {
    fn new() -> Self {
        Operation {
            waiter: Waiter::caller(),
            result: AtomicI32::new(0),
            message: UnsafeCell::new(Message::new()),
        }
    }

    fn number(&self) -> u64 {
        ptr::from_ref(self).expose_provenance() as u64
    }

    /// Parks until it is complete; returns why it was cancelled meanwhile, if it was.
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

/// Has a ring carry out the request, or wait until it can be tried, and parks the calling fiber
/// until then.
pub(super) fn perform(
    fd: BorrowedFd<'_>,
    request: &mut Request<'_, '_>,
    deadline: Option<Instant>,
) -> Outcome {
    if let Completed::Outcome(outcome) = complete_in_ring(fd, request, deadline) {
        return outcome;
    }
    let poll = &mut Request::Ready(request.interest());
    match complete_in_ring(fd, poll, deadline) {
        Completed::Outcome(outcome) => outcome,
        Completed::Unsupported => Outcome::Ended(Ended::Ready), // never of a poll
    }
}

fn complete_in_ring(
    fd: BorrowedFd<'_>,
    request: &mut Request<'_, '_>,
    deadline: Option<Instant>,
) -> Completed {
    let mut operation = Operation::new();
    let Some(entry) = uring::entry(fd, request, operation.message.get_mut()) else {
        return Completed::Unsupported;
    };
    let Some(worker) = push(&entry, &operation) else {
        return Completed::Outcome(Outcome::Refused);
    };
    let in_flight = InFlight;
    let asked = operation.wait(worker, deadline);
    std::mem::forget(in_flight);
    let result = operation.result.load(Relaxed); // ordered by the notification
    if result >= 0 {
        uring::write_back(request, &operation.message.into_inner());
    }
    conclude(request, Answer::of(result), asked)
}

/// Pushes an operation to the ring of the caller's worker, and returns the worker's index. `None`
/// if that cannot be done now.
#[inline(never)] // not part of a frame that waits: what system calls touch would bind it
fn push(entry: &Entry, operation: &Operation) -> Option<usize> {
    let entered = context::here().expect("on a fiber").enter_with_worker();
    let (shared, worker) = (entered.carrier().shared(), entered.worker());
    // SAFETY: I25; the caller borrows what the entry names, until then.
    let pushed = unsafe { shared.push_to_ring(worker, entry, operation.number()) };
    pushed.then_some(worker.index)
}

/// Asks for an operation to be over, at once.
#[cold]
fn cancel(worker: usize, number: u64) {
    let guard = context::disable_preempt();
    let shared = guard.shared().expect("a fiber has a runtime");
    let ring = shared.driver.ring(worker).expect("the operation is in it");
    ring.cancel(number);
    let entered = guard.enter();
    if entered.is_some_and(|entered| entered.worker().index == worker) {
        ring.submit(); // if the kernel takes less, so will the thread that polls next
    } else {
        // The caller holds another worker, or none: completions of what it submits would depend on
        // what it does next.
        shared.ask_poller_to_submit(ring);
    }
}

fn conclude(request: &Request<'_, '_>, answer: Answer, asked: Option<Ended>) -> Completed {
    let ended = |asked: Option<Ended>| Outcome::Ended(asked.unwrap_or(Ended::Ready));
    let failed = match answer {
        // Nothing was transferred. What the descriptor is ready for may be of no use to the caller,
        // again and again: so a deadline or a cancellation counts.
        Answer::Count(_) if matches!(request, Request::Ready(_)) => {
            return Completed::Outcome(ended(asked));
        }
        Answer::Count(count) => return Completed::Outcome(Outcome::Done(Ok(count))),
        // If it was not cancelled here, it is to be tried again.
        Answer::Cancelled => return Completed::Outcome(ended(asked)),
        Answer::WouldBlock => None,
        Answer::Failed(error) => Some(error),
    };
    // The kernel takes a descriptor before it looks for a connection: a try shows whether there is
    // one.
    let may_lack_connection =
        |error: &io::Error| matches!(request, Request::Accept(_)) && descriptor::is_shortage(error);
    match failed.filter(|error| !may_lack_connection(error)) {
        Some(error) => Completed::Outcome(Outcome::Done(Err(error))),
        None => asked.map_or(Completed::Unsupported, |asked| {
            Completed::Outcome(Outcome::Ended(asked))
        }),
    }
}

impl Shared {
    /// Pushes an entry to the ring of this worker. False if that cannot be done now. Called by the
    /// worker's holder.
    ///
    /// # Safety
    /// As for [`Uring::push`].
    pub(super) unsafe fn push_to_ring(&self, worker: &Worker, entry: &Entry, number: u64) -> bool {
        const TRIES: usize = 8;
        let Ok(ring) = self.make_ring(worker) else {
            return false;
        };
        (0..TRIES).any(|tries| {
            if tries > 0 {
                self.reap(ring); // until then the kernel takes no more
            }
            // SAFETY: by the caller's promise.
            unsafe { ring.push(entry.clone(), number) }
        })
    }

    /// Makes the rings of the first workers, so that a refusal is known at the start.
    pub(crate) fn make_rings(&self) -> Result<(), StartError> {
        let Some(setting) = self.settings.uring_asked_by else {
            return Ok(());
        };
        let mut workers = self.workers[..self.settings.workers].iter();
        let _guard = context::disable_preempt(); // a fiber of another runtime may be stopped
        let made = workers.try_for_each(|worker| self.make_ring(worker).map(drop));
        made.map_err(|source| StartError::NoUring { setting, source })
    }

    /// The ring of a worker, made if there is none yet. Called by the worker's holder.
    fn make_ring(&self, worker: &Worker) -> io::Result<&Uring> {
        let Driver::Uring(rings) = &self.driver else {
            unreachable!("a ring is asked for in a runtime that uses epoll");
        };
        let instance = &rings[worker.index];
        if let Some(ring) = instance.get() {
            return Ok(ring);
        }
        let ring = Uring::new()?;
        self.io_poller
            .add_instance(self, ring.raw(), worker.index as u64)?;
        Ok(instance.store(ring))
    }

    /// Wakes the fibers whose requests are complete.
    pub(super) fn reap(&self, ring: &Uring) {
        loop {
            let mut batch = [Completion::default(); COMPLETION_BATCH];
            let mut kept = [const { None::<DeferredDrop> }; COMPLETION_BATCH];
            let guard = context::disable_preempt();
            let taken = ring.take(&mut batch);
            for (completion, kept) in batch[..taken].iter().zip(&mut kept) {
                *kept = match completion.operation & POLL {
                    // SAFETY: I25: it was pushed with this address, and this is its completion.
                    0 => Some(unsafe { complete(&guard, completion) }),
                    _ => self.poll_completed(&guard, completion),
                };
            }
            drop(guard);
            (kept.into_iter().flatten()).for_each(|kept| self.defer_drop(kept));
            if taken < COMPLETION_BATCH {
                return;
            }
        }
    }

    /// Whether files may be read and written by a ring. The kernel is asked once, at the first
    /// call.
    pub(crate) fn files_by_uring(&self) -> bool {
        let asks =
            || self.driver.is_uring() || self.settings.uring_allowed && uring::refusal().is_none();
        *self.files_by_uring.get_or_init(asks)
    }
}

/// Stores the result of an operation and notifies its waiter.
///
/// # Safety
/// The operation is in flight, and this is its completion.
unsafe fn complete(guard: &context::PreemptGuard, completion: &Completion) -> DeferredDrop {
    let address = completion.operation as usize;
    // SAFETY: by the caller's promise it is there until it is notified.
    let operation = unsafe { &*ptr::with_exposed_provenance::<Operation>(address) };
    operation.result.store(completion.result, Relaxed);
    let waiter = operation.waiter.address();
    // SAFETY: as above; and this is the one notification it waits for.
    unsafe { Waiter::notify(guard, waiter) }
}
