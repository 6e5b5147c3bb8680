//! Limits how many fibers unwind at once because they were asked to end.
//!
//! A fiber that parks while it unwinds blocks a carrier, so only a limited number may unwind at
//! once. A *permit*, one flag in the record, means that a fiber counts as one of them. The fiber
//! asks for a permit itself before it unwinds, and a thread that delivers cancellations asks for it
//! before it wakes the fiber: both may do so at once, and the fiber may end meanwhile.
//!
//! **I11** `inside` is the number of permits that are set, between two steps of a thread that
//! changes one. A thread that sets a permit that was not set has counted; a thread that finds it
//! set gives the surplus count back; a thread that clears a set one uncounts. So every count
//! belongs to one permit, and none is lost or given up twice.
//!
//! A deliverer that finds cancellation disabled in its fiber takes back a permit it has just got
//! for it, perhaps at the moment when the fiber relies on it: then one more fiber unwinds than
//! should. That is harmless.

use crate::util::loom::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, SeqCst},
};

/// Result of asking for a permit.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// This call set the permit.
    New,
    /// The permit was set already.
    Already,
    /// No permit is free.
    Full,
}

pub(crate) struct UnwindLimit {
    inside: AtomicUsize,
    limit: usize,
}

impl UnwindLimit {
    pub(crate) fn new(limit: usize) -> Self {
        UnwindLimit {
            inside: AtomicUsize::new(0),
            limit,
        }
    }

    /// Gets a permit for the owner of `pass`.
    pub(crate) fn enter(&self, pass: &AtomicBool) -> Entry {
        if pass.load(Acquire) {
            return Entry::Already;
        }
        let mut inside = self.inside.load(SeqCst);
        loop {
            if inside >= self.limit {
                return Entry::Full;
            }
            match self
                .inside
                .compare_exchange(inside, inside + 1, SeqCst, SeqCst)
            {
                Ok(_) => break,
                Err(now) => inside = now,
            }
        }
        if pass.swap(true, AcqRel) {
            self.inside.fetch_sub(1, SeqCst); // another thread set the permit meanwhile
            return Entry::Already;
        }
        Entry::New
    }

    /// Gives the permit up, if it is set.
    pub(crate) fn leave(&self, pass: &AtomicBool) {
        if pass.load(Acquire) && pass.swap(false, AcqRel) {
            self.inside.fetch_sub(1, SeqCst);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.inside.load(SeqCst) >= self.limit
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_no_place_is_lost_or_given_up_twice() {
        loom::model(|| {
            let unwind_limit = Arc::new((UnwindLimit::new(2), AtomicBool::new(false)));
            // The fiber asks for itself, unwinds and ends; a deliverer asks for it and finds
            // cancellation disabled.
            let fiber = thread::spawn({
                let unwind_limit = unwind_limit.clone();
                move || {
                    let _may = unwind_limit.0.enter(&unwind_limit.1);
                    unwind_limit.0.leave(&unwind_limit.1);
                }
            });
            if unwind_limit.0.enter(&unwind_limit.1) == Entry::New {
                unwind_limit.0.leave(&unwind_limit.1);
            }
            fiber.join().unwrap();
            let left = usize::from(unwind_limit.1.load(Acquire));
            assert_eq!(unwind_limit.0.inside.load(SeqCst), left, "I11");
            unwind_limit.0.leave(&unwind_limit.1);
            assert_eq!(unwind_limit.0.inside.load(SeqCst), 0, "I11");
        });
    }
}
