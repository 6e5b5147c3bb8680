#![expect(unsafe_code, reason = "system calls")]
//! Sockets: transfers that never block, connections, options that std does not read.
//!
//! Whether a call blocks is a flag of each call (`MSG_DONTWAIT`), not a mode of the socket: the
//! mode belongs to all duplicates of a descriptor, and other code may rely on it. Only `connect`
//! has no such flag.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::address::Address;
use super::descriptor::{Interest, count, done, parts};

/// Whether received data stays in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    Take,
    Peek,
}

impl Take {
    fn flags(self) -> libc::c_int {
        libc::MSG_DONTWAIT | self.patient_flags()
    }

    /// The flags for a caller that waits.
    pub(crate) fn patient_flags(self) -> libc::c_int {
        match self {
            Take::Take => 0,
            Take::Peek => libc::MSG_PEEK,
        }
    }
}

/// Flags of a send that may block. No signal if the peer is gone: the error reports it.
pub(crate) const PATIENT_SEND: libc::c_int = libc::MSG_NOSIGNAL;
const SEND: libc::c_int = libc::MSG_DONTWAIT | PATIENT_SEND;

pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], take: Take) -> io::Result<usize> {
    let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: writes to the buffer, as far as its length says.
    count(unsafe { libc::recv(fd.as_raw_fd(), start, length, take.flags()) })
}

pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: reads from `bytes`, as far as its length says.
    count(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), SEND) })
}

pub(crate) fn receive_vectored(
    fd: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
) -> io::Result<usize> {
    let mut message = message(buffers.as_mut_ptr().cast(), buffers.len());
    // SAFETY: `message` names buffers that are ours to write to; std promises their layout.
    count(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

pub(crate) fn send_vectored(fd: BorrowedFd<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let message = message(buffers.as_ptr().cast_mut().cast(), buffers.len());
    // SAFETY: `message` names buffers that are only read; std promises their layout.
    count(unsafe { libc::sendmsg(fd.as_raw_fd(), &message, SEND) })
}

/// Creates a message of these parts, without address and control data.
pub(crate) fn message(parts_of: *mut libc::iovec, number: usize) -> libc::msghdr {
    // SAFETY: numbers and pointers, for which zero means none.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts_of;
    // At most `UIO_MAXIOV`; the type of the field depends on the C library.
    message.msg_iovlen = parts(number) as _;
    message
}

/// Receives a datagram and its sender's address, which was empty room before.
pub(crate) fn receive_from(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    take: Take,
    from: &mut Address,
) -> io::Result<usize> {
    let (address, room) = from.parts_mut();
    let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: writes to the buffer as far as its length says, and to the address as far as `room`
    // says.
    let result =
        unsafe { libc::recvfrom(fd.as_raw_fd(), start, length, take.flags(), address, room) };
    count(result)
}

pub(crate) fn send_to(fd: BorrowedFd<'_>, bytes: &[u8], to: &Address) -> io::Result<usize> {
    let (start, length) = (bytes.as_ptr().cast(), bytes.len());
    let (address, size) = to.parts();
    // SAFETY: reads from `bytes` and from the address, as far as their lengths say.
    count(unsafe { libc::sendto(fd.as_raw_fd(), start, length, SEND, address, size) })
}

/// Creates a nonblocking socket for a stream to this address.
pub(crate) fn stream_for(address: &Address) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let socket = done(unsafe { libc::socket(address.family(), kind, 0) })?;
    // SAFETY: just made, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Begins to connect, or checks how that goes: `WouldBlock` while it is in progress.
pub(crate) fn connect(fd: BorrowedFd<'_>, to: &Address) -> io::Result<()> {
    let (address, size) = to.parts();
    // SAFETY: reads from the address, as far as its length says.
    let Err(error) = done(unsafe { libc::connect(fd.as_raw_fd(), address, size) }) else {
        return Ok(());
    };
    match error.raw_os_error() {
        Some(libc::EISCONN) => Ok(()),
        Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        // The kernel returns it when addresses or routes have run out, and does not report when
        // there are some again.
        Some(libc::EAGAIN) if to.family() != libc::AF_UNIX => Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            error.to_string(),
        )),
        _ => Err(error),
    }
}

/// Whether it is a TCP socket; other descriptors may be wrapped as one.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: a number.
    let protocol = unsafe { option_of(fd, libc::SO_PROTOCOL, -1_i32) };
    protocol.is_ok_and(|protocol| protocol == libc::IPPROTO_TCP)
}

/// The time limit of a transfer, as set by `SO_RCVTIMEO` or `SO_SNDTIMEO`; that is, by std.
pub(crate) fn time_limit(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Option<Duration>> {
    let option = match interest {
        Interest::Read => libc::SO_RCVTIMEO,
        Interest::Write => libc::SO_SNDTIMEO,
    };
    // Zero: without a limit.
    let zero = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: two numbers.
    let value = unsafe { option_of(fd, option, zero) }?;
    let limit = Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1_000);
    Ok(Some(limit).filter(|limit| !limit.is_zero()))
}

/// Reads the value of a socket option.
///
/// # Safety
/// Any bytes are a value of `T`.
unsafe fn option_of<T: Copy>(fd: BorrowedFd<'_>, option: libc::c_int, before: T) -> io::Result<T> {
    let (mut value, mut size) = (before, mem::size_of::<T>() as libc::socklen_t);
    let (at, size) = (ptr::from_mut(&mut value).cast(), ptr::from_mut(&mut size));
    // SAFETY: writes to `value`, as far as `size` says.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, at, size) })?;
    Ok(value)
}
