//! Settings of a runtime.

use std::fmt;
use std::sync::Arc;

use crate::error::StartError;
use crate::fiber::stack::{self, Guard};
use crate::runtime::Runtime;
use crate::sched::carrier::PROCESS_LIMIT;
use crate::sched::{Hook, Settings, Shared};

/// Most workers a runtime can have.
const MOST_WORKERS: usize = 1024;
/// Most threads a runtime can have.
const MOST_CARRIERS: usize = 65_536;
/// Room for a fiber's frames by default.
const STACK_SIZE: usize = 256 * 1024;
/// Operations a fiber may do in one dispatch before it gives way.
const BUDGET: u32 = 128;
/// Unstarted fibers a worker keeps to itself.
const LOCAL_QUEUE: usize = 256;
/// Every so many dispatches the shared queue comes first. A prime, so that it falls in with no
/// rhythm of the work.
const GLOBAL_INTERVAL: u32 = 61;

/// Makes a [`Runtime`].
///
/// ```
/// let rt = indent::runtime::Builder::new()
///     .workers(2)
///     .thread_name("crunch")
///     .on_thread_start(|| println!("hello from a new thread"))
///     .build()?;
/// rt.block_on(|| assert!(std::thread::current().name().unwrap().starts_with("crunch")));
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    workers: Option<usize>,
    max_carriers: Option<usize>,
    stack_size: Option<usize>,
    guard: Option<Guard>,
    budget: Option<u32>,
    local_queue: Option<usize>,
    global_interval: Option<u32>,
    thread_name: Option<String>,
    on_start: Option<Hook>,
    on_stop: Option<Hook>,
}

impl Builder {
    /// Defaults throughout: one worker per CPU.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many fibers may run at the same time.
    pub fn workers(mut self, n: usize) -> Self {
        self.workers = Some(n);
        self
    }

    /// How many threads this runtime may have, those included that are blocked by a fiber. All
    /// runtimes of a process together have no more than the largest of them, or 512.
    pub fn max_carriers(mut self, n: usize) -> Self {
        self.max_carriers = Some(n);
        self
    }

    /// Room for the frames of each fiber, in bytes; rounded up to a power of two.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// How the ends of stacks are guarded; by default the best the kernel knows.
    pub fn stack_guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Operations that could block a fiber may do in one turn, even if none of them does.
    pub fn coop_budget(mut self, operations: u32) -> Self {
        self.budget = Some(operations);
        self
    }

    /// Unstarted fibers a worker keeps to itself: a power of two.
    pub fn local_queue(mut self, fibers: usize) -> Self {
        self.local_queue = Some(fibers);
        self
    }

    /// The shared queue comes first once in so many dispatches.
    pub fn global_interval(mut self, dispatches: u32) -> Self {
        self.global_interval = Some(dispatches);
        self
    }

    /// What the threads are called; each adds its number.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = Some(name.into());
        self
    }

    /// Called by each thread before it runs its first fiber.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(hook));
        self
    }

    /// Called by each thread after it has run its last fiber.
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_stop = Some(Arc::new(hook));
        self
    }

    /// Starts the runtime.
    pub fn build(self) -> Result<Runtime, StartError> {
        Ok(Runtime::new(Shared::start(self.settings()?)?))
    }

    fn settings(self) -> Result<Settings, StartError> {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.workers.unwrap_or_else(|| cpus().min(MOST_WORKERS));
        check(
            "workers",
            workers,
            (1..=MOST_WORKERS).contains(&workers),
            "a runtime needs between 1 and 1024 workers; leave it out for one per CPU",
        )?;
        let max_carriers = self.max_carriers.unwrap_or(PROCESS_LIMIT.max(2 * workers));
        check(
            "max_carriers",
            max_carriers,
            (workers..=MOST_CARRIERS).contains(&max_carriers),
            "allowed is at least one thread for every worker and at most 65536",
        )?;
        let stack_size = self.stack_size.unwrap_or(STACK_SIZE);
        let stack_class = stack::class_for(stack_size);
        check(
            "stack_size",
            stack_size,
            stack_class.is_some(),
            "allowed is 1 byte to 1 GiB, rounded up to a power of two, 16 KiB at least",
        )?;
        let budget = self.budget.unwrap_or(BUDGET);
        check(
            "coop_budget",
            budget,
            budget > 0,
            "allowed is 1 or more operations",
        )?;
        let local_queue = self.local_queue.unwrap_or(LOCAL_QUEUE);
        check(
            "local_queue",
            local_queue,
            local_queue.is_power_of_two() && (4..=65_536).contains(&local_queue),
            "allowed is a power of two from 4 to 65536",
        )?;
        let global_interval = self.global_interval.unwrap_or(GLOBAL_INTERVAL);
        check(
            "global_interval",
            global_interval,
            global_interval > 0,
            "allowed is 1 or more",
        )?;
        Ok(Settings {
            workers,
            most_workers: workers,
            max_carriers,
            stack_class: stack_class.unwrap_or_default(),
            guard: self.guard.unwrap_or_else(stack::best_guard),
            // One operation comes with the dispatch itself.
            budget: budget - 1,
            local_queue,
            global_interval,
            timer_resolution: std::time::Duration::from_millis(1),
            thread_name: self.thread_name.unwrap_or_else(|| "indent".to_owned()),
            on_start: self.on_start,
            on_stop: self.on_stop,
        })
    }
}

fn check(
    setting: &'static str,
    value: impl fmt::Display,
    fine: bool,
    allowed: &'static str,
) -> Result<(), StartError> {
    if fine {
        return Ok(());
    }
    Err(StartError::BadSetting {
        setting,
        value: value.to_string(),
        allowed,
    })
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("workers", &self.workers)
            .field("max_carriers", &self.max_carriers)
            .field("stack_size", &self.stack_size)
            .field("stack_guard", &self.guard)
            .field("coop_budget", &self.budget)
            .field("local_queue", &self.local_queue)
            .field("global_interval", &self.global_interval)
            .field("thread_name", &self.thread_name)
            .finish_non_exhaustive()
    }
}
