//! Judges what the monitor sees. Pure: no clock, no signal, no thread.
//!
//! A worker publishes what it does and how many dispatches it has begun; the policy remembers since
//! when it has seen the same. Work that has run for [`GRACE`] gives way to urgent work, and after a
//! quantum to work that waits for its turn. A thread whose CPU clock stands still may be asleep in
//! the kernel: then there is nothing to interrupt, and its worker can be taken.

use std::time::Duration;

use crate::activity::Phase;
use crate::monitor::TICK;

/// Ticks without a worker awake until the monitor sleeps. Not one: to wake the monitor costs the
/// next worker a system call, and work often comes in bursts.
const PATIENCE: u32 = 4;
/// How often [`Policy::refresh`] is due while any worker is awake.
const REFRESH: Duration = Duration::from_secs(1);

/// How long running work is left alone although urgent work waits.
///
/// ```
/// use indent_sysmon::{GRACE, Judgement, Look, Phase, Policy, Waiting};
/// use std::time::Duration;
///
/// let mut policy = Policy::new(1);
/// let mut look = Look::at(GRACE, Phase::Fiber, 1);
/// look.waiting = Waiting::Urgent;
/// look.began = Some(Duration::ZERO);
/// assert_eq!(policy.judge(0, &look), Judgement::Interrupt);
/// ```
pub const GRACE: Duration = Duration::from_micros(200);
/// A worker that runs nothing and makes no progress for this long is stuck.
const STUCK: Duration = Duration::from_millis(2);
/// A thread that ran for less than this fraction of the time slept, or waited for a CPU.
const STILL: u32 = 8;

/// What the monitor remembers between two looks.
///
/// ```
/// use indent_sysmon::{Judgement, Look, Phase, Policy};
/// use std::time::Duration;
///
/// let mut policy = Policy::new(1);
/// let mut look = Look::at(Duration::from_millis(5), Phase::Fiber, 7);
/// assert_eq!(policy.judge(0, &look), Judgement::Busy);
/// look.now += Duration::from_millis(1);
/// assert_eq!(policy.judge(0, &look), Judgement::Overran);
/// look.dispatch = 8;
/// assert_eq!(policy.judge(0, &look), Judgement::Busy);
/// ```
#[derive(Debug)]
pub struct Policy {
    seen: Box<[Option<Seen>]>,
    /// Consecutive looks that found all workers asleep.
    quiet: u32,
    /// Time since the last refresh.
    since: Duration,
}

/// What a worker was doing at the last look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    phase: Phase,
    dispatch: u64,
    /// When it began to do so, as far as is known.
    since: Duration,
    /// The thread's CPU clock when it was first seen doing so.
    cpu_at_first: Option<Duration>,
    /// Time of the last look, and the thread's CPU clock then.
    at: Duration,
    cpu: Option<Duration>,
}

/// The kind of work that waits for a worker.
///
/// ```
/// use indent_sysmon::{Judgement, Look, Phase, Policy, Waiting};
/// use std::time::Duration;
///
/// let mut policy = Policy::new(1);
/// let mut look = Look::at(Duration::ZERO, Phase::Fiber, 1);
/// look.quantum = Duration::from_millis(10);
/// policy.judge(0, &look);
/// look.now = Duration::from_millis(2);
/// look.waiting = Waiting::ForTurn; // they can wait until the quantum is over
/// assert_eq!(policy.judge(0, &look), Judgement::Overran);
/// look.waiting = Waiting::Urgent;
/// assert_eq!(policy.judge(0, &look), Judgement::Interrupt);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// None: the running work may go on.
    None,
    /// Work that takes turns with the running work.
    ForTurn,
    /// Work that should not have to wait.
    Urgent,
}

/// What the monitor found in one look at one worker.
///
/// ```
/// use indent_sysmon::{Look, Phase, Waiting};
///
/// let look = Look::at(std::time::Duration::ZERO, Phase::Idle, 0);
/// assert_eq!((look.waiting, look.cpu), (Waiting::None, None));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The time, on any monotonic clock.
    pub now: Duration,
    /// What the worker does.
    pub phase: Phase,
    /// How many dispatches it has begun.
    pub dispatch: u64,
    /// When this dispatch began, if the worker has published that; never after `now`.
    pub began: Option<Duration>,
    /// How long its thread has run on a CPU, if that is known.
    pub cpu: Option<Duration>,
    /// What kind of work waits for it.
    pub waiting: Waiting,
    /// How long it may run while other work waits for its turn.
    pub quantum: Duration,
}

impl Look {
    /// A look at a worker for which no work waits.
    ///
    /// See [`Look`] for an example.
    pub fn at(now: Duration, phase: Phase, dispatch: u64) -> Self {
        Look {
            now,
            phase,
            dispatch,
            began: None,
            cpu: None,
            waiting: Waiting::None,
            quantum: Duration::MAX,
        }
    }
}

