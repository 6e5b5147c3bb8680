//! Chooses what a worker runs next.
//!
//! The order is:
//!
//! 1. a tenant that was delivered;
//! 2. slices that are owed to fibers that compute much;
//! 3. many times in a row: fibers that were woken while all workers were busy, and threads that
//!    were interrupted in the middle of a short computation;
//! 4. every so many dispatches: the global queue;
//! 5. a few times in a row: the LIFO slot;
//! 6. the local queue and the fibers assigned to this worker, in turn;
//! 7. the global queue;
//! 8. other workers' queues;
//! 9. new events;
//! 10. fibers that compute much: frozen carriers, batch fibers, deferred starts.
//!
//! Each is reached within a bounded number of dispatches, or by what it is owed, whatever the
//! others hold. A worker in excess looks no further: it retires.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::fiber::{FiberRef, switch};
use crate::queue::lane::{Lane, popped};
use crate::sched::Shared;
use crate::sched::preempt::slices::Which;
use crate::sched::workers::context::Entered;
use crate::sched::workers::worker::Worker;
use crate::util::loom::atomic;

/// Turns of the LIFO slot in a row: enough for a short conversation, too few to starve a queue.
pub(crate) const LIFO_TURNS: u32 = 3;
/// Turns in a row for started fibers of the global queue, and for interrupted ones.
const URGENT_TURNS: u32 = 16;
/// Largest number of fibers taken off the global queue at once.
const BATCH: usize = 64;

pub(crate) enum Next {
    Run(FiberRef),
    /// An unstarted fiber whose start was deferred, and which may start now.
    Start(FiberRef),
    /// A claimed carrier that waits for a worker in the middle of a fiber.
    Thaw(usize),
    /// There are more workers than there should be, and this worker is in excess.
    Retire,
    Nothing,
}

/// Chooses what to run now.
///
/// The usual case, where only this worker's own fibers wait, comes first and is short.
#[inline]
pub(crate) fn next(token: &mut Entered) -> Next {
    let local = token.local();
    local.until_shared = local.until_shared.saturating_sub(1);
    if token.local().until_shared > 0
        && only_local(token)
        && let Some(fiber) = next_local(token)
    {
        return Next::Run(fiber);
    }
    in_order(token)
}

/// Whether nothing waits except, perhaps, fibers in the slot and the queue of this worker.
#[inline]
fn only_local(token: &mut Entered) -> bool {
    let worker = token.worker();
    worker.assigned.is_empty()
        && !worker.timers.is_due()
        && !worker.io_poll_due.load(Relaxed)
        && token.local().own.is_empty()
        && !token.carrier().has_delivery()
        && !token.carrier().shared().is_urgent()
}

/// Whether all waiting fibers compute much, like the one that runs: those take turns by time.
pub(crate) fn only_batch_waits(token: &mut Entered) -> bool {
    if !token.local().own.is_empty() || token.carrier().has_delivery() {
        return false;
    }
    let (worker, shared) = (token.worker(), token.carrier().shared());
    worker.lifo.is_empty()
        && worker.queue.is_empty()
        && worker.assigned.is_empty()
        && !worker.timers.is_due()
        && !worker.io_poll_due.load(Relaxed)
        && shared.global.started.len() + shared.global.unstarted.len() == 0
        && shared.wanted.is_empty()
        && !shared.is_batch_owed()
        && !shared.has_frozen(Which::Interactive)
        && shared.global.interrupted.len() == 0
        && !shared.count.is_excess(worker.index)
        && !shared.is_stopping()
}

/// Takes a fiber off the queue, or off the slot if nothing waits behind it.
///
/// If fibers wait behind the slot, turns have to be counted, and this returns `None`.
#[inline]
fn next_local(token: &Entered) -> Option<FiberRef> {
    let worker = token.worker();
    match worker.lifo.is_empty() {
        true => pop_local(worker),
        false if worker.queue.is_empty() => worker.lifo.take(),
        false => None,
    }
}

