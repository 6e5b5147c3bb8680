//! `Once`: a closure that runs once, while other callers wait for it.
//!
//! The phases are *new* → *running* → *complete*. *Running* goes back to *new* if the closure
//! unwinds because of a cancellation, and on to *poisoned* if it panics. The phase is one byte that
//! changes under the lock of the queue. It is read without the lock: a caller that finds *complete*
//! also sees the effects of the closure. A waiter has a ticket (`tickets.rs`), is notified when the
//! closure no longer runs, and then checks the phase again: one of the waiters may have to run the
//! closure then.

use std::fmt;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::{Queue, Until, Waited};
use crate::sync::raw_mutex::owner_id;
use crate::sync::tickets::{self, Ticketed, Tickets, WithTicket};
use crate::util::loom::const_fn;

const NEW: u8 = 0;
const RUNNING: u8 = 1;
const COMPLETE: u8 = 2;
const POISONED: u8 = 3;

/// Runs a closure once: that of the first caller.
///
/// Corresponds to [`std::sync::Once`]: if the closure panics, every later call panics. If the
/// closure unwinds because its fiber is cancelled, the next caller runs its own closure.
///
/// ```
/// use indent::sync::Once;
///
/// static START: Once = Once::new();
///
/// START.call_once(|| println!("for the first time"));
/// START.call_once(|| unreachable!());
/// assert!(START.is_completed());
/// ```
pub struct Once {
    phase: AtomicU8,
    queue: Queue<Runner, u64>,
}

/// The state under the lock.
struct Runner {
    /// The id of the fiber or thread that runs the closure, while it runs.
    name: usize,
    tickets: Tickets,
}

impl Ticketed for Runner {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

/// The argument of the closure of [`Once::call_once_force`].
///
/// ```
/// indent::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
/// ```
#[derive(Debug)]
pub struct OnceState {
    poisoned: bool,
}

impl OnceState {
    /// Whether an earlier closure panicked.
    ///
    /// ```
    /// indent::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }
}

impl Once {
    const_fn! {
        /// Creates a `Once` whose closure has not run.
        ///
        /// ```
        /// static START: indent::sync::Once = indent::sync::Once::new();
        /// ```
        pub const fn new() -> Self {
            let runner = Runner { name: 0, tickets: Tickets::new() };
            Once { phase: AtomicU8::new(NEW), queue: Queue::new(runner) }
        }
    }

    /// Whether the closure has completed.
    ///
    /// ```
    /// assert!(!indent::sync::Once::new().is_completed());
    /// ```
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.phase.load(Acquire) == COMPLETE
    }

    /// Runs `f` unless a closure has completed, or blocks until a running one has.
    ///
    /// # Panics
    /// If an earlier closure panicked, or if `f` uses this `Once` itself.
    ///
    /// ```
    /// let once = indent::sync::Once::new();
    /// let mut calls = 0;
    /// once.call_once(|| calls += 1);
    /// once.call_once(|| calls += 1);
    /// assert_eq!(calls, 1);
    /// ```
    pub fn call_once(&self, f: impl FnOnce()) {
        if self.is_completed() {
            return;
        }
        if let Begun::Run(run) = self.begin(false, None) {
            f();
            run.complete();
        }
    }

    /// As [`call_once`](Self::call_once), but waits for a running closure for at most `timeout`.
    ///
    /// Returns false if that closure is still running. The time that `f` itself takes is not
    /// limited.
    ///
    /// # Panics
    /// As [`call_once`](Self::call_once).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let once = indent::sync::Once::new();
    /// let soon = Duration::from_millis(1);
    /// once.call_once(|| {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| assert!(!once.call_once_timeout(soon, || unreachable!())));
    ///     });
    /// });
    /// assert!(once.call_once_timeout(Duration::ZERO, || unreachable!()));
    /// ```
    #[must_use = "the closure may not have completed"]
    pub fn call_once_timeout(&self, timeout: Duration, f: impl FnOnce()) -> bool {
        if self.is_completed() {
            return true;
        }
        match self.begin(false, Instant::now().checked_add(timeout)) {
            Begun::Run(run) => {
                f();
                run.complete();
                true
            }
            Begun::Complete => true,
            Begun::TimedOut => false,
        }
    }

    /// As [`call_once`](Self::call_once), but also runs `f` if an earlier closure panicked.
    ///
    /// # Panics
    /// If `f` uses this `Once` itself.
    ///
    /// ```
    /// use std::panic::{catch_unwind, resume_unwind};
    ///
    /// let once = indent::sync::Once::new();
    /// let panics = || once.call_once(|| resume_unwind(Box::new("no luck")));
    /// assert!(catch_unwind(panics).is_err());
    /// assert!(catch_unwind(|| once.call_once(|| ())).is_err());
    /// once.call_once_force(|state| assert!(state.is_poisoned()));
    /// assert!(once.is_completed());
    /// ```
    pub fn call_once_force(&self, f: impl FnOnce(&OnceState)) {
        if self.is_completed() {
            return;
        }
        if let Begun::Run(run) = self.begin(true, None) {
            f(&OnceState {
                poisoned: run.poisoned,
            });
            run.complete();
        }
    }

