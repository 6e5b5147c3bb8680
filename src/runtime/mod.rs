#![expect(
    unsafe_code,
    reason = "the closure of block_on may borrow from its caller"
)]
//! Starting, using and shutting down a runtime.
//!
//! A [`Runtime`] owns workers, their threads and the fibers on them. [`Builder`] configures and
//! starts one; the functions of this module and [`spawn`](crate::spawn) start a default runtime
//! when they are first called on a plain thread.
//!
//! # fork
//!
//! `fork` copies one thread. In the child of a process that has started a runtime there is no
//! runtime, and none can be started, because the missing threads may have left locks held
//! ([`StartError::Forked`]). The thread that forked, even if it ran a fiber, is a plain thread in
//! the child:
//!
//! - Blocking operations ([`park`], [`time`](crate::time)) block the thread; [`blocking`] and
//!   [`compute`] call their closure in place. A time limit set before the fork has no effect.
//! - A spawn fails with [`SpawnError::Forked`](crate::SpawnError::Forked). Functions that cannot
//!   return an error ([`spawn`](crate::spawn), [`block_on`], [`Handle::current`]) panic.
//! - Handles of the parent's fibers show the state at the fork. Fibers that had finished can be
//!   joined; for others a join is an error
//!   ([`JoinError::is_forked`](crate::JoinError::is_forked)). Unparking them does nothing.
//! - Dropping a [`Runtime`], a shutdown and [`Runtime::wait_idle`] return at once and do nothing.
//! - A fork inside a closure that a fiber, [`blocking`] or [`compute`] runs: when the closure
//!   returns in the child there is nothing to return to, so the child ends with status 70 and a
//!   line on standard error.
//!
//! So let the child `exec` or `_exit`, as `std::process::Command` does, also with `pre_exec`. A
//! program that forks and continues (a daemon) forks before it starts a runtime. A child made by a
//! bare system call (`clone`, `_Fork`) cannot be detected: it may do nothing but `exec` or `_exit`.

