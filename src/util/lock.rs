#![expect(unsafe_code, reason = "a lock over a cell")]
//! A spin lock for critical sections of a few instructions of the runtime.
//!
//! The holder has preemption disabled (S6), allocates nothing, calls no user code and waits for
//! nothing. So the lock is held for nanoseconds, unless the kernel takes the processor away
//! meanwhile. A thread that finds it taken retries a few times, then yields, and after that sleeps
//! for a moment: a holder of lower priority on the same processor makes progress, too.
//!
//! Acquire and release are one exchange and one store. The lock has no poison and no owner, and its
//! guard touches no thread-local: the guard of std's mutex reads the panic count, which binds the
//! frame it is inlined into to its thread (S5).

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

/// Pauses, some seconds in all, after which a lock held in the child of a fork counts as held for
/// ever.
const HELD_FOR_GOOD: u32 = 20_000;

/// Ends the child of a fork in which a lock was held by a thread that the child does not have.
/// Channels do not check which process this is, so this is where F1 ends.
#[cold]
fn end_child() -> ! {
    stderr::print(
        "indent: a channel that another thread used in the moment of a fork cannot be used in the \
         child, which ends: make new ones there\n",
    );
    std::process::abort()
}

/// The lock alone, for code that must take several.
pub(crate) struct RawLock(AtomicBool);

impl RawLock {
    pub(crate) fn new() -> Self {
        RawLock(AtomicBool::new(false))
    }

    /// Acquires the lock. Preemption must be disabled.
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

/// A lock and the value it protects. Models use another raw lock.
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

    /// Acquires the lock. Preemption must be disabled.
    #[inline]
    pub(crate) fn lock(&self) -> StackGuard<'_, T> {
        self.raw.acquire();
        StackGuard(self, PhantomData)
    }

    pub(crate) fn raw(&self) -> &loom::RawLock {
        &self.raw
    }

    /// The value inside, for the thread that holds [`raw`](Self::raw).
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

/// The guard of a [`Lock`]. Stays on its thread, on which preemption is disabled.
pub(crate) struct StackGuard<'a, T>(&'a Lock<T>, PhantomData<*mut ()>);

// SAFETY: a `&T`, in effect.
unsafe impl<T: Sync> Sync for StackGuard<'_, T> {}

impl<T> Deref for StackGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours while the guard lives.
        unsafe { &*self.0.inside.get() }
    }
}

impl<T> DerefMut for StackGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is ours while the guard lives, and it is borrowed mutably.
        unsafe { &mut *self.0.inside.get() }
    }
}

impl<T> Drop for StackGuard<'_, T> {
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
