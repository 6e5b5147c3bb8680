#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A lock for many readers or one writer. How it is taken and released: `raw_rwlock.rs`.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::Until;
use crate::sync::raw_mutex::Failed;
use crate::sync::raw_rwlock::{Access, RawRwLock};
use crate::util::loom::const_fn;

/// A lock for many readers or one writer.
///
/// Corresponds to [`std::sync::RwLock`]. A panic of a writer poisons it (see
/// [`Mutex`](crate::sync::Mutex) for what does not count as a panic). Readers and writers do not
/// starve each other: once there is a waiter, later callers queue behind it. So a fiber that holds
/// a read guard and reads again can deadlock with a waiting writer: read once.
///
/// ```
/// use indent::sync::RwLock;
///
/// static LIMITS: RwLock<(u32, u32)> = RwLock::new((1, 10));
///
/// let readers: Vec<_> = (0..4).map(|_| indent::spawn(|| LIMITS.read().unwrap().1)).collect();
/// readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), 10));
/// LIMITS.write().unwrap().1 = 20;
/// ```
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    poisoned: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one writer at a time, on any thread.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above; many readers have a `&T` at once.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
// Poisoning reports a panic.
impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

impl<T> RwLock<T> {
    const_fn! {
        /// Creates a free lock.
        ///
        /// ```
        /// static LIMIT: indent::sync::RwLock<u32> = indent::sync::RwLock::new(3);
        /// ```
        pub const fn new(value: T) -> Self {
            RwLock {
                raw: RawRwLock::new(),
                poisoned: AtomicBool::new(false),
                value: UnsafeCell::new(value),
            }
        }
    }

    /// Consumes the lock and returns the value.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the value.
    ///
    /// ```
    /// assert_eq!(indent::sync::RwLock::new(5).into_inner().unwrap(), 5);
    /// ```
    pub fn into_inner(self) -> LockResult<T> {
        let poisoned = self.is_poisoned();
        result(self.value.into_inner(), poisoned)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock for reading, blocking until that is possible.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the guard.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let (one, other) = (lock.read().unwrap(), lock.read().unwrap());
    /// assert_eq!(*one, *other);
    /// ```
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.lock(Access::Read, || None);
        self.reader()
    }

    /// Takes the lock for reading if that is possible at once and there are no waiters.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if it is not possible; `Poisoned` if the lock is
    /// poisoned.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.write().unwrap();
    /// assert!(lock.try_read().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.now(Access::Read)?;
        Ok(self.reader()?)
    }

    /// Takes the lock for reading, blocking for at most `timeout`.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time has passed; `Poisoned` if the lock is
    /// poisoned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lock = indent::sync::RwLock::new(1);
    /// assert_eq!(*lock.read_timeout(Duration::from_secs(1)).unwrap(), 1);
    /// ```
    pub fn read_timeout(&self, timeout: Duration) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.in_time(Access::Read, timeout)?;
        Ok(self.reader()?)
    }

    /// Takes the lock for writing, blocking until it is free.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the guard.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// *lock.write().unwrap() += 1;
    /// assert_eq!(*lock.read().unwrap(), 2);
    /// ```
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.lock(Access::Write, || None);
        self.writer()
    }

    /// Takes the lock for writing if it is free and there are no waiters.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if it is not free; `Poisoned` if the lock is
    /// poisoned.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.read().unwrap();
    /// assert!(lock.try_write().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.now(Access::Write)?;
        Ok(self.writer()?)
    }

    /// Takes the lock for writing, blocking for at most `timeout`.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time has passed; `Poisoned` if the lock is
    /// poisoned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.read().unwrap();
    /// assert!(lock.write_timeout(Duration::from_millis(1)).is_err());
    /// # drop(guard);
    /// ```
    pub fn write_timeout(&self, timeout: Duration) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.in_time(Access::Write, timeout)?;
        Ok(self.writer()?)
    }

    /// Whether a panic happened while the lock was held for writing.
    ///
    /// ```
    /// assert!(!indent::sync::RwLock::new(1).is_poisoned());
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Relaxed)
    }

    /// Clears the poisoning, when the value is consistent again.
    ///
    /// ```
    /// indent::sync::RwLock::new(1).clear_poison();
    /// ```
    pub fn clear_poison(&self) {
        self.poisoned.store(false, Relaxed);
    }

    /// Returns a mutable reference to the value, without locking.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the reference.
    ///
    /// ```
    /// let mut lock = indent::sync::RwLock::new(1);
    /// *lock.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let poisoned = self.is_poisoned();
        result(self.value.get_mut(), poisoned)
    }

    fn lock(&self, access: Access, deadline: impl FnOnce() -> Option<Instant>) -> bool {
        park::charge_ahead();
        let until = || Until::cancellable(deadline(), ParkReason::Lock);
        match self.raw.lock(access, until) {
            Err(Failed::Cancelled) => park::unwind_cancelled(),
            got => got.is_ok(),
        }
    }

    fn now<G>(&self, access: Access) -> Result<(), TryLockError<G>> {
        let got = self.raw.try_lock(access);
        got.then_some(()).ok_or(TryLockError::WouldBlock)
    }

    fn in_time<G>(&self, access: Access, timeout: Duration) -> Result<(), TryLockError<G>> {
        let got = self.lock(access, || Instant::now().checked_add(timeout));
        got.then_some(()).ok_or(TryLockError::WouldBlock)
    }

    fn reader(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        result(RwLockReadGuard { lock: self }, self.is_poisoned())
    }

    fn writer(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let guard = RwLockWriteGuard {
            lock: self,
            panicking: std::thread::panicking(),
        };
        result(guard, self.is_poisoned())
    }
}

fn result<G>(guard: G, poisoned: bool) -> LockResult<G> {
    if poisoned {
        Err(PoisonError::new(guard))
    } else {
        Ok(guard)
    }
}

/// The right to read the value of an [`RwLock`], until it is dropped.
///
/// ```
/// let lock = indent::sync::RwLock::new(1);
/// let guard: indent::sync::RwLockReadGuard<'_, i32> = lock.read().unwrap();
/// assert_eq!(*guard, 1);
/// ```
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

/// The right to read and change the value of an [`RwLock`], until it is dropped.
///
/// ```
/// let lock = indent::sync::RwLock::new(1);
/// let mut guard: indent::sync::RwLockWriteGuard<'_, i32> = lock.write().unwrap();
/// *guard = 2;
/// ```
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    /// Whether the thread was panicking when the lock was taken.
    panicking: bool,
}

// SAFETY: the guard gives access to a `&T` only; any thread may release the lock.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: the guard gives access to a `&mut T`, and its release gives `&T` to others by a
// `&RwLock<T>`.
unsafe impl<T: ?Sized + Send + Sync> Send for RwLockWriteGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Turns the guard into a read guard, without letting a writer in between.
    ///
    /// ```
    /// use indent::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let mut guard = lock.write().unwrap();
    /// *guard = 2;
    /// let guard = RwLockWriteGuard::downgrade(guard);
    /// assert_eq!((*guard, *lock.read().unwrap()), (2, 2));
    /// ```
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let guard = ManuallyDrop::new(guard);
        guard.lock.raw.downgrade();
        RwLockReadGuard { lock: guard.lock }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock, and other holders only read.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock for writing.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock for writing.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock_read();
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        if !self.panicking && std::thread::panicking() && !park::unwinds_as_told() {
            self.lock.poisoned.store(true, Relaxed);
        }
        self.lock.raw.unlock_write();
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(TryLockError::Poisoned(error)) => shown.field("value", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => shown.field("value", &format_args!("<locked>")),
        };
        shown
            .field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
