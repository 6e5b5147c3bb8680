#![expect(
    unsafe_code,
    reason = "passes closures to the scheduler, whose spawn is unsafe"
)]
//! The builder of a fiber: name, stack size, worker.

use std::panic::Location;
use std::ptr;

use crate::error::SpawnError;
use crate::fiber::record::{ANY_WORKER, Name, NewFiber};
use crate::fiber::stack;
use crate::runtime::{self, InChild};
use crate::sched::Shared;
use crate::sched::workers::spawn::{self, Limit, SpawnRequest};
use crate::task::JoinHandle;

/// Configures and starts a fiber.
///
/// It corresponds to [`std::thread::Builder`].
///
/// ```
/// let fiber = indent::task::Builder::new()
///     .name("parser")
///     .stack_size(1024 * 1024)
///     .spawn(|| "deep enough");
/// assert_eq!(fiber.join().unwrap(), "deep enough");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it spawns"]
pub struct Builder {
    name: Option<String>,
    stack_size: Option<usize>,
    worker: Option<usize>,
    preferred: Option<usize>,
    pinned: bool,
}

impl Builder {
    /// Creates a builder of a fiber like those of [`spawn`](crate::spawn).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a name, which messages, lists and dumps show.
    ///
    /// ```
    /// let fiber = indent::task::Builder::new()
    ///     .name("greeter")
    ///     .spawn(|| indent::task::current().unwrap().name() == Some("greeter"));
    /// assert!(fiber.join().unwrap());
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the stack size in bytes, up to 1 GiB; rounded up to a power of two.
    ///
    /// Memory is used only for the part of the stack that the fiber reaches.
    ///
    /// ```
    /// fn depth(n: u64) -> u64 {
    ///     if n == 0 { 0 } else { std::hint::black_box(1) + depth(n - 1) }
    /// }
    /// let deep = indent::task::Builder::new().stack_size(64 << 20).spawn(|| depth(100_000));
    /// assert_eq!(deep.join().unwrap(), 100_000);
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Makes the fiber start on this worker, even if it is busy and others are not.
    ///
    /// If the worker is out of service, because there are fewer CPUs now, the fiber starts on any
    /// other.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).build()?;
    /// let fibers = [0, 1].map(|i| rt.block_on(|| indent::task::Builder::new().worker(i).spawn(|| ())));
    /// fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    /// assert!(rt.metrics().workers.iter().all(|worker| worker.fibers_started_total >= 1));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn worker(mut self, index: usize) -> Self {
        self.worker = Some(index);
        self
    }

    /// Makes the fiber start on this worker if it is idle, otherwise on any.
    ///
    /// ```
    /// let fiber = indent::task::Builder::new().preferred_worker(0).spawn(|| "somewhere");
    /// assert_eq!(fiber.join().unwrap(), "somewhere");
    /// ```
    pub fn preferred_worker(mut self, index: usize) -> Self {
        self.preferred = Some(index);
        self
    }

    /// Pins the fiber to the thread it starts on; see [`task::pin`](crate::task::pin).
    ///
    /// ```
    /// use std::thread;
    ///
    /// let fiber = indent::task::Builder::new().pinned().spawn(|| {
    ///     let here = thread::current().id();
    ///     indent::task::yield_now();
    ///     assert_eq!(thread::current().id(), here);
    /// });
    /// fiber.join().unwrap();
    /// ```
    pub fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// Starts the fiber, on the runtime that [`spawn`](crate::spawn) would use.
    ///
    /// ```
    /// let fiber = indent::task::Builder::new().spawn(|| 1);
    /// assert_eq!(fiber.join().unwrap(), 1);
    /// ```
    ///
    /// # Panics
    /// If the worker does not exist or the stack size is not allowed, and in the child of a
    /// [fork](crate::runtime#fork). If the runtime is shutting down it does not panic: a join then
    /// returns the error that the fiber was cancelled.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let location = Location::caller();
        let spawned = runtime::with_current_or_default(|shared| {
            // SAFETY: `'static`: the closure borrows nothing.
            unsafe { self.spawn_in(shared, location, f) }
        });
        spawned.unwrap_or_else(|InChild| panic!("spawn at {location}: {}", SpawnError::Forked))
    }

    /// Starts the fiber, or returns an error instead of panicking.
    ///
    /// # Errors
    /// If there are too many fibers, if the runtime is shutting down, if the worker does not exist,
    /// if the stack size is not allowed, and in the child of a [fork](crate::runtime#fork).
    ///
    /// # Examples
    /// ```
    /// let fiber = indent::task::Builder::new().try_spawn(|| 1)?;
    /// assert_eq!(fiber.join().unwrap(), 1);
    /// # Ok::<(), indent::SpawnError>(())
    /// ```
    #[track_caller]
    pub fn try_spawn<F, T>(self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let location = Location::caller();
        let spawned = runtime::with_current_or_default(|shared| {
            // SAFETY: `'static`: the closure borrows nothing.
            let spawned = unsafe { self.try_spawn_in(shared, location, Limit::Stacks, f) };
            spawned.map_err(|(error, _)| error)
        });
        spawned.unwrap_or(Err(SpawnError::Forked))
    }

    #[inline]
    fn request(
        self,
        shared: &Shared,
        at: &'static Location<'static>,
    ) -> Result<SpawnRequest, SpawnError> {
        let stack_class = match self.stack_size {
            None => shared.settings.stack_class,
            Some(asked) => stack::class_for(asked).ok_or(SpawnError::BadStackSize {
                asked,
                largest: stack::LARGEST_STACK,
            })?,
        };
        let worker = match self.worker {
            None => ANY_WORKER,
            Some(index) => u16::try_from(index).unwrap_or(ANY_WORKER - 1),
        };
        let birth = NewFiber {
            location: at,
            name: boxed(self.name),
            worker,
            stack_class,
            pinned: self.pinned,
            runtime: ptr::null_mut(),
        };
        Ok(SpawnRequest {
            birth,
            preferred: self.preferred,
        })
    }

    /// # Safety
    /// Everything that `f` borrows outlives the fiber.
    pub(crate) unsafe fn try_spawn_in<F, T>(
        self,
        shared: &Shared,
        location: &'static Location<'static>,
        limit: Limit,
        f: F,
    ) -> Result<JoinHandle<T>, (SpawnError, F)>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let request = match self.request(shared, location) {
            Ok(request) => request,
            Err(error) => return Err((error, f)),
        };
        if let Err(error) = shared.admit(&request, limit) {
            return Err((error, f));
        }
        // SAFETY: by the caller's promise.
        match unsafe { shared.spawn(request, f) } {
            Ok(fiber) => Ok(JoinHandle::new(fiber)),
            Err(f) => Err((spawn::refusal(), f)),
        }
    }

    /// # Safety
    /// Everything that `f` borrows outlives the fiber.
    pub(crate) unsafe fn spawn_in<F, T>(
        self,
        shared: &Shared,
        location: &'static Location<'static>,
        f: F,
    ) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let name = self.name.clone();
        // SAFETY: by the caller's promise.
        match unsafe { self.try_spawn_in(shared, location, Limit::None, f) } {
            Ok(handle) => handle,
            Err((SpawnError::ShuttingDown, f)) => {
                let birth = NewFiber {
                    location,
                    name: boxed(name),
                    worker: ANY_WORKER,
                    stack_class: shared.settings.stack_class,
                    pinned: false,
                    runtime: ptr::null_mut(),
                };
                JoinHandle::new(spawn::refused(birth, f))
            }
            Err((error, _)) => panic!("spawn at {location}: {error}"),
        }
    }
}

/// Converts a name to the form in which a record stores it.
fn boxed(name: Option<String>) -> Option<Name> {
    name.map(|name| Box::new(name.into_boxed_str()))
}
