//! What the reactor knows of one descriptor, and the one way to wait for it.
//!
//! A wait ends when the descriptor *may* be ready: whoever waits tries again and comes back if it was
//! not. It also ends at its deadline, and if the fiber was asked to end or its time limit has passed. Then, too,
//! there is one more try: what came in time is not lost (**R1**).
//!
//! Plain threads wait in the kernel, for this one descriptor. Fibers park, and somebody who looks at all
//! descriptors wakes them (`sched/io.rs`); or they give what they want to do to a ring, and park until it is
//! done (`sched/io/operation.rs`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::backoff::Backoff;
use super::registered::pause;
use crate::base::descriptor;
pub(crate) use crate::base::descriptor::Interest;
use crate::base::request::Request;
use crate::park;
use crate::sched::io as sched;
use crate::sched::io::operation;
pub(crate) use crate::sched::io::{Ended, ReadinessToken};
use crate::sched::wake::Waiter;

/// What the reactor knows of one descriptor. It belongs to whoever owns the descriptor.
#[derive(Debug)]
pub(crate) struct Registration {
    known: sched::Registration,
    /// What had been told before the last read, and one, if that has got all there was; or zero.
    drained: AtomicU64,
}

/// How a wait for a request came to an end.
#[must_use]
#[derive(Debug)]
pub(crate) enum Outcome<R> {
    /// It was done; its answer.
    Done(R),
    /// It is to be tried, perhaps for the last time.
    Ended(Ended),
}

impl Registration {
    /// Registers nothing; that is done by the first wait.
    pub(crate) const fn new() -> Self {
        Registration {
            known: sched::Registration::new(),
            drained: AtomicU64::new(0),
        }
    }

    /// To be asked before a try.
    #[inline]
    pub(crate) fn readiness(&self, interest: Interest) -> ReadinessToken {
        self.known.readiness(interest)
    }

    /// After a try that would have had to wait.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Ended> {
        match park::current_fiber() {
            Some(_) if operation::is_used() => wait_by_ring(fd, interest, deadline),
            // Then whoever waits looks again and again.
            Some(_) => match self.known.wait(fd, interest, seen, deadline) {
                Err(error) if descriptor::is_one_too_many(&error) => pause_a_bit(deadline),
                ended => ended,
            },
            None => wait_on_thread(fd, interest, deadline),
        }
    }

    /// The same for a request, which may be done instead of only waited for.
    pub(crate) fn perform(
        &self,
        fd: BorrowedFd<'_>,
        request: &mut Request<'_, '_>,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Outcome<usize>> {
        let interest = request.interest();
        if park::current_fiber().is_some() && operation::is_used() {
            return match operation::perform(fd, request, deadline) {
                operation::Outcome::Done(answer) => answer.map(Outcome::Done),
                operation::Outcome::Ended(ended) => Ok(Outcome::Ended(ended)),
                operation::Outcome::NotByRing => {
                    wait_by_ring(fd, interest, deadline).map(Outcome::Ended)
                }
                operation::Outcome::NotNow => pause_a_bit(deadline).map(Outcome::Ended),
            };
        }
        self.wait(fd, interest, seen, deadline).map(Outcome::Ended)
    }

    /// Whether somebody calls who waits here: a fiber.
    pub(crate) fn can_be_notified(&self) -> bool {
        park::current_fiber().is_some()
    }

    /// Has the waiter of the calling fiber called; false if something was told that it had not seen.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        if operation::is_used() {
            self.known.enlist_poll(fd, interest, waiter); // which looks for itself
            return Ok(true);
        }
        self.known.enlist(fd, interest, seen, waiter)
    }

    /// Takes a waiter back, by the same fiber; false if it was called, or is about to be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        if operation::is_used() {
            return self.known.withdraw_poll(interest, waiter);
        }
        self.known.withdraw(interest, waiter)
    }

    /// To be called before the descriptor is closed, or leaves whoever owns this.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        self.note_drained(None);
        self.known.forget(fd);
    }

    /// Whoever has just read from a stream has got all there was, after this had been told; or perhaps not.
    pub(crate) fn note_drained(&self, before: Option<ReadinessToken>) {
        let events = before.map_or(0, |seen| u64::from(seen.events) + 1);
        self.drained.store(events, Relaxed);
    }

    /// Whether a stream has nothing to read until something is told of it: then to try would be in vain.
    pub(crate) fn drained(&self) -> Option<ReadinessToken> {
        let events = self.drained.load(Relaxed).checked_sub(1)?;
        self.known.is_quiet_since(events as u32)
    }
}

/// Failures in a row that a pause is as long as after (`backoff.rs`).
const SOME: u32 = 3;

/// The system refuses what a wait needs, which is none of the caller's business: it tries again.
fn pause_a_bit(deadline: Option<Instant>) -> io::Result<Ended> {
    pause(&mut Backoff::after(SOME), deadline)
}

fn wait_on_thread(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<Ended> {
    let limit = park::limit_of_thread(deadline);
    let until = limit.or(deadline);
    loop {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        if descriptor::poll(fd, interest, left)? {
            return Ok(Ended::Ready);
        }
        if left.is_some_and(|left| left.is_zero()) {
            let late = limit.map_or(Ended::TimedOut, |_| Ended::Cancelled);
            return Ok(late);
        }
    }
}

fn wait_by_ring(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<Ended> {
    match operation::perform(fd, &mut Request::Ready(interest), deadline) {
        operation::Outcome::Done(answer) => answer.map(|_| Ended::Ready),
        operation::Outcome::Ended(ended) => Ok(ended),
        operation::Outcome::NotByRing => Ok(Ended::Ready), // it never says so of a poll
        operation::Outcome::NotNow => pause_a_bit(deadline),
    }
}
