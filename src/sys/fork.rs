#![expect(unsafe_code, reason = "asks to be called in the child of a fork")]
//! A runtime in a process that was forked.
//!
//! `fork` copies the memory of all threads and one thread, the caller. So in the child no worker
//! runs, no fiber is ever woken, and any lock that another thread held at that moment stays held
//! for ever. Code that runs there must not wait for any of them. After [`watch`], the child knows
//! that it is one ([`in_child`]), the thread that forked is a plain one (`context::be_plain`), no
//! thread number means a carrier (`roster::forget_all`), and calls that need a runtime report that.
//!
//! **F1** In a child nothing takes a lock that a thread of a runtime may have held, and nothing
//! waits for such a thread. The memory is as all threads saw it at one moment, since a thread that
//! wants to write while `fork` copies waits: words that other threads left are whole, and protocols
//! made of atomics can be read.
//!
//! A child ends by `exec` or `_exit`, or continues as a plain program. If the closure of a fiber,
//! or one that was lent to another thread, *returns* there, its frames lead into a scheduler that
//! no longer exists: [`end_child`].
//!
//! Not seen: a process made by the bare system call (`clone`, `_Fork`), which calls no handlers.
//! `vfork` and `posix_spawn` share the memory and continue to `exec`: they need nothing.
//!
//! Rejected: a runtime in the child. Its parts are process-wide (pools of stacks, slabs of records,
//! the survey of the code), behind locks. Taking all of them before each fork would delay every
//! fork for the sake of a few, and things that are made once stay half-made if the thread that made
//! them is gone. Rejected, too: a page that the kernel wipes in the child, which would also detect
//! the bare system call; but every call would have to read it.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Exit status of a child in which a closure of the runtime returns (`EX_SOFTWARE`).
const STATUS: libc::c_int = 70;

/// Whether this process was forked from one that had started a runtime.
#[inline(always)]
pub(crate) fn in_child() -> bool {
    IN_CHILD.load(Relaxed)
}

/// Makes children of this process detect that they are. `cleanups` are called there by the one
/// thread, inside `fork`: they may do what a signal handler may.
pub(crate) fn watch(cleanups: &[extern "C" fn()]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for call in [note_child as extern "C" fn()].iter().chain(cleanups) {
            let call = *call as unsafe extern "C" fn();
            // SAFETY: functions that touch plain words and atomics, and that are never unloaded
            // while a thread can fork: the C library forgets them with the object they are in.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(call)) };
            assert!(
                refused == 0,
                "cannot register a fork handler: out of memory; free some"
            );
        }
    });
}

extern "C" fn note_child() {
    IN_CHILD.store(true, Relaxed); // one thread is there
}

/// Ends a child in which `what` has returned. Flushes nothing: buffered data is the parent's.
#[cold]
pub(crate) fn end_child(what: &str) -> ! {
    crate::sys::stderr::print(&format!(
        "indent: {what} returned in the child of a fork, where there is no runtime to go back to; \
         the child ends with status {STATUS}: end it inside the closure, by exec or _exit\n"
    ));
    // SAFETY: takes a number only.
    unsafe { libc::_exit(STATUS) }
}
