#![expect(unsafe_code, reason = "moves fibers between intrusive lists")]
//! What a worker runs next.
//!
//! Order: slices that are owed to those whom others come before; fibers that should not wait, many times
//! in a row; every so many dispatches the shared queue; a LIFO slot, a few times in a row; started and
//! unstarted fibers in turn; the shared queue; other workers' rings; then those that others come before:
//! frozen carriers, batch fibers. Each is reached within a bounded number of dispatches, or by what is
//! owed, whatever the others hold. A worker in excess looks no further: it retires.

use std::sync::atomic::Ordering::Relaxed;

use crate::base::arch;
use crate::fiber::{FiberRef, switch};
use crate::queue::inject::popped;
use crate::sched::Shared;
use crate::sched::carrier::Carrier;
use crate::sched::context::Entered;
use crate::sched::moving;
use crate::sched::slices::Which;
use crate::sched::worker::Worker;

/// Turns the LIFO slots get in a row: enough for a short conversation, not for starving a queue.
pub(crate) const LIFO_TURNS: u32 = 3;
/// Turns started fibers get for one of the unstarted ones while another worker is idle: it will come
/// and steal those, and a fiber that is started stays here. Otherwise they alternate.
const HOME_TURNS: u32 = 48;
/// Turns those get in a row that should not wait.
const READY_TURNS: u32 = 16;
/// Most fibers taken off the shared queue at once.
const BATCH: usize = 64;

pub(crate) enum Next {
    Run(FiberRef),
    /// A carrier with runnable fibers, or with one that waits, wants this worker.
    MoveTo(usize),
    /// An unstarted fiber whose turn has come.
    Start(FiberRef),
    /// A frozen carrier, whose turn it is; claimed.
    Thaw(usize),
    /// There are more workers than there should be, and this is one too many.
    Retire,
    Nothing,
}

/// What to run now. The usual case, started fibers and nothing else, comes first and is short.
#[inline]
pub(crate) fn next(token: &mut Entered) -> Next {
    let local = token.local();
    local.until_shared = local.until_shared.saturating_sub(1);
    if token.local().until_shared > 0
        && only_home(token)
        && let Some(fiber) = next_at_home(token.carrier())
    {
        return Next::Run(fiber);
    }
    in_order(token)
}

/// Nothing is there but, perhaps, fibers at home.
#[inline]
fn only_home(token: &mut Entered) -> bool {
    let (carrier, worker) = (token.carrier(), token.worker());
    carrier.inbox.is_empty()
        && worker.lifo.is_empty()
        && worker.ring.is_empty()
        && worker.assigned.is_empty()
        && token.local().own.is_empty()
        && !token.worker().timers.is_due()
        && !token.worker().io_due.load(Relaxed)
        && token.carrier().shared().ready.len() == 0
        && token.carrier().shared().unsorted.is_empty()
        && !token.carrier().shared().is_batch_owed()
}

/// Whether nobody waits whom a fiber that computes much would let go first: those like it take turns by time.
pub(crate) fn only_batch_waits(token: &mut Entered) -> bool {
    if !only_home(token) {
        return false;
    }
    let (home, shared) = (token.carrier().home(), token.carrier().shared());
    home.next.is_none()
        && home.queue.is_empty()
        && shared.global.len() == 0
        && shared.wanted.is_empty()
        && !shared.has_frozen(Which::Interactive)
        && !shared.count.is_excess(token.worker().index)
        && !shared.is_stopping()
}

/// Of the home queue, or the slot if nobody waits behind it; if somebody does, turns have to be counted.
#[inline]
fn next_at_home(carrier: &Carrier) -> Option<FiberRef> {
    let home = carrier.home();
    match home.next.is_some() {
        true if home.queue.is_empty() => home.next.take(),
        true => None,
        false => pop_home(carrier),
    }
}

