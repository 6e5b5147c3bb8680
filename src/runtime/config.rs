//! One table of all settings: their names, limits, defaults and meaning.
//!
//! A *setting* is a method of [`Builder`](super::Builder); most have an environment *variable* too.
//! The method takes precedence over the variable, the variable over the default. [`ALL`] is the
//! only place that knows a setting's names, limits, default and meaning: values from both sources
//! pass the same check, error messages use its words, and the table in `docs/settings.md` is
//! generated from it (one test compares the two, an ignored one rewrites the page).
//!
//! Rules for variables:
//! 1. They are read whenever a runtime is built; nothing is kept for the next one.
//! 2. A variable that the builder overrides is not read: an invalid value in the environment is no
//!    error for a program that makes the setting in code.
//! 3. White space around a value is ignored, since files and shells leave line ends behind. A
//!    variable with nothing else in it counts as unset, as with most tools.
//! 4. A value that is not allowed is an error; it is never replaced by an allowed one.
//! 5. An unknown name is no error: it may belong to another program. If it is similar to a known
//!    name, a line on standard error says so once in a process.
//!
//! Rejected: a type for each kind of setting, and trait objects to list them. The table needs them
//! side by side; all that types would add, that a count is not read as a time, any test shows.

use std::ffi::OsString;

use crate::error::StartError;
use crate::fiber::stack;
use crate::runtime::threads::ThreadLocals;
use crate::sys::signal_names;

mod kind;
mod stray;

pub(super) use stray::report as report_strays;

use kind::{Kind, MICROSECOND, MILLISECOND, SECOND, Unit, Value};

/// Most workers a runtime can have.
pub(super) const MOST_WORKERS: usize = 1024;
/// Most threads of one kind a runtime can have.
const MOST_THREADS: u64 = 65_536;
/// The default name of threads.
pub(super) const PLAIN_NAME: &str = "indent";
/// The longest allowed wait: practically for ever, and far from any overflow.
const YEAR: u64 = 365 * 24 * 60 * 60 * SECOND;

/// How a fraction of a CPU is rounded, where a control group grants one (such as 1.5 CPUs).
///
/// ```
/// use indent::runtime::{Builder, Rounding};
///
/// let rt = Builder::new().cpu_rounding(Rounding::Down).build()?;
/// assert!(rt.metrics().workers.len() >= 1); // never none
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Up: the whole grant can be used, and when all workers are busy the kernel throttles them for
    /// the rest of each period.
    #[default]
    Up,
    /// Down, but to at least one worker: a part of the grant stays unused.
    Down,
}

/// The I/O driver: how fibers wait for file descriptors.
///
/// ```
/// use indent::runtime::{Builder, Io, IoDriver};
///
/// let rt = Builder::new().io(Io::Epoll).build()?;
/// assert_eq!(rt.metrics().io_sockets, IoDriver::Epoll);
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// epoll for sockets, pipes and everything else that can be polled.
    ///
    /// Its wake-ups depend on no thread of the runtime. io_uring is reserved for files, for which
    /// there are no operations yet.
    #[default]
    Auto,
    /// io_uring for everything that can be polled; an error at start if the system does not allow
    /// it.
    ///
    /// An operation is completed by the thread that submitted it: while that thread is in an
    /// uninterruptible sleep in the kernel, the fibers of its operations wait.
    Uring,
    /// epoll for everything that can be polled; io_uring is never used, not even for files.
    Epoll,
}

/// One setting.
pub(super) struct Setting {
    /// The method of `Builder`.
    method: &'static str,
    /// The environment variable.
    variable: Option<&'static str>,
    preset: Preset,
    kind: Kind,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for docs/settings.md, which a test writes")
    )]
    meaning: &'static str,
}

