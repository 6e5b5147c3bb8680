//! Slices of time: whose turn it is among frozen fibers, and what is owed to those that others come before.
//!
//! Whose turn it is. A carrier that has not used up its slice when it is frozen, because somebody
//! pressing came, keeps its place; else it goes behind all others. So a stream of short interruptions
//! does not deal out more slices than time.
//!
//! A fiber that may not leave a thread which another occupies is counted when it has waited for long
//! ([S12]); from then on every other turn is for such occupants, until they let go.
//!
//! [S12]: DESIGN.md

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use indent_sysmon::{Phase, TICK};

use crate::base::os;
use crate::sched::carrier::Carrier;
use crate::sched::timers::nanos;
use crate::sched::worker::Worker;
use crate::sched::{Shared, class};

/// Nanoseconds after which a fiber that may not leave has waited long for its thread.
const LONG_WAIT: u64 = 50_000_000;
/// Frozen carriers per worker that are not many.
const FEW_FROZEN: usize = 8;
/// So much longer is a slice when there are many.
const LONGER: u32 = 10;

/// Siblings of the fiber that runs: such that others come before them, and any others. And that it is likely
/// to compute for long.
pub(crate) const BATCH: u8 = 1;
pub(crate) const OTHERS: u8 = 2;
const LONG: u8 = 4;

/// Which of the frozen carriers are meant.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    Any,
    Interactive,
    Batch,
}

impl Carrier {
    /// Own thread: this dispatch may be a long one; from here on its time counts.
    pub(crate) fn begin_slice(&self, worker: &Worker) {
        let now = self.shared().clock.nanos();
        self.note_long(worker.stamp(), now, os::own_cpu_time());
        self.shared().arm_io(worker);
    }

    /// This dispatch is a long one, and runs since then at least.
    pub(crate) fn note_long(&self, stamp: u64, began: u64, cpu: u64) {
        if self.ice.long.load(Relaxed) != stamp {
            self.ice.began.store(began, Relaxed);
            self.ice.cpu_began.store(cpu, Relaxed);
            self.ice.long.store(stamp, SeqCst);
        }
    }

    /// Own thread, at the end of a dispatch the monitor has seen for long: for how many ticks it ran.
    pub(crate) fn ticks_in(&self, worker: &Worker) -> u64 {
        if self.ice.long.load(Relaxed) != worker.stamp() {
            return 1;
        }
        let ran = self
            .shared()
            .clock
            .nanos()
            .saturating_sub(self.ice.began.load(Relaxed));
        ran / TICK.as_nanos() as u64
    }

    /// A fiber that may not leave was posted to this carrier, which is in the middle of another.
    pub(crate) fn note_bound(&self) {
        if self.ice.bound.fetch_add(1, Relaxed) == 0 {
            self.ice
                .bound_since
                .store(self.shared().clock.nanos(), Relaxed);
        }
        self.shared().awaited.set(self.index);
    }

    /// On the monitor's thread: this carrier is in a long dispatch. Who was posted to it before that was
    /// known, and may not leave, waits from now on.
    pub(crate) fn look_for_bound(&self) {
        let waits = !self.inbox.is_empty() && !self.has_fresh_mail();
        if waits && !self.shared().awaited.contains(self.index) {
            self.note_first_waiter();
            self.note_bound();
        }
    }

    /// On the monitor's thread: how many have waited for long by now; they are not counted again.
    fn count_bound(&self, now: u64) -> u64 {
        if now.saturating_sub(self.ice.bound_since.load(Relaxed)) < LONG_WAIT {
            return 0;
        }
        self.ice.hurries.store(true, Relaxed);
        self.ice.bound.swap(0, Relaxed)
    }

    /// Own thread, at the scheduler: nobody waits any more.
    pub(crate) fn forget_bound(&self) {
        if self.shared().awaited.contains(self.index) {
            self.shared().awaited.claim(self.index);
            self.ice.bound.store(0, Relaxed);
            self.ice.hurries.store(false, Relaxed);
            self.ice.occupant.forget_bound();
        }
    }

