//! The runtime's side of the monitor: what it observes, and what it does for workers.
//!
//! The *monitor* ticks while a worker is awake. It has long dispatches interrupted that other
//! fibers wait for (`make_room.rs`, `interrupt.rs`), takes workers from carriers that sleep in the
//! kernel, and looks after those that run without one (`detach.rs`). A worker that overran may have
//! a fiber in its LIFO slot that waits only for another worker: the monitor notifies one to take
//! it. It also reads the clock for all workers and records whose deadlines have passed
//! (`timers.rs`). Everything the monitor calls here follows its rules: no allocation, no lock, no
//! new thread, and no file but those by which it asks the kernel about threads.
//!
//! The *helper* and the *collector* do what the monitor may not (`helper.rs`).

use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
    Ordering::SeqCst, fence,
};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indent_sysmon::{
    Activity, GRACE, Helper, Monitor, Phase, Pool, TICK, Thread, ThreadState, Waiting, frames,
};

use crate::fiber::stack;
use crate::sched::Shared;
use crate::sched::background::helper::{
    BARRIER, COLLECTORS, CPUS, Collector, HELPERS, SPARES, TRIM,
};
use crate::sched::block::timers::nanos;
use crate::sched::preempt::detach;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;
use crate::util::loom::Mutex;

/// How often the monitor looks at threads blocked in the kernel while all workers sleep.
const RARELY: Duration = Duration::from_millis(10);
/// Ticks without a spare coming to rest after which the starting threads are taken to wait.
///
/// They may wait for a lock that a frozen fiber holds.
const SLOW_START: u32 = 4;
/// Greatest number of ticks between two rounds of rotation.
const MOST_PAUSE: u32 = 64;

/// The three threads beside the carriers, and their state.
pub(crate) struct Watchers {
    monitor: OnceLock<Monitor>,
    helper: OnceLock<Helper>,
    collector: OnceLock<Helper>,
    /// Spares that have been started and do not rest yet.
    ///
    /// Below zero for a moment if a thread rests before its starter has counted it.
    pub(crate) starting: AtomicIsize,
    /// Number of spares that have come to their first rest.
    pub(crate) started: AtomicU64,
    /// That number at the last tick; `starting_ticks` counts the ticks in which it did not change.
    ///
    /// Written by the monitor only.
    started_before: AtomicU64,
    starting_ticks: AtomicU32,
    /// Workers that were awake at the monitor's last look.
    pub(in crate::sched) awake: AtomicUsize,
    /// Whether the system refused a spare; then it is not asked again for some time.
    pub(in crate::sched) refused: AtomicBool,
    /// End of that time; helper only.
    pub(in crate::sched) refused_until: Mutex<Option<Instant>>,
    /// When to look for a thread again after some worker found none; helper only.
    pub(in crate::sched) resize_at: Mutex<Option<Instant>>,
    /// When to look again at unneeded stacks; helper only.
    pub(in crate::sched) trim_at: Mutex<Option<Instant>>,
    /// Number of further workers that may be interrupted at this look.
    ///
    /// For urgent fibers that any worker can serve.
    urgent_ticks: AtomicUsize,
    /// Whether the monitor looks rarely, since all workers sleep.
    looks_rarely: AtomicBool,
    /// Whether an urgent fiber waited at this look.
    somebody_pressed: AtomicBool,
    /// Time of the monitor's last full tick, in nanoseconds.
    ticked: AtomicU64,
    /// Round of rotation (`detach.rs`); monitor only.
    ///
    /// `rotate_in` counts ticks until the next round, `rotate_every` is the pause between two.
    round: AtomicU64,
    rotate_in: AtomicU32,
    rotate_every: AtomicU32,
    /// The helper's thread; `helps` is set while it works.
    pub(in crate::sched) helper_thread: Thread,
    pub(in crate::sched) helps: AtomicBool,
    /// Looks a tick apart; monitor only.
    ticks: AtomicU64,
    /// Whether the collector has judged all parked fibers since the program's code was read.
    ///
    /// Written by the collector alone.
    pub(in crate::sched) judged_again: AtomicBool,
    /// Whether a worker has found no thread to go to since spares were last made.
    pub(in crate::sched) receiver_missed: AtomicBool,
    /// Whether all workers have their first carriers.
    ///
    /// Before that helper and collector do nothing.
    pub(crate) begun: AtomicBool,
}

