#![expect(unsafe_code, reason = "system calls")]
//! Descriptors of any kind: readiness, mode, pipes.
//!
//! Nothing here blocks but [`poll`] with a time limit. Errors are read from errno by a separate
//! function, right after the call (`failed`): no frame that could move keeps errno's address.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::sys::errno;

/// The readiness that a descriptor is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
}

/// The most parts the kernel takes in one call.
const MOST_PARTS: usize = 1024;

/// Returns the error of the call that just failed.
#[cold]
#[inline(never)]
pub(crate) fn failed() -> io::Error {
    io::Error::from_raw_os_error(errno::get())
}

/// Converts the result of a call that returns −1 for failure.
pub(super) fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(failed())
    } else {
        Ok(result)
    }
}

/// Converts the result of a call that transfers bytes.
pub(super) fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| failed())
}

/// The number of parts of a list that the kernel is given.
pub(super) fn parts(all: usize) -> usize {
    all.min(MOST_PARTS)
}

/// Waits until the descriptor is ready, or has an error or a hang-up to report.
///
/// Ends after the time limit, or when a signal comes. Without a limit it waits without end.
pub(crate) fn poll(
    fd: BorrowedFd<'_>,
    interest: Interest,
    limit: Option<Duration>,
) -> io::Result<bool> {
    let mut one = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: match interest {
            Interest::Read => libc::POLLIN | libc::POLLRDHUP,
            Interest::Write => libc::POLLOUT,
        },
        revents: 0,
    };
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one entry, which is written to; `limit` is null or a time that is only read.
    let result = unsafe { libc::ppoll(&mut one, 1, limit, ptr::null()) };
    match done(result) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether calls on this open file return instead of blocking.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(flags(fd)? & libc::O_NONBLOCK != 0)
}

/// Sets whether they do. All duplicates of the descriptor, in any process, share one mode.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, wanted: bool) -> io::Result<()> {
    let before = flags(fd)?;
    let after = if wanted {
        before | libc::O_NONBLOCK
    } else {
        before & !libc::O_NONBLOCK
    };
    if before != after {
        // SAFETY: takes numbers only.
        done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, after) })?;
    }
    Ok(())
}

fn flags(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: takes numbers only.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

/// Whether an epoll instance can report its readiness: tested with one made for the test.
pub(crate) fn is_pollable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: takes a number only.
    let epoll = done(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor was made here, and no other code has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let (epoll, asked) = (epoll.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: both are open; the event is only read.
    let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, asked, &mut event) };
    match done(result) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a pipe, reader first. Both ends are nonblocking and closed on exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: writes two descriptors to `ends`.
    done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: just made, and no other code has it.
    let reader = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let writer = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((reader, writer))
}

/// Takes ownership of the descriptor that an io_uring has accepted.
pub(crate) fn accepted(answer: usize) -> OwnedFd {
    let fd = RawFd::try_from(answer).expect("a descriptor");
    // SAFETY: the result of an ACCEPT: a new descriptor, returned to this caller alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writes to the buffer, as far as its length says.
    count(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: reads from `bytes`, as far as its length says.
    count(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

pub(crate) fn read_vectored(
    fd: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
) -> io::Result<usize> {
    let number = parts(buffers.len()) as libc::c_int;
    let first = buffers.as_mut_ptr().cast();
    // SAFETY: std promises that `IoSliceMut` is an `iovec`; there are at least so many.
    count(unsafe { libc::readv(fd.as_raw_fd(), first, number) })
}

pub(crate) fn write_vectored(fd: BorrowedFd<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let number = parts(buffers.len()) as libc::c_int;
    let first = buffers.as_ptr().cast();
    // SAFETY: std promises that `IoSlice` is an `iovec`; there are at least so many.
    count(unsafe { libc::writev(fd.as_raw_fd(), first, number) })
}

/// Whether an error means a shortage of descriptors or memory, which may pass.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|number| SHORTAGES.contains(&number))
}

/// Whether the kernel refuses to watch one more descriptor: there are limits for a process, for a
/// user, and for one open file that has hundreds of descriptors.
pub(crate) fn is_one_too_many(error: &io::Error) -> bool {
    let refused = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSPC));
    refused || is_shortage(error)
}