    /// Own thread, before a dispatch: whether siblings wait that others cannot see. `long`: for somebody
    /// who is likely to compute for long.
    #[inline]
    pub(crate) fn note_siblings(&self, long: bool) {
        let home = self.home();
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let now = flag(!home.batch.is_empty(), BATCH)
            | flag(!home.queue.is_empty() || home.next.is_some(), OTHERS)
            | flag(long, LONG);
        if self.ice.siblings.load(Relaxed) != now {
            self.ice.siblings.store(now, Relaxed);
        }
    }

    /// Own thread: somebody woke a sibling of the fiber that runs.
    pub(crate) fn note_sibling(&self) {
        self.note_siblings(self.has_siblings(LONG));
    }

    /// Any thread: whether siblings wait for somebody who is likely to compute for long, and should not have
    /// to.
    pub(crate) fn has_pressing_siblings(&self) -> bool {
        self.ice.siblings.load(Relaxed) & (LONG | OTHERS) == LONG | OTHERS
    }

    /// Any thread: whether such siblings wait.
    pub(crate) fn has_siblings(&self, which: u8) -> bool {
        self.ice.siblings.load(Relaxed) & which != 0
    }

    /// How much of its slice is used up, and so whether it keeps its place.
    pub(crate) fn note_slice(&self) {
        let (shared, ice) = (self.shared(), &self.ice);
        let fiber = self.current.get().map_or(0, |fiber| fiber.id());
        if ice.fiber.replace(fiber) != fiber {
            ice.used.store(0, Relaxed); // another one was frozen here before
            ice.ticket.store(shared.tickets.load(Relaxed), Relaxed); // behind those who wait already
            ice.rest.set(0);
        }
        let now = shared.clock.nanos();
        ice.froze_at.store(now, Relaxed);
        let ran = os::own_cpu_time().saturating_sub(ice.cpu_began.load(Relaxed));
        self.stretch.add(ran);
        if let Some(fiber) = self.current.get() {
            let (tick, computed) = (TICK.as_nanos() as u64, ice.rest.get().saturating_add(ran));
            class::heat_up(&fiber, computed / tick);
            ice.rest.set(computed % tick);
            ice.batch.store(class::is_batch(&fiber), Relaxed);
        }
        let used = ice.used.load(Relaxed).saturating_add(ran);
        if used < shared.slice_nanos() {
            return ice.used.store(used, Relaxed);
        }
        ice.used.store(0, Relaxed);
        let ticket = shared.tickets.fetch_add(1, Relaxed) + 1;
        ice.ticket.store(ticket, Relaxed);
    }
}

impl Shared {
    /// The frozen carrier whose turn it is. One whose thread others wait for comes first, every other time.
    pub(crate) fn claim_frozen(&self, which: Which) -> Option<usize> {
        if self.frozen.is_empty() {
            return None;
        }
        let heeds = self.claims.fetch_add(1, Relaxed).is_multiple_of(2);
        let hurries = |index: usize| heeds && self.carrier(index).ice.hurries.load(Relaxed);
        loop {
            let order = |index: &usize| {
                let ice = &self.carrier(*index).ice;
                let (ticket, since) = (ice.ticket.load(Relaxed), ice.froze_at.load(Relaxed));
                (!hurries(*index), ticket, since)
            };
            let fits = |index: &usize| match which {
                Which::Interactive if hurries(*index) => true,
                which => self.is_frozen_as(*index, which),
            };
            let first = self.frozen.members().filter(fits).min_by_key(order)?;
            if self.frozen.claim(first) {
                return Some(first);
            }
        }
    }

    /// Whether there is such a one.
    pub(crate) fn has_frozen(&self, which: Which) -> bool {
        let mut frozen = self.frozen.members();
        frozen.any(|index| self.is_frozen_as(index, which))
    }

