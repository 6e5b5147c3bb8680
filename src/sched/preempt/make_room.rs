//! Makes room for a fiber that should not have to wait.
//!
//! A fiber that others wake (threads, pools, timers, fibers on other workers) should run soon. If a
//! worker is idle it is notified. If all are busy, most dispatches are over in no time; but one of
//! them may be a long one. A dispatch is known to be *long* if it continued after a freeze, if its
//! fiber is batch, or if the monitor has seen its thread run in it for a tick: no worker reads a
//! clock when it begins another dispatch. A waker that finds a long dispatch that has run for 200
//! µs interrupts it at once. If it finds none it notifies the monitor, which looks twice, 200 µs
//! apart. The monitor is notified at most once a tick, unless a carrier froze since.
//!
//! A fiber that is bound to a thread makes others give way like any other. The carrier that freezes
//! for its sake hands its worker to that thread (`freeze.rs`).

use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use indent_sysmon::{GRACE, Phase, ThreadState, Waiting};

use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;

/// Number of workers a waker looks at.
const LOOKED_AT: usize = 8;

impl Carrier {
    /// Returns whether the thread is awake: a signal would end its sleep with `EINTR` (S10).
    fn runs(&self) -> bool {
        let state = self.thread.state();
        matches!(state, ThreadState::Running | ThreadState::Unknown)
    }

    /// Returns whether the thread is awake and has computed in its long dispatch.
    ///
    /// A thread that woke only for a moment is soon asleep again.
    pub(crate) fn computes(&self) -> bool {
        let most = GRACE.as_nanos() as u64 * 3 / 4;
        let began = self.preempt.cpu_began.load(Relaxed);
        let cpu = self.thread.cpu_time().map_or(u64::MAX, nanos);
        cpu.saturating_sub(began) >= most && self.runs()
    }

    /// Returns the stamp of a long dispatch that has run for `GRACE`.
    #[inline]
    fn long_stamp(&self, worker: &Worker) -> Option<u64> {
        let stamp = worker.stamp();
        if self.preempt.long.load(SeqCst) != stamp || worker.published.phase() != Phase::Fiber {
            return None;
        }
        let ran = self
            .shared()
            .clock
            .nanos()
            .saturating_sub(self.preempt.began.load(Relaxed));
        (ran >= GRACE.as_nanos() as u64).then_some(stamp)
    }
}

impl Worker {
    /// Returns whether the worker is in a dispatch known to be long.
    pub(crate) fn is_in_long_dispatch(&self) -> bool {
        let long = |carrier: &Carrier| carrier.preempt.long.load(SeqCst) == self.stamp();
        self.carrier().is_some_and(long)
    }
}

impl Shared {
    /// Makes room for a fiber that was queued while no worker could be notified.
    ///
    /// `fiber` is its number, or zero for a carrier that wants a worker. A fiber that is bound to
    /// `thread` is served on that thread.
    pub(crate) fn make_room(&self, fiber: u64, thread: Option<&Carrier>) {
        if !self.settings.preempt || self.idle.has_free_hands() {
            return;
        }
        let busy = self.present().iter().take(LOOKED_AT);
        for (carrier, worker) in busy.filter_map(|worker| Some((worker.carrier()?, worker))) {
            if let Some(stamp) = carrier.long_stamp(worker)
                && carrier.computes()
            {
                carrier.preempt.occupant.has_urgent(fiber, stamp);
                let thread =
                    thread.map_or(ptr::null_mut(), |thread| ptr::from_ref(thread).cast_mut());
                carrier.preempt.pressed_by.store(thread, Relaxed);
                return carrier.ask_to_freeze(stamp);
            }
        }
        self.notify_monitor();
    }

    fn notify_monitor(&self) {
        if !self.monitor_notified.load(Relaxed) && !self.monitor_notified.swap(true, Relaxed) {
            self.watchers.notify_monitor();
        }
    }

    /// Returns how urgently fibers wait for this worker, as far as is visible from outside.
    pub(crate) fn who_waits(&self, worker: &Worker) -> Waiting {
        if !self.settings.preempt {
            return Waiting::None;
        }
        let queued = !worker.queue.is_empty() || !worker.lifo.is_empty();
        if worker.timers.is_due()
            || worker.queue.has_started() && worker.is_in_long_dispatch()
            || self.watchers.may_press() && self.somebody_presses()
        {
            return Waiting::Urgent;
        }
        let assigned = !worker.assigned.is_empty() || worker.has_own.load(Relaxed);
        let excess = self.count.is_excess(worker.index);
        let batch = !self.frozen.is_empty() || self.has_batch();
        if queued || assigned || excess || batch || self.global.unstarted.len() > 0 {
            return Waiting::ForTurn;
        }
        Waiting::None
    }

    fn somebody_presses(&self) -> bool {
        self.global.started.len() > 0
            || !self.wanted.is_empty()
            || self.missed_timers.load(Relaxed)
            || self.has_urgent.load(Relaxed) && self.global.unstarted.len() > 0
    }

    /// Returns how many workers could serve the urgent fibers, which any worker can.
    pub(crate) fn waiting_urgently(&self) -> usize {
        self.global.started.len() + self.wanted.len() + usize::from(self.somebody_presses())
    }
}
