//! A descriptor with its registration: how every I/O operation is done.
//!
//! 1. The operation is charged to the budget. A fiber that has used it up yields, and unwinds if it
//!    was asked to end: before anything was tried, so nothing is lost.
//! 2. It is tried, by a call that does not wait.
//! 3. If that would have had to wait, the descriptor's [`Patience`] is found out; only now, as that
//!    may cost system calls.
//! 4. The fiber waits and tries again, until the operation is done, or the deadline has passed and
//!    one more try failed. With io_uring the wait may bring the result.
//!
//! **R2** *A try, or a wait, that transferred something is the last one:* its result is returned,
//! whatever happened meanwhile. Cancellations and time limits are noticed in step 1 and in the wait
//! of step 4 only. So no byte is lost and none is sent twice.
//!
//! **R3** *A TCP stream that a read has drained is not tried.* The kernel reports whatever comes
//! after a read that found less than there was room for. So the next read can wait without a try
//! that would fail, which is most of them where requests and answers alternate. An end, an error or
//! an urgent byte may have been reported before that read: then it is tried. R3 does not hold for
//! Unix streams, where a read ends at descriptors that were sent, nor for pipes, where it may end
//! at a packet. And it is used only for streams that this crate made and of which no other code has
//! had the descriptor: a TCP stream made from a foreign descriptor may be a socket whose reads end
//! at messages, or be made one.
//!
//! The registration ends before the descriptor is closed or given away.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::registration::{Ended, Interest, Outcome, ReadinessToken, Registration};
use crate::park;
use crate::sched::io as sched;
use crate::sys::address::Address;
use crate::sys::descriptor;
use crate::sys::request::Request;
use crate::sys::socket::Take;

/// How long an operation may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: it fails with `WouldBlock`.
    Never,
    Until(Instant),
    Forever,
}

impl Patience {
    /// Until `limit` has passed from now; forever if no `Instant` can express that.
    pub(crate) fn of(limit: Duration) -> Self {
        let deadline = Instant::now().checked_add(limit);
        deadline.map_or(Patience::Forever, Patience::Until)
    }
}

/// A descriptor with its registration.
#[derive(Debug)]
pub(crate) struct Registered<T: AsFd> {
    /// There until it is taken out, by value.
    inner: Option<T>,
    registration: Registration,
    /// What is known of how long it may wait: a bit for each direction without a time limit, or
    /// [`SHARED`], or [`LIMITED`].
    patience: AtomicU8,
}

/// Other code may have a handle of the same open file, and change its mode or its limits at any
/// time.
const SHARED: u8 = 1 << 7;
/// Its mode or its limits have been set through this crate: the kernel is asked for them.
const LIMITED: u8 = 1 << 6;

impl<T: AsFd> Registered<T> {
    /// Of a descriptor that other code may have a handle of.
    pub(crate) const fn new(inner: T) -> Self {
        Registered {
            inner: Some(inner),
            registration: Registration::new(),
            patience: AtomicU8::new(SHARED),
        }
    }

    /// Of a descriptor that no other code has had so far.
    pub(crate) const fn unshared(inner: T) -> Self {
        Registered {
            inner: Some(inner),
            registration: Registration::new(),
            patience: AtomicU8::new(0),
        }
    }

    /// The inner value, for code that may change the descriptor unseen.
    pub(crate) fn share(&self) -> &T {
        self.patience.store(SHARED, Relaxed);
        self.get()
    }

    /// The inner value, for a change of its mode or its limits.
    pub(crate) fn limit(&self) -> &T {
        self.patience.fetch_or(LIMITED, Relaxed);
        self.get()
    }

    fn is_shared(&self) -> bool {
        self.patience.load(Relaxed) & SHARED != 0
    }

    /// How long it may wait: remembered if possible, else by `ask`.
    pub(crate) fn known_patience(
        &self,
        interest: Interest,
        ask: impl FnOnce(BorrowedFd<'_>) -> Patience,
        fd: BorrowedFd<'_>,
    ) -> Patience {
        let bit = 1 << interest as u8;
        let known = self.patience.load(Relaxed);
        let never = SHARED | LIMITED;
        if known & (bit | never) == bit {
            return Patience::Forever;
        }
        let answer = ask(fd);
        if answer == Patience::Forever && known & never == 0 {
            // If it becomes shared at this moment it stays shared.
            let _ = self
                .patience
                .compare_exchange(known, known | bit, Relaxed, Relaxed);
        }
        answer
    }

    pub(crate) fn get(&self) -> &T {
        self.inner.as_ref().expect("it is taken out by value only")
    }

    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// The inner value. The caller may put another descriptor there, so the registration ends.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.registration.forget(self.share().as_fd());
        self.inner.as_mut().expect("it is taken out by value only")
    }

