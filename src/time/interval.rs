//! Periodic ticks.

use crate::time::{Duration, Instant, sleep_until};

/// Creates an interval that ticks now, and then once every `period`.
///
/// Corresponds to `tokio::time::interval`.
///
/// ```
/// use indent::time::{self, Duration, Instant};
///
/// let start = Instant::now();
/// let mut ticks = time::interval(Duration::from_millis(3));
/// for _ in 0..4 {
///     ticks.tick();
/// }
/// assert!(start.elapsed() >= Duration::from_millis(9), "the first one comes at once");
/// ```
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Creates an interval that ticks at `start`, and then once every `period`.
///
/// ```
/// use indent::time::{self, Duration, Instant};
///
/// let start = Instant::now() + Duration::from_millis(3);
/// let mut ticks = time::interval_at(start, Duration::from_millis(1));
/// assert_eq!(ticks.tick(), start);
/// ```
///
/// # Panics
/// If `period` is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(
        !period.is_zero(),
        "an interval with a period of zero would tick without end; use at least a nanosecond"
    );
    Interval {
        next: Some(start),
        period,
        missed: MissedTickBehavior::default(),
    }
}

/// What an [`Interval`] does with ticks that were not waited for in time.
///
/// With a period of 10 ms, and a call of [`tick`](Interval::tick) that comes 25 ms late for the
/// tick at 10:
///
/// | behaviour | ticks |
/// |---|---|
/// | `Burst` | 35 (for 10), 35 (for 20), 35 (for 30), 40, 50, … |
/// | `Delay` | 35 (for 10), 45, 55, … |
/// | `Skip` | 35 (for 10), 40, 50, … |
///
/// ```
/// use indent::time::{self, Duration, Instant, MissedTickBehavior};
///
/// let period = Duration::from_millis(10);
/// let late = Instant::now() - 5 * period / 2; // the first tick was due then
/// let mut ticks = time::interval_at(late, period);
/// ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
/// assert_eq!(ticks.tick(), late);
/// assert!(ticks.tick() >= late + 3 * period, "two are skipped");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTickBehavior {
    /// They are returned at once, one per call, until none is left.
    #[default]
    Burst,
    /// The next tick comes a period after the late one was returned; all later ticks shift.
    Delay,
    /// They are skipped; later ticks keep their times.
    Skip,
}

/// Periodic ticks; see [`interval`].
///
/// ```
/// use indent::time::{self, Duration, Instant, MissedTickBehavior};
///
/// let mut ticks = time::interval(Duration::from_millis(2));
/// ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
/// let first = ticks.tick();
/// time::sleep(Duration::from_millis(5));
/// let late = ticks.tick();
/// assert_eq!(late - first, Duration::from_millis(2), "it returns the time it was due at");
/// assert!(ticks.tick() - first >= Duration::from_millis(6), "the tick at 4 is skipped");
/// ```
#[derive(Debug)]
pub struct Interval {
    /// When the next tick is due; `None` if `Instant` cannot express it.
    next: Option<Instant>,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Blocks until the next tick, and returns the time it was due at.
    ///
    /// If the caller is cancelled while it waits, the tick is not consumed.
    ///
    /// ```
    /// use indent::time::{self, Duration, Instant};
    ///
    /// let mut ticks = time::interval(Duration::from_millis(2));
    /// let first = ticks.tick();
    /// let second = ticks.tick();
    /// assert_eq!(second - first, ticks.period());
    /// assert!(Instant::now() >= second);
    /// ```
    pub fn tick(&mut self) -> Instant {
        let due = loop {
            match self.next {
                Some(next) => {
                    sleep_until(next);
                    break next;
                }
                None => crate::time::sleep(Duration::MAX),
            }
        };
        self.next = self.after(due, Instant::now());
        due
    }

    /// The tick after the one that was due at `due` and returned at `now`.
    fn after(&self, due: Instant, now: Instant) -> Option<Instant> {
        let next = due.checked_add(self.period)?;
        if now < next {
            return Some(next);
        }
        match self.missed {
            MissedTickBehavior::Burst => Some(next),
            MissedTickBehavior::Delay => now.checked_add(self.period),
            MissedTickBehavior::Skip => {
                let into = (now - due).as_nanos() % self.period.as_nanos();
                let left = self.period.as_nanos() - into;
                // No longer than the period, which is a `Duration`.
                let seconds = u64::try_from(left / 1_000_000_000).ok()?;
                now.checked_add(Duration::new(seconds, (left % 1_000_000_000) as u32))
            }
        }
    }

    /// Restarts the interval: the next tick comes a period from now.
    ///
    /// ```
    /// use indent::time::{self, Duration, Instant};
    ///
    /// let mut ticks = time::interval(Duration::from_millis(4));
    /// ticks.reset();
    /// let start = Instant::now();
    /// assert!(ticks.tick() > start);
    /// ```
    pub fn reset(&mut self) {
        self.next = Instant::now().checked_add(self.period);
    }

    /// Returns the time between two ticks.
    ///
    /// ```
    /// use indent::time::{self, Duration};
    ///
    /// let second = Duration::from_secs(1);
    /// assert_eq!(time::interval(second).period(), second);
    /// ```
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Returns what is done with missed ticks.
    ///
    /// ```
    /// use indent::time::{self, Duration, MissedTickBehavior};
    ///
    /// let ticks = time::interval(Duration::from_secs(1));
    /// assert_eq!(ticks.missed_tick_behavior(), MissedTickBehavior::Burst);
    /// ```
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Sets what is done with missed ticks.
    ///
    /// ```
    /// use indent::time::{self, Duration, MissedTickBehavior};
    ///
    /// let mut ticks = time::interval(Duration::from_secs(1));
    /// ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    /// assert_eq!(ticks.missed_tick_behavior(), MissedTickBehavior::Delay);
    /// ```
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// When the ticks are due, if each is returned at the time given (in ms after the start).
    fn due(missed: MissedTickBehavior, taken: &[u32]) -> Vec<u128> {
        let start = Instant::now();
        let mut ticks = interval_at(start, 10 * MS);
        ticks.set_missed_tick_behavior(missed);
        let mut seen = Vec::new();
        for &at in taken {
            let next = ticks.next.unwrap();
            seen.push((next - start).as_millis());
            ticks.next = ticks.after(next, (start + at * MS).max(next));
        }
        seen
    }

    #[test]
    fn missed_ticks_come_at_once_are_delayed_or_skipped() {
        let late = [0, 35, 35, 35, 40, 50];
        assert_eq!(
            due(MissedTickBehavior::Burst, &late),
            [0, 10, 20, 30, 40, 50]
        );
        assert_eq!(due(MissedTickBehavior::Delay, &late[..4]), [0, 10, 45, 55]);
        assert_eq!(due(MissedTickBehavior::Skip, &late[..4]), [0, 10, 40, 50]);
    }

    #[test]
    fn a_caller_that_is_in_time_sees_no_difference() {
        use MissedTickBehavior::*;
        for missed in [Burst, Delay, Skip] {
            assert_eq!(due(missed, &[0, 11, 29, 30]), [0, 10, 20, 30], "{missed:?}");
        }
    }
}
