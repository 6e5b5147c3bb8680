//! Calls that keep a thread in the kernel, and of which the kernel itself waits for nothing.

use std::ffi::c_void;
use std::time::Duration;

/// Waits as whoever calls `vfork` waits for the child, which sleeps so long: no signal ends that.
pub(super) fn in_vfork(time: Duration) {
    extern "C" fn child(time: *mut c_void) -> libc::c_int {
        // SAFETY: the parent does not go on before the child has ended, so its variable is there.
        let time = unsafe { *time.cast::<libc::timespec>() };
        // SAFETY: reads the time only.
        unsafe { libc::syscall(libc::SYS_nanosleep, &time, 0usize) };
        0
    }
    let mut stack = vec![0u128; 4096];
    let mut time = libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let top = stack.as_mut_ptr_range().end.cast();
    let time: *mut c_void = (&raw mut time).cast();
    // SAFETY: the child has a stack of its own and makes one system call; we wait for its end.
    let child = unsafe { libc::clone(child, top, flags, time) };
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    // SAFETY: takes numbers only.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// Sleeps in an epoll of its own. How the call ended: 0 if by itself.
pub(super) fn in_epoll(time: Duration) -> Result<i32, std::io::Error> {
    // SAFETY: takes a number only.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for one event.
    let found = unsafe { libc::epoll_wait(epoll, &mut event, 1, time.as_millis() as i32) };
    let error = std::io::Error::last_os_error();
    // SAFETY: it was made here.
    unsafe { libc::close(epoll) };
    if found < 0 { Err(error) } else { Ok(found) }
}
