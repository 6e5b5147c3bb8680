//! A descriptor and its registration: the one way that every operation goes.
//!
//! 1. The operation is charged to the budget. A fiber that has used it up gives way, and unwinds if it was
//!    asked to end: before anything was tried, so nothing is lost.
//! 2. It is tried, by a call that does not wait.
//! 3. If that would have had to wait, it is asked how patient the descriptor is; only now, as that may cost
//!    system calls.
//! 4. It waits and tries again, until it is done, or the deadline has passed and one more try failed.
//!
//! **R2** A try that transferred something is the last one: its result is returned, whatever happened
//! meanwhile. Requests to end and time limits are heard in step 1 and in the wait of step 4 only. So no
//! byte is lost and none is sent twice.
//!
//! The registration is told before the descriptor is closed or given away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::registration::{Interest, Registration};
use crate::park;

/// How long an operation may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It says `WouldBlock` instead.
    Never,
    Until(Instant),
    Forever,
}

impl Patience {
    /// From now on for so long. A time too far away to be named never comes.
    pub(crate) fn of(limit: Duration) -> Self {
        let deadline = Instant::now().checked_add(limit);
        deadline.map_or(Patience::Forever, Patience::Until)
    }
}

/// A descriptor with its registration. It is there until it is taken out, by value.
#[derive(Debug)]
pub(crate) struct Watched<T: AsFd> {
    inner: Option<T>,
    registration: Registration,
}

impl<T: AsFd> Watched<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Watched {
            inner: Some(inner),
            registration: Registration::new(),
        }
    }

    pub(crate) fn get(&self) -> &T {
        self.inner.as_ref().expect("it is taken out by value only")
    }

    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Whoever gets this may put another descriptor there, so the old one is forgotten.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.registration.forget(self.get().as_fd());
        self.inner.as_mut().expect("it is taken out by value only")
    }

    pub(crate) fn into_inner(mut self) -> T {
        self.registration.forget(self.get().as_fd());
        self.inner.take().expect("it is taken out by value only")
    }

    /// The same descriptor, under another type; its registration stays.
    pub(crate) fn map<U: AsFd>(mut self, f: impl FnOnce(T) -> U) -> Watched<U> {
        let inner = self.inner.take().expect("it is taken out by value only");
        Watched {
            inner: Some(f(inner)),
            registration: std::mem::replace(&mut self.registration, Registration::new()),
        }
    }

    /// Does what `attempt` does, waiting for as long as it says `WouldBlock`.
    pub(crate) fn run<R>(
        &self,
        interest: Interest,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let wait = |fd: BorrowedFd<'_>, deadline| self.registration.wait(fd, interest, deadline);
        self.run_with(patience, attempt, wait)
    }

    /// The same for what the kernel does not tell us about: looks again and again.
    pub(crate) fn run_guessing<R>(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut backoff = super::backoff::Backoff::new();
        self.run_with(patience, attempt, |_, deadline| backoff.wait(deadline))
    }

    fn run_with<R>(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        mut attempt: impl FnMut(&T) -> io::Result<R>,
        mut wait: impl FnMut(BorrowedFd<'_>, Option<Instant>) -> io::Result<()>,
    ) -> io::Result<R> {
        park::charge_ahead();
        let inner = self.get();
        let refused = match attempt(inner) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => error,
            done => return done,
        };
        let fd = inner.as_fd();
        let deadline = match patience(fd) {
            Patience::Never => return Err(refused),
            Patience::Until(at) => Some(at),
            Patience::Forever => None,
        };
        loop {
            let is_late = match wait(fd, deadline) {
                Ok(()) => false,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => true,
                Err(error) => return Err(error),
            };
            match attempt(inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_late => {}
                done => return done,
            }
        }
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            self.registration.forget(inner.as_fd());
        }
    }
}