use std::fmt;
use std::panic::{Location, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod builder;
mod cgroup;
mod config;
mod cpus;
mod harmless;
mod histogram;
mod metrics;
mod no_preempt;
mod preemptible;
pub(crate) mod reports;
mod retire;
mod survey;
mod threads;

pub use builder::Builder;
pub use config::{Io, Rounding};
pub use histogram::Histogram;
pub use metrics::{IoDriver, Metrics, WorkerMetrics};

pub use self::no_preempt::no_preempt;
pub use self::preemptible::preemptible;
pub use self::reports::{BindingCause, BindingRow, Bindings};
pub use self::retire::retire_thread;
pub use self::threads::ThreadLocals;
pub use crate::blocking::blocking;
pub use crate::compute::compute;
pub use crate::fiber::stack::StackGuard;
pub use crate::sched::diag::overrun::report::{Overrun, OverrunAction, Waited};
pub use crate::sched::diag::overrun::summary::{OverrunRow, Overruns};
pub use crate::sched::mobility::survey::Survey;
pub use crate::sched::workers::shutdown::{Abandoned, ShutdownReport};
pub use indent_sysmon::symbols::CodeLocation;

use crate::error::{AbortOnDrop, NoRuntime, StartError};
use crate::park;
use crate::sched::Shared;
use crate::sched::block::suspend;
use crate::sched::mobility::verdict;
use crate::sched::workers::context;
use crate::sched::workers::spawn::{self, Limit};
use crate::sys::fork;
use crate::task::{self, Fiber, JoinHandle, Phase};

/// A running runtime: workers, their threads and the fibers on them.
///
/// Dropping it shuts it down and blocks until its fibers have finished, but at most for
/// [`Builder::shutdown_timeout`], by default five seconds. It corresponds to
/// `tokio::runtime::Runtime`.
///
/// It may be dropped on one of its own threads outside of fibers and closures: in the hook
/// [`Builder::on_thread_stop`], or in the destructor of a thread-local. The shutdown does not wait
/// for that thread, which ends afterwards. A drop on one of its own fibers panics.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(2).build()?;
/// let sum: u32 = rt.block_on(|| {
///     let parts: Vec<_> = (0..4).map(|i| indent::spawn(move || i * 10)).collect();
///     parts.into_iter().map(|part| part.join().unwrap()).sum()
/// });
/// assert_eq!(sum, 60);
/// # Ok::<(), indent::StartError>(())
/// ```
pub struct Runtime {
    handle: Handle,
    /// Whether the shutdown is done.
    shut_down: bool,
}

static DEFAULT: OnceLock<Runtime> = OnceLock::new();

impl Runtime {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Runtime {
            handle: Handle { shared },
            shut_down: false,
        }
    }

    /// Runs a closure on a fiber of this runtime and waits for it; see [`Handle::block_on`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let text = String::from("borrowed");
    /// assert_eq!(rt.block_on(|| text.len()), 8);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    #[track_caller]
    pub fn block_on<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        self.handle.block_on(f)
    }

    /// Starts a fiber on this runtime; see [`spawn`](crate::spawn).
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// assert_eq!(rt.spawn(|| 5).join().unwrap(), 5);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.handle.spawn(f)
    }

    /// Returns a handle, which can be cloned and does not keep the runtime running.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let handle = rt.handle().clone();
    /// drop(rt);
    /// assert!(handle.spawn(|| ()).join().unwrap_err().is_cancelled());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Blocks until all fibers have finished, without cancelling any.
    ///
    /// In the child of a [fork](self#fork) it returns at once.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// for _ in 0..10 {
    ///     drop(rt.spawn(indent::task::yield_now));
    /// }
    /// rt.wait_idle();
    /// assert_eq!(rt.metrics().fibers_alive, 0);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    ///
    /// # Panics
    /// If it is called on a fiber of this runtime, which would wait for itself.
    pub fn wait_idle(&self) {
        self.handle.refuse_own_fiber("wait_idle");
        self.handle
            .shared
            .wait_until(None, |shared| shared.alive() == 0);
    }

    /// Returns the current metrics of the runtime.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.block_on(|| (0..3).for_each(|_| drop(indent::spawn(|| ()))));
    /// assert_eq!(rt.metrics().fibers_spawned_total, 4, "with the one that spawned them");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        self.handle.metrics()
    }

    /// Cancels every fiber, waits for them at most `timeout`, and stops the threads.
    ///
    /// Fibers that have not started are dropped. Parked fibers unwind; others unwind at their next
    /// blocking call. A fiber that does not end in time (a loop without blocking calls, a call that
    /// blocks the thread) is abandoned and listed in the report. In the child of a
    /// [fork](self#fork) this does nothing.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let parked = rt.spawn(indent::park::park);
    /// let report = rt.shutdown_timeout(Duration::from_secs(10));
    /// assert!(report.is_clean(), "{report}");
    /// assert!(parked.join().unwrap_err().is_cancelled());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    ///
    /// # Panics
    /// If it is called on a fiber of this runtime, which would wait for itself.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> ShutdownReport {
        self.handle.refuse_own_fiber("shutdown_timeout");
        self.shut_down = true;
        self.handle.shared.shut_down(timeout)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.shut_down {
            return;
        }
        if self.handle.is_inside() && std::thread::panicking() {
            return; // a second panic would abort; the runtime is left running
        }
        self.handle.refuse_own_fiber("dropping a Runtime");
        let shared = &self.handle.shared;
        let report = shared.shut_down(shared.settings.shutdown_timeout);
        if !report.is_clean() {
            crate::sys::stderr::print(&format!("indent: {report}\n"));
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Runtime", f)
    }
}

