//! An I/O request on a descriptor: tried at once, or given to a driver that does it later.
//!
//! A request borrows what the kernel reads and writes, for as long as it lives.
//! [`Request::attempt`] is the call that does not block. `driver/uring.rs` defines how a request is
//! encoded for io_uring.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use super::address::Address;
use super::descriptor::Interest;
use super::socket::{self, Take};

#[derive(Debug)]
pub(crate) enum Request<'a, 'parts> {
    Receive(&'a mut [u8], Take),
    /// To a stream, which may take a part of it.
    Send(&'a [u8]),
    /// As one datagram, to the socket's peer.
    SendWhole(&'a [u8]),
    ReceiveFrom(&'a mut [u8], Take, &'a mut Address),
    SendTo(&'a [u8], &'a Address),
    ReceiveParts(&'a mut [IoSliceMut<'parts>]),
    SendParts(&'a [IoSlice<'parts>]),
    /// The result is a descriptor, and the address of the peer.
    Accept(&'a mut Address),
    /// Transfers nothing: waits for readiness.
    Ready(Interest),
    /// Of a file, from this offset on.
    #[cfg_attr(not(test), expect(dead_code, reason = "there are no files so far"))]
    ReadAt(&'a mut [u8], u64),
    #[cfg_attr(not(test), expect(dead_code, reason = "there are no files so far"))]
    WriteAt(&'a [u8], u64),
}

impl Request<'_, '_> {
    /// The readiness that the request needs.
    pub(crate) fn interest(&self) -> Interest {
        match self {
            Request::Receive(..)
            | Request::ReceiveFrom(..)
            | Request::ReceiveParts(..)
            | Request::Accept(..)
            | Request::ReadAt(..) => Interest::Read,
            Request::Send(..)
            | Request::SendWhole(..)
            | Request::SendTo(..)
            | Request::SendParts(..)
            | Request::WriteAt(..) => Interest::Write,
            Request::Ready(interest) => *interest,
        }
    }

    /// Attempts a transfer of a socket without blocking.
    #[inline]
    pub(crate) fn attempt(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        match self {
            Request::Receive(buffer, take) => socket::receive(fd, buffer, *take),
            Request::Send(bytes) | Request::SendWhole(bytes) => socket::send(fd, bytes),
            Request::ReceiveFrom(buffer, take, from) => {
                socket::receive_from(fd, buffer, *take, from)
            }
            Request::SendTo(bytes, to) => socket::send_to(fd, bytes, to),
            Request::ReceiveParts(buffers) => socket::receive_vectored(fd, buffers),
            Request::SendParts(buffers) => socket::send_vectored(fd, buffers),
            Request::Accept(_) | Request::Ready(_) | Request::ReadAt(..) | Request::WriteAt(..) => {
                unreachable!("{self:?} is no transfer of a socket")
            }
        }
    }
}
