//! How two fibers begin on two workers at the same time, whatever the runtime.
//!
//! Both *arrive* and spin, without giving their workers away, until they have answered each other some
//! hundred times within a moment. Two that share a worker cannot do that: neither a runtime that
//! preempts nor the kernel lets them take turns that fast. A hundred turns that took longer, because
//! somebody else had a CPU meanwhile, do not count, and are made once more.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Turns of one attempt.
const TURNS: u64 = 100;

/// More than they take if both run all the time, even on two sockets; and far less than as many slices
/// of any scheduler.
const MOMENT: Duration = Duration::from_millis(1);

/// Which of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The one that looks at the clock.
    First,
    /// The one that follows it.
    Second,
}

/// What the two share.
#[derive(Debug, Default)]
pub struct Meeting {
    /// Turns of the first, or [`OVER`]. Written by the first only.
    asked: Line,
    /// The turn of the first that the second has seen last. Written by the second only.
    answered: Line,
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// In place of a turn: they have met.
const OVER: u64 = u64::MAX;

impl Meeting {
    /// Spins until both run at the same time. Each calls it once.
    pub fn arrive(&self, side: Side) {
        match side {
            Side::First => self.ask(),
            Side::Second => self.answer(),
        }
    }

    fn ask(&self) {
        let mut turn = 0;
        loop {
            let start = Instant::now();
            for _ in 0..TURNS {
                turn += 1;
                self.asked.0.store(turn, Ordering::Release);
                while self.answered.0.load(Ordering::Acquire) < turn {
                    hint::spin_loop();
                }
            }
            if start.elapsed() < MOMENT {
                break;
            }
        }
        self.asked.0.store(OVER, Ordering::Release);
    }

    fn answer(&self) {
        let mut seen = 0;
        while seen != OVER {
            let turn = self.asked.0.load(Ordering::Acquire);
            if turn == seen {
                hint::spin_loop();
            } else {
                self.answered.0.store(turn, Ordering::Release);
                seen = turn;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn two_threads_meet() {
        let meeting = Meeting::default();
        thread::scope(|scope| {
            scope.spawn(|| meeting.arrive(Side::Second));
            meeting.arrive(Side::First);
        });
        assert_eq!(meeting.asked.0.into_inner(), OVER);
        assert_eq!(meeting.answered.0.into_inner(), OVER);
    }
}
