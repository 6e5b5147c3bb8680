//! The one way to wait for a descriptor, on a fiber or a plain thread.
//!
//! A wait ends when the descriptor *may* be ready: the caller tries again, and waits again if it
//! was not. It also ends at its deadline, and when the fiber is asked to end or its time limit has
//! passed. **R1** *After every wait there is one more try:* what came in time is not lost.
//!
//! Plain threads wait in the kernel, for this one descriptor. Fibers park until a thread that takes
//! events wakes them; or, with io_uring, until the kernel has carried out their request
//! (`sched/io.rs`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::backoff::Backoff;
use super::registered::pause;
use crate::park;
use crate::sched::block::wake::Waiter;
use crate::sched::io as sched;
pub(crate) use crate::sched::io::{Ended, ReadinessToken};
use crate::sys::descriptor;
pub(crate) use crate::sys::descriptor::Interest;
use crate::sys::request::Request;

/// What is known of one descriptor, kept by the owner of the descriptor.
#[derive(Debug)]
pub(crate) struct Registration {
    inner: sched::Registration,
    /// The number of read events before the last read, plus one, if that read has got all there
    /// was; or zero.
    drained: AtomicU64,
}

/// How a wait for a request ended.
#[must_use]
#[derive(Debug)]
pub(crate) enum Outcome<R> {
    /// The request was carried out, with this result.
    Done(R),
    /// The request is to be tried, perhaps for the last time.
    Ended(Ended),
}

impl Registration {
    /// Makes an empty registration. The first wait registers the descriptor.
    pub(crate) const fn new() -> Self {
        Registration {
            inner: sched::Registration::new(),
            drained: AtomicU64::new(0),
        }
    }

    /// The events so far. Read before a try.
    #[inline]
    pub(crate) fn readiness(&self, interest: Interest) -> ReadinessToken {
        self.inner.readiness(interest)
    }

    /// Waits until the descriptor may be ready, after a try that would have had to wait.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Ended> {
        match self.perform(fd, &mut Request::Ready(interest), seen, deadline)? {
            Outcome::Done(_) => Ok(Ended::Ready),
            Outcome::Ended(ended) => Ok(ended),
        }
    }

    /// Waits until the request may be tried again, or has been carried out by the kernel.
    pub(crate) fn perform(
        &self,
        fd: BorrowedFd<'_>,
        request: &mut Request<'_, '_>,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Outcome<usize>> {
        if park::current_fiber().is_none() {
            return wait_on_thread(fd, request.interest(), deadline).map(Outcome::Ended);
        }
        match self.inner.perform(fd, request, seen, deadline) {
            sched::Outcome::Done(result) => result.map(Outcome::Done),
            sched::Outcome::Ended(ended) => Ok(Outcome::Ended(ended)),
            sched::Outcome::Refused => pause_a_bit(deadline).map(Outcome::Ended),
        }
    }

    /// Whether a waiter of the caller can be notified: on fibers only.
    pub(crate) fn can_notify(&self) -> bool {
        park::current_fiber().is_some()
    }

    /// Lists a waiter of the calling fiber, to be notified of events after `seen`. False if there
    /// has been one already.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        self.inner.enlist(fd, interest, seen, waiter)
    }

    /// Takes back a waiter that the same fiber enlisted; false if it was notified, or is about to
    /// be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        self.inner.withdraw(interest, waiter)
    }

    /// Ends the registration. Called before the descriptor is closed or given away.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        self.note_drained(None);
        self.inner.forget(fd);
    }

    /// Notes that a read has got all there was in a stream, and the events before it; `None`: that
    /// it may have left something.
    pub(crate) fn note_drained(&self, before: Option<ReadinessToken>) {
        let events = before.map_or(0, |seen| u64::from(seen.events) + 1);
        self.drained.store(events, Relaxed);
    }

    /// A token to wait with if a stream has nothing to read until there is another event: a try
    /// would fail.
    pub(crate) fn drained(&self) -> Option<ReadinessToken> {
        let events = self.drained.load(Relaxed).checked_sub(1)?;
        self.inner.is_quiet_since(events as u32)
    }
}

/// A pause is as long as after this many failures in a row (`backoff.rs`).
const SOME: u32 = 3;

/// Pauses because the system refuses what a wait needs. The caller need not know: it tries again.
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
