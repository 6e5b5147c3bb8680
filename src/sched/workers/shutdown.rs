//! The end of a runtime, in five steps.
//!
//! 1. Refuse spawns, and cancel every fiber.
//! 2. The workers drop unstarted fibers, on a stack like any fiber (their destructors are user
//!    code). Parked fibers are woken and unwind; the others unwind at their next blocking call.
//! 3. Wait for all fibers, at most until the timeout.
//! 4. Abandon what remains: its thread, its stack and everything shared are left alone, never
//!    freed, and listed.
//! 5. Close what layers above keep here (pools), stop and join the other threads.
//!
//! A thread of the runtime may do this itself, outside fibers and closures: in the hook that is
//! called when it stops, or in a destructor of a thread-local. It waits for all threads but itself.
//!
//! Fibers that park while they unwind each block a carrier, so only a limited number may unwind at
//! once (`unwind_limit.rs`). The cancellation of the others is delivered as those end.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Notify, Phase};
use crate::fiber::{FiberRef, Held, slab};
use crate::sched::block::unwind_limit::Entry;
use crate::sched::block::wake;
use crate::sched::workers::context;
use crate::sched::{Shared, io};
use crate::sys::fork;
use crate::sys::{self, futex};
use crate::util::loom::{heavy_barrier, lock};

/// Interval between looks where the kernel refused the barrier that makes one look enough (S18).
pub(crate) const UNSURE: Duration = Duration::from_millis(10);

/// A fiber that did not end in time.
///
/// ```
/// use std::time::Duration;
///
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// let (started, wait) = std::sync::mpsc::channel();
/// let stuck = move || {
///     started.send(()).unwrap();
///     std::thread::sleep(Duration::from_secs(60)); // blocks its thread
/// };
/// drop(rt.block_on(|| indent::task::Builder::new().name("stuck").spawn(stuck)));
/// wait.recv().unwrap();
/// let report = rt.shutdown_timeout(Duration::ZERO);
/// assert_eq!(report.abandoned[0].name.as_deref(), Some("stuck"));
/// assert_eq!(report.threads_left, 1);
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// The fiber's id.
    pub id: u64,
    /// The fiber's name, if it has one.
    pub name: Option<String>,
    /// The place where the fiber was spawned.
    pub location: &'static Location<'static>,
    /// The state of the fiber when the runtime abandoned it.
    pub phase: Phase,
    /// What the fiber waits for, if it is parked.
    pub reason: ParkReason,
}

/// The fibers and threads that a shutdown left behind.
///
/// ```
/// use std::time::Duration;
///
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// let report = rt.shutdown_timeout(Duration::from_secs(1));
/// assert!(report.is_clean());
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Fibers that did not end in time. Their threads, their stacks and what the runtime shares
    /// are left as they are.
    pub abandoned: Vec<Abandoned>,
    /// Threads left to those fibers. This includes threads on which a
    /// [`blocking`](crate::runtime::blocking) or [`compute`](crate::runtime::compute) call of
    /// theirs still runs.
    pub threads_left: usize,
}

impl ShutdownReport {
    /// Whether nothing was left behind.
    pub fn is_clean(&self) -> bool {
        self.abandoned.is_empty() && self.threads_left == 0
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(f, "every fiber ended");
        }
        let (fibers, threads) = (self.abandoned.len(), self.threads_left);
        write!(
            f,
            "{fibers} fibers did not end in time and keep {threads} threads:"
        )?;
        for left in &self.abandoned {
            write!(f, "\n  fiber {}", left.id)?;
            if let Some(name) = &left.name {
                write!(f, " '{name}'")?;
            }
            write!(
                f,
                ", spawned at {}:{}: ",
                left.location.file(),
                left.location.line()
            )?;
            match left.phase {
                Phase::Parked => write!(f, "parked ({})", left.reason)?,
                Phase::Unstarted => write!(f, "not started")?,
                _ => write!(f, "running or waiting for its thread")?,
            }
        }
        Ok(())
    }
}

/// How long step 5 waits for threads.
///
/// Threads without fibers end at once, but may need a moment to get a CPU. Threads that run
/// something that was abandoned never end.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Waits until then in any case.
    least: Instant,
    /// Waits until then if more threads are left than those of abandoned fibers.
    most: Instant,
    abandoned: usize,
}

