//! Sleeps, intervals and time limits.
//!
//! Waits suspend the calling fiber, not its thread; on a plain thread they block the thread. No
//! wait ends early. A fiber becomes runnable at most one or two ticks of the runtime's clock late
//! ([`timer_resolution`](crate::runtime::Builder::timer_resolution)), and then waits for its turn
//! to run.
//!
//! ```
//! use indent::time::{self, Duration, Instant};
//!
//! let start = Instant::now();
//! let naps: Vec<_> = (0..100)
//!     .map(|_| indent::spawn(|| time::sleep(Duration::from_millis(20))))
//!     .collect();
//! naps.into_iter().for_each(|nap| nap.join().unwrap());
//! assert!(start.elapsed() >= Duration::from_millis(20));
//! ```

use std::error::Error;
use std::fmt;

pub use std::time::{Duration, Instant};

mod interval;

pub use interval::{Interval, MissedTickBehavior, interval, interval_at};

use crate::park::{self, ParkReason, Woken};

/// Blocks for `duration`.
///
/// Never returns if [`Instant`] cannot express when the sleep ends. A fiber that is asked to end
/// unwinds instead. An unpark does not end the sleep; it is kept for the next park. Corresponds to
/// [`std::thread::sleep`].
///
/// ```
/// use indent::time::{self, Duration, Instant};
///
/// let start = Instant::now();
/// time::sleep(Duration::from_millis(5));
/// assert!(start.elapsed() >= Duration::from_millis(5));
/// ```
pub fn sleep(duration: Duration) {
    sleep_to(Instant::now().checked_add(duration));
}

/// Blocks until `deadline`; returns at once if it has passed.
///
/// ```
/// use indent::time::{self, Duration, Instant};
///
/// let soon = Instant::now() + Duration::from_millis(2);
/// time::sleep_until(soon);
/// time::sleep_until(soon); // returns at once
/// assert!(Instant::now() >= soon);
/// ```
pub fn sleep_until(deadline: Instant) {
    sleep_to(Some(deadline));
}

fn sleep_to(deadline: Option<Instant>) {
    loop {
        match park::rest(deadline, ParkReason::Sleep) {
            Woken::ByDeadline => return,
            Woken::ByCancel => park::unwind_cancelled(),
            Woken::ByWake => {} // meant for an earlier wait
        }
    }
}

/// Calls `f` with a time limit.
///
/// When the limit passes, the blocking call that `f` is in, or the next one it makes, unwinds, and
/// the result is [`Elapsed`]. Destructors run during the unwinding, as for a fiber that is asked to
/// end, and no panic message is printed. If `f` returns, its result is returned, however late.
///
/// - Limits nest. An outer limit that passes first ends the inner calls, too.
/// - Code that does not block is not interrupted. A computation checks its limit with
///   [`task::checkpoint`](crate::task::checkpoint).
/// - Fibers that `f` has spawned continue. A call of
///   [`runtime::blocking`](crate::runtime::blocking) is waited for.
/// - Inside [`runtime::compute`](crate::runtime::compute) the limit has no effect.
/// - With `panic = "abort"` nothing is interrupted.
///
/// Corresponds to `tokio::time::timeout`.
///
/// # Code that catches every panic
///
/// The limit unwinds with a payload of the runtime's own. Code that catches it (`catch_unwind`) and
/// blocks again unwinds again, at once. The third such unwinding and all after it are delayed, by 1
/// ms and then by twice as long each time, up to 100 ms; after some of them a line on standard
/// error names the fiber or thread. `timeout` returns only when `f` does: such code should rethrow
/// the payload with [`resume_unwind`](std::panic::resume_unwind), or return. The same holds for a
/// fiber that is asked to end
/// ([`unwind_delays_total`](crate::runtime::Metrics::unwind_delays_total)).
///
/// # Coroutines of other libraries
///
/// A stackful coroutine may be suspended inside `f`, and `f` may end inside other limits than it
/// began in, or never. The limit belongs to the fiber or thread that called `timeout`. It does not
/// apply to the code that resumes the coroutine, but to all coroutines that the same fiber or
/// thread runs, until `f` ends. If the coroutine continues in another fiber or thread, the limit
/// does not apply there, and is not removed where it began.
///
/// ```
/// use indent::time::{self, Duration};
///
/// let long = Duration::from_secs(3600);
/// assert_eq!(time::timeout(long, || 7), Ok(7));
/// let short = Duration::from_millis(2);
/// let error = time::timeout(short, || time::sleep(long)).unwrap_err();
/// assert_eq!(error.to_string(), "the time limit of 2ms passed");
/// ```
pub fn timeout<F, T>(duration: Duration, f: F) -> Result<T, Elapsed>
where
    F: FnOnce() -> T,
{
    match Instant::now().checked_add(duration) {
        Some(deadline) => park::within(deadline, f).map_err(|_| Elapsed(Some(duration))),
        None => Ok(f()),
    }
}

/// Calls `f` with a deadline; see [`timeout`].
///
/// ```
/// use indent::time::{self, Duration, Instant};
///
/// let deadline = Instant::now() + Duration::from_millis(2);
/// let nap = || time::sleep(Duration::from_secs(3600));
/// assert!(time::timeout_at(deadline, nap).is_err());
/// assert!(Instant::now() >= deadline);
/// ```
pub fn timeout_at<F, T>(deadline: Instant, f: F) -> Result<T, Elapsed>
where
    F: FnOnce() -> T,
{
    park::within(deadline, f).map_err(|_| Elapsed(None))
}

/// The error of a [`timeout`] that passed before the call returned.
///
/// ```
/// use indent::time::{self, Duration, Elapsed};
/// use std::io;
///
/// fn wait_for_unpark() -> io::Result<()> {
///     time::timeout(Duration::from_millis(1), indent::park::park)?;
///     Ok(())
/// }
///
/// let error = wait_for_unpark().unwrap_err();
/// assert_eq!(error.kind(), io::ErrorKind::TimedOut);
/// assert!(error.downcast::<Elapsed>().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(Option<Duration>);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "the time limit of {limit:?} passed"),
            None => write!(f, "the deadline passed"),
        }
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}
