//! A word a thread sleeps on.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::sys::{eventfd, futex};

/// A word a single thread sleeps on. A rouse is never lost: one that comes first makes the next
/// wait return at once. Waits also return for no reason, so callers look again at what they wait
/// for.
pub(crate) struct Parker(AtomicU32);

impl Parker {
    const QUIET: u32 = 0;
    const ASLEEP: u32 = 1;
    const NOTIFIED: u32 = 2;
    /// Its thread sleeps elsewhere, and an eventfd wakes it, whose number stands above these bits.
    const ELSEWHERE: u32 = 3;
    const STATES: u32 = 2;

    pub(crate) const fn new() -> Self {
        Parker(AtomicU32::new(Self::QUIET))
    }

    /// Sleeps until rung or until the time is over; true if it was rung.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        if self
            .0
            .compare_exchange(Self::QUIET, Self::ASLEEP, SeqCst, SeqCst)
            .is_ok()
        {
            futex::wait(&self.0, Self::ASLEEP, timeout);
        }
        self.0.swap(Self::QUIET, SeqCst) == Self::NOTIFIED
    }

    /// The same, where `sleep` does not return for long unless something else happens there, or
    /// somebody writes to the eventfd, which is never closed.
    pub(crate) fn wait_elsewhere(&self, eventfd: i32, sleep: impl FnOnce()) -> bool {
        let elsewhere = (eventfd as u32) << Self::STATES | Self::ELSEWHERE;
        if self
            .0
            .compare_exchange(Self::QUIET, elsewhere, SeqCst, SeqCst)
            .is_ok()
        {
            sleep();
        }
        self.0.swap(Self::QUIET, SeqCst) == Self::NOTIFIED
    }

    pub(crate) fn notify(&self) {
        let address = self.0.as_ptr();
        // The owner may be gone as soon as the swap is done: after it only the address is used.
        match self.0.swap(Self::NOTIFIED, SeqCst) {
            Self::ASLEEP => futex::wake(address),
            word if word & Self::ELSEWHERE == Self::ELSEWHERE => {
                eventfd::notify((word >> Self::STATES) as i32);
            }
            _ => {}
        }
    }
}
