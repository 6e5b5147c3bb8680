//! Any descriptor the kernel can poll: eventfd, timerfd, inotify, a terminal, a library's socket.
//!
//! A wait returns what the kernel reports at that moment: it polls first, and again after it was
//! woken. What is read or written is up to the caller, and so is the descriptor's mode.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use super::registered::{Patience, Registered};
use super::registration::{Interest, Registration};
use crate::sched::block::wake::Waiter;
use crate::sys::descriptor;

/// A descriptor that fibers can wait for, whatever its type.
///
/// A wait suspends the calling fiber, not its thread; on a plain thread it blocks the thread.
/// Regular files, and other descriptors that are always ready, are refused: there is nothing to
/// wait for. Read them inside [`runtime::blocking`](crate::runtime::blocking).
///
/// It corresponds to Tokio's `AsyncFd`.
///
/// ```
/// use indent::io::Source;
/// use std::io::{ErrorKind, Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// // A type of another crate, in non-blocking mode:
/// let (ours, mut theirs) = UnixStream::pair()?;
/// ours.set_nonblocking(true)?;
///
/// let source = Source::new(ours)?;
/// let fiber = indent::spawn(move || {
///     let mut buffer = [0; 16];
///     let length = source.read_with(|mut stream| stream.read(&mut buffer))?;
///     Ok::<_, std::io::Error>(buffer[..length].to_vec())
/// });
/// theirs.write_all(b"news")?;
/// assert_eq!(fiber.join().unwrap()?, b"news");
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// assert_eq!(Source::new(file).unwrap_err().kind(), ErrorKind::Unsupported);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Source<T: AsFd>(Registered<T>);

impl<T: AsFd> Source<T> {
    /// Wraps a value that has a descriptor.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the kernel cannot report when the descriptor
    /// becomes ready.
    ///
    /// ```
    /// use indent::io::Source;
    /// use std::io::ErrorKind;
    ///
    /// let (socket, _other) = std::os::unix::net::UnixDatagram::pair()?;
    /// assert!(Source::new(socket).is_ok());
    /// let folder = std::fs::File::open("/")?;
    /// assert_eq!(Source::new(folder).unwrap_err().kind(), ErrorKind::Unsupported);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(inner: T) -> io::Result<Self> {
        if !descriptor::is_pollable(inner.as_fd())? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "cannot wait for a regular file, or a device like one: it is always ready; \
                 read and write it inside runtime::blocking",
            ));
        }
        Ok(Source(Registered::new(inner)))
    }

    /// Blocks until there is something to read, the stream has ended, or there is an error.
    ///
    /// ```
    /// use indent::io::{self, Source};
    /// use std::io::Write;
    ///
    /// let (reader, mut writer) = io::pipe()?;
    /// let source = Source::new(reader)?;
    /// writer.write_all(b"!")?;
    /// source.wait_readable()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_readable(&self) -> io::Result<()> {
        self.wait(Interest::Read, Patience::Forever)
    }

    /// As [`wait_readable`](Source::wait_readable), until `deadline` at most.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the deadline passes.
    ///
    /// ```
    /// use indent::io::{self, Source};
    /// use std::time::{Duration, Instant};
    ///
    /// let (reader, _writer) = io::pipe()?;
    /// let source = Source::new(reader)?;
    /// let soon = Instant::now() + Duration::from_millis(1);
    /// let error = source.wait_readable_until(soon).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_readable_until(&self, deadline: Instant) -> io::Result<()> {
        self.wait(Interest::Read, Patience::Until(deadline))
    }

    /// Blocks until there is room to write, or there is an error.
    ///
    /// ```
    /// use indent::io::{self, Source};
    ///
    /// let (_reader, writer) = io::pipe()?;
    /// Source::new(writer)?.wait_writable()?; // an empty pipe has room
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_writable(&self) -> io::Result<()> {
        self.wait(Interest::Write, Patience::Forever)
    }

    /// As [`wait_writable`](Source::wait_writable), until `deadline` at most.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the deadline passes.
    ///
    /// ```
    /// use indent::io::{self, Source};
    /// use std::time::Instant;
    ///
    /// let (_reader, writer) = io::pipe()?;
    /// Source::new(writer)?.wait_writable_until(Instant::now())?; // it is ready now
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_writable_until(&self, deadline: Instant) -> io::Result<()> {
        self.wait(Interest::Write, Patience::Until(deadline))
    }

    /// Calls `f` until it succeeds, and waits for something to read in between.
    ///
    /// `f` is called again as long as it returns [`WouldBlock`](io::ErrorKind::WouldBlock). It
    /// should not wait itself: the descriptor is in non-blocking mode, or the call is one that does
    /// not wait.
    ///
    /// ```
    /// use indent::io::Source;
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// ours.set_nonblocking(true)?;
    /// let source = Source::new(ours)?;
    /// let late = indent::spawn(move || theirs.write_all(b"in"));
    /// assert_eq!(source.read_with(|mut stream| stream.read(&mut [0; 8]))?, 2);
    /// late.join().unwrap()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn read_with<R>(&self, f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.0.run(Interest::Read, |_| Patience::Forever, f)
    }

    /// As [`read_with`](Source::read_with), but waits for room to write.
    ///
    /// ```
    /// use indent::io::Source;
    /// use std::io::Write;
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (ours, _theirs) = UnixStream::pair()?;
    /// ours.set_nonblocking(true)?;
    /// let source = Source::new(ours)?;
    /// assert_eq!(source.write_with(|mut stream| stream.write(b"out"))?, 3);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn write_with<R>(&self, f: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.0.run(Interest::Write, |_| Patience::Forever, f)
    }

    /// The wrapped value.
    ///
    /// ```
    /// use indent::io::Source;
    /// use std::io::Write;
    ///
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let source = Source::new(reader)?;
    /// writer.write_all(b"x")?;
    /// source.wait_readable()?;
    /// assert_eq!(std::io::Read::read(&mut source.get_ref(), &mut [0; 8])?, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get_ref(&self) -> &T {
        self.0.get()
    }

    /// The wrapped value, mutably. Another descriptor may be put there; it is not checked again.
    ///
    /// ```
    /// use indent::io::Source;
    /// use std::io::Write;
    ///
    /// let [(one, _), (other, mut writer)] = [std::io::pipe()?, std::io::pipe()?];
    /// let mut source = Source::new(one)?;
    /// *source.get_mut() = other;
    /// writer.write_all(b"x")?;
    /// source.wait_readable()?; // the other one is
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Returns the wrapped value.
    ///
    /// ```
    /// use indent::io::{self, Source};
    ///
    /// let (reader, _writer) = io::pipe()?;
    /// let reader = Source::new(reader)?.into_inner();
    /// # drop(reader);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// For a select: the descriptor is asked for here, once; no user code is called after that.
    pub(crate) fn readiness_wait(&self, to_write: bool) -> ReadinessWait<'_> {
        ReadinessWait {
            fd: self.as_fd(),
            registration: self.0.registration(),
            interest: match to_write {
                true => Interest::Write,
                false => Interest::Read,
            },
        }
    }

    fn wait(&self, interest: Interest, patience: Patience) -> io::Result<()> {
        let look = |inner: &T| match descriptor::poll(inner.as_fd(), interest, Some(Duration::ZERO))
        {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        };
        let late = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        };
        self.0.run(interest, |_| patience, look).map_err(late)
    }
}

