#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A lock for a few instructions: who waits spins, who holds it is not stopped.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::sched::block::NoPreemptSection;

/// Looks at a lock that is held before the thread lets others of the system run: who holds it may be one of them.
const LOOKS: u32 = 64;

/// A lock for a few instructions, of which one is not to call anything that blocks, allocates or takes long.
///
/// While the guard lives the fiber is not interrupted ([`no_preempt`](crate::runtime::no_preempt)), so that nobody spins
/// for one that was stopped; others wait by spinning. For anything longer a [`Mutex`](crate::sync::Mutex) is better, and
/// it is hardly dearer when it is free. It knows no poison, no deadline, and nobody is asked to end in it.
///
/// ```
/// use indent::sync::SpinLock;
///
/// static LAST: SpinLock<(u64, u64)> = SpinLock::new((0, 0));
///
/// indent::spawn(|| *LAST.lock() = (1, 2)).join().unwrap();
/// assert_eq!(*LAST.lock(), (1, 2));
/// ```
pub struct SpinLock<T: ?Sized> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one at a time, wherever that one runs.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock.
    ///
    /// ```
    /// static LAST: indent::sync::SpinLock<u64> = indent::sync::SpinLock::new(0);
    /// ```
    pub const fn new(value: T) -> Self {
        SpinLock {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// What it protects.
    ///
    /// ```
    /// assert_eq!(indent::sync::SpinLock::new(5).into_inner(), 5);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Spins until it is free and takes it. Never yields.
    ///
    /// ```
    /// let lock = indent::sync::SpinLock::new(1);
    /// *lock.lock() += 1;
    /// assert_eq!(*lock.lock(), 2);
    /// ```
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            self.spin();
        }
    }

    /// Takes it if it is free.
    ///
    /// ```
    /// let lock = indent::sync::SpinLock::new(1);
    /// let guard = lock.try_lock().unwrap();
    /// assert!(lock.try_lock().is_none());
    /// # drop(guard);
    /// ```
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        let section = NoPreemptSection::new(); // first: who has it is not stopped for an instruction
        let got = !self.locked.swap(true, Acquire);
        got.then(|| SpinLockGuard {
            lock: self,
            _section: section,
            _not_send: PhantomData,
        })
    }

    /// What it protects, by who has it to himself.
    ///
    /// ```
    /// let mut lock = indent::sync::SpinLock::new(1);
    /// *lock.get_mut() = 2;
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Until it looks free; who waits may be stopped.
    #[cold]
    fn spin(&self) {
        let mut looks = 0;
        while self.locked.load(Relaxed) {
            looks += 1;
            if looks % LOOKS == 0 {
                std::thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }
}

/// The right to what a [`SpinLock`] protects. It stays with the fiber, and on the thread, that took it.
///
/// ```compile_fail
/// let lock = indent::sync::SpinLock::new(1);
/// let guard = lock.lock();
/// std::thread::scope(|scope| { scope.spawn(move || drop(guard)); }); // it is not `Send`
/// ```
#[must_use = "the lock is let go at once"]
pub struct SpinLockGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// Goes when the lock is free again.
    _section: NoPreemptSection,
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: a `&T`, in effect.
unsafe impl<T: ?Sized + Sync> Sync for SpinLockGuard<'_, T> {}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we have the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we have the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinLockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Release);
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}

impl<T> From<T> for SpinLock<T> {
    fn from(value: T) -> Self {
        SpinLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("SpinLock").field(&&*guard).finish(),
            None => f.write_str("SpinLock(<locked>)"),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SpinLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for SpinLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
