//! Waiting until the program's code has been read.

use std::time::{Duration, Instant};

use crate::runtime::{Builder, Handle, Runtime, Survey};
use crate::sys::fork;
use crate::time;

/// How often a caller that waits for the survey checks whether it is done.
const PAUSE: Duration = Duration::from_millis(1);

impl Builder {
    /// Sets whether a program without function symbols is reported on standard error, once.
    ///
    /// The runtime needs these symbols to know which fibers may change threads;
    /// `strip = "debuginfo"` in a Cargo profile keeps them. In a program without them (`strip =
    /// true`, `strip = "symbols"`) nearly every fiber counts as bound. Variable:
    /// `INDENT_WARN_STRIPPED`.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().warn_stripped(false).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn warn_stripped(mut self, on: bool) -> Self {
        self.warn_stripped = Some(on);
        self
    }
}

impl Runtime {
    /// Waits until the program's code has been read: see [`Handle::wait_until_surveyed`].
    ///
    /// ```
    /// use indent::runtime::{Builder, Survey};
    ///
    /// let rt = Builder::new().build()?;
    /// if rt.wait_until_surveyed(None) != Survey::Done {
    ///     eprintln!("every parked fiber may keep a thread");
    /// }
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn wait_until_surveyed(&self, timeout: Option<Duration>) -> Survey {
        self.handle.wait_until_surveyed(timeout)
    }
}

impl Handle {
    /// Waits until the program's code has been read and all parked fibers have been judged.
    ///
    /// The runtime reads the code in the background from [`Builder::build`] on. Until that is done,
    /// every fiber that parks keeps its thread. A service that should start with few threads calls
    /// this before it accepts connections. The call is never required: only the number of threads
    /// differs.
    ///
    /// A fiber parks meanwhile, as in [`time::sleep`]; a plain thread blocks. A timeout of zero
    /// does not wait. Returns [`Survey::Pending`] if the timeout expires first, or if the runtime
    /// was shut down, or the process [forked](crate::runtime#fork), before the code was read.
    ///
    /// ```
    /// use indent::runtime::{Builder, Survey};
    /// use std::time::Duration;
    ///
    /// let rt = Builder::new().workers(1).build()?;
    /// let survey = rt.block_on(|| {
    ///     let limit = Duration::from_secs(60);
    ///     indent::runtime::Handle::current().wait_until_surveyed(Some(limit))
    /// });
    /// assert_eq!(survey, Survey::Done);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn wait_until_surveyed(&self, timeout: Option<Duration>) -> Survey {
        // A deadline beyond what a clock can express is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let survey = self.shared.survey();
            let over = deadline.is_some_and(|at| at <= Instant::now());
            let never = fork::in_child() || self.shared.is_stopping();
            if survey != Survey::Pending || over || never {
                return survey;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            time::sleep(left.map_or(PAUSE, |left| left.min(PAUSE)));
        }
    }
}
