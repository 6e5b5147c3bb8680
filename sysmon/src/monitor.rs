//! The monitor's thread.
//!
//! Its rules, for this file and for everything it calls: no allocation, no lock, no formatting, no
//! new thread, and no file but those by which a [`Thread`](crate::Thread) queries the kernel. It
//! may be the only thread of the process that is not waiting for something another thread holds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::activity::{Activity, Phase};
use crate::background_thread::BackgroundThread;
use crate::monitor_sleep::MonitorSleep;
use crate::policy::{Judgement, Look, Policy, Rest, Waiting};
use crate::thread::{self, Thread, ThreadState};

/// How often the monitor looks while any worker is awake.
///
/// ```
/// // So long a dispatch may last until it is sure to be noticed.
/// assert!(2 * indent_sysmon::TICK < std::time::Duration::from_millis(10));
/// ```
pub const TICK: Duration = Duration::from_millis(1);

/// The workers that a monitor watches, and the reactions to what it sees.
///
/// The monitor calls all of these functions on its own thread, one call at a time; a worker never
/// does. They must follow the monitor's rules: no allocation, no lock, no file, no formatting, no
/// new thread. (Atomics, the methods of [`Thread`], [`Helper::ask`](crate::Helper::ask) and system
/// calls with numbers are fine.) A panic in one of them aborts the process: otherwise the missing
/// monitor would be noticed too late.
///
/// A *look* consists of these steps, in this order. It comes [`pause`](Self::pause) after the
/// previous one, or earlier after a [`notify`](Monitor::notify):
///
/// 1. [`tick`](Self::tick); about once a second [`refresh`](Self::refresh);
///    [`quantum`](Self::quantum).
/// 2. For each worker, idle or not, the queries [`activity`](Self::activity),
///    [`thread`](Self::thread), [`began`](Self::began) and [`waiting`](Self::waiting). Then at most
///    one of these calls, if the worker has been in the same dispatch for some time:
///
///    | call | phase | and |
///    |---|---|---|
///    | [`asleep`](Self::asleep) | `Fiber` | the thread sleeps in the kernel |
///    | [`interrupt`](Self::interrupt) | `Fiber` | it runs, and see below |
///    | [`overran`](Self::overran) | `Fiber` | it runs for at least a [`TICK`] |
///    | [`stuck`](Self::stuck) | `Scheduling` | nothing changed for two ticks |
///
///    A thread counts as asleep if it hardly ran since the last look, and is asleep in the kernel.
///    `interrupt` is called if the thread runs for [`GRACE`](crate::GRACE) and urgent work waits,
///    or for a quantum and other work waits.
///
///    The first row that fits is called, and called again at every look for as long as it fits. A
///    pool that wants to react once remembers the dispatch.
/// 3. [`awake`](Self::awake) and [`restless`](Self::restless). After some looks that found all
///    workers idle the monitor sleeps, and makes no more calls until [`Monitor::notice`].
///
/// The length of a dispatch is what the monitor saw, counted from the look that first found it,
/// unless [`began`](Self::began) returns a better value. The calls `overran`, `interrupt` and
/// `asleep` carry the dispatch that is meant: the worker may be in another one by now, so the pool
/// must compare before it acts.
///
/// Only three functions have to be written; this example has all of them. [`stalls`](crate::stalls)
/// is a complete implementation.
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
///     fn tick(&self, _now: Instant) {} // a place to check timers
///     fn thread(&self, worker: usize) -> Option<&Thread> {
///         Some(&self.members[worker].thread) // else no worker is ever found asleep
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
///         self.read_settings.store(true, Relaxed); // for a thread that may open files
///     }
/// }
/// ```
pub trait Pool: Send + Sync + 'static {
    /// Returns the number of workers to look at, which are those with smaller indices.
    ///
    /// It may change from one look to the next, and never exceeds the limit given to
    /// [`Monitor::start`].
    fn workers(&self) -> usize;

    /// Returns what a worker publishes: the same activity every time.
    fn activity(&self, worker: usize) -> &Activity;

    /// Called before each look with the current time.
    fn tick(&self, now: Instant) {
        let _ = now;
    }

    /// Called when the worker has been in this dispatch for a [`TICK`] or longer.
    ///
    /// Its thread runs, or waits for a CPU, or there is no [`thread`](Self::thread) to query.
    fn overran(&self, worker: usize, dispatch: u64);

    /// Returns the thread that runs this worker now; it may be another one at the next look.
    ///
    /// The thread must have enlisted itself. Without it no worker is ever found
    /// [`asleep`](Self::asleep). A query costs a system call for each worker that is not idle, and
    /// another one for a worker whose CPU clock stands still.
    fn thread(&self, worker: usize) -> Option<&Thread> {
        let _ = worker;
        None
    }

    /// Returns what kind of work waits for this worker; [`interrupt`](Self::interrupt) needs some.
    fn waiting(&self, worker: usize) -> Waiting {
        let _ = worker;
        Waiting::None
    }

    /// Returns when this dispatch began, if the worker has published that; never in the future.
    ///
    /// Without it a dispatch counts from the look that first found it, so up to a
    /// [`pause`](Self::pause) too late.
    fn began(&self, worker: usize, dispatch: u64) -> Option<Instant> {
        let _ = (worker, dispatch);
        None
    }

    /// Returns how long a dispatch may run while other work waits for its turn.
    fn quantum(&self) -> Duration {
        Duration::MAX
    }

    /// Called when the worker has run long enough in this dispatch while other work waits.
    ///
    /// Called in place of [`overran`](Self::overran). How to interrupt a thread is up to the pool:
    /// a flag that jobs check, or a signal.
    fn interrupt(&self, worker: usize, dispatch: u64, waiting: Waiting) {
        let _ = waiting;
        self.overran(worker, dispatch);
    }

    /// Called when the worker's thread sleeps in the kernel, in the dispatch of the last look.
    ///
    /// Called in place of [`overran`](Self::overran) and [`interrupt`](Self::interrupt), and also
    /// after less than a [`TICK`]. A signal would end some system calls with `EINTR`; but another
    /// thread can do the worker's other work meanwhile. Where there is no `/proc`, a thread that
    /// hardly ran counts as asleep.
    fn asleep(&self, worker: usize, dispatch: u64) {
        self.overran(worker, dispatch);
    }

    /// Called when the worker runs nothing and makes no progress: it waits for a lock or a CPU.
    fn stuck(&self, worker: usize) {
        let _ = worker;
    }

    /// Returns how long to wait for the next look while any worker is awake.
    fn pause(&self) -> Duration {
        TICK
    }

    /// Called after each look with the number of workers that were not idle.
    fn awake(&self, workers: usize) {
        let _ = workers;
    }

    /// Returns true if something needs the next look although all workers sleep.
    ///
    /// Code that makes this true calls [`Monitor::notice`] afterwards.
    fn restless(&self) -> bool {
        false
    }

    /// Called when it is time to [request](crate::Helper::ask) an update of what changes rarely.
    ///
    /// That is at the first look, then once a second while any worker is awake, and when the
    /// monitor wakes after a longer sleep.
    fn refresh(&self) {}
}

