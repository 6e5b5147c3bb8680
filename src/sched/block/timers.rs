//! Deadlines of parked fibers: a timer wheel per worker, and a shared clock.
//!
//! A fiber that parks with a deadline puts it into the wheel of the worker it parks on. It takes
//! the deadline out again when it continues, on whatever worker, unless the deadline has fired. A
//! wheel is behind a lock of its own, held for a few steps of the wheel and never across an
//! allocation or a system call; preemption is disabled for as long (S6).
//!
//! Which thread fires deadlines. A worker that has nothing to do sleeps until the earliest deadline
//! of its wheel and fires what is due when it wakes. While workers are busy none of them reads a
//! clock: the monitor does, once a tick, and sets a flag for each worker whose earliest deadline
//! has passed ([`Timers::is_due`]); the worker finds it at its next dispatch. If the worker does
//! not come to one, the monitor sets another flag ([`Shared::miss_timers`]): the next worker that
//! comes through the scheduler's slow path, whether it was notified or is busy, fires what is due
//! in any wheel. The first worker, which never retires, also looks after the wheels of retired ones
//! while all workers sleep.
//!
//! A deadline is rounded up to the next tick and fires when the tick has come: never early, and
//! late by less than two ticks plus the time until the fiber is scheduled.
//!
//! **I13** A deadline is in a wheel only while its fiber is inside the park it is for: the fiber
//! takes it out, under the lock, before it leaves the park, unless the park ended because it fired.
//! A thread that fires the deadline takes it out, and takes a reference to the fiber, in one
//! critical section. Then it releases the lock and calls `expire` with the number of that park. The
//! fiber may have left that park long before; then the number does not match.

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use crate::driver::wheel::{self, Arena, Chunk, Step};
use crate::fiber::state::Notify;
use crate::fiber::{FiberRef, Held};
use crate::sched::Shared;
use crate::sched::block::wake;
use crate::sched::workers::context::{self, Entered};
use crate::sched::workers::worker::Worker;
use crate::util::loom::{Mutex, lock};

/// Fibers fired in one critical section; `STEPS` is the limit for steps of the wheel.
const BATCH: usize = 32;
const STEPS: usize = 256;
/// Entries looked at to find the exact time to sleep until.
const LOOK: usize = 64;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// A park of a fiber that a deadline ends.
///
/// No two are equal while the first may be in a wheel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sleeper {
    fiber: FiberRef,
    park: u32,
}

/// Time in ticks since the runtime started.
pub(crate) struct Clock {
    epoch: Instant,
    tick: u64,
    /// The last tick any thread has read off the clock.
    ///
    /// It is behind, but not by much while work is done.
    now: AtomicU64,
}

impl Clock {
    pub(crate) fn new(tick: Duration) -> Self {
        Clock {
            epoch: Instant::now(),
            tick: nanos(tick).max(1),
            now: AtomicU64::new(0),
        }
    }

    /// Returns nanoseconds since the start. May be called in a signal handler.
    pub(crate) fn nanos(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }

    /// Converts nanoseconds since the start into a time.
    pub(crate) fn at(&self, nanos: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanos)
    }

    /// Returns the first tick that is not before this time.
    fn tick_after(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch)).div_ceil(self.tick)
    }

    /// Advances the clock to `now`, which the caller has just read, and returns its tick.
    pub(crate) fn set(&self, now: Instant) -> u64 {
        let tick = nanos(now.saturating_duration_since(self.epoch)) / self.tick;
        self.now.fetch_max(tick, Relaxed);
        tick
    }

    /// Returns the last tick that was read off the clock. It wraps around after some weeks.
    #[inline]
    pub(crate) fn last_tick(&self) -> u32 {
        self.now.load(Relaxed) as u32
    }

    /// Returns the time from one such tick to a later one.
    pub(crate) fn between(&self, from: u32, to: u32) -> Duration {
        Duration::from_nanos(self.tick.saturating_mul(to.wrapping_sub(from).into()))
    }

    /// Returns the time from `now` until a tick comes.
    fn left(&self, tick: u64, now: Instant) -> Duration {
        let at = Duration::from_nanos(tick.saturating_mul(self.tick));
        at.saturating_sub(now.saturating_duration_since(self.epoch))
    }
}

