#![expect(unsafe_code, reason = "entries in queues, by the protocol of queue.rs")]
//! Waiting for a change of shared state, as receivers of `broadcast` and `watch` channels do.
//!
//! The state is behind a lock and contains a queue of waiters ([`Versioned`]). Each waiter has a
//! *position*, the version of the state that it has seen. A change of the state notifies all
//! waiters. Nothing is handed over: a notified waiter reads the state itself. Because it reads from
//! its own position, no other waiter can take away the change it was notified of.

use std::time::Instant;

use crate::park::guarded::Guarded;
use crate::park::queue::{Entry, How, Queue, Taken};
use crate::park::select::{Arm, ArmRef, Queued};
use crate::park::{self, ParkReason, Woken};
use crate::sched::block::wake::Waiter;
use crate::util::loom::RawLock;

/// State whose changes have increasing numbers. It is used under its lock.
pub(crate) trait Versioned {
    fn waiters(&mut self) -> &mut Queue;

    /// Whether a waiter at this position has a change to read, or the channel is closed.
    fn has_changed_since(&self, position: u64) -> bool;
}

/// The deadline passed before a change.
pub(crate) struct TimedOut;

/// Blocks until the state has changed since this position.
pub(crate) fn wait_for_change<S: Versioned>(
    state: &Guarded<S>,
    position: u64,
    deadline: impl FnOnce() -> Option<Instant>,
) -> Result<(), TimedOut> {
    let (mut inside, mut thread) = (state.lock_charged(), None);
    let operation = loop {
        if inside.has_changed_since(position) {
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
    // SAFETY: the entry stays on this stack until the operation is over: `wait` below returns only
    // then.
    unsafe { inside.waiters().push(&entry) };
    drop(inside);
    // SAFETY: the entry was put into this queue.
    let withdraw = || unsafe { state.lock().waiters().remove(&entry) };
    match operation.wait(deadline(), ParkReason::Receive, &withdraw) {
        Ok(_) => Ok(()),
        Err(Woken::ByCancel) => park::unwind_cancelled(),
        Err(_) => Err(TimedOut),
    }
}

/// Changes the state and notifies all waiters. The result of `change` is returned without the lock.
pub(crate) fn change_and_notify<S: Versioned, R>(
    state: &Guarded<S>,
    change: impl FnOnce(&mut S) -> R,
) -> R {
    let mut inside = state.lock();
    let changed = change(&mut inside);
    state.notify_all(inside, How::Done, S::waiters);
    changed
}

/// A change of the state as an arm of a select.
pub(crate) struct ChangeArm<'a, S> {
    state: &'a Guarded<S>,
    position: u64,
}

impl<'a, S: Versioned> ChangeArm<'a, S> {
    pub(crate) fn new(state: &'a Guarded<S>, position: u64) -> Self {
        ChangeArm { state, position }
    }

    /// Sets the position from which the arm waits next, after its owner has read the state.
    pub(crate) fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// The arm to select on, absent if there is no receiver.
    pub(crate) fn arm(this: Option<&Self>) -> ArmRef<'_> {
        ArmRef(this.map_or(Arm::Absent, |this| Arm::Queued(this)))
    }
}

// SAFETY: lock, `attempt`, `enlist` and `remove` belong to one state and its queue. There is no
// slot, and no notification writes to one.
unsafe impl<S: Versioned> Queued for ChangeArm<'_, S> {
    fn try_now(&self) -> bool {
        self.state.lock().has_changed_since(self.position)
    }

    fn lock(&self) -> &RawLock {
        self.state.raw()
    }

    unsafe fn attempt(&self) -> Option<Option<Taken>> {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        inside.has_changed_since(self.position).then_some(None)
    }

    fn slot(&self) -> *mut () {
        std::ptr::null_mut()
    }

    unsafe fn enlist(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        // SAFETY: by the caller's promise.
        unsafe { inside.waiters().push(entry) };
    }

    unsafe fn remove(&self, entry: &Entry) {
        // SAFETY: the lock is held, by the caller's promise.
        let inside = unsafe { self.state.inside() };
        // SAFETY: by the caller's promise.
        let _or_taken = unsafe { inside.waiters().remove(entry) };
    }

    fn won(&self, _: How) {
        // The arm reads the state in `finish`.
    }
}
