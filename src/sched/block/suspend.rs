//! How a fiber leaves its worker: parking, yielding, handing over; and how its operations are
//! charged.
//!
//! A fiber that is unwinding keeps its thread to itself (S3): it does not switch away but blocks
//! the carrier, whose worker goes to another carrier.

use std::ptr;
use std::time::{Duration, Instant};

use indent_sysmon::Phase;

use crate::fiber::FiberRef;
use crate::fiber::job::Cancelled;
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Begin, Cancel, Commit, Signal, Woken};
use crate::fiber::switch::Back;
use crate::queue::lane::popped;
use crate::sched::block::time_limit;
use crate::sched::block::timers::Deadline;
use crate::sched::block::unwind_backoff;
use crate::sched::block::unwind_limit::Entry;
use crate::sched::block::wake;
use crate::sched::mobility::bound::Cause;
use crate::sched::mobility::verdict;
use crate::sched::preempt::class;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::context::{self, Entered, Here};
use crate::sched::workers::find;
use crate::sched::workers::run;
use crate::util::loom::atomic::Ordering::Relaxed;

/// Whether fibers can unwind.
///
/// With `panic = "abort"` no fiber can be made to end: a request to end is ignored.
pub(crate) const CAN_UNWIND: bool = cfg!(panic = "unwind");

/// How long a worker stays on a blocked carrier before it looks for another thread again.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);

/// How long a fiber past its time limit waits on while too many others unwind.
const GATE_PAUSE: Duration = Duration::from_millis(5);

/// Parks the calling fiber; `None` on a plain thread.
///
/// With `Cancel::Enabled` a request to end wakes the fiber, unless it is unwinding already or too
/// many others are.
pub(crate) fn park(
    deadline: Option<Instant>,
    reason: ParkReason,
    cancel: Cancel,
    signal: Signal,
) -> Option<Woken> {
    charge();
    park_charged(deadline, reason, cancel, signal)
}

/// Parks the calling fiber, whose operation has been charged already.
pub(crate) fn park_charged(
    deadline: Option<Instant>,
    reason: ParkReason,
    cancel: Cancel,
    signal: Signal,
) -> Option<Woken> {
    let here = context::here()?;
    match time_limit::bounding(Some(here.fiber), deadline, cancel) {
        None => Some(park_here(&here, deadline, reason, cancel, signal)),
        Some(limit) => park_within(limit, deadline, reason, cancel, signal),
    }
}

/// Parks until a time limit passes and the fiber may unwind.
#[cold]
fn park_within(
    limit: Instant,
    deadline: Option<Instant>,
    reason: ParkReason,
    cancel: Cancel,
    signal: Signal,
) -> Option<Woken> {
    let mut until = limit;
    loop {
        let here = context::here()?;
        let woken = park_here(&here, Some(until), reason, cancel, signal);
        if woken != Woken::ByDeadline || deadline == Some(until) {
            return Some(woken);
        }
        if enters_gate() {
            return Some(Woken::ByCancel);
        }
        let soon = Instant::now() + GATE_PAUSE;
        until = deadline.map_or(soon, |own| own.min(soon));
    }
}

/// Parks the calling fiber. `here` is not used after the switch.
fn park_here(
    here: &Here,
    deadline: Option<Instant>,
    reason: ParkReason,
    cancel: Cancel,
    signal: Signal,
) -> Woken {
    let fiber = here.fiber;
    let mut token = here.enter_with_worker();
    let cancel = cancel_mode(fiber, cancel, &token);
    fiber.note_park(reason, token.carrier().shared().clock.last_tick());
    let number = match fiber.state.begin_park(cancel, signal) {
        Begin::Woken(cause) => return cause,
        Begin::Parking(number) => number,
    };
    token.worker().counters.parks.add(1);
    let deadline = deadline.and_then(|at| Deadline::set(&token, at, fiber, number));
    if std::thread::panicking() {
        token = block_carrier(token, fiber);
    } else {
        token = context::switch(token, fiber, Back::Parking);
    }
    let woken = fiber.state.end_park();
    if let Some(deadline) = deadline
        && woken != Woken::ByDeadline
    {
        deadline.clear(&token); // I13
    }
    woken
}

