#![expect(unsafe_code, reason = "moves fibers between intrusive lists")]
//! Started fibers that change threads, and those that keep theirs to themselves.
//!
//! A started fiber belongs to its *home*, the carrier it last ran on: wakes send it there. It moves
//! only while it is runnable and switched out, in the hands of whoever took it off a queue or made it
//! runnable (I1), and only if its frames allow it (`verdict.rs`). To move it is to put it where
//! unstarted fibers wait; the carrier that runs it next *adopts* it. Who does so:
//!
//! - a waker, if the home holds no worker, or one that does not get on;
//! - a worker that leaves its carrier: for another that wants it, for good, or because it was told to;
//! - whoever takes a worker from a carrier, before the carrier's thread can enter again;
//! - a worker with too much to do, while another has nothing;
//! - a *raider*: an idle worker that finds another one stuck in one dispatch.
//!
//! Everyone else's fibers stay, and a worker is brought to their carrier (I10).
//!
//! **I17** A carrier's home queue is touched by its own thread with the mark up, or by somebody else
//! while the carrier's worker is in his hand and the mark is down (`owner.rs`). A raider takes all of
//! the queue then, in a few instructions, and sorts it afterwards: those that may not move go into
//! the inbox, as if they had been woken just now.
//!
//! **I18** `started` counts the fibers that started on a carrier or were adopted by it, by its own
//! thread; `left` those of them that others adopted. A fiber counts for its home until it is adopted,
//! so a carrier's thread does not end as long as a fiber's home is that carrier.
//!
//! A fiber that is to be *alone* (S12) shares its thread with nobody while it is switched out: its
//! carrier *keeps* it. A worker on such a carrier runs that fiber, and others that are at home there
//! and may not leave; when it finds anything else to do it takes it to another carrier. A carrier that
//! keeps a fiber rests in a set of its own, where nobody looks for a thread to start fibers on. That
//! is so for a number of carriers; beyond it, fibers whose first function already says that they will
//! be alone start on carriers that keep some. If no thread can be had, they share with everybody.
//! Fibers that change their thread share with none in any case (`retire.rs`).

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::base::list::List;
use crate::base::loom::atomic;
use crate::fiber::record::ANY_WORKER;
use crate::fiber::{FiberRef, Record};
use crate::queue::inject::popped;
use crate::sched::carrier::Carrier;
use crate::sched::class::Sites;
use crate::sched::context::Entered;
use crate::sched::overrun::MaybeGone;
use crate::sched::verdict;
use crate::sched::worker::Worker;
use crate::sched::{Shared, class, wake};

/// Carriers per worker that may keep fibers which want to be alone, as long as that is no more than
/// half of all carriers.
const KEEPERS_PER_WORKER: usize = 64;
/// Threads per worker beyond which fibers of unknown sites start anywhere.
const THREADS_PER_WORKER: usize = 8;
/// Most fibers looked at in one step on the way of a worker.
const BATCH: usize = 64;
/// Most fibers a raider looks at; the mark is up meanwhile.
const RAIDED: usize = 1024;
/// So many times in a row a worker has too much to do while another has nothing, until it shares.
const CROWDED: u32 = 2;

/// The carrier a fiber belongs to, null before it starts.
#[inline]
pub(crate) fn home(fiber: FiberRef) -> *const Carrier {
    fiber.home.load(atomic::Ordering::Relaxed).cast()
}

/// Makes this carrier the home of a fiber that is about to run on it.
#[inline]
pub(crate) fn settle(carrier: &Carrier, fiber: FiberRef) {
    let before = home(fiber);
    if !before.is_null() {
        uncount_bound(fiber); // by the home it leaves
    }
    let here = ptr::from_ref(carrier).cast_mut().cast();
    fiber.home.store(here, atomic::Ordering::Relaxed); // nobody else does: it is ours (I1)
    carrier.count_started(1);
    // SAFETY: carriers live as long as `Shared`.
    if let Some(before) = unsafe { before.as_ref() } {
        before.left.fetch_add(1, SeqCst); // I18: after the last use of it as a home
        atomic::fence(SeqCst);
        if before.has_no_fibers() {
            before.bell.ring(); // nothing keeps its thread any more
        }
    }
}