/// The oldest of the home queue; the one after it is asked for, since the caches hold few fibers.
#[inline]
fn pop_home(carrier: &Carrier) -> Option<FiberRef> {
    let queue = &mut carrier.home().queue;
    let fiber = queue.pop().map(popped);
    if let Some((next, after)) = queue.peek() {
        arch::prefetch(after);
        switch::prefetch(popped(next));
    }
    fiber
}

#[inline(never)]
fn in_order(token: &mut Entered) -> Next {
    if token
        .carrier()
        .shared()
        .count
        .is_excess(token.worker().index)
    {
        token.local().until_shared = 1; // should it stay in service after all
        return Next::Retire;
    }
    if token.worker().timers.is_due() {
        token.carrier().shared().fire(token.worker());
    }
    if token.worker().io_due.load(Relaxed) {
        looks_at_io(token);
    }
    token.carrier().shared().fire_missed();
    token.carrier().forget_bound();
    if !token.carrier().shared().unsorted.is_empty() {
        moving::sort_unsorted(token);
    }
    collect(token);
    // Not twice in a row: when decisions are rare a slice is owed at each of them.
    let owed = !token.local().paid && token.carrier().shared().is_batch_owed();
    token.local().paid = owed;
    if owed {
        match batch(token) {
            Next::Nothing => {}
            found => return found,
        }
    }
    match from_ready(token) {
        Next::Nothing => {}
        found => return found,
    }
    if token.local().until_shared == 0 {
        token.local().until_shared = token.carrier().shared().settings.global_interval;
        token.local().put_off = false;
        looks_at_io(token);
        moving::share_if_crowded(token);
        let local = token.local();
        local.batch_round = !local.batch_round;
        if local.batch_round
            && let Some(fiber) = token.carrier().home().batch.pop()
        {
            token.local().until_shared = 1; // the shared queue comes next
            return Next::Run(popped(fiber)); // however much the others do
        }
        match shared_queue(token) {
            Next::Nothing => {}
            found => return found,
        }
    }
    if let Some(fiber) = lifo(token).or_else(|| in_turn(token)) {
        return Next::Run(fiber);
    }
    if !token.local().looked
        && looks_at_io(token)
        && let Some(fiber) = lifo(token).or_else(|| in_turn(token))
    {
        return Next::Run(fiber);
    }
    token.local().ready_turns = 1; // whose turn it is does not matter here
    match from_ready(token) {
        Next::Nothing => {}
        found => return found,
    }
    match shared_queue(token) {
        Next::Nothing => {}
        found => return found,
    }
    if let Some(fiber) = steal(token) {
        return Next::Run(fiber);
    }
    // Nobody else waits: those that were stopped go on.
    batch(token)
}

/// Wakes who waits for what has become ready. False if there is nobody who could wait.
fn looks_at_io(token: &mut Entered) -> bool {
    let (shared, worker) = (token.carrier().shared(), token.worker());
    if !worker.has_sources() {
        return false;
    }
    shared.disarm_io(worker);
    shared.poll_io(worker);
    collect(token);
    true
}

/// Fibers that others come before: those of this carrier, frozen ones, unstarted ones in turn. While many
/// are frozen few are started: each could cost a thread.
fn batch(token: &mut Entered) -> Next {
    const KINDS: u32 = 4;
    for _ in 0..KINDS {
        let local = token.local();
        local.batch_turn = local.batch_turn.wrapping_add(1);
        let turn = local.batch_turn;
        let carrier = token.carrier();
        let shared = carrier.shared();
        let roaming = || shared.roaming.pop(1).pop().map(|f| Next::Run(popped(f)));
        let unstarted = || {
            let may = shared.batch.len() > 0 && shared.may_start_batch();
            may.then(|| shared.batch.pop(1).pop().map(|f| Next::Start(popped(f))))?
        };
        let found = match turn % KINDS {
            0 if turn.is_multiple_of(2 * KINDS) => roaming().or_else(unstarted),
            0 => unstarted().or_else(roaming),
            1 => carrier.home().batch.pop().map(|f| Next::Run(popped(f))),
            2 => (shared.claim_frozen(Which::Batch))
                .or_else(|| shared.claim_frozen(Which::Any))
                .map(Next::Thaw),
            _ => shared.claim_frozen(Which::Any).map(Next::Thaw),
        };
        if let Some(found) = found {
            shared.pay_batch();
            return found;
        }
    }
    Next::Nothing
}

