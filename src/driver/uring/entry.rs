//! Requests as submission queue entries.
//!
//! What an entry names, buffers, addresses, the header of a message, stays where it is until the
//! completion was taken. Buffers and addresses are the caller's; for the header there is a
//! [`Message`].
//!
//! Flags ask for a call that waits: the kernel tries at once, and again when the descriptor is
//! ready. Only on a descriptor that is in non-blocking mode (a pipe of this crate) the request
//! fails instead (`EAGAIN`), and the fiber has to poll.
//!
//! Datagrams are not sent by a ring. When there is no room for one the kernel may have copied it
//! out of the caller's buffer before it noticed, and when it tries again goes on where it stopped:
//! Linux 6.18 then sends empty datagrams, to Unix sockets nearly always. A stream that has taken
//! something reports how much and is not tried again.
//!
//! Files are read and written by threads of the kernel (`ASYNC`): they complete whatever the
//! submitter does.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};

use crate::driver::uring::probe::polls_first;
use crate::sys::address::Address;
use crate::sys::descriptor::Interest;
use crate::sys::request::Request;
use crate::sys::socket::{self, PATIENT_SEND};

/// The header of a message, which a request needs while it is in flight.
pub(crate) struct Message {
    header: libc::msghdr,
    part: libc::iovec,
}

impl Message {
    pub(crate) fn new() -> Self {
        Message {
            header: socket::message(std::ptr::null_mut(), 0),
            part: libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
        }
    }

    /// Makes it a message of one part, with room for the address of the sender.
    fn set_part(&mut self, buffer: &mut [u8], from: &mut Address) {
        self.part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        self.header = socket::message(&raw mut self.part, 1);
        self.header.msg_name = from.parts_mut().0.cast();
        self.header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    }
}

/// The kernel polls before it tries: the transfer has just been tried.
const POLL_FIRST: u16 = 1;

/// The length of a transfer. The kernel transfers no more in one call anyway.
fn length(bytes: &[u8]) -> u32 {
    const MOST: usize = i32::MAX as usize & !4095;
    bytes.len().min(MOST) as u32
}

/// Makes the entry of a request; `None` if a ring does not carry out such requests.
///
/// Its pointers are valid for as long as the request is borrowed and `message` stays in place.
pub(crate) fn entry(
    fd: BorrowedFd<'_>,
    request: &mut Request<'_, '_>,
    message: &mut Message,
) -> Option<Entry> {
    let fd = types::Fd(fd.as_raw_fd());
    let first = if polls_first() { POLL_FIRST } else { 0 };
    let entry = match request {
        Request::SendWhole(..) | Request::SendTo(..) => return None, // see the header
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
            message.set_part(buffer, from);
            opcode::RecvMsg::new(fd, &raw mut message.header)
                .flags(take.patient_flags() as u32)
                .ioprio(first)
                .build()
        }
        Request::ReceiveParts(buffers) => {
            message.header = socket::message(buffers.as_mut_ptr().cast(), buffers.len());
            opcode::RecvMsg::new(fd, &raw mut message.header)
                .ioprio(first)
                .build()
        }
        Request::SendParts(buffers) => {
            message.header = socket::message(buffers.as_ptr().cast_mut().cast(), buffers.len());
            opcode::SendMsg::new(fd, &raw const message.header)
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

/// Copies what the kernel wrote into `message` to the request, after its completion.
pub(crate) fn write_back(request: &mut Request<'_, '_>, message: &Message) {
    if let Request::ReceiveFrom(_, _, from) = request {
        from.set_length(message.header.msg_namelen);
    }
}
