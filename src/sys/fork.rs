#![expect(unsafe_code, reason = "asks to be called in the child of a fork")]
//! What becomes of a runtime in a process that was forked.
//!
//! `fork` copies the memory of all threads and one thread, the caller. So in the child no worker
//! runs, nobody ever wakes a fiber, and whatever lock another thread held at that moment is held
//! for ever. What is called there must not wait for any of them: from [`watch`] on the child knows
//! what it is ([`in_child`]), the thread that forked is a plain one (`context::be_plain`), no
//! thread number means a carrier (`roster::forget_all`), and whatever would need a runtime says so.
//!
//! **F1** In a child nothing takes a lock that a thread of a runtime may have held, and nothing waits
//! for one of them. The memory it finds is as all threads saw it at one moment, since a thread that
//! wants to write while `fork` copies waits: words that others left are whole, and protocols made of
//! atomics can be asked.
//!
//! A child ends by `exec` or `_exit`, or goes on as a plain program. If the closure of a fiber, or one
//! that was lent to another thread, *returns* there, its frames lead into a scheduler that is no more:
//! [`end_child`].
//!
//! Not seen: a process made by the bare system call (`clone`, `_Fork`), which calls nobody. `vfork`
//! and `posix_spawn` share the memory and go on to `exec`: nothing is to be done for them.
//!
//! Rejected: a runtime in the child. Its parts are the process's own (pools of stacks, slabs of records,
//! the survey of the code), behind locks. Taking all of them before each fork would hold up every fork
//! for the sake of a few, and things that are made once stay half-made if the thread that made them is
//! gone. Rejected, too: a page that the kernel wipes in the child, which is seen after the bare system call
//! as well; but somebody would have to look at it with every call.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// What a child ends with if a closure of the runtime returns in it (`EX_SOFTWARE`).
const STATUS: libc::c_int = 70;

/// This process was forked from one that had started a runtime.
#[inline(always)]
pub(crate) fn in_child() -> bool {
    IN_CHILD.load(Relaxed)
}

/// From now on the children of this process know what they are. `cleanups` are called there by the
/// one thread, inside `fork`: they may do what a signal handler may.
pub(crate) fn watch(cleanups: &[extern "C" fn()]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for call in [note_child as extern "C" fn()].iter().chain(cleanups) {
            let call = *call as unsafe extern "C" fn();
            // SAFETY: functions that touch plain words and atomics, and that are never unloaded
            // while a thread can fork: the C library forgets them with the object they are in.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(call)) };
            assert!(refused == 0, "no memory to be told of forks: free some");
        }
    });
}

extern "C" fn note_child() {
    IN_CHILD.store(true, Relaxed); // one thread is there
}

/// Ends a child in which `what` has returned. Nothing is flushed: what is buffered is the parent's.
#[cold]
pub(crate) fn end_child(what: &str) -> ! {
    crate::sys::stderr::print(&format!(
        "indent: {what} returned in the child of a fork, where there is no runtime to go back to; \
         the child ends with status {STATUS}: end it inside the closure, by exec or _exit\n"
    ));
    // SAFETY: takes a number only.
    unsafe { libc::_exit(STATUS) }
}