impl Patience {
    /// Does not wait.
    pub(crate) fn none() -> Self {
        let now = Instant::now();
        Patience {
            least: now,
            most: now,
            abandoned: 0,
        }
    }

    /// Whether some threads will not end.
    pub(crate) fn is_for_abandoned(self) -> bool {
        self.abandoned > 0
    }

    /// The shorter wait, for threads that will hardly end.
    pub(crate) fn at_least(self) -> Self {
        Patience {
            most: self.least,
            ..self
        }
    }
}

/// Joins threads that were asked to end, and returns the number of those still running.
///
/// The calling thread is neither joined nor counted: it shuts its own runtime down, in a hook or in
/// a destructor of a thread-local, and ends after that.
pub(crate) fn join_until(
    patience: Patience,
    threads: impl Iterator<Item = ThreadHandle<()>>,
) -> usize {
    let mut threads: Vec<_> = threads
        .filter(|thread| !sys::thread::is_current(thread))
        .collect();
    loop {
        let left = still_running(threads);
        let until = if left.len() > patience.abandoned {
            patience.most
        } else {
            patience.least
        };
        if left.is_empty() || Instant::now() >= until {
            return left.len();
        }
        threads = left;
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Joins the threads that have ended, and returns the others.
pub(crate) fn still_running(threads: Vec<ThreadHandle<()>>) -> Vec<ThreadHandle<()>> {
    let left = threads.into_iter().map(sys::thread::try_join);
    left.filter_map(Result::err).collect()
}

impl Shared {
    pub(crate) fn shut_down(&self, timeout: Duration) -> ShutdownReport {
        if fork::in_child() {
            std::mem::forget(self.arc()); // F1: there are no threads to end, and none to ask
            return ShutdownReport::default();
        }
        let deadline = Instant::now().checked_add(timeout);
        self.close();
        let ended = self.wait_for_end(deadline);
        if !ended {
            // What is abandoned may wake, or be woken, at any time: all of this stays for ever.
            std::mem::forget(self.arc());
        }
        let (abandoned, keep_carriers) = self.list_abandoned();
        let mut threads_left = self.services.close(|| self.patience(deadline));
        threads_left += self.stop_threads(Patience {
            abandoned: keep_carriers,
            ..self.patience(deadline) // the others get a moment, too
        });
        ShutdownReport {
            abandoned,
            threads_left,
        }
    }

    /// Step 1. From here on workers drop fibers that have not started.
    fn close(&self) {
        self.closing.store(true, SeqCst);
        self.each_fiber(|fiber| fiber.state.request_cancel());
    }

    /// Steps 2 and 3; true if all fibers have ended.
    fn wait_for_end(&self, deadline: Option<Instant>) -> bool {
        loop {
            self.deliver_cancels(deadline);
            // Fibers that ran when they were cancelled may have parked since, without an unwind
            // permit. So look again now and then, and whenever fibers have ended.
            let pause = Instant::now() + Duration::from_millis(5);
            let until = deadline.map_or(pause, |deadline| deadline.min(pause));
            if self.wait_until(Some(until), |shared| shared.alive() == 0) {
                return true; // for good: spawns are refused
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return false;
            }
        }
    }

    /// Ends the parks of cancelled fibers, as far as the unwind limit allows.
    fn deliver_cancels(&self, deadline: Option<Instant>) {
        let mut full = false;
        self.each_fiber(|fiber| {
            // The fiber may have been spawned before spawns were refused, but not yet been listed
            // then.
            fiber.state.request_cancel();
            if full || !fiber.state.is_parked() {
                return;
            }
            if self.unwind_limit.is_full() {
                let soon = Instant::now() + Duration::from_millis(5);
                let soon = deadline.map_or(soon, |deadline| deadline.min(soon));
                full = !self.wait_until(Some(soon), |shared| !shared.unwind_limit.is_full());
            }
            full = full || self.deliver_cancel(fiber.fiber()) == Entry::Full; // retried next round
        });
    }

    /// Ends the park of a cancelled fiber, if the unwind limit allows.
    fn deliver_cancel(&self, fiber: FiberRef) -> Entry {
        let guard = context::disable_preempt();
        let entry = self.unwind_limit.enter(&fiber.unwind_permit);
        if entry == Entry::Full {
            return entry;
        }
        let mut kept = None;
        if fiber.state.deliver_cancel() == Notify::Enqueue {
            kept = wake::enqueue(&guard, fiber);
        } else if entry == Entry::New {
            self.unwind_limit.leave(&fiber.unwind_permit); // `Cancel::Disabled`, or not parked now
        }
        drop(guard);
        drop(kept);
        entry
    }

    /// Step 4: the abandoned fibers, and how many of them keep a carrier for themselves.
    fn list_abandoned(&self) -> (Vec<Abandoned>, usize) {
        let mut list = Vec::new();
        let mut keep_carriers = 0;
        self.each_fiber(|fiber| {
            let away = fiber.phase() == Phase::Parked && wake::thread_of(fiber.fiber()).is_none();
            keep_carriers += usize::from(!away);
            list.push(Abandoned {
                id: fiber.id(),
                name: fiber.name().map(str::to_owned),
                location: fiber.location(),
                phase: fiber.phase(),
                reason: fiber.reason(),
            });
        });
        list.sort_by_key(|fiber| fiber.id);
        (list, keep_carriers)
    }

    /// How long to wait from now on; threads get a moment even after the deadline.
    pub(crate) fn patience(&self, deadline: Option<Instant>) -> Patience {
        let now = Instant::now();
        let not_before = |at: Instant| deadline.map_or(at, |deadline| deadline.max(at));
        Patience {
            least: not_before(now + Duration::from_millis(50)),
            most: not_before(now + Duration::from_secs(5)),
            abandoned: usize::try_from(self.alive()).unwrap_or(usize::MAX),
        }
    }

    /// Step 5: ends all threads that come back to the scheduler; returns the number of the others.
    pub(crate) fn stop_threads(&self, patience: Patience) -> usize {
        self.stopping.store(true, SeqCst);
        // Frozen carriers continue: they may hold something that we need to finish.
        for carrier in self.carriers.iter() {
            carrier.parker.notify();
        }
        self.io_poller.stop();
        self.leave_epoll();
        let collector = self.watchers.dismiss_collector();
        let stuck = join_until(patience, collector.into_iter());
        self.watchers.stop();
        for carrier in self.carriers.iter() {
            carrier.parker.notify();
        }
        let guard = context::disable_preempt();
        let threads = lock(&self.threads).take_all();
        drop(guard);
        let threads = threads.into_iter().chain(self.close_reports(stuck == 0));
        let left = join_until(patience, threads);
        self.forget_listeners();
        self.log_bound(); // what the collector was asked for last
        io::drop_deferred_runtimes(); // what was left there after the collector had ended
        left + stuck
    }

    /// Calls `see` with every fiber of this runtime that is not off its stack for good.
    pub(crate) fn each_fiber(&self, mut see: impl FnMut(Held)) {
        let me = std::ptr::from_ref(self).cast_mut().cast::<()>();
        slab::every_record(|fiber| {
            let here = fiber.runtime.load(Relaxed) == me;
            if here && fiber.state.phase() != Phase::Done {
                see(fiber);
            }
        });
    }

    /// Blocks the calling thread until `done`; false if the deadline passes first.
    ///
    /// Checks `done` again whenever fibers have ended. False at once in the child of a fork, where
    /// no fiber will end.
    pub(crate) fn wait_until(
        &self,
        deadline: Option<Instant>,
        done: impl Fn(&Shared) -> bool,
    ) -> bool {
        if fork::in_child() {
            return false;
        }
        self.observers.fetch_add(1, SeqCst);
        // A fiber that ends from here on sees us, or we see its count. Without a barrier that is
        // true soon, but not for certain now, so we look again (S18).
        let sure = heavy_barrier();
        let result = loop {
            let seen = self.ended.load(SeqCst); // before the check
            if done(self) {
                break true;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            let most = (!sure).then_some(UNSURE);
            let left = left.into_iter().chain(most).min();
            futex::wait(&self.ended, seen, left); // returns at once if there was an end since
        };
        self.observers.fetch_sub(1, SeqCst);
        result
    }

    #[cold]
    pub(crate) fn tell_observers(&self) {
        let _guard = context::disable_preempt();
        self.ended.fetch_add(1, SeqCst);
        futex::wake_all(&self.ended);
    }
}
