//! Semaphores. How permits are taken and returned: `raw_semaphore.rs`.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::park;
use crate::sync::raw_semaphore::{PERMIT_LIMIT, RawSemaphore, Refused};
use crate::util::loom::const_fn;

/// A counting semaphore, as `tokio::sync::Semaphore`.
///
/// Waiters are served first come, first served: a request for many permits is not overtaken by
/// smaller ones. A permit is returned when it is dropped, on any thread.
///
/// ```
/// use indent::sync::Semaphore;
/// use std::sync::Arc;
///
/// // At most three guests at a time, of any number.
/// let places = Arc::new(Semaphore::new(3));
/// let guests: Vec<_> = (0..10)
///     .map(|_| {
///         let places = places.clone();
///         indent::spawn(move || {
///             let _place = places.acquire().unwrap();
///             indent::task::yield_now();
///         })
///     })
///     .collect();
/// guests.into_iter().for_each(|guest| guest.join().unwrap());
/// assert_eq!(places.available_permits(), 3);
/// ```
pub struct Semaphore {
    raw: RawSemaphore,
}

/// The semaphore is closed, so no permits can be acquired.
///
/// ```
/// let semaphore = indent::sync::Semaphore::new(1);
/// semaphore.close();
/// assert!(semaphore.acquire().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcquireError;

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot acquire permits: the semaphore is closed")
    }
}

impl Error for AcquireError {}

/// Why no permits were acquired at once, or in time.
///
/// ```
/// use indent::sync::{Semaphore, TryAcquireError};
///
/// assert_eq!(Semaphore::new(0).try_acquire().unwrap_err(), TryAcquireError::NoPermits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryAcquireError {
    /// There are too few permits, or others wait for them.
    NoPermits,
    /// The semaphore is closed.
    Closed,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryAcquireError::NoPermits => "cannot acquire permits: the semaphore has too few now",
            TryAcquireError::Closed => "cannot acquire permits: the semaphore is closed",
        })
    }
}

impl Error for TryAcquireError {}

/// Permits of a [`Semaphore`], which are returned when this is dropped.
///
/// The semaphore is borrowed ([`SemaphorePermit`]) or counted ([`OwnedSemaphorePermit`]).
///
/// ```
/// let semaphore = indent::sync::Semaphore::new(3);
/// let permit = semaphore.acquire_many(2).unwrap();
/// assert_eq!((permit.permits(), semaphore.available_permits()), (2, 1));
/// drop(permit);
/// assert_eq!(semaphore.available_permits(), 3);
/// ```
#[must_use = "the permits are returned at once if this is not kept"]
pub struct Permit<S: Deref<Target = Semaphore>> {
    semaphore: S,
    permits: usize,
}

/// Permits of a borrowed [`Semaphore`].
///
/// ```
/// use indent::sync::{Semaphore, SemaphorePermit};
///
/// let semaphore = Semaphore::new(1);
/// let _permit: SemaphorePermit<'_> = semaphore.acquire().unwrap();
/// ```
pub type SemaphorePermit<'a> = Permit<&'a Semaphore>;

/// Permits of a reference-counted [`Semaphore`], with the lifetime `'static`.
///
/// ```
/// use indent::sync::{OwnedSemaphorePermit, Semaphore};
/// use std::sync::Arc;
///
/// let permit: OwnedSemaphorePermit = Arc::new(Semaphore::new(1)).acquire_owned().unwrap();
/// indent::spawn(move || drop(permit)).join().unwrap();
/// ```
pub type OwnedSemaphorePermit = Permit<Arc<Semaphore>>;

impl Semaphore {
    /// The largest number of permits of a semaphore.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(indent::sync::Semaphore::MAX_PERMITS);
    /// ```
    pub const MAX_PERMITS: usize = PERMIT_LIMIT;

    const_fn! {
        /// Creates a semaphore with this many permits.
        ///
        /// # Panics
        /// If `permits` exceeds [`MAX_PERMITS`](Self::MAX_PERMITS).
        ///
        /// ```
        /// static PLACES: indent::sync::Semaphore = indent::sync::Semaphore::new(10);
        /// ```
        pub const fn new(permits: usize) -> Self {
            Semaphore { raw: RawSemaphore::new(permits) }
        }
    }

    /// Number of permits available now.
    ///
    /// ```
    /// assert_eq!(indent::sync::Semaphore::new(2).available_permits(), 2);
    /// ```
    pub fn available_permits(&self) -> usize {
        self.raw.available()
    }