    /// Ends the registration and returns the inner value.
    pub(crate) fn into_inner(mut self) -> T {
        self.registration.forget(self.get().as_fd());
        self.inner.take().expect("it is taken out by value only")
    }

    /// The same descriptor as another type; its registration stays.
    pub(crate) fn map<U: AsFd>(mut self, f: impl FnOnce(T) -> U) -> Registered<U> {
        let inner = self.inner.take().expect("it is taken out by value only");
        Registered {
            inner: Some(f(inner)),
            registration: std::mem::replace(&mut self.registration, Registration::new()),
            patience: AtomicU8::new(*self.patience.get_mut()),
        }
    }

    /// Calls `attempt` until it returns something else than `WouldBlock`, and waits in between.
    pub(crate) fn run<R>(
        &self,
        interest: Interest,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut attempt = attempt;
        let wait = |_: &mut (), fd: BorrowedFd<'_>, seen, deadline| {
            let ended = self.registration.wait(fd, interest, seen, deadline)?;
            Ok(Outcome::Ended(ended))
        };
        let first = FirstStep::Try(interest);
        self.run_with(first, &mut (), patience, |(), inner| attempt(inner), wait)
    }

    /// Carries out a request, or has the kernel do it.
    pub(crate) fn perform(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        request: Request<'_, '_>,
    ) -> io::Result<usize> {
        let attempt = |request: &mut Request<'_, '_>, inner: &T| request.attempt(inner.as_fd());
        self.perform_by(
            FirstStep::Try(request.interest()),
            patience,
            request,
            attempt,
        )
    }

    /// Reads from a TCP stream, without a try if it is known to be empty (R3).
    pub(crate) fn read_stream(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        if self.is_shared() {
            return self.perform(patience, Request::Receive(buffer, Take::Take));
        }
        let (room, mut before) = (buffer.len(), None);
        let attempt = |request: &mut Request<'_, '_>, inner: &T| {
            before = Some(self.registration.readiness(Interest::Read));
            request.attempt(inner.as_fd())
        };
        let first = match self.registration.drained() {
            Some(seen) => FirstStep::Wait(seen),
            None => FirstStep::Try(Interest::Read),
        };
        let request = Request::Receive(buffer, Take::Take);
        let answer = self.perform_by(first, patience, request, attempt);
        let is_drained = matches!(answer, Ok(length) if 0 < length && length < room);
        self.registration
            .note_drained(before.filter(|_| is_drained));
        answer
    }

    fn perform_by<'a, 'parts>(
        &self,
        first: FirstStep,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        mut request: Request<'a, 'parts>,
        attempt: impl FnMut(&mut Request<'a, 'parts>, &T) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let interest = request.interest();
        let patience = |fd: BorrowedFd<'_>| self.known_patience(interest, patience, fd);
        let wait = |request: &mut Request<'a, 'parts>, fd: BorrowedFd<'_>, seen, deadline| {
            self.registration.perform(fd, request, seen, deadline)
        };
        self.run_with(first, &mut request, patience, attempt, wait)
    }

    /// Accepts a connection by `attempt`, or has the kernel accept it and calls `make` with what it
    /// returned.
    pub(crate) fn accept<R>(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        attempt: impl Fn(&T) -> io::Result<R>,
        make: impl Fn(OwnedFd, Address) -> io::Result<R>,
    ) -> io::Result<R> {
        let wait = |_: &mut (), fd: BorrowedFd<'_>, seen, deadline| {
            let mut from = Address::room();
            let request = &mut Request::Accept(&mut from);
            match self.registration.perform(fd, request, seen, deadline)? {
                Outcome::Done(accepted) => {
                    make(descriptor::accepted(accepted), from).map(Outcome::Done)
                }
                Outcome::Ended(ended) => Ok(Outcome::Ended(ended)),
            }
        };
        let first = FirstStep::Try(Interest::Read);
        self.run_with(first, &mut (), patience, |(), inner| attempt(inner), wait)
    }

    /// As [`run`](Self::run), for what the kernel does not report: tries again after pauses.
    pub(crate) fn run_with_backoff<R>(
        &self,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut attempt = attempt;
        let mut backoff = Backoff::new();
        let wait = |_: &mut (), _: BorrowedFd<'_>, _, deadline| {
            let ended = pause(&mut backoff, deadline)?;
            Ok(Outcome::Ended(ended))
        };
        let first = FirstStep::Try(Interest::Write);
        self.run_with(first, &mut (), patience, |(), inner| attempt(inner), wait)
    }

    fn run_with<S, R>(
        &self,
        first: FirstStep,
        state: &mut S,
        patience: impl FnOnce(BorrowedFd<'_>) -> Patience,
        mut attempt: impl FnMut(&mut S, &T) -> io::Result<R>,
        mut wait: impl FnMut(
            &mut S,
            BorrowedFd<'_>,
            ReadinessToken,
            Option<Instant>,
        ) -> io::Result<Outcome<R>>,
    ) -> io::Result<R> {
        park::charge_ahead();
        let inner = self.get();
        let (interest, mut seen) = match first {
            FirstStep::Wait(seen) => (Interest::Read, seen),
            FirstStep::Try(interest) => {
                let seen = self.registration.readiness(interest);
                match attempt(state, inner) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => (interest, seen),
                    done => return done,
                }
            }
        };
        let fd = inner.as_fd();
        let deadline = match patience(fd) {
            Patience::Never => return attempt(state, inner),
            Patience::Until(at) => Some(at),
            Patience::Forever => None,
        };
        let mut spurious = SpuriousWakes::new();
        loop {
            let ended = match wait(state, fd, seen, deadline)? {
                Outcome::Done(answer) => return Ok(answer),
                Outcome::Ended(ended) => ended,
            };
            seen = self.registration.readiness(interest);
            match (attempt(state, inner), ended) {
                (Err(error), _) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                (Err(error), Ended::Ready) if spurious.note(deadline)? == Ended::TimedOut => {
                    return Err(error);
                }
                (Err(_), Ended::Ready) => {}
                (Err(error), Ended::TimedOut) => return Err(error),
                (Err(_), Ended::Cancelled) => park::unwind_cancelled(),
                (Ok(answer), _) => return Ok(answer),
            }
        }
    }
}

