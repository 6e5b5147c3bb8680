//! Waiting for I/O: what a runtime does with its [`Driver`].
//!
//! A fiber whose call would have to wait parks until a thread that takes events wakes it. Two
//! kinds of threads take them:
//!
//! - Workers poll now and then while they have other work, and when they run out of it. A worker
//!   that sleeps may do so in the epoll instance (`polling_right.rs`), or in its own ring.
//! - The I/O poller (`poller.rs`) takes them while all workers are in dispatches that are known to
//!   be long.
//!
//! A thread that takes an event wakes the fibers that wait for it, like any other waker; a fiber
//! that should not have to wait makes room for itself (`make_room.rs`).
//!
//! | file | holds |
//! |---|---|
//! | `registration.rs` | epoll: what is known of a descriptor, and the fibers that wait for it |
//! | `direction.rs` | the waiters of one direction of a descriptor |
//! | `polling_right.rs` | epoll: which worker sleeps in the epoll instance |
//! | `operation.rs` | io_uring: requests that the kernel carries out for parked fibers |
//! | `polls.rs` | io_uring: waiters of a select, which wait for several things |
//! | `poller.rs` | the I/O poller, for both backends |
//! | `runtime_drops.rs` | references to other runtimes, dropped later |
//!
//! This file is the one border between the two backends: every operation that both have is
//! dispatched here, or in the poller. Code outside of `sched/io` does not know which one is used.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::{Duration, Instant};

use crate::driver::epoll::Events;
use crate::driver::{Driver, Found, Port};
use crate::sched::Shared;
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context;
use crate::sched::workers::worker::Worker;
use crate::sys::descriptor::{self, Interest};
use crate::sys::request::Request;

mod direction;
mod operation;
pub(crate) mod poller;
pub(crate) mod polling_right;
mod polls;
mod registration;
mod runtime_drops;

pub(crate) use registration::{ReadinessToken, Registration};
pub(crate) use runtime_drops::{RuntimeDrops, drop_deferred_runtimes};

/// How a wait ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The descriptor may be ready.
    Ready,
    TimedOut,
    /// The fiber is asked to end.
    Cancelled,
}

/// What became of a request whose call would have had to wait.
#[must_use]
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The kernel has carried it out, with this result.
    Done(io::Result<usize>),
    /// Nothing was done; the caller tries again.
    Ended(Ended),
    /// The system lacks what a wait needs. That passes: the caller pauses and tries again.
    Refused,
}

/// Whether the calling fiber's runtime uses io_uring.
fn uses_uring() -> bool {
    let guard = context::disable_preempt();
    let shared = guard.shared();
    shared.is_some_and(|shared| shared.driver.is_uring())
}

/// Whether waits of the calling fiber end once for each change of a descriptor, and not at once and
/// again as long as its state is the same.
pub(crate) fn reports_changes_only() -> bool {
    !uses_uring()
}

impl Registration {
    /// Parks the calling fiber until the request has been carried out, or is worth another try.
    ///
    /// `seen` is the token from before the try that would have had to wait.
    pub(crate) fn perform(
        &self,
        fd: BorrowedFd<'_>,
        request: &mut Request<'_, '_>,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> Outcome {
        if uses_uring() {
            return operation::perform(fd, request, deadline);
        }
        match self.wait(fd, request.interest(), seen, deadline) {
            Ok(ended) => Outcome::Ended(ended),
            Err(error) if descriptor::is_one_too_many(&error) => Outcome::Refused,
            Err(error) => Outcome::Done(Err(error)),
        }
    }

    /// Lists a waiter of the calling fiber, to be notified when the descriptor may be ready.
    ///
    /// False if there was an event after `seen`: then the waiter is not notified.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        if uses_uring() {
            self.enlist_poll(fd, interest, waiter); // a poll looks before it waits
            return Ok(true);
        }
        self.enlist_waiter(fd, interest, seen, waiter)
    }

    /// Takes back a waiter that the same fiber enlisted. False if it was notified, or is about to
    /// be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        if uses_uring() {
            return self.withdraw_poll(interest, waiter);
        }
        self.withdraw_waiter(interest, waiter)
    }
}

impl Shared {
    /// Whether a fiber may wait for an event that this worker can take.
    #[inline]
    pub(crate) fn has_io(&self, worker: &Worker) -> bool {
        self.driver.has_io(worker.index)
    }

    /// Wakes the fibers whose events or completions have arrived. Called by the worker's holder.
    pub(crate) fn poll_io(&self, worker: &Worker) {
        debug_assert!(
            worker
                .carrier()
                .is_some_and(|carrier| ptr::eq(carrier, context::carrier())),
            "only the holder polls: completions depend on the thread that submits"
        );
        match &self.driver {
            Driver::Epoll(_) => self.poll_epoll(),
            Driver::Uring(_) => self.poll_ring(worker),
        }
        worker.note_poll();
    }

    /// Takes the events there are, and wakes the fibers that wait for them. Called by any thread
    /// without the polling right.
    fn poll_epoll(&self) {
        let Some(epoll) = self.driver.epoll_instance() else {
            return;
        };
        let events = epoll.wait(Some(Duration::ZERO));
        if events.has_wakeup() {
            self.pass_wakeup_on(epoll);
        }
        self.deliver_events(&events);
    }

    /// Submits to the worker's ring, and wakes the fibers whose requests are complete.
    fn poll_ring(&self, worker: &Worker) {
        if let Some(ring) = self.driver.ring(worker.index) {
            let carrier = worker.carrier().map(|carrier| carrier.index);
            let _in_the_ring = Port::Uring(ring).wait(carrier, Some(Duration::ZERO));
            self.reap(ring);
        }
    }

    /// Chooses the instance that a worker sleeps in, after it has announced its sleep.
    ///
    /// `None` if it sleeps on its carrier's parker: there is nothing to wait for, or another worker
    /// waits for it. Otherwise the caller sleeps in [`Port::wait`] and then calls
    /// [`end_io_sleep`](Self::end_io_sleep).
    pub(crate) fn begin_io_sleep(&self, worker: &Worker) -> Option<Port<'_>> {
        match &self.driver {
            Driver::Epoll(_) => self.take_polling_right(worker).map(Port::Epoll),
            Driver::Uring(rings) => {
                let ring = rings[worker.index].get().filter(|ring| ring.is_busy())?;
                self.disarm_io(worker);
                Some(Port::Uring(ring))
            }
        }
    }

    /// Ends a sleep in an instance, and returns what it has found.
    pub(crate) fn end_io_sleep<'a>(&self, port: Port<'a>, events: Option<Events>) -> Found<'a> {
        match port {
            Port::Epoll(epoll) => {
                self.release_polling_right(epoll, events.as_ref());
                events.map_or(Found::Nothing, Found::Events)
            }
            Port::Uring(ring) => Found::Completions(ring),
        }
    }

    /// Wakes the fibers that wait for what a worker's sleep has found.
    pub(crate) fn deliver(&self, worker: &Worker, found: Found<'_>) {
        match found {
            Found::Nothing => return,
            Found::Events(events) => self.deliver_events(&events),
            Found::Completions(ring) => self.reap(ring),
        }
        worker.note_poll();
    }
}

impl Worker {
    /// A thread has polled for events on behalf of this worker.
    pub(crate) fn note_poll(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        let polls = self.io_polls.load(Relaxed).wrapping_add(1);
        self.io_polls.store(polls, Relaxed);
        self.io_poll_due.store(false, Relaxed);
    }
}
