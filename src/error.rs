//! Errors, one small type per operation.
//!
//! A message says what was being done, what went wrong, with which value, and what to do.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::sys::descriptor::is_shortage;
use crate::sys::{fork, signal_names, stderr};

/// Why a runtime could not be started.
///
/// ```
/// let refused = indent::runtime::Builder::new().workers(0).build().unwrap_err();
/// assert_eq!(refused.to_string(), "workers = 0: allowed is 1 to 1024");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting has a value that cannot be used.
    BadSetting {
        /// The source of the value: a method of [`Builder`](crate::runtime::Builder) or an
        /// environment variable.
        setting: &'static str,
        /// The value that was set; bytes of a variable that are not UTF-8 are replaced.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// The operating system refused a thread.
    SpawnCarrier {
        /// How many threads the runtime had started before.
        started: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The handler that reports stack overflows could not be installed.
    OverflowHandler {
        /// The number of the signal.
        signal: i32,
        /// The error of the system.
        source: io::Error,
    },
    /// The handler that preempts fibers could not be installed.
    PreemptHandler {
        /// The number of the signal ([`preempt_signal`](crate::runtime::Builder::preempt_signal)).
        signal: i32,
        /// The error of the system.
        source: io::Error,
    },
    /// [io_uring](crate::runtime::Io::Uring) was selected, and it cannot be used here.
    NoUring {
        /// The source of the setting: a method of [`Builder`](crate::runtime::Builder) or an
        /// environment variable.
        setting: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// This process was forked from one that had started a runtime.
    Forked,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::BadSetting {
                setting,
                value,
                allowed,
            } => {
                let value = value.escape_debug(); // a line end, say, that came with a variable
                write!(f, "{setting} = {value}: allowed is {allowed}")
            }
            StartError::SpawnCarrier { started, source } => write!(
                f,
                "the system refused thread {}: {source}; raise the limit on threads \
                 (ulimit -u, pids.max) or ask for fewer workers",
                started + 1
            ),
            StartError::OverflowHandler { signal, source } => write!(
                f,
                "the handler for stack overflows ({}) cannot be installed: {source}; allow the \
                 system call rt_sigaction (the container's seccomp profile)",
                signal_names::describe(*signal)
            ),
            StartError::PreemptHandler { signal, source } => write!(
                f,
                "the handler for preemption ({}) cannot be installed: {source}; choose another \
                 signal (Builder::preempt_signal, INDENT_PREEMPT_SIGNAL) or switch preemption off \
                 (Builder::preempt, INDENT_PREEMPT=off)",
                signal_names::describe(*signal)
            ),
            StartError::NoUring { setting, source } => write!(
                f,
                "{setting} = uring: io_uring cannot be used here: {source}; {}, or set {setting} to auto or \
                 epoll",
                uring_remedy(source)
            ),
            StartError::Forked => write!(
                f,
                "this process was forked from one that had started a runtime, whose threads are \
                 not here and may have left things locked; exec, or fork before the first runtime \
                 is started"
            ),
        }
    }
}

/// The remedy for an error of io_uring.
fn uring_remedy(refusal: &io::Error) -> &'static str {
    match refusal.kind() {
        io::ErrorKind::PermissionDenied => {
            "allow it (the sysctl kernel.io_uring_disabled, the container's seccomp profile)"
        }
        io::ErrorKind::OutOfMemory => "raise the limit on locked memory (ulimit -l)",
        _ if is_shortage(refusal) => "raise the limit on descriptors (ulimit -n)",
        io::ErrorKind::WouldBlock => "raise the limit on threads (ulimit -u, pids.max)",
        _ => "use a kernel that has it (Linux 5.10 or later)",
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StartError::BadSetting { .. } | StartError::Forked => None,
            StartError::SpawnCarrier { source, .. }
            | StartError::NoUring { source, .. }
            | StartError::OverflowHandler { source, .. }
            | StartError::PreemptHandler { source, .. } => Some(source),
        }
    }
}

