//! Waiting for something that another one does under the same lock.
//!
//! The order: on the list, then the mutex is let go, then sleep. So who changes what the mutex protects after that
//! finds the waiter. Woken, out of time or asked to end, it takes the mutex again first, and nothing keeps it from that:
//! the caller, and its destructors, have the guard whatever happened.

use std::fmt;
use std::ops::DerefMut;
use std::sync::{LockResult, PoisonError};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::wake::Waiter;
use crate::sync::mutex::MutexGuard;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited};
use crate::sync::raw_mutex::RawMutex;
use crate::sync::tickets::{self, One, Tickets};
use crate::util::loom::const_fn;

/// Lets who holds a [`Mutex`](crate::sync::Mutex) wait, without it, until somebody says that something has changed.
///
/// As [`std::sync::Condvar`]. A wait may end for no reason: use [`wait_while`](Self::wait_while), or look again. A fiber
/// that was asked to end gets the mutex back before it unwinds. Those who wait are woken in their order.
///
/// ```
/// use indent::sync::{Condvar, Mutex};
///
/// static QUEUE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// static FILLED: Condvar = Condvar::new();
///
/// let taker = indent::spawn(|| {
///     let queue = QUEUE.lock().unwrap();
///     FILLED.wait_while(queue, |queue| queue.is_empty()).unwrap().pop()
/// });
/// QUEUE.lock().unwrap().push(7);
/// FILLED.notify_one();
/// assert_eq!(taker.join().unwrap(), Some(7));
/// ```
pub struct Condvar {
    /// Who comes after [`notify_all`](Self::notify_all) is not meant.
    queue: Queue<Tickets, u64>,
}

/// Whether the time was over.
///
/// ```
/// use indent::sync::{Condvar, Mutex};
/// use std::time::Duration;
///
/// let mutex = Mutex::new(());
/// let (_guard, result) =
///     Condvar::new().wait_timeout(mutex.lock().unwrap(), Duration::from_millis(1)).unwrap();
/// assert!(result.timed_out());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the time was over before a notification came.
    ///
    /// ```
    /// # use indent::sync::{Condvar, Mutex};
    /// # use std::time::Duration;
    /// let mutex = Mutex::new(3);
    /// let guard = mutex.lock().unwrap();
    /// let never = |n: &mut i32| *n < 3;
    /// let (_, result) = Condvar::new().wait_timeout_while(guard, Duration::ZERO, never).unwrap();
    /// assert!(!result.timed_out());
    /// ```
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// Waiting: with a ticket, and without the mutex.
struct Wait<'a> {
    mutex: &'a RawMutex,
    owner: usize,
    ticket: u64,
    /// It was notified, though its wait ended otherwise (L9).
    owed: bool,
}

impl Plan<Tickets, u64, Waiter> for Wait<'_> {
    type Answer = ();

    fn look(&mut self, queue: &mut Locked<'_, Tickets, u64, Waiter>, ticket: &mut u64) -> Look<()> {
        self.ticket = queue.state().next();
        *ticket = self.ticket;
        Look::Behind
    }

    fn queued(&mut self) {
        self.mutex.unlock(self.owner);
    }

    fn leave(&mut self, queue: &mut Locked<'_, Tickets, u64, Waiter>) {
        self.owed = queue.state().owes(self.ticket);
    }
}

impl Condvar {
    const_fn! {
        /// Nobody waits.
        ///
        /// ```
        /// static CHANGED: indent::sync::Condvar = indent::sync::Condvar::new();
        /// ```
        pub const fn new() -> Self {
            Condvar { queue: Queue::new(Tickets::new()) }
        }
    }

