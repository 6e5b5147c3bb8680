#![expect(unsafe_code, reason = "a lock over a cell")]
//! A lock for sections of some instructions, all of them ours.
//!
//! Whoever holds it has the preemption disabled (S6), allocates nothing, calls nobody's code and waits for nothing. So
//! it is held for nanoseconds, unless the kernel takes the processor away meanwhile. Who finds it taken
//! looks again a few times, then lets others run, and after that sleeps for a moment: a holder of lower
//! priority on the same processor gets on, too.
//!
//! To take and release it is one exchange and one store. It knows no poison and no owner, and its guard
//! touches no thread-local: std's looks at the panic count, which binds the frame it is inlined into to its
//! thread (S5).

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sys::{fork, stderr};
use crate::util::loom::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::util::loom::{self, pause};
use crate::util::preempt_check;

/// Pauses after which a lock that is still held in the child of a fork is held by nobody: seconds.
const HELD_FOR_GOOD: u32 = 20_000;

/// A thread that the child does not have held the lock when the process was forked. Channels are asked without
/// a look at what process this is, so this is where F1 ends.
#[cold]
fn end_child() -> ! {
    stderr::print(
        "indent: a channel that another thread used in the moment of a fork cannot be used in the child, which ends: \
         make new ones there\n",
    );
    std::process::abort()
}

/// The lock alone, for whoever has to take several.
pub(crate) struct RawLock(AtomicBool);

impl RawLock {
    pub(crate) fn new() -> Self {
        RawLock(AtomicBool::new(false))
    }

    /// Preemption is disabled.
    #[inline]
    pub(crate) fn acquire(&self) {
        preempt_check::expect_disabled();
        if self
            .0
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {
            self.acquire_slowly();
        }
    }

    #[cold]
    fn acquire_slowly(&self) {
        let mut failures = 0;
        loop {
            pause(failures);
            failures += 1;
            let is_free = !self.0.load(Relaxed);
            if is_free
                && self
                    .0
                    .compare_exchange(false, true, Acquire, Relaxed)
                    .is_ok()
            {
                return;
            }
            if failures == HELD_FOR_GOOD && fork::in_child() {
                end_child();
            }
        }
    }

    /// # Safety
    /// The caller has acquired it, and is done with what it protects.
    #[inline]
    pub(crate) unsafe fn release(&self) {
        self.0.store(false, Release);
    }
}

/// A lock and what it protects. In models the raw lock is another.
pub(crate) struct Lock<T> {
    raw: loom::RawLock,
    inside: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets at the inside, which may be sent there.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(inside: T) -> Self {
        Lock {
            raw: loom::RawLock::new(),
            inside: UnsafeCell::new(inside),
        }
    }

    /// Preemption is disabled.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.raw.acquire();
        Guard(self, PhantomData)
    }

    pub(crate) fn raw(&self) -> &loom::RawLock {
        &self.raw
    }

    /// What is inside, for whoever holds [`raw`](Self::raw).
    ///
    /// # Safety
    /// The caller has acquired it and has no other such reference.
    #[expect(
        clippy::mut_from_ref,
        reason = "by the caller's promise it is the only one"
    )]
    pub(crate) unsafe fn inside(&self) -> &mut T {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.inside.get() }
    }
}

/// It stays on its thread, whose mark is up.
pub(crate) struct Guard<'a, T>(&'a Lock<T>, PhantomData<*mut ()>);

// SAFETY: a `&T`, in effect.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours while the guard lives.
        unsafe { &*self.0.inside.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is ours while the guard lives, and it is borrowed mutably.
        unsafe { &mut *self.0.inside.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: acquired by `lock`, and no reference to the inside outlives the guard.
        unsafe { self.0.raw.release() };
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_held_at_a_fork_ends_the_child() {
        let _watches = crate::runtime::Builder::new().workers(1).build().unwrap();
        let lock = Lock::new(());
        let held = lock.lock();
        // SAFETY: the child waits for a lock, says a sentence and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(lock.lock());
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: writes the status of a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGABRT);
        drop(held);
    }
}