/// Why [`try_spawn`](crate::task::Builder::try_spawn) failed; the closure is dropped.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.block_on(|| {
///     let refused = indent::task::Builder::new().worker(7).try_spawn(|| ()).unwrap_err();
///     assert_eq!(refused.to_string(), "worker 7 does not exist: this runtime has workers 0 to 0");
/// });
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnError {
    /// The number of fibers alive has reached the limit on stacks.
    TooManyFibers {
        /// The limit found when the runtime started.
        limit: usize,
    },
    /// The runtime is shutting down, or has shut down.
    ShuttingDown,
    /// There is no such worker.
    NoSuchWorker {
        /// The requested worker.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// The requested stack is too small or too large.
    BadStackSize {
        /// The requested size in bytes.
        asked: usize,
        /// The largest possible size in bytes.
        largest: usize,
    },
    /// This process was forked from one that had started a runtime.
    Forked,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::TooManyFibers { limit } => write!(
                f,
                "{limit} fibers are alive and each needs a mapping of its own for its guard; \
                 raise vm.max_map_count (a kernel from 6.13 on needs no such mappings)"
            ),
            SpawnError::ShuttingDown => write!(f, "the runtime is shutting down"),
            SpawnError::NoSuchWorker { worker, workers } => write!(
                f,
                "worker {worker} does not exist: this runtime has workers 0 to {}",
                workers - 1
            ),
            SpawnError::BadStackSize { asked, largest } => write!(
                f,
                "a stack of {asked} bytes cannot be had: ask for 1 to {largest} bytes \
                 (rounded up to a power of two, 16 KiB at least)"
            ),
            SpawnError::Forked => write!(
                f,
                "this process was forked from one with a runtime, and no thread is here that \
                 could run a fiber; spawn in the parent, or exec"
            ),
        }
    }
}

impl Error for SpawnError {}

/// The calling thread has no runtime, and no default runtime was started.
///
/// ```
/// // This thread is plain, and nothing has started the default runtime yet.
/// let none = indent::runtime::Handle::try_current().unwrap_err();
/// assert!(none.to_string().starts_with("no runtime here"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRuntime(pub(crate) ());

impl fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if fork::in_child() {
            return write!(f, "no runtime here: {}", SpawnError::Forked);
        }
        write!(
            f,
            "no runtime here: this thread runs no fiber and the default runtime is not started; \
             call Handle::current to start it, or pass a Handle"
        )
    }
}

impl Error for NoRuntime {}

/// Why a join returned no value.
///
/// ```
/// let handle = indent::spawn(|| -> u32 { std::panic::resume_unwind(Box::new("no luck")) });
/// let error = handle.join().unwrap_err();
/// assert!(error.is_panic() && !error.is_cancelled() && !error.is_no_stack());
/// assert_eq!(error.to_string(), format!("fiber {} panicked: no luck", error.id()));
/// assert_eq!(error.into_panic().downcast_ref::<&str>(), Some(&"no luck"));
/// ```
///
/// It is `Send` and `Sync`, so it works with `?` and boxed errors:
///
/// ```
/// fn seven() -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
///     Ok(indent::spawn(|| 7).join()?)
/// }
/// assert_eq!(seven().unwrap(), 7);
/// ```
pub struct JoinError {
    cause: Cause,
    fiber: u64,
}

enum Cause {
    Panic {
        /// Never locked: the owner of the error takes the payload out. The mutex makes the error
        /// `Sync`, which the payload need not be.
        payload: Mutex<Box<dyn Any + Send>>,
        text: Option<Box<str>>,
    },
    Cancelled,
    NoStack,
    NoThread,
    Forked,
}

impl JoinError {
    pub(crate) fn panicked(fiber: u64, payload: Box<dyn Any + Send>) -> Self {
        JoinError {
            cause: Cause::Panic {
                text: panic_text(&*payload).map(Box::from),
                payload: Mutex::new(payload),
            },
            fiber,
        }
    }

    pub(crate) fn cancelled(fiber: u64) -> Self {
        JoinError {
            cause: Cause::Cancelled,
            fiber,
        }
    }

    pub(crate) fn no_stack(fiber: u64) -> Self {
        JoinError {
            cause: Cause::NoStack,
            fiber,
        }
    }

    pub(crate) fn no_thread(fiber: u64) -> Self {
        JoinError {
            cause: Cause::NoThread,
            fiber,
        }
    }

    pub(crate) fn forked(fiber: u64) -> Self {
        JoinError {
            cause: Cause::Forked,
            fiber,
        }
    }

