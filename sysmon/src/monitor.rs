//! The monitor's thread.
//!
//! Its law, for this file and for everything it calls: no allocation, no lock, no file, no
//! formatting, no new thread. It may be the only thread of the process that is not waiting for
//! something one of the others holds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::companion::Companion;
use crate::policy::{Judgement, Look, Policy, Rest, Waiting};
use crate::slot::{Phase, Slot};
use crate::thread::{self, Thread, ThreadState};
use crate::vigil::Vigil;

/// How often the monitor looks while somebody is awake.
///
/// ```
/// // So long a dispatch may last until it is sure to be noticed.
/// assert!(2 * indent_sysmon::TICK < std::time::Duration::from_millis(10));
/// ```
pub const TICK: Duration = Duration::from_millis(1);

/// The workers a monitor watches, and what it tells them. All of it is called on the monitor's
/// thread and must keep its law: no allocation, no lock, no file, no new thread.
///
/// ```
/// use indent_sysmon::{Pool, Slot};
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// struct Two {
///     slots: [Slot; 2],
///     awake: AtomicUsize,
/// }
///
/// impl Pool for Two {
///     fn workers(&self) -> usize {
///         self.slots.len()
///     }
///     fn slot(&self, worker: usize) -> &Slot {
///         &self.slots[worker]
///     }
///     fn overran(&self, _worker: usize, _dispatch: u64) {} // they may take their time
///     fn awake(&self, workers: usize) {
///         self.awake.store(workers, Relaxed);
///     }
/// }
/// ```
pub trait Pool: Send + Sync + 'static {
    /// Workers to look at: those below this number.
    fn workers(&self) -> usize;

    /// What a worker publishes.
    fn slot(&self, worker: usize) -> &Slot;

    /// It is this time now; called before each look.
    fn tick(&self, now: Instant) {
        let _ = now;
    }

    /// The worker has been in this dispatch for more than a tick; said at every look.
    fn overran(&self, worker: usize, dispatch: u64);

    /// The thread that runs this worker now.
    fn thread(&self, worker: usize) -> Option<&Thread> {
        let _ = worker;
        None
    }

    /// Who waits for this worker.
    fn waiting(&self, worker: usize) -> Waiting {
        let _ = worker;
        Waiting::Nobody
    }

    /// When this dispatch began, if the worker has said so; never in the future.
    fn began(&self, worker: usize, dispatch: u64) -> Option<Instant> {
        let _ = (worker, dispatch);
        None
    }

    /// How long one may run while others wait for their turn.
    fn quantum(&self) -> Duration {
        Duration::MAX
    }

    /// The worker has run long enough in this dispatch: others wait. Said in place of
    /// [`overran`](Self::overran), at every look.
    fn interrupt(&self, worker: usize, dispatch: u64, waiting: Waiting) {
        let _ = waiting;
        self.overran(worker, dispatch);
    }

    /// The worker has been in this dispatch since the last look at least, and its thread sleeps in the
    /// kernel. Said in place of [`overran`](Self::overran).
    fn asleep(&self, worker: usize, dispatch: u64) {
        self.overran(worker, dispatch);
    }

    /// The worker runs nobody, and does not get on.
    fn stuck(&self, worker: usize) {
        let _ = worker;
    }

    /// How long until the next look while somebody is awake.
    fn pause(&self) -> Duration {
        TICK
    }

    /// After each look: so many workers are awake.
    fn awake(&self, workers: usize) {
        let _ = workers;
    }

    /// Whether there is something that needs the next look although all workers sleep. Who makes that true
    /// calls [`Monitor::notice`] afterwards.
    fn restless(&self) -> bool {
        false
    }

    /// Once a second, or when the monitor wakes after a longer sleep.
    fn refresh(&self) {}
}

/// A thread that watches a [`Pool`]. It ends by [`stop`](Self::stop), not when this is dropped.
///
/// ```
/// use indent_sysmon::{Monitor, Phase, Pool, Slot};
/// use std::sync::Arc;
///
/// struct One(Slot);
///
/// impl Pool for One {
///     fn workers(&self) -> usize {
///         1
///     }
///     fn slot(&self, _: usize) -> &Slot {
///         &self.0
///     }
///     fn overran(&self, _: usize, _: u64) {}
/// }
///
/// let pool = Arc::new(One(Slot::new()));
/// let monitor = Monitor::start("watch", 1, pool.clone())?;
/// pool.0.dispatch();
/// monitor.notice(); // it may have been asleep
/// while pool.0.busy().is_zero() {
///     std::thread::yield_now();
/// }
/// pool.0.set_phase(Phase::Idle);
/// monitor.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Monitor {
    watch: Arc<Watch>,
    thread: Companion,
}

