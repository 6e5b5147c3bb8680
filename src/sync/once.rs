//! Something that is done once, by the first who comes; the others wait for it.
//!
//! *New* → *running* → *complete*, or back to new if who ran it was told to end, or on to *poisoned* if it panicked. The
//! phase is one byte that changes under the lock of the queue, but for reading: who finds *complete* needs no lock, and
//! sees what the closure has done. Who waits has a ticket (`tickets.rs`), is called when it is no longer running, and looks
//! again: one of them may have to run it then.

use std::fmt;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sync::queue::{Queue, Until, Waited};
use crate::sync::raw_mutex::name_of;
use crate::sync::tickets::{self, Ticketed, Tickets, WithTicket};
use crate::util::loom::const_fn;

const NEW: u8 = 0;
const RUNNING: u8 = 1;
const COMPLETE: u8 = 2;
const POISONED: u8 = 3;

/// Something that is done once.
///
/// As [`std::sync::Once`]: if the closure panics every later call panics. A fiber that was told to end in it leaves it to
/// the next one.
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

/// Under the lock.
struct Runner {
    /// Who runs it, by name, while somebody does.
    name: usize,
    tickets: Tickets,
}

impl Ticketed for Runner {
    fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }
}

/// What the closure of [`Once::call_once_force`] is told.
///
/// ```
/// indent::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
/// ```
#[derive(Debug)]
pub struct OnceState {
    poisoned: bool,
}

impl OnceState {
    /// Whether it panicked before.
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
        /// It is not done.
        ///
        /// ```
        /// static START: indent::sync::Once = indent::sync::Once::new();
        /// ```
        pub const fn new() -> Self {
            let runner = Runner { name: 0, tickets: Tickets::new() };
            Once { phase: AtomicU8::new(NEW), queue: Queue::new(runner) }
        }
    }

    /// Whether it is done.
    ///
    /// ```
    /// assert!(!indent::sync::Once::new().is_completed());
    /// ```
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.phase.load(Acquire) == COMPLETE
    }

    /// Calls `f` unless somebody did before, or waits until he has.
    ///
    /// # Panics
    /// If a call has panicked, or if `f` calls this again, or waits for it.
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

    /// As [`call_once`](Self::call_once), but waits for another's call for at most this long; false if that is not over.
    /// What `f` itself takes does not count.
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
    #[must_use = "it may not be done"]
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

    /// As [`call_once`](Self::call_once), also after a panic.
    ///
    /// # Panics
    /// If `f` calls this again.
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

    /// Waits until somebody has done it.
    ///
    /// # Panics
    /// If a call has panicked.
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

    /// Waits until somebody has done it, for at most this long; false if nobody has.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert!(!indent::sync::Once::new().wait_timeout(Duration::from_millis(1)));
    /// ```
    #[must_use = "it may not be done"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(false, Instant::now().checked_add(timeout))
    }

    /// As [`wait`](Self::wait), and after a panic for another call.
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

    /// Waits until it is done; false if the time is over first.
    pub(crate) fn wait_until(&self, force: bool, deadline: Option<Instant>) -> bool {
        let me = name_of(park::charge_caller());
        let wish = Wish {
            me,
            runs: false,
            force,
        };
        while !self.is_completed() {
            if let Found::TimedOut = self.look(wish, deadline) {
                return self.is_completed();
            }
        }
        true
    }

    /// The right to run it, also after a panic if that is wished.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(&self, force: bool, deadline: Option<Instant>) -> Begun<'_> {
        let me = name_of(park::charge_caller());
        let wish = Wish {
            me,
            runs: true,
            force,
        };
        loop {
            match self.look(wish, deadline) {
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

    /// What there is, perhaps after a wait.
    fn look(&self, wish: Wish, deadline: Option<Instant>) -> Found {
        let until = Until::open(deadline, ParkReason::Once);
        let mut wait = WithTicket::unless(|runner: &mut Runner| self.see(wish, runner));
        match self.queue.wait(0, &until, &mut wait) {
            Waited::Done(Ok(found)) => found,
            Waited::Done(Err(why)) => panic!("{why}"),
            Waited::Called(_) => Found::Left,
            Waited::TimedOut => Found::TimedOut,
            Waited::Cancelled => park::unwind_cancelled(),
        }
    }

    /// Under the lock: what there is, or `None` if the caller has to wait.
    fn see(&self, wish: Wish, runner: &mut Runner) -> Option<Result<Found, &'static str>> {
        match self.phase.load(Relaxed) {
            COMPLETE => Some(Ok(Found::Complete)),
            RUNNING if runner.name == wish.me => Some(Err(OWN)),
            POISONED if !wish.force => Some(Err(POISON)),
            phase @ (NEW | POISONED) if wish.runs => {
                self.phase.store(RUNNING, Relaxed);
                runner.name = wish.me;
                let poisoned = phase == POISONED;
                Some(Ok(Found::Free { poisoned }))
            }
            _ => None,
        }
    }

    /// Nobody runs it any more: those who wait look again.
    fn end(&self, phase: u8) {
        let mut queue = self.queue.lock();
        self.phase.store(phase, Release);
        queue.state().tickets.tell_all();
        tickets::call_owed(&self.queue, queue);
    }
}

const POISON: &str =
    "this Once is poisoned: a closure it ran has panicked; call_once_force would run another";
const OWN: &str = "the closure of this Once calls it again, or waits for it, and would wait for itself: do not use what it makes inside";

/// What somebody wants of it.
#[derive(Clone, Copy)]
struct Wish {
    /// His name.
    me: usize,
    /// He would run it himself.
    runs: bool,
    /// Also after a panic.
    force: bool,
}

enum Found {
    /// It is the caller's to run.
    Free {
        poisoned: bool,
    },
    Complete,
    /// Who ran it has left it, one way or other.
    Left,
    TimedOut,
}

/// What became of the wish to run it.
#[must_use]
pub(crate) enum Begun<'a> {
    Run(Run<'a>),
    Complete,
    /// Somebody else runs it still.
    TimedOut,
}

/// The right to run it: done, or left by unwinding.
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
        let told = !std::thread::panicking() || park::unwinds_as_told();
        let before = if self.poisoned { POISONED } else { NEW };
        self.once.end(if told { before } else { POISONED });
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
