#![expect(
    unsafe_code,
    reason = "a value that is there once its Once is complete"
)]
//! Values that are initialized once, on first use.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, Instant};

use crate::sched::block::time_limit::Undisturbed;
use crate::sync::once::{Begun, Once};
use crate::util::loom::const_fn;

/// A cell that is initialized once; callers that need the value meanwhile wait.
///
/// Corresponds to [`std::sync::OnceLock`]: a closure that panics leaves it empty.
///
/// ```
/// use indent::sync::OnceLock;
///
/// static CONFIG: OnceLock<String> = OnceLock::new();
///
/// assert_eq!(CONFIG.get(), None);
/// assert_eq!(CONFIG.get_or_init(|| "default".to_owned()), "default");
/// assert_eq!(CONFIG.set("late".to_owned()), Err("late".to_owned()));
/// ```
pub struct OnceLock<T> {
    once: Once,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value moves with its cell.
unsafe impl<T: Send> Send for OnceLock<T> {}
// SAFETY: one caller, on any thread, initializes the value; then all threads read it.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// A panic leaves the cell as it was.
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe + RefUnwindSafe> RefUnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    const_fn! {
        /// Creates an empty cell.
        ///
        /// ```
        /// static CONFIG: indent::sync::OnceLock<String> = indent::sync::OnceLock::new();
        /// ```
        pub const fn new() -> Self {
            OnceLock { once: Once::new(), value: UnsafeCell::new(MaybeUninit::uninit()) }
        }
    }

