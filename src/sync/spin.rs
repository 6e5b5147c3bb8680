#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A lock for a few instructions: waiters spin, and the holder is not preempted.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::sched::block::suspend::NoPreemptSection;

/// Number of checks of a held lock before the thread yields to others of the system, as the holder
/// may be one of them.
const LOOKS: u32 = 64;

/// A spin lock for critical sections of a few instructions.
///
/// The section must not call code that blocks, allocates or takes long. While the guard exists the
/// fiber is not preempted ([`no_preempt`](crate::runtime::no_preempt)), so that waiters do not spin
/// for a holder that does not run. For longer sections prefer a [`Mutex`](crate::sync::Mutex),
/// which costs hardly more when it is free. A spin lock has no poisoning and no deadlines, and is
/// not a point of cancellation.
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

// SAFETY: the lock gives the value to one holder at a time, on any thread.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Creates a free lock.
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

    /// Consumes the lock and returns the value.
    ///
    /// ```
    /// assert_eq!(indent::sync::SpinLock::new(5).into_inner(), 5);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock, spinning until it is free. Never yields the fiber.
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

    /// Takes the lock if it is free.
    ///
    /// ```
    /// let lock = indent::sync::SpinLock::new(1);
    /// let guard = lock.try_lock().unwrap();
    /// assert!(lock.try_lock().is_none());
    /// # drop(guard);
    /// ```
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        let section = NoPreemptSection::new(); // first, so that the holder is never preempted
        let got = !self.locked.swap(true, Acquire);
        got.then(|| SpinLockGuard {
            lock: self,
            _section: section,
            _not_send: PhantomData,
        })
    }

    /// Returns a mutable reference to the value, without locking.
    ///
    /// ```
    /// let mut lock = indent::sync::SpinLock::new(1);
    /// *lock.get_mut() = 2;
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Spins until the lock looks free. The caller may be preempted here.
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

/// The right to access the value of a [`SpinLock`]. It cannot be sent to another thread or fiber.
///
/// ```compile_fail
/// let lock = indent::sync::SpinLock::new(1);
/// let guard = lock.lock();
/// std::thread::scope(|scope| { scope.spawn(move || drop(guard)); }); // it is not `Send`
/// ```
#[must_use = "the lock is let go at once"]
pub struct SpinLockGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    /// Dropped after the lock is released.
    _section: NoPreemptSection,
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: a shared guard gives access to a `&T` only.
unsafe impl<T: ?Sized + Sync> Sync for SpinLockGuard<'_, T> {}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
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
