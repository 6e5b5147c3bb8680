//! How a request is written down for a ring.
//!
//! What is named by an entry, buffers, addresses, the header of a message, stays where it is until the completion
//! was taken. Buffers and addresses are the caller's; for the header there is a [`Room`].
//!
//! Flags say what a call that waits would say: the kernel tries at once, and again when it is worth it. Only
//! what is in non-blocking mode by itself (a pipe of ours) is refused instead (`EAGAIN`), and has to be polled.
//!
//! Datagrams are not sent by a ring. When there is no room for one the kernel may have copied it out of the
//! caller's buffer before it noticed, and when it tries again goes on where it stopped: Linux 6.18 then sends empty
//! datagrams, to Unix sockets nearly always. A stream that has taken something says how much and is not
//! tried again.
//!
//! Files are read and written by threads of the kernel (`ASYNC`): they complete whatever the submitter does.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};

use crate::driver::uring::probe::polls_first;
use crate::sys::address::Address;
use crate::sys::descriptor::Interest;
use crate::sys::request::Request;
use crate::sys::socket::{self, PATIENT_SEND};

/// What a request needs beside itself.
pub(crate) struct Room {
    header: libc::msghdr,
    part: libc::iovec,
}

impl Room {
    pub(crate) fn new() -> Self {
        Room {
            header: socket::message(std::ptr::null_mut(), 0),
            part: libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
        }
    }

    /// A message of one part, with room for the address of the sender.
    fn message(&mut self, buffer: &mut [u8], from: &mut Address) {
        self.part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        self.header = socket::message(&raw mut self.part, 1);
        self.header.msg_name = from.parts_mut().0.cast();
        self.header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    }
}

/// The transfer has just been tried: it is worth it again when the socket says so.
const POLL_FIRST: u16 = 1;

/// More in one go is not transferred anyway.
fn length(bytes: &[u8]) -> u32 {
    const MOST: usize = i32::MAX as usize & !4095;
    bytes.len().min(MOST) as u32
}

/// The entry of a request, if there can be one. Its pointers are good for as long as the request is borrowed and the room stays.
pub(crate) fn entry(
    fd: BorrowedFd<'_>,
    request: &mut Request<'_, '_>,
    room: &mut Room,
) -> Option<Entry> {
    let fd = types::Fd(fd.as_raw_fd());
    let first = if polls_first() { POLL_FIRST } else { 0 };
    let entry = match request {
        Request::SendWhole(..) | Request::SendTo(..) => return None, // see above
        Request::Receive(buffer, take) => {
            opcode::Recv::new(fd, buffer.as_mut_ptr(), length(buffer))
                .flags(take.patient_flags())
                .ioprio(first)
                .build()
        }
        Request::Send(bytes) => opcode::Send::new(fd, bytes.as_ptr(), length(bytes))
            .flags(PATIENT_SEND)
            .ioprio(first)
            .build(),
        Request::ReceiveFrom(buffer, take, from) => {
            room.message(buffer, from);
            opcode::RecvMsg::new(fd, &raw mut room.header)
                .flags(take.patient_flags() as u32)
                .ioprio(first)
                .build()
        }
        Request::ReceiveParts(buffers) => {
            room.header = socket::message(buffers.as_mut_ptr().cast(), buffers.len());
            opcode::RecvMsg::new(fd, &raw mut room.header)
                .ioprio(first)
                .build()
        }
        Request::SendParts(buffers) => {
            room.header = socket::message(buffers.as_ptr().cast_mut().cast(), buffers.len());
            opcode::SendMsg::new(fd, &raw const room.header)
                .flags(PATIENT_SEND as u32)
                .ioprio(first)
                .build()
        }
        Request::Accept(from) => {
            **from = Address::room();
            let (address, size) = from.parts_mut();
            opcode::Accept::new(fd, address, size)
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Request::Ready(interest) => {
            let what = match interest {
                Interest::Read => libc::POLLIN | libc::POLLRDHUP,
                Interest::Write => libc::POLLOUT,
            };
            opcode::PollAdd::new(fd, what as u32).build()
        }
        Request::ReadAt(buffer, place) => {
            opcode::Read::new(fd, buffer.as_mut_ptr(), length(buffer))
                .offset(*place)
                .build()
                .flags(Flags::ASYNC)
        }
        Request::WriteAt(bytes, place) => opcode::Write::new(fd, bytes.as_ptr(), length(bytes))
            .offset(*place)
            .build()
            .flags(Flags::ASYNC),
    };
    Some(entry)
}

/// After its completion: puts what the kernel wrote to where it belongs.
pub(crate) fn finish(request: &mut Request<'_, '_>, room: &Room) {
    if let Request::ReceiveFrom(_, _, from) = request {
        from.set_length(room.header.msg_namelen);
    }
}
