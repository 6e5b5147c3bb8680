#![expect(unsafe_code, reason = "entries in queues, by the protocol of queue.rs")]
//! Waiting for the first of several things.
//!
//! There are four kinds of arms: those that wait in a [queue](super::queue), and are done by whoever finds them
//! there; *events*, which call and change nothing, so whoever waits decides whether they win; points in time; and
//! absent ones, which never fire.
//!
//! 1. Each arm is tried, in random order: what is ready has the same chance wherever it stands. Most selects end
//!    here, and hold one lock at a time. One that does not wait ends here.
//! 2. The locks of all queues are taken, in the order of their addresses. Each arm is tried once more. If
//!    none could be done all entries are put in: nobody has seen the operation half made (I29).
//! 3. Events are registered, each with a waiter of its own.
//! 4. It parks. Woken, it looks at who has won: an arm that was done (the word says so), an event that has
//!    called, if no arm was faster; at the deadline it withdraws, and a point in time may be what won.
//! 5. Whatever is left in queues and with events is taken back. An event that is about to call is waited
//!    for: its caller has the preemption disabled.
//!
//! I27 to I29 of `queue.rs` hold for queues. **I30** *An event that loses is not lost.* It changes nothing that
//! the next look would not find: a fiber that is over stays so, and readiness is asked from the kernel.

use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use crate::error::AbortOnDrop;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::park::queue::{Entry, How, Operation, Taken, Won};
use crate::sched::context::{self, PreemptGuard};
use crate::sched::wake::Waiter;
use crate::util::few::Few;
use crate::util::loom::{RawLock, pause};
use crate::util::rng;

/// An arm that waits in a queue.
///
/// # Safety
/// `lock` is always the same and protects the queue. `enlist` puts the entry into that queue and `remove`
/// takes it out of it. The slot is one that those who take entries out of the queue expect.
pub(crate) unsafe trait Queued {
    /// Does it if that needs no wait; true if it did, or never can.
    fn try_now(&self) -> bool;

    fn lock(&self) -> &RawLock;

    /// As `try_now`; whoever is to be called is called by the caller, without the lock.
    ///
    /// # Safety
    /// The lock is held, and `slot` was asked for since the arms were gathered.
    unsafe fn attempt(&self) -> Option<Option<Taken>>;

    /// Where the value lies, or is to be put. Asked for once in a select, before anybody else knows.
    fn slot(&self) -> *mut ();

    /// # Safety
    /// The lock is held. The entry stays until it was removed or its operation called.
    unsafe fn enlist(&self, entry: &Entry);

    /// # Safety
    /// The lock is held, and the entry was enlisted here.
    unsafe fn remove(&self, entry: &Entry);

    /// It was done by another, in this way.
    fn won(&self, how: How);
}

/// An arm that is called when something has happened, and finds that again if it is called in vain. Nothing here
/// calls the user's code, or unwinds: the entries of other arms are in their queues.
pub(crate) trait Event {
    fn is_ready(&self) -> bool;

    fn register(&self, waiter: &Waiter) -> Registered;

    /// Of a waiter that was to be called. False if somebody is about to call it, or has.
    fn withdraw(&self, waiter: &Waiter) -> bool;
}

/// What came of the wish to be called.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// The waiter will be called, once.
    Calls,
    /// Nobody can call it now: whoever waits asks again after a while.
    AskAgain,
    /// It has happened, and nobody will call.
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

/// An arm, for whoever cannot name what it is made of.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct ArmRef<'a>(pub(crate) Arm<'a>);

impl std::fmt::Debug for ArmRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArmRef")
    }
}

/// What can be an arm of a select, and what comes out if it fires.
#[doc(hidden)]
pub trait Fires {
    type Output;

    fn arm(&self) -> ArmRef<'_>;

    /// To be called once after it has fired; then it can be an arm again.
    fn finish(&mut self) -> Self::Output;

    /// The same if nobody wants what came out.
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

/// The first pause before an event is asked again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What an arm has where others find it.
enum Seat {
    None,
    Entry(Entry),
    Waiter(Waiter),
}

/// The arm that fires, or none. Charged to the budget; one that could wait gives way if that is used up, and unwinds
/// if the fiber is to end. One that does not wait does neither (S13).
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
    // Whoever unwound from here would leave entries behind that others write to (I28). Nothing of the user's is
    // called before `leave`; if something of ours unwinds all the same, the process ends.
    let bomb = AbortOnDrop("a select left its frame while others know of it");
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

/// All orders are equally likely.
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

/// The first arm of a queue that can be done. All locks are held.
fn attempt(arms: &[ArmRef<'_>], order: &[usize]) -> Option<(usize, Option<Taken>)> {
    let attempt = |arm: &usize| match arms[*arm].0 {
        // SAFETY: the lock is held, and `prepare` has asked for the slot.
        Arm::Queued(queued) => unsafe { queued.attempt() }.map(|taken| (*arm, taken)),
        _ => None,
    };
    order.iter().find_map(attempt)
}

/// The locks of all queues, and the mark.
struct Locks<'a> {
    held: Few<&'a RawLock>,
    guard: PreemptGuard,
}

impl<'a> Locks<'a> {
    /// In the order of their addresses: whoever holds one and waits for another waits for a higher one.
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