/// The judgement on one worker.
///
/// ```
/// use indent_sysmon::{Judgement, Look, Phase, Policy};
/// use std::time::Duration;
///
/// let mut policy = Policy::new(1);
/// let at = |phase| Look::at(Duration::ZERO, phase, 7);
/// assert_eq!(policy.judge(0, &at(Phase::Idle)), Judgement::Idle);
/// assert_eq!(policy.judge(0, &at(Phase::Scheduling)), Judgement::Busy);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It sleeps.
    Idle,
    /// It is awake, and makes progress as far as is known.
    Busy,
    /// It has been in one dispatch for more than a tick.
    Overran,
    /// It has run for long enough, and other work waits.
    Interrupt,
    /// It is in one dispatch, and its thread has hardly run since the last look.
    ///
    /// The caller should query the kernel whether the thread sleeps. If not, see [`Policy::runs`].
    Still,
    /// It makes no progress although it runs nothing: it waits for something, or for a CPU.
    Stuck,
}

/// What the monitor does after a look at all workers.
///
/// ```
/// use indent_sysmon::{Policy, Rest};
///
/// assert_eq!(Policy::new(1).rest(true), Rest::Tick);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again after a tick.
    Tick,
    /// Sleep: all workers have been asleep for some time.
    Sleep,
}

impl Policy {
    /// Creates the policy of a pool of at most `workers` workers.
    ///
    /// See [`Policy`] for an example.
    pub fn new(workers: usize) -> Self {
        Policy {
            seen: vec![None; workers].into(),
            quiet: 0,
            since: REFRESH,
        }
    }

    /// Judges one worker as it is now.
    ///
    /// See [`Policy`] for an example.
    pub fn judge(&mut self, worker: usize, look: &Look) -> Judgement {
        let before = self.seen[worker]
            .filter(|seen| seen.phase == look.phase && seen.dispatch == look.dispatch);
        let since = before.map_or(look.now, |seen| seen.since);
        let cpu_at_first = before.map_or(look.cpu, |seen| seen.cpu_at_first);
        self.seen[worker] = (look.phase != Phase::Idle).then_some(Seen {
            phase: look.phase,
            dispatch: look.dispatch,
            since: look
                .began
                .filter(|_| look.phase == Phase::Fiber)
                .unwrap_or(since),
            cpu_at_first,
            at: look.now,
            cpu: look.cpu,
        });
        match look.phase {
            Phase::Idle => Judgement::Idle,
            Phase::Fiber if before.is_some_and(|seen| stood_still(&seen, look)) => Judgement::Still,
            Phase::Fiber => self.runs(worker, look),
            Phase::Scheduling if look.now.saturating_sub(since) >= STUCK => Judgement::Stuck,
            Phase::Scheduling => Judgement::Busy,
        }
    }

    /// Judges a worker whose thread is known to run, or to wait for a CPU.
    ///
    /// ```
    /// use indent_sysmon::{Judgement, Look, Phase, Policy};
    /// use std::time::Duration;
    ///
    /// let mut policy = Policy::new(1);
    /// let mut look = Look::at(Duration::ZERO, Phase::Fiber, 1);
    /// look.cpu = Some(Duration::ZERO);
    /// policy.judge(0, &look);
    /// look.now = Duration::from_millis(1);
    /// assert_eq!(policy.judge(0, &look), Judgement::Still);
    /// assert_eq!(policy.runs(0, &look), Judgement::Overran);
    /// ```
    pub fn runs(&self, worker: usize, look: &Look) -> Judgement {
        let Some(seen) = self.seen[worker] else {
            return Judgement::Idle;
        };
        let age = look.now.saturating_sub(seen.since);
        match look.waiting {
            Waiting::Urgent if age >= GRACE && has_computed(&seen, look, GRACE) => {
                Judgement::Interrupt
            }
            Waiting::ForTurn if age >= look.quantum && has_computed(&seen, look, look.quantum) => {
                Judgement::Interrupt
            }
            _ if age >= TICK => Judgement::Overran,
            _ => Judgement::Busy,
        }
    }

    /// Decides what to do after a look at all workers.
    ///
    /// ```
    /// use indent_sysmon::{Policy, Rest};
    ///
    /// let mut policy = Policy::new(1);
    /// let quiet = (0..).find(|_| policy.rest(false) == Rest::Sleep).unwrap();
    /// assert!(quiet > 1, "a short pause is no reason to sleep");
    /// ```
    pub fn rest(&mut self, any_awake: bool) -> Rest {
        if any_awake {
            self.quiet = 0;
            return Rest::Tick;
        }
        self.quiet += 1;
        if self.quiet < PATIENCE {
            return Rest::Tick;
        }
        self.quiet = 0;
        Rest::Sleep
    }

    /// Counts time passed, awake or asleep; returns true if a refresh is due.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let mut policy = indent_sysmon::Policy::new(1);
    /// assert!(policy.refresh(Duration::ZERO), "no look yet");
    /// assert!(!policy.refresh(Duration::from_millis(1)));
    /// assert!(policy.refresh(Duration::from_secs(1)));
    /// ```
    pub fn refresh(&mut self, passed: Duration) -> bool {
        self.since = self.since.saturating_add(passed);
        if self.since < REFRESH {
            return false;
        }
        self.since = Duration::ZERO;
        true
    }
}