    /// Lets the mutex go, waits, and takes it again.
    ///
    /// # Errors
    /// If the mutex is poisoned then; the error has the guard.
    ///
    /// ```
    /// # use indent::sync::{Condvar, Mutex};
    /// let (done, changed) = (Mutex::new(false), Condvar::new());
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         *done.lock().unwrap() = true;
    ///         changed.notify_all();
    ///     });
    ///     let mut done = done.lock().unwrap();
    ///     while !*done {
    ///         done = changed.wait(done).unwrap();
    ///     }
    /// });
    /// ```
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None).0
    }

    /// Waits for as long as the condition is true.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use indent::sync::{Condvar, Mutex};
    /// let mutex = Mutex::new(1);
    /// let guard = Condvar::new().wait_while(mutex.lock().unwrap(), |n| *n == 0).unwrap();
    /// assert_eq!(*guard, 1);
    /// ```
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        let mut guard = guard;
        while condition(guard.deref_mut()) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`wait`](Self::wait), for at most this long, not counting the time until the mutex is free again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use indent::sync::{Condvar, Mutex};
    /// # use std::time::Duration;
    /// let mutex = Mutex::new(1);
    /// let soon = Duration::from_millis(1);
    /// let (guard, result) = Condvar::new().wait_timeout(mutex.lock().unwrap(), soon).unwrap();
    /// assert!(result.timed_out() && *guard == 1);
    /// ```
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = Instant::now().checked_add(timeout);
        let (guard, result) = self.wait_until(guard, deadline);
        with(guard, result)
    }

    /// Waits for as long as the condition is true, for at most this long altogether.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use indent::sync::{Condvar, Mutex};
    /// # use std::time::Duration;
    /// let mutex = Mutex::new(1);
    /// let soon = Duration::from_millis(1);
    /// let (_, result) =
    ///     Condvar::new().wait_timeout_while(mutex.lock().unwrap(), soon, |n| *n == 1).unwrap();
    /// assert!(result.timed_out());
    /// ```
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = Instant::now().checked_add(timeout);
        let mut guard = guard;
        loop {
            if !condition(guard.deref_mut()) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            let (next, result) = self.wait_until(guard, deadline);
            guard = match next {
                Ok(guard) => guard,
                poisoned => return with(poisoned, result),
            };
        }
    }

    /// Wakes the one who has waited for longest, if somebody waits.
    ///
    /// ```
    /// indent::sync::Condvar::new().notify_one(); // nobody: it is not kept
    /// ```
    pub fn notify_one(&self) {
        loop {
            let mut queue = self.queue.lock();
            match tickets::take_one(&mut queue) {
                One::Taken | One::Nobody => return,
                One::Again => {}
            }
        }
    }

    /// Wakes all who wait now.
    ///
    /// ```
    /// indent::sync::Condvar::new().notify_all();
    /// ```
    pub fn notify_all(&self) {
        let mut queue = self.queue.lock();
        queue.state().tell_all();
        tickets::call_owed(&self.queue, queue);
    }

    fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> (LockResult<MutexGuard<'a, T>>, WaitTimeoutResult) {
        park::charge_ahead(); // with the guard: it may give way, or unwind
        let (mutex, owner) = guard.leave();
        let until = Until::open(deadline, ParkReason::Condvar);
        let mut wait = Wait {
            mutex: mutex.raw(),
            owner,
            ticket: 0,
            owed: false,
        };
        let waited = self.queue.wait(0, &until, &mut wait);
        let guard = mutex.lock_again();
        match waited {
            Waited::Called(_) | Waited::Done(()) => (guard, WaitTimeoutResult(false)),
            _ if wait.owed => (guard, WaitTimeoutResult(false)),
            Waited::TimedOut => (guard, WaitTimeoutResult(true)),
            Waited::Cancelled => {
                let _guard = guard; // dropped on the way out
                park::unwind_cancelled()
            }
        }
    }
}

fn with<G>(guard: LockResult<G>, result: WaitTimeoutResult) -> LockResult<(G, WaitTimeoutResult)> {
    match guard {
        Ok(guard) => Ok((guard, result)),
        Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), result))),
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
