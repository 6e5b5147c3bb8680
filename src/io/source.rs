//! Any descriptor the kernel can watch: eventfd, timerfd, inotify, a terminal, a library's socket.
//!
//! Whoever waits here is told what the kernel says at that moment: a wait looks first, and again after it
//! was woken. What is read or written is the caller's affair, and so is the descriptor's mode.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use super::registered::{Patience, Registered};
use super::registration::{Interest, Registration};
use crate::base::descriptor;
use crate::sched::wake::Waiter;

/// Anything with a descriptor that can be waited for.
///
/// A wait blocks the calling fiber and nobody else; on a plain thread, the thread. Regular files, and what else
/// is always ready, are refused: waiting for them tells nothing. Read them inside
/// [`runtime::blocking`](crate::runtime::blocking).
///
/// ```
/// use indent::io::Source;
/// use std::io::{ErrorKind, Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// // Somebody else's type, in non-blocking mode:
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
    /// Takes what has the descriptor. An error ([`Unsupported`](io::ErrorKind::Unsupported)) if the kernel
    /// cannot tell when it becomes ready.
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
                "a regular file, or a device like one, is always ready: there is nothing to wait for; \
                 read and write it inside runtime::blocking",
            ));
        }
        Ok(Source(Registered::new(inner)))
    }

    /// Blocks until there is something to read, or an end or an error to be told.
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

    /// The same until this time at most; then the error is [`TimedOut`](io::ErrorKind::TimedOut).
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

    /// Blocks until there is room to write, or an error to be told.
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

    /// The same until this time at most; then the error is [`TimedOut`](io::ErrorKind::TimedOut).
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

    /// Calls `f`, again and again for as long as it says [`WouldBlock`](io::ErrorKind::WouldBlock), with
    /// waits for something to read in between. `f` should not wait itself: the descriptor is in
    /// non-blocking mode, or the call is one that does not wait.
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

    /// As [`read_with`](Source::read_with), with waits for room to write.
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

    /// What has the descriptor.
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

    /// The same, to be changed. Another descriptor may be put there, which is not checked again.
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

    /// Gives it back.
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

    /// For a select: the descriptor is asked for here, once, and nothing of the user's is called after that.
    pub(crate) fn watch(&self, to_write: bool) -> ReadinessWait<'_> {
        ReadinessWait {
            fd: self.as_fd(),
            registration: self.0.registration(),
            way: match to_write {
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

/// A source and one way to be ready, for whoever must not call [`AsFd::as_fd`]: that is the user's, and may unwind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadinessWait<'a> {
    fd: BorrowedFd<'a>,
    registration: &'a Registration,
    way: Interest,
}

impl ReadinessWait<'_> {
    /// What the kernel says now.
    pub(crate) fn is_ready(&self) -> io::Result<bool> {
        descriptor::poll(self.fd, self.way, Some(Duration::ZERO))
    }

    /// Has the waiter called when it may be ready. If there is no room for another registration nobody calls, as
    /// in other waits.
    pub(crate) fn enlist(&self, waiter: &Waiter) -> io::Result<Enlisted> {
        let registration = self.registration;
        loop {
            let seen = registration.readiness(self.way);
            if self.is_ready()? {
                return Ok(Enlisted::Ready);
            }
            if !registration.can_be_notified() {
                return Ok(Enlisted::NotListed);
            }
            match registration.enlist(self.fd, self.way, seen, waiter) {
                Ok(true) => return Ok(Enlisted::Listed),
                Ok(false) => {} // something was told meanwhile
                Err(error) if descriptor::is_one_too_many(&error) => {
                    return Ok(Enlisted::NotListed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a waiter back that was to be called; false if it was, or is about to be.
    pub(crate) fn withdraw(&self, waiter: &Waiter) -> bool {
        self.registration.withdraw(self.way, waiter)
    }
}

/// What came of the wish to be called when a descriptor is ready.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enlisted {
    Listed,
    /// On a plain thread, with a ring, or because there is no room.
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
