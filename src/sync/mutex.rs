#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A mutual exclusion lock. How it is taken and released: `raw_mutex.rs`.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::Until;
use crate::sync::raw_mutex::{self, Failed, RawMutex, owner_id};
use crate::util::loom::const_fn;

/// A mutual exclusion lock that suspends the waiting fiber, not its thread.
///
/// A plain thread that waits is blocked. The lock corresponds to [`std::sync::Mutex`], with the
/// same poisoning: a panic while it is held makes every later [`lock`](Self::lock) return an error,
/// which contains the guard. A fiber that unwinds because it was cancelled, or because its [time
/// limit](crate::time::timeout) has passed, does not poison: it left at a call that blocks.
///
/// The lock is not FIFO: a caller that finds it free takes it, even if others wait. But a waiter
/// that has waited for over 1 ms is handed the lock next. A fiber or plain thread that locks it
/// twice panics instead of deadlocking. The guard may be dropped on another thread than the one it
/// was taken on, or by another fiber. If the taker locks again, it has to know that the guard was
/// dropped.
///
/// ```
/// use indent::sync::Mutex;
///
/// static TOTAL: Mutex<u32> = Mutex::new(0);
///
/// let adders: Vec<_> = (1..=4)
///     .map(|n| indent::spawn(move || *TOTAL.lock().unwrap() += n))
///     .collect();
/// adders.into_iter().for_each(|adder| adder.join().unwrap());
/// assert_eq!(*TOTAL.lock().unwrap(), 10);
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one holder at a time, on any thread.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// Poisoning reports a panic.
impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    const_fn! {
        /// Creates a free lock.
        ///
        /// ```
        /// static NAMES: indent::sync::Mutex<Vec<String>> = indent::sync::Mutex::new(Vec::new());
        /// NAMES.lock().unwrap().push("first".to_owned());
        /// ```
        pub const fn new(value: T) -> Self {
            Mutex { raw: RawMutex::new(), value: UnsafeCell::new(value) }
        }
    }

    /// Consumes the lock and returns the value.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the value.
    ///
    /// ```
    /// assert_eq!(indent::sync::Mutex::new(5).into_inner().unwrap(), 5);
    /// ```
    pub fn into_inner(self) -> LockResult<T> {
        let poisoned = self.is_poisoned();
        result(self.value.into_inner(), poisoned)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, blocking until it is free.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the guard.
    ///
    /// # Panics
    /// If the calling fiber or thread has locked it already and the guard still exists, even with
    /// another owner: it would wait for itself.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// *mutex.lock().unwrap() += 1;
    /// assert_eq!(*mutex.lock().unwrap(), 2);
    /// ```
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let me = raw_mutex::charge_and_identify();
        match self.raw.lock(me, || raw_mutex::lock_until(None)) {
            Ok(poisoned) => self.guard(me, poisoned),
            Err(why) => fail(why),
        }
    }

    /// Takes the lock if it is free. Never blocks.
    ///
    /// # Errors
    /// If the lock is held or poisoned.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// let guard = mutex.try_lock().unwrap();
    /// assert!(mutex.try_lock().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let me = owner_id(park::current_fiber());
        if self.raw.try_lock(me) {
            Ok(self.guard(me, self.is_poisoned())?)
        } else {
            Err(TryLockError::WouldBlock)
        }
    }

    /// Takes the lock, blocking for at most `timeout`.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time has passed; `Poisoned` if the lock is
    /// poisoned.
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let mutex = indent::sync::Mutex::new(1);
    /// let guard = mutex.lock_timeout(Duration::from_secs(1)).unwrap();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| assert!(mutex.lock_timeout(Duration::from_millis(1)).is_err()));
    /// });
    /// # drop(guard);
    /// ```
    pub fn lock_timeout(&self, timeout: Duration) -> TryLockResult<MutexGuard<'_, T>> {
        let until = || raw_mutex::lock_until(Instant::now().checked_add(timeout));
        let me = raw_mutex::charge_and_identify();
        match self.raw.lock(me, until) {
            Ok(poisoned) => Ok(self.guard(me, poisoned)?),
            Err(Failed::TimedOut) => Err(TryLockError::WouldBlock),
            Err(why) => fail(why),
        }
    }

    /// Whether a panic happened while the lock was held.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// let panics = || {
    ///     let _guard = mutex.lock();
    ///     std::panic::resume_unwind(Box::new("no luck"));
    /// };
    /// assert!(std::panic::catch_unwind(panics).is_err());
    /// assert!(mutex.is_poisoned() && mutex.lock().is_err());
    /// mutex.clear_poison();
    /// assert!(mutex.lock().is_ok());
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.raw.is_poisoned()
    }

    /// Clears the poisoning, when the value is consistent again.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// mutex.clear_poison();
    /// assert!(!mutex.is_poisoned());
    /// ```
    pub fn clear_poison(&self) {
        self.raw.clear_poison();
    }

    /// Returns a mutable reference to the value, without locking.
    ///
    /// # Errors
    /// If the lock is poisoned; the error contains the reference.
    ///
    /// ```
    /// let mut mutex = indent::sync::Mutex::new(1);
    /// *mutex.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let poisoned = self.is_poisoned();
        result(self.value.get_mut(), poisoned)
    }

    /// The guard of the caller, which has just taken the lock.
    #[inline]
    fn guard(&self, owner: usize, poisoned: bool) -> LockResult<MutexGuard<'_, T>> {
        let guard = MutexGuard {
            mutex: self,
            owner,
            panicking: std::thread::panicking(),
        };
        result(guard, poisoned)
    }

    pub(crate) fn raw(&self) -> &RawMutex {
        &self.raw
    }

    /// Takes the lock again, ignoring cancellation, for an owner that has released it during a
    /// wait.
    pub(crate) fn relock(&self) -> LockResult<MutexGuard<'_, T>> {
        let me = owner_id(park::current_fiber());
        let got = self.raw.lock(me, || Until::uncancelled(ParkReason::Lock));
        self.guard(
            me,
            got.expect("a wait without deadline and cancellation ends with the lock"),
        )
    }
}

