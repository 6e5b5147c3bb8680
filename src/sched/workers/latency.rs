//! How long woken fibers wait until they run: sampled, and counted by length.
//!
//! The thread that makes a parked fiber runnable leaves the time in the fiber's record, once in
//! [`EVERY`] parks. The thread that dispatches the fiber takes the time out, and counts the
//! difference with the worker it holds.
//!
//! The number of the park selects the sample, so there is no counter to keep. The address of the
//! record shifts it, so that fibers which park in step are not sampled in step. Without a sample, a
//! wake costs a load and a branch, and so does a dispatch; no clock is read.
//!
//! The time is a [`Stamp`]: as many bits as the record has left. It wraps around after some
//! minutes, so a wait that long counts as a shorter one.
//!
//! Lengths are counted in *buckets*: four for each power of two between [`FIRST`] and [`LAST`], and
//! one at each end for what is beyond. A bucket's upper end is at most a quarter above what is in
//! it.
//!
//! Two kinds of waits are not sampled: a fiber whose wake came before it had switched out, because
//! it was not parked; and a fiber that waits inside its own frames (S3), because no worker
//! dispatches it.
//!
//! Rejected: the time in every wake. Reading the clock costs as much as the rest of a switch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::fiber::{FiberRef, Record};
use crate::sched::Shared;
use crate::sched::block::timers::Clock;
use crate::sched::workers::context::Entered;
use crate::sched::workers::worker::{Count, Worker};
use crate::util::loom::atomic;

/// One park in this many is sampled; a power of two.
pub(crate) const EVERY: usize = 64;

/// The powers of two of nanoseconds between which lengths differ: a microsecond, and 17 seconds.
const FIRST: u32 = 10;
const LAST: u32 = 34;
/// Each power of two has two to the power of this many buckets.
const SPLIT: u32 = 2;
/// Buckets, those at the ends included.
pub(crate) const BUCKETS: usize = (((LAST - FIRST) << SPLIT) + 2) as usize;

/// The bucket of a length in nanoseconds.
pub(crate) fn bucket(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < FIRST {
        return 0;
    }
    if power >= LAST {
        return BUCKETS - 1;
    }
    // Halved so often that the highest bit and the bits that distinguish buckets are left.
    let steps = nanos >> (power - SPLIT);
    (((power - FIRST) << SPLIT) as u64 + (steps - (1 << SPLIT)) + 1) as usize
}

/// The upper end of a bucket in nanoseconds; `None` for the last, which has no end.
pub(crate) fn end(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let (power, step) = (bucket as u32 >> SPLIT, bucket as u64 % (1 << SPLIT));
    Some(((1 << SPLIT) + step) << (FIRST - SPLIT + power))
}

/// Counts lengths. Written by the holder of a worker, read by any thread.
pub(crate) struct Recorder {
    buckets: [Count; BUCKETS],
    longest: AtomicU64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Recorder {
            buckets: std::array::from_fn(|_| Count::default()),
            longest: AtomicU64::new(0),
        }
    }

    /// Counts a length in nanoseconds. There is one writer at a time.
    fn record(&self, nanos: u64) {
        if nanos > self.longest.load(Relaxed) {
            self.longest.store(nanos, Relaxed); // first, so never less than a bucket says
        }
        self.buckets[bucket(nanos)].add(1);
    }

    /// Adds the counts to `sums`, bucket by bucket, and returns the longest length.
    pub(crate) fn add_to(&self, sums: &mut [u64; BUCKETS]) -> u64 {
        for (sum, count) in sums.iter_mut().zip(&self.buckets) {
            *sum += count.get();
        }
        self.longest.load(Relaxed)
    }
}

/// A point in time, as the record of a fiber has it; zero is none.
struct Stamp;

impl Stamp {
    /// Nanoseconds in a step, as a power of two.
    const STEP: u32 = 6;

    fn now(clock: &Clock) -> u32 {
        ((clock.nanos() >> Self::STEP) as u32).max(1)
    }

    /// Nanoseconds from one stamp to a later one.
    fn between(earlier: u32, later: u32) -> u64 {
        u64::from(later.wrapping_sub(earlier)) << Self::STEP
    }
}

/// Whether this park of the fiber is one of those that are sampled.
#[inline]
fn is_chosen(fiber: FiberRef) -> bool {
    let place = fiber.pointer().addr().get() / size_of::<Record>();
    (place.wrapping_add(fiber.state.parks() as usize)).is_multiple_of(EVERY)
}

/// Samples a fiber that the caller has just made runnable (I1) and that is in no queue yet.
#[inline]
pub(crate) fn woken(fiber: FiberRef, clock: &Clock) {
    if is_chosen(fiber) {
        note(fiber, clock);
    }
}

#[cold]
fn note(fiber: FiberRef, clock: &Clock) {
    let now = Stamp::now(clock);
    fiber.woken_at.store(now, atomic::Ordering::Relaxed); // queues publish it
}

/// Counts the sample of a fiber that is about to run, if there is one.
#[inline]
pub(crate) fn runs(token: &Entered, fiber: FiberRef) {
    let woken_at = fiber.woken_at.load(atomic::Ordering::Relaxed);
    if woken_at != 0 {
        count(token.worker(), token.carrier().shared(), fiber, woken_at);
    }
}

/// Counts a sample. It does not take the token, which the caller would then have to keep in memory
/// at every dispatch.
#[cold]
fn count(worker: &Worker, shared: &Shared, fiber: FiberRef, woken_at: u32) {
    fiber.woken_at.store(0, atomic::Ordering::Relaxed);
    let waited = Stamp::between(woken_at, Stamp::now(&shared.clock));
    worker.wake_to_run.record(waited);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_length_lies_between_the_ends_of_its_bucket(nanos in any::<u64>(), bits in 0..64_u32) {
            let nanos = nanos >> bits; // short ones as often as long ones
            let bucket = bucket(nanos);
            prop_assert!(end(bucket).is_none_or(|end| nanos < end));
            prop_assert!(bucket == 0 || end(bucket - 1).is_some_and(|start| start <= nanos));
        }
    }

    #[test]
    fn buckets_follow_each_other_by_a_quarter_at_most() {
        assert_eq!(end(0), Some(1 << FIRST));
        assert_eq!(end(BUCKETS - 2), Some(1 << LAST));
        for bucket in 1..BUCKETS - 1 {
            let (start, end) = (end(bucket - 1).unwrap(), end(bucket).unwrap());
            assert!(start < end && end - start <= start / 4, "{start} to {end}");
        }
    }

    #[test]
    fn the_longest_is_kept_as_it_is() {
        let recorder = Recorder::new();
        for nanos in [5_000, 7_001, 6_000] {
            recorder.record(nanos);
        }
        let mut sums = [0; BUCKETS];
        assert_eq!(recorder.add_to(&mut sums), 7_001);
        assert_eq!(recorder.add_to(&mut sums), 7_001);
        assert_eq!(sums.iter().sum::<u64>(), 6);
    }

    #[test]
    fn stamps_come_round() {
        assert_eq!(Stamp::between(u32::MAX, 1), 2 << Stamp::STEP);
        assert_eq!(Stamp::between(7, 7), 0);
    }
}
