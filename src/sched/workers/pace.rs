//! How fast workers dispatch, and when waking another worker pays.
//!
//! To wake a sleeping worker takes some 50 µs ([`WAKE`]). A worker that makes its own fibers
//! runnable wakes another one only if its backlog is longer than what it runs in that time. The
//! monitor measures: at each tick it counts the dispatches of each worker since the last one. No
//! worker reads a clock.
//!
//! Workers are *brisk* while one of them dispatches many fibers a tick and the monitor has seen no
//! dispatch that computes for long. Only brisk workers keep a backlog to themselves, or let a
//! sleeper leave events to them (`io/polling_right.rs`). If such a worker begins a long dispatch
//! nevertheless, another worker is woken for its backlog: at once if the dispatch is known to be
//! long (`slices.rs`), otherwise after a tick (`background/monitor.rs`).
//!
//! Brisk workers can be *crowded*: their threads wait for a CPU for a quarter of the time and more,
//! because other processes use the CPUs too, or there are fewer CPUs than workers. The fibers in
//! the queue of a worker that waits for a CPU wait with it. So the monitor reads the run delay of
//! their threads now and then (`schedstat`). If they are crowded, one worker fewer is woken for a
//! backlog, for some time. Then more are tried again, after longer and longer times as long as they
//! are crowded again.
//!
//! All of this only delays a wake for a backlog. The worker that keeps the backlog is awake and
//! runs it (I8).

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use indent_sysmon::TICK;

use crate::sched::Shared;
use crate::sched::block::timers::nanos;
use crate::sched::threads::carrier::Carrier;
use crate::sched::workers::worker::Worker;

/// Time until a notified worker runs a fiber.
const WAKE: Duration = Duration::from_micros(50);
/// Dispatches per wake-up time from which on a worker is brisk: each takes less than a wake-up.
const BRISK: u64 = 2;
/// Largest backlog that a worker keeps: a burst of long fibers should not wait for a tick.
const MOST: u64 = 16;
/// Ticks after a long dispatch in which no worker counts as brisk.
const CALM: u64 = 64;
/// Ticks between two looks at the run delay.
const WINDOW: u64 = 16;
/// Ticks for which fewer workers are woken: at first, and at most.
const FEWER: u64 = 128;
const FEWER_AT_MOST: u64 = 2048;
/// Number of workers whose run delay is read.
const LOOKED_AT: usize = 16;

/// The pace of a runtime. Only the monitor writes it.
pub(crate) struct Pace {
    brisk: AtomicBool,
    /// The tick at which the monitor last saw a long dispatch.
    long_seen: AtomicU64,
    /// The number of awake workers from which on no further worker is woken for a backlog.
    most_awake: AtomicUsize,
    /// The tick at which more workers are tried again, and for how long fewer are woken next time.
    until: AtomicU64,
    fewer_for: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Pace {
            brisk: AtomicBool::new(false),
            long_seen: AtomicU64::new(0),
            most_awake: AtomicUsize::new(usize::MAX),
            until: AtomicU64::new(0),
            fewer_for: AtomicU64::new(FEWER),
        }
    }

    /// Decides after one window whether fewer workers are to be woken.
    ///
    /// `awake` is the number of awake workers at its end. `ran` and `waited` say how long the
    /// observed threads ran and waited for a CPU in total.
    fn note_delay(&self, tick: u64, awake: usize, ran: Duration, waited: Duration) {
        if awake < 2 {
            return;
        }
        if waited * 4 <= ran + waited {
            return self.fewer_for.store(FEWER, Relaxed);
        }
        self.most_awake.store(awake - 1, Relaxed);
        if tick >= self.until.load(Relaxed) {
            let fewer_for = self.fewer_for.load(Relaxed);
            let next = (2 * fewer_for).min(FEWER_AT_MOST);
            self.fewer_for.store(next, Relaxed);
            self.until.store(tick + fewer_for, Relaxed);
        }
    }
}

/// The pace of a worker. Only the monitor writes it.
pub(crate) struct Rate {
    /// Its number of dispatches at the last tick.
    dispatches: AtomicU64,
    /// The length of the backlog from which on another worker is woken.
    pays_from: AtomicU32,
    /// The thread it was on when the monitor last read the run delay, and the values then.
    thread: AtomicPtr<Carrier>,
    ran: AtomicU64,
    waited: AtomicU64,
    /// The dispatch that was last found to be long, and the CPU time of its thread then.
    long: AtomicU64,
    long_cpu: AtomicU64,
}

impl Rate {
    pub(crate) fn new() -> Self {
        Rate {
            dispatches: AtomicU64::new(0),
            pays_from: AtomicU32::new(1),
            thread: AtomicPtr::new(ptr::null_mut()),
            ran: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            long: AtomicU64::new(0),
            long_cpu: AtomicU64::new(0),
        }
    }
}

/// How many dispatches fit into the time of a wake-up, if there were `dispatches` in `elapsed`.
fn in_a_wake(dispatches: u64, elapsed: Duration) -> u64 {
    let elapsed = elapsed.as_nanos().max(1);
    let fit = u128::from(dispatches) * WAKE.as_nanos() / elapsed;
    u64::try_from(fit).unwrap_or(u64::MAX)
}

impl Worker {
    /// How long its thread has run and waited for a CPU since the last call.
    ///
    /// `None` if the worker was on another thread then.
    fn run_delay(&self) -> Option<(Duration, Duration)> {
        let carrier = self.carrier()?;
        let (ran, waited) = carrier.thread.ran_and_waited()?;
        let here = ptr::from_ref(carrier).cast_mut();
        let stayed = self.rate.thread.swap(here, Relaxed) == here;
        let since = |last: &AtomicU64, now: Duration| {
            let before = last.swap(nanos(now), Relaxed);
            Duration::from_nanos(nanos(now).saturating_sub(before))
        };
        let both = (since(&self.rate.ran, ran), since(&self.rate.waited, waited));
        stayed.then_some(both)
    }
}