/// Takes the oldest fiber of the local queue and prefetches the next, because caches hold few
/// fibers.
#[inline]
fn pop_local(worker: &Worker) -> Option<FiberRef> {
    let fiber = worker.queue.pop();
    if let Some(next) = worker.queue.peek_started() {
        switch::prefetch(next);
    }
    fiber
}

#[inline(never)]
fn in_order(token: &mut Entered) -> Next {
    let carrier = token.carrier();
    let shared = carrier.shared();
    if shared.count.is_excess(token.worker().index) {
        token.local().until_shared = 1; // in case it stays in service after all
        return Next::Retire;
    }
    if token.worker().timers.is_due() {
        shared.fire(token.worker());
    }
    if token.worker().io_poll_due.load(Relaxed) {
        looks_at_io(token);
    }
    token.carrier().shared().fire_missed();
    if let Some(fiber) = token.carrier().delivered() {
        return Next::Run(fiber);
    }
    collect_assigned(token);
    // Not twice in a row: when decisions are rare, a slice is owed at each of them.
    let owed = !token.local().paid && token.carrier().shared().is_batch_owed();
    token.local().paid = owed;
    if owed {
        match batch(token) {
            Next::Nothing => {}
            found => return found,
        }
    }
    match urgent(token) {
        Next::Nothing => {}
        found => return found,
    }
    if token.local().until_shared == 0 {
        token.local().until_shared = token.carrier().shared().settings.global_interval;
        looks_at_io(token);
        match shared_queue(token) {
            Next::Nothing => {}
            found => return found,
        }
    }
    if let Some(fiber) = lifo(token).or_else(|| in_turn(token)) {
        return Next::Run(fiber);
    }
    token.local().urgent_turns = 1; // the number of turns does not matter here
    match urgent(token) {
        Next::Nothing => {}
        found => return found,
    }
    match shared_queue(token) {
        Next::Nothing => {}
        found => return found,
    }
    if let Some(next) = stopped(token) {
        return next;
    }
    // Before new events: the thread of the victim may wait for a CPU.
    if let Some(fiber) = steal(token) {
        return Next::Run(fiber);
    }
    if !token.local().looked && looks_at_io(token) {
        if let Some(fiber) = lifo(token).or_else(|| in_turn(token)) {
            return Next::Run(fiber);
        }
        // After a long dispatch the woken fibers are queued for all workers.
        match urgent(token) {
            Next::Nothing => {}
            found => return found,
        }
    }
    // Nothing else waits: interrupted fibers continue.
    batch(token)
}

/// Wakes the fibers that wait for what has become ready; false if no fiber can wait there.
fn looks_at_io(token: &mut Entered) -> bool {
    let (shared, worker) = (token.carrier().shared(), token.worker());
    if !shared.has_io(worker) {
        worker.io_poll_due.store(false, Relaxed);
        return false;
    }
    shared.disarm_io(worker);
    shared.poll_io(worker);
    true
}

/// Chooses in turn among runnable batch fibers, frozen carriers and deferred starts.
///
/// While many carriers are frozen few fibers are started: each could cost a thread.
fn batch(token: &mut Entered) -> Next {
    const KINDS: u32 = 4;
    for _ in 0..KINDS {
        let local = token.local();
        local.batch_turn = local.batch_turn.wrapping_add(1);
        let turn = local.batch_turn;
        let shared = token.carrier().shared();
        let pop = |queue: &Lane| queue.pop(1).pop().map(popped);
        let found = match turn % KINDS {
            0 if shared.may_start_deferred() => pop(&shared.global.deferred).map(Next::Start),
            1 => pop(&shared.global.batch).map(Next::Run),
            2 => (shared.claim_frozen(Which::Batch))
                .or_else(|| shared.claim_frozen(Which::Any))
                .map(Next::Thaw),
            3 => shared.claim_frozen(Which::Any).map(Next::Thaw),
            _ => None,
        };
        if let Some(found) = found {
            shared.pay_batch();
            return found;
        }
    }
    Next::Nothing
}