/// A fiber that is known to be bound has switched out on its home.
#[inline]
pub(crate) fn count_bound(carrier: &Carrier, fiber: FiberRef) {
    // Not those of whom nothing is known yet: at the start of a program that is everybody, and each fiber of
    // a new site would get a thread of its own (measured: a yield 1.4 times as dear, for as long as they live).
    if verdict::is_bound(fiber) {
        fiber.counts_as_bound.store(true, atomic::Ordering::Relaxed);
        carrier.bound.fetch_add(1, Relaxed);
    }
}

/// It is about to run again, here or, if it may after all, elsewhere.
#[inline]
pub(crate) fn uncount_bound(fiber: FiberRef) {
    let counts = &fiber.counts_as_bound;
    if counts.load(atomic::Ordering::Relaxed) {
        counts.store(false, atomic::Ordering::Relaxed);
        // SAFETY: it was counted by its home; carriers live as long as `Shared`.
        unsafe { &*home(fiber) }.bound.fetch_sub(1, Relaxed);
    }
}

impl Carrier {
    /// Own thread: a fiber came, or ended.
    #[inline]
    pub(crate) fn count_started(&self, change: isize) {
        let started = self.started.load(Relaxed);
        self.started
            .store(started.wrapping_add_signed(change), Relaxed);
    }

    /// I18. Exact on the own thread; elsewhere true of some moment.
    pub(crate) fn has_no_fibers(&self) -> bool {
        self.started.load(Relaxed) == self.left.load(SeqCst)
    }

    /// A fiber has switched out here and wants to be alone.
    pub(crate) fn keep_alone(&self) {
        self.alone.set(self.alone.get() + 1);
        if self.alone.get() == 1 {
            self.shared().keepers.fetch_add(1, Relaxed);
            self.shared().keeps.set(self.index);
        }
    }

    /// Such a fiber is about to run again.
    pub(crate) fn keep_no_longer(&self) {
        self.alone.set(self.alone.get() - 1);
        if self.alone.get() == 0 {
            self.shared().keepers.fetch_sub(1, Relaxed);
            self.shared().keeps.claim(self.index);
        }
    }

    pub(crate) fn keeps_fibers(&self) -> bool {
        self.alone.get() > 0
    }

    /// All runnable fibers, inside or outside, on the own thread or by I17.
    ///
    /// # Safety
    /// As I17 says.
    pub(crate) unsafe fn take_runnable(&self) -> List<Record> {
        // SAFETY: by the caller's promise.
        let mut all = unsafe { self.take_interactive() };
        // SAFETY: as above.
        let home = unsafe { &mut *self.home_cell() };
        all.append(std::mem::replace(&mut home.batch, List::new()));
        all
    }

    /// The same without those that others come before, of which there may be very many.
    ///
    /// # Safety
    /// As I17 says.
    unsafe fn take_interactive(&self) -> List<Record> {
        // SAFETY: by the caller's promise.
        let home = unsafe { &mut *self.home_cell() };
        let mut all = List::new();
        if let Some(next) = home.next.take() {
            // SAFETY: it was in the slot, so in no list, and runnable fibers are alive (I3).
            unsafe { all.push(next.pointer()) };
        }
        all.append(std::mem::replace(&mut home.queue, List::new()));
        self.ice.fresh_mail.store(false, SeqCst);
        all.append(self.inbox.take());
        all
    }

    /// And some of those.
    ///
    /// # Safety
    /// As I17 says.
    pub(crate) unsafe fn take_some_runnable(&self) -> List<Record> {
        // SAFETY: by the caller's promise.
        let mut some = unsafe { self.take_interactive() };
        // SAFETY: as above.
        some.append(unsafe { self.take_some_batch(BATCH) });
        some
    }

    /// # Safety
    /// As I17 says.
    unsafe fn take_some_batch(&self, most: usize) -> List<Record> {
        // SAFETY: by the caller's promise.
        let home = unsafe { &mut *self.home_cell() };
        let mut some = List::new();
        for _ in 0..home.batch.len().div_ceil(2).min(most) {
            if let Some(member) = home.batch.pop() {
                // SAFETY: just popped.
                unsafe { some.push(member) };
            }
        }
        some
    }
}

/// Before a worker leaves its carrier: what may move comes along.
pub(crate) fn take_along(token: &mut Entered) {
    sift(token, BATCH);
}

/// Before a worker goes where it is wanted, or its carrier is blocked: what may move is anybody's.
pub(crate) fn leave_behind(token: &mut Entered, all: bool) {
    sift(token, if all { usize::MAX } else { BATCH });
}

