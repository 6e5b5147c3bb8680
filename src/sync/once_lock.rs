#![expect(
    unsafe_code,
    reason = "a value that is there once its Once is complete"
)]
//! A value that is made once, when it is first wanted.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::{Duration, Instant};

use crate::sched::limit::Undisturbed;
use crate::sync::once::{Begun, Once};
use crate::util::loom::const_fn;

/// A place for a value that is put there once; who wants it meanwhile waits.
///
/// As [`std::sync::OnceLock`]: a closure that panics leaves it empty.
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

// SAFETY: the value goes along.
unsafe impl<T: Send> Send for OnceLock<T> {}
// SAFETY: one puts it there, from anywhere; then all read it.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// A panic leaves it as it was.
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe + RefUnwindSafe> RefUnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    const_fn! {
        /// Without a value.
        ///
        /// ```
        /// static CONFIG: indent::sync::OnceLock<String> = indent::sync::OnceLock::new();
        /// ```
        pub const fn new() -> Self {
            OnceLock { once: Once::new(), value: UnsafeCell::new(MaybeUninit::uninit()) }
        }
    }

    /// The value, if it is there.
    ///
    /// ```
    /// assert!(indent::sync::OnceLock::<u8>::new().get().is_none());
    /// ```
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if !self.once.is_completed() {
            return None;
        }
        // SAFETY: complete: nobody changes it any more, and whoever put it there was seen to have.
        let value = unsafe { &*self.value.get() };
        // SAFETY: complete: it was put there.
        Some(unsafe { value.assume_init_ref() })
    }

    /// The value, by who has it to himself.
    ///
    /// ```
    /// let mut cell = indent::sync::OnceLock::from(1);
    /// *cell.get_mut().unwrap() = 2;
    /// assert_eq!(cell.into_inner(), Some(2));
    /// ```
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let complete = self.once.is_completed();
        // SAFETY: complete: it was put there.
        complete.then(|| unsafe { self.value.get_mut().assume_init_mut() })
    }

    /// Puts a value there.
    ///
    /// # Errors
    /// If there is one; the new one comes back.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// assert_eq!(cell.set(1), Ok(()));
    /// assert_eq!(cell.set(2), Err(2));
    /// ```
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }

    /// The value; if there is none, what `f` returns, unless another makes one meanwhile: then that.
    ///
    /// # Panics
    /// If `f` asks for the value, or waits for it.
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

    /// As [`get_or_init`](Self::get_or_init); a failure leaves it empty.
    ///
    /// # Errors
    /// That of `f`.
    ///
    /// # Panics
    /// If `f` asks for the value, or waits for it.
    ///
    /// ```
    /// let cell = indent::sync::OnceLock::new();
    /// assert!(cell.get_or_try_init(|| "many".parse::<u32>()).is_err());
    /// assert_eq!(cell.get_or_try_init(|| "5".parse::<u32>()), Ok(&5));
    /// ```
    pub fn get_or_try_init<E>(&self, f: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let value = self.get_or_try_init_until(|| None, f)?;
        Ok(value.expect("there was no deadline"))
    }

    /// As [`get_or_init`](Self::get_or_init), but waits for another's call for at most this long; `None` if that is not
    /// over. What `f` itself takes does not count.
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

    /// `None` if another makes it and the time is over.
    fn get_or_try_init_until<E>(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
        f: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<&T>, E> {
        if let Some(value) = self.get() {
            return Ok(Some(value));
        }
        if let Begun::Run(run) = self.once.begin(true, deadline()) {
            let value = f()?; // or the run ends without a value
            // SAFETY: ours alone until the run is complete.
            unsafe { &mut *self.value.get() }.write(value);
            run.complete();
        }
        Ok(self.get())
    }

    /// Waits until somebody has put a value there.
    ///
    /// # Panics
    /// If the caller is the one who makes it.
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
        self.get().expect("complete")
    }

    /// Waits until somebody has put a value there, for at most this long.
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

    /// The value.
    ///
    /// ```
    /// assert_eq!(indent::sync::OnceLock::from(1).into_inner(), Some(1));
    /// ```
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Takes the value out; there is none then.
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
        // SAFETY: it was put there, and is out from now on.
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

/// A value that is made when it is first wanted.
///
/// As [`std::sync::LazyLock`]: if the closure panics, every later use panics. Since it can be called but once, and for all
/// who want the value, it is not told to end: a request, or a [time limit](crate::time::timeout) of whoever happens to be
/// the first, is heard when the value is made. (Limits that it sets itself are heard in it.) Whoever waits for it
/// can be told as ever.
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
    /// Taken by who runs it.
    f: Cell<Option<F>>,
}

// SAFETY: the closure is taken by one, who has the right to run the cell's `Once`; it may be from anywhere.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}
impl<T: UnwindSafe + RefUnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    const_fn! {
        /// To be made by `f`.
        ///
        /// ```
        /// let lazy = indent::sync::LazyLock::new(|| 1 + 1);
        /// assert_eq!(*lazy, 2);
        /// ```
        pub const fn new(f: F) -> Self {
            LazyLock { cell: OnceLock::new(), f: Cell::new(Some(f)) }
        }
    }

    /// The value, made if it is not.
    ///
    /// # Panics
    /// If the closure has panicked, or if it asks for the value.
    ///
    /// ```
    /// let lazy = indent::sync::LazyLock::new(|| 1);
    /// assert_eq!(indent::sync::LazyLock::force(&lazy), &1);
    /// ```
    pub fn force(this: &Self) -> &T {
        this.cell.get_or_init(|| {
            let Some(f) = this.f.take() else {
                panic!("this LazyLock has no value: the closure that was to make it has panicked")
            };
            let _alone = Undisturbed::begin();
            f()
        })
    }

    /// The value, made if it is not, by who has it to himself.
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
        LazyLock::get_mut(this).expect("complete")
    }
}

impl<T, F> LazyLock<T, F> {
    /// The value, if it is made.
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

    /// The value, if it is made, by who has it to himself.
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
    /// To be made by `T::default`.
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
