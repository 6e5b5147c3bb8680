//! Parks a plain thread: the same state word as a fiber's, with a parker instead of a switch.

use std::sync::Arc;
use std::time::Instant;

use crate::fiber::state::{Begin, Cancel, Commit, Notify, Signal, State, Woken};
use crate::sched::block::time_limit;
use crate::sched::workers::context;
use crate::sys::parker::Parker;

pub(crate) struct ThreadParker {
    state: State,
    parker: Parker,
}

impl ThreadParker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(ThreadParker {
            state: State::runnable(),
            parker: Parker::new(),
        })
    }

    /// Blocks the calling thread, which owns this parker.
    ///
    /// A thread cannot be cancelled, but a time limit can end its park.
    pub(crate) fn park(&self, deadline: Option<Instant>, cancel: Cancel, signal: Signal) -> Woken {
        let limit = time_limit::bounding(None, deadline, cancel);
        match self.park_until(limit.or(deadline), signal) {
            Woken::ByDeadline if limit.is_some() => Woken::ByCancel,
            woken => woken,
        }
    }

    fn park_until(&self, deadline: Option<Instant>, signal: Signal) -> Woken {
        let number = match self.state.begin_park(Cancel::Disabled, signal) {
            Begin::Woken(cause) => return cause,
            Begin::Parking(number) => number,
        };
        if self.state.commit_park() == Commit::Resume {
            return self.state.end_park();
        }
        while self.state.is_parked() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                // Our own expiry competes with a wake that may be coming; the state word decides.
                let _ = self.state.expire(number);
            } else {
                self.parker.wait(left);
            }
        }
        self.state.end_park()
    }

    pub(crate) fn wake(&self, signal: Signal) {
        let _guard = context::disable_preempt(); // a thread waits for the notification
        if self.state.wake(signal) == Notify::Enqueue {
            self.parker.notify();
        }
    }
}