/// Looks at so many of the carrier's runnable fibers: those that may move are anybody's, the others
/// keep their order.
fn sift(token: &Entered, most: usize) {
    let carrier = token.carrier();
    // SAFETY: I17: our own thread, and the token is the mark.
    let mut all = unsafe { carrier.take_interactive() };
    let looked_at = all.len().min(most);
    let mut moved = sift_list(token, &mut all, most);
    while let Some(fiber) = all.pop().map(popped) {
        // SAFETY: just popped.
        unsafe { carrier.home().push(fiber) };
    }
    if looked_at < most && !carrier.home().batch.is_empty() {
        let mut batch = std::mem::replace(&mut carrier.home().batch, List::new());
        moved |= sift_list(token, &mut batch, most - looked_at);
        carrier.home().batch = batch;
    }
    if moved {
        carrier.shared().rouse_from(token.worker());
    }
}

/// The same with one list; whether somebody went.
fn sift_list(token: &Entered, all: &mut List<Record>, most: usize) -> bool {
    let shared = token.carrier().shared();
    let (mut kept, mut moved) = (List::new(), false);
    for _ in 0..all.len().min(most) {
        let Some(fiber) = all.pop().map(popped) else {
            break;
        };
        // SAFETY: off a queue, so runnable, switched out and ours.
        if unsafe { verdict::may_move(shared, fiber) } {
            shared.be_anybodys(fiber);
            moved = true;
        } else {
            // SAFETY: just popped.
            unsafe { kept.push(fiber.pointer()) };
        }
    }
    kept.append(std::mem::replace(all, List::new()));
    *all = kept;
    moved
}

/// Now and then, on a worker that has fibers of its own waiting: if others have had nothing to do
/// for some time, lets them have what may move.
pub(crate) fn share_if_crowded(token: &mut Entered) {
    let carrier = token.carrier();
    let waiting = carrier.home().queue.len() + carrier.home().batch.len();
    let crowded = waiting > 1 && carrier.shared().idle.has_free_hands();
    let local = token.local();
    local.crowded = if crowded { local.crowded + 1 } else { 0 };
    if local.crowded < CROWDED {
        return;
    }
    local.crowded = 0;
    sift(token, (waiting / 2).min(BATCH));
}

/// On a searching worker: what may move from a carrier whose worker has not got on for some time.
pub(crate) fn raid(token: &Entered, victim: &Worker) -> Option<FiberRef> {
    let dispatch = victim.published.dispatches();
    if !victim.is_stuck() || victim.raided.swap(dispatch, Relaxed) == dispatch {
        return None;
    }
    let carrier = victim.carrier()?;
    let take = || {
        // SAFETY: I17: called while the worker is in our hand and the mark is down.
        let mut all = unsafe { carrier.take_interactive() };
        if !has_batch(token) {
            // SAFETY: as above.
            all.append(unsafe { carrier.take_some_batch(BATCH) });
        }
        all
    };
    let Some(all) = carrier.owner.visit(|| carrier.sleeps(), take) else {
        carrier.bell.ring(); // while the worker was in our hand it seemed to have none
        victim.raided.store(0, Relaxed);
        return None;
    };
    let mut first = None;
    let shared = token.carrier().shared();
    shared.sort(carrier, all, |fiber| {
        if let Some(before) = first.replace(fiber) {
            shared.be_anybodys(before);
        }
    });
    first
}

/// Whether this worker can run somebody whom others come before, without going to look for one.
fn has_batch(token: &Entered) -> bool {
    let carrier = token.carrier();
    let shared = carrier.shared();
    !carrier.home().batch.is_empty() || shared.has_batch() || !shared.frozen.is_empty()
}

/// Runnable fibers of carriers that froze or were detached: what may move should not wait, the others go
/// home and do.
pub(crate) fn sort_unsorted(token: &Entered) {
    let shared = token.carrier().shared();
    let mut fibers = shared.unsorted.take();
    let mut moved = false;
    while let Some(fiber) = fibers.pop().map(popped) {
        // SAFETY: off a queue, so runnable, switched out and ours.
        if unsafe { verdict::may_move(shared, fiber) } {
            shared.be_anybodys(fiber);
            moved = true;
        } else {
            shared.send_home(fiber);
        }
    }
    if moved {
        shared.rouse_from(token.worker());
    }
}

impl Shared {
    /// Fibers wait that others come before, and anybody may run.
    pub(crate) fn has_batch(&self) -> bool {
        self.batch.len() > 0 || self.roaming.len() > 0
    }

