#![expect(unsafe_code, reason = "system calls")]
//! Futexes: a thread sleeps while a word holds a value.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::sys::errno;

/// Sleeps while `word` holds `expected`. May also return early for no reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` and `limit` outlive the call; the kernel only reads them.
    let failed = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, limit) } != 0;
    if failed && errno::get() == libc::EINTR {
        INTERRUPTED.fetch_add(1, Relaxed);
    }
}

static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// Returns how many futex waits of this process were ended by a signal.
pub(crate) fn interrupted_waits() -> u64 {
    INTERRUPTED.load(Relaxed)
}

/// Wakes one thread that sleeps on the word at `address`, which need not be valid any more.
pub(crate) fn wake(address: *const u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key and reads nothing through it.
    unsafe { libc::syscall(libc::SYS_futex, address, op, 1) };
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key and reads nothing through it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, libc::c_int::MAX) };
}
