#![expect(unsafe_code, reason = "calls waiters by address")]
//! Waiters that are called by a ring: those of a select, which waits for other things, too.
//!
//! A fiber that waits for nothing else gives an operation to the ring, and stays until that is complete (I25). A select
//! does not: another arm may win. So its waiter is listed with the source of the descriptor, under a serial number, and
//! the ring gets a poll that is told by a number made of both: no address, so nothing has to stay for it. Whoever
//! takes the completion looks the number up; who is not listed any more has withdrawn, and nobody is called. So I24
//! holds here as for sets: a waiter is called once, or withdraws, both by taking it off the list under the lock, and
//! who takes it off to call it has the preemption disabled until it is called.
//!
//! One poll for each waiter, in the ring of the worker it waits on: it depends on no other runtime that waits for the same
//! descriptor. A poll looks before it waits: what came before it is not missed (I23).
//!
//! Who withdraws has the poll cancelled, without waiting for that. Until then the kernel keeps the open file, so
//! what was closed right after a select is gone when that is submitted: when the worker looks for other work or sleeps, or
//! by the watch if the dispatch is a long one.
//!
//! Where the kernel refuses the poll the waiter is called by the watch, after a pause, for nothing, and comes back.

use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::base::descriptor::Interest;
use crate::base::loom::{Mutex, lock};
use crate::base::os;
use crate::base::request::Request;
use crate::driver::uring::{self, Answer, Completion, POLL, Room};
use crate::sched::io::{FdRecord, Registration, record};
use crate::sched::wake::{DeferredDrop, Waiter};
use crate::sched::{Shared, context};

/// Who waits for one way of a descriptor, by polls.
#[derive(Default)]
pub(super) struct Polls {
    serial: u32,
    waiting: Vec<Poll>,
}

struct Poll {
    serial: u32,
    waiter: usize,
    /// In whose ring it is.
    worker: usize,
}

/// What a poll is told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    record: u32,
    interest: Interest,
    serial: u32,
}

impl Number {
    const TO_WRITE: u64 = 8;
    const SOURCE: u32 = 4;
    const SERIAL: u32 = 32;

    fn pack(self) -> u64 {
        debug_assert!(self.record >> (Self::SERIAL - Self::SOURCE) == 0);
        let direction = match self.interest {
            Interest::Read => 0,
            Interest::Write => Self::TO_WRITE,
        };
        u64::from(self.serial) << Self::SERIAL
            | u64::from(self.record) << Self::SOURCE
            | direction
            | POLL
    }

    fn unpack(number: u64) -> Self {
        Number {
            record: number as u32 >> Self::SOURCE,
            interest: match number & Self::TO_WRITE {
                0 => Interest::Read,
                _ => Interest::Write,
            },
            serial: (number >> Self::SERIAL) as u32,
        }
    }

    fn polls(self) -> &'static Mutex<Polls> {
        let record: &'static FdRecord = record(self.record);
        &record.polls[self.interest as usize]
    }
}

impl Registration {
    /// Has the waiter, one of the calling fiber, called when the descriptor may be ready, by a ring. There is
    /// always somebody who calls.
    #[inline(never)] // not part of a frame that waits: what system calls touch would bind it
    pub(crate) fn enlist_poll(&self, fd: BorrowedFd<'_>, interest: Interest, waiter: &Waiter) {
        let token = context::here().expect("on a fiber").enter_with_worker();
        let (shared, worker) = (token.carrier().shared(), token.worker());
        let mut number = Number {
            record: (self.key() - 1) as u32,
            interest,
            serial: 0,
        };
        let mut polls = lock(number.polls());
        polls.serial = polls.serial.wrapping_add(1);
        number.serial = polls.serial;
        polls.waiting.push(Poll {
            serial: number.serial,
            waiter: waiter.address(),
            worker: worker.index,
        });
        drop(polls);
        let entry = uring::entry(fd, &mut Request::Ready(interest), &mut Room::new());
        let entry = entry.expect("a ring polls");
        // SAFETY: it names a descriptor only, and the number is no address.
        if !unsafe { shared.push_to_ring(worker, &entry, number.pack()) } {
            shared.notify_later(number.pack());
        } else if worker.io_armed.load(SeqCst) {
            shared.urge_poller(worker.uring.get().expect("it is in there"));
        }
    }

