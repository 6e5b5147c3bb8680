//! Regions: parts of programs in which a fiber may be switched away at any instruction.
//!
//! A part is *pure* if it may run in one: while it runs its fiber holds no borrow of a thread-local, no
//! guard of a lock and nothing else that belongs to its thread, neither does anybody around it, and no C
//! calls it. Nor does anybody wait for it by blocking or spinning: whoever does that on the thread which
//! the part was switched away from waits for ever, if it may not leave that. So the parts that siblings
//! wait for without the runtime's knowledge, above all in programs that need preemption, stay outside.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent::runtime::Metrics;

static WANTED: AtomicBool = AtomicBool::new(false);

/// From now on pure parts run in regions.
pub(crate) fn want() {
    WANTED.store(true, Relaxed);
}

/// Runs a pure part, in a region if that is wanted.
pub(crate) fn pure<T>(part: impl FnOnce() -> T) -> T {
    if WANTED.load(Relaxed) {
        region(part)
    } else {
        part()
    }
}

/// Runs a pure part in a region.
pub(crate) fn region<T>(part: impl FnOnce() -> T) -> T {
    part()
}

/// How often a fiber was switched away in a region.
pub(crate) fn switches(_: &Metrics) -> u64 {
    0
}

/// Whether no fiber was, though some could have been.
pub(crate) fn never_switched(_: &Metrics) -> bool {
    false
}