/// The default of a setting.
enum Preset {
    Value(u64),
    /// It depends on other things, which these words name.
    Words(&'static str),
}

/// Defines a static for each setting, and the list of all, in this order.
macro_rules! settings {
    [$($name:ident = $setting:expr),* $(,)?] => {
        $(pub(super) static $name: Setting = $setting;)*
        static ALL: &[&Setting] = &[$(&$name),*];
    };
}

settings![
    WORKERS = Setting {
        method: "workers",
        variable: Some("INDENT_WORKER_THREADS"),
        preset: Preset::Words("one per CPU the process may use; follows that number"),
        kind: Kind::Number(1..=MOST_WORKERS as u64),
        meaning: "fibers that run at the same time; a number that is set does not follow the CPUs",
    },
    CPU_ROUNDING = Setting {
        method: "cpu_rounding",
        variable: Some("INDENT_CPU_ROUNDING"),
        preset: Preset::Value(Rounding::Up as u64),
        kind: Kind::Word(&["up", "down"]),
        meaning: "how a fraction of a CPU that a control group grants is rounded",
    },
    MAX_CARRIERS = Setting {
        method: "max_carriers",
        variable: Some("INDENT_MAX_CARRIERS"),
        preset: Preset::Words(
            "10,000, or what the system's limits on threads and mappings suggest"
        ),
        kind: Kind::Number(1..=MOST_THREADS),
        meaning: "limit on threads that run fibers, those of parked bound fibers included; at the \
                  limit no fiber starts that may need another; at least one for every worker",
    },
    SOFT_CARRIERS = Setting {
        method: "soft_carriers",
        variable: Some("INDENT_SOFT_CARRIERS"),
        preset: Preset::Value(1024),
        kind: Kind::Number(1..=MOST_THREADS),
        meaning: "number of such threads beyond which such a fiber starts only when all others wait, \
                  or when no such fiber has started for 100 ms",
    },
    BLOCKING_THREADS = Setting {
        method: "blocking_threads",
        variable: Some("INDENT_BLOCKING_THREADS"),
        preset: Preset::Value(512),
        kind: Kind::Number(1..=MOST_THREADS),
        meaning: "limit on threads for blocking calls",
    },
    BLOCKING_KEEP_ALIVE = Setting {
        method: "blocking_keep_alive",
        variable: Some("INDENT_BLOCKING_KEEP_ALIVE_MS"),
        preset: Preset::Value(60 * SECOND),
        kind: Kind::Time(Unit::Millisecond, 0..=YEAR),
        meaning: "how long an idle thread for blocking calls waits for the next one before it ends",
    },
    COMPUTE_THREADS = Setting {
        method: "compute_threads",
        variable: Some("INDENT_COMPUTE_THREADS"),
        preset: Preset::Words("as many as workers"),
        kind: Kind::Number(1..=MOST_WORKERS as u64),
        meaning: "threads for long computations",
    },
    STACK_SIZE = Setting {
        method: "stack_size",
        variable: Some("INDENT_STACK_SIZE"),
        preset: Preset::Value(256 << 10),
        kind: Kind::Bytes(1..=stack::LARGEST_STACK as u64),
        meaning: "stack size of a fiber; rounded up to a power of two, at least 16KiB",
    },
    COOP_BUDGET = Setting {
        method: "coop_budget",
        variable: Some("INDENT_COOP_BUDGET"),
        preset: Preset::Value(128),
        kind: Kind::Number(1..=u32::MAX as u64),
        meaning: "blocking-capable operations a fiber may perform before it must yield",
    },
    PREEMPT = Setting {
        method: "preempt",
        variable: Some("INDENT_PREEMPT"),
        preset: Preset::Value(true as u64),
        kind: Kind::Word(&["off", "on"]),
        meaning: "fibers that run for longer than the quantum while others wait are interrupted; \
                  off: fibers switch only at blocking calls",
    },
    PREEMPT_QUANTUM = Setting {
        method: "preempt_quantum",
        variable: Some("INDENT_PREEMPT_QUANTUM_MS"),
        preset: Preset::Value(10 * MILLISECOND),
        kind: Kind::FineTime(100 * MICROSECOND..=10 * SECOND),
        meaning: "how long a fiber may run while others wait",
    },
    PREEMPT_IN_PLACE = Setting {
        method: "preempt_in_place",
        variable: Some("INDENT_PREEMPT_IN_PLACE"),
        preset: Preset::Value(false as u64),
        kind: Kind::Word(&["off", "on"]),
        meaning: "interrupted fibers leave their thread at the instruction where that is proved to be \
                  safe, and cost no thread while they wait; off: only in `preemptible` regions",
    },
    PREEMPT_SIGNAL = Setting {
        method: "preempt_signal",
        variable: Some("INDENT_PREEMPT_SIGNAL"),
        preset: Preset::Value(signal_names::URG as u64),
        kind: Kind::Signal,
        meaning: "the signal that interrupts fibers; the first runtime with preemption decides for the process",
    },
    THREAD_LOCALS = Setting {
        method: "thread_locals",
        variable: Some("INDENT_TLS"),
        preset: Preset::Value(ThreadLocals::Fiber as u64),
        kind: Kind::Word(&["fiber", "thread"]),
        meaning: "whose thread-locals a fiber uses: its own, or those of the thread it runs on",
    },
    PER_THREAD = Setting {
        method: "per_thread",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed("the path of a thread-local, named by the first runtime of the process"),
        meaning: "a thread-local that stays with the thread",
    },
    HARMLESS_THREAD_LOCAL = Setting {
        method: "harmless_thread_local",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed(
            "the path of a thread-local, declared by the first runtime of the process"
        ),
        meaning: "unsafe: a thread-local that binds no fiber once a use of it is over",
    },
    HARMLESS_FUNCTION = Setting {
        method: "harmless_function",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed(
            "the path of a function or the symbol of a C function, declared by the first runtime of the process",
        ),
        meaning: "unsafe: a function that leaves nothing of its thread behind when it returns",
    },
    LOG_OVERRUNS = Setting {
        method: "log_overruns",
        variable: Some("INDENT_LOG_OVERRUNS"),
        preset: Preset::Value(false as u64),
        kind: Kind::Word(&["0", "1"]),
        meaning: "fibers that run for longer than the quantum are reported on standard error",
    },
    LOG_BOUND = Setting {
        method: "log_bound",
        variable: Some("INDENT_LOG_BOUND"),
        preset: Preset::Value(false as u64),
        kind: Kind::Word(&["0", "1"]),
        meaning: "what makes fibers keep a thread while they are parked is reported on standard error",
    },
    WARN_STRIPPED = Setting {
        method: "warn_stripped",
        variable: Some("INDENT_WARN_STRIPPED"),
        preset: Preset::Value(true as u64),
        kind: Kind::Word(&["0", "1"]),
        meaning: "a program without symbols of functions, in which nearly every fiber is bound, is \
                  reported once on standard error",
    },
    IO = Setting {
        method: "io",
        variable: Some("INDENT_IO"),
        preset: Preset::Value(Io::Auto as u64),
        kind: Kind::Word(&["auto", "uring", "epoll"]),
        meaning: "the I/O backend for descriptors: auto is epoll, with io_uring reserved for files, for \
                  which there are no operations yet; uring is an error where it is not allowed",
    },
    IDLE_SPIN = Setting {
        method: "idle_spin",
        variable: Some("INDENT_IDLE_SPIN_US"),
        preset: Preset::Value(0),
        kind: Kind::Time(Unit::Microsecond, 0..=SECOND),
        meaning: "how long a worker without work keeps searching before it sleeps",
    },
    START_TIMEOUT = Setting {
        method: "start_timeout",
        variable: Some("INDENT_START_TIMEOUT_MS"),
        preset: Preset::Value(10 * SECOND),
        kind: Kind::Time(Unit::Millisecond, 0..=YEAR),
        meaning: "how long a fiber that can get no thread to start on waits before it fails",
    },
    SHUTDOWN_TIMEOUT = Setting {
        method: "shutdown_timeout",
        variable: Some("INDENT_SHUTDOWN_TIMEOUT_MS"),
        preset: Preset::Value(5 * SECOND),
        kind: Kind::Time(Unit::Millisecond, 0..=YEAR),
        meaning: "how long dropping a runtime waits for its fibers",
    },
    TIMER_RESOLUTION = Setting {
        method: "timer_resolution",
        variable: None,
        preset: Preset::Value(MILLISECOND),
        kind: Kind::Time(Unit::Microsecond, 100 * MICROSECOND..=SECOND),
        meaning: "resolution of timers",
    },
    LOCAL_QUEUE = Setting {
        method: "local_queue",
        variable: None,
        preset: Preset::Value(256),
        kind: Kind::PowerOfTwo(4..=65_536),
        meaning: "capacity of each of a worker's local queues, for started and for unstarted fibers",
    },
    GLOBAL_INTERVAL = Setting {
        method: "global_interval",
        variable: None,
        // A prime: it coincides with no period of the work.
        preset: Preset::Value(61),
        kind: Kind::Number(1..=u32::MAX as u64),
        meaning: "after this many dispatches a worker takes from the global queue first",
    },
    STACK_GUARD = Setting {
        method: "stack_guard",
        variable: None,
        preset: Preset::Words("the best the kernel supports"),
        kind: Kind::Typed("a `StackGuard`"),
        meaning: "how the ends of stacks are guarded",
    },
    THREAD_NAME = Setting {
        method: "thread_name",
        variable: None,
        preset: Preset::Words(PLAIN_NAME),
        kind: Kind::Typed("text without NUL"),
        meaning: "name of threads, to which each adds its number",
    },
    ON_OVERRUN = Setting {
        method: "on_overrun",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed("a closure"),
        meaning: "called with each report of a fiber that ran for longer than the quantum",
    },
    ON_THREAD_START = Setting {
        method: "on_thread_start",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed("a closure"),
        meaning: "called at the start of each thread that runs fibers, blocking calls or computations",
    },
    ON_THREAD_STOP = Setting {
        method: "on_thread_stop",
        variable: None,
        preset: Preset::Words("none"),
        kind: Kind::Typed("a closure"),
        meaning: "called at the end of each such thread",
    },
];

/// How variables are looked up.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A value that was set, in code or by a variable.
pub(super) struct Asked<T> {
    pub(super) value: T,
    /// The method or the variable by which it was set.
    pub(super) name: &'static str,
}

impl Setting {
    /// The value from the builder, or else from the environment; `None` if neither has one.
    pub(super) fn asked<T: Value>(
        &self,
        built: Option<T>,
        environment: Environment<'_>,
    ) -> Result<Option<Asked<T>>, StartError> {
        let (name, raw) = match (built, self.variable) {
            (Some(value), _) => (self.method, self.checked(value)?),
            (None, None) => return Ok(None),
            (None, Some(name)) => match self.written(name, environment)? {
                Some(raw) => (name, raw),
                None => return Ok(None),
            },
        };
        let value = T::from_raw(raw);
        Ok(Some(Asked { value, name }))
    }

