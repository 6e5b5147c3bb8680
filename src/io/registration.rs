//! What the reactor knows of one descriptor, and the one way to wait for it.
//!
//! A wait ends when the descriptor *may* be ready: whoever waits tries again and comes back if it was
//! not. It ends with `TimedOut` at its deadline, and it does not return at all if the fiber was asked to
//! end, or its time limit has passed: it unwinds. But whoever finds the descriptor ready at that moment is
//! told so; what came in time is not lost (**R1**).
//!
//! Plain threads wait in the kernel, for this one descriptor. Fibers park, and somebody who looks at all
//! descriptors wakes them (`sched/io.rs`).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::base::descriptor;
pub(crate) use crate::base::descriptor::Interest;
use crate::park;
use crate::sched::io::{self as sched, Ended};
use crate::sched::wake::Waiter;

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

    /// Has the waiter of the calling fiber called; false if something has happened already.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        self.0.enlist(fd, interest, waiter)
    }

    /// Takes a waiter back; false if it was called, or is about to be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        self.0.withdraw(interest, waiter)
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
    let ended = known.wait(fd, interest, deadline)?;
    if ended == Ended::Ready || descriptor::poll(fd, interest, Some(Duration::ZERO))? {
        return Ok(()); // R1
    }
    match ended {
        Ended::Cancelled => park::unwind_cancelled(),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}
