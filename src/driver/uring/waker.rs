#![expect(
    unsafe_code,
    reason = "writes requests to the kernel, and reads an eventfd"
)]
//! How a thread that sleeps in a ring is woken: through an eventfd that the ring polls.
//!
//! Completions of polls are brought about by the thread that submitted them, whatever it does
//! meanwhile; if it sleeps in the kernel, uninterruptibly, they are not. Sockets have to live with
//! that here (hence epoll is the default), but wake-ups must not. So each poll of the waker has an
//! *owner*, the carrier that submits it. A carrier that is about to sleep cancels the poll of
//! another owner and begins its own. That poll is submitted by the sleeper, or by the I/O poller,
//! which is never stuck. If the kernel took less than the sleeper had to submit, any thread may
//! submit the poll later: it has no owner then, and the next sleeper begins another. This is
//! reported and done under the lock of the completions: either the old poll's completion is still
//! in the queue, and ends the sleep at once, or it was taken, and the poll is known to be over.
//!
//! A poll is cancelled by ASYNC_CANCEL. POLL_REMOVE does not find a poll that is about to complete,
//! and leaves it there with another owner.
//!
//! The poll is over when it was cancelled, when its owner's thread has ended, when there is no room
//! for its completions, and after each completion where the kernel has no multishot polls. A thread
//! that takes that completion in another's place nudges the sleeper: to notify the waker again
//! would wake no thread.

use std::os::fd::RawFd;

use io_uring::{cqueue, opcode, types};

use super::{IGNORED, OWN_BITS, Uring, WAKER};
use crate::util::loom::lock;

/// The poll of the waker.
pub(super) struct Waker {
    /// Its owner, and its number.
    poll: Option<(usize, u64)>,
    requests: u64,
    /// One request serves for all notifications; not every kernel can do that.
    pub(super) is_multishot: bool,
}

/// The owner of a poll that any thread may submit.
const NO_OWNER: usize = usize::MAX;

impl Waker {
    pub(super) fn new() -> Self {
        Waker {
            poll: None,
            requests: 0,
            is_multishot: true,
        }
    }

    /// Notes that the poll was or will be submitted by a thread that is not known.
    pub(super) fn forget_owner(&mut self) {
        self.poll = self.poll.map(|(_, number)| (NO_OWNER, number));
    }

    /// Handles a completion of a poll of the waker.
    pub(super) fn on_completion(&mut self, eventfd: RawFd, entry: &cqueue::Entry) {
        let is_current = self
            .poll
            .is_some_and(|(_, number)| number == entry.user_data());
        if !is_current || cqueue::more(entry.flags()) {
            return;
        }
        self.poll = None;
        if entry.result() == -libc::EINVAL {
            self.is_multishot = false;
        }
        if !self.is_multishot {
            let mut count = 0_u64;
            // SAFETY: writes at most eight bytes to `count`. Fails if the waker was not notified,
            // without waiting.
            unsafe { libc::read(eventfd, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }
}

impl Uring {
    /// Has the waker polled by this owner, from the next submission on. False if there is no room.
    pub(super) fn poll_waker(&self, carrier: usize) -> bool {
        let mut waker = lock(&self.completions);
        match waker.poll {
            Some((owner, _)) if owner == carrier => return true,
            Some((_, old)) => {
                let entry = opcode::AsyncCancel::new(old).build();
                // SAFETY: names a number only.
                if !unsafe { self.write(&entry.user_data(IGNORED)) } {
                    return false;
                }
            }
            None => {}
        }
        waker.requests += 1;
        let number = (waker.requests * (OWN_BITS + 1)) | WAKER;
        let entry = opcode::PollAdd::new(types::Fd(self.waker), libc::POLLIN as u32)
            .multi(waker.is_multishot)
            .build();
        // SAFETY: names a number only.
        let pushed = unsafe { self.write(&entry.user_data(number)) };
        waker.poll = pushed.then_some((carrier, number));
        pushed
    }

    /// Makes the ring believe that this owner polls the waker.
    #[cfg(all(test, not(indent_loom)))]
    pub(super) fn pretend_polled(&self, carrier: usize) {
        lock(&self.completions).poll = Some((carrier, WAKER));
    }
}
