#![expect(unsafe_code, reason = "takes results out of records; see I4")]
//! Waiting for a fiber's result.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use crate::error::JoinError;
use crate::fiber::Held;
use crate::fiber::job::{self, Job};
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::park::{self, Unparker};
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context;
use crate::sched::workers::run;
use crate::sys::fork;
use crate::task::Fiber;

/// The handle to wait for a fiber and take its result.
///
/// Dropping it detaches the fiber, which continues to run. It corresponds to
/// [`std::thread::JoinHandle`].
///
/// ```
/// let fiber = indent::spawn(|| "done");
/// assert_eq!(fiber.join().unwrap(), "done");
///
/// drop(indent::spawn(|| "detached"));
/// ```
#[must_use = "dropping the handle detaches the fiber; say so with `drop`"]
pub struct JoinHandle<T> {
    fiber: Held,
    _result: PhantomData<fn() -> T>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(fiber: Held) -> Self {
        JoinHandle {
            fiber,
            _result: PhantomData,
        }
    }

    /// Waits for the fiber and returns the result of its closure.
    ///
    /// Blocks the calling fiber or plain thread. If the calling fiber is cancelled, it unwinds, and
    /// the joined fiber continues, detached.
    ///
    /// # Errors
    /// If the fiber panicked, was cancelled or could not start; and in the child of a
    /// [fork](crate::runtime#fork), if it had not finished ([`JoinError::is_forked`]).
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(indent::spawn(|| 6 * 7).join().unwrap(), 42);
    /// let failed = indent::spawn(|| std::panic::resume_unwind(Box::new("no luck")));
    /// assert!(failed.join().is_err_and(|error| error.is_panic()));
    /// ```
    pub fn join(self) -> Result<T, JoinError> {
        match self.wait(None, Cancel::Enabled) {
            Woken::ByCancel => park::unwind_cancelled(),
            _ => self.into_result(),
        }
    }

    /// Waits for the fiber for at most `timeout`; see [`join`](Self::join).
    ///
    /// # Errors
    /// The handle itself, if the timeout expires first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let fiber = indent::spawn(indent::park::park);
    /// let fiber = fiber.join_timeout(Duration::from_millis(1)).unwrap_err();
    /// fiber.unparker().unpark();
    /// assert!(fiber.join_timeout(Duration::from_secs(60)).unwrap().is_ok());
    /// ```
    pub fn join_timeout(self, timeout: Duration) -> Result<Result<T, JoinError>, Self> {
        // A deadline beyond what a clock can express is none.
        match self.wait(Instant::now().checked_add(timeout), Cancel::Enabled) {
            Woken::ByWake => Ok(self.into_result()),
            Woken::ByDeadline => Err(self),
            Woken::ByCancel => park::unwind_cancelled(),
        }
    }

    /// Waits even if the caller is cancelled: for closures that borrow from its stack.
    pub(crate) fn join_uncancelled(self) -> Result<T, JoinError> {
        self.wait(None, Cancel::Disabled);
        self.into_result()
    }

    /// Whether the fiber has finished: a join will not block.
    ///
    /// ```
    /// let fiber = indent::spawn(|| 5);
    /// while !fiber.is_finished() {
    ///     indent::task::yield_now();
    /// }
    /// assert_eq!(fiber.join().unwrap(), 5);
    /// ```
    pub fn is_finished(&self) -> bool {
        job::is_done(&self.fiber.join)
    }

    /// Whether a join returns at once: the fiber has finished, or this is a child of a fork (F1).
    pub(crate) fn is_over(&self) -> bool {
        self.is_finished() || fork::in_child()
    }

    /// Registers the waiter to be notified when the fiber finishes; one at a time.
    pub(crate) fn enlist(&self, waiter: &Waiter) -> job::Registered {
        job::register(&self.fiber.join, waiter.address())
    }

    /// Unregisters a waiter; false if it was notified, or is about to be.
    pub(crate) fn withdraw(&self, waiter: &Waiter) -> bool {
        job::withdraw(&self.fiber.join, waiter.address())
    }

    /// The fiber's id, unique in the process.
    ///
    /// ```
    /// let fiber = indent::spawn(indent::task::id);
    /// let id = fiber.id();
    /// assert_eq!(fiber.join().unwrap(), Some(id));
    /// ```
    pub fn id(&self) -> u64 {
        self.fiber.id()
    }

    /// Returns a reference to the fiber.
    ///
    /// ```
    /// let handle = indent::task::Builder::new().name("parser").spawn(|| ());
    /// assert_eq!(handle.fiber().name(), Some("parser"));
    /// # handle.join().unwrap();
    /// ```
    pub fn fiber(&self) -> Fiber {
        Fiber(self.fiber.clone())
    }

    /// Returns an [`Unparker`] for the fiber.
    ///
    /// ```
    /// let parked = indent::spawn(indent::park::park);
    /// parked.unparker().unpark();
    /// parked.join().unwrap();
    /// ```
    pub fn unparker(&self) -> Unparker {
        Unparker::of(&self.fiber)
    }

    /// Waits for the result: `ByWake` if there is one, otherwise why the wait ended.
    ///
    /// In the child of a fork it returns at once (F1).
    fn wait(&self, deadline: Option<Instant>, cancel: Cancel) -> Woken {
        let word = &self.fiber.join;
        let reason = if cancel == Cancel::Disabled {
            ParkReason::BlockOn
        } else {
            ParkReason::Join
        };
        if job::is_done(word) {
            park::charge();
            return Woken::ByWake;
        }
        if fork::in_child() {
            return Woken::ByWake;
        }
        let waiter = Waiter::caller();
        match job::register(word, waiter.address()) {
            job::Registered::Waits => {}
            job::Registered::Done => {
                park::charge();
                return Woken::ByWake;
            }
            // A select waits by a borrowed handle, and this method owns it.
            job::Registered::Occupied => unreachable!("two waiters at one join handle"),
        }
        waiter.set_awaited(self.fiber.id() as usize);
        // The fiber knows the waiter's address: it stays until it was notified or withdrawn.
        let mut cancel = cancel;
        let mut deadline = deadline;
        loop {
            let woken = waiter.park(deadline, reason, cancel);
            if waiter.was_notified() {
                return Woken::ByWake;
            }
            if woken != Woken::ByWake {
                if job::withdraw(word, waiter.address()) {
                    return woken;
                }
                (deadline, cancel) = (None, Cancel::Disabled); // the notification is imminent
            }
        }
    }

    /// Takes the result, which the join word has handed to this handle, or returns the error.
    fn into_result(self) -> Result<T, JoinError> {
        if fork::in_child() && !self.is_finished() {
            return Err(JoinError::forked(self.id()));
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: I4: DONE was found by the one handle, which does not take it again.
        let result = unsafe { this.fiber.job.take_result::<T>() };
        // SAFETY: not dropped otherwise: `this` is never used again.
        drop(unsafe { std::ptr::read(&this.fiber) });
        result
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if !job::detach(&self.fiber.join) {
            context::assert_preemptible();
            // SAFETY: I4: the fiber is done and found no detached handle, so this handle owns the
            // result.
            let leftover = unsafe { Job::drop_result(&self.fiber) };
            run::report_leftover(&self.fiber, leftover);
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.fiber()).finish()
    }
}
