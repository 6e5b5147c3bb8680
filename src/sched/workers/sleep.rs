//! How one worker goes to sleep and wakes up.
//!
//! The worker searches a little, announces its sleep, looks at everything once more, and sleeps at
//! most until the next deadline. It sleeps
//!
//! - in the runtime's epoll instance if it takes the polling right (`io/polling_right.rs`);
//! - in its own io_uring if operations are in flight there;
//! - otherwise on the parker of its carrier.
//!
//! The thread that claims the sleeping bit sets the reason ([`WakeReason`]) and notifies the
//! parker. A worker that wakes by itself, or by a late notification, takes its bit back. If it
//! finds the bit claimed it waits for the reason, because a searcher has been counted on its
//! behalf.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use indent_sysmon::Phase;

use crate::driver::Found;
use crate::sched::Shared;
use crate::sched::block::timers::Sleep;
use crate::sched::workers::context::Entered;
use crate::sched::workers::worker::{WakeReason, Worker};

/// Looks into all queues before the first sleep, and pauses between two of them.
///
/// They take a microsecond or two, to meet work that is just being made. Longer costs more than it
/// brings: with more threads than CPUs the searcher takes CPU time from the thread it waits for
/// (`benches/RESULTS.md`).
const SEARCH_ROUNDS: u32 = 4;
const PAUSES: u32 = 4;

/// Whether a worker searches, and for how long it has.
pub(crate) struct Search {
    pub(crate) searching: bool,
    rounds: u32,
    /// The worker keeps looking until then, if the settings say so.
    spins_until: Option<Instant>,
    /// The worker has found nothing since it last found work.
    idle: bool,
}

impl Search {
    pub(crate) fn new() -> Self {
        Search {
            searching: false,
            rounds: 0,
            spins_until: None,
            idle: false,
        }
    }

    /// Ends the search because work was found. The last searcher notifies its successor.
    #[inline]
    pub(crate) fn found(&mut self, token: &mut Entered) {
        if self.idle {
            token.local().looked = false;
            self.stop(token.carrier().shared(), token.worker().index);
        }
    }

    #[cold]
    fn stop(&mut self, shared: &Shared, worker: usize) {
        self.idle = false;
        self.rounds = 0;
        self.spins_until = None;
        if std::mem::take(&mut self.searching) && shared.idle.found() {
            shared.notify_searcher_from(&shared.workers[worker]);
        }
    }

    /// Takes one step towards sleep, or sleeps, because nothing was found.
    pub(crate) fn rest(&mut self, token: &mut Entered) {
        self.idle = true;
        token.local().looked = true; // once; after that the sleep polls
        let shared = token.carrier().shared();
        if !self.searching && self.rounds == 0 {
            self.searching = shared.idle.begin_search(shared.count.allowed());
        }
        if self.searching && (self.rounds < SEARCH_ROUNDS || self.looks_on(shared)) {
            self.rounds = self.rounds.saturating_add(1);
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            return;
        }
        self.rounds = 0;
        self.spins_until = None;
        if token.carrier().shared().starved() > 0 {
            // A fiber waits for a stack, and this worker keeps some.
            let freed = token.local().stacks.keep(0);
            let shared = token.carrier().shared();
            shared.feed_starved(shared.settings.stack_class, freed);
        }
        self.sleep(token);
    }

    /// Whether the settings say to stay awake a little longer without work.
    fn looks_on(&mut self, shared: &Shared) -> bool {
        let spin = shared.settings.idle_spin;
        if spin.is_zero() {
            return false;
        }
        let now = Instant::now();
        now < *self.spins_until.get_or_insert_with(|| now + spin)
    }

    fn sleep(&mut self, token: &mut Entered) {
        let me = token.worker().index;
        token.show_stacks();
        let keeps_stacks = token.local().stacks.len() > 0;
        let (carrier, worker) = (token.carrier(), token.worker());
        let shared = carrier.shared();
        shared
            .idle
            .announce_sleep(me, std::mem::take(&mut self.searching));
        let is_needed = keeps_stacks && shared.starved() > 0;
        let (mut overslept, mut found) = (false, Found::Nothing);
        if !is_needed && !shared.has_work_for(token) {
            overslept = match shared.time_to_sleep(worker) {
                Sleep::ForGood => doze(token, None, &mut found),
                Sleep::For(time) => doze(token, Some(time), &mut found),
                Sleep::NotNow => false,
            };
        }
        // The bit is ours to take back, or another thread has claimed it and sets the reason.
        if !shared.idle.claim(me) {
            self.searching = loop {
                match worker.wake_reason.swap(WakeReason::NO, SeqCst) {
                    WakeReason::NO => drop(carrier.parker.wait(None)),
                    why => break why == WakeReason::TO_SEARCH,
                }
            };
        }
        // Only now: while this worker counted as asleep, its own wakes would have notified itself.
        shared.deliver(worker, found);
        if overslept {
            let _fired = shared.time_to_sleep(worker);
        }
    }
}

/// Sleeps in the epoll instance, in the worker's ring, or on the futex of the thread.
///
/// True if the sleep ended by itself.
fn doze<'a>(token: &'a Entered, time: Option<Duration>, found: &mut Found<'a>) -> bool {
    let (carrier, worker) = (token.carrier(), token.worker());
    let shared = carrier.shared();
    worker.counters.sleeps.add(1);
    worker.published.set_phase(Phase::Idle);
    let wake_reason = match shared.begin_io_sleep(worker) {
        Some(port) => {
            let mut events = None;
            let index = worker.carrier().map(|carrier| carrier.index);
            let sleep = || events = port.wait(index, time);
            let wake_reason = carrier.parker.wait_elsewhere(port.waker(), sleep);
            *found = shared.end_io_sleep(port, events);
            wake_reason
        }
        None => carrier.parker.wait(time),
    };
    shared.awake(worker);
    !wake_reason && time.is_some()
}

impl Shared {
    /// Whether there is anything this worker could do. Checked after its sleep is announced.
    fn has_work_for(&self, token: &Entered) -> bool {
        self.is_stopping()
            || token.carrier().has_delivery()
            || !token.worker().assigned.is_empty()
            || self.global.unstarted.len() + self.global.started.len() > 0
            || self.has_batch()
            || self.may_start_threadless()
            || self.missed_timers.load(Relaxed)
            || !self.frozen.is_empty()
            || !self.wanted.is_empty()
            || self.count.is_excess(token.worker().index)
            || !token.worker().queue.is_empty()
            || (self.present().iter()).any(Worker::has_fibers_for_others)
    }
}
