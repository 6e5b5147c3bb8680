#![expect(unsafe_code, reason = "the lock gives the right to what it protects")]
//! A lock for one at a time. How it is got and let go: `raw_mutex.rs`.

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
use crate::sync::raw_mutex::{self, Failed, RawMutex, name_of};
use crate::util::loom::const_fn;

/// One at a time: a fiber that finds it locked waits and lets others run; a plain thread blocks.
///
/// As [`std::sync::Mutex`], with the same poisoning: a panic while the lock is held makes every later
/// [`lock`](Self::lock) return an error that still gives the guard. A fiber that was asked to end, or whose
/// [time limit](crate::time::timeout) passed, is no panic: it left at a call that blocks, and poisons nothing.
///
/// Whoever comes while it is free takes it, also before those who wait; but nobody waits for long more than a
/// millisecond behind others who came later. Whoever locks it twice, a fiber or a plain thread, panics instead of waiting for
/// itself. The guard may be dropped on another thread than the one it was taken on, or by another fiber; to lock again
/// the one it was taken by then has to know that it was.
///
/// ```
/// use indent::sync::Mutex;
///
/// static TOTAL: Mutex<u32> = Mutex::new(0);
///
/// let adders: Vec<_> = (1..=4).map(|n| indent::spawn(move || *TOTAL.lock().unwrap() += n)).collect();
/// adders.into_iter().for_each(|adder| adder.join().unwrap());
/// assert_eq!(*TOTAL.lock().unwrap(), 10);
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one at a time, wherever that one runs.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// A panic is told by poisoning.
impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    const_fn! {
        /// A free lock.
        ///
        /// ```
        /// static NAMES: indent::sync::Mutex<Vec<String>> = indent::sync::Mutex::new(Vec::new());
        /// NAMES.lock().unwrap().push("first".to_owned());
        /// ```
        pub const fn new(value: T) -> Self {
            Mutex { raw: RawMutex::new(), value: UnsafeCell::new(value) }
        }
    }

    /// What it protects.
    ///
    /// # Errors
    /// If it is poisoned; the error has the value.
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
    /// Waits until it is free and takes it.
    ///
    /// # Errors
    /// If it is poisoned; the error has the guard.
    ///
    /// # Panics
    /// If the calling fiber or thread has it already: it would wait for itself. (Also if it gave the guard to somebody who
    /// still has it.)
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// *mutex.lock().unwrap() += 1;
    /// assert_eq!(*mutex.lock().unwrap(), 2);
    /// ```
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let me = raw_mutex::pay();
        match self.raw.lock(me, || raw_mutex::open(None)) {
            Ok(poisoned) => self.guard(me, poisoned),
            Err(why) => give_up(why),
        }
    }

    /// Takes it if it is free.
    ///
    /// # Errors
    /// If it is locked or poisoned.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// let guard = mutex.try_lock().unwrap();
    /// assert!(mutex.try_lock().is_err());
    /// # drop(guard);
    /// ```
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let me = name_of(park::current_fiber());
        if self.raw.try_lock(me) {
            Ok(self.guard(me, self.is_poisoned())?)
        } else {
            Err(TryLockError::WouldBlock)
        }
    }

    /// Waits until it is free, for at most this long, and takes it.
    ///
    /// # Errors
    /// [`WouldBlock`](TryLockError::WouldBlock) if the time is over, or that it is poisoned.
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
        let until = || raw_mutex::open(Instant::now().checked_add(timeout));
        let me = raw_mutex::pay();
        match self.raw.lock(me, until) {
            Ok(poisoned) => Ok(self.guard(me, poisoned)?),
            Err(Failed::TimedOut) => Err(TryLockError::WouldBlock),
            Err(why) => give_up(why),
        }
    }

    /// Whether somebody panicked while it was locked.
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

    /// What it protects is in order again.
    ///
    /// ```
    /// let mutex = indent::sync::Mutex::new(1);
    /// mutex.clear_poison();
    /// assert!(!mutex.is_poisoned());
    /// ```
    pub fn clear_poison(&self) {
        self.raw.clear_poison();
    }

    /// What it protects, by who has it to himself.
    ///
    /// # Errors
    /// If it is poisoned; the error has the reference.
    ///
    /// ```
    /// let mut mutex = indent::sync::Mutex::new(1);
    /// *mutex.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let poisoned = self.is_poisoned();
        result(self.value.get_mut(), poisoned)
    }

    /// The guard of who has just got the lock.
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

    /// The lock again, for who gave it up for a while: nothing keeps him from it.
    pub(crate) fn lock_again(&self) -> LockResult<MutexGuard<'_, T>> {
        let me = name_of(park::current_fiber());
        let got = self.raw.lock(me, || Until::uncancelled(ParkReason::Lock));
        self.guard(me, got.expect("nothing but the lock ends such a wait"))
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
fn give_up(why: Failed) -> ! {
    match why {
        Failed::Cancelled => park::unwind_cancelled(),
        Failed::Twice => panic!(
            "this fiber or thread has locked this Mutex already and would wait for itself: drop the first guard before locking again"
        ),
        Failed::TimedOut => unreachable!("there was no deadline"),
    }
}

/// The right to what a [`Mutex`] protects, until it is dropped. Dropping it never blocks.
///
/// It may go to another thread, unlike that of [`std::sync::Mutex`].
///
/// ```
/// let mutex = indent::sync::Mutex::new(1);
/// let guard = mutex.lock().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(guard));
/// });
/// assert!(mutex.lock().is_ok());
/// ```
#[must_use = "the lock is let go at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// The name of who took it.
    owner: usize,
    /// When it was taken.
    panicking: bool,
}

// SAFETY: who has the guard has the value; the lock does not care who lets it go. (`&T` for many needs `T: Sync`.)
unsafe impl<T: ?Sized + Send> Send for MutexGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Leaves the lock locked, by this owner, to be let go by [`raw`](Mutex::raw); [`Mutex::lock_again`] brings a guard
    /// back.
    pub(crate) fn leave(self) -> (&'a Mutex<T>, usize) {
        let this = ManuallyDrop::new(self);
        (this.mutex, this.owner)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we have the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we have the lock.
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