impl Watchers {
    pub(crate) fn new() -> Self {
        Watchers {
            monitor: OnceLock::new(),
            helper: OnceLock::new(),
            collector: OnceLock::new(),
            starting: AtomicIsize::new(0),
            started: AtomicU64::new(0),
            started_before: AtomicU64::new(0),
            starting_ticks: AtomicU32::new(0),
            awake: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            refused_until: Mutex::new(None),
            resize_at: Mutex::new(None),
            trim_at: Mutex::new(None),
            urgent_ticks: AtomicUsize::new(0),
            looks_rarely: AtomicBool::new(false),
            somebody_pressed: AtomicBool::new(false),
            ticked: AtomicU64::new(0),
            round: AtomicU64::new(1),
            rotate_in: AtomicU32::new(0),
            rotate_every: AtomicU32::new(1),
            helper_thread: Thread::new(),
            helps: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            judged_again: AtomicBool::new(false),
            receiver_missed: AtomicBool::new(false),
            begun: AtomicBool::new(false),
        }
    }

    /// Asks the helper, the collector, or both to do chores.
    pub(in crate::sched) fn ask(&self, what: u32) {
        for (thread, its) in [(&self.helper, HELPERS), (&self.collector, COLLECTORS)] {
            if let Some(thread) = thread.get().filter(|_| what & its != 0) {
                thread.ask(what & its);
            }
        }
    }

    /// Returns whether the system has refused a thread lately.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    pub(crate) fn notify_monitor(&self) {
        if let Some(monitor) = self.monitor.get() {
            monitor.notify();
        }
    }

    /// Makes the monitor look again although all workers sleep.
    pub(crate) fn notice(&self) {
        if let Some(monitor) = self.monitor.get() {
            monitor.notice();
        }
    }

    /// Returns whether one more worker may be interrupted at this look.
    pub(crate) fn may_press(&self) -> bool {
        self.urgent_ticks.load(Relaxed) > 0
    }

    /// Records that a worker found no thread to go to. May be called in a signal handler.
    pub(crate) fn note_missed_receiver(&self) {
        self.receiver_missed.store(true, SeqCst);
    }

    /// Returns the number of the monitor's ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    pub(crate) fn round(&self) -> u64 {
        self.round.load(Relaxed)
    }

    /// Begins a round, after a pause, as all carriers have been released once.
    pub(crate) fn next_round(&self) {
        self.round.store(self.round() + 1, Relaxed);
        let pause = self.rotate_every.load(Relaxed);
        self.rotate_in.store(pause, Relaxed);
        self.rotate_every
            .store((2 * pause).min(MOST_PAUSE), Relaxed);
    }

    /// Resets the pause of rotation, as another carrier has begun to wait.
    pub(crate) fn rotate_often(&self) {
        self.rotate_in.store(0, Relaxed);
        self.rotate_every.store(1, Relaxed);
    }

    /// Counts a tick of the pause, and returns whether the pause is over; once a tick.
    pub(crate) fn rotates_now(&self) -> bool {
        let left = self.rotate_in.load(Relaxed);
        self.rotate_in.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// Asks the collector to end, and returns its thread.
    ///
    /// The collector may wait for a lock that a fiber never releases, so the caller waits for a
    /// limited time.
    pub(crate) fn dismiss_collector(&self) -> Option<JoinHandle<()>> {
        self.collector.get().and_then(Helper::dismiss)
    }

    /// Ends helper and monitor, after what they are doing is finished.
    pub(crate) fn stop(&self) {
        // In this order: the helper may wait for a lock of a fiber that only the monitor lets
        // continue.
        self.helper.get().map(Helper::stop);
        self.monitor.get().map(Monitor::stop);
    }
}

impl Shared {
    /// Starts the three threads, before the first worker.
    pub(crate) fn start_watchers(&self) -> io::Result<()> {
        let name = &self.settings.thread_name;
        let helper = Helper::start(&format!("{name}-helper"), self.arc())?;
        let _ = self.watchers.helper.set(helper);
        let collector = Arc::new(Collector(self.arc()));
        let collector = Helper::start(&format!("{name}-collector"), collector)?;
        let _ = self.watchers.collector.set(collector);
        let most = self.workers.len();
        let monitor = Monitor::start(&format!("{name}-sysmon"), most, self.arc())?;
        let _ = self.watchers.monitor.set(monitor);
        Ok(())
    }

    /// Makes the monitor observe a worker that begins to look for work.
    pub(crate) fn awake(&self, worker: &Worker) {
        worker.published.set_phase(Phase::Scheduling);
        if let Some(monitor) = self.watchers.monitor.get() {
            monitor.notice();
            let rarely = &self.watchers.looks_rarely;
            if rarely.load(SeqCst) && rarely.swap(false, SeqCst) {
                self.clock.set(Instant::now()); // the monitor has not read it for long
                monitor.notify();
            }
        }
    }

