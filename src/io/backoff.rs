//! Growing pauses, for what the kernel does not report: a lack of descriptors, full queues of other
//! sockets.

use std::io;
use std::time::{Duration, Instant};

use crate::park::{self, ParkReason, Woken};

/// The first pause: the resolution of timers. A shorter one would last as long.
const FIRST: Duration = Duration::from_millis(1);
/// The longest pause: a peer waits for the caller meanwhile, and cannot know why.
const LONGEST: Duration = Duration::from_millis(100);

/// How long to pause next.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff::after(0)
    }

    /// The pause after this many failures in a row.
    pub(crate) fn after(failures: u32) -> Self {
        let doubled = 1u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX);
        Backoff((FIRST * doubled).min(LONGEST))
    }

    /// Pauses, twice as long as the last time.
    ///
    /// Fails with `TimedOut` if the deadline passes first. A fiber that is asked to end unwinds.
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
    fn a_pause_that_ends_at_the_deadline_times_out() {
        let soon = Instant::now() + Duration::from_millis(1);
        let error = Backoff::after(9).wait(Some(soon)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(Backoff::new().wait(Some(later)).is_ok());
    }
}