/// Returns how this park treats a request to end: see `UnwindLimit`.
fn cancel_mode(fiber: FiberRef, wish: Cancel, token: &Entered) -> Cancel {
    let listens = wish != Cancel::Disabled && CAN_UNWIND && !std::thread::panicking();
    if !listens || time_limit::is_cancel_disabled(Some(fiber)) {
        return Cancel::Disabled;
    }
    if fiber.state.cancel_requested() && !may_unwind(token, fiber) {
        return Cancel::Deferred;
    }
    Cancel::Enabled
}

/// Parks inside the fiber's own frames, as the tenant of its thread.
///
/// The worker goes elsewhere. A worker comes back with the fiber when that is runnable, as to any
/// tenant (`tenant.rs`).
#[cold]
fn block_carrier(mut token: Entered, fiber: FiberRef) -> Entered {
    verdict::note_bound(fiber);
    let shared = token.carrier().shared();
    shared.count_bound_cause(fiber, Cause::Unwinding);
    fiber.set_blocks_carrier(true);
    token.carrier().let_in(fiber);
    if fiber.state.commit_park() == Commit::Parked {
        token = wait_in_frames(token, fiber);
    }
    fiber.set_blocks_carrier(false);
    token.carrier().let_out(fiber);
    token.carrier().publish(token.worker());
    token
}

/// Waits until a worker is here and the tenant is runnable.
fn wait_in_frames(token: Entered, fiber: FiberRef) -> Entered {
    let mut token = token;
    loop {
        let carrier = token.carrier();
        if carrier.owner.peek().is_some() {
            // The worker may differ from the one before.
            std::mem::forget(token);
            token = Entered::resumed();
            if token.carrier().delivered().is_some() || brings(&mut token, fiber) {
                token.carrier().spread_out();
                return token;
            }
            if token.carrier().hand_over() {
                continue;
            }
            // No thread can take it: it stays, asleep, and others steal what it has queued.
            if take_queued(&token, |found| found == fiber).is_some() {
                token.carrier().spread_out();
                return token;
            }
            if goes_to_stopped_thread(&mut token) {
                continue;
            }
            let (carrier, worker) = (token.carrier(), token.worker());
            worker.published.set_phase(Phase::Idle);
            carrier.parker.wait(Some(REFUSED_PAUSE));
            carrier.shared().fire_all(); // perhaps no other worker fires deadlines
            carrier.shared().poll_io(worker);
            // Other workers do not steal from the LIFO slot, so its fiber moves to the local queue.
            if let Some(newest) = worker.lifo.take() {
                carrier.shared().push_local(worker, newest);
            }
            if !worker.queue.is_empty() {
                carrier.shared().notify_searcher(worker.index + 1);
            }
        } else if !carrier.shared().adopt_orphan(carrier) {
            carrier.ignore_release();
            if carrier.owner.peek().is_none() {
                carrier.parker.wait(None);
            }
        }
    }
}

/// Returns whether the worker came here with this fiber.
///
/// A worker that found no other thread may carry another fiber, which is queued.
fn brings(token: &mut Entered, fiber: FiberRef) -> bool {
    match token.local().next.take() {
        Some(brought) if brought != fiber => {
            token.local().admitted = false;
            run::end_reservation(token);
            let shared = token.carrier().shared();
            shared.push_local(token.worker(), brought);
            false
        }
        brought => brought.is_some(),
    }
}

/// Takes a fiber that matches out of the queues.
///
/// Looks in the local queue and in the lanes of the global queue for started fibers. The waker of
/// the calling fiber may have found no worker here while the worker was looking for another thread.
fn take_queued(token: &Entered, is_it: impl Fn(FiberRef) -> bool) -> Option<FiberRef> {
    let (worker, shared) = (token.worker(), token.carrier().shared());
    for _ in 0..worker.queue.len() {
        match worker.queue.pop() {
            Some(found) if is_it(found) => return Some(found),
            Some(other) => shared.push_local(worker, other),
            None => break,
        }
    }
    let global = &shared.global;
    for lane in [&global.started, &global.interrupted, &global.batch] {
        for _ in 0..lane.len() {
            match lane.pop(1).pop().map(popped) {
                Some(found) if is_it(found) => return Some(found),
                Some(other) => lane.push(other),
                None => break,
            }
        }
    }
    None
}

