//! Settings of the threads that run fibers.

use std::time::Duration;

use crate::runtime::Builder;

impl Builder {
    /// The number of threads beyond which no fiber starts that may need one of its own.
    ///
    /// A fiber that is [bound](crate::task::Mobility::Bound) keeps its thread while it is parked.
    /// With so many threads, only fibers start that are known not to need one. Others wait until
    /// threads become free, and end with an error
    /// ([`is_no_thread`](crate::JoinError::is_no_thread)) when that takes too long. Fibers that
    /// have started get a thread in any case, and so do workers. At least as many as there are
    /// workers; by default 10,000, or less where the system's limits on processes and mappings
    /// suggest that.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).max_carriers(8).build()?;
    /// assert!(rt.metrics().carriers <= 8);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn max_carriers(mut self, n: usize) -> Self {
        self.max_carriers = Some(n);
        self
    }

    /// The number of threads beyond which fibers that may need one of their own wait.
    ///
    /// Such a fiber starts when a thread becomes free, when all other fibers wait (no worker has
    /// dispatched any for 10 ms), or when no such fiber has started for 100 ms although others run.
    /// They start in the order in which they came. Until the program's code has been read the
    /// number is 64 for each worker, if that is less, and 2 ms take the place of 10.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(2).soft_carriers(100).build()?;
    /// assert!(rt.metrics().carriers <= 100);
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn soft_carriers(mut self, n: usize) -> Self {
        self.soft_carriers = Some(n);
        self
    }

    /// How long a fiber that can get no thread to start on waits before it fails.
    ///
    /// A fiber that is not known to be movable may need a thread of its own. If as many threads as
    /// [`max_carriers`](Self::max_carriers) are in use, or the system refuses another one, it waits
    /// for a thread to become free. It fails with [`JoinError::is_no_thread`](crate::JoinError)
    /// when it has waited for this long and none of the fibers that wait has started for as long.
    /// Variable: `INDENT_START_TIMEOUT_MS`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let rt = indent::runtime::Builder::new()
    ///     .start_timeout(Duration::from_secs(1))
    ///     .build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.start_timeout = Some(time);
        self
    }
}