    /// Whether the fiber panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.cause, Cause::Panic { .. })
    }

    /// Whether the fiber was cancelled: its runtime shut down before it finished or started.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// let parked = rt.spawn(indent::park::park);
    /// drop(rt);
    /// assert!(parked.join().unwrap_err().is_cancelled());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause, Cause::Cancelled)
    }

    /// The text that `block_on` adds to this error: only a shutdown cancels its fiber.
    pub(crate) fn shutdown_note(&self) -> &'static str {
        match self.cause {
            Cause::Cancelled => ": the runtime was shut down",
            _ => "",
        }
    }

    /// Whether there was no memory for the fiber's stack, and no other fiber that could free one.
    pub fn is_no_stack(&self) -> bool {
        matches!(self.cause, Cause::NoStack)
    }

    /// Whether the fiber failed because there was no thread for it to start on.
    ///
    /// Parked fibers that are bound to their threads hold as many threads as are allowed, and none
    /// became free for [`start_timeout`](crate::runtime::Builder::start_timeout), by default ten
    /// seconds.
    ///
    /// ```
    /// let failed = indent::spawn(|| std::panic::resume_unwind(Box::new("no luck")));
    /// assert!(!failed.join().unwrap_err().is_no_thread(), "it has started");
    /// ```
    pub fn is_no_thread(&self) -> bool {
        matches!(self.cause, Cause::NoThread)
    }

    /// Whether this process was forked from that of the fiber before the fiber had finished.
    ///
    /// ```
    /// let failed = indent::spawn(|| std::panic::resume_unwind(Box::new("no luck")));
    /// assert!(!failed.join().unwrap_err().is_forked(), "no child of a fork");
    /// ```
    pub fn is_forked(&self) -> bool {
        matches!(self.cause, Cause::Forked)
    }

    /// Returns the payload of the panic, for [`std::panic::resume_unwind`].
    ///
    /// ```
    /// use std::panic::{catch_unwind, resume_unwind};
    ///
    /// let fiber = indent::spawn(|| resume_unwind(Box::new(7)));
    /// let passed_on = catch_unwind(|| resume_unwind(fiber.join().unwrap_err().into_panic()));
    /// assert_eq!(passed_on.unwrap_err().downcast_ref(), Some(&7));
    /// ```
    ///
    /// # Panics
    /// If the fiber did not panic; see [`is_panic`](Self::is_panic).
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self.cause {
            Cause::Panic { payload, .. } => {
                payload.into_inner().unwrap_or_else(PoisonError::into_inner)
            }
            _ => panic!("into_panic on a JoinError that is no panic: {self}"),
        }
    }

    /// The id of the fiber.
    pub fn id(&self) -> u64 {
        self.fiber
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Panic { text, .. } => match text {
                Some(text) => write!(f, "fiber {} panicked: {text}", self.fiber),
                None => write!(f, "fiber {} panicked", self.fiber),
            },
            Cause::Cancelled => write!(f, "fiber {} was cancelled", self.fiber),
            Cause::NoStack => write!(
                f,
                "fiber {} got no stack: the system refuses memory and no fiber holds one; \
                 free address space (ulimit -v) or ask for a smaller stack",
                self.fiber
            ),
            Cause::NoThread => write!(
                f,
                "fiber {} got no thread to start on: parked fibers that are bound to their threads hold all \
                 that are allowed; raise INDENT_MAX_CARRIERS (or ulimit -u, pids.max), or find out what binds \
                 them",
                self.fiber
            ),
            Cause::Forked => write!(
                f,
                "fiber {} runs in the process this one was forked from; join it there",
                self.fiber
            ),
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => Some(text),
        None => payload.downcast_ref::<String>().map(String::as_str),
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl Error for JoinError {}

/// Aborts the process if it is dropped by unwinding.
///
/// For code whose panic would break a promise to another thread.
pub(crate) struct AbortOnUnwind(pub(crate) &'static str);

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            stderr::print(&format!(
                "indent: a panic inside the runtime ({}); aborting\n",
                self.0
            ));
            std::process::abort();
        }
    }
}

/// Aborts the process when it is dropped; the code around it forgets it on success.
pub(crate) struct AbortOnDrop(pub(crate) &'static str);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        stderr::print(&format!(
            "indent: a panic inside the runtime ({}); aborting\n",
            self.0
        ));
        std::process::abort();
    }
}
