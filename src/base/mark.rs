//! Whether whoever does something has the mark: a check for debug builds.
//!
//! Who holds an internal lock, or sits between two states that others wait for, must not be stopped
//! (S6). What the mark is, and who has it, the scheduler knows; the things that need it lie below.
//! So it says here how to ask, and locks, claims, wakes and whoever takes an inbox ask.

use std::sync::OnceLock;

static IS_UP: OnceLock<fn() -> bool> = OnceLock::new();

/// How to ask: true if nobody can stop the calling thread now.
pub(crate) fn ask_by(is_up: fn() -> bool) {
    let _the_same_as_before = IS_UP.set(is_up);
}

/// The caller is about to do what asks for the mark.
#[inline(always)]
#[track_caller]
pub(crate) fn expect() {
    if cfg!(debug_assertions)
        && let Some(is_up) = IS_UP.get()
    {
        assert!(is_up(), "S6: a lock, a claim or a wake without the mark");
    }
}
