//! Latencies of very many operations, in little memory.
//!
//! A *histogram* has buckets as wide as a sixteenth of the power of two they lie in, so that a quantile
//! is right to 6 %, whatever its magnitude, and to record is to add one to a number.

use std::fmt;
use std::time::Duration;

/// Buckets of each power of two, as a power of two.
const FINE: u32 = 4;
/// All buckets: the numbers below the first wide one have each their own.
const BUCKETS: usize = (64 - FINE as usize + 1) << FINE;

/// How often an operation took how long.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: vec![0; BUCKETS].into(),
            count: 0,
            max: 0,
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |share| self.quantile(share);
        write!(f, "{} latencies: {:?} {:?}", self.count, of(0.5), of(1.0))
    }
}

/// The bucket that so many nanoseconds belong to.
fn bucket(ns: u64) -> usize {
    let wide = (u64::BITS - ns.leading_zeros()).saturating_sub(FINE + 1);
    ((wide as usize) << FINE) + (ns >> wide) as usize
}

/// The most nanoseconds that belong to a bucket.
fn most(bucket: usize) -> u64 {
    let wide = (bucket >> FINE).saturating_sub(1);
    let first = (bucket - (wide << FINE)) as u64;
    (first << wide) + ((1 << wide) - 1)
}

impl Histogram {
    /// One more operation.
    pub fn record(&mut self, latency: Duration) {
        let ns = latency.as_nanos() as u64;
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// All those of another one.
    pub fn add(&mut self, other: &Self) {
        for (own, its) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += its;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many operations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What a share of all operations did not exceed; zero if there were none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut left = rank;
        let found = self.buckets.iter().position(|&count| {
            let here = count >= left;
            left = left.saturating_sub(count);
            here
        });
        Duration::from_nanos(found.map_or(0, most).min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for (index, next) in (0..BUCKETS - 1).zip(1..) {
            let last = most(index);
            assert_eq!(bucket(last), index, "{last}");
            assert_eq!(bucket(last + 1), next, "{last}");
        }
        assert_eq!(most(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.99), Duration::ZERO);
        (1..=100_000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let mut all = Histogram::default();
        all.add(&histogram);
        assert_eq!(all.count(), 100_000);
        for (share, ms) in [(0.5, 50.0), (0.99, 99.0)] {
            let off = all.quantile(share).as_secs_f64() * 1e3 / ms;
            assert!((1.0..1.0625).contains(&off), "{share}: {off}");
        }
        assert_eq!(all.quantile(1.0), Duration::from_millis(100));
    }
}
