//! Tickets: which waiters were in the queue when all were notified.
//!
//! Each waiter has a *ticket*, an increasing number. To notify all waiters is to record how many
//! tickets were issued: a waiter with a lower ticket is *owed* a notification. Only a batch of
//! waiters is notified per lock hold (`queue.rs`), and the lock is released in between. Tickets
//! increase along the list, so the waiters that are owed a notification are at its head.
//!
//! **L9** *A waiter that is owed a notification does not count as waiting.* A notifier that finds
//! it takes it in addition to the waiters it came for, and never instead of one: `notify_one` is
//! not spent on a waiter that will be notified anyway. A waiter that is owed a notification and
//! leaves because of its deadline or a cancellation at that moment has got what it waited for.
//!
//! Rejected: notifying all waiters with preemption disabled throughout, since that takes as long as
//! there are waiters; and a second list for the waiters that are owed, which a node would have to
//! know in order to leave it.

use crate::park;
use crate::sync::queue::{Locked, Look, Plan, Queue, Waited, Waits};

/// How many tickets were issued, and how many of them are owed or were given a notification.
#[derive(Debug)]
pub(crate) struct Tickets {
    issued: u64,
    owed_below: u64,
}

impl Tickets {
    pub(crate) const fn new() -> Self {
        Tickets {
            issued: 0,
            owed_below: 0,
        }
    }

    /// Issues a ticket.
    pub(crate) fn next(&mut self) -> u64 {
        self.issued += 1;
        self.issued - 1
    }

    /// Owes all waiters that have a ticket a notification.
    pub(crate) fn owe_all(&mut self) {
        self.owed_below = self.issued;
    }

    /// How many tickets were issued.
    #[cfg(all(test, not(indent_loom)))]
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Whether the waiter with this ticket is owed a notification.
    pub(crate) fn owes(&self, ticket: u64) -> bool {
        ticket < self.owed_below
    }
}

/// State that contains tickets, under the lock of a queue.
pub(crate) trait Ticketed {
    fn tickets(&mut self) -> &mut Tickets;
}

impl Ticketed for Tickets {
    fn tickets(&mut self) -> &mut Tickets {
        self
    }
}

/// Takes the waiters that are owed a notification, as many as fit in the batch.
pub(crate) fn take_owed<S: Ticketed, W: Waits>(queue: &mut Locked<'_, S, u64, W>) {
    while let Some(first) = queue.first().copied() {
        if !queue.state().tickets().owes(first) || queue.take().is_none() {
            return;
        }
    }
}

/// The result of an attempt to take a waiter that is not owed a notification.
#[must_use]
pub(crate) enum One {
    Taken,
    /// There is no such waiter.
    NoWaiter,
    /// The batch was full: repeat with the lock taken anew.
    Again,
}

/// Takes the waiters that are owed a notification, and one that is not.
pub(crate) fn take_one<S: Ticketed, W: Waits>(queue: &mut Locked<'_, S, u64, W>) -> One {
    take_owed(queue);
    if queue.take().is_some() {
        One::Taken
    } else if queue.is_empty() {
        One::NoWaiter
    } else {
        One::Again
    }
}

/// Notifies all waiters that are owed it. The caller has locked the queue.
pub(crate) fn notify_owed<'a, S: Ticketed, W: Waits>(
    of: &'a Queue<S, u64, W>,
    mut queue: Locked<'a, S, u64, W>,
) {
    loop {
        take_owed(&mut queue);
        if !queue.finish() {
            return;
        }
        queue = of.lock();
    }
}

/// The plan of a wait with a ticket. There is no wait if `ready` returns an answer, under the lock.
pub(crate) struct WithTicket<F> {
    ready: F,
    ticket: u64,
    /// Whether the waiter was owed a notification when it withdrew (L9).
    pub(crate) owed: bool,
}

impl<F> WithTicket<F> {
    pub(crate) fn unless(ready: F) -> Self {
        WithTicket {
            ready,
            ticket: 0,
            owed: false,
        }
    }
}

impl<S, W, R, F> Plan<S, u64, W> for WithTicket<F>
where
    S: Ticketed,
    W: Waits,
    F: FnMut(&mut S) -> Option<R>,
{
    type Answer = R;

    fn look(&mut self, queue: &mut Locked<'_, S, u64, W>, ticket: &mut u64) -> Look<R> {
        if let Some(answer) = (self.ready)(queue.state()) {
            return Look::Done(answer);
        }
        *ticket = queue.state().tickets().next();
        self.ticket = *ticket;
        Look::Behind
    }

    fn leave(&mut self, queue: &mut Locked<'_, S, u64, W>) {
        self.owed = queue.state().tickets().owes(self.ticket);
    }
}

/// Whether the wait ended with a notification. Unwinds if the fiber is cancelled.
pub(crate) fn finish_wait<R, N>(waited: Waited<R, N>, owed: bool) -> bool {
    match waited {
        Waited::Done(_) | Waited::Notified(_) => true,
        Waited::TimedOut | Waited::Cancelled if owed => true,
        Waited::TimedOut => false,
        Waited::Cancelled => park::unwind_cancelled(),
    }
}