    /// The value that was set, or the default.
    pub(super) fn value<T: Value>(
        &self,
        built: Option<T>,
        environment: Environment<'_>,
    ) -> Result<T, StartError> {
        let asked = self.asked(built, environment)?;
        Ok(asked.map_or_else(|| self.preset(), |asked| asked.value))
    }

    /// The default of a setting whose default is a value.
    pub(super) fn preset<T: Value>(&self) -> T {
        match self.preset {
            Preset::Value(raw) => T::from_raw(raw),
            Preset::Words(words) => unreachable!("{} by default: {words}", self.method),
        }
    }

    /// The error for a value passed to the method.
    pub(super) fn refuse(&self, value: String) -> StartError {
        StartError::BadSetting {
            setting: self.method,
            value,
            allowed: self.kind.limits(),
        }
    }

    /// The error for a value of the right kind that cannot be used; `allowed` names what can.
    pub(super) fn refuse_beyond(&self, value: String, allowed: String) -> StartError {
        StartError::BadSetting {
            setting: self.method,
            value,
            allowed,
        }
    }

    fn checked(&self, built: impl Value) -> Result<u64, StartError> {
        let raw = built.to_raw();
        if self.kind.allows(raw) {
            Ok(raw)
        } else {
            Err(self.refuse(format!("{built:?}"))) // the raw form may have lost a part of it
        }
    }

    fn written(
        &self,
        name: &'static str,
        environment: Environment<'_>,
    ) -> Result<Option<u64>, StartError> {
        let given = environment(name).unwrap_or_default();
        let text = given.to_str().map(str::trim);
        if text == Some("") {
            return Ok(None);
        }
        match text.and_then(|text| self.kind.parse(text)) {
            Some(raw) if self.kind.allows(raw) => Ok(Some(raw)),
            _ => Err(StartError::BadSetting {
                setting: name,
                value: given.to_string_lossy().into_owned(),
                allowed: self.kind.limits() + self.kind.form(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