/// Converts to nanoseconds; saturates after five centuries.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The deadlines of one worker.
pub(crate) struct Timers {
    wheel: Mutex<Arena<Sleeper>>,
    /// A tick not after the earliest deadline. Written under the lock.
    next: AtomicU64,
    /// Set by the monitor when the earliest deadline has passed.
    due: AtomicBool,
    active: AtomicUsize,
    fired: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Timers {
            wheel: Mutex::new(Arena::new(0)),
            next: AtomicU64::new(NEVER),
            due: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            fired: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Flags deadlines due at this tick, and returns whether there are any.
    ///
    /// Called by the monitor.
    pub(crate) fn look(&self, now: u64) -> bool {
        let due = self.next.load(Relaxed) <= now;
        if due {
            self.due.store(true, Relaxed);
        }
        due
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    fn set(&self, when: u64, sleeper: Sleeper) -> wheel::Key<Sleeper> {
        let mut wheel = lock(&self.wheel);
        while wheel.is_full() {
            drop(wheel);
            let chunk = Chunk::new(sleeper); // without the lock
            wheel = lock(&self.wheel);
            wheel.add(chunk);
        }
        let key = wheel.insert(when, sleeper);
        self.active.store(wheel.len(), Relaxed);
        if when < self.next.load(Relaxed) {
            self.next.store(when, SeqCst);
        }
        key
    }

    fn clear(&self, key: wheel::Key<Sleeper>, sleeper: Sleeper) {
        let mut wheel = lock(&self.wheel);
        if wheel.remove(key, sleeper) {
            self.active.store(wheel.len(), Relaxed);
        }
    }

    /// Returns the tick to sleep until, if there is one.
    fn until(&self) -> Option<u64> {
        if self.next.load(SeqCst) == NEVER {
            return None;
        }
        let wheel = lock(&self.wheel);
        let next = wheel.next(LOOK);
        self.next.store(next.unwrap_or(NEVER), SeqCst);
        next
    }

    /// Fires what is due at this tick.
    fn fire(&self, now: u64) {
        let guard = context::disable_preempt();
        loop {
            let mut batch = [const { None::<(Held, u32)> }; BATCH];
            let done = self.take_due(now, &mut batch);
            for (fiber, park) in batch.into_iter().flatten() {
                if fiber.state.expire(park) == Notify::Enqueue {
                    let _by_threads_of_the_runtime = wake::enqueue(&guard, fiber.fiber());
                }
            }
            if done {
                return;
            }
        }
    }

    /// Takes what is due out of the wheel into `batch`; true if that was all.
    fn take_due(&self, now: u64, batch: &mut [Option<(Held, u32)>; BATCH]) -> bool {
        let mut wheel = lock(&self.wheel);
        self.due.store(false, Relaxed);
        let (mut fired, mut done) = (0, false);
        for _ in 0..STEPS {
            match wheel.step(now) {
                // I13: the fiber stays in its park until it has taken this out, so it is alive.
                Step::Fired(Sleeper { fiber, park }) => {
                    batch[fired] = Some((fiber.hold(), park));
                    fired += 1;
                }
                Step::Moved => {}
                Step::Nothing => {
                    done = true;
                    break;
                }
            }
            if fired == BATCH {
                break;
            }
        }
        self.next.store(wheel.next(1).unwrap_or(NEVER), SeqCst);
        self.active.store(wheel.len(), Relaxed);
        self.fired
            .store(self.fired.load(Relaxed) + fired as u64, Relaxed);
        done
    }
}

/// How long a worker without work may sleep.
#[must_use]
pub(crate) enum Sleep {
    /// Until another thread notifies it.
    ForGood,
    /// Until the next deadline.
    For(Duration),
    /// Not at all, as deadlines have passed: look for work again.
    NotNow,
}

/// A deadline of the caller's current park, and the worker whose wheel it is in.
pub(crate) struct Deadline {
    worker: usize,
    key: wheel::Key<Sleeper>,
    sleeper: Sleeper,
}

impl Deadline {
    /// Sets a deadline for park number `park` of the calling fiber.
    ///
    /// It goes into the wheel of the fiber's worker. If it has passed already, the park ends at
    /// once.
    pub(crate) fn set(token: &Entered, at: Instant, fiber: FiberRef, park: u32) -> Option<Self> {
        let (shared, worker) = (token.carrier().shared(), token.worker());
        let when = shared.clock.tick_after(at);
        if when <= shared.clock.now.load(Relaxed) {
            let _it_has_not_switched_out = fiber.state.expire(park);
            return None;
        }
        let sleeper = Sleeper { fiber, park };
        Some(Deadline {
            worker: worker.index,
            key: worker.timers.set(when, sleeper),
            sleeper,
        })
    }

    /// Removes the deadline, as the park ended for another reason.
    pub(crate) fn clear(self, token: &Entered) {
        let worker = &token.carrier().shared().workers[self.worker];
        worker.timers.clear(self.key, self.sleeper);
    }
}

impl Shared {
    /// Sets the flags of workers whose deadlines have passed; called by the monitor.
    pub(crate) fn look_at_timers(&self, now: Instant) {
        let tick = self.clock.set(now);
        for worker in self.present() {
            if worker.timers.look(tick) && self.count.is_retired(worker.index) {
                self.miss_timers();
            }
        }
    }

    /// Makes other workers fire deadlines that their own worker does not come to.
    pub(crate) fn miss_timers(&self) {
        self.missed_timers.store(true, SeqCst);
        self.notify_searcher(0);
    }

    /// Fires deadlines that their own workers have missed.
    #[inline]
    pub(crate) fn fire_missed(&self) {
        if self.missed_timers.load(Relaxed) && self.missed_timers.swap(false, SeqCst) {
            self.fire_all();
        }
    }

    /// Fires what is due in a worker's wheel, which need not be the caller's.
    pub(crate) fn fire(&self, worker: &Worker) {
        worker.timers.fire(self.clock.set(Instant::now()));
    }

    /// Fires what is due in all wheels.
    pub(crate) fn fire_all(&self) {
        let now = self.clock.set(Instant::now());
        self.present().iter().for_each(|w| w.timers.fire(now));
    }

    /// Returns how long a worker without work may sleep.
    ///
    /// If deadlines have passed it fires them instead.
    pub(crate) fn time_to_sleep(&self, worker: &Worker) -> Sleep {
        let mut next = worker.timers.until();
        // The first worker looks after the wheels of retired ones.
        let retired = if worker.index == 0 {
            self.present()
        } else {
            &[]
        };
        for other in retired {
            if self.count.is_retired(other.index) {
                let until = other.timers.until();
                next = next.into_iter().chain(until).min();
            }
        }
        let Some(next) = next else {
            return Sleep::ForGood;
        };
        let now = Instant::now();
        let tick = self.clock.set(now);
        if next > tick {
            return Sleep::For(self.clock.left(next, now));
        }
        worker.timers.fire(tick);
        for other in retired {
            other.timers.fire(tick);
        }
        Sleep::NotNow
    }

    pub(crate) fn timers_active(&self) -> usize {
        self.workers.iter().map(|w| w.timers.active()).sum()
    }

    pub(crate) fn timers_fired(&self) -> u64 {
        self.workers.iter().map(|w| w.timers.fired()).sum()
    }
}
