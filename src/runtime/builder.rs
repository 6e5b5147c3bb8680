//! The builder of a runtime: settings made in code, then from the environment, then defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use indent_sysmon::frames::Declaration;

use crate::driver::uring;
use crate::error::StartError;
use crate::fiber::stack::{self, StackGuard};
use crate::runtime::config::{self, Asked, Environment, Io, MOST_WORKERS, Rounding};
use crate::runtime::threads::{self, ThreadLocals};
use crate::runtime::{Runtime, cpus, harmless, reports};
use crate::sched::diag::overrun::reporter::Listener;
use crate::sched::{Hook, Settings, Shared};
use crate::sys::fork;

/// Configures and starts a [`Runtime`].
///
/// A setting that is not made here comes from its environment variable, or else from its default;
/// `docs/settings.md` lists them. It corresponds to `tokio::runtime::Builder`.
///
/// ```
/// let rt = indent::runtime::Builder::new()
///     .workers(2)
///     .thread_name("crunch")
///     .on_thread_start(|| println!("hello from a new thread"))
///     .build()?;
/// assert_eq!(rt.block_on(|| 6 * 7), 42);
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    workers: Option<usize>,
    cpu_rounding: Option<Rounding>,
    pub(super) max_carriers: Option<usize>,
    pub(super) soft_carriers: Option<usize>,
    blocking_threads: Option<usize>,
    blocking_keep_alive: Option<Duration>,
    compute_threads: Option<usize>,
    stack_size: Option<usize>,
    guard: Option<StackGuard>,
    budget: Option<u32>,
    preempt: Option<bool>,
    preempt_quantum: Option<Duration>,
    preempt_signal: Option<i32>,
    pub(super) preempt_in_place: Option<bool>,
    pub(super) log_overruns: Option<bool>,
    pub(super) thread_locals: Option<ThreadLocals>,
    pub(super) per_thread: Vec<String>,
    pub(super) declared: Vec<Declaration>,
    pub(super) log_bound: Option<bool>,
    pub(super) warn_stripped: Option<bool>,
    pub(super) on_overrun: Vec<Listener>,
    io: Option<Io>,
    idle_spin: Option<Duration>,
    pub(super) start_timeout: Option<Duration>,
    shutdown_timeout: Option<Duration>,
    timer_resolution: Option<Duration>,
    local_queue: Option<usize>,
    global_interval: Option<u32>,
    thread_name: Option<String>,
    on_start: Option<Hook>,
    on_stop: Option<Hook>,
}

