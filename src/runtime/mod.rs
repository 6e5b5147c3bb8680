#![expect(
    unsafe_code,
    reason = "block_on lends its closure to a fiber; see there"
)]
//! Starting, using and ending a runtime.
//!
//! # fork
//!
//! `fork` copies one thread. In the child of a process that has started a runtime there is none, and none
//! can be started, for the threads that are missing may have left things locked
//! ([`StartError::Forked`]). Whoever forked, a fiber too, is a plain thread in
//! the child:
//!
//! - What blocks ([`park`], [`time`](crate::time)) blocks the thread; [`blocking`] and
//!   [`compute`] simply call. A time limit that was set before the fork is not heard.
//! - A spawn is refused ([`SpawnError::Forked`](crate::SpawnError::Forked)); where it cannot say so
//!   ([`spawn`](crate::spawn), [`block_on`], [`Handle::current`]) it panics.
//! - Fibers of the parent can be looked at as they were, and joined if they were over; else a join is an
//!   error ([`JoinError::is_forked`](crate::JoinError::is_forked)). Unparking them does nothing.
//! - Dropping a [`Runtime`], a shutdown and [`Runtime::wait_idle`] return at once and touch nothing.
//! - When a closure returns there that a fiber, [`blocking`] or [`compute`] runs, there is nothing to go
//!   back to: the child ends with status 70 and a line on standard error.
//!
//! So let the child `exec` or `_exit`; `std::process::Command` does, with `pre_exec`, too. A program that
//! forks to go on (a daemon) does so before it starts a runtime. A child that was made by a bare system
//! call (`clone`, `_Fork`) is not told apart from its parent: it may do nothing but `exec` or `_exit`.

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
pub use crate::sched::overrun::report::{Overrun, OverrunAction, Waited};
pub use crate::sched::overrun::summary::{OverrunRow, Overruns};
pub use crate::sched::shutdown::{Abandoned, ShutdownReport};
pub use crate::sched::survey::Survey;
pub use indent_sysmon::symbols::CodeLocation;

use crate::base::fork;
use crate::error::{AbortOnDrop, NoRuntime, StartError};
use crate::park;
use crate::sched::spawn::{self, Limit};
use crate::sched::{Shared, block, context, mobility};
use crate::task::{self, Fiber, JoinHandle, Phase};

/// Workers, their threads and the fibers on them. Dropping it shuts it down, waiting at most as
/// long as [`Builder::shutdown_timeout`] says, by default five seconds.
///
/// It may be dropped on one of its own threads outside fibers and closures: in the hook
/// [`Builder::on_thread_stop`], or in the destructor of a thread-local. That thread is then not
/// waited for; it ends afterwards. On a fiber of its own a drop panics.
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
    /// Done already.
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

    /// Runs the closure on a fiber of this runtime and waits for it; see [`Handle::block_on`].
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

    /// Starts a fiber on this runtime.
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

    /// Access for others: it does not keep the runtime running.
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

    /// Waits until no fiber is left, without asking any to end. In the child of a [fork](self#fork) it
    /// does not wait.
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
    /// On a fiber of this runtime, which would wait for itself.
    pub fn wait_idle(&self) {
        self.handle.refuse_own_fiber("wait_idle");
        self.handle
            .shared
            .wait_until(None, |shared| shared.alive() == 0);
    }

    /// What the runtime has done so far.
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

    /// Asks every fiber to end, waits for them at most this long, and stops the threads.
    ///
    /// Fibers that have not started are dropped. Parked ones unwind; others do at their next
    /// blocking call. What does not end in time (a loop without blocking calls, a call that blocks
    /// the thread) is left alone and listed in the report. In the child of a [fork](self#fork) nothing
    /// is done.
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
    /// On a fiber of this runtime, which would wait for itself.
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
            crate::base::os::complain(&format!("indent: {report}\n"));
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt_as("Runtime", f)
    }
}

