//! What the reactor knows of one descriptor, and the one way to wait for it.
//!
//! A wait ends when the descriptor *may* be ready: whoever waits tries again and comes back if it was
//! not. It ends with `TimedOut` at its deadline, and it does not return at all if the fiber was asked to
//! end, or its time limit has passed: it unwinds. But whoever finds the descriptor ready at that moment is
//! told so; what came in time is not lost (**R1**).
//!
//! Plain threads wait in the kernel, for this one descriptor. Fibers, for the time being, look once a
//! tick of their timer and are parked in between.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::base::descriptor;
pub(crate) use crate::base::descriptor::Interest;
use crate::park::{self, ParkReason, Woken};

/// How often a fiber looks.
const NAP: Duration = Duration::from_millis(1);

/// What the reactor knows of one descriptor. It belongs to whoever owns the descriptor.
#[derive(Debug)]
pub(crate) struct Registration(());

impl Registration {
    /// Registers nothing; that is done by the first wait.
    pub(crate) const fn new() -> Self {
        Registration(())
    }

    /// Returns when the descriptor may be ready, or with `TimedOut` at the deadline.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        match park::current_fiber() {
            Some(_) => wait_on_fiber(fd, interest, deadline),
            None => wait_on_thread(fd, interest, deadline),
        }
    }

    /// To be called before the descriptor is closed, or leaves whoever owns this.
    pub(crate) fn forget(&self, _fd: BorrowedFd<'_>) {}
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
    fd: BorrowedFd<'_>,
    interest: Interest,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let mut is_to_end = false;
    loop {
        let now = Instant::now();
        if descriptor::poll(fd, interest, Some(Duration::ZERO))? {
            return Ok(());
        }
        if is_to_end {
            park::unwind_cancelled(); // after the look (R1)
        }
        if deadline.is_some_and(|at| at <= now) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let nap = now + NAP;
        let until = deadline.map_or(nap, |at| at.min(nap));
        is_to_end = park::rest(Some(until), ParkReason::Io) == Woken::ByCancel;
    }
}