impl Builder {
    /// Creates a builder with no setting made: one worker for each CPU, and defaults for the rest.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of workers: how many fibers may run at the same time.
    ///
    /// Without this there is one worker for each CPU the process may use, and the number follows
    /// that of CPUs when it changes. A number set here stays.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(3).build()?;
    /// assert_eq!(rt.metrics().workers.len(), 3);
    ///
    /// let refused = indent::runtime::Builder::new().workers(0).build().unwrap_err();
    /// assert_eq!(refused.to_string(), "workers = 0: allowed is 1 to 1024");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn workers(mut self, n: usize) -> Self {
        self.workers = Some(n);
        self
    }

    /// Sets how a fraction of a CPU that a control group grants is rounded; by default up.
    ///
    /// It has no effect if [`workers`](Self::workers) is set.
    ///
    /// ```
    /// use indent::runtime::{Builder, Rounding};
    ///
    /// let rt = Builder::new().cpu_rounding(Rounding::Down).build()?; // of 1.5 CPUs: one worker
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn cpu_rounding(mut self, rounding: Rounding) -> Self {
        self.cpu_rounding = Some(rounding);
        self
    }

    /// Sets the largest number of threads for [`blocking`](crate::runtime::blocking) calls.
    ///
    /// Threads start on demand; calls beyond the limit wait in a queue.
    ///
    /// ```
    /// use std::thread;
    ///
    /// let rt = indent::runtime::Builder::new().blocking_threads(1).build()?;
    /// let calls = [1, 2].map(|_| rt.handle().spawn_blocking(|| thread::current().id()));
    /// let [one, other] = calls.map(|call| call.join().unwrap());
    /// assert_eq!(one, other, "one after the other");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn blocking_threads(mut self, n: usize) -> Self {
        self.blocking_threads = Some(n);
        self
    }

    /// Sets how long an idle thread of the blocking pool waits for the next call before it ends.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new()
    ///     .blocking_threads(64)
    ///     .blocking_keep_alive(Duration::from_secs(5))
    ///     .build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn blocking_keep_alive(mut self, time: Duration) -> Self {
        self.blocking_keep_alive = Some(time);
        self
    }

    /// Sets the number of threads for [`compute`](crate::runtime::compute); by default as many as
    /// workers.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(4).compute_threads(1).build()?;
    /// let sum = rt.block_on(|| indent::runtime::compute(|| (1..=1_000).sum::<u32>()));
    /// assert_eq!(sum, 500_500);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn compute_threads(mut self, n: usize) -> Self {
        self.compute_threads = Some(n);
        self
    }

    /// Sets the stack size of fibers in bytes; rounded up to a power of two, at least 16 KiB.
    ///
    /// A single fiber can have another size:
    /// [`task::Builder::stack_size`](crate::task::Builder::stack_size).
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().stack_size(4 << 20).build()?;
    /// let sum: u64 = rt.block_on(|| {
    ///     let large = [1; 128 << 10]; // a megabyte of the fiber's stack
    ///     large.iter().sum()
    /// });
    /// assert_eq!(sum, 128 << 10);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets how the ends of stacks are guarded; by default the best way the kernel supports.
    ///
    /// ```
    /// use indent::runtime::{Builder, StackGuard};
    ///
    /// let rt = Builder::new().stack_guard(StackGuard::Page).build()?;
    /// assert_eq!(rt.metrics().stack_guard, StackGuard::Page);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn stack_guard(mut self, guard: StackGuard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Sets how many blocking-capable operations a fiber may perform before it must yield.
    ///
    /// Operations that succeed at once count, too.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).coop_budget(4).build()?;
    /// rt.block_on(|| (0..100).for_each(|_| indent::task::checkpoint()));
    /// assert!(rt.metrics().workers[0].budget_exhausted_total >= 20);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn coop_budget(mut self, operations: u32) -> Self {
        self.budget = Some(operations);
        self
    }

    /// Sets whether running fibers are preempted; by default they are.
    ///
    /// A fiber that computes for longer than the [quantum](Self::preempt_quantum) while others wait
    /// is interrupted. When this is off, fibers switch only at blocking calls. A fiber that blocks
    /// its thread in the kernel delays no other fiber in either case.
    ///
    /// ```
    /// // Code that computes for long in here should call `task::checkpoint` regularly.
    /// let rt = indent::runtime::Builder::new().preempt(false).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn preempt(mut self, on: bool) -> Self {
        self.preempt = Some(on);
        self
    }

    /// Sets how long a fiber may run while others wait: 0.1 ms to 10 s, by default 10 ms.
    ///
    /// It has no effect if [`preempt`](Self::preempt) is off.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let quantum = Duration::from_micros(500);
    /// let rt = indent::runtime::Builder::new().preempt_quantum(quantum).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn preempt_quantum(mut self, time: Duration) -> Self {
        self.preempt_quantum = Some(time);
        self
    }

    /// Sets the signal that interrupts fibers; by default SIGURG, as in Go.
    ///
    /// Change it if another library needs SIGURG. Allowed are SIGURG, SIGUSR1, SIGUSR2, SIGIO,
    /// SIGWINCH and real-time signals from SIGRTMIN + 1 on.
    ///
    /// Signals belong to the process: the first runtime that [preempts](Self::preempt) installs its
    /// handler for its signal, and all later runtimes use that signal. The handler stays until the
    /// process ends. It passes signals that no runtime has sent to the handler it replaced.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().preempt_signal(libc::SIGUSR2).build()?;
    ///
    /// let refused = indent::runtime::Builder::new().preempt_signal(libc::SIGKILL).build();
    /// let error = refused.unwrap_err().to_string();
    /// assert!(error.starts_with("preempt_signal = 9: allowed is URG, USR1, "), "{error}");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn preempt_signal(mut self, signal: i32) -> Self {
        self.preempt_signal = Some(signal);
        self
    }

    /// Sets the I/O driver: how fibers wait for file descriptors. See [`Io`].
    ///
    /// ```
    /// use indent::runtime::{Builder, Io};
    /// use indent::StartError;
    ///
    /// match Builder::new().io(Io::Uring).build() {
    ///     Ok(rt) => assert_eq!(rt.metrics().io_sockets.to_string(), "uring"),
    ///     Err(StartError::NoUring { source, .. }) => println!("not here: {source}"),
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn io(mut self, io: Io) -> Self {
        self.io = Some(io);
        self
    }

    /// Sets how long a worker without work keeps searching before it sleeps.
    ///
    /// Waking a sleeping worker takes some microseconds and a system call; a worker that searches
    /// uses CPU time that other threads could use.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new().idle_spin(Duration::from_micros(50)).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn idle_spin(mut self, time: Duration) -> Self {
        self.idle_spin = Some(time);
        self
    }

    /// Sets how long dropping the runtime waits for its fibers.
    ///
    /// Fibers that have not finished by then are abandoned, and listed on standard error.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new()
    ///     .shutdown_timeout(Duration::from_millis(1))
    ///     .build()?;
    /// let blocked = rt.spawn(|| std::thread::sleep(Duration::from_secs(60)));
    /// drop(rt); // a minute would be too long
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.shutdown_timeout = Some(time);
        self
    }

    /// Sets the resolution of timers: the length of a tick of the timer wheel.
    ///
    /// ```
    /// use indent::time::{self, Duration};
    ///
    /// let fine = Duration::from_micros(100);
    /// let rt = indent::runtime::Builder::new().timer_resolution(fine).build()?;
    /// rt.block_on(|| time::sleep(fine));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn timer_resolution(mut self, time: Duration) -> Self {
        self.timer_resolution = Some(time);
        self
    }

    /// Sets the capacity of a worker's local queues, one for started and one for unstarted fibers.
    ///
    /// It must be a power of two. When one of the queues is full, its older half moves to the
    /// global queue.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).local_queue(16).build()?;
    /// rt.block_on(|| (0..100).for_each(|_| drop(indent::spawn(|| ()))));
    /// assert!(rt.metrics().workers[0].queue_overflows_total > 0);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn local_queue(mut self, fibers: usize) -> Self {
        self.local_queue = Some(fibers);
        self
    }

    /// Sets after how many dispatches a worker takes a fiber from the global queue first.
    ///
    /// ```
    /// // Every tenth dispatch looks into the global queue first.
    /// let rt = indent::runtime::Builder::new().global_interval(10).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn global_interval(mut self, dispatches: u32) -> Self {
        self.global_interval = Some(dispatches);
        self
    }

    /// Sets the name of the runtime's threads, to which each adds its number.
    ///
    /// The system shows these names, and [`on_thread_start`](Self::on_thread_start) sees them. On a
    /// fiber `std::thread::current` is the fiber's own and has no name
    /// ([`thread_locals`](Self::thread_locals)).
    ///
    /// ```
    /// use std::thread;
    ///
    /// let rt = indent::runtime::Builder::new()
    ///     .thread_name("crunch")
    ///     .on_thread_start(|| assert!(thread::current().name().unwrap().starts_with("crunch-")))
    ///     .build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = Some(name.into());
        self
    }

    /// Sets a hook that each new thread of the runtime calls before anything else.
    ///
    /// Threads that run fibers, [`blocking`](crate::runtime::blocking) calls or
    /// [`compute`](crate::runtime::compute) calls have it; the monitor and the helper do not.
    /// Compute threads already have their higher nice value then.
    ///
    /// The hook runs on the thread itself, not on a fiber. There
    /// [`Handle::current`](crate::runtime::Handle::current) is this runtime on threads for blocking
    /// and compute calls, and the default runtime on those that run fibers. The work of the thread
    /// waits meanwhile, so a hook must not wait for fibers or calls of this runtime. If it panics,
    /// the process aborts.
    ///
    /// The runtime keeps CPUs that the hook binds the thread to (`sched_setaffinity`). Such a
    /// thread is not moved to the CPU that becomes free when it takes over work, and may wait for
    /// its own.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    ///
    /// let threads = Arc::new(AtomicUsize::new(0));
    /// let count = threads.clone();
    /// let rt = indent::runtime::Builder::new()
    ///     .workers(1)
    ///     .on_thread_start(move || drop(count.fetch_add(1, SeqCst)))
    ///     .build()?;
    /// rt.block_on(|| indent::runtime::blocking(|| ()));
    /// assert!(threads.load(SeqCst) >= 2, "one for fibers, one for the call");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(hook));
        self
    }

    /// Sets a hook that each of these threads calls at its end.
    ///
    /// The rules of [`on_thread_start`](Self::on_thread_start) apply. A thread that a shutdown
    /// abandons calls it if it ever ends.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    ///
    /// let threads = Arc::new(AtomicUsize::new(0));
    /// let (more, fewer) = (threads.clone(), threads.clone());
    /// let rt = indent::runtime::Builder::new()
    ///     .on_thread_start(move || drop(more.fetch_add(1, SeqCst)))
    ///     .on_thread_stop(move || drop(fewer.fetch_sub(1, SeqCst)))
    ///     .build()?;
    /// drop(rt); // waits for its threads
    /// assert_eq!(threads.load(SeqCst), 0);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_stop = Some(Arc::new(hook));
        self
    }

    /// Starts the runtime.
    ///
    /// Environment variables are read at each call.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().build()?;
    /// assert_eq!(rt.block_on(|| 6 * 7), 42);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    ///
    /// # Errors
    /// If the value of a setting is not allowed, here or in the environment, if the system refuses
    /// a thread or a signal handler, if [`Io::Uring`] cannot be used, and in the child of a
    /// [fork](crate::runtime#fork).
    pub fn build(self) -> Result<Runtime, StartError> {
        if fork::in_child() {
            return Err(StartError::Forked);
        }
        config::report_strays();
        let declared = self.declared.clone();
        let settings = self.settings(&|name| std::env::var_os(name))?;
        harmless::declare(&declared)?;
        Ok(Runtime::new(Shared::start(settings)?))
    }

    fn settings(self, env: Environment<'_>) -> Result<Settings, StartError> {
        let rounding = config::CPU_ROUNDING.value(self.cpu_rounding, env)?;
        let count_cpus = Arc::new(move || cpus::allowed(rounding).clamp(1, MOST_WORKERS));
        let cpus = count_cpus();
        let asked_workers = config::WORKERS.asked(self.workers, env)?;
        let asked_carriers = config::MAX_CARRIERS.asked(self.max_carriers, env)?;
        // Fewer threads than CPUs are an error only if the number of workers was set.
        let most_carriers = asked_carriers
            .as_ref()
            .map_or(usize::MAX, |asked| asked.value);
        let (workers, most_workers) = match &asked_workers {
            Some(asked) => (asked.value, asked.value),
            None => {
                let most = cpus::possible().min(MOST_WORKERS).min(most_carriers).max(1);
                (cpus.min(most), most)
            }
        };
        let guard = self.guard.unwrap_or_else(stack::best_guard);
        let max_carriers = match (asked_carriers, &asked_workers) {
            (Some(threads), Some(workers)) if threads.value < workers.value => {
                return Err(too_few_carriers(&threads, workers));
            }
            (Some(threads), _) => threads.value,
            (None, _) => cpus::most_threads(guard).max(4 * most_workers),
        };
        let asked_io = config::IO.asked(self.io, env)?;
        let compute_threads = config::COMPUTE_THREADS.asked(self.compute_threads, env)?;
        let stack_size = config::STACK_SIZE.value(self.stack_size, env)?;
        let plain = || config::PLAIN_NAME.to_owned();
        let thread_name = self.thread_name.unwrap_or_else(plain);
        if thread_name.contains('\0') {
            return Err(config::THREAD_NAME.refuse(thread_name));
        }
        Ok(Settings {
            workers,
            most_workers,
            workers_set: asked_workers.is_some(),
            cpus,
            count_cpus,
            max_carriers,
            soft_carriers: config::SOFT_CARRIERS.value(self.soft_carriers, env)?,
            blocking_threads: config::BLOCKING_THREADS.value(self.blocking_threads, env)?,
            blocking_keep_alive: config::BLOCKING_KEEP_ALIVE
                .value(self.blocking_keep_alive, env)?,
            compute_threads: compute_threads.map(|asked| asked.value),
            stack_class: stack::class_for(stack_size).expect("of a size that is allowed"),
            guard,
            // The dispatch itself grants one operation.
            budget: config::COOP_BUDGET.value(self.budget, env)? - 1,
            preempt: config::PREEMPT.value(self.preempt, env)?,
            quantum: config::PREEMPT_QUANTUM.value(self.preempt_quantum, env)?,
            preempt_in_place: config::PREEMPT_IN_PLACE.value(self.preempt_in_place, env)?,
            preempt_signal: config::PREEMPT_SIGNAL.value(self.preempt_signal, env)?,
            log_overruns: config::LOG_OVERRUNS.value(self.log_overruns, env)?,
            own_locals: threads::own_locals(
                config::THREAD_LOCALS.value(self.thread_locals, env)?,
                &self.per_thread,
            )?,
            log_bound: config::LOG_BOUND
                .value(self.log_bound, env)?
                .then_some(reports::bound_line),
            warn_stripped: config::WARN_STRIPPED.value(self.warn_stripped, env)?,
            on_overrun: self.on_overrun,
            uring_asked_by: uring_asked_by(asked_io.as_ref())?,
            uring_allowed: asked_io.is_none_or(|asked| asked.value != Io::Epoll),
            idle_spin: config::IDLE_SPIN.value(self.idle_spin, env)?,
            start_timeout: config::START_TIMEOUT.value(self.start_timeout, env)?,
            shutdown_timeout: config::SHUTDOWN_TIMEOUT.value(self.shutdown_timeout, env)?,
            timer_resolution: config::TIMER_RESOLUTION.value(self.timer_resolution, env)?,
            local_queue: config::LOCAL_QUEUE.value(self.local_queue, env)?,
            global_interval: config::GLOBAL_INTERVAL.value(self.global_interval, env)?,
            thread_name,
            on_start: self.on_start,
            on_stop: self.on_stop,
        })
    }
}

