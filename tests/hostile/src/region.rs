#![expect(unsafe_code, reason = "promises what regions ask for")]
//! Regions: parts of programs in which a fiber may be switched away at any instruction.
//!
//! A part is *pure* if it may run in one: while it runs its fiber holds no borrow of a thread-local, no
//! guard of a lock and nothing else that belongs to its thread, neither does any frame around it,
//! and no C calls it. Nor does another fiber wait for it by blocking or spinning: parts that others
//! wait for without the runtime's knowledge, above all in programs that need preemption, stay
//! outside.

use std::sync::OnceLock;
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
    // SAFETY: what the header calls pure is what regions ask for, and only that is passed here.
    unsafe { indent::runtime::preemptible(part) }
}

/// How often a fiber was switched away in a region.
pub(crate) fn switches(metrics: &Metrics) -> u64 {
    metrics.in_place_preemptions_total
}

/// Whether no fiber was, though some could have been.
pub(crate) fn never_switched(metrics: &Metrics) -> bool {
    metrics.in_place_preemptions_total == 0
}

/// A function that is called through memory anybody could have written, so that who calls it is not
/// judged by what it does: for what belongs to the thread and is right in a region all the same.
pub(crate) struct Hidden<F>(OnceLock<F>);

impl<F: Copy> Hidden<F> {
    pub(crate) const fn new() -> Self {
        Hidden(OnceLock::new())
    }

    /// Says which function it is; before the first call, by somebody who is on no fiber's stack then.
    pub(crate) fn is(&self, function: F) {
        self.0.get_or_init(|| function);
    }

    pub(crate) fn get(&self) -> F {
        *self.0.get().expect("it was said which function it is")
    }
}