/// A fiber that should not wait, or one that was stopped and does not compute much, in turn with this
/// worker's own.
fn from_ready(token: &mut Entered) -> Next {
    let shared = token.carrier().shared();
    if shared.ready.len() == 0 && shared.frozen.is_empty() {
        return Next::Nothing;
    }
    let local = token.local();
    local.ready_turns += 1;
    if local.ready_turns > READY_TURNS {
        local.ready_turns = 0;
        return Next::Nothing;
    }
    let turn = local.ready_turns;
    let shared = token.carrier().shared();
    let frozen = || (shared.claim_frozen(Which::Interactive)).map(Next::Thaw);
    let ready = || {
        let fiber = shared.ready.pop(1).pop()?;
        token.worker().counters.from_shared.add(1);
        Some(Next::Run(popped(fiber)))
    };
    let found = match turn % 4 {
        0 => frozen().or_else(ready),
        2 => ready().or_else(frozen),
        _ => ready(), // who was stopped takes his time: not at every turn
    };
    found.unwrap_or(Next::Nothing)
}

/// Moves what others sent to where this worker looks.
#[inline]
fn collect(token: &mut Entered) {
    let carrier = token.carrier();
    if !carrier.inbox.is_empty() {
        carrier.ice.fresh_mail.store(false, Relaxed);
        let mut mail = carrier.inbox.take();
        let home = carrier.home();
        while let Some(member) = mail.pop() {
            // SAFETY: just popped, and runnable fibers are alive (I3).
            unsafe { home.push(popped(member)) };
        }
    }
    if !token.worker().assigned.is_empty() {
        let assigned = token.worker().assigned.take();
        token.local().own.append(assigned);
    }
}

/// The LIFO slots: a fiber woken by its sibling, or spawned last. When they have had their turns and
/// others wait, what they hold goes behind those.
#[inline]
fn lifo(token: &mut Entered) -> Option<FiberRef> {
    let woken = token.carrier().home().next.is_some();
    let spawned = !token.worker().lifo.is_empty();
    if !woken && !spawned {
        token.local().lifo_turns = 0;
        return None;
    }
    let nobody_waits = woken != spawned
        && token.carrier().home().queue.is_empty()
        && token.worker().ring.is_empty()
        && token.local().own.is_empty();
    if nobody_waits || token.local().lifo_turns < LIFO_TURNS {
        let next = token.carrier().home().next.take();
        if let Some(found) = next.or_else(|| token.worker().lifo.take()) {
            token.local().lifo_turns = token.local().lifo_turns.saturating_add(1);
            return Some(found);
        }
    }
    token.local().lifo_turns = 0;
    let home = token.carrier().home();
    if let Some(fiber) = home.next.take() {
        // SAFETY: it was in the slot, so in no list, and runnable fibers are alive (I3).
        unsafe { home.queue.push(fiber.pointer()) };
    }
    if let Some(fiber) = token.worker().lifo.take() {
        let shared = token.carrier().shared();
        shared.push_local(token.worker(), fiber);
        shared.rouse_from(token.worker()); // the monitor minds slots, not rings
    }
    None
}

