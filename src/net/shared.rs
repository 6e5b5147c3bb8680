//! What all sockets have in common: transfers, time limits, conversions.
//!
//! Time limits and the non-blocking mode of a socket are kept by the kernel, where std keeps them.
//! They are asked for only when an operation would have to wait. That takes two short system calls.
//! The answer is remembered for sockets that this crate made and of which no other code has had a
//! handle: no clone, no descriptor, no setting of a limit. For clones and sockets that std has had
//! the kernel is asked each time, since other code may change them.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::io::registered::{Patience, Registered};
use crate::io::registration::Interest;
use crate::sys::address::Address;
use crate::sys::descriptor;
use crate::sys::request::Request;
use crate::sys::socket::{self, Take};

/// How long std would wait on this socket.
pub(super) fn patience(fd: BorrowedFd<'_>, interest: Interest) -> Patience {
    // Either fails for what is not a socket; then the transfer returns the error.
    if descriptor::is_nonblocking(fd).unwrap_or(false) {
        return Patience::Never;
    }
    match socket::time_limit(fd, interest) {
        Ok(Some(limit)) => Patience::of(limit),
        _ => Patience::Forever,
    }
}

fn to_read(fd: BorrowedFd<'_>) -> Patience {
    patience(fd, Interest::Read)
}

pub(super) fn to_write(fd: BorrowedFd<'_>) -> Patience {
    patience(fd, Interest::Write)
}

pub(super) fn receive<T: AsFd>(
    socket: &Registered<T>,
    buffer: &mut [u8],
    take: Take,
) -> io::Result<usize> {
    socket.perform(to_read, Request::Receive(buffer, take))
}

/// Reads from a stream.
pub(super) fn read<T: AsFd>(socket: &Registered<T>, buffer: &mut [u8]) -> io::Result<usize> {
    receive(socket, buffer, Take::Take)
}

/// Reads from a TCP stream, without a try if it is known to be empty (R3).
pub(super) fn read_tcp<T: AsFd>(socket: &Registered<T>, buffer: &mut [u8]) -> io::Result<usize> {
    socket.read_stream(to_read, buffer)
}