    /// Unlocks all and calls whoever was taken.
    fn release(self, taken: Option<Taken>) {
        for lock in self.held.iter() {
            // SAFETY: acquired, and what they protect is not used any more.
            unsafe { lock.release() };
        }
        let kept = taken.map(|taken| taken.notify(&self.guard));
        let Locks { held, guard } = self;
        drop(guard);
        drop((kept, held)); // which may free memory
    }
}

/// What a look at the events has found.
#[must_use]
enum Look {
    /// One has happened, and wins.
    Won(Won),
    /// One has happened, and another arm was faster.
    Lost,
    /// None has; and whether one must be asked again.
    Nothing { asks: bool },
}

/// The arms of an operation, and where others find them.
struct Set<'a> {
    arms: &'a [ArmRef<'a>],
    seats: Few<Seat>,
    operation: &'a Operation,
}

impl<'a> Set<'a> {
    fn new(arms: &'a [ArmRef<'a>], operation: &'a Operation) -> Self {
        Set {
            arms,
            seats: Few::new(arms.len()),
            operation,
        }
    }

    /// The arm that could be done, with all locks held; or none, and all entries are in their queues. From here on
    /// the set stays where it is.
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

    /// A seat for each arm.
    fn prepare(&mut self) {
        for (at, arm) in self.arms.iter().enumerate() {
            self.seats.push(match arm.0 {
                Arm::Queued(queued) => Seat::Entry(Entry::new(self.operation, at, queued.slot())),
                Arm::Event(_) => Seat::Waiter(self.operation.waiter()),
                Arm::Absent | Arm::At(_) => Seat::None,
            });
        }
    }

    fn queued(&self) -> impl Iterator<Item = (&dyn Queued, &Entry)> {
        let both = self.arms.iter().zip(self.seats.iter());
        both.filter_map(|(arm, seat)| match (arm.0, seat) {
            (Arm::Queued(queued), Seat::Entry(entry)) => Some((queued, entry)),
            _ => None,
        })
    }

    fn events(&self) -> impl Iterator<Item = (usize, &dyn Event, &Waiter)> {
        let both = self.arms.iter().zip(self.seats.iter()).enumerate();
        both.filter_map(|(at, (arm, seat))| match (arm.0, seat) {
            (Arm::Event(event), Seat::Waiter(waiter)) => Some((at, event, waiter)),
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

    /// The arm that has won, or how the wait ended; the operation is decided then.
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
                // The call is on its way.
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
                } // else it was meant for an earlier wait, or in vain
            }
        }
    }

    /// Has all events call, or finds that one has happened and whether it wins.
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

    /// Looks for an event that has happened. One that called in vain, or that nobody calls, is registered again.
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

    /// Has one event call. Who is not called counts as called: nothing is to be taken back.
    fn enrol(&self, arm: usize, event: &dyn Event, waiter: &Waiter, asks: bool) -> Look {
        match event.register(waiter) {
            Registered::Calls => Look::Nothing { asks },
            Registered::AskAgain => {
                waiter.call_off();
                Look::Nothing { asks: true }
            }
            Registered::Ready => {
                waiter.call_off();
                self.decide_for(arm)
            }
        }
    }

    /// An event has happened: it wins, unless an arm has.
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

    /// Takes back all that others know. The operation is decided, and called if another has decided.
    fn leave(&self, won: Option<Won>) {
        for (queued, entry) in self.queued() {
            if won.is_some_and(|won| entry.is_arm(won.arm)) {
                continue; // it was taken out by whoever has called
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

    /// The arm whose time comes first, and that.
    fn first_in_time(&self) -> Option<(Instant, usize)> {
        let times = self.arms.iter().enumerate();
        let times = times.filter_map(|(at, arm)| match arm.0 {
            Arm::At(time) => Some((time, at)),
            _ => None,
        });
        times.min()
    }

    /// The deadline has come: the arm whose time this is, or none.
    fn passed(&self) -> Option<usize> {
        let first = self.first_in_time();
        first
            .filter(|(at, _)| *at <= Instant::now())
            .map(|(_, arm)| arm)
    }
}

#[cfg(all(test, indent_loom))]
mod tests;