/// Started and unstarted fibers in turn.
#[inline]
fn in_turn(token: &mut Entered) -> Option<FiberRef> {
    let turns = token.local().home_turns;
    if (turns == 0 || (turns < HOME_TURNS && token.carrier().shared().idle.has_free_hands()))
        && let Some(fiber) = pop_home(token.carrier())
    {
        token.local().home_turns += 1;
        return Some(fiber);
    }
    let local = token.local();
    local.home_turns = 0;
    local.own_turn = !local.own_turn;
    let unstarted = if local.own_turn {
        let own = local.own.pop().map(popped);
        own.or_else(|| token.worker().ring.pop())
    } else {
        let ring = token.worker().ring.pop();
        ring.or_else(|| token.local().own.pop().map(popped))
    };
    unstarted.or_else(|| pop_home(token.carrier()))
}

/// Carriers that want a worker, and fibers anybody may run; they take turns too.
fn shared_queue(token: &mut Entered) -> Next {
    for _ in 0..2 {
        let local = token.local();
        local.carrier_turn = !local.carrier_turn;
        if local.carrier_turn {
            let shared = token.carrier().shared();
            if !shared.wanted.is_empty() {
                // Round robin: from the one after ours.
                let start = (token.carrier().index + 1) % shared.settings.max_carriers;
                if let Some(carrier) = shared.wanted.claim_any(start) {
                    return Next::MoveTo(carrier);
                }
            }
        } else if let Some(fiber) = from_global(token) {
            return Next::Run(fiber);
        }
    }
    Next::Nothing
}

/// A fair share of the shared queue: one to run, the others into the ring.
fn from_global(token: &Entered) -> Option<FiberRef> {
    let shared = token.carrier().shared();
    let len = shared.global.len();
    if len == 0 {
        return None;
    }
    let share = (len / shared.count.allowed() + 1)
        .min(BATCH)
        .min(shared.settings.local_queue / 2);
    token.worker().counters.from_shared.add(1);
    shared.pressed.store(false, Relaxed);
    let mut taken = shared.global.pop(share.max(1));
    let first = taken.pop().map(popped);
    if !taken.is_empty() {
        while let Some(fiber) = taken.pop() {
            shared.push_local(token.worker(), popped(fiber));
        }
        shared.rouse_from(token.worker()); // they were nowhere for a moment (I8)
    }
    first
}

/// Half of somebody's ring; or the fiber in the slot of a worker that does not get on.
fn steal(token: &mut Entered) -> Option<FiberRef> {
    let n = token.carrier().shared().count.present();
    let start = token.local().rng.below(n);
    if n > 1 {
        token.worker().counters.steal_attempts.add(1);
    }
    for step in 0..n {
        let (me, victim) = (token.worker(), (start + step) % n);
        if victim == me.index {
            continue;
        }
        let other = &token.carrier().shared().workers[victim];
        let found = other.ring.steal_into(&me.ring);
        let found = found.or_else(|| steal_slot(token, victim));
        if let Some(fiber) = found.or_else(|| moving::raid(token, other)) {
            let me = token.worker();
            me.counters.steals.add(1);
            me.counters.stolen.add(me.ring.len() as u64 + 1);
            if !me.ring.is_empty() {
                token.carrier().shared().rouse_from(me); // as in `from_global`
            }
            return Some(fiber);
        }
    }
    None
}

/// Takes the fiber out of a victim's LIFO slot if the monitor has seen the victim overrun, and it
/// still does.
fn steal_slot(token: &Entered, victim: usize) -> Option<FiberRef> {
    let victim: &Worker = &token.carrier().shared().workers[victim];
    if victim.lifo.is_empty() || victim.overran.load(Relaxed) != victim.published.dispatches() {
        return None;
    }
    victim.lifo.take()
}

impl Shared {
    /// Queues an unstarted fiber on a worker the caller holds; what does not fit goes to all.
    pub(crate) fn push_local(&self, worker: &Worker, fiber: FiberRef) {
        let mut fiber = fiber;
        while let Err(back) = worker.ring.push(fiber) {
            fiber = back;
            worker.counters.overflows.add(1);
            self.global.push_all(worker.ring.take_half());
        }
    }
}