    fn is_frozen_as(&self, index: usize, which: Which) -> bool {
        let is_batch = self.carrier(index).ice.batch.load(Relaxed);
        match which {
            Which::Any => true,
            Which::Interactive => !is_batch,
            Which::Batch => is_batch,
        }
    }

    /// On the monitor's thread, once a tick.
    pub(crate) fn count_bound(&self) {
        let now = self.clock.nanos();
        for index in self.awaited.members() {
            let bound = self.carrier(index).count_bound(now);
            self.bound_waiting.fetch_add(bound, Relaxed);
            self.carrier(index).report_bound(bound > 0);
        }
    }

    /// So many are frozen that each further one is one too many.
    pub(crate) fn has_many_frozen(&self) -> bool {
        self.frozen.len() > self.few_frozen()
    }

    /// Even of those of which nothing bad is known.
    pub(crate) fn has_too_many_frozen(&self) -> bool {
        self.frozen.len() > 2 * self.few_frozen()
    }

    /// Even of those of which only good is known: they are not as short as they were.
    pub(crate) fn has_far_too_many_frozen(&self) -> bool {
        self.frozen.len() > 3 * self.few_frozen()
    }

    fn few_frozen(&self) -> usize {
        let workers = self.count.allowed();
        let room = self.settings.max_carriers.saturating_sub(2 * workers) / 4;
        (FEW_FROZEN * workers).min(room)
    }

    /// Whether one more of those fibers may start that others come before: while many are frozen, one
    /// for some slices that were used up. Not for some dispatches: a slice may take many of them.
    pub(crate) fn may_start_batch(&self) -> bool {
        const SELDOM: u64 = 4;
        if !self.has_many_frozen() {
            return true;
        }
        let (now, at) = (self.tickets.load(Relaxed), self.start_at.load(Relaxed));
        now >= at
            && self
                .start_at
                .compare_exchange(at, now + SELDOM, Relaxed, Relaxed)
                .is_ok()
    }

    /// How long one may run while others wait for their turn: longer if many wait, since each of them
    /// costs a thread.
    pub(crate) fn slice(&self) -> Duration {
        let longer = if self.has_many_frozen() { LONGER } else { 1 };
        self.settings.quantum * longer
    }

    /// On the monitor's thread, every other tick: if those that others come before wait, each worker that
    /// does not run one of them owes them a slice. It lasts 200 µs at least, a tenth of the time.
    pub(crate) fn owe_batch(&self) {
        let siblings = |worker: &Worker| {
            let carrier = worker.carrier();
            carrier.is_some_and(|carrier| carrier.has_siblings(BATCH))
        };
        let wait =
            !self.frozen.is_empty() || self.has_batch() || self.present().iter().any(siblings);
        let owed = self.count.allowed().saturating_sub(self.running_long());
        self.owed.store(if wait { owed } else { 0 }, Relaxed);
    }

    /// Workers in a dispatch that is known to be long: of one that others come before, or soon will.
    fn running_long(&self) -> usize {
        let runs = |worker: &&Worker| {
            let long = |carrier: &Carrier| carrier.ice.long.load(Relaxed) == worker.stamp();
            worker.published.phase() == Phase::Fiber && worker.carrier().is_some_and(long)
        };
        self.present().iter().filter(runs).count()
    }

    /// One of them has got its slice.
    pub(crate) fn pay_batch(&self) {
        let owed = self.owed.load(Relaxed);
        if owed > 0 {
            self.owed.store(owed - 1, Relaxed); // two at once: one slice more, or less
        }
    }

    #[inline]
    pub(crate) fn is_batch_owed(&self) -> bool {
        self.owed.load(Relaxed) > 0
    }

    /// How long a slice is.
    pub(crate) fn slice_nanos(&self) -> u64 {
        nanos(self.slice())
    }
}