/// A reference to a runtime, cheap to clone.
///
/// It does not keep the runtime running: after a shutdown it refuses spawns. It corresponds to
/// `tokio::runtime::Handle`.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// let handle = rt.handle().clone();
/// let outside = std::thread::spawn(move || handle.block_on(|| 3));
/// assert_eq!(outside.join().unwrap(), 3);
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Returns the runtime of the calling fiber, or else the default runtime.
    ///
    /// Inside [`blocking`] and [`compute`] calls that is the runtime of the fiber that makes the
    /// call. On a plain thread it is the default runtime, which is started if necessary.
    ///
    /// ```
    /// let one = indent::runtime::Handle::current().spawn(|| 1);
    /// assert_eq!(one.join().unwrap(), 1);
    /// ```
    ///
    /// # Panics
    /// If the default runtime cannot be started, as in the child of a [fork](self#fork).
    pub fn current() -> Handle {
        Handle {
            shared: with_current_or_default(Shared::arc)
                .unwrap_or_else(|InChild| panic!("no runtime: {}", StartError::Forked)),
        }
    }

    /// Returns the current runtime as [`current`](Self::current) does, but starts none.
    ///
    /// # Errors
    /// On a plain thread, if the default runtime is not started.
    ///
    /// ```
    /// use indent::runtime::{Builder, Handle};
    ///
    /// assert!(Handle::try_current().is_err());
    /// let rt = Builder::new().workers(1).build()?;
    /// assert!(rt.block_on(|| Handle::try_current().is_ok()));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn try_current() -> Result<Handle, NoRuntime> {
        if fork::in_child() {
            return Err(NoRuntime(()));
        }
        let here = spawn::with_current(Shared::arc).ok();
        let shared = here.or_else(|| DEFAULT.get().map(|rt| rt.handle.shared.clone()));
        shared.map(|shared| Handle { shared }).ok_or(NoRuntime(()))
    }

    /// Starts a fiber on this runtime; see [`spawn`](crate::spawn).
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let handle = rt.handle().clone();
    /// let sum = rt.block_on(|| handle.spawn(|| 1).join().unwrap() + 1);
    /// assert_eq!(sum, 2);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let location = Location::caller();
        // SAFETY: `'static`: the closure borrows nothing.
        unsafe { task::Builder::new().spawn_in(&self.shared, location, f) }
    }

    /// Runs a blocking closure on a fiber of this runtime; see [`spawn_blocking`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let read = rt.handle().spawn_blocking(|| std::fs::read_to_string("Cargo.toml"));
    /// assert!(read.join().unwrap().is_ok());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    #[track_caller]
    pub fn spawn_blocking<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn(|| blocking(f))
    }

    /// Runs a closure on a fiber of this runtime and waits for it.
    ///
    /// The caller does not return before the closure has, so the closure may borrow from it. On a
    /// fiber of this runtime the closure is called in place. On a fiber of another runtime the
    /// caller parks and cannot be cancelled meanwhile; a plain thread blocks.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let mut words = vec!["borrowed"];
    /// rt.block_on(|| words.push("and changed"));
    /// assert_eq!(words.len(), 2);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    ///
    /// The closure and its result cross threads, so both must be `Send`:
    ///
    /// ```compile_fail
    /// let rt = indent::runtime::Builder::new().workers(1).build().unwrap();
    /// let local = std::rc::Rc::new(1);
    /// rt.block_on(|| println!("{local}"));
    /// ```
    ///
    /// # Panics
    /// If the runtime is shut down before the closure returns, and in the child of a
    /// [fork](self#fork). A panic of the closure is resumed in the caller.
    #[track_caller]
    pub fn block_on<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        if self.is_own_fiber() {
            return f();
        }
        let location = Location::caller();
        // SAFETY: this function waits until the fiber has finished before it returns: the wait of
        // `join_uncancelled` cannot be cancelled, and if it unwound all the same, the process would
        // abort.
        let fiber =
            unsafe { task::Builder::new().try_spawn_in(&self.shared, location, Limit::None, f) };
        let fiber = match fiber {
            Ok(fiber) => fiber,
            Err((error, _f)) => panic!("block_on at {location}: {error}"),
        };
        let bomb = AbortOnDrop("waiting for a closure that borrows from the caller");
        let result = fiber.join_uncancelled();
        std::mem::forget(bomb);
        match result {
            Ok(value) => value,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(error) => panic!("block_on at {location}: {error}{}", error.shutdown_note()),
        }
    }

    /// Returns the current metrics of the runtime.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.block_on(|| ());
    /// assert_eq!(rt.handle().metrics().fibers_spawned_total, 1);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.shared)
    }

    /// Lists the fibers of this runtime that have not finished.
    ///
    /// No fiber is stopped for it: each appears as it was at the moment it was read.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let parked = indent::task::Builder::new().name("sleeper");
    /// let fiber = rt.block_on(|| parked.spawn(indent::park::park));
    /// let names: Vec<_> = rt.handle().fibers().iter().map(|f| f.name().map(str::to_owned)).collect();
    /// assert_eq!(names, [Some("sleeper".to_owned())]);
    /// # fiber.unparker().unpark();
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn fibers(&self) -> Vec<Fiber> {
        let mut fibers = Vec::new();
        self.shared.each_fiber(|fiber| fibers.push(Fiber(fiber)));
        fibers.retain(|fiber| fiber.phase() != Phase::Done); // it may still be on its stack
        fibers
    }

    /// Describes every fiber in plain text: its state, what it waits for, and what binds it.
    ///
    /// There is one line for the runtime and one for each fiber, at most a thousand. Fibers run
    /// meanwhile, so each line is true of its own moment. The call is slow, since functions are
    /// looked up by name. It corresponds to the stack dump of a Go program.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let parked = rt.spawn(indent::park::park);
    /// while !rt.handle().dump().contains("parked") {
    ///     std::thread::yield_now();
    /// }
    /// # parked.unparker().unpark();
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn dump(&self) -> String {
        self.shared.dump()
    }

    /// Takes worker `index` from its carrier and gives it to another; true if it did. For tests.
    ///
    /// It is what the monitor does for a fiber that blocks its thread. A worker whose carrier is
    /// inside runtime code is not taken, nor the caller's own.
    #[doc(hidden)]
    pub fn handoff(&self, index: usize) -> bool {
        let _guard = context::disable_preempt();
        self.shared
            .workers
            .get(index)
            .is_some_and(|worker| self.shared.take_and_place(worker))
    }

    /// Makes all fibers of the process movable, whatever is on their stacks. For tests that must be
    /// able to fail.
    ///
    /// # Safety
    /// No fiber of the process holds anything across a park that belongs to its thread.
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "lets fibers move that must not")]
    pub unsafe fn trust_everything(&self, trust: bool) {
        verdict::trust_everything(trust);
    }

    /// Binds all fibers of the process to their threads, whatever is on their stacks. For tests of
    /// many threads.
    #[doc(hidden)]
    pub fn bind_everything(&self, bind: bool) {
        verdict::bind_everything(bind);
    }

    /// Changes the number of workers, as a change of the number of CPUs does. For tests.
    ///
    /// The number is limited to as many workers as the runtime has room for.
    #[doc(hidden)]
    pub fn resize(&self, workers: usize) {
        self.shared.resize(workers);
    }

    /// Whether the caller is one of its fibers.
    fn is_own_fiber(&self) -> bool {
        park::current_fiber().is_some() && self.is_inside()
    }

    /// Whether the caller is one of its fibers, or a thread that runs closures for them and is not
    /// about to end.
    fn is_inside(&self) -> bool {
        let own = |here: &Shared| std::ptr::eq(here, &*self.shared);
        (park::current_fiber().is_some() || context::serves())
            && spawn::with_current(own).unwrap_or(false)
    }

    #[track_caller]
    fn refuse_own_fiber(&self, what: &str) {
        assert!(
            !self.is_inside(),
            "{what} on a fiber of the same runtime would wait for itself; \
             do it on a plain thread or on a fiber of another runtime"
        );
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("workers", &self.shared.count.allowed())
            .field("fibers_alive", &self.shared.alive())
            .finish()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Handle", f)
    }
}

