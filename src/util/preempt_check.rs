//! Checks in debug builds that preemption of the calling thread is disabled.
//!
//! Code that holds an internal lock, or is between two states that other threads wait for, must not
//! be interrupted (S6). Only the scheduler, a layer above, can answer whether the thread can be
//! preempted: it registers a function here. Locks, claims, wakes and inboxes call it.

use std::sync::OnceLock;

static IS_DISABLED: OnceLock<fn() -> bool> = OnceLock::new();

/// Registers the function that returns true if the calling thread cannot be preempted now.
pub(crate) fn ask_by(is_disabled: fn() -> bool) {
    let _the_same_as_before = IS_DISABLED.set(is_disabled);
}

/// Panics in debug builds if preemption of the calling thread is enabled.
#[inline(always)]
#[track_caller]
pub(crate) fn expect_disabled() {
    if cfg!(debug_assertions)
        && let Some(is_disabled) = IS_DISABLED.get()
    {
        assert!(
            is_disabled(),
            "S6: a lock, a claim or a wake with preemption enabled"
        );
    }
}
