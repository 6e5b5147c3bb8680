//! What a run of `load` has found.

use std::fmt;
use std::time::Duration;

/// What a run has found, in microseconds; as JSON by `Display`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Answers that were right.
    pub requests: u64,
    /// The time they took in all.
    pub seconds: f64,
    /// Half of all questions were answered after so long, or sooner.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1,000.
    pub p999_us: f64,
    /// All.
    pub max_us: f64,
    /// Connections that failed, or were answered wrongly, and questions that were due on those.
    pub errors: u64,
    /// Questions that were not answered.
    pub unanswered: u64,
}

impl Summary {
    /// From the latencies, in tenths of microseconds, of all questions; of the unanswered, too.
    pub(super) fn new(
        mut latencies: Vec<u32>,
        took: Duration,
        errors: u64,
        unanswered: u64,
    ) -> Self {
        latencies.sort_unstable();
        let quantile = |share: f64| {
            let last = latencies.len().checked_sub(1)?;
            Some(f64::from(latencies[(last as f64 * share) as usize]) / 10.0)
        };
        let at = |share| quantile(share).unwrap_or(0.0);
        Summary {
            requests: (latencies.len() as u64).saturating_sub(unanswered),
            seconds: took.as_secs_f64(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
            errors,
            unanswered,
        }
    }

    /// Answers in a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{\"requests\":{},\"seconds\":{:.3},\"per_s\":{:.0},\"p50_us\":{:.1},\"p99_us\":{:.1},\
             \"p999_us\":{:.1},\"max_us\":{:.1},\"errors\":{},\"unanswered\":{}}}",
            self.requests,
            self.seconds,
            self.per_second(),
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.errors,
            self.unanswered
        )
    }
}
