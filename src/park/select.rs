#![expect(unsafe_code, reason = "entries in queues, by the protocol of queue.rs")]
//! Waiting for the first of several things.
//!
//! There are four kinds of arms: those that wait in a [queue](super::queue), where the counterpart
//! commits them; *events*, which notify and change nothing, so the waiting fiber decides whether
//! they win; points in time; and absent arms, which never fire.
//!
//! 1. Each arm is tried, in random order, so that ready arms have the same chance wherever they
//!    stand. Most selects end here, and hold one lock at a time. A select that does not wait always
//!    ends here.
//! 2. The locks of all queues are taken, in the order of their addresses. Each arm is tried once
//!    more. If none can be done, all entries are put in: no thread sees the operation half made
//!    (I29).
//! 3. Events are registered, each with a waiter of its own.
//! 4. The fiber parks. Woken, it checks what has won: an arm that was committed (the word shows
//!    it), or an event that has notified, if no arm was faster. At the deadline it withdraws, and a
//!    point in time may be what won.
//! 5. All entries and waiters that are left in queues and with events are removed. If an event is
//!    about to notify, the fiber waits for that: the notifying thread has preemption disabled.
//!
//! I27 to I29 of `queue.rs` hold for queues. **I30** *An event that loses is not lost.* It changes
//! nothing that a later check would not find: a fiber that has finished stays so, and readiness is
//! asked from the kernel.

use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::park::queue::{Entry, How, Operation, Taken, Won};
use crate::sched::block::wake::Waiter;
use crate::sched::workers::context::{self, PreemptGuard};
use crate::util::few::Few;
use crate::util::loom::{RawLock, pause};
use crate::util::rng;

/// An arm that waits in a queue.
///
/// # Safety
/// `lock` is always the same and protects the queue. `enlist` puts the entry into that queue and
/// `remove` removes it. The slot is one that the counterparts in the queue expect.
pub(crate) unsafe trait Queued {
    /// Performs the operation if it need not wait; true if it did, or never can.
    fn try_now(&self) -> bool;

    fn lock(&self) -> &RawLock;

    /// As `try_now`; the caller notifies the waiter returned, without the lock.
    ///
    /// # Safety
    /// The lock is held, and `slot` was asked for since the arms were gathered.
    unsafe fn attempt(&self) -> Option<Option<Taken>>;

    /// Where the value is read from or written to; called once in a select, before entries are put
    /// in.
    fn slot(&self) -> *mut ();

    /// # Safety
    /// The lock is held. The entry stays until it was removed or its operation notified.
    unsafe fn enlist(&self, entry: &Entry);

    /// # Safety
    /// The lock is held, and the entry was enlisted here.
    unsafe fn remove(&self, entry: &Entry);

    /// Records how a counterpart has completed it.
    fn won(&self, how: How);
}

/// An arm that notifies when something has happened; a notification may be spurious.
///
/// No method calls the user's code or unwinds: the entries of other arms are in their queues.
pub(crate) trait Event {
    fn is_ready(&self) -> bool;

    fn register(&self, waiter: &Waiter) -> Registered;

    /// Unregisters a waiter; false if it was notified, or is about to be.
    fn withdraw(&self, waiter: &Waiter) -> bool;
}

/// The result of registering a waiter with an event.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// The waiter will be notified, once.
    WillNotify,
    /// The event cannot notify it now: the fiber checks again after a pause.
    CheckAgain,
    /// The event has happened; there will be no notification.
    Ready,
}

/// One arm.
#[derive(Clone, Copy)]
pub(crate) enum Arm<'a> {
    Absent,
    Queued(&'a dyn Queued),
    Event(&'a dyn Event),
    At(Instant),
}

/// An arm of a select, without its type.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct ArmRef<'a>(pub(crate) Arm<'a>);

impl std::fmt::Debug for ArmRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArmRef")
    }
}

/// An operation that can be an arm of a select, and its output.
#[doc(hidden)]
pub trait Fires {
    type Output;

    fn arm(&self) -> ArmRef<'_>;

    /// Returns the output; called once after it has fired. Then it can be an arm again.
    fn finish(&mut self) -> Self::Output;

    /// As [`finish`](Self::finish), without the output.
    fn discard(&mut self) {
        drop(self.finish());
    }
}

/// How long to wait for an arm.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    Never,
    Until(Option<Instant>),
}

/// The first pause before an event is checked again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What other threads see of an arm.
enum Published {
    None,
    Entry(Entry),
    Waiter(Waiter),
}

