//! Something that is done once, by the first who comes; the others wait for it.
//!
//! *New* → *running* → *complete*, or back to new if who ran it was told to end, or on to *poisoned* if it panicked. The
//! phase is one byte that changes under the lock of the queue, but for reading: who finds *complete* needs no lock, and
//! sees what the closure has done. Who waits is called when it is no longer running, and looks again: one of them may have to
//! run it then.

use std::fmt;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::base::loom::const_fn;
use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited};
use crate::sync::raw_mutex::name_of;

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
    /// Who runs it, by name; zero if that is a plain thread.
    queue: Queue<usize, ()>,
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
            Once { phase: AtomicU8::new(NEW), queue: Queue::new(0) }
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
    /// If a call has panicked, or if `f` calls this again.
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
        if let Some(run) = self.begin(false) {
            f();
            run.complete();
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
        if let Some(run) = self.begin(true) {
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
        self.wait_until_done(false);
    }

    /// The same, and after a panic for another run.
    pub(crate) fn wait_until_done(&self, force: bool) {
        park::charge_ahead();
        while !self.is_completed() {
            self.look(Wish::Result { force });
        }
    }

    /// The right to run it, also after a panic if that is wished; `None` once somebody else has.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(&self, force: bool) -> Option<Run<'_>> {
        let me = name_of(park::charge_caller());
        loop {
            match self.look(Wish::Run { me, force }) {
                Some(Found::Free { poisoned }) => {
                    return Some(Run {
                        once: self,
                        poisoned,
                    });
                }
                Some(Found::Complete) => return None,
                None => {} // who ran it has left it, one way or other
            }
        }
    }

    /// What there is, or `None` after a wait.
    fn look(&self, wish: Wish) -> Option<Found> {
        let open = Until::open(None, ParkReason::Once);
        match self.queue.wait((), &open, &mut See { once: self, wish }) {
            Waited::Done(Ok(found)) => Some(found),
            Waited::Done(Err(why)) => panic!("{why}"),
            Waited::Called(()) => None,
            Waited::TimedOut => unreachable!("there was no deadline"),
            Waited::Cancelled => park::unwind_cancelled(),
        }
    }

    /// Nobody runs it any more: those who wait look again.
    fn end(&self, phase: u8) {
        let mut queue = self.queue.lock();
        self.phase.store(phase, Release);
        loop {
            while queue.take().is_some() {}
            if !queue.finish() {
                return;
            }
            queue = self.queue.lock();
        }
    }
}

const POISON: &str =
    "this Once is poisoned: a closure it ran has panicked; call_once_force would run another";
const OWN: &str = "the closure of this Once calls it again and would wait for itself: do not use what it makes inside";

/// What somebody wants of it; `force`: also after a panic.
#[derive(Clone, Copy)]
enum Wish {
    /// To run it.
    Run { me: usize, force: bool },
    /// That it is done.
    Result { force: bool },
}

enum Found {
    /// It is the caller's to run.
    Free {
        poisoned: bool,
    },
    Complete,
}

/// Looking at it, and waiting while somebody runs it.
struct See<'a> {
    once: &'a Once,
    wish: Wish,
}

impl Plan<usize, (), Waiter> for See<'_> {
    type Answer = Result<Found, &'static str>;

    fn look(
        &mut self,
        queue: &mut Locked<'_, usize, (), Waiter>,
        (): &mut (),
    ) -> Look<Self::Answer> {
        let phase = self.once.phase.load(Relaxed);
        match (phase, self.wish) {
            (COMPLETE, _) => Look::Done(Ok(Found::Complete)),
            (POISONED, Wish::Run { force: false, .. } | Wish::Result { force: false }) => {
                Look::Done(Err(POISON))
            }
            (NEW | POISONED, Wish::Run { me, .. }) => {
                self.once.phase.store(RUNNING, Relaxed);
                *queue.state() = me;
                let poisoned = phase == POISONED;
                Look::Done(Ok(Found::Free { poisoned }))
            }
            (_, Wish::Run { me, .. }) if me != 0 && *queue.state() == me => Look::Done(Err(OWN)),
            _ => Look::Behind,
        }
    }
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