    /// Acquires a permit, blocking until there is one.
    ///
    /// # Errors
    /// If the semaphore is closed, before or during the wait.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(1);
    /// let permit = semaphore.acquire().unwrap();
    /// assert_eq!(semaphore.available_permits(), 0);
    /// # drop(permit);
    /// ```
    pub fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.acquire_many(1)
    }

    /// Acquires this many permits at once, blocking until there are enough.
    ///
    /// A request for more than the semaphore has waits until permits are
    /// [added](Self::add_permits).
    ///
    /// # Errors
    /// As of [`acquire`](Self::acquire).
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(5);
    /// assert_eq!(semaphore.acquire_many(4).unwrap().permits(), 4);
    /// ```
    pub fn acquire_many(&self, permits: usize) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.take(permits)?;
        Ok(Permit::new(self, permits))
    }

    /// Acquires a permit if there is one and there are no waiters.
    ///
    /// # Errors
    /// If there is none, or the semaphore is closed.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(1);
    /// let permit = semaphore.try_acquire().unwrap();
    /// assert!(semaphore.try_acquire().is_err());
    /// # drop(permit);
    /// ```
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Acquires this many permits if there are enough and there are no waiters.
    ///
    /// # Errors
    /// As of [`try_acquire`](Self::try_acquire).
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(2);
    /// assert!(semaphore.try_acquire_many(3).is_err());
    /// assert!(semaphore.try_acquire_many(2).is_ok());
    /// ```
    pub fn try_acquire_many(&self, permits: usize) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.raw.try_take(permits).map_err(in_time)?;
        Ok(Permit::new(self, permits))
    }

    /// Acquires a permit, blocking for at most `timeout`.
    ///
    /// # Errors
    /// If the time has passed, or the semaphore is closed.
    ///
    /// ```
    /// use indent::sync::{Semaphore, TryAcquireError};
    /// use std::time::Duration;
    ///
    /// let none = Semaphore::new(0).acquire_timeout(Duration::from_millis(1)).map(drop);
    /// assert_eq!(none, Err(TryAcquireError::NoPermits));
    /// ```
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Acquires this many permits, blocking for at most `timeout`.
    ///
    /// # Errors
    /// As of [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let semaphore = indent::sync::Semaphore::new(2);
    /// assert!(semaphore.acquire_many_timeout(3, Duration::from_millis(1)).is_err());
    /// assert_eq!(semaphore.available_permits(), 2);
    /// ```
    pub fn acquire_many_timeout(
        &self,
        permits: usize,
        timeout: Duration,
    ) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.take_in_time(permits, timeout)?;
        Ok(Permit::new(self, permits))
    }

    /// Acquires an owned permit, blocking until there is one.
    ///
    /// # Errors
    /// As of [`acquire`](Self::acquire).
    ///
    /// ```
    /// use indent::sync::Semaphore;
    /// use std::sync::Arc;
    ///
    /// let places = Arc::new(Semaphore::new(1));
    /// let place = places.clone().acquire_owned().unwrap();
    /// indent::spawn(move || drop(place)).join().unwrap();
    /// assert_eq!(places.available_permits(), 1);
    /// ```
    pub fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.acquire_many_owned(1)
    }

    /// Acquires this many owned permits, blocking until there are enough.
    ///
    /// # Errors
    /// As of [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use indent::sync::Semaphore;
    /// # use std::sync::Arc;
    /// assert_eq!(Arc::new(Semaphore::new(3)).acquire_many_owned(2).unwrap().permits(), 2);
    /// ```
    pub fn acquire_many_owned(
        self: Arc<Self>,
        permits: usize,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.take(permits)?;
        Ok(Permit::new(self, permits))
    }

    /// Acquires an owned permit if there is one and there are no waiters.
    ///
    /// # Errors
    /// As of [`try_acquire`](Self::try_acquire).
    ///
    /// ```
    /// # use indent::sync::Semaphore;
    /// # use std::sync::Arc;
    /// assert!(Arc::new(Semaphore::new(1)).try_acquire_owned().is_ok());
    /// ```
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// Acquires this many owned permits if there are enough and there are no waiters.
    ///
    /// # Errors
    /// As of [`try_acquire`](Self::try_acquire).
    ///
    /// ```
    /// # use indent::sync::Semaphore;
    /// # use std::sync::Arc;
    /// assert!(Arc::new(Semaphore::new(3)).try_acquire_many_owned(4).is_err());
    /// ```
    pub fn try_acquire_many_owned(
        self: Arc<Self>,
        permits: usize,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.raw.try_take(permits).map_err(in_time)?;
        Ok(Permit::new(self, permits))
    }

    /// Acquires an owned permit, blocking for at most `timeout`.
    ///
    /// # Errors
    /// As of [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// ```
    /// # use indent::sync::Semaphore;
    /// # use std::{sync::Arc, time::Duration};
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// assert!(semaphore.acquire_owned_timeout(Duration::from_millis(1)).is_ok());
    /// ```
    pub fn acquire_owned_timeout(
        self: Arc<Self>,
        timeout: Duration,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.acquire_many_owned_timeout(1, timeout)
    }

    /// Acquires this many owned permits, blocking for at most `timeout`.
    ///
    /// # Errors
    /// As of [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// ```
    /// # use indent::sync::Semaphore;
    /// # use std::{sync::Arc, time::Duration};
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// assert!(semaphore.acquire_many_owned_timeout(4, Duration::from_millis(1)).is_err());
    /// ```
    pub fn acquire_many_owned_timeout(
        self: Arc<Self>,
        permits: usize,
        timeout: Duration,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.take_in_time(permits, timeout)?;
        Ok(Permit::new(self, permits))
    }

    /// Adds permits to the semaphore. Never blocks.
    ///
    /// # Panics
    /// If there would be more than [`MAX_PERMITS`](Self::MAX_PERMITS); no permits are added then.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(0);
    /// semaphore.add_permits(2);
    /// assert_eq!(semaphore.available_permits(), 2);
    /// ```
    pub fn add_permits(&self, permits: usize) {
        assert!(
            self.raw.add(permits),
            "cannot add {permits} permits: a semaphore has at most {PERMIT_LIMIT}"
        );
    }

    /// Removes up to this many available permits; returns how many it removed.
    ///
    /// ```
    /// assert_eq!(indent::sync::Semaphore::new(2).forget_permits(3), 2);
    /// ```
    pub fn forget_permits(&self, permits: usize) -> usize {
        self.raw.forget(permits)
    }

    /// Closes the semaphore: waiters get an error, and so do later calls.
    ///
    /// Permits may still be returned.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(1);
    /// semaphore.close();
    /// assert!(semaphore.is_closed() && semaphore.acquire().is_err());
    /// ```
    pub fn close(&self) {
        self.raw.close();
    }

    /// Whether the semaphore is closed.
    ///
    /// ```
    /// assert!(!indent::sync::Semaphore::new(1).is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.raw.is_closed()
    }

    fn take(&self, permits: usize) -> Result<(), AcquireError> {
        park::charge_ahead();
        match self.raw.take(permits, || None) {
            Ok(()) => Ok(()),
            Err(Refused::Cancelled) => park::unwind_cancelled(),
            Err(_) => Err(AcquireError),
        }
    }

    fn take_in_time(&self, permits: usize, timeout: Duration) -> Result<(), TryAcquireError> {
        park::charge_ahead();
        let deadline = || Instant::now().checked_add(timeout);
        self.raw.take(permits, deadline).map_err(in_time)
    }
}