/// Takes the worker to a thread that waits for one.
///
/// That thread is in the middle of a fiber, or a runnable fiber is bound to it. This needs no new
/// thread from the system. Returns true if the worker went, and the token is void.
fn goes_to_stopped_thread(token: &mut Entered) -> bool {
    let carrier = token.carrier();
    if let Some(receiver) = carrier.shared().claim_receiver(true) {
        let worker = carrier.leave_with_delivery();
        token.carrier().shared().hand(worker, receiver);
        return true;
    }
    let here = ptr::from_ref(token.carrier());
    let is_elsewhere = |thread: &Carrier| !ptr::eq(thread, here);
    let is_bound = |fiber| wake::thread_of(fiber).is_some_and(is_elsewhere);
    while let Some(fiber) = take_queued(token, is_bound) {
        let thread = wake::thread_of(fiber).expect("it is bound");
        if run::brings_to_thread(token, fiber, thread) {
            return true;
        }
    }
    false
}

/// Lets other fibers run; false on a plain thread.
///
/// The caller goes behind the other fibers of its worker. If it was asked to end it unwinds
/// instead.
#[inline]
pub(crate) fn yield_now() -> bool {
    let Some(here) = context::here() else {
        return false;
    };
    if is_to_end(here.fiber) {
        unwind_if_allowed(&here);
    }
    leave(&here, Back::Yielded);
    true
}

/// Yields and gives the worker to another carrier.
///
/// A worker is brought back to this carrier later.
pub(crate) fn hand_over() {
    if let Some(here) = context::here() {
        leave(&here, Back::HandedOver);
    }
}

#[inline]
fn leave(here: &Here, back: Back) {
    // S3: no other fiber may run on the thread of a fiber that unwinds.
    if !std::thread::panicking() {
        drop(context::switch(here.enter_with_worker(), here.fiber, back));
    }
}

/// Charges an operation that could block; all such operations are charged here.
///
/// A fiber whose operations all succeed at once yields when its budget is used up, or when it is
/// asked to give way. That is better than to be frozen a moment later. Returns true if it yielded,
/// or might have: then the caller checks whether it is to end.
#[inline]
pub(crate) fn charge() -> bool {
    context::here().is_some_and(|here| charge_here(&here))
}

/// Charges an operation before it is tried, and returns the calling fiber.
///
/// A fiber that yielded and was asked to end unwinds. The fiber is returned because it had to be
/// looked up.
#[inline]
pub(crate) fn charge_caller() -> Option<FiberRef> {
    let here = context::here()?;
    let fiber = here.fiber;
    if charge_here(&here) {
        unwind_if_cancelled();
    }
    Some(fiber)
}

#[inline]
fn charge_here(here: &Here) -> bool {
    let Some(token) = here.enter() else {
        return false;
    };
    let budget = &token.carrier().budget;
    let left = budget.get();
    if left > 0 && !token.carrier().is_asked() {
        budget.set(left - 1);
        return false;
    }
    gives_way(here, token, left)
}

/// Yields because the budget is used up or there is a request.
///
/// The next dispatch brings a new budget. A function of its own, so that the path of a charge stays
/// short.
#[cold]
#[inline(never)]
fn gives_way(here: &Here, token: Entered, left: u32) -> bool {
    let mut token = token;
    if here.fiber.in_no_preempt() {
        // S13: no yield in the section; the first operation charged after it yields.
        token.carrier().budget.set(left.saturating_sub(1));
        return false;
    }
    if left == 0 {
        token.worker().counters.budget_exhausted.add(1);
        let computes = !token.carrier().is_asked() && class::is_batch(&here.fiber);
        if computes && find::only_batch_waits(&mut token) {
            // They would run for a slice each, and this fiber for a budget.
            let carrier = token.carrier();
            carrier.budget.set(carrier.shared().settings.budget);
            return true; // the caller still checks whether it is to end
        }
    } else if !token.carrier().takes_request() {
        token.carrier().budget.set(left - 1);
        return false;
    }
    drop(token);
    leave(here, Back::Yielded);
    true
}