/// The name of the setting that selected io_uring, if any; an error if it cannot be used.
fn uring_asked_by(asked: Option<&Asked<Io>>) -> Result<Option<&'static str>, StartError> {
    let Some(asked) = asked.filter(|asked| asked.value == Io::Uring) else {
        return Ok(None);
    };
    match uring::refusal() {
        None => Ok(Some(asked.name)),
        Some(source) => Err(StartError::NoUring {
            setting: asked.name,
            source,
        }),
    }
}

fn too_few_carriers(carriers: &Asked<usize>, workers: &Asked<usize>) -> StartError {
    let because = format!("{} = {}", workers.name, workers.value);
    StartError::BadSetting {
        setting: carriers.name,
        value: carriers.value.to_string(),
        allowed: format!("at least one thread for every worker, and {because}"),
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("workers", &self.workers)
            .field("cpu_rounding", &self.cpu_rounding)
            .field("max_carriers", &self.max_carriers)
            .field("soft_carriers", &self.soft_carriers)
            .field("blocking_threads", &self.blocking_threads)
            .field("blocking_keep_alive", &self.blocking_keep_alive)
            .field("compute_threads", &self.compute_threads)
            .field("stack_size", &self.stack_size)
            .field("stack_guard", &self.guard)
            .field("coop_budget", &self.budget)
            .field("preempt", &self.preempt)
            .field("preempt_quantum", &self.preempt_quantum)
            .field("preempt_signal", &self.preempt_signal)
            .field("preempt_in_place", &self.preempt_in_place)
            .field("log_overruns", &self.log_overruns)
            .field("thread_locals", &self.thread_locals)
            .field("per_thread", &self.per_thread)
            .field("declared", &self.declared)
            .field("log_bound", &self.log_bound)
            .field("warn_stripped", &self.warn_stripped)
            .field("io", &self.io)
            .field("idle_spin", &self.idle_spin)
            .field("start_timeout", &self.start_timeout)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .field("timer_resolution", &self.timer_resolution)
            .field("local_queue", &self.local_queue)
            .field("global_interval", &self.global_interval)
            .field("thread_name", &self.thread_name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn preemption_is_set_in_code_or_by_variables() {
        let found = |builder: Builder, env: Environment<'_>| {
            let settings = builder.settings(env).unwrap();
            let quantum = settings.quantum.as_micros();
            (settings.preempt, quantum, settings.preempt_signal)
        };
        let written = |name: &str| {
            let text = match name {
                "INDENT_PREEMPT" => "off",
                "INDENT_PREEMPT_QUANTUM_MS" => "0.2",
                "INDENT_PREEMPT_SIGNAL" => "USR1",
                _ => return None,
            };
            Some(OsString::from(text))
        };
        let plain = (true, 10_000, libc::SIGURG);
        assert_eq!(found(Builder::new(), &|_| None), plain);
        let by_variables = (false, 200, libc::SIGUSR1);
        assert_eq!(found(Builder::new(), &written), by_variables);
        let built = Builder::new()
            .preempt(true)
            .preempt_quantum(Duration::from_millis(1))
            .preempt_signal(libc::SIGUSR2);
        assert_eq!(found(built, &written), (true, 1_000, libc::SIGUSR2));
    }
}