    /// Asks for a survey if stack walks have met unknown places in the code.
    ///
    /// Called on the monitor's thread.
    fn study_now_and_then(&self) {
        if frames::is_asked() {
            self.study_soon();
        }
    }

    /// Wakes each spare beyond the number that is kept, once.
    ///
    /// It may have begun to rest for good; from then on it ends unless it is needed within its
    /// keep-alive. To wake it again would begin that time anew.
    fn end_spares(&self) {
        let kept = self.spares_kept();
        if self.spares.len() > kept {
            let surplus = self.spares.members().skip(kept);
            for spare in surplus.map(|index| self.carrier(index)) {
                let noted = &spare.rests_in_excess;
                if !noted.load(SeqCst) && !noted.swap(true, SeqCst) {
                    spare.parker.notify();
                }
            }
        }
    }

    /// Releases frozen carriers at a tick if spares are needed and cannot be made.
    ///
    /// The helper or the threads that it has started may wait for a lock that a frozen fiber holds
    /// (the allocator's, the loader's). These releases have no pauses of rotation: as long as there
    /// is no spare no worker can leave a fiber that computes.
    fn mind_helper(&self) {
        let watchers = &self.watchers;
        let started = watchers.started.load(SeqCst);
        let slow =
            self.starting_spares() > 0 && watchers.started_before.swap(started, Relaxed) == started;
        let ticks = match slow {
            true => watchers.starting_ticks.load(Relaxed).saturating_add(1),
            false => 0,
        };
        watchers.starting_ticks.store(ticks, Relaxed);
        if self.frozen.is_empty() || !self.spares_short(0) {
            return;
        }
        let waits =
            || watchers.helps.load(SeqCst) && watchers.helper_thread.state() == ThreadState::Locked;
        if ticks >= SLOW_START || waits() {
            self.rotate();
        }
    }
}

impl Pool for Shared {
    fn workers(&self) -> usize {
        self.count.present()
    }

    fn activity(&self, worker: usize) -> &Activity {
        &self.workers[worker].published
    }

    fn tick(&self, now: Instant) {
        self.look_at_timers(now);
        self.watchers
            .urgent_ticks
            .store(self.waiting_urgently(), Relaxed);
        self.watchers.somebody_pressed.store(false, Relaxed);
        let nanos = self.clock.nanos();
        let last = self.watchers.ticked.load(Relaxed);
        if nanos.saturating_sub(last) < TICK.as_nanos() as u64 {
            return; // the monitor was notified between two ticks
        }
        self.watchers.ticked.store(nanos, Relaxed);
        self.monitor_notified.store(false, Relaxed);
        if !self.orphans.is_empty() {
            self.place_orphans();
        }
        if detach::has_barrier_to_report() {
            self.watchers.ask(BARRIER);
        }
        if !self.detached.is_empty() {
            self.mind_detached();
        }
        self.mind_helper();
        let ticks = self.watchers.ticks.load(Relaxed) + 1;
        self.watchers.ticks.store(ticks, Relaxed);
        let global = &self.global;
        let started = global.started.len() + global.interrupted.len() + global.batch.len();
        if global.unstarted.len() + started > 0 {
            // a worker may have kept these fibers for itself, and now runs another one
            self.notify_searcher(0);
        }
        self.measure_pace(ticks, Duration::from_nanos(nanos.saturating_sub(last)));
        if ticks.is_multiple_of(2) {
            self.owe_batch();
        }
        self.mind_deferred(ticks);
        self.mind_threadless();
    }

    fn thread(&self, worker: usize) -> Option<&Thread> {
        Some(&self.workers[worker].carrier()?.thread)
    }

    fn waiting(&self, worker: usize) -> Waiting {
        let worker = &self.workers[worker];
        let waiting = self.who_waits(worker);
        if waiting == Waiting::Urgent && worker.published.phase() == Phase::Fiber {
            self.watchers.somebody_pressed.store(true, Relaxed);
        }
        waiting
    }

    fn began(&self, worker: usize, dispatch: u64) -> Option<Instant> {
        let worker = &self.workers[worker];
        let preempt = &worker.carrier()?.preempt;
        let known = preempt.long.load(SeqCst) == worker.stamp_of(dispatch);
        known.then(|| self.clock.at(preempt.began.load(Relaxed)))
    }

    fn quantum(&self) -> Duration {
        self.slice()
    }

