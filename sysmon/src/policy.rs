//! What the monitor thinks of what it sees. Pure: no clock, no signal, no thread.

use std::time::Duration;

use crate::slot::Phase;

/// Ticks without a worker awake until the monitor sleeps. Not at once: to ring it costs the next
/// worker that wakes a system call, and work often comes in bursts.
const PATIENCE: u32 = 4;
/// How often the number of CPUs is asked for while somebody runs.
const REFRESH: Duration = Duration::from_secs(1);

/// What the monitor remembers between two looks.
///
/// ```
/// use indent_sysmon::{Judgement, Phase, Policy};
///
/// let mut policy = Policy::new(1);
/// assert_eq!(policy.judge(0, Phase::Fiber, 7), Judgement::Busy);
/// assert_eq!(policy.judge(0, Phase::Fiber, 7), Judgement::Overran);
/// assert_eq!(policy.judge(0, Phase::Fiber, 8), Judgement::Busy);
/// ```
#[derive(Debug)]
pub struct Policy {
    /// The dispatch each worker was in at the last look, if it was in one.
    seen: Box<[Option<u64>]>,
    /// Looks in a row that found everybody asleep.
    quiet: u32,
    /// Since the last refresh.
    since: Duration,
}

/// What a look at one worker says.
///
/// ```
/// use indent_sysmon::{Judgement, Phase, Policy};
///
/// let mut policy = Policy::new(1);
/// assert_eq!(policy.judge(0, Phase::Idle, 7), Judgement::Idle);
/// assert_eq!(policy.judge(0, Phase::Scheduling, 7), Judgement::Busy);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It sleeps.
    Idle,
    /// It is awake, and has begun something new since the last look.
    Busy,
    /// It has been in one dispatch since the last look at least.
    Overran,
}

/// What to do after a look at all workers.
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
    /// Everybody has been asleep for some time.
    Sleep,
}

impl Policy {
    /// For a pool of at most so many workers.
    pub fn new(workers: usize) -> Self {
        Policy {
            seen: vec![None; workers].into(),
            quiet: 0,
            since: REFRESH,
        }
    }

    /// One worker, as it is now.
    pub fn judge(&mut self, worker: usize, phase: Phase, dispatch: u64) -> Judgement {
        let now = (phase == Phase::Fiber).then_some(dispatch);
        let before = std::mem::replace(&mut self.seen[worker], now);
        match phase {
            Phase::Idle => Judgement::Idle,
            Phase::Fiber if before == now => Judgement::Overran,
            _ => Judgement::Busy,
        }
    }

    /// After a look at all of them.
    ///
    /// ```
    /// use indent_sysmon::{Policy, Rest};
    ///
    /// let mut policy = Policy::new(1);
    /// let quiet = (0..).find(|_| policy.rest(false) == Rest::Sleep).unwrap();
    /// assert!(quiet > 1, "a short pause is no reason to sleep");
    /// ```
    pub fn rest(&mut self, anybody_awake: bool) -> Rest {
        if anybody_awake {
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

    /// Time has passed, awake or asleep: true if what changes rarely should be looked at again.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let mut policy = indent_sysmon::Policy::new(1);
    /// assert!(policy.refresh(Duration::ZERO), "nobody has looked yet");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dispatch_seen_twice_overran() {
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
            (Phase::Fiber, 3, Busy),
        ];
        let mut policy = Policy::new(2);
        for (step, (phase, dispatch, expected)) in table.into_iter().enumerate() {
            assert_eq!(policy.judge(1, phase, dispatch), expected, "step {step}");
        }
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