/// Claims a carrier that waits for a worker in the middle of a fiber that does not compute much.
///
/// Or takes such a fiber that has left its thread. The two kinds of interrupted fibers take turns.
fn stopped(token: &Entered) -> Option<Next> {
    let shared = token.carrier().shared();
    if let Some(index) = shared.wanted.claim_any() {
        return Some(Next::Thaw(index));
    }
    let frozen = || shared.claim_frozen(Which::Interactive).map(Next::Thaw);
    let left = || {
        let fiber = shared.global.interrupted.pop(1).pop()?;
        Some(Next::Run(popped(fiber)))
    };
    match token.worker().published.dispatches() % 2 {
        0 => left().or_else(frozen),
        _ => frozen().or_else(left),
    }
}

/// Takes fibers that come before this worker's own.
///
/// These are fibers that were woken while all workers were busy, and interrupted fibers that do not
/// compute much. They take turns with this worker's own.
fn urgent(token: &mut Entered) -> Next {
    let shared = token.carrier().shared();
    if !shared.is_urgent() {
        return Next::Nothing;
    }
    let local = token.local();
    local.urgent_turns += 1;
    if local.urgent_turns > URGENT_TURNS {
        local.urgent_turns = 0;
        return Next::Nothing;
    }
    let turn = local.urgent_turns;
    let stopped = || stopped(token);
    let queued = || {
        let shared = token.carrier().shared();
        let fiber = shared.global.started.pop(1).pop()?;
        shared.has_urgent.store(false, Relaxed);
        token.worker().counters.from_shared.add(1);
        Some(Next::Run(popped(fiber)))
    };
    let found = match turn % 4 {
        0 => stopped().or_else(queued),
        2 => queued().or_else(stopped),
        _ => queued(), // an interrupted fiber takes long, so not at every turn
    };
    found.unwrap_or(Next::Nothing)
}

/// Moves fibers that other threads assigned to this worker to its own list.
#[inline]
fn collect_assigned(token: &mut Entered) {
    if !token.worker().assigned.is_empty() {
        let assigned = token.worker().assigned.take();
        token.local().own.append(assigned);
    }
}

/// Takes the fiber out of the LIFO slot.
///
/// If the slot has had its turns and others wait, its fiber goes behind those.
#[inline]
fn lifo(token: &mut Entered) -> Option<FiberRef> {
    let worker = token.worker();
    if worker.lifo.is_empty() {
        token.local().lifo_turns = 0;
        return None;
    }
    let nothing_waits = worker.queue.is_empty() && token.local().own.is_empty();
    if (nothing_waits || token.local().lifo_turns < LIFO_TURNS)
        && let Some(found) = token.worker().lifo.take()
    {
        token.local().lifo_turns = token.local().lifo_turns.saturating_add(1);
        return Some(found);
    }
    token.local().lifo_turns = 0;
    if let Some(fiber) = token.worker().lifo.take() {
        let shared = token.carrier().shared();
        shared.push_local(token.worker(), fiber);
        shared.notify_searcher_from(token.worker()); // the monitor looks after slots, not queues
    }
    None
}

/// Takes from the local queue and the fibers assigned to this worker, in turn.
#[inline]
fn in_turn(token: &mut Entered) -> Option<FiberRef> {
    let local = token.local();
    if local.own.is_empty() {
        return pop_local(token.worker());
    }
    local.own_turn = !local.own_turn;
    if local.own_turn {
        let own = local.own.pop().map(popped);
        own.or_else(|| pop_local(token.worker()))
    } else {
        let queued = pop_local(token.worker());
        queued.or_else(|| token.local().own.pop().map(popped))
    }
}

/// Takes a carrier that wants a worker, or a fiber of the global queue, in turn.
fn shared_queue(token: &mut Entered) -> Next {
    for _ in 0..2 {
        let local = token.local();
        local.carrier_turn = !local.carrier_turn;
        if local.carrier_turn {
            if let Some(index) = token.carrier().shared().wanted.claim_any() {
                return Next::Thaw(index);
            }
        } else if let Some(fiber) = from_global(token) {
            return Next::Run(fiber);
        }
    }
    Next::Nothing
}

