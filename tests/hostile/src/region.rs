#![expect(unsafe_code, reason = "promises what regions ask for")]
//! Regions: parts of programs in which a fiber may be switched away at any instruction.
//!
//! A part is *pure* if it may run in a region: while it runs, its fiber holds no borrow of a
//! thread-local, no guard of a lock and nothing else that belongs to its thread; neither does any
//! frame around it, and no C code calls it. Nor does another fiber wait for it by blocking or
//! spinning: parts that others wait for without the runtime's knowledge, above all in programs that
//! need preemption, stay outside.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indent::runtime::Metrics;

static WANTED: AtomicBool = AtomicBool::new(false);

/// Makes pure parts run in regions from now on.
pub(crate) fn want() {
    WANTED.store(true, Relaxed);
}

/// Runs a pure part, in a region if the command line asks for it.
pub(crate) fn pure<T>(part: impl FnOnce() -> T) -> T {
    if WANTED.load(Relaxed) {
        region(part)
    } else {
        part()
    }
}

/// Runs a pure part in a region.
pub(crate) fn region<T>(part: impl FnOnce() -> T) -> T {
    // SAFETY: parts that the header calls pure meet the conditions of regions, and only those are
    // passed here.
    unsafe { indent::runtime::preemptible(part) }
}

/// Returns how often a fiber was switched away in a region.
pub(crate) fn switches(metrics: &Metrics) -> u64 {
    metrics.in_place_preemptions_total
}

/// Returns true if no fiber was switched away, though some could have been.
pub(crate) fn never_switched(metrics: &Metrics) -> bool {
    metrics.in_place_preemptions_total == 0
}

/// A function that is called through memory that any code could have written.
///
/// So callers are not judged by what it does: for functions that use something of the thread and
/// are right in a region even so.
pub(crate) struct Hidden<F>(OnceLock<F>);

impl<F: Copy> Hidden<F> {
    pub(crate) const fn new() -> Self {
        Hidden(OnceLock::new())
    }

    /// Sets the function, before the first call, from code that is then on no fiber's stack.
    pub(crate) fn is(&self, function: F) {
        self.0.get_or_init(|| function);
    }

    pub(crate) fn get(&self) -> F {
        *self.0.get().expect("it was said which function it is")
    }
}
