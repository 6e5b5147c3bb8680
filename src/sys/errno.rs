#![expect(unsafe_code, reason = "reads and writes errno")]
//! The calling thread's errno.

/// Returns errno; a signal handler saves and restores it.
#[inline(never)]
pub(crate) fn get() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *at }
}

/// Sets errno.
#[inline(never)]
pub(crate) fn set(errno: i32) {
    // SAFETY: takes nothing and cannot fail.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *at = errno };
}