/// Returns the arm that fires, or `None`.
///
/// It is charged to the budget. A select that may wait yields if the budget is used up, and unwinds
/// if the fiber was cancelled. A select that does not wait does neither (S13).
pub(crate) fn select(arms: &[ArmRef<'_>], patience: Patience) -> Option<usize> {
    match patience {
        Patience::Never => {
            let _or_nothing_is_left = context::disable_preempt().pays();
        }
        Patience::Until(_) => super::charge_ahead(),
    }
    let order = shuffled(arms.len());
    if let Some(arm) = order.iter().find(|arm| try_now(arms[**arm].0)) {
        return Some(*arm);
    }
    let Patience::Until(deadline) = patience else {
        return None;
    };
    let operation = Operation::caller();
    let mut set = Set::new(arms, &operation);
    // An unwind from here would leave entries behind that other threads write to (I28). No code of
    // the user is called before `leave`; if the runtime unwinds all the same, the process aborts.
    let bomb = AbortOnDrop("a select left its frame while others refer to it");
    if let Some(arm) = set.attempt_or_enlist(&order) {
        mem::forget(bomb);
        return Some(arm);
    }
    let ended = set.wait(deadline);
    set.leave(ended.ok());
    mem::forget(bomb);
    match ended {
        Ok(Won { arm, how }) => {
            if let Arm::Queued(queued) = arms[arm].0 {
                queued.won(how);
            }
            Some(arm)
        }
        Err(Woken::ByCancel) => super::unwind_cancelled(),
        Err(_) => set.passed(),
    }
}

/// The indices below `n` in random order; all orders are equally likely.
fn shuffled(n: usize) -> Few<usize> {
    let (mut order, mut random) = (Few::new(n), rng::fresh());
    for arm in 0..n {
        order.push(arm);
        order.swap(arm, random.below(arm + 1));
    }
    order
}

fn try_now(arm: Arm<'_>) -> bool {
    match arm {
        Arm::Absent => false,
        Arm::Queued(queued) => queued.try_now(),
        Arm::Event(event) => event.is_ready(),
        Arm::At(at) => at <= Instant::now(),
    }
}

/// Performs the first queued arm that need not wait. All locks are held.
fn attempt(arms: &[ArmRef<'_>], order: &[usize]) -> Option<(usize, Option<Taken>)> {
    let attempt = |arm: &usize| match arms[*arm].0 {
        // SAFETY: the lock is held, and `prepare` has asked for the slot.
        Arm::Queued(queued) => unsafe { queued.attempt() }.map(|taken| (*arm, taken)),
        _ => None,
    };
    order.iter().find_map(attempt)
}

/// The locks of all queues, taken with preemption disabled.
struct Locks<'a> {
    held: Few<&'a RawLock>,
    guard: PreemptGuard,
}

impl<'a> Locks<'a> {
    /// Acquires them in the order of their addresses, so that selects cannot deadlock.
    fn acquire(arms: &[ArmRef<'a>]) -> Self {
        let mut held = Few::new(arms.len());
        for arm in arms {
            if let Arm::Queued(queued) = arm.0 {
                held.push(queued.lock());
            }
        }
        held.sort_unstable_by_key(|lock| ptr::from_ref(*lock));
        held.dedup_by(|one, other| ptr::eq(*one, *other));
        let guard = context::disable_preempt();
        held.iter().for_each(|lock| lock.acquire());
        Locks { held, guard }
    }

    /// Releases all and notifies the waiter that was taken.
    fn release(self, taken: Option<Taken>) {
        for lock in self.held.iter() {
            // SAFETY: acquired, and what they protect is not used any more.
            unsafe { lock.release() };
        }
        let deferred = taken.map(|taken| taken.notify(&self.guard));
        let Locks { held, guard } = self;
        drop(guard);
        drop((deferred, held)); // which may free memory
    }
}

/// What a check of the events has found.
#[must_use]
enum Look {
    /// One has happened, and wins.
    Won(Won),
    /// One has happened, and another arm was faster.
    Lost,
    /// None has; and whether one must be asked again.
    Nothing { asks: bool },
}

/// The arms of an operation, with their entries and waiters.
struct Set<'a> {
    arms: &'a [ArmRef<'a>],
    published: Few<Published>,
    operation: &'a Operation,
}

