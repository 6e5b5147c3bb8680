#![expect(unsafe_code, reason = "notifies waiters by address")]
//! Waiters of a select in a runtime that uses io_uring.
//!
//! A fiber that waits for one thing gives an operation to the ring, and stays until that is
//! complete (I25). A select does not stay: another arm may win. So its waiter is listed with the
//! record of the descriptor, under a serial number, and the ring gets a poll whose number is made
//! of both: no address, so nothing has to stay for it. The thread that takes the completion looks
//! the number up. If the waiter is not listed any more it has withdrawn, and nothing is notified.
//! So I24 holds here as for epoll: a waiter is notified once, or withdraws, both by taking it off
//! the list under the lock; the thread that takes it off to notify it keeps preemption disabled
//! until it has done so.
//!
//! There is one poll for each waiter, in the ring of the worker it waits on: it depends on no other
//! runtime that waits for the same descriptor. A poll looks before it waits: what came before it is
//! not missed (I23).
//!
//! A waiter that withdraws has the poll cancelled, without waiting for that. Until then the kernel
//! keeps the open file. So a descriptor that was closed right after a select is gone when the
//! cancel is submitted: when the worker looks for other work or sleeps, or by the I/O poller if the
//! dispatch is a long one.
//!
//! Where the kernel refuses the poll, the I/O poller notifies the waiter after a pause, without an
//! event; the select tries again.

use std::mem;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::driver::uring::{self, Answer, Completion, Message, POLL};
use crate::sched::Shared;
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::io::Registration;
use crate::sched::io::registration::record_at;
use crate::sched::workers::context;
use crate::sys::descriptor::Interest;
use crate::sys::request::Request;
use crate::util::loom::{Mutex, lock};

/// The waiters of one direction of a descriptor, each with a poll.
#[derive(Default)]
pub(super) struct Polls {
    serial: u32,
    waiting: Vec<Poll>,
}

struct Poll {
    serial: u32,
    waiter: usize,
    /// The worker whose ring it is in.
    worker: usize,
}

/// The number of a poll, which its completion bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    record: u32,
    interest: Interest,
    serial: u32,
}

impl Number {
    const TO_WRITE: u64 = 8;
    const RECORD: u32 = 4;
    const SERIAL: u32 = 32;

    fn pack(self) -> u64 {
        debug_assert!(self.record >> (Self::SERIAL - Self::RECORD) == 0);
        let direction = match self.interest {
            Interest::Read => 0,
            Interest::Write => Self::TO_WRITE,
        };
        let record = u64::from(self.record) << Self::RECORD;
        u64::from(self.serial) << Self::SERIAL | record | direction | POLL
    }

    fn unpack(number: u64) -> Self {
        Number {
            record: number as u32 >> Self::RECORD,
            interest: match number & Self::TO_WRITE {
                0 => Interest::Read,
                _ => Interest::Write,
            },
            serial: (number >> Self::SERIAL) as u32,
        }
    }

    fn polls(self) -> &'static Mutex<Polls> {
        &record_at(self.record).polls[self.interest as usize]
    }
}

impl Registration {
    /// Lists a waiter of the calling fiber, to be notified by a poll when the descriptor may be
    /// ready. It is always notified, unless it withdraws.
    #[inline(never)] // not part of a frame that waits: what system calls touch would bind it
    pub(super) fn enlist_poll(&self, fd: BorrowedFd<'_>, interest: Interest, waiter: &Waiter) {
        let entered = context::here().expect("on a fiber").enter_with_worker();
        let (shared, worker) = (entered.carrier().shared(), entered.worker());
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
        let entry = uring::entry(fd, &mut Request::Ready(interest), &mut Message::new());
        let entry = entry.expect("a ring can poll");
        // SAFETY: it names a descriptor only, and the number is no address.
        if !unsafe { shared.push_to_ring(worker, &entry, number.pack()) } {
            shared.notify_later(number.pack());
        } else if shared.is_ring_armed(worker) {
            let ring = shared.driver.ring(worker.index);
            shared.ask_poller_to_submit(ring.expect("the poll is in it"));
        }
    }

    /// Takes a waiter back that was enlisted. False if it was notified, or is about to be.
    #[inline(never)]
    pub(super) fn withdraw_poll(&self, interest: Interest, waiter: &Waiter) -> bool {
        let guard = context::disable_preempt();
        let mut number = Number {
            record: (self.known_key() - 1) as u32,
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
        let Some(ring) = shared.driver.ring(worker.index) else {
            return true; // the ring could not be made
        };
        ring.cancel(number.pack());
        // Nothing waits for the cancel: the worker's holder submits it with what comes next.
        let holds = guard
            .enter()
            .is_some_and(|entered| entered.worker().index == poll.worker);
        if !holds || shared.is_ring_armed(worker) {
            shared.ask_poller_to_submit(ring);
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

/// Notifies the waiter of this poll, if it has not withdrawn.
fn notify(guard: &context::PreemptGuard, number: u64) -> Option<DeferredDrop> {
    let number = Number::unpack(number);
    let poll = lock(number.polls()).take(|poll| poll.serial == number.serial)?;
    // SAFETY: I24: it was on the list, so it is there until it is notified, here and nowhere else.
    Some(unsafe { Waiter::notify(guard, poll.waiter) })
}

/// Polls that the kernel refused, whose waiters are to be notified without an event.
#[derive(Default)]
pub(super) struct RefusedPolls {
    numbers: Vec<u64>,
    /// When to notify them.
    due: Option<Instant>,
}

/// Before the waiter of a refused poll is notified, at least: the next poll may be refused, too.
const REFUSED_PAUSE: Duration = Duration::from_millis(8);

impl Shared {
    /// Handles the completion of a poll.
    pub(super) fn poll_completed(
        &self,
        guard: &context::PreemptGuard,
        completion: &Completion,
    ) -> Option<DeferredDrop> {
        match Answer::of(completion.result) {
            // At once it would be refused again.
            Answer::Failed(_) | Answer::WouldBlock => self.notify_later(completion.operation),
            Answer::Count(_) | Answer::Cancelled => return notify(guard, completion.operation),
        }
        None
    }

    /// Has the waiter of this poll notified after a pause. Called with preemption disabled.
    fn notify_later(&self, number: u64) {
        let mut refused = lock(&self.io_poller.refused);
        refused.numbers.push(number);
        let due = || Instant::now() + REFUSED_PAUSE;
        refused.due.get_or_insert_with(due);
        drop(refused);
        self.io_poller.notify();
    }

    /// The I/O poller: notifies the waiters of refused polls if it is time to. Returns how long it
    /// takes until then otherwise.
    pub(super) fn notify_refused(&self) -> Option<Duration> {
        let mut refused = lock(&self.io_poller.refused);
        let left = refused.due?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let numbers = mem::take(&mut *refused).numbers;
        drop(refused);
        for number in numbers {
            let guard = context::disable_preempt();
            let kept = notify(&guard, number);
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
    fn a_number_identifies_the_waiter_and_what_it_waits_for() {
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