    /// A runnable started fiber that may move: any worker may run it. Not in a ring, where it would wait
    /// behind fibers of which nothing is known yet.
    fn be_anybodys(&self, fiber: FiberRef) {
        if class::is_batch(&fiber) {
            self.roaming.push(fiber);
        } else {
            self.ready.push(fiber);
        }
    }

    /// A runnable started fiber that may not move, or of which that is not known yet.
    pub(crate) fn send_home(&self, fiber: FiberRef) {
        // SAFETY: a started fiber has a home, which lives as long as `Shared`.
        let carrier = unsafe { &*home(fiber) };
        let (known, who) = (verdict::is_bound(fiber), MaybeGone::of(fiber));
        // SAFETY: runnable, in no list, and alive (I3).
        unsafe { carrier.inbox.post(fiber.pointer()) };
        if !known {
            carrier.note_fresh_mail();
        }
        if !wake::rouse_for_inbox(carrier, who, known) && !known {
            self.puzzle_over(carrier);
        }
    }

    /// Its carrier is busy for who knows how long: what was posted there is looked at again.
    fn puzzle_over(&self, carrier: &Carrier) {
        carrier.note_fresh_mail();
        self.puzzled.store(true, SeqCst);
        self.watchers.notice();
    }

    /// On the monitor's thread, now and then: more may be known by now of those whose carrier is busy.
    pub(crate) fn puzzle_again(&self) {
        if !self.puzzled.swap(false, SeqCst) {
            return;
        }
        for carrier in self.carriers.iter().filter_map(|carrier| carrier.get()) {
            if !carrier.has_fresh_mail() || carrier.owner.peek().is_some() {
                continue;
            }
            self.puzzled.store(true, SeqCst); // until all is known, or the carrier is back
            let mut fibers = carrier.inbox.take();
            while let Some(fiber) = fibers.pop() {
                // SAFETY: just popped, and runnable fibers are alive (I3).
                unsafe { self.unsorted.post(fiber) };
            }
            self.rouse_one(0);
        }
    }

    /// Runnable fibers that were taken off a carrier's queues: of the first of them those that may move
    /// go to `elsewhere`, all others back into its inbox.
    fn sort(
        &self,
        carrier: &Carrier,
        mut fibers: List<Record>,
        mut elsewhere: impl FnMut(FiberRef),
    ) {
        let (mut bound, taken) = (List::new(), fibers.len());
        for _ in 0..taken.min(RAIDED) {
            let Some(fiber) = fibers.pop().map(popped) else {
                break;
            };
            // SAFETY: off a queue, so runnable, switched out and ours.
            if unsafe { verdict::may_move(self, fiber) } {
                elsewhere(fiber);
            } else {
                // SAFETY: just popped.
                unsafe { bound.push(fiber.pointer()) };
            }
        }
        fibers.append(bound); // those nobody has looked at come first the next time
        let posts = !fibers.is_empty();
        let (mut known, mut last) = (true, (ptr::null_mut(), 0));
        while let Some(fiber) = fibers.pop() {
            known &= verdict::is_bound(popped(fiber));
            last = MaybeGone::of(popped(fiber));
            // SAFETY: just popped, and runnable fibers are alive (I3).
            unsafe { carrier.inbox.post(fiber) };
        }
        if posts {
            // I10: it may have looked while they were in our hands. If it cannot be claimed, it looks
            // again, or somebody owes it a worker, or it is blocked and looks when it is not.
            if !known {
                carrier.note_fresh_mail();
            }
            let claimed = wake::rouse_for_inbox(carrier, last, known);
            if !known && !claimed {
                self.puzzle_over(carrier);
            }
        }
    }

    /// A carrier has lost its worker while somebody posted a fiber to it, and is blocked for who knows
    /// how long: those that may move do not wait for it.
    #[cold]
    pub(crate) fn free_inbox(&self, carrier: &Carrier) {
        self.release_taken(carrier, carrier.inbox.take());
    }

    /// Runnable fibers of a carrier that holds no worker.
    pub(crate) fn release_taken(&self, carrier: &Carrier, fibers: List<Record>) {
        self.sort(carrier, fibers, |fiber| self.submit_started(fiber));
    }

    /// Queues a started fiber that may run anywhere.
    pub(crate) fn submit_started(&self, fiber: FiberRef) {
        let id = fiber.id(); // from then on it may end
        self.ready.push(fiber);
        if !self.rouse_one(0) {
            self.press(id);
        }
    }

