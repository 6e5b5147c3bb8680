#![expect(unsafe_code, reason = "entries in queues, by the protocol of queue.rs")]
//! Waiting until something that everybody can see has changed: what `broadcast` and `watch` have in common.
//!
//! Something with a lock, inside of which is a queue of those who wait for news ([`Tells`]). Whoever has news
//! calls all. Nothing is handed over: who was called looks, and as it looks by a position of its own nobody can
//! take away what it was called for.

use std::time::Instant;

use crate::park::guarded::Guarded;
use crate::park::queue::{Entry, How, Queue, Taken};
use crate::park::select::{Arm, ArmRef, Queued};
use crate::park::{self, ParkReason, Woken};
use crate::sched::wake::Waiter;
use crate::util::loom::RawLock;

/// What is inside the lock.
pub(crate) trait Tells {
    fn waiting(&mut self) -> &mut Queue;

    /// Whether somebody at this position has something to look at: news, or that there will be none.
    fn has_news(&self, position: u64) -> bool;
}

/// The time is over.
pub(crate) struct TimedOut;

/// Waits until there are news for this position.
pub(crate) fn wait<S: Tells>(
    state: &Guarded<S>,
    position: u64,
    deadline: impl FnOnce() -> Option<Instant>,
) -> Result<(), TimedOut> {
    let (mut inside, mut thread) = (state.lock_charged(), None);
    let operation = loop {
        if inside.has_news(position) {
            return Ok(());
        }
        if let Some(operation) = inside.operation(&mut thread) {
            break operation;
        }
        drop(inside);
        thread = Some(Waiter::caller());
        inside = state.lock();
    };
    let entry = Entry::only(&operation, std::ptr::null_mut());
    // SAFETY: it stays here until the operation is over: see below.
    unsafe { inside.waiting().push(&entry) };
    drop(inside);
    // SAFETY: it was put into this queue.
    let withdraw = || unsafe { state.lock().waiting().remove(&entry) };
    match operation.wait(deadline(), ParkReason::Receive, &withdraw) {
        Ok(_) => Ok(()),
        Err(Woken::ByCancel) => park::unwind_cancelled(),
        Err(_) => Err(TimedOut),
    }
}

/// Changes what is inside and calls all who wait. What `change` returns is dropped without the lock.
pub(crate) fn tell<S: Tells, R>(state: &Guarded<S>, change: impl FnOnce(&mut S) -> R) -> R {
    let mut inside = state.lock();
    let changed = change(&mut inside);
    state.notify_all(inside, How::Done, S::waiting);
    changed
}

/// News as an arm of a select.
pub(crate) struct News<'a, S> {
    state: &'a Guarded<S>,
    position: u64,
}

impl<'a, S: Tells> News<'a, S> {
    pub(crate) fn new(state: &'a Guarded<S>, position: u64) -> Self {
        News { state, position }
    }

    /// For whoever has looked and goes on.
    pub(crate) fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// If there is somebody to be told.
    pub(crate) fn arm(this: Option<&Self>) -> ArmRef<'_> {
        ArmRef(this.map_or(Arm::Absent, |this| Arm::Queued(this)))
    }
}

// SAFETY: all of one state: its lock and its queue. There is no slot, and nobody uses one.
unsafe impl<S: Tells> Queued for News<'_, S> {
    fn try_now(&self) -> bool {
        self.state.lock().has_news(self.position)
    }

    fn lock(&self) -> &RawLock {
        self.state.raw()
    }

    unsafe fn attempt(&self) -> Option<Option<Taken>> {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        inside.has_news(self.position).then_some(None)
    }

    fn slot(&self) -> *mut () {
        std::ptr::null_mut()
    }

    unsafe fn enlist(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        // SAFETY: by the caller's promise.
        unsafe { inside.waiting().push(entry) };
    }

    unsafe fn remove(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        // SAFETY: by the caller's promise.
        let _or_taken = unsafe { inside.waiting().remove(entry) };
    }

    fn won(&self, _: How) {
        // Whoever was told looks.
    }
}
