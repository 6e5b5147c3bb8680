#![expect(unsafe_code, reason = "system calls")]
//! The system call `membarrier`, the heavy half of asymmetric barriers.

use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const MISSING: u8 = 2;

static MEMBARRIER: AtomicU8 = AtomicU8::new(UNKNOWN);

fn call(command: libc::c_int) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers with the kernel, once. Called before the first worker exists, so that every light
/// barrier of a runtime sees the same answer.
pub(crate) fn prepare() {
    if MEMBARRIER.load(SeqCst) == UNKNOWN {
        let works = call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        MEMBARRIER.store(if works { WORKS } else { MISSING }, SeqCst);
    }
}

/// Whether the kernel has `membarrier` and allowed it.
#[inline(always)]
pub(crate) fn works() -> bool {
    MEMBARRIER.load(Relaxed) == WORKS
}

/// Barriers that the kernel refused although registration had succeeded.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Makes every thread of the process pass a full barrier; false if the kernel refuses it now.
///
/// A seccomp filter can do that after registration has succeeded, and on some threads only. Where
/// `membarrier` never worked light barriers are fences, and nothing is left to do.
#[must_use]
pub(crate) fn issue() -> bool {
    let done = !works() || call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    if !done {
        REFUSED.fetch_add(1, Relaxed);
    }
    done
}

/// How often [`issue`] failed, on any thread of the process.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Relaxed)
}
