//! Who had come when all were told to go on.
//!
//! Whoever waits has a *ticket*, a number that grows. To tell all who wait now is to note how many have come: who
//! has a lower ticket than that is *owed* a call, though no more than a batch of them is called in one breath (`queue.rs`) and the
//! lock is let go in between. Tickets grow along the list, so those who are owed are at its head.
//!
//! **L9** *Nobody who is owed counts as waiting.* Whoever finds him takes him, beside what it came for, and never
//! instead of another: a word for one is not spent on somebody who goes on anyway. He who is owed and leaves
//! by his deadline, or is asked to end that very moment, has got what he waited for.
//!
//! Rejected: calling all of them with preemption disabled throughout, which keeps the caller from being stopped for as long as the
//! crowd is large; and a list of its own for those who are owed, which a node would have to know to leave it.

use crate::park;
use crate::sync::queue::{Locked, Look, Plan, Queue, Waited, Waits};

/// How many have come, and how many of them were told.
#[derive(Debug)]
pub(crate) struct Tickets {
    came: u64,
    told: u64,
}

impl Tickets {
    pub(crate) const fn new() -> Self {
        Tickets { came: 0, told: 0 }
    }

    /// For one who has come.
    pub(crate) fn next(&mut self) -> u64 {
        self.came += 1;
        self.came - 1
    }

    /// Everybody who has come by now is told.
    pub(crate) fn tell_all(&mut self) {
        self.told = self.came;
    }

    /// How many have come.
    #[cfg(all(test, not(indent_loom)))]
    pub(crate) fn came(&self) -> u64 {
        self.came
    }

    /// Whether whoever has this ticket was told.
    pub(crate) fn owes(&self, ticket: u64) -> bool {
        ticket < self.told
    }
}

/// What has tickets: the state under the lock of a queue.
pub(crate) trait Ticketed {
    fn tickets(&mut self) -> &mut Tickets;
}

impl Ticketed for Tickets {
    fn tickets(&mut self) -> &mut Tickets {
        self
    }
}

/// Takes those who are owed a call, as many as fit.
pub(crate) fn take_owed<S: Ticketed, W: Waits>(queue: &mut Locked<'_, S, u64, W>) {
    while let Some(first) = queue.first().copied() {
        if !queue.state().tickets().owes(first) || queue.take().is_none() {
            return;
        }
    }
}

/// How it went to take one who is owed nothing.
#[must_use]
pub(crate) enum One {
    Taken,
    /// Nobody else waits.
    Nobody,
    /// There was no room: again, with the lock taken anew.
    Again,
}

/// Takes those who are owed a call, and one who is not.
pub(crate) fn take_one<S: Ticketed, W: Waits>(queue: &mut Locked<'_, S, u64, W>) -> One {
    take_owed(queue);
    if queue.take().is_some() {
        One::Taken
    } else if queue.is_empty() {
        One::Nobody
    } else {
        One::Again
    }
}

/// Calls all who are owed a call; the lock was taken before.
pub(crate) fn call_owed<'a, S: Ticketed, W: Waits>(
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

/// Waiting with a ticket, unless there is no need: that is what `ready` says, under the lock.
pub(crate) struct WithTicket<F> {
    ready: F,
    ticket: u64,
    /// It was told, though it left before it was called (L9).
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

/// Whether the wait ended well; unwinds if the caller is to end.
pub(crate) fn happened<R, N>(waited: Waited<R, N>, owed: bool) -> bool {
    match waited {
        Waited::Done(_) | Waited::Called(_) => true,
        Waited::TimedOut | Waited::Cancelled if owed => true,
        Waited::TimedOut => false,
        Waited::Cancelled => park::unwind_cancelled(),
    }
}