/// The process was forked from one with a runtime, so it has none.
pub(crate) struct InChild;

/// Calls `f` with the runtime of the calling fiber, or with the default one.
#[inline]
pub(crate) fn with_current_or_default<R>(f: impl FnOnce(&Shared) -> R) -> Result<R, InChild> {
    match spawn::with_current(f) {
        Ok(result) => Ok(result),
        Err(_) if fork::in_child() => Err(InChild), // another thread may have been starting it
        Err(f) => Ok(f(&default().handle.shared)),
    }
}

#[cold]
fn default() -> &'static Runtime {
    DEFAULT.get_or_init(|| match Builder::new().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("the default runtime cannot be started: {error}"),
    })
}

/// Runs a closure on a fiber of the default runtime and waits for it; on a fiber, calls it.
///
/// It is [`Handle::block_on`] of the [current](Handle::current) runtime. A program calls it once in
/// `main`.
///
/// ```
/// assert_eq!(indent::runtime::block_on(|| indent::spawn(|| 2).join().unwrap()), 2);
/// ```
#[track_caller]
pub fn block_on<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    Handle::current().block_on(f)
}

/// Starts a fiber that runs the closure by [`blocking`].
///
/// The runtime is the one on which [`spawn`](crate::spawn) would start the fiber. The fiber can be
/// joined and is listed like any other. If the runtime is shut down before it has started, the
/// closure does not run. It corresponds to `tokio::task::spawn_blocking`.
///
/// ```
/// use std::time::Duration;
///
/// let slow = indent::runtime::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
/// slow.join().unwrap();
/// ```
#[track_caller]
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    crate::task::spawn(|| blocking(f))
}

/// Yields and gives the worker to another carrier. For tests.
///
/// The caller continues when a worker comes back to its carrier.
#[doc(hidden)]
pub fn handoff() {
    suspend::hand_over();
}