struct Watch {
    vigil: Vigil,
    stop: AtomicBool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch {{ asleep: {} }}", self.vigil.is_asleep())
    }
}

impl Monitor {
    /// Starts the thread, for a pool that never has more workers than `most`.
    pub fn start(name: &str, most: usize, pool: Arc<impl Pool>) -> io::Result<Self> {
        let watch = Arc::new(Watch {
            vigil: Vigil::new(),
            stop: AtomicBool::new(false),
        });
        let policy = Policy::new(most);
        let own = watch.clone();
        let thread = Companion::start(name, move || run(&own, &*pool, policy))?;
        Ok(Monitor { watch, thread })
    }

    /// A worker, after it has published that it is awake: makes sure that it is watched.
    #[inline]
    pub fn notice(&self) {
        if self.watch.vigil.notice() {
            self.thread.ring();
        }
    }

    /// Something has happened that should be looked at before the next tick. Keeps the law, and may be
    /// called from a signal handler.
    pub fn ring(&self) {
        self.thread.ring();
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.watch.stop.store(true, SeqCst);
        self.thread.join();
    }
}

/// A monitor that is gone would be missed by nobody until something hangs.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn run(watch: &Watch, pool: &impl Pool, mut policy: Policy) {
    let _abort = AbortOnUnwind;
    thread::be_prompt();
    let began = Instant::now();
    let mut last = began;
    let mut slept = false;
    while !watch.stop.load(SeqCst) {
        let now = Instant::now();
        let passed = now - std::mem::replace(&mut last, now);
        // While the monitor slept nobody was busy.
        let busy = if std::mem::take(&mut slept) {
            Duration::ZERO
        } else {
            passed
        };
        pool.tick(now);
        if policy.refresh(passed) {
            pool.refresh();
        }
        let awake = look(pool, &mut policy, began, now, busy);
        pool.awake(awake);
        match policy.rest(awake > 0 || pool.restless()) {
            Rest::Tick => std::thread::park_timeout(pool.pause()),
            Rest::Sleep => slept = sleep(watch, pool),
        }
    }
}

/// Looks at every worker; how many are awake.
fn look(
    pool: &impl Pool,
    policy: &mut Policy,
    began: Instant,
    now: Instant,
    busy: Duration,
) -> usize {
    let mut awake = 0;
    let quantum = pool.quantum();
    for worker in 0..pool.workers() {
        let slot = pool.slot(worker);
        // The count first: if the phase belongs to a later dispatch, that one is judged as new
        // next time.
        let dispatch = slot.dispatches();
        let phase = slot.phase();
        let thread = pool.thread(worker).filter(|_| phase != Phase::Idle);
        let look = Look {
            now: now - began,
            phase,
            dispatch,
            began: (pool.began(worker, dispatch)).map(|at| at.saturating_duration_since(began)),
            cpu: thread.and_then(Thread::cpu_time),
            waiting: pool.waiting(worker),
            quantum,
        };
        let mut judgement = policy.judge(worker, &look);
        if judgement == Judgement::Still {
            let state = thread.map_or(ThreadState::Unknown, Thread::state);
            if state != ThreadState::Running {
                pool.asleep(worker, dispatch); // without /proc the clock decides
            } else {
                judgement = policy.runs(worker, &look);
            }
        }
        match judgement {
            Judgement::Idle => continue,
            Judgement::Busy | Judgement::Still => {}
            Judgement::Overran => pool.overran(worker, dispatch),
            Judgement::Interrupt => pool.interrupt(worker, dispatch, look.waiting),
            Judgement::Stuck => pool.stuck(worker),
        }
        slot.add_busy(busy);
        awake += 1;
    }
    awake
}

/// Until a worker wakes up; false if one was awake.
fn sleep(watch: &Watch, pool: &impl Pool) -> bool {
    let idle = |worker| pool.slot(worker).phase() == Phase::Idle;
    let all_idle = || (0..pool.workers()).all(idle) && !pool.restless();
    if !watch.vigil.may_sleep(all_idle) {
        return false;
    }
    while watch.vigil.is_asleep() && !watch.stop.load(SeqCst) {
        std::thread::park();
    }
    true
}