    /// Blocks until a closure has completed.
    ///
    /// # Panics
    /// If an earlier closure panicked.
    ///
    /// ```
    /// let once = indent::sync::Once::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| once.call_once(|| ()));
    ///     once.wait();
    /// });
    /// ```
    pub fn wait(&self) {
        self.wait_until(false, None);
    }

    /// Blocks until a closure has completed, for at most `timeout`. Returns whether one has.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Once::new().wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "the closure may not have completed"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(false, Instant::now().checked_add(timeout))
    }

    /// As [`wait`](Self::wait), but after a panic waits for another closure.
    ///
    /// # Panics
    /// If the closure waits for itself.
    ///
    /// ```
    /// let once = indent::sync::Once::new();
    /// let panics = || once.call_once(|| std::panic::resume_unwind(Box::new("no luck")));
    /// assert!(std::panic::catch_unwind(panics).is_err());
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| once.call_once_force(|_| ()));
    ///     once.wait_force();
    /// });
    /// ```
    pub fn wait_force(&self) {
        self.wait_until(true, None);
    }

    /// Waits until a closure has completed. Returns false if the deadline passes first.
    pub(crate) fn wait_until(&self, force: bool, deadline: Option<Instant>) -> bool {
        let me = owner_id(park::charge_caller());
        let request = Request {
            me,
            runs: false,
            force,
        };
        while !self.is_completed() {
            if let Found::TimedOut = self.look(request, deadline) {
                return self.is_completed();
            }
        }
        true
    }

    /// Acquires the right to run a closure; with `force` also after a panic.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(&self, force: bool, deadline: Option<Instant>) -> Begun<'_> {
        let me = owner_id(park::charge_caller());
        let request = Request {
            me,
            runs: true,
            force,
        };
        loop {
            match self.look(request, deadline) {
                Found::Free { poisoned } => {
                    return Begun::Run(Run {
                        once: self,
                        poisoned,
                    });
                }
                Found::Complete => return Begun::Complete,
                Found::Left => {}
                Found::TimedOut if self.is_completed() => return Begun::Complete,
                Found::TimedOut => return Begun::TimedOut,
            }
        }
    }

    /// Returns the state of this `Once`, after a wait if it is running.
    fn look(&self, request: Request, deadline: Option<Instant>) -> Found {
        let until = Until::cancellable(deadline, ParkReason::Once);
        let mut wait = WithTicket::unless(|runner: &mut Runner| self.see(request, runner));
        match self.queue.wait(0, &until, &mut wait) {
            Waited::Done(Ok(found)) => found,
            Waited::Done(Err(why)) => panic!("{why}"),
            Waited::Notified(_) => Found::Left,
            Waited::TimedOut => Found::TimedOut,
            Waited::Cancelled => park::unwind_cancelled(),
        }
    }

    /// Under the lock: returns the state, or `None` if the caller has to wait.
    fn see(&self, request: Request, runner: &mut Runner) -> Option<Result<Found, &'static str>> {
        match self.phase.load(Relaxed) {
            COMPLETE => Some(Ok(Found::Complete)),
            RUNNING if runner.name == request.me => Some(Err(OWN)),
            POISONED if !request.force => Some(Err(POISON)),
            phase @ (NEW | POISONED) if request.runs => {
                self.phase.store(RUNNING, Relaxed);
                runner.name = request.me;
                let poisoned = phase == POISONED;
                Some(Ok(Found::Free { poisoned }))
            }
            _ => None,
        }
    }

    /// Ends the run with this phase and notifies the waiters, which check the phase again.
    fn end(&self, phase: u8) {
        let mut queue = self.queue.lock();
        self.phase.store(phase, Release);
        queue.state().tickets.owe_all();
        tickets::notify_owed(&self.queue, queue);
    }
}

const POISON: &str =
    "this Once is poisoned: an earlier closure panicked; use call_once_force to run another";
const OWN: &str = "cannot use this Once inside its own closure: the closure would wait for itself; \
    do not call or wait for it there";

/// What a caller requests.
#[derive(Clone, Copy)]
struct Request {
    /// The id of the caller.
    me: usize,
    /// The caller has a closure to run.
    runs: bool,
    /// Also after a panic.
    force: bool,
}

enum Found {
    /// The caller has the right to run its closure.
    Free {
        poisoned: bool,
    },
    Complete,
    /// The closure no longer runs.
    Left,
    TimedOut,
}

/// The result of a request to run a closure.
#[must_use]
pub(crate) enum Begun<'a> {
    Run(Run<'a>),
    Complete,
    /// Another caller's closure is still running.
    TimedOut,
}

/// The right to run a closure. Ends by `complete`, or by unwinding.
#[must_use]
pub(crate) struct Run<'a> {
    once: &'a Once,
    poisoned: bool,
}

impl Run<'_> {
    pub(crate) fn complete(self) {
        self.once.end(COMPLETE);
        std::mem::forget(self);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let cancelled = !std::thread::panicking() || park::unwinds_as_told();
        let before = if self.poisoned { POISONED } else { NEW };
        self.once.end(if cancelled { before } else { POISONED });
    }
}

impl Default for Once {
    fn default() -> Self {
        Once::new()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("is_completed", &self.is_completed())
            .finish_non_exhaustive()
    }
}