/// Takes a fair share of the unstarted fibers: one to run, the others for the local queue.
///
/// In turn with them it takes fibers that waited for a thread to start on, if there are threads
/// again.
fn from_global(token: &mut Entered) -> Option<FiberRef> {
    let shared = token.carrier().shared();
    let len = shared.global.unstarted.len();
    if shared.global.threadless.len() > 0 {
        let turn = !token.local().threadless_turn;
        token.local().threadless_turn = turn;
        let (shared, occupied) = (token.carrier().shared(), token.carrier().has_tenant());
        let fiber = (turn || len == 0).then(|| shared.next_threadless(occupied));
        if let Some(fiber) = fiber.flatten() {
            token.local().admitted = true;
            token.local().reserved = true;
            return Some(fiber);
        }
    }
    let shared = token.carrier().shared();
    if len == 0 {
        return None;
    }
    let share = (len / shared.count.allowed() + 1)
        .min(BATCH)
        .min(shared.settings.local_queue / 2);
    token.worker().counters.from_shared.add(1);
    shared.has_urgent.store(false, Relaxed);
    let mut taken = shared.global.unstarted.pop(share.max(1));
    let first = taken.pop().map(popped);
    if !taken.is_empty() {
        while let Some(fiber) = taken.pop() {
            shared.push_local(token.worker(), popped(fiber));
        }
        shared.notify_searcher_from(token.worker()); // they were in no queue for a moment (I8)
    }
    first
}

/// Takes half of another worker's queue, or the fiber in the slot of a worker without progress.
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
        let found = || other.queue.steal_into(&me.queue);
        let found = other.has_fibers_for_others().then(found).flatten();
        if let Some(fiber) = found.or_else(|| steal_slot(other)) {
            let me = token.worker();
            me.counters.steals.add(1);
            me.counters.stolen.add(me.queue.len() as u64 + 1);
            if !me.queue.is_empty() {
                token.carrier().shared().notify_searcher_from(me); // as in `from_global`
            }
            return Some(fiber);
        }
    }
    None
}

/// Takes the fiber out of a victim's LIFO slot if the victim is in a long dispatch.
///
/// That is, if the monitor has seen the victim in one dispatch at two looks, and it is still in it.
fn steal_slot(victim: &Worker) -> Option<FiberRef> {
    if victim.lifo.is_empty() || !victim.is_stuck() {
        return None;
    }
    victim.lifo.take()
}

impl Worker {
    /// Whether its queue holds a fiber that another worker could run sooner.
    ///
    /// A fiber that is alone in the queue and bound to the thread that this worker is on does not
    /// count: a thief would bring it back.
    pub(crate) fn has_fibers_for_others(&self) -> bool {
        match self.queue.peek_only() {
            Some(only) => {
                let thread = only.thread.load(atomic::Ordering::Relaxed);
                thread.is_null() || !ptr::eq(thread.cast(), self.carrier.load(Relaxed))
            }
            None => !self.queue.is_empty(),
        }
    }
}

impl Shared {
    /// Queues a fiber on a worker that the caller holds. Fibers that do not fit go to the global
    /// queue.
    #[inline]
    pub(crate) fn push_local(&self, worker: &Worker, fiber: FiberRef) {
        let mut pushed = worker.queue.push(fiber);
        while let Err((back, older)) = pushed {
            worker.counters.overflows.add(1);
            self.global_for(back).push_all(older);
            pushed = worker.queue.push(back);
        }
    }

    /// The global queue for started or for unstarted fibers, whichever fits.
    fn global_for(&self, fiber: FiberRef) -> &Lane {
        if fiber.is_unstarted() {
            &self.global.unstarted
        } else {
            &self.global.started
        }
    }

    /// Queues a fiber for any worker.
    pub(crate) fn push_global(&self, fiber: FiberRef) {
        self.global_for(fiber).push(fiber);
    }

    /// Whether fibers wait that any worker should run before its own.
    ///
    /// They were woken while all workers were busy, a carrier waits in the middle of a fiber, or a
    /// slice is owed.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.global.started.len() > 0
            || !self.wanted.is_empty()
            || !self.frozen.is_empty()
            || self.global.interrupted.len() > 0
            || self.is_batch_owed()
    }
}
