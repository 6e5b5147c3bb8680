//! What the reactor knows of one descriptor, and the one way to wait for it.
//!
//! A wait ends when the descriptor *may* be ready: whoever waits tries again and comes back if it was
//! not. It ends with `TimedOut` at its deadline, and it does not return at all if the fiber was asked to
//! end, or its time limit has passed: it unwinds. But whoever finds the descriptor ready at that moment is
//! told so; what came in time is not lost (**R1**).
//!
//! Plain threads wait in the kernel, for this one descriptor. Fibers park, and somebody who looks at all
//! descriptors wakes them (`sched/io.rs`); or they give what they want to do to a ring, and park until it is
//! done (`sched/io/ring.rs`).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::base::descriptor;
pub(crate) use crate::base::descriptor::Interest;
use crate::base::request::Request;
use crate::park;
use crate::sched::io::ring::{self, Outcome};
use crate::sched::io::{self as sched, Ended};

/// What the reactor knows of one descriptor. It belongs to whoever owns the descriptor.
#[derive(Debug)]
pub(crate) struct Registration(sched::Registration);

impl Registration {
    /// Registers nothing; that is done by the first wait.
    pub(crate) const fn new() -> Self {
        Registration(sched::Registration::new())
    }

    /// Returns when the descriptor may be ready, or with `TimedOut` at the deadline.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        match park::current_fiber() {
            Some(_) => wait_on_fiber(&self.0, fd, interest, deadline),
            None => wait_on_thread(fd, interest, deadline),
        }
    }

    /// The same for a request that was tried before. If it was done instead of only waited for, this is its
    /// answer; else it is to be tried again.
    pub(crate) fn perform(
        &self,
        fd: BorrowedFd<'_>,
        request: &mut Request<'_, '_>,
        deadline: Option<Instant>,
    ) -> io::Result<Option<usize>> {
        let interest = request.interest();
        if park::current_fiber().is_some() && ring::is_used() {
            return match ring::perform(fd, request, deadline)? {
                Outcome::Done(answer) => answer.map(Some),
                Outcome::Ended(ended) => conclude(fd, interest, ended).map(|()| None),
                Outcome::NotByRing => wait_by_ring(fd, interest, deadline).map(|()| None),
            };
        }
        self.wait(fd, interest, deadline).map(|()| None)
    }

    /// To be called before the descriptor is closed, or leaves whoever owns this.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        self.0.forget(fd);
    }
}

fn wait_on_thread(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let limit = park::limit_of_thread(deadline);
    let until = limit.or(deadline);
    loop {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        if descriptor::poll(fd, interest, left)? {
            return Ok(());
        }
        // Not before the look above, which did not wait (R1).
        if left.is_some_and(|left| left.is_zero()) {
            if limit.is_some() {
                park::unwind_cancelled();
            }
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn wait_on_fiber(
    known: &sched::Registration,
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    if ring::is_used() {
        return wait_by_ring(fd, interest, deadline);
    }
    conclude(fd, interest, known.wait(fd, interest, deadline)?)
}

fn wait_by_ring(
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    match ring::perform(fd, &mut Request::Ready(interest), deadline)? {
        Outcome::Done(answer) => answer.map(drop),
        Outcome::Ended(ended) => conclude(fd, interest, ended),
        Outcome::NotByRing => Ok(()), // it never says so of a poll
    }
}

/// What the end of a wait means for whoever waited.
fn conclude(fd: BorrowedFd<'_>, interest: Interest, ended: Ended) -> io::Result<()> {
    if ended == Ended::Ready || descriptor::poll(fd, interest, Some(Duration::ZERO))? {
        return Ok(()); // R1
    }
    match ended {
        Ended::Cancelled => park::unwind_cancelled(),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}