/// What an operation begins with.
#[derive(Clone, Copy)]
enum FirstStep {
    Try(Interest),
    /// A read that waits at once: there was no event since a read that got all there was.
    Wait(ReadinessToken),
}

/// Pauses, and returns like a wait.
pub(super) fn pause(backoff: &mut Backoff, deadline: Option<Instant>) -> io::Result<Ended> {
    match backoff.wait(deadline) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(Ended::TimedOut),
        paused => paused.map(|()| Ended::Ready),
    }
}

/// Slows down waits that end at once though the operation cannot be done.
///
/// The kernel reports something that this operation does not take, an error queue for instance.
/// Without a pause the caller would try and wait in a busy loop. That happens where each wait asks
/// the kernel anew, on plain threads and with io_uring; epoll reports a change once.
struct SpuriousWakes {
    /// How many there were in a row.
    times: u32,
    backoff: Backoff,
    /// When the last one ended, or the pause after it.
    last: Option<Instant>,
}

impl SpuriousWakes {
    /// This many may be chance: other threads were faster.
    const FEW: u32 = 16;
    /// A wait that took longer has waited.
    const AT_ONCE: Duration = Duration::from_millis(1);

    fn new() -> Self {
        SpuriousWakes {
            times: 0,
            backoff: Backoff::new(),
            last: None,
        }
    }

    /// Notes a wait after which the operation could not be done, and pauses after many of them.
    fn note(&mut self, deadline: Option<Instant>) -> io::Result<Ended> {
        if park::current_fiber().is_some() && sched::reports_changes_only() {
            return Ok(Ended::Ready);
        }
        if self.last.is_some_and(|last| last.elapsed() > Self::AT_ONCE) {
            (self.times, self.backoff) = (0, Backoff::new());
        }
        self.times += 1;
        let ended = if self.times > Self::FEW {
            pause(&mut self.backoff, deadline)
        } else {
            Ok(Ended::Ready)
        };
        self.last = Some(Instant::now());
        ended
    }
}

impl<T: AsFd> Drop for Registered<T> {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            self.registration.forget(inner.as_fd());
        }
    }
}
