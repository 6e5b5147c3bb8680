//! Waiting, with a mutex, for a change that another fiber or thread makes.
//!
//! The order is: enter the queue, unlock the mutex, sleep. So a caller that changes the protected
//! value after the unlock finds the waiter. When notified, timed out or cancelled, the waiter first
//! locks the mutex again, ignoring cancellation: the caller and its destructors have the guard in
//! every case.

use std::fmt;
use std::ops::DerefMut;
use std::sync::{LockResult, PoisonError};
use std::time::{Duration, Instant};

use crate::fiber::reason::ParkReason;
use crate::park;
use crate::sched::block::wake::Waiter;
use crate::sync::mutex::MutexGuard;
use crate::sync::queue::{Locked, Look, Plan, Queue, Until, Waited};
use crate::sync::raw_mutex::RawMutex;
use crate::sync::tickets::{self, One, Tickets};
use crate::util::loom::const_fn;

/// A condition variable, used with a [`Mutex`](crate::sync::Mutex).
///
/// Corresponds to [`std::sync::Condvar`]. A wait may end without a notification: use
/// [`wait_while`](Self::wait_while), or check the condition again. A cancelled fiber gets the mutex
/// back before it unwinds. Waiters are notified first come, first served.
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
    /// The tickets exclude waiters that come after [`notify_all`](Self::notify_all).
    queue: Queue<Tickets, u64>,
}

/// Whether a wait has timed out.
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
    /// True if the time passed before a notification came.
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

/// The plan of a wait: with a ticket, and without the mutex.
struct Wait<'a> {
    mutex: &'a RawMutex,
    owner: usize,
    ticket: u64,
    /// Whether the waiter was owed a notification when it withdrew (L9).
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
        /// Creates a condition variable.
        ///
        /// ```
        /// static CHANGED: indent::sync::Condvar = indent::sync::Condvar::new();
        /// ```
        pub const fn new() -> Self {
            Condvar { queue: Queue::new(Tickets::new()) }
        }
    }

    /// Unlocks the mutex, blocks until notified, and locks the mutex again.
    ///
    /// # Errors
    /// If the mutex is poisoned then; the error contains the guard.
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

    /// Waits while the condition is true.
    ///
    /// # Errors
    /// As of [`wait`](Self::wait).
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

    /// Waits as [`wait`](Self::wait) for at most `timeout`, not counting the time to lock the mutex
    /// again.
    ///
    /// # Errors
    /// As of [`wait`](Self::wait).
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

    /// Waits while the condition is true, for at most `timeout` in total.
    ///
    /// # Errors
    /// As of [`wait`](Self::wait).
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

    /// Notifies the waiter that has waited longest, if there is one.
    ///
    /// ```
    /// indent::sync::Condvar::new().notify_one(); // no waiter: the notification is not kept
    /// ```
    pub fn notify_one(&self) {
        loop {
            let mut queue = self.queue.lock();
            match tickets::take_one(&mut queue) {
                One::Taken | One::NoWaiter => return,
                One::Again => {}
            }
        }
    }

    /// Notifies all present waiters.
    ///
    /// ```
    /// indent::sync::Condvar::new().notify_all();
    /// ```
    pub fn notify_all(&self) {
        let mut queue = self.queue.lock();
        queue.state().owe_all();
        tickets::notify_owed(&self.queue, queue);
    }

    fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> (LockResult<MutexGuard<'a, T>>, WaitTimeoutResult) {
        park::charge_ahead(); // with the guard held, since this may yield or unwind
        let (mutex, owner) = guard.leave();
        let until = Until::cancellable(deadline, ParkReason::Condvar);
        let mut wait = Wait {
            mutex: mutex.raw(),
            owner,
            ticket: 0,
            owed: false,
        };
        let waited = self.queue.wait(0, &until, &mut wait);
        let guard = mutex.relock();
        match waited {
            Waited::Notified(_) | Waited::Done(()) => (guard, WaitTimeoutResult(false)),
            _ if wait.owed => (guard, WaitTimeoutResult(false)),
            Waited::TimedOut => (guard, WaitTimeoutResult(true)),
            Waited::Cancelled => {
                let _guard = guard; // dropped by the unwinding
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