/// Whether the thread has computed for most of `time` since it was first seen in this dispatch, as
/// far as is known. A thread that woke only for a moment is soon asleep again, and a signal would
/// end that sleep.
fn has_computed(seen: &Seen, look: &Look, time: Duration) -> bool {
    match (seen.cpu_at_first, look.cpu) {
        (Some(first), Some(now)) if look.began.is_none() => {
            now.saturating_sub(first) >= time / 4 * 3
        }
        _ => true,
    }
}

/// Whether the thread has hardly run since the last look.
fn stood_still(seen: &Seen, look: &Look) -> bool {
    let (Some(before), Some(now)) = (seen.cpu, look.cpu) else {
        return false;
    };
    now.saturating_sub(before) < look.now.saturating_sub(seen.at) / STILL
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn only_a_dispatch_seen_for_a_tick_overran() {
        use Judgement::*;
        let table = [
            (Phase::Fiber, 1, Busy),
            (Phase::Fiber, 1, Overran),
            (Phase::Fiber, 1, Overran),
            (Phase::Fiber, 2, Busy),
            (Phase::Scheduling, 2, Busy),
            (Phase::Fiber, 2, Busy), // cannot be the same one again, but we did not see it
            (Phase::Idle, 2, Idle),
            (Phase::Scheduling, 2, Busy),
            (Phase::Scheduling, 2, Busy),
            (Phase::Scheduling, 2, Stuck),
            (Phase::Fiber, 3, Busy),
        ];
        let mut policy = Policy::new(2);
        for (step, (phase, dispatch, expected)) in table.into_iter().enumerate() {
            let look = Look::at(MS * step as u32, phase, dispatch);
            assert_eq!(policy.judge(1, &look), expected, "step {step}");
        }
    }

    #[test]
    fn who_is_interrupted_depends_on_who_waits_and_for_how_long_it_ran() {
        use Judgement::*;
        use Waiting::{ForTurn, Urgent};
        let us = Duration::from_micros;
        // Time since the dispatch was first seen, who waits, whether the worker said when it began.
        let table = [
            (us(0), Urgent, None, Busy),
            (us(100), Urgent, None, Busy),
            (us(200), Urgent, None, Interrupt),
            (us(1000), ForTurn, None, Overran),
            (us(9999), ForTurn, None, Overran),
            (us(10_000), ForTurn, None, Interrupt),
            (us(50_000), Waiting::None, None, Overran),
            (us(300), Urgent, Some(us(200)), Busy),
            (us(400), Urgent, Some(us(200)), Interrupt),
            (us(300), Urgent, Some(us(0)), Interrupt),
        ];
        for (at, waiting, began, expected) in table {
            let mut policy = Policy::new(1);
            let mut look = Look::at(Duration::ZERO, Phase::Fiber, 1);
            look.quantum = MS * 10;
            policy.judge(0, &look);
            let look = Look {
                now: at,
                waiting,
                began,
                ..look
            };
            assert_eq!(
                policy.judge(0, &look),
                expected,
                "{at:?} {waiting:?} {began:?}"
            );
        }
    }

    #[test]
    fn a_dispatch_that_says_when_it_began_may_be_old_at_first_sight() {
        let mut policy = Policy::new(1);
        let mut look = Look::at(MS, Phase::Fiber, 1);
        look.began = Some(Duration::ZERO);
        look.waiting = Waiting::Urgent;
        assert_eq!(policy.judge(0, &look), Judgement::Interrupt);
    }

    #[test]
    fn a_thread_that_hardly_runs_is_worth_a_question() {
        let mut policy = Policy::new(1);
        let mut look = Look::at(Duration::ZERO, Phase::Fiber, 1);
        // How much of each millisecond it ran.
        let table = [
            (0, Judgement::Busy),
            (900, Judgement::Overran),
            (10, Judgement::Still),
        ];
        let mut cpu = Duration::from_secs(7);
        for (ran, expected) in table {
            cpu += Duration::from_micros(ran);
            look.cpu = Some(cpu);
            assert_eq!(policy.judge(0, &look), expected, "{ran}");
            look.now += MS;
        }
        look.cpu = None;
        assert_eq!(
            policy.judge(0, &look),
            Judgement::Overran,
            "no clock: as if it ran"
        );
    }

    #[test]
    fn a_worker_that_wakes_up_makes_the_monitor_patient_again() {
        let mut policy = Policy::new(1);
        for _ in 1..PATIENCE {
            assert_eq!(policy.rest(false), Rest::Tick);
        }
        assert_eq!(policy.rest(true), Rest::Tick);
        for _ in 1..PATIENCE {
            assert_eq!(policy.rest(false), Rest::Tick);
        }
        assert_eq!(policy.rest(false), Rest::Sleep);
    }

    #[test]
    fn a_refresh_is_due_at_first_and_then_once_a_period() {
        let mut policy = Policy::new(1);
        let tick = Duration::from_millis(1);
        assert!(policy.refresh(tick), "at the first look");
        let due = (0..3000).filter(|_| policy.refresh(tick)).count();
        assert_eq!(due, 3);
        assert!(policy.refresh(Duration::from_secs(3600)), "after a sleep");
        assert!(!policy.refresh(tick));
    }
}