/// A source and a direction, for code that must not call [`AsFd::as_fd`]: that is user code, and
/// may unwind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadinessWait<'a> {
    fd: BorrowedFd<'a>,
    registration: &'a Registration,
    interest: Interest,
}

impl ReadinessWait<'_> {
    /// Whether the kernel reports it as ready now.
    pub(crate) fn is_ready(&self) -> io::Result<bool> {
        descriptor::poll(self.fd, self.interest, Some(Duration::ZERO))
    }

    /// Lists a waiter, to be notified when the descriptor may be ready.
    ///
    /// It is not listed if there is no room for another registration; other waits pause then.
    pub(crate) fn enlist(&self, waiter: &Waiter) -> io::Result<Enlisted> {
        let registration = self.registration;
        loop {
            let seen = registration.readiness(self.interest);
            if self.is_ready()? {
                return Ok(Enlisted::Ready);
            }
            if !registration.can_notify() {
                return Ok(Enlisted::NotListed);
            }
            match registration.enlist(self.fd, self.interest, seen, waiter) {
                Ok(true) => return Ok(Enlisted::Listed),
                Ok(false) => {} // there was an event meanwhile
                Err(error) if descriptor::is_one_too_many(&error) => {
                    return Ok(Enlisted::NotListed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes back a waiter that was listed; false if it was notified, or is about to be.
    pub(crate) fn withdraw(&self, waiter: &Waiter) -> bool {
        self.registration.withdraw(self.interest, waiter)
    }
}

/// Whether a waiter will be notified when a descriptor is ready.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enlisted {
    /// It will be notified.
    Listed,
    /// It will not: on a plain thread, or because there is no room for another registration.
    NotListed,
    /// It is ready now.
    Ready,
}

impl<T: AsFd> AsFd for Source<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get().as_fd()
    }
}

impl<T: AsFd> AsRawFd for Source<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(self.get_ref()).finish()
    }
}
