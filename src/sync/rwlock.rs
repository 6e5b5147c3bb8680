#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A lock for many who read or one who writes. How it is got and let go: `raw_rwlock.rs`.

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
use crate::sync::raw_rwlock::{RawRwLock, Way};
use crate::util::loom::const_fn;

/// Many who read, or one who writes.
///
/// As [`std::sync::RwLock`]; a panic of who writes poisons it (see [`Mutex`](crate::sync::Mutex) for what is no panic).
/// Neither kind starves the other: once somebody waits, whoever comes lines up behind. So a fiber that reads and
/// wants to read once more may wait for a writer who waits for it: read once.
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

// SAFETY: the lock gives the value to one writer at a time, wherever he runs.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above; many read it at once.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
// A panic is told by poisoning.
impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

impl<T> RwLock<T> {
    const_fn! {
        /// A free lock.
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

    /// What it protects.
    ///
    /// # Errors
    /// If it is poisoned; the error has the value.
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
    /// Waits until it may be read, and takes it for that.
    ///
    /// # Errors
    /// If it is poisoned; the error has the guard.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let (one, other) = (lock.read().unwrap(), lock.read().unwrap());
    /// assert_eq!(*one, *other);
    /// ```
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.lock(Way::Read, || None);
        self.reader()
    }

    /// Takes it for reading if that can be at once and nobody waits.
    ///
    /// # Errors
    /// If not, or if it is poisoned.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.write().unwrap();
    /// assert!(lock.try_read().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.now(Way::Read)?;
        Ok(self.reader()?)
    }

    /// Waits until it may be read, for at most this long.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time is over, or that it is poisoned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lock = indent::sync::RwLock::new(1);
    /// assert_eq!(*lock.read_timeout(Duration::from_secs(1)).unwrap(), 1);
    /// ```
    pub fn read_timeout(&self, timeout: Duration) -> TryLockResult<RwLockReadGuard<'_, T>> {
        self.in_time(Way::Read, timeout)?;
        Ok(self.reader()?)
    }

    /// Waits until nobody else has it, and takes it.
    ///
    /// # Errors
    /// If it is poisoned; the error has the guard.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// *lock.write().unwrap() += 1;
    /// assert_eq!(*lock.read().unwrap(), 2);
    /// ```
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.lock(Way::Write, || None);
        self.writer()
    }

    /// Takes it if nobody else has it.
    ///
    /// # Errors
    /// If not, or if it is poisoned.
    ///
    /// ```
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.read().unwrap();
    /// assert!(lock.try_write().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.now(Way::Write)?;
        Ok(self.writer()?)
    }

    /// Waits until nobody else has it, for at most this long.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time is over, or that it is poisoned.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lock = indent::sync::RwLock::new(1);
    /// let guard = lock.read().unwrap();
    /// assert!(lock.write_timeout(Duration::from_millis(1)).is_err());
    /// # drop(guard);
    /// ```
    pub fn write_timeout(&self, timeout: Duration) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        self.in_time(Way::Write, timeout)?;
        Ok(self.writer()?)
    }

    /// Whether somebody panicked while he wrote.
    ///
    /// ```
    /// assert!(!indent::sync::RwLock::new(1).is_poisoned());
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Relaxed)
    }

    /// What it protects is in order again.
    ///
    /// ```
    /// indent::sync::RwLock::new(1).clear_poison();
    /// ```
    pub fn clear_poison(&self) {
        self.poisoned.store(false, Relaxed);
    }

    /// What it protects, by who has it to himself.
    ///
    /// # Errors
    /// If it is poisoned; the error has the reference.
    ///
    /// ```
    /// let mut lock = indent::sync::RwLock::new(1);
    /// *lock.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let poisoned = self.is_poisoned();
        result(self.value.get_mut(), poisoned)
    }

    fn lock(&self, way: Way, deadline: impl FnOnce() -> Option<Instant>) -> bool {
        park::charge_ahead();
        let until = || Until::open(deadline(), ParkReason::Lock);
        match self.raw.lock(way, until) {
            Err(Failed::Cancelled) => park::unwind_cancelled(),
            got => got.is_ok(),
        }
    }

    fn now<G>(&self, way: Way) -> Result<(), TryLockError<G>> {
        let got = self.raw.try_lock(way);
        got.then_some(()).ok_or(TryLockError::WouldBlock)
    }

    fn in_time<G>(&self, way: Way, timeout: Duration) -> Result<(), TryLockError<G>> {
        let got = self.lock(way, || Instant::now().checked_add(timeout));
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

/// The right to read what an [`RwLock`] protects.
///
/// ```
/// let lock = indent::sync::RwLock::new(1);
/// let guard: indent::sync::RwLockReadGuard<'_, i32> = lock.read().unwrap();
/// assert_eq!(*guard, 1);
/// ```
#[must_use = "the lock is let go at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

/// The right to what an [`RwLock`] protects.
///
/// ```
/// let lock = indent::sync::RwLock::new(1);
/// let mut guard: indent::sync::RwLockWriteGuard<'_, i32> = lock.write().unwrap();
/// *guard = 2;
/// ```
#[must_use = "the lock is let go at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    /// When it was taken.
    panicking: bool,
}

// SAFETY: a `&T`, in effect; the lock does not care who lets it go.
unsafe impl<T: ?Sized + Sync> Send for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: a `&mut T`, in effect, that leaves a `&RwLock<T>` behind when it goes.
unsafe impl<T: ?Sized + Send + Sync> Send for RwLockWriteGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Goes on reading; nobody writes in between.
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
        // SAFETY: we have the lock; others only read.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we alone have the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we alone have the lock.
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
