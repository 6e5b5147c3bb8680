#![expect(
    unsafe_code,
    reason = "writes requests to the kernel, and reads an eventfd"
)]
//! How whoever sleeps in a ring is woken: by a *bell* (`epoll.rs`) that the ring polls.
//!
//! Completions of polls are brought about by the thread that submitted them, whatever it does meanwhile; if it sleeps
//! in the kernel, uninterruptibly, they are not. Sockets have to live with that here (hence epoll is what is used unless
//! somebody says otherwise), but wake-ups must not. So whoever sleeps has the bell polled in its own name, and gives up
//! the poll of the one before; it is submitted by the sleeper, or by the watch, which is never stuck. If the kernel
//! took less than the sleeper had to submit, anybody may submit the poll later: it has no name then, and the next
//! sleeper begins another. That is told and done under the lock of the completions: either the old poll's completion is
//! still in the queue, and ends the sleep at once, or it was taken, and the poll is known to be over.
//!
//! A poll is given up by ASYNC_CANCEL. POLL_REMOVE does not find one that just tells of something, and leaves it there
//! in another's name.
//!
//! The poll is over when it was cancelled, when the thread in whose name it was has ended, when there is no room for
//! its completions, and each time where the kernel knows no better. Who takes that completion in another's place
//! nudges the sleeper: to ring again would reach nobody.

use std::os::fd::RawFd;

use io_uring::{cqueue, opcode, types};

use super::{NOBODY, OWN, Uring, WAKER};
use crate::util::loom::lock;

/// How the bell is polled.
pub(super) struct Waker {
    /// In whose name, by which request.
    polled: Option<(usize, u64)>,
    requests: u64,
    /// One request for all rings of the bell; not every kernel can.
    pub(super) for_good: bool,
}

/// Nobody's name.
const UNNAMED: usize = usize::MAX;

impl Waker {
    pub(super) fn new() -> Self {
        Waker {
            polled: None,
            requests: 0,
            for_good: true,
        }
    }

    /// It is polled, or will be, in nobody knows whose name.
    pub(super) fn unname(&mut self) {
        self.polled = self.polled.map(|(_, number)| (UNNAMED, number));
    }

    /// A completion of a poll of the bell.
    pub(super) fn heard(&mut self, eventfd: RawFd, entry: &cqueue::Entry) {
        let is_ours = self
            .polled
            .is_some_and(|(_, number)| number == entry.user_data());
        if !is_ours || cqueue::more(entry.flags()) {
            return;
        }
        self.polled = None;
        if entry.result() == -libc::EINVAL {
            self.for_good = false;
        }
        if !self.for_good {
            let mut count = 0_u64;
            // SAFETY: writes at most eight bytes to `count`. Fails if it has not rung, without waiting.
            unsafe { libc::read(eventfd, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }
}

impl Uring {
    /// Sees to it that the bell is polled in this name, from the next submission on. False if there is no room.
    pub(super) fn has_bell_polled(&self, who: usize) -> bool {
        let mut waker = lock(&self.completions);
        match waker.polled {
            Some((name, _)) if name == who => return true,
            Some((_, old)) => {
                let entry = opcode::AsyncCancel::new(old).build();
                // SAFETY: names a number only.
                if !unsafe { self.write(&entry.user_data(NOBODY)) } {
                    return false;
                }
            }
            None => {}
        }
        waker.requests += 1;
        let number = (waker.requests * (OWN + 1)) | WAKER;
        let entry = opcode::PollAdd::new(types::Fd(self.waker), libc::POLLIN as u32)
            .multi(waker.for_good)
            .build();
        // SAFETY: names a number only.
        let pushed = unsafe { self.write(&entry.user_data(number)) };
        waker.polled = pushed.then_some((who, number));
        pushed
    }

    /// As if somebody had polled it in this name, who has not.
    #[cfg(all(test, not(indent_loom)))]
    pub(super) fn pretend_polled(&self, who: usize) {
        lock(&self.completions).polled = Some((who, WAKER));
    }
}
