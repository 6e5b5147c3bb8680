//! The monitor's thread.
//!
//! Its law, for this file and for everything it calls: no allocation, no lock, no formatting, no
//! new thread, and no file but those by which a [`Thread`](crate::Thread) asks the kernel. It may
//! be the only thread of the process that is not waiting for something one of the others holds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::activity::{Activity, Phase};
use crate::background_thread::BackgroundThread;
use crate::monitor_sleep::MonitorSleep;
use crate::policy::{Judgement, Look, Policy, Rest, Waiting};
use crate::thread::{self, Thread, ThreadState};

/// How often the monitor looks while somebody is awake.
///
/// ```
/// // So long a dispatch may last until it is sure to be noticed.
/// assert!(2 * indent_sysmon::TICK < std::time::Duration::from_millis(10));
/// ```
pub const TICK: Duration = Duration::from_millis(1);

/// The workers a monitor watches, and what it tells them.
///
/// All of it is called by the monitor, on its thread, one call at a time; never by a worker. It
/// must keep the monitor's law: no allocation, no lock, no file, no formatting, no new thread.
/// (Atomics, the methods of [`Thread`], [`Helper::ask`](crate::Helper::ask) and system calls with
/// numbers are fine.) A panic in one of them ends the process: a monitor that is gone would be
/// missed too late.
///
/// A *look* is this, in this order; it comes [`pause`](Self::pause) after the last one, or earlier if
/// somebody [rings](Monitor::ring):
///
/// 1. [`tick`](Self::tick); about once a second [`refresh`](Self::refresh); [`quantum`](Self::quantum).
/// 2. For each worker the questions [`activity`](Self::slot), [`thread`](Self::thread),
///    [`began`](Self::began), [`waiting`](Self::waiting), whether it is idle or not. Then at most one of
///    these, for whoever was in the same dispatch for some time:
///
///    | told | if the slot says | and |
///    |---|---|---|
///    | [`asleep`](Self::asleep) | `Fiber` | its thread hardly ran since the last look, and is asleep in the kernel |
///    | [`interrupt`](Self::interrupt) | `Fiber` | it runs for [`GRACE`](crate::GRACE) and a pressing one waits, or for a quantum and others do |
///    | [`overran`](Self::overran) | `Fiber` | it runs for a [`TICK`] at least |
///    | [`stuck`](Self::stuck) | `Scheduling` | nothing changed for two ticks |
///
///    The first that fits is told. All of them are told again at every look as long as it stays so:
///    who wants to act once remembers the dispatch.
/// 3. [`awake`](Self::awake) and [`restless`](Self::restless). After some looks at which all were idle
///    the monitor sleeps, and there are no more calls until [`Monitor::notice`].
///
/// How long a dispatch has lasted is what the monitor saw: counted from the look that first found it,
/// unless [`began`](Self::began) knows better. All three of `overran`, `interrupt` and `asleep` carry
/// the dispatch that was meant: the worker may be in another one by now, and whoever acts on it must
/// compare.
///
/// Only three functions have to be written; this one has them all. [`stalls`](crate::stalls) is a whole one.
///
/// ```
/// use indent_sysmon::{Pool, Activity, TICK, Thread, Waiting};
/// use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
/// use std::time::{Duration, Instant};
///
/// struct Worker {
///     activity: Activity,
///     thread: Thread,
///     queued: AtomicUsize,
///     asked_to_yield: AtomicU64,
/// }
///
/// struct Two {
///     members: [Worker; 2],
///     awake: AtomicUsize,
///     overruns: AtomicU64,
///     sleepers: AtomicU64,
///     read_settings: AtomicBool,
/// }
///
/// impl Pool for Two {
///     fn workers(&self) -> usize {
///         self.members.len()
///     }
///     fn activity(&self, worker: usize) -> &Activity {
///         &self.members[worker].activity
///     }
///     fn overran(&self, _worker: usize, _dispatch: u64) {
///         self.overruns.fetch_add(1, Relaxed);
///     }
///
///     fn tick(&self, _now: Instant) {} // timers could be looked at
///     fn thread(&self, worker: usize) -> Option<&Thread> {
///         Some(&self.members[worker].thread) // else nobody is ever found asleep
///     }
///     fn waiting(&self, worker: usize) -> Waiting {
///         match self.members[worker].queued.load(Relaxed) {
///             0 => Waiting::None,
///             _ => Waiting::ForTurn,
///         }
///     }
///     fn began(&self, _worker: usize, _dispatch: u64) -> Option<Instant> {
///         None // these workers read no clock
///     }
///     fn quantum(&self) -> Duration {
///         Duration::from_millis(10)
///     }
///     fn interrupt(&self, worker: usize, dispatch: u64, _waiting: Waiting) {
///         self.members[worker].asked_to_yield.store(dispatch, Relaxed);
///     }
///     fn asleep(&self, _worker: usize, _dispatch: u64) {
///         self.sleepers.fetch_add(1, Relaxed);
///     }
///     fn stuck(&self, _worker: usize) {}
///     fn pause(&self) -> Duration {
///         TICK
///     }
///     fn awake(&self, workers: usize) {
///         self.awake.store(workers, Relaxed);
///     }
///     fn restless(&self) -> bool {
///         false
///     }
///     fn refresh(&self) {
///         self.read_settings.store(true, Relaxed); // by somebody who may open files
///     }
/// }
/// ```
pub trait Pool: Send + Sync + 'static {
    /// Workers to look at: those below this number. It may change from one look to the next, and is
    /// never more than what [`Monitor::start`] was told.
    fn workers(&self) -> usize;

    /// What a worker publishes: the same slot every time.
    fn activity(&self, worker: usize) -> &Activity;

    /// It is this time now; called before each look.
    fn tick(&self, now: Instant) {
        let _ = now;
    }

    /// The worker has been in this dispatch for a [`TICK`] or longer, and its thread runs, or waits for
    /// a CPU, or there is no [`thread`](Self::thread) to ask about.
    fn overran(&self, worker: usize, dispatch: u64);

    /// The thread that runs this worker now, enlisted by itself; it may be another one at the next look.
    /// Without it nobody is ever found [`asleep`](Self::asleep). Asking costs a system call for each
    /// worker that is not idle, and another one for those whose clock stands still.
    fn thread(&self, worker: usize) -> Option<&Thread> {
        let _ = worker;
        None
    }

    /// Who waits for this worker. As long as it is nobody, nobody is [interrupted](Self::interrupt).
    fn waiting(&self, worker: usize) -> Waiting {
        let _ = worker;
        Waiting::None
    }

    /// When this dispatch began, if the worker has said so; never in the future. Without it a dispatch
    /// counts from the look that first found it, so up to a [`pause`](Self::pause) too late.
    fn began(&self, worker: usize, dispatch: u64) -> Option<Instant> {
        let _ = (worker, dispatch);
        None
    }

    /// How long one may run while others wait for their turn.
    fn quantum(&self) -> Duration {
        Duration::MAX
    }

    /// The worker has run long enough in this dispatch: others wait. Said in place of
    /// [`overran`](Self::overran). To interrupt a thread is up to the pool: a flag that jobs look at, or
    /// a signal.
    fn interrupt(&self, worker: usize, dispatch: u64, waiting: Waiting) {
        let _ = waiting;
        self.overran(worker, dispatch);
    }

    /// The worker has been in this dispatch since the last look at least, and its thread sleeps in the
    /// kernel. Said in place of [`overran`](Self::overran) and [`interrupt`](Self::interrupt), after
    /// less than a [`TICK`] too. A signal would end some system calls with `EINTR`; somebody else can
    /// do the worker's other work meanwhile. Where there is no `/proc`, a thread that hardly ran counts
    /// as asleep.
    fn asleep(&self, worker: usize, dispatch: u64) {
        self.overran(worker, dispatch);
    }

    /// The worker runs nobody, and does not get on: it waits for a lock, say, or for a CPU.
    fn stuck(&self, worker: usize) {
        let _ = worker;
    }

    /// How long until the next look while somebody is awake.
    fn pause(&self) -> Duration {
        TICK
    }

    /// After each look: so many workers were not idle.
    fn awake(&self, workers: usize) {
        let _ = workers;
    }

    /// Whether there is something that needs the next look although all workers sleep. Who makes that true
    /// calls [`Monitor::notice`] afterwards.
    fn restless(&self) -> bool {
        false
    }

    /// At the first look, then once a second while somebody is awake, and when the monitor wakes after a
    /// longer sleep: time to [ask](crate::Helper::ask) for what changes rarely.
    fn refresh(&self) {}
}