    /// Returns the value if it is initialized. Never blocks.
    ///
    /// ```
    /// assert!(indent::sync::OnceLock::<u8>::new().get().is_none());
    /// ```
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if !self.once.is_completed() {
            return None;
        }
        // SAFETY: the `Once` is complete: the value does not change any more, and the acquire load
        // in `is_completed` has seen the write.
        let value = unsafe { &*self.value.get() };
        // SAFETY: complete, so initialized.
        Some(unsafe { value.assume_init_ref() })
    }

    /// Returns a mutable reference to the value, if it is initialized.
    ///
    /// ```
    /// let mut cell = indent::sync::OnceLock::from(1);
    /// *cell.get_mut().unwrap() = 2;
    /// assert_eq!(cell.into_inner(), Some(2));
    /// ```
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let complete = self.once.is_completed();
        // SAFETY: complete, so initialized.
        complete.then(|| unsafe { self.value.get_mut().assume_init_mut() })
    }

    /// Initializes the cell.
    ///
    /// # Errors
    /// If the cell is initialized already; the error contains the new value.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// assert_eq!(cell.set(1), Ok(()));
    /// assert_eq!(cell.set(2), Err(2));
    /// ```
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("get_or_init calls its closure once"));
        value.map_or(Ok(()), Err)
    }

    /// Returns the value, initializing the cell with `f` if it is empty.
    ///
    /// If another caller is initializing the cell, blocks for its value.
    ///
    /// # Panics
    /// If `f` uses this cell itself.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// assert_eq!(cell.get_or_init(|| 1), &1);
    /// assert_eq!(cell.get_or_init(|| 2), &1);
    /// ```
    pub fn get_or_init(&self, f: impl FnOnce() -> T) -> &T {
        enum Never {}
        match self.get_or_try_init(|| Ok::<T, Never>(f())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// As [`get_or_init`](Self::get_or_init); a failure of `f` leaves the cell empty.
    ///
    /// # Errors
    /// The error of `f`.
    ///
    /// # Panics
    /// If `f` uses this cell itself.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// assert!(cell.get_or_try_init(|| "many".parse::<u32>()).is_err());
    /// assert_eq!(cell.get_or_try_init(|| "5".parse::<u32>()), Ok(&5));
    /// ```
    pub fn get_or_try_init<E>(&self, f: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let value = self.get_or_try_init_until(|| None, f)?;
        Ok(value.expect("a wait without a deadline does not time out"))
    }

    /// As [`get_or_init`](Self::get_or_init), but waits for another caller's `f` for at most
    /// `timeout`.
    ///
    /// Returns `None` if that `f` is still running. The time that the caller's own `f` takes is not
    /// limited.
    ///
    /// # Panics
    /// As [`get_or_init`](Self::get_or_init).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let cell = indent::sync::OnceLock::new();
    /// let soon = Duration::from_millis(1);
    /// cell.get_or_init(|| {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| assert_eq!(cell.get_or_init_timeout(soon, || 2), None));
    ///     });
    ///     1
    /// });
    /// assert_eq!(cell.get_or_init_timeout(Duration::ZERO, || 2), Some(&1));
    /// ```
    pub fn get_or_init_timeout(&self, timeout: Duration, f: impl FnOnce() -> T) -> Option<&T> {
        enum Never {}
        let deadline = || Instant::now().checked_add(timeout);
        match self.get_or_try_init_until(deadline, || Ok::<T, Never>(f())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Returns `None` if another caller's `f` is still running at the deadline.
    fn get_or_try_init_until<E>(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
        f: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<&T>, E> {
        if let Some(value) = self.get() {
            return Ok(Some(value));
        }
        if let Begun::Run(run) = self.once.begin(true, deadline()) {
            let value = f()?; // an error or a panic ends the run without a value
            // SAFETY: the value is ours alone until the run is complete.
            unsafe { &mut *self.value.get() }.write(value);
            run.complete();
        }
        Ok(self.get())
    }

    /// Blocks until the cell is initialized.
    ///
    /// # Panics
    /// If called by the closure that initializes the cell.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| cell.set(1));
    ///     assert_eq!(cell.wait(), &1);
    /// });
    /// ```
    pub fn wait(&self) -> &T {
        self.once.wait_until(true, None);
        self.get()
            .expect("a wait without a deadline ends when the cell is initialized")
    }

    /// Blocks until the cell is initialized, for at most `timeout`.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let cell = indent::sync::OnceLock::<u8>::new();
    /// assert_eq!(cell.wait_timeout(Duration::from_millis(1)), None);
    /// ```
    pub fn wait_timeout(&self, timeout: Duration) -> Option<&T> {
        let deadline = Instant::now().checked_add(timeout);
        self.once.wait_until(true, deadline);
        self.get()
    }

    /// Consumes the cell and returns the value.
    ///
    /// ```
    /// assert_eq!(indent::sync::OnceLock::from(1).into_inner(), Some(1));
    /// ```
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Takes the value out, which leaves the cell empty.
    ///
    /// ```
    /// let mut cell = indent::sync::OnceLock::from(1);
    /// assert_eq!((cell.take(), cell.take()), (Some(1), None));
    /// ```
    pub fn take(&mut self) -> Option<T> {
        if !self.once.is_completed() {
            return None;
        }
        self.once = Once::new();
        // SAFETY: complete, so initialized; the new `Once` says that the value is gone.
        Some(unsafe { self.value.get_mut().assume_init_read() })
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let cell = OnceLock::new();
        let put = cell.set(value);
        debug_assert!(put.is_ok());
        cell
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        self.get()
            .cloned()
            .map_or_else(OnceLock::new, OnceLock::from)
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.debug_tuple("OnceLock").field(value).finish(),
            None => f.write_str("OnceLock(<empty>)"),
        }
    }
}

/// A value that is initialized on first use.
///
/// Corresponds to [`std::sync::LazyLock`]: if the closure panics, every later use panics. The
/// closure can run only once, and all users need its value, so cancelling the fiber that happens to
/// run it, or its [time limit](crate::time::timeout), takes effect only after the value is made.
/// (Time limits set inside the closure take effect in it.) Waiting for the value can be cancelled
/// as usual.
///
/// ```
/// use indent::sync::LazyLock;
///
/// static TABLE: LazyLock<Vec<u32>> = LazyLock::new(|| (0..4).map(|n| n * n).collect());
///
/// assert_eq!(TABLE[3], 9);
/// ```
pub struct LazyLock<T, F = fn() -> T> {
    cell: OnceLock<T>,
    /// Taken by the caller that runs it.
    f: Cell<Option<F>>,
}

// SAFETY: the closure is taken by the one caller that has the right to run the cell's `Once`, on
// any thread.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}
impl<T: UnwindSafe + RefUnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    const_fn! {
        /// Creates a value that `f` will make.
        ///
        /// ```
        /// let lazy = indent::sync::LazyLock::new(|| 1 + 1);
        /// assert_eq!(*lazy, 2);
        /// ```
        pub const fn new(f: F) -> Self {
            LazyLock { cell: OnceLock::new(), f: Cell::new(Some(f)) }
        }
    }

    /// Returns the value, making it if necessary.
    ///
    /// # Panics
    /// If the closure has panicked, or if it uses the value.
    ///
    /// ```
    /// let lazy = indent::sync::LazyLock::new(|| 1);
    /// assert_eq!(indent::sync::LazyLock::force(&lazy), &1);
    /// ```
    pub fn force(this: &Self) -> &T {
        this.cell.get_or_init(|| {
            let Some(f) = this.f.take() else {
                panic!("cannot use this LazyLock: the closure that makes its value has panicked")
            };
            let _alone = Undisturbed::begin();
            f()
        })
    }

    /// Returns a mutable reference to the value, making it if necessary.
    ///
    /// # Panics
    /// If the closure has panicked.
    ///
    /// ```
    /// use indent::sync::LazyLock;
    ///
    /// let mut lazy = LazyLock::new(|| 1);
    /// *LazyLock::force_mut(&mut lazy) += 1;
    /// assert_eq!(*lazy, 2);
    /// ```
    pub fn force_mut(this: &mut Self) -> &mut T {
        LazyLock::force(this);
        LazyLock::get_mut(this).expect("`force` returns when the value is made")
    }
}

impl<T, F> LazyLock<T, F> {
    /// Returns the value if it is made. Never blocks.
    ///
    /// ```
    /// use indent::sync::LazyLock;
    ///
    /// let lazy = LazyLock::new(|| 1);
    /// assert_eq!(LazyLock::get(&lazy), None);
    /// assert_eq!((*lazy, LazyLock::get(&lazy)), (1, Some(&1)));
    /// ```
    pub fn get(this: &Self) -> Option<&T> {
        this.cell.get()
    }

    /// Returns a mutable reference to the value, if it is made.
    ///
    /// ```
    /// use indent::sync::LazyLock;
    ///
    /// let mut lazy = LazyLock::new(|| 1);
    /// assert_eq!(LazyLock::get_mut(&mut lazy), None);
    /// ```
    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        this.cell.get_mut()
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T: Default> Default for LazyLock<T> {
    /// Creates a value that `T::default` will make.
    fn default() -> Self {
        LazyLock::new(T::default)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cell.get() {
            Some(value) => f.debug_tuple("LazyLock").field(value).finish(),
            None => f.write_str("LazyLock(<not made>)"),
        }
    }
}