pub(super) fn receive_vectored<T: AsFd>(
    socket: &Registered<T>,
    buffers: &mut [IoSliceMut<'_>],
) -> io::Result<usize> {
    socket.perform(to_read, Request::ReceiveParts(buffers))
}

pub(super) fn receive_from<T: AsFd>(
    socket: &Registered<T>,
    buffer: &mut [u8],
    take: Take,
) -> io::Result<(usize, Address)> {
    let mut from = Address::room();
    let length = socket.perform(to_read, Request::ReceiveFrom(buffer, take, &mut from))?;
    Ok((length, from))
}

pub(super) fn send<T: AsFd>(socket: &Registered<T>, bytes: &[u8]) -> io::Result<usize> {
    socket.perform(to_write, Request::Send(bytes))
}

/// Sends one datagram.
pub(super) fn send_whole<T: AsFd>(socket: &Registered<T>, bytes: &[u8]) -> io::Result<usize> {
    socket.perform(to_write, Request::SendWhole(bytes))
}

pub(super) fn send_to<T: AsFd>(
    socket: &Registered<T>,
    bytes: &[u8],
    to: &Address,
) -> io::Result<usize> {
    socket.perform(to_write, Request::SendTo(bytes, to))
}

pub(super) fn send_vectored<T: AsFd>(
    socket: &Registered<T>,
    buffers: &[IoSlice<'_>],
) -> io::Result<usize> {
    socket.perform(to_write, Request::SendParts(buffers))
}

/// A stream socket that is not connected, in non-blocking mode.
pub(super) fn unconnected(to: &Address) -> io::Result<Registered<OwnedFd>> {
    socket::stream_for(to).map(Registered::unshared)
}

/// Conversions from and to std's type, and to descriptors.
macro_rules! std_conversions {
    ($ours:ident, $std:ty) => {
        impl From<$ours> for $std {
            fn from(socket: $ours) -> Self {
                socket.into_std()
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

        impl From<$ours> for OwnedFd {
            fn from(socket: $ours) -> Self {
                socket.into_std().into()
            }
        }

        impl AsFd for $ours {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.shared_handle().as_fd()
            }
        }

        impl AsRawFd for $ours {
            fn as_raw_fd(&self) -> RawFd {
                self.shared_handle().as_raw_fd()
            }
        }

        impl IntoRawFd for $ours {
            fn into_raw_fd(self) -> RawFd {
                self.into_std().into_raw_fd()
            }
        }

        impl fmt::Debug for $ours {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.std().fmt(f)
            }
        }
    };
}

/// Methods of sockets that transfer data: all but listeners.
///
/// Examples begin with `$make`, which makes a `socket`, and receive by `$receive`.
macro_rules! transfers {
    ($ours:ident, $std:ty, $make:literal, $receive:literal) => {
        impl $ours {
            fn std(&self) -> &$std {
                self.0.get()
            }

            fn shared_handle(&self) -> &$std {
                self.0.share()
            }

            /// Of a socket that no other code has had so far.
            fn unshared(socket: $std) -> Self {
                $ours(Registered::unshared(socket))
            }

            /// Converts the socket into std's type, on which waits block the thread.
            ///
            /// ```
            #[doc = $make]
            /// let socket = socket.into_std();
            /// socket.set_nonblocking(false)?; // as it has been anyway
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn into_std(self) -> $std {
                self.0.into_inner()
            }

            /// Creates another handle of the same socket; both share its options and its data.
            ///
            /// ```
            #[doc = $make]
            /// let clone = socket.try_clone()?;
            /// clone.set_read_timeout(Some(std::time::Duration::from_secs(1)))?;
            /// assert!(socket.read_timeout()?.is_some()); // of both
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn try_clone(&self) -> io::Result<Self> {
                self.0.share().try_clone().map(Self::from)
            }

            /// Sets the time limit of reads; `None`: no limit.
            ///
            /// A read that exceeds it fails with [`WouldBlock`](io::ErrorKind::WouldBlock), as with
            /// std. A limit of zero is an error.
            ///
            /// ```
            #[doc = $make]
            /// socket.set_read_timeout(Some(std::time::Duration::from_millis(1)))?;
            #[doc = concat!("let error = ", $receive, ".unwrap_err();")]
            /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.limit().set_read_timeout(timeout)
            }

            /// Sets the time limit of writes; `None`: no limit.
            ///
            /// A write that exceeds it fails with [`WouldBlock`](io::ErrorKind::WouldBlock), as
            /// with std. A limit of zero is an error.
            ///
            /// ```
            #[doc = $make]
            /// let second = std::time::Duration::from_secs(1);
            /// socket.set_write_timeout(Some(second))?;
            /// assert_eq!(socket.write_timeout()?, Some(second));
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.limit().set_write_timeout(timeout)
            }

            /// Returns the time limit of reads, rounded up by the kernel.
            ///
            /// ```
            #[doc = $make]
            /// assert_eq!(socket.read_timeout()?, None);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                self.std().read_timeout()
            }

            /// Returns the time limit of writes, rounded up by the kernel.
            ///
            /// ```
            #[doc = $make]
            /// assert_eq!(socket.write_timeout()?, None);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                self.std().write_timeout()
            }

            /// Sets whether operations fail with [`WouldBlock`](io::ErrorKind::WouldBlock) instead
            /// of waiting.
            ///
            /// They are charged to the fiber's budget all the same.
            ///
            /// ```
            #[doc = $make]
            /// socket.set_nonblocking(true)?;
            #[doc = concat!("let error = ", $receive, ".unwrap_err();")]
            /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.0.limit().set_nonblocking(nonblocking)
            }

            /// Returns and clears the socket's pending error (`SO_ERROR`).
            ///
            /// ```
            #[doc = $make]
            /// assert!(socket.take_error()?.is_none());
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.std().take_error()
            }
        }

        impl From<$std> for $ours {
            fn from(socket: $std) -> Self {
                $ours(Registered::new(socket))
            }
        }

        std_conversions!($ours, $std);
    };
}

/// `Read` and `Write` of streams, by value and by reference.
macro_rules! streams {
    ($ours:ident, $read:path) => {
        impl Read for &$ours {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                $read(&self.0, buffer)
            }

            fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                shared::receive_vectored(&self.0, buffers)
            }
        }

        impl Read for $ours {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                (&*self).read(buffer)
            }

            fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                (&*self).read_vectored(buffers)
            }
        }

        impl Write for &$ours {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                shared::send(&self.0, bytes)
            }

            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                shared::send_vectored(&self.0, buffers)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        impl Write for $ours {
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
    };
}

/// Methods that only call the method of the same name of std's type.
macro_rules! as_in_std {
    ($($(#[$about:meta])* fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => { $(
        $(#[$about])*
        pub fn $name(&self $(, $argument: $type)*) -> $result {
            self.std().$name($($argument),*)
        }
    )* };
}
