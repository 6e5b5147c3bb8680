//! Pipes.
//!
//! The kernel has no call on a pipe that does not wait just once. So the ends here are in
//! non-blocking mode, and return to blocking mode when they are converted: to std's type, for a
//! child process, to a bare descriptor. The mode belongs to the open end, not to the descriptor. So
//! if one of two clones of an end is converted, the other one still works, but blocks its thread
//! while it waits (the runtime then goes on with another one).

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process::Stdio;

use super::registered::{Patience, Registered};
use super::registration::Interest;
use crate::sys::descriptor;

/// Creates a pipe: what is written to one end is read from the other.
///
/// Corresponds to [`std::io::pipe`]. Reads that wait for data and writes that wait for room suspend
/// the fiber, not the thread.
///
/// ```
/// use std::io::{BufRead, BufReader, Write};
///
/// let (reader, mut writer) = indent::io::pipe()?;
/// let lines = indent::spawn(move || BufReader::new(reader).lines().count());
/// for i in 0..1_000 {
///     writeln!(writer, "line {i}")?;
/// }
/// drop(writer);
/// assert_eq!(lines.join().unwrap(), 1_000);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = descriptor::pipe()?;
    Ok((
        PipeReader(Registered::new(reader.into())),
        PipeWriter(Registered::new(writer.into())),
    ))
}

/// The read end of a [`pipe`].
///
/// A read returns 0 when all write ends are closed. Corresponds to [`std::io::PipeReader`].
///
/// ```
/// use std::io::{Read, Write};
///
/// let (mut reader, writer) = indent::io::pipe()?;
/// (&writer).write_all(b"ab")?;
/// let mut one = [0];
/// reader.read_exact(&mut one)?;
/// assert_eq!(&one, b"a");
/// drop(writer);
/// assert_eq!(reader.read(&mut [0; 8])?, 1);
/// assert_eq!(reader.read(&mut [0; 8])?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PipeReader(Registered<io::PipeReader>);

/// The write end of a [`pipe`].
///
/// A write fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe) when all read ends are closed.
/// Corresponds to [`std::io::PipeWriter`].
///
/// ```
/// use std::io::{ErrorKind, Write};
///
/// let (reader, mut writer) = indent::io::pipe()?;
/// writer.write_all(b"never read")?; // there is room for it
/// drop(reader);
/// assert_eq!(writer.write(b"nor this").unwrap_err().kind(), ErrorKind::BrokenPipe);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PipeWriter(Registered<io::PipeWriter>);

impl Read for &PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let attempt = |end: &io::PipeReader| descriptor::read(end.as_fd(), buffer);
        self.0.run(Interest::Read, |_| Patience::Forever, attempt)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let attempt = |end: &io::PipeReader| descriptor::read_vectored(end.as_fd(), buffers);
        self.0.run(Interest::Read, |_| Patience::Forever, attempt)
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for &PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let attempt = |end: &io::PipeWriter| descriptor::write(end.as_fd(), bytes);
        self.0.run(Interest::Write, |_| Patience::Forever, attempt)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let attempt = |end: &io::PipeWriter| descriptor::write_vectored(end.as_fd(), buffers);
        self.0.run(Interest::Write, |_| Patience::Forever, attempt)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The methods and conversions of both ends.
macro_rules! pipe_end {
    ($ours:ident, $std:ty, $name:literal) => {
        impl $ours {
            /// Creates another handle of the same end.
            ///
            /// ```
            /// use indent::io::pipe;
            /// use std::io::{Read, Write};
            ///
            /// let (mut reader, mut writer) = pipe()?;
            #[doc = concat!("let clone = ", $name, ".try_clone()?;")]
            /// writer.write_all(b"x")?;
            /// assert_eq!(reader.read(&mut [0; 8])?, 1);
            /// drop(clone); // now the end is closed when the other handle is
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn try_clone(&self) -> io::Result<Self> {
                Ok($ours(Registered::new(self.0.get().try_clone()?)))
            }

            /// Converts the end into std's type, on which waits block the thread.
            ///
            /// The end returns to blocking mode. Clones of this crate's type then block their
            /// thread, too, when they wait.
            ///
            /// ```
            /// use indent::io::pipe;
            /// use std::io::{Read, Write};
            ///
            /// let (mut reader, mut writer) = pipe()?;
            #[doc = concat!("let mut ", $name, " = ", $name, ".into_std();")]
            /// writer.write_all(b"x")?;
            /// assert_eq!(reader.read(&mut [0; 8])?, 1);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn into_std(self) -> $std {
                let end = self.0.into_inner();
                let _valid = descriptor::set_nonblocking(end.as_fd(), false);
                end
            }
        }

        impl From<$std> for $ours {
            /// Converts std's type. Puts the end, with all its clones, into non-blocking mode.
            fn from(end: $std) -> Self {
                let _valid = descriptor::set_nonblocking(end.as_fd(), true);
                $ours(Registered::new(end))
            }
        }

        impl From<OwnedFd> for $ours {
            fn from(fd: OwnedFd) -> Self {
                <$std>::from(fd).into()
            }
        }

        #[expect(unsafe_code, reason = "a descriptor by its number, as std does it")]
        impl FromRawFd for $ours {
            unsafe fn from_raw_fd(fd: RawFd) -> Self {
                // SAFETY: the caller has promised the same: it is open, and has no other owner.
                unsafe { <$std>::from_raw_fd(fd) }.into()
            }
        }

        impl From<$ours> for $std {
            fn from(end: $ours) -> Self {
                end.into_std()
            }
        }

        impl From<$ours> for OwnedFd {
            fn from(end: $ours) -> Self {
                end.into_std().into()
            }
        }

        impl From<$ours> for Stdio {
            fn from(end: $ours) -> Self {
                end.into_std().into()
            }
        }

        impl AsFd for $ours {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.get().as_fd()
            }
        }

        impl AsRawFd for $ours {
            fn as_raw_fd(&self) -> RawFd {
                self.0.get().as_raw_fd()
            }
        }

        impl IntoRawFd for $ours {
            fn into_raw_fd(self) -> RawFd {
                self.into_std().into_raw_fd()
            }
        }

        impl fmt::Debug for $ours {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.get().fmt(f)
            }
        }
    };
}

pipe_end!(PipeReader, io::PipeReader, "reader");
pipe_end!(PipeWriter, io::PipeWriter, "writer");
