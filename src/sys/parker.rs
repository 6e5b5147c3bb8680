//! Parks and notifies one thread.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::sys::{eventfd, futex};

/// A word that a single thread sleeps on. A notification is never lost: one that comes first makes
/// the next wait return at once. Waits also return for no reason, so callers check their condition
/// again.
pub(crate) struct Parker(AtomicU32);

impl Parker {
    const QUIET: u32 = 0;
    const ASLEEP: u32 = 1;
    const NOTIFIED: u32 = 2;
    /// Its thread sleeps elsewhere, and an eventfd wakes it; the bits above have its number.
    const ELSEWHERE: u32 = 3;
    const STATES: u32 = 2;

    pub(crate) const fn new() -> Self {
        Parker(AtomicU32::new(Self::QUIET))
    }

    /// Sleeps until notified or until the time is over; true if it was notified.
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

    /// Waits by `sleep`, which ends when the eventfd is written to or something else happens there.
    ///
    /// The eventfd is never closed. Returns true if the parker was notified.
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

    /// Notifies the parker, and wakes its thread if it sleeps. Any thread may call this.
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