impl Shared {
    /// Measures the pace of all workers at a tick of the monitor, `elapsed` after the last one.
    pub(crate) fn measure_pace(&self, tick: u64, elapsed: Duration) {
        let long_seen = self.pace.long_seen.load(Relaxed);
        let calm = long_seen == 0 || tick.saturating_sub(long_seen) > CALM;
        let mut brisk = false;
        for worker in self.present() {
            let now = worker.published.dispatches();
            let before = worker.rate.dispatches.swap(now, Relaxed);
            let fit = in_a_wake(now.wrapping_sub(before), elapsed);
            brisk |= calm && fit >= BRISK;
            let pays_from = if calm { fit.clamp(1, MOST) } else { 1 };
            worker.rate.pays_from.store(pays_from as u32, Relaxed);
            // The worker kept these fibers for itself when it was faster.
            if worker.queue.len() as u64 >= pays_from && !self.are_enough_awake() {
                self.notify_searcher(worker.index + 1);
            }
        }
        self.pace.brisk.store(brisk, SeqCst);
        if !brisk || tick >= self.pace.until.load(Relaxed) {
            self.pace.most_awake.store(usize::MAX, Relaxed);
        }
        if brisk && tick.is_multiple_of(WINDOW) {
            self.measure_delay(tick);
        }
    }

    fn measure_delay(&self, tick: u64) {
        let window = TICK * WINDOW as u32;
        let (mut busy, mut all_ran, mut all_waited) = (0, Duration::ZERO, Duration::ZERO);
        let workers = self.present().iter().take(LOOKED_AT);
        for (ran, waited) in workers.filter_map(Worker::run_delay) {
            busy += usize::from(ran + waited > window / 2);
            all_ran += ran;
            all_waited += waited;
        }
        let asleep = self.idle.asleep();
        let awake = self.count.allowed().saturating_sub(asleep).max(busy);
        if busy > 1 {
            self.pace.note_delay(tick, awake, all_ran, all_waited);
        }
    }

    /// Notes a worker that the monitor has seen in one dispatch for at least a tick.
    ///
    /// If its thread computed all the time, no worker counts as brisk for a while. A thread that
    /// waited for a CPU is no reason.
    pub(crate) fn note_long_for_pace(&self, worker: &Worker, dispatch: u64) {
        let cpu = worker
            .carrier()
            .and_then(|carrier| carrier.thread.cpu_time());
        let (rate, cpu) = (&worker.rate, cpu.map_or(u64::MAX, nanos));
        let again = rate.long.swap(dispatch, Relaxed) == dispatch;
        let before = rate.long_cpu.swap(cpu, Relaxed);
        if again && cpu.saturating_sub(before) >= nanos(TICK) / 2 {
            let tick = self.watchers.ticks();
            self.pace.long_seen.store(tick.max(1), Relaxed);
            self.pace.brisk.store(false, SeqCst);
        }
    }

    /// Whether workers dispatch so fast that a fiber waits for less than the time of a wake-up.
    #[inline]
    pub(crate) fn is_brisk(&self) -> bool {
        self.pace.brisk.load(SeqCst)
    }

    /// Wakes another worker if so many fibers wait that this pays.
    ///
    /// Called after a push to the queue of a worker by its holder, which runs the fibers there
    /// itself.
    #[inline]
    pub(crate) fn notify_for_backlog(&self, worker: &Worker, waiting: usize) {
        let pays = waiting >= worker.rate.pays_from.load(Relaxed) as usize;
        if pays && !self.are_enough_awake() {
            self.notify_searcher_from(worker);
        } else if waiting > 0 {
            worker.counters.count_wake(false);
        }
    }

    /// Whether a further worker would only compete with those that are awake.
    #[inline]
    fn are_enough_awake(&self) -> bool {
        let most = self.pace.most_awake.load(Relaxed);
        most != usize::MAX && self.count.allowed().saturating_sub(self.idle.asleep()) >= most
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    fn short_dispatches_fit_into_a_wake_up_and_long_ones_do_not() {
        let tick = Duration::from_millis(1);
        assert_eq!(in_a_wake(200, tick), 10);
        assert_eq!(in_a_wake(200, 2 * tick), 5);
        assert_eq!(in_a_wake(5, tick), 0);
        assert_eq!(in_a_wake(0, Duration::ZERO), 0);
    }

    #[test]
    fn crowded_workers_are_fewer_for_longer_and_longer_until_they_are_not_crowded() {
        let (pace, second) = (Pace::new(), Duration::from_secs(1));
        let most = || pace.most_awake.load(Relaxed);
        pace.note_delay(1, 2, 4 * second, second);
        assert_eq!(most(), usize::MAX, "a fifth of the time");
        pace.note_delay(2, 1, second, second);
        assert_eq!(most(), usize::MAX, "one cannot crowd itself");
        pace.note_delay(3, 2, second, second);
        assert_eq!((most(), pace.until.load(Relaxed)), (1, 3 + FEWER));
        pace.note_delay(4, 3, second, second);
        assert_eq!((most(), pace.until.load(Relaxed)), (2, 3 + FEWER));
        let later = 3 + FEWER;
        pace.note_delay(later, 2, second, second);
        assert_eq!(pace.until.load(Relaxed), later + 2 * FEWER);
        let later = later + 2 * FEWER;
        pace.note_delay(later, 2, 4 * second, second);
        pace.note_delay(later, 2, second, second);
        assert_eq!(pace.until.load(Relaxed), later + FEWER, "begins anew");
    }
}