/// A thread that watches a [`Pool`]. It ends by [`stop`](Self::stop), not by a drop.
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
        write!(f, "Shared {{ asleep: {} }}", self.sleep.is_asleep())
    }
}

impl Monitor {
    /// Starts the thread, for a pool that never has more than `most` workers.
    ///
    /// Allocates all memory that the monitor will need.
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

    /// Makes sure that a worker is watched; the worker calls this once it has published it is
    /// awake.
    ///
    /// Cheap (a fence and a load) unless the monitor sleeps. Not needed between two dispatches if
    /// the worker was not idle in between.
    ///
    /// See [`Monitor`] for an example.
    #[inline]
    pub fn notice(&self) {
        if self.shared.sleep.notice() {
            self.thread.notify();
        }
    }

    /// Makes the monitor look now instead of at the next tick.
    ///
    /// Follows the monitor's rules, and may be called from a signal handler. Does not end the sleep
    /// of a monitor whose workers are all idle; that is what [`notice`](Self::notice) is for.
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

    /// Ends the thread and waits for it: afterwards nothing of the pool is called.
    ///
    /// Must not be called from one of the pool's own functions.
    ///
    /// See [`Monitor`] for an example.
    pub fn stop(&self) {
        self.shared.stop.store(true, SeqCst);
        self.thread.join();
    }
}

/// Aborts if the monitor panics: its absence would stay unnoticed until something hangs.
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
        // While the monitor slept no worker was busy.
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

/// Looks at every worker; returns how many are awake.
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
        // The count first: if the phase belongs to a later dispatch, the next look judges that
        // dispatch as new.
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
                pool.asleep(worker, dispatch); // without /proc the CPU clock decides
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

/// Sleeps until a worker wakes up; returns false at once if one was awake.
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
