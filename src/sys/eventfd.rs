#![expect(unsafe_code, reason = "system calls")]
//! Eventfds: descriptors that end a sleep in `epoll_wait` or in io_uring.

/// Notifies an eventfd: adds one to its counter. May be called in a signal handler.
pub(crate) fn notify(fd: i32) {
    let one = 1_u64;
    // SAFETY: reads eight bytes of `one`. Only a full counter refuses it: then it is notified
    // already.
    unsafe { libc::write(fd, (&raw const one).cast(), size_of::<u64>()) };
}

/// Resets a nonblocking eventfd to zero. May be called in a signal handler.
pub(crate) fn drain(fd: i32) {
    let mut count = 0_u64;
    // SAFETY: writes eight bytes to `count`. If the counter is zero the call fails and changes
    // nothing.
    unsafe { libc::read(fd, (&raw mut count).cast(), size_of::<u64>()) };
}