/// Marks a point where the fiber can yield: charges it, and yields if asked to.
#[inline]
pub(crate) fn checkpoint() {
    let Some(here) = context::here() else { return };
    let wanted = !here.fiber.in_no_preempt() && here.passes_checkpoint(); // S13
    if wanted {
        leave(&here, Back::Yielded);
    } else {
        charge();
    }
}

/// Guard of a section in which the fiber is not interrupted.
pub(crate) struct NoPreemptSection(Option<FiberRef>);

impl NoPreemptSection {
    pub(crate) fn new() -> Self {
        let fiber = context::current_fiber();
        if let Some(fiber) = fiber {
            let before = fiber.no_preempt_depth.load(Relaxed);
            assert!(before < u8::MAX, "no_preempt is nested 256 deep");
            fiber.no_preempt_depth.store(before + 1, Relaxed); // written by this fiber only
        }
        NoPreemptSection(fiber)
    }
}

impl Drop for NoPreemptSection {
    fn drop(&mut self) {
        if let Some(fiber) = self.0 {
            let before = fiber.no_preempt_depth.load(Relaxed);
            fiber.no_preempt_depth.store(before - 1, Relaxed);
            let guard = context::disable_preempt();
            if let Some(carrier) = guard.carrier().filter(|_| before == 1) {
                carrier.asks_may_come_again();
            }
            drop(guard); // looks at a request that came meanwhile
        }
    }
}

/// Unwinds the caller if it is to end (asked to, or past its limit) and may.
#[inline]
pub(crate) fn unwind_if_cancelled() {
    match context::here() {
        Some(here) if is_to_end(here.fiber) => unwind_if_allowed(&here),
        None if time_limit::has_passed(None) && CAN_UNWIND && !std::thread::panicking() => unwind(),
        _ => {}
    }
}

/// Returns whether the fiber was asked to end, or its time limit has passed.
#[inline]
fn is_to_end(fiber: FiberRef) -> bool {
    let asked = fiber.state.cancel_requested() && !time_limit::is_cancel_disabled(Some(fiber));
    asked || time_limit::has_passed(Some(fiber))
}

#[cold]
fn unwind_if_allowed(here: &Here) {
    if !CAN_UNWIND || std::thread::panicking() {
        return;
    }
    // Without a worker the fiber unwinds at the next opportunity.
    if here
        .enter()
        .is_some_and(|token| may_unwind(&token, here.fiber))
    {
        unwind();
    }
}

/// Gets the calling fiber a permit to unwind; false if there is none.
pub(crate) fn enters_gate() -> bool {
    let here = context::here().expect("a fiber runs here");
    may_unwind(&here.enter_with_worker(), here.fiber)
}

fn may_unwind(token: &Entered, fiber: FiberRef) -> bool {
    token
        .carrier()
        .shared()
        .unwind_limit
        .enter(&fiber.unwind_permit)
        != Entry::Full
}

/// Returns whether the unwinding caller was cancelled or is past its time limit.
///
/// Such a caller left at a call that blocks, between two steps of its own, not in the middle of
/// one.
pub(crate) fn unwinds_as_told() -> bool {
    time_limit::is_told(context::current_fiber())
}

/// Leaves the fiber by unwinding: destructors run, no message is printed.
///
/// Delayed if the fiber has unwound here again and again.
pub(crate) fn unwind() -> ! {
    unwind_backoff::note_unwinding();
    time_limit::say_told(context::current_fiber());
    std::panic::resume_unwind(Box::new(Cancelled::new(time_limit::was_caught)))
}