impl<'a> Set<'a> {
    fn new(arms: &'a [ArmRef<'a>], operation: &'a Operation) -> Self {
        Set {
            arms,
            published: Few::new(arms.len()),
            operation,
        }
    }

    /// Returns an arm that was done, or puts all entries into their queues, with all locks held.
    ///
    /// From here on the set stays where it is.
    fn attempt_or_enlist(&mut self, order: &[usize]) -> Option<usize> {
        self.prepare();
        let locks = Locks::acquire(self.arms);
        if let Some((arm, taken)) = attempt(self.arms, order) {
            locks.release(taken);
            return Some(arm);
        }
        self.enlist();
        locks.release(None);
        None
    }

    /// Makes an entry or a waiter for each arm.
    fn prepare(&mut self) {
        for (at, arm) in self.arms.iter().enumerate() {
            self.published.push(match arm.0 {
                Arm::Queued(queued) => {
                    Published::Entry(Entry::new(self.operation, at, queued.slot()))
                }
                Arm::Event(_) => Published::Waiter(self.operation.waiter()),
                Arm::Absent | Arm::At(_) => Published::None,
            });
        }
    }

    fn queued(&self) -> impl Iterator<Item = (&dyn Queued, &Entry)> {
        let both = self.arms.iter().zip(self.published.iter());
        both.filter_map(|(arm, shown)| match (arm.0, shown) {
            (Arm::Queued(queued), Published::Entry(entry)) => Some((queued, entry)),
            _ => None,
        })
    }

    fn events(&self) -> impl Iterator<Item = (usize, &dyn Event, &Waiter)> {
        let both = self.arms.iter().zip(self.published.iter()).enumerate();
        both.filter_map(|(at, (arm, shown))| match (arm.0, shown) {
            (Arm::Event(event), Published::Waiter(waiter)) => Some((at, event, waiter)),
            _ => None,
        })
    }

    /// All locks are held.
    fn enlist(&self) {
        for (queued, entry) in self.queued() {
            // SAFETY: the lock is held; `leave` removes it before the set goes.
            unsafe { queued.enlist(entry) };
        }
    }

    /// Waits for the arm that wins, or returns how the wait ended; the operation is decided then.
    fn wait(&self, deadline: Option<Instant>) -> Result<Won, Woken> {
        let first = self.first_in_time().map(|(at, _)| at);
        let deadline = deadline.into_iter().chain(first).min();
        let (mut cancel, mut pause) = (Cancel::Enabled, FIRST_PAUSE);
        let mut found = self.register();
        loop {
            let asks = match found {
                Look::Won(won) => return Ok(won),
                Look::Lost => {
                    cancel = Cancel::Disabled;
                    false
                }
                Look::Nothing { asks } => asks,
            };
            if self.operation.was_notified() {
                return Ok(self.operation.won());
            }
            if cancel == Cancel::Disabled {
                // The notification is imminent.
                let _ = self.operation.park(None, ParkReason::Select, cancel);
                continue;
            }
            let again = asks.then(|| Instant::now() + pause);
            let until = deadline.into_iter().chain(again).min();
            let woken = self.operation.park(until, ParkReason::Select, cancel);
            if self.operation.was_notified() {
                continue;
            }
            found = self.look();
            if let Look::Nothing { .. } = found {
                if woken == Woken::ByDeadline && again.is_some() && again == until {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                } else if woken != Woken::ByWake {
                    if self.operation.withdraw() {
                        return Err(woken);
                    }
                    found = Look::Lost;
                } // else the wake was spurious
            }
        }
    }

    /// Registers with all events, or finds one that has happened and whether it wins.
    fn register(&self) -> Look {
        let mut found = Look::Nothing { asks: false };
        for (arm, event, waiter) in self.events() {
            match found {
                Look::Nothing { asks } => found = self.enrol(arm, event, waiter, asks),
                _ => waiter.call_off(),
            }
        }
        found
    }

    /// Looks for an event that has happened; one that notified spuriously is registered again.
    fn look(&self) -> Look {
        let mut asks = false;
        for (arm, event, waiter) in self.events() {
            if !waiter.was_notified() {
                continue;
            }
            if event.is_ready() {
                return self.decide_for(arm);
            }
            waiter.reset();
            match self.enrol(arm, event, waiter, asks) {
                Look::Nothing { asks: now } => asks = now,
                found => return found,
            }
        }
        Look::Nothing { asks }
    }

    /// Registers with one event. Otherwise its waiter counts as notified: nothing is to be
    /// withdrawn.
    fn enrol(&self, arm: usize, event: &dyn Event, waiter: &Waiter, asks: bool) -> Look {
        match event.register(waiter) {
            Registered::WillNotify => Look::Nothing { asks },
            Registered::CheckAgain => {
                waiter.call_off();
                Look::Nothing { asks: true }
            }
            Registered::Ready => {
                waiter.call_off();
                self.decide_for(arm)
            }
        }
    }

    /// Commits to an event that has happened, unless another arm has won.
    fn decide_for(&self, arm: usize) -> Look {
        let won = Won {
            arm,
            how: How::Done,
        };
        match self.operation.commit(won) {
            true => Look::Won(won),
            false => Look::Lost,
        }
    }

    /// Removes all entries and waiters. The operation is decided, and notified if another decided
    /// it.
    fn leave(&self, won: Option<Won>) {
        for (queued, entry) in self.queued() {
            if won.is_some_and(|won| entry.is_arm(won.arm)) {
                continue; // the counterpart has removed it
            }
            let guard = context::disable_preempt();
            queued.lock().acquire();
            // SAFETY: the lock is held.
            unsafe { queued.remove(entry) };
            // SAFETY: acquired above.
            unsafe { queued.lock().release() };
            drop(guard);
        }
        for (_, event, waiter) in self.events() {
            if !waiter.was_notified() && !event.withdraw(waiter) {
                let mut failures = 0;
                while !waiter.was_notified() {
                    pause(failures);
                    failures += 1;
                }
            }
        }
    }

    /// The arm whose time comes first, and that time.
    fn first_in_time(&self) -> Option<(Instant, usize)> {
        let times = self.arms.iter().enumerate();
        let times = times.filter_map(|(at, arm)| match arm.0 {
            Arm::At(time) => Some((time, at)),
            _ => None,
        });
        times.min()
    }

    /// The arm whose time has come at the deadline, or none.
    fn passed(&self) -> Option<usize> {
        let first = self.first_in_time();
        first
            .filter(|(at, _)| *at <= Instant::now())
            .map(|(_, arm)| arm)
    }
}

#[cfg(all(test, indent_loom))]
mod tests;