    /// A fiber made runnable by the caller goes elsewhere if its home cannot run it now and it may.
    ///
    /// # Safety
    /// It is started, switched out, runnable and the caller's (I1).
    pub(crate) unsafe fn whereto(&self, carrier: &Carrier, fiber: FiberRef) -> Whereto {
        let worker = carrier.owner.peek();
        let is_stuck = |worker: NonNull<Worker>| {
            // SAFETY: workers live as long as `Shared`.
            unsafe { worker.as_ref() }.is_stuck() || carrier.is_long_in_one_dispatch(worker)
        };
        // SAFETY: by the caller's promise.
        if worker.is_none_or(is_stuck) && unsafe { verdict::may_move(self, fiber) } {
            return Whereto::Elsewhere;
        }
        Whereto::Home {
            held: worker.is_some(),
        }
    }

    /// As many carriers keep fibers that want to be alone as may.
    pub(crate) fn has_enough_keepers(&self) -> bool {
        let most = (KEEPERS_PER_WORKER * self.count.allowed()).min(self.settings.max_carriers / 2);
        self.keepers.load(Relaxed) >= most.max(1)
    }
}

/// Where a fiber goes that was made runnable.
pub(crate) enum Whereto {
    Elsewhere,
    /// To its home, which held a worker a moment ago, or did not.
    Home {
        held: bool,
    },
}

/// Where a fiber that is not at home on this carrier may run.
pub(crate) enum Welcome {
    Here,
    /// When nobody else waits.
    Later,
    /// On a carrier that keeps nobody.
    Elsewhere,
    /// On this carrier, which the caller has claimed, with others of its kind.
    With(usize),
}

/// Whether a fiber may start, or be adopted, on the caller's carrier.
///
/// # Safety
/// The fiber is the caller's (I1).
#[inline]
pub(crate) unsafe fn welcome(token: &Entered, fiber: FiberRef) -> Welcome {
    let carrier = token.carrier();
    let shared = carrier.shared();
    if carrier.retires() {
        return Welcome::Elsewhere;
    }
    // SAFETY: by the caller's promise.
    if shared.has_enough_keepers() && unsafe { verdict::will_be_alone(fiber) } {
        if carrier.keeps_fibers() {
            return Welcome::Here;
        }
        let start = carrier.index + 1;
        if let Some(keeper) = shared
            .keeping
            .claim_any(start % shared.settings.max_carriers)
        {
            return Welcome::With(keeper);
        }
    }
    if carrier.keeps_fibers() {
        return Welcome::Elsewhere;
    }
    let has_company = !carrier.has_no_fibers();
    // SAFETY: by the caller's promise.
    if has_company && unsafe { verdict::will_change_thread(fiber) } && !shared.resting.is_empty() {
        return Welcome::Elsewhere;
    }
    // SAFETY: by the caller's promise.
    unsafe { welcome_by_site(shared, carrier, fiber) }
}

/// A fiber that has not started, from a site of which too little good is known, does not start beside
/// others that may not be able to leave, if there is another thread; nor at all while many are frozen.
///
/// # Safety
/// The fiber is the caller's (I1).
#[inline]
unsafe fn welcome_by_site(shared: &Shared, carrier: &Carrier, fiber: FiberRef) -> Welcome {
    let beside_bound = carrier.bound.load(Relaxed) > 0;
    if !shared.settings.preempt || !beside_bound && !shared.has_many_frozen() {
        return Welcome::Here;
    }
    let unstarted = fiber.stack.load(atomic::Ordering::Relaxed).is_null();
    let site = Sites::get(fiber.location());
    if !unstarted || site.is_good() && !shared.has_far_too_many_frozen() {
        return Welcome::Here;
    }
    let anywhere = fiber.worker.load(atomic::Ordering::Relaxed) == ANY_WORKER;
    if anywhere && (site.is_bad() && shared.has_many_frozen() || shared.has_too_many_frozen()) {
        return Welcome::Later;
    }
    // Not for ever: where nothing is known of any site each fiber would get a thread of its own.
    let most = THREADS_PER_WORKER * shared.count.allowed();
    let suspicious = site.is_new() || site.is_bad();
    if !(beside_bound && suspicious) || shared.resting.is_empty() || shared.carrier_threads() > most
    {
        Welcome::Here
    } else {
        Welcome::Elsewhere
    }
}
