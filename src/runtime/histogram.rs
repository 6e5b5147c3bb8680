//! The public view of durations counted by `sched/workers/latency.rs`.

use std::fmt;
use std::time::Duration;

use crate::sched::Shared;
use crate::sched::workers::latency::{self, BUCKETS};

/// A histogram of durations.
///
/// Buckets cover one microsecond to 17 seconds, each at most a quarter wider than its start; the
/// longest duration is kept exactly.
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.block_on(|| (0..1_000).for_each(|_| indent::spawn(|| ()).join().unwrap()));
/// let waits = rt.metrics().wake_to_run;
/// assert!(waits.count() >= 1, "one wake in 64 is measured");
/// assert!(waits.percentile(50.0) <= waits.percentile(99.0));
/// assert!(waits.percentile(99.0) <= waits.max());
/// println!("{waits:?}"); // Histogram { count: 15, p50: 1.024µs, p99: 4.2µs, p99.9: …, max: … }
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    longest: u64,
}

impl Histogram {
    /// The sum over all workers of a runtime.
    pub(super) fn wake_to_run(shared: &Shared) -> Self {
        let mut counts = Box::new([0; BUCKETS]);
        let recorders = shared.workers.iter().map(|worker| &worker.wake_to_run);
        let longest = recorders.map(|recorder| recorder.add_to(&mut counts)).max();
        Histogram {
            counts,
            longest: longest.unwrap_or(0),
        }
    }

    /// Number of durations counted.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().build()?;
    /// assert_eq!(rt.metrics().wake_to_run.count(), 0); // no fiber has waited
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration that `percent` percent of all do not exceed.
    ///
    /// The result is at most a quarter too large, and never larger than the longest. It is zero if
    /// nothing was counted.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new().build()?;
    /// let waits = rt.metrics().wake_to_run;
    /// assert_eq!(waits.percentile(99.9), Duration::ZERO); // there were none
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn percentile(&self, percent: f64) -> Duration {
        let count = self.count();
        let rank = (percent / 100.0 * count as f64).ceil() as u64; // saturates, and NaN is zero
        let rank = rank.clamp(count.min(1), count);
        let mut seen = 0;
        let reaches = |counted: &u64| {
            seen += counted;
            seen >= rank
        };
        let bucket = self.counts.iter().position(reaches);
        let end = bucket.and_then(latency::end);
        Duration::from_nanos(end.map_or(self.longest, |end| end.min(self.longest)))
    }

    /// The longest duration; zero if nothing was counted.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().build()?;
    /// let waits = rt.metrics().wake_to_run;
    /// assert_eq!(waits.max(), waits.percentile(100.0));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.longest)
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("p99.9", &self.percentile(99.9))
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: impl IntoIterator<Item = u64>) -> Histogram {
        let (mut counts, mut longest) = (Box::new([0; BUCKETS]), 0);
        for nanos in lengths {
            counts[latency::bucket(nanos)] += 1;
            longest = longest.max(nanos);
        }
        Histogram { counts, longest }
    }

    #[test]
    fn a_percentile_is_the_end_of_the_bucket_it_falls_into() {
        let waits = of((1..=1_000).map(|i| i * 10_000));
        assert_eq!(waits.count(), 1_000);
        for percent in [1.0, 10.0, 50.0, 90.0, 99.0, 99.9] {
            let exact = percent * 100_000.0;
            let found = waits.percentile(percent).as_nanos() as f64;
            let fits = exact..=exact * 1.25;
            assert!(
                fits.contains(&found),
                "{percent} %: {found}, exactly {exact}"
            );
        }
        assert_eq!(waits.percentile(100.0), Duration::from_millis(10));
        assert_eq!(waits.max(), Duration::from_millis(10));
    }

    #[test]
    fn percentiles_beyond_the_ends_are_the_ends() {
        let waits = of([3_000, 5_000]);
        let [low, high] = [0.0, 100.0].map(|percent| waits.percentile(percent));
        assert_eq!((low.as_nanos(), high.as_nanos()), (3_072, 5_000));
        for percent in [-1.0, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(waits.percentile(percent), low, "{percent}");
        }
        for percent in [101.0, f64::INFINITY] {
            assert_eq!(waits.percentile(percent), high, "{percent}");
        }
    }

    #[test]
    fn a_length_beyond_all_buckets_is_still_the_longest() {
        let minute = 60_000_000_000;
        let waits = of([1, minute]);
        assert_eq!(waits.percentile(99.0), Duration::from_secs(60));
        assert_eq!(waits.percentile(50.0), Duration::from_nanos(1_024));
    }

    #[test]
    fn of_nothing_everything_is_zero() {
        let waits = of([]);
        assert_eq!(waits.count(), 0);
        assert_eq!((waits.percentile(99.0), waits.max()), Default::default());
    }
}