fn in_time(refused: Refused) -> TryAcquireError {
    match refused {
        Refused::Closed => TryAcquireError::Closed,
        Refused::TooFew | Refused::TimedOut => TryAcquireError::NoPermits,
        Refused::Cancelled => park::unwind_cancelled(),
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("available_permits", &self.available_permits())
            .field("is_closed", &self.is_closed())
            .finish()
    }
}

impl<S: Deref<Target = Semaphore>> Permit<S> {
    fn new(semaphore: S, permits: usize) -> Self {
        Permit { semaphore, permits }
    }

    /// Number of permits.
    ///
    /// ```
    /// assert_eq!(indent::sync::Semaphore::new(1).acquire().unwrap().permits(), 1);
    /// ```
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Drops the permits without returning them, so the semaphore has fewer.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(2);
    /// semaphore.acquire().unwrap().forget();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Splits off this many permits. Returns `None` if there are fewer.
    ///
    /// ```
    /// let semaphore = indent::sync::Semaphore::new(3);
    /// let mut three = semaphore.acquire_many(3).unwrap();
    /// let one = three.split(1).unwrap();
    /// assert_eq!((one.permits(), three.permits()), (1, 2));
    /// ```
    pub fn split(&mut self, permits: usize) -> Option<Self>
    where
        S: Clone,
    {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Permit::new(self.semaphore.clone(), permits))
    }
}

impl<S: Deref<Target = Semaphore>> Drop for Permit<S> {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.semaphore.raw.give(self.permits);
        }
    }
}

impl<S: Deref<Target = Semaphore>> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.permits)
    }
}
