//! Deadlines of parked fibers: a wheel per worker, a clock nobody has to read.
//!
//! A fiber that parks with a deadline puts it into the wheel of the worker it parks on, and takes it
//! out again when it runs on, wherever that is, unless it has fired. A wheel is behind a lock of its
//! own, held for a few steps of the wheel and never across an allocation or a system call; the mark
//! is up for as long (S6).
//!
//! Who fires. A worker that has nothing to do sleeps until the earliest deadline of its wheel and
//! fires what is due when it wakes. While workers are busy none of them reads a clock: the monitor
//! does, once a tick, and tells each worker whose earliest deadline has passed ([`Timers::is_due`]);
//! the worker finds it at its next dispatch. If it does not come to one, the monitor says that, too
//! ([`Shared::miss_timers`]): the next worker that comes through the scheduler's slow path, be it
//! roused or busy, fires what is due in any wheel. The first worker, which never retires, also
//! minds the wheels of retired ones while everybody sleeps.
//!
//! A deadline is rounded up to the next tick and fires when the tick has come: never early, and late
//! by less than two ticks plus what it takes to be scheduled.
//!
//! **I13** A deadline is in a wheel only while its fiber is inside the park it is for: the fiber takes
//! it out, under the lock, before it leaves the park, unless the park ended because it fired. Who
//! fires it takes it out, and a reference to the fiber, in one critical section; then lets go of the
//! lock and says `expire` with the number of that park. By then the fiber may be long gone from it,
//! and the number says so.

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

/// Fibers fired in one critical section, and steps of the wheel in one.
const BATCH: usize = 32;
const STEPS: usize = 256;
/// Entries looked at to find out exactly until when to sleep.
const LOOK: usize = 64;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// Whom to wake: this park of this fiber. No two are equal while the first may be in a wheel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sleeper {
    fiber: FiberRef,
    park: u32,
}

/// Time in ticks since the runtime started.
pub(crate) struct Clock {
    epoch: Instant,
    tick: u64,
    /// The last tick anybody has read off the clock: behind, but not by much while work is done.
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

    /// Nanoseconds since then. May be called in a signal handler.
    pub(crate) fn nanos(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }

    /// A time in such nanoseconds.
    pub(crate) fn at(&self, nanos: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanos)
    }

    /// The first tick that is not before this time.
    fn tick_after(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch)).div_ceil(self.tick)
    }

    /// The tick that has come, for somebody who has just read the time.
    pub(crate) fn set(&self, now: Instant) -> u64 {
        let tick = nanos(now.saturating_duration_since(self.epoch)) / self.tick;
        self.now.fetch_max(tick, Relaxed);
        tick
    }

    /// The last tick that was read off the clock. It comes round after some weeks.
    #[inline]
    pub(crate) fn last_tick(&self) -> u32 {
        self.now.load(Relaxed) as u32
    }

    /// The time from one such tick to a later one.
    pub(crate) fn between(&self, from: u32, to: u32) -> Duration {
        Duration::from_nanos(self.tick.saturating_mul(to.wrapping_sub(from).into()))
    }

    /// How long it is from `now` until a tick comes.
    fn left(&self, tick: u64, now: Instant) -> Duration {
        let at = Duration::from_nanos(tick.saturating_mul(self.tick));
        at.saturating_sub(now.saturating_duration_since(self.epoch))
    }
}

/// Saturates after five centuries.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One worker's deadlines.
pub(crate) struct Timers {
    wheel: Mutex<Arena<Sleeper>>,
    /// Not after the earliest deadline. Written under the lock.
    next: AtomicU64,
    /// The monitor has seen that the earliest deadline passed.
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

    /// The monitor, at this tick: true if something is due.
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

    /// The tick to sleep until, if there is one.
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

    /// Takes what is due out of the wheel, as far as there is room; true if that was all.
    fn take_due(&self, now: u64, batch: &mut [Option<(Held, u32)>; BATCH]) -> bool {
        let mut wheel = lock(&self.wheel);
        self.due.store(false, Relaxed);
        let (mut fired, mut done) = (0, false);
        for _ in 0..STEPS {
            match wheel.step(now) {
                // I13: it is inside its park until it has taken this out, so it is alive.
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

/// What a worker without work may do.
#[must_use]
pub(crate) enum Sleep {
    /// Until somebody rouses it.
    ForGood,
    /// Until the next deadline.
    For(Duration),
    /// Look for work again: deadlines have passed.
    NotNow,
}

/// A deadline of the park the caller is in, and in which worker's wheel it is.
pub(crate) struct Deadline {
    worker: usize,
    key: wheel::Key<Sleeper>,
    sleeper: Sleeper,
}

impl Deadline {
    /// Sets a deadline for park number `park` of the calling fiber, in the wheel of its worker; or
    /// says at once that it has passed.
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

    /// The park ended for another reason.
    pub(crate) fn clear(self, token: &Entered) {
        let worker = &token.carrier().shared().workers[self.worker];
        worker.timers.clear(self.key, self.sleeper);
    }
}

impl Shared {
    /// The monitor's part.
    pub(crate) fn look_at_timers(&self, now: Instant) {
        let tick = self.clock.set(now);
        for worker in self.present() {
            if worker.timers.look(tick) && self.count.is_retired(worker.index) {
                self.miss_timers();
            }
        }
    }

    /// Deadlines have passed that their own worker does not come to: whoever comes by fires them.
    pub(crate) fn miss_timers(&self) {
        self.missed_timers.store(true, SeqCst);
        self.notify_searcher(0);
    }

    /// Fires what others miss.
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

    /// Fires what is due anywhere.
    pub(crate) fn fire_all(&self) {
        let now = self.clock.set(Instant::now());
        self.present().iter().for_each(|w| w.timers.fire(now));
    }

    /// For a worker without work: how long it may sleep. Fires what is due instead, if that is so.
    pub(crate) fn time_to_sleep(&self, worker: &Worker) -> Sleep {
        let mut next = worker.timers.until();
        // Those of retired workers are the first one's business.
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
