//! What is asked of a descriptor: one thing that can be tried at once, or be given to somebody who does it
//! when the time has come.
//!
//! A request borrows what the kernel reads and writes, for as long as it lives. [`Request::attempt`] is the
//! call that does not wait. How a request is written down for a ring is said there (`driver/uring.rs`).

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
    /// As one datagram, to whom the socket is connected to.
    SendWhole(&'a [u8]),
    ReceiveFrom(&'a mut [u8], Take, &'a mut Address),
    SendTo(&'a [u8], &'a Address),
    ReceiveParts(&'a mut [IoSliceMut<'parts>]),
    SendParts(&'a [IoSlice<'parts>]),
    /// The answer is a descriptor, and the address of the other side.
    Accept(&'a mut Address),
    /// Nothing is transferred: whether it can be.
    Ready(Interest),
    /// Of a file, from this place on.
    #[cfg_attr(not(test), expect(dead_code, reason = "there are no files so far"))]
    ReadAt(&'a mut [u8], u64),
    #[cfg_attr(not(test), expect(dead_code, reason = "there are no files so far"))]
    WriteAt(&'a [u8], u64),
}

impl Request<'_, '_> {
    /// What the descriptor has to be ready for.
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

    /// Does it, if that can be done now: for transfers of sockets.
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
