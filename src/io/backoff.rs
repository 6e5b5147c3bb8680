//! Pauses that grow, for what nobody tells us about: descriptors that run out, queues of others.

use std::io;
use std::time::{Duration, Instant};

use crate::park::{self, ParkReason, Woken};

/// The first pause: the resolution of timers. Shorter ones would not be.
const FIRST: Duration = Duration::from_millis(1);
/// The longest: somebody waits for us, and does not know for what.
const LONGEST: Duration = Duration::from_millis(100);

/// How long to pause next.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff::after(0)
    }

    /// After so many failures in a row.
    pub(crate) fn after(failures: u32) -> Self {
        let doubled = 1u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX);
        Backoff((FIRST * doubled).min(LONGEST))
    }

    /// Pauses, for longer than the last time; `TimedOut` if the deadline comes first. A fiber that was asked
    /// to end unwinds.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let end = Instant::now() + self.0;
        self.0 = (self.0 * 2).min(LONGEST);
        let until = deadline.map_or(end, |at| at.min(end));
        loop {
            match park::rest(Some(until), ParkReason::Io) {
                Woken::ByCancel => park::unwind_cancelled(),
                Woken::ByWake => {} // meant for an earlier wait
                Woken::ByDeadline if until == end => return Ok(()),
                Woken::ByDeadline => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_tenth_of_a_second() {
        let pauses: Vec<_> = (0..9).map(|n| Backoff::after(n).0.as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        assert_eq!(Backoff::after(u32::MAX).0, LONGEST);
    }

    #[test]
    fn a_pause_ends_at_the_deadline_and_says_so() {
        let soon = Instant::now() + Duration::from_millis(1);
        let error = Backoff::after(9).wait(Some(soon)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(Backoff::new().wait(Some(later)).is_ok());
    }
}
