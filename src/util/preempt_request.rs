//! A carrier's preemption request: one word, written by any thread, answered by its own.
//!
//! The word is zero, or names what is requested: the stamp of a dispatch, with or without `LOOK`,
//! or `WITHOUT_WORKER` (`sched/preempt/interrupt.rs`).
//!
//! **Q1** The carrier clears a request only by exchanging the value that it has looked at. A
//! request that another thread writes between the look and the exchange stays, and its signal finds
//! it.
//!
//! **Q2** [`clear`](PreemptRequest::clear) forgets any request. It is called only where every
//! request that can be there is late: before the carrier's next dispatch has its number, or before
//! its thread has run a fiber.

use crate::util::loom::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// No request.
const NONE: u64 = 0;

#[derive(Default)]
pub(crate) struct PreemptRequest(AtomicU64);

impl PreemptRequest {
    /// Any thread: replaces the request. False if the same one was there already.
    pub(crate) fn replace(&self, asked: u64) -> bool {
        self.0.swap(asked, SeqCst) != asked
    }

    /// Any thread: replaces the request if it still is `seen`; zero means none.
    pub(crate) fn replace_seen(&self, seen: u64, asked: u64) -> bool {
        (self.0.compare_exchange(seen, asked, SeqCst, SeqCst)).is_ok()
    }

    /// Any thread: the request, or zero.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Whether there is a request; a hint, except on the carrier's own thread.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.load(Relaxed) != NONE
    }

    /// Removes `seen`, to withdraw it or because it was answered. False, and no change, if another
    /// request has come (Q1).
    pub(crate) fn withdraw(&self, seen: u64) -> bool {
        self.replace_seen(seen, NONE)
    }

    /// Own thread: forgets any request (Q2).
    pub(crate) fn clear(&self) {
        self.0.store(NONE, Relaxed);
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// The carrier finds a late request and removes it while a thread writes a new one.
    #[test]
    fn loom_a_request_beside_a_late_one_is_not_lost() {
        const LATE: u64 = 1;
        const NEW: u64 = 2;
        loom::model(|| {
            let request = Arc::new(PreemptRequest::default());
            request.replace(LATE);
            let asker = {
                let request = request.clone();
                loom::thread::spawn(move || assert!(request.replace(NEW)))
            };
            let seen = request.get();
            request.withdraw(seen);
            let answered = seen == NEW;
            asker.join().unwrap();
            assert_eq!(request.is_some(), !answered, "answered, or still there");
        });
    }

    /// The same beside a thread that requests only where there is no request.
    #[test]
    fn loom_a_wish_that_gives_way_is_seen_or_refused() {
        const FREEZE: u64 = 1;
        const LOOK: u64 = 2;
        loom::model(|| {
            let request = Arc::new(PreemptRequest::default());
            request.replace(FREEZE);
            let asker = {
                let request = request.clone();
                loom::thread::spawn(move || request.replace_seen(NONE, LOOK))
            };
            let seen = request.get();
            let withdrawn = request.withdraw(seen);
            assert!(withdrawn, "nothing replaces a request but another full one");
            let asked = asker.join().unwrap();
            assert_eq!(request.get() == LOOK, asked);
        });
    }
}