/// Access to a runtime; clones are cheap. It does not keep the runtime running: after a shutdown
/// spawns are refused.
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
    /// The runtime of the calling fiber, also inside its [`blocking`] and [`compute`] calls; on a plain
    /// thread the default one, started if need be.
    ///
    /// ```
    /// let one = indent::runtime::Handle::current().spawn(|| 1);
    /// assert_eq!(one.join().unwrap(), 1);
    /// ```
    ///
    /// # Panics
    /// If the default runtime cannot be started, as in the child of a fork.
    pub fn current() -> Handle {
        Handle {
            shared: with_current_or_default(Shared::arc)
                .unwrap_or_else(|InChild| panic!("no runtime: {}", StartError::Forked)),
        }
    }

    /// As [`current`](Self::current), but starts nothing.
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

    /// Starts a fiber on this runtime.
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

    /// As [`spawn_blocking`], on this runtime.
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

    /// Runs the closure on a fiber of this runtime and waits for it. The closure may borrow from
    /// the caller, who does not leave before it is done. A panic in it goes on in the caller.
    ///
    /// On a fiber of this same runtime the closure is simply called. On a fiber of another runtime
    /// the caller parks; it cannot be cancelled meanwhile.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let mut words = vec!["borrowed"];
    /// rt.block_on(|| words.push("and changed"));
    /// assert_eq!(words.len(), 2);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    ///
    /// What it borrows and returns crosses threads:
    ///
    /// ```compile_fail
    /// let rt = indent::runtime::Builder::new().workers(1).build().unwrap();
    /// let local = std::rc::Rc::new(1);
    /// rt.block_on(|| println!("{local}"));
    /// ```
    ///
    /// # Panics
    /// If the runtime is shut down before the closure is done, and in the child of a [fork](self#fork).
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
        // SAFETY: we wait for the fiber to be over before we return: `join_uncancelled` hears no request to
        // end, and if it unwound all the same, the process would end.
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

    /// What the runtime has done so far.
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

    /// All fibers of this runtime that are not over. Stops nobody: each is as it was when it was
    /// looked at.
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
        fibers.retain(|fiber| fiber.phase() != Phase::Done); // perhaps not off its stack yet
        fibers
    }

    /// Says in plain text what every fiber of the runtime does, what it waits for, and what binds
    /// it to its thread.
    ///
    /// One line for the runtime and one for each fiber, at most a thousand. Each line is true of
    /// some moment: fibers run meanwhile. Takes its time, since functions are looked up by name.
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

    /// Takes worker `index` from the carrier that holds it, if that one is outside runtime code,
    /// and gives it to another carrier; true if it did. For tests: what a watching thread will do
    /// for a fiber that blocks its thread. Never the caller's own.
    #[doc(hidden)]
    pub fn handoff(&self, index: usize) -> bool {
        let _guard = context::disable_preempt();
        self.shared
            .workers
            .get(index)
            .is_some_and(|worker| self.shared.take_and_place(worker))
    }

    /// Lets all fibers of the process change threads, whatever is on their stacks. For tests that
    /// must be able to fail.
    ///
    /// # Safety
    /// No fiber of the process holds anything over a park that belongs to its thread.
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "lets fibers move that must not")]
    pub unsafe fn trust_everything(&self, trust: bool) {
        mobility::trust_everything(trust);
    }

    /// Binds all fibers of the process to their threads, whatever is on their stacks. For tests of
    /// many threads.
    #[doc(hidden)]
    pub fn bind_everything(&self, bind: bool) {
        mobility::bind_everything(bind);
    }

    /// Changes the number of workers, up to as many as the runtime has room for. For tests: what
    /// happens when the number of CPUs changes.
    #[doc(hidden)]
    pub fn resize(&self, workers: usize) {
        self.shared.resize(workers);
    }

    /// On one of its fibers.
    fn is_own_fiber(&self) -> bool {
        park::current_fiber().is_some() && self.is_inside()
    }

    /// On one of its fibers, or on a thread that runs closures for them and has not come to its
    /// end.
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

/// There is no runtime: the process was forked from one that has it.
pub(crate) struct InChild;

/// Calls `f` with the runtime of the calling fiber, or with the default one.
#[inline]
pub(crate) fn with_current_or_default<R>(f: impl FnOnce(&Shared) -> R) -> Result<R, InChild> {
    match spawn::with_current(f) {
        Ok(result) => Ok(result),
        Err(_) if fork::in_child() => Err(InChild), // somebody may have been about to start it
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

/// Runs the closure on the default runtime, or, on a fiber, simply calls it.
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

/// Starts a fiber that runs the closure by [`blocking`], on the runtime where
/// [`spawn`](crate::spawn) would start it.
///
/// The fiber can be joined, is listed like any other, and if the runtime is shut down before it
/// has started, the closure does not run.
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

/// Yields, and lets the worker go on with another thread; the caller goes on when a worker is
/// brought back to its own. For tests of the machinery.
#[doc(hidden)]
pub fn handoff() {
    block::hand_over();
}