    /// Takes a waiter back that was enlisted. False if it was called, or is about to be.
    #[inline(never)]
    pub(crate) fn withdraw_poll(&self, interest: Interest, waiter: &Waiter) -> bool {
        let guard = context::disable_preempt();
        let mut number = Number {
            record: (self.key.load(SeqCst) - 1) as u32,
            interest,
            serial: 0,
        };
        let address = waiter.address();
        let Some(poll) = lock(number.polls()).take(|poll| poll.waiter == address) else {
            return false;
        };
        number.serial = poll.serial;
        let shared = guard.shared().expect("a fiber has a runtime");
        let worker = &shared.workers[poll.worker];
        let Some(ring) = worker.uring.get() else {
            return true; // none could be had
        };
        ring.cancel(number.pack());
        // Nobody waits for that; if we hold the worker it is submitted with what comes next.
        let holds = guard
            .enter()
            .is_some_and(|t| t.worker().index == poll.worker);
        if !holds || worker.io_armed.load(SeqCst) {
            shared.urge_poller(ring);
        }
        true
    }
}

impl Polls {
    fn take(&mut self, is_it: impl Fn(&Poll) -> bool) -> Option<Poll> {
        let at = self.waiting.iter().position(is_it)?;
        Some(self.waiting.swap_remove(at))
    }
}

/// Whoever waits for this poll, if somebody does, is called.
fn call(guard: &context::PreemptGuard, number: u64) -> Option<DeferredDrop> {
    let number = Number::unpack(number);
    let poll = lock(number.polls()).take(|poll| poll.serial == number.serial)?;
    // SAFETY: I24: it was on the list, so it is there until it is called, by us alone.
    Some(unsafe { Waiter::notify(guard, poll.waiter) })
}

/// Polls that were refused, to be called for nothing.
#[derive(Default)]
pub(super) struct Late {
    numbers: Vec<u64>,
    /// When that is to be done.
    due: Option<Instant>,
}

/// For so long at least: it may be refused again.
const LATE: Duration = Duration::from_millis(8);

impl Shared {
    /// The poll is over.
    pub(super) fn poll_completed(
        &self,
        guard: &context::PreemptGuard,
        completion: &Completion,
    ) -> Option<DeferredDrop> {
        match Answer::of(completion.result) {
            // At once it would be refused again.
            Answer::Failed(_) | Answer::WouldBlock => self.notify_later(completion.operation),
            Answer::Count(_) | Answer::Cancelled => return call(guard, completion.operation),
        }
        None
    }

    /// Whoever waits for this poll is called after a pause. With the preemption disabled.
    fn notify_later(&self, number: u64) {
        let mut late = lock(&self.io_poller.late);
        late.numbers.push(number);
        late.due.get_or_insert_with(|| Instant::now() + LATE);
        drop(late);
        if let Some(epoll) = self.io_poller.epoll.get() {
            os::notify_eventfd(epoll.waker());
        }
    }

    /// The watch: calls them if it is time to, and says how long that takes otherwise.
    pub(super) fn notify_refused(&self) -> Option<Duration> {
        let mut late = lock(&self.io_poller.late);
        let left = late.due?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let numbers = mem::take(&mut *late).numbers;
        drop(late);
        for number in numbers {
            let guard = context::disable_preempt();
            let kept = call(&guard, number);
            drop(guard);
            drop(kept);
        }
        None
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_who_waits_for_what() {
        for interest in [Interest::Read, Interest::Write] {
            for (record, serial) in [(0, 0), (1, u32::MAX), ((1 << 22) - 1, 7)] {
                let number = Number {
                    record,
                    interest,
                    serial,
                };
                assert_eq!(Number::unpack(number.pack()), number);
                assert_eq!(number.pack() & 7, POLL);
            }
        }
    }
}
