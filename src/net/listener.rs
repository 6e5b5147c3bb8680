//! What listeners have in common: their mode, and what they do without free descriptors.
//!
//! A listener of this crate is in non-blocking mode, whatever the user has set; the user's mode is
//! shared by all its clones of this crate's type. When one of them is converted to std's type, the
//! kernel's mode is the user's again; the other clones then poll for a connection before they
//! accept it.
//!
//! *Shortage.* A connection that cannot be accepted for want of a descriptor or memory stays in the
//! kernel's queue, and the next call fails again at once: a loop that goes on after errors, as
//! users of `incoming` write it, would spin. So a call that fails like this pauses, for longer with
//! each failure in a row, and tries once more; if that fails as well, it returns the error. While
//! there is no connection it simply waits.
//!
//! Rejected: to retry forever, which hides from the user what only the user can repair; to return
//! at once, as std, Go and Tokio do, where each user has to find out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::io::backoff::Backoff;
use crate::io::registered::{Patience, Registered};
use crate::io::registration::Interest;
use crate::sys::address::Address;
use crate::sys::{descriptor, socket};

/// A handle of a listener.
pub(super) struct Listening<T: AsFd> {
    socket: Registered<T>,
    mode: Arc<Mode>,
}

/// What all handles of a listener, of this crate's types, have in common.
#[derive(Default)]
struct Mode {
    /// The user's mode: `WouldBlock` instead of waits.
    is_nonblocking: AtomicBool,
    /// A clone was converted to std's type: the kernel's mode is the user's.
    is_given_away: AtomicBool,
    /// It is a TCP socket, and accepts TCP streams.
    is_tcp: bool,
    /// Failures in a row for want of a descriptor or memory.
    shortages: AtomicU32,
}

impl<T: AsFd> Listening<T> {
    /// Of a socket that other code may have a handle of.
    pub(super) fn new(socket: T) -> Self {
        Self::of(Registered::new(socket))
    }

    /// Of a socket that no other code has had so far.
    pub(super) fn unshared(socket: T) -> Self {
        Self::of(Registered::unshared(socket))
    }

    fn of(registered: Registered<T>) -> Self {
        let socket = registered.get();
        let mode = Mode {
            is_tcp: socket::is_tcp(socket.as_fd()),
            ..Mode::default()
        };
        // Neither call fails for an open descriptor.
        let before = descriptor::is_nonblocking(socket.as_fd()).unwrap_or(false);
        mode.is_nonblocking.store(before, Relaxed);
        let _valid = descriptor::set_nonblocking(socket.as_fd(), true);
        Listening {
            socket: registered,
            mode: Arc::new(mode),
        }
    }

    pub(super) fn get(&self) -> &T {
        self.socket.get()
    }

    /// The socket, for code that may change it unseen.
    pub(super) fn share(&self) -> &T {
        self.socket.share()
    }

    /// Whether it accepts TCP streams.
    pub(super) fn is_tcp(&self) -> bool {
        self.mode.is_tcp
    }

    /// Another handle, for a duplicate of the descriptor.
    pub(super) fn clone_as(&self, duplicate: T) -> Self {
        Listening {
            socket: Registered::new(duplicate),
            mode: self.mode.clone(),
        }
    }

    pub(super) fn into_std(self) -> T {
        let socket = self.socket.into_inner();
        let wanted = self.mode.is_nonblocking.load(Relaxed);
        // First the flag for the other clones, then the mode. A clone that is about to accept may
        // miss it, and then blocks its thread.
        self.mode.is_given_away.store(true, Relaxed);
        let _valid = descriptor::set_nonblocking(socket.as_fd(), wanted);
        socket
    }

    pub(super) fn set_nonblocking(&self, wanted: bool) -> io::Result<()> {
        self.mode.is_nonblocking.store(wanted, Relaxed);
        if self.mode.is_given_away.load(Relaxed) {
            descriptor::set_nonblocking(self.get().as_fd(), wanted)?;
        }
        Ok(())
    }

    /// Accepts by `accept`, or by the kernel, and then by `make` from the descriptor.
    pub(super) fn accept<R>(
        &self,
        accept: impl Fn(&T) -> io::Result<R>,
        make: impl Fn(OwnedFd, Address) -> io::Result<R>,
    ) -> io::Result<R> {
        let result = self.accept_once(&accept, &make);
        if !self.note_shortage(&result) || self.mode.is_nonblocking.load(Relaxed) {
            return result;
        }
        let failures = self.mode.shortages.fetch_add(1, Relaxed);
        Backoff::after(failures).wait(None)?;
        let result = self.accept_once(&accept, &make);
        self.note_shortage(&result);
        result
    }

    /// Whether a descriptor or memory was lacking; if not, the next pause is a short one again.
    fn note_shortage<R>(&self, result: &io::Result<R>) -> bool {
        let is_short = result.as_ref().err().is_some_and(descriptor::is_shortage);
        if !is_short && self.mode.shortages.load(Relaxed) != 0 {
            self.mode.shortages.store(0, Relaxed);
        }
        is_short
    }

    fn accept_once<R>(
        &self,
        accept: &impl Fn(&T) -> io::Result<R>,
        make: &impl Fn(OwnedFd, Address) -> io::Result<R>,
    ) -> io::Result<R> {
        let mode = &*self.mode;
        let has_connection = |socket: &T| {
            let now = Some(Duration::ZERO);
            descriptor::poll(socket.as_fd(), Interest::Read, now)
        };
        let attempt = |socket: &T| {
            let would_block = || Err(io::ErrorKind::WouldBlock.into());
            if mode.is_given_away.load(Relaxed) && !has_connection(socket)? {
                return would_block();
            }
            match accept(socket) {
                // The kernel allocates a descriptor before it looks for a connection.
                Err(error) if descriptor::is_shortage(&error) && !has_connection(socket)? => {
                    would_block()
                }
                result => result,
            }
        };
        let limit = |fd: BorrowedFd<'_>| match socket::time_limit(fd, Interest::Read) {
            // Set through the descriptor: std has no call for it.
            Ok(Some(limit)) => Patience::of(limit),
            _ => Patience::Forever,
        };
        let patience = |fd: BorrowedFd<'_>| match mode.is_nonblocking.load(Relaxed) {
            true => Patience::Never,
            false => self.socket.known_patience(Interest::Read, limit, fd),
        };
        self.socket.accept(patience, attempt, make)
    }
}