    fn interrupt(&self, index: usize, dispatch: u64, waiting: Waiting) {
        let worker = &self.workers[index];
        if let Some(carrier) = worker.carrier() {
            let stamp = worker.stamp_of(dispatch);
            let began = self.clock.nanos().saturating_sub(nanos(GRACE));
            carrier.note_long(stamp, began, carrier.cpu_before(GRACE));
            if waiting == Waiting::Urgent {
                let left = self.watchers.urgent_ticks.load(Relaxed);
                self.watchers
                    .urgent_ticks
                    .store(left.saturating_sub(1), Relaxed);
            } else if carrier.preempt.request.get() != stamp {
                self.preempted.overruns.fetch_add(1, Relaxed);
            }
            if carrier.computes() {
                carrier.ask_again(stamp);
            }
        }
        self.note_long_dispatch(index, dispatch);
    }

    fn asleep(&self, index: usize, dispatch: u64) {
        let worker = &self.workers[index];
        // Without `/proc` a thread that waits for a CPU counts as asleep. With preemption switched
        // off it would compute beside the worker for as long as it likes.
        let sleeps = self.settings.preempt || worker.carrier().is_some_and(Carrier::sleeps);
        if !sleeps {
            self.note_long_dispatch(index, dispatch);
        } else if !self.detach(worker) {
            self.hand_io_to_poller(worker, dispatch);
            self.serve_in_place_of(worker, dispatch);
            self.stuck(index); // perhaps it waits for a lock of a frozen fiber
        }
    }

    fn stuck(&self, index: usize) {
        let carrier = self.workers[index].carrier();
        // Whatever it waits for. Even if it seems to run: locks may spin.
        if carrier.is_some() && !self.frozen.is_empty() {
            self.rotate();
        }
    }

    fn pause(&self) -> Duration {
        if self.settings.preempt && self.watchers.somebody_pressed.load(Relaxed) {
            GRACE // look again when the fibers running there have had their time
        } else if self.watchers.awake.load(Relaxed) > 0 {
            TICK
        } else {
            // A thread is blocked in the kernel, and all workers sleep: a worker that wakes
            // notifies the monitor.
            self.watchers.looks_rarely.store(true, SeqCst);
            fence(SeqCst); // the worker sees that, or the monitor sees it awake
            let awake = |worker: &Worker| worker.published.phase() != Phase::Idle;
            if self.present().iter().any(awake) {
                TICK
            } else {
                RARELY
            }
        }
    }

    fn overran(&self, index: usize, dispatch: u64) {
        self.note_long_dispatch(index, dispatch);
        self.notice_overrun(&self.workers[index], dispatch);
    }

    fn awake(&self, workers: usize) {
        self.watchers.awake.store(workers, Relaxed);
        if self.spares_missing() && !self.watchers.refused.load(Relaxed) {
            self.watchers.ask(SPARES);
        }
        self.end_spares();
        self.check_events_polled();
        self.study_now_and_then();
        if workers == 0 && stack::has_grown() {
            self.watchers.ask(TRIM); // before all threads sleep
        }
    }

    fn restless(&self) -> bool {
        self.global.threadless.len() > 0 || !self.orphans.is_empty() || !self.detached.is_empty()
    }

    fn refresh(&self) {
        self.watchers.ask(CPUS);
    }
}

impl Shared {
    /// Records that a worker has been in one dispatch for a tick at least.
    fn note_long_dispatch(&self, index: usize, dispatch: u64) {
        let worker = &self.workers[index];
        if let Some(carrier) = worker.carrier().filter(|_| self.settings.preempt) {
            let began = self.clock.nanos().saturating_sub(nanos(TICK));
            // S10: that time has passed does not mean it has computed; from here on its CPU time is
            // measured.
            let cpu = carrier.cpu_before(Duration::ZERO);
            carrier.note_long(worker.stamp_of(dispatch), began, cpu);
        }
        self.note_long_for_pace(worker, dispatch);
        self.hand_io_to_poller(worker, dispatch);
        self.serve_in_place_of(worker, dispatch);
    }

    /// Makes others serve the worker's timers, LIFO slot and queue, which its holder does not.
    fn serve_in_place_of(&self, worker: &Worker, dispatch: u64) {
        let again = worker.overran.swap(dispatch, Relaxed) == dispatch;
        let looks = if again {
            worker.overran_for.load(Relaxed) + 1
        } else {
            1
        };
        worker.overran_for.store(looks, Relaxed);
        if worker.timers.is_due() {
            self.miss_timers();
        }
        if !worker.lifo.is_empty() || !worker.queue.is_empty() {
            self.notify_searcher(worker.index + 1);
        }
    }
}