/// A thread that watches a [`Pool`]. It ends by [`stop`](Self::stop), not when this is dropped.
///
/// ```
/// use indent_sysmon::{Monitor, Phase, Pool, Activity};
/// use std::sync::Arc;
///
/// struct One(Activity);
///
/// impl Pool for One {
///     fn workers(&self) -> usize {
///         1
///     }
///     fn activity(&self, _: usize) -> &Activity {
///         &self.0
///     }
///     fn overran(&self, _: usize, _: u64) {}
/// }
///
/// let pool = Arc::new(One(Activity::new()));
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
    shared: Arc<Shared>,
    thread: BackgroundThread,
}

struct Shared {
    sleep: MonitorSleep,
    stop: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch {{ asleep: {} }}", self.sleep.is_asleep())
    }
}

impl Monitor {
    /// Starts the thread, for a pool that never has more workers than `most`. This is the one moment at
    /// which memory is needed.
    ///
    /// See [`Monitor`] for an example.
    pub fn start(name: &str, most: usize, pool: Arc<impl Pool>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            sleep: MonitorSleep::new(),
            stop: AtomicBool::new(false),
        });
        let policy = Policy::new(most);
        let own = shared.clone();
        let thread = BackgroundThread::start(name, move || run(&own, &*pool, policy))?;
        Ok(Monitor { shared, thread })
    }

    /// A worker, after it has published that it is awake: makes sure that it is watched. Cheap (a fence
    /// and a load) unless the monitor sleeps; need not be called between two dispatches if the worker was
    /// not idle in between.
    ///
    /// See [`Monitor`] for an example.
    #[inline]
    pub fn notice(&self) {
        if self.shared.sleep.notice() {
            self.thread.notify();
        }
    }

    /// Something has happened that should be looked at before the next tick. Keeps the law, and may be
    /// called from a signal handler. Does not end the sleep of a monitor whose workers are all idle; that
    /// is what [`notice`](Self::notice) is for.
    ///
    /// ```
    /// use indent_sysmon::{Monitor, Phase, Pool, Activity};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// struct Patient(Activity);
    ///
    /// impl Pool for Patient {
    ///     fn workers(&self) -> usize {
    ///         1
    ///     }
    ///     fn activity(&self, _: usize) -> &Activity {
    ///         &self.0
    ///     }
    ///     fn overran(&self, _: usize, _: u64) {}
    ///     fn pause(&self) -> Duration {
    ///         Duration::from_secs(3600)
    ///     }
    /// }
    ///
    /// let pool = Arc::new(Patient(Activity::new()));
    /// pool.0.dispatch();
    /// let monitor = Monitor::start("watch", 1, pool.clone())?;
    /// while pool.0.busy().is_zero() {
    ///     monitor.notify(); // or it would take an hour
    ///     std::thread::yield_now();
    /// }
    /// monitor.stop();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn notify(&self) {
        self.thread.notify();
    }

    /// Ends the thread and waits for it: afterwards nothing of the pool is called. Not from one of the
    /// pool's own functions.
    ///
    /// See [`Monitor`] for an example.
    pub fn stop(&self) {
        self.shared.stop.store(true, SeqCst);
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

fn run(shared: &Shared, pool: &impl Pool, mut policy: Policy) {
    let _abort = AbortOnUnwind;
    thread::be_prompt();
    let began = Instant::now();
    let mut last = began;
    let mut slept = false;
    while !shared.stop.load(SeqCst) {
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
            Rest::Sleep => slept = sleep(shared, pool),
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
        let activity = pool.activity(worker);
        // The count first: if the phase belongs to a later dispatch, that one is judged as new
        // next time.
        let dispatch = activity.dispatches();
        let phase = activity.phase();
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
        activity.add_busy(busy);
        awake += 1;
    }
    awake
}

/// Until a worker wakes up; false if one was awake.
fn sleep(shared: &Shared, pool: &impl Pool) -> bool {
    let idle = |worker| pool.activity(worker).phase() == Phase::Idle;
    let all_idle = || (0..pool.workers()).all(idle) && !pool.restless();
    if !shared.sleep.may_sleep(all_idle) {
        return false;
    }
    while shared.sleep.is_asleep() && !shared.stop.load(SeqCst) {
        std::thread::park();
    }
    true
}