#[inline]
fn result<G>(guard: G, poisoned: bool) -> LockResult<G> {
    if poisoned {
        Err(PoisonError::new(guard))
    } else {
        Ok(guard)
    }
}

#[cold]
fn fail(why: Failed) -> ! {
    match why {
        Failed::Cancelled => park::unwind_cancelled(),
        Failed::AlreadyOwner => panic!(
            "cannot lock this Mutex: the calling fiber or thread holds it already and would \
             wait for itself; drop the first guard before locking again"
        ),
        Failed::TimedOut => unreachable!("there was no deadline"),
    }
}

/// The right to access the value of a [`Mutex`], until it is dropped. Dropping it never blocks.
///
/// Unlike the guard of [`std::sync::Mutex`] it may be sent to another thread.
///
/// ```
/// let mutex = indent::sync::Mutex::new(1);
/// let guard = mutex.lock().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(guard));
/// });
/// assert!(mutex.lock().is_ok());
/// ```
#[must_use = "the lock is released at once if the guard is not kept"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// The id of the fiber or thread that took the lock.
    owner: usize,
    /// Whether the thread was panicking when the lock was taken.
    panicking: bool,
}

// SAFETY: the holder of the guard has the value, and any thread may release the lock. (`&T` for
// many threads needs `T: Sync`.)
unsafe impl<T: ?Sized + Send> Send for MutexGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Gives up the guard without releasing the lock, which its owner releases by
    /// [`raw`](Mutex::raw). [`Mutex::relock`] returns a guard again.
    pub(crate) fn leave(self) -> (&'a Mutex<T>, usize) {
        let this = ManuallyDrop::new(self);
        (this.mutex, this.owner)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.panicking && std::thread::panicking() && !park::unwinds_as_told() {
            self.mutex.raw.poison();
        }
        self.mutex.raw.unlock(self.owner);
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(TryLockError::Poisoned(error)) => shown.field("value", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => shown.field("value", &format_args!("<locked>")),
        };
        shown
            .field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
