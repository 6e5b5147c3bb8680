//! A stall detector for any program: reports which work holds its thread up, how long, and where.
//!
//! A thread [enlists](Stalls::enlist) and marks when it [begins](Enlisted::begin) a piece of work,
//! by a label. If a piece takes longer than the limit, a callback of the program gets a report with
//! the stack of that moment. Everything else is done by other threads:
//!
//! - the *monitor* measures how long each piece has lasted. A late thread that runs gets a signal;
//!   one that sleeps in the kernel does not (a signal would end its system call with `EINTR`), and
//!   its stack is read from outside;
//! - the *handler*, on the late thread itself, copies the stack and does nothing else;
//! - the *helper* unwinds the copy, looks up the names, and calls the callback.
//!
//! **When a report is made.** A piece of work is reported when it has lasted for the limit, again
//! each time it has lasted ten times as long as at its last report, and when it ends, with its
//! whole length ([`Stage`]). A piece that ends before its stack was read is reported once, at its
//! end. Times are what the monitor saw: it looks ten times within the limit, but at most once a
//! millisecond ([`TICK`](crate::TICK)), and counts from the look that first found the piece. So a
//! piece that took less than the limit is never reported, and a length may be wrong by two looks.
//!
//! **What it costs.** Some nanoseconds for each piece, as much as two fences; see the README for
//! figures. While no piece of work is under way both threads sleep without a timer.
//!
//! **Signals.** By default the detector uses the last real-time signal but one, which hardly any
//! program uses (the last one is valgrind's): the runtime `indent` has SIGURG, and real-time
//! signals are queued and not merged. [`Builder::signal`] takes another. The detector's signals
//! carry the address of a record; any other goes to the handler that was there before. The handler
//! stays installed for ever, so that a late signal does not end the process. Several detectors
//! share it.
//!
//! **What it does not see**: work without a `begin`; the frames of a thread that runs on a stack of
//! its own making (a fiber's), or that blocks the signal: then there is a label and no stack.
//!
//! | file | contents |
//! |---|---|
//! | `record` | all about one watched thread: what it publishes, and what others note |
//! | `handler` | the signal, the handler, and the stack it runs on |
//! | `reporter` | what the monitor and the helper do |
//! | `spsc` | the queue from the monitor to the helper |
//! | `report` | the report itself |
//!
//! Records are reused and never freed: a signal may be under way to any thread at any time, and the
//! handler goes through all records.
//!
//! Rejected: records in thread-locals (the handler must not touch a thread-local that is not
//! initialized yet); clocks in `begin` (they cost more than all the rest).
//!
//! ```
//! use indent_sysmon::stalls::{Stall, Stalls};
//! use std::sync::mpsc;
//! use std::time::{Duration, Instant};
//!
//! let (sender, reports) = mpsc::channel();
//! let callback = move |stall: &Stall| sender.send(stall.clone()).unwrap();
//! let stalls = Stalls::start(Duration::from_millis(10), callback)?;
//!
//! let enlisted = stalls.enlist()?; // once on every thread that should be watched
//! for label in ["quick", "slow", "quick"] {
//!     let _job = enlisted.begin(label);
//!     let time = Duration::from_millis(if label == "slow" { 50 } else { 0 });
//!     let began = Instant::now();
//!     while began.elapsed() < time {}
//! }
//! drop(stalls); // makes the remaining reports
//!
//! let reports: Vec<Stall> = reports.try_iter().collect();
//! assert!(!reports.is_empty());
//! assert!(reports.iter().all(|stall| stall.label == "slow"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod handler;
mod record;
mod report;
mod reporter;
mod spsc;

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::Monitor;
use record::Record;
use reporter::Reporter;

pub use report::{Stage, Stall};

/// The default of [`Builder::threads`].
const THREADS: usize = 256;

/// A detector with its two threads; they end when it is dropped.
///
/// See the [module](self) for an example.
#[derive(Debug)]
pub struct Stalls {
    shared: Arc<Shared>,
}

/// What a detector and its enlisted threads share.
#[derive(Debug)]
struct Shared {
    reporter: Arc<Reporter>,
    monitor: Monitor,
}

impl Stalls {
    /// Starts a detector that calls `callback` for each piece of work longer than `limit`.
    ///
    /// `callback` runs on a thread of its own and may be slow; what happens meanwhile is reported
    /// later. If it panics the panic is printed, and it is called again for the next report.
    ///
    /// See the [module](self) for an example.
    pub fn start(
        limit: Duration,
        callback: impl Fn(&Stall) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Builder::new(limit).start(callback)
    }

    /// Starts to watch the calling thread, until the returned value is dropped.
    ///
    /// ```
    /// use indent_sysmon::stalls::Stalls;
    /// use std::time::Duration;
    ///
    /// let stalls = Stalls::start(Duration::from_millis(10), |stall| eprintln!("{stall}"))?;
    /// let enlisted = stalls.enlist()?;
    /// assert!(stalls.enlist().is_err(), "a thread has one enlisted");
    /// drop(enlisted);
    /// assert!(stalls.enlist().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enlist(&self) -> Result<Enlisted, EnlistError> {
        let record = self.shared.reporter.enlist_here()?;
        Ok(Enlisted {
            record,
            shared: self.shared.clone(),
            depth: Cell::new(0),
            of_this_thread: PhantomData,
        })
    }

    /// Returns how many stalls went unreported because too many came at once.
    ///
    /// ```
    /// # use indent_sysmon::stalls::Stalls;
    /// let stalls = Stalls::start(std::time::Duration::from_millis(10), |_| ())?;
    /// assert_eq!(stalls.missed(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn missed(&self) -> u64 {
        self.shared.reporter.missed()
    }
}

/// Ends both threads and makes the remaining reports, on the calling thread. The callback must not
/// drop its own detector. An [`Enlisted`] can outlive the detector, but is not watched any more.
impl Drop for Stalls {
    fn drop(&mut self) {
        self.shared.monitor.stop();
        self.shared.reporter.close();
    }
}

/// Configures a detector.
///
/// ```
/// use indent_sysmon::stalls::Builder;
/// use std::time::Duration;
///
/// let stalls = Builder::new(Duration::from_millis(100))
///     .signal(libc::SIGUSR2)
///     .threads(1)
///     .start(|stall| eprintln!("{stall}"))?;
/// let _enlisted = stalls.enlist()?;
/// std::thread::scope(|scope| {
///     let refused = scope.spawn(|| stalls.enlist().unwrap_err().to_string());
///     let refused = refused.join().unwrap();
///     assert!(refused.starts_with("cannot enlist: the limit of 1 threads is reached"), "{refused}");
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    limit: Duration,
    signal: i32,
    threads: usize,
}

impl Builder {
    /// Creates the settings of a detector for work that should take less than `limit`.
    ///
    /// See [`Builder`] for an example.
    pub fn new(limit: Duration) -> Self {
        Builder {
            limit,
            signal: handler::usual_signal(),
            threads: THREADS,
        }
    }

    /// Sets the signal that makes a late thread copy its stack.
    ///
    /// Allowed are SIGURG, SIGUSR1, SIGUSR2, SIGIO, SIGWINCH and the real-time signals but the
    /// first. Other parts of the program may use it too if they pass on signals that are not
    /// theirs.
    ///
    /// See [`Builder`] for an example.
    pub fn signal(mut self, signal: i32) -> Self {
        self.signal = signal;
        self
    }

    /// Sets how many threads can be watched at once.
    ///
    /// Each watched thread takes some 65 KiB, for copies of its stack.
    ///
    /// See [`Builder`] for an example.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Starts the detector; see [`Stalls::start`].
    ///
    /// ```
    /// use indent_sysmon::stalls::Builder;
    /// use std::time::Duration;
    ///
    /// let builder = Builder::new(Duration::from_millis(10)).signal(libc::SIGKILL);
    /// let refused = builder.start(|_| ()).unwrap_err().to_string();
    /// assert!(refused.starts_with("cannot use signal 9: allowed are URG, "), "{refused}");
    /// ```
    pub fn start(self, callback: impl Fn(&Stall) + Send + Sync + 'static) -> io::Result<Stalls> {
        handler::prepare(self.signal)?;
        let (threads, callback) = (self.threads, Box::new(callback));
        let reporter = Arc::new(Reporter::new(self.limit, self.signal, threads, callback));
        reporter.open()?;
        let monitor = Monitor::start("stalls", threads, reporter.clone());
        let monitor = monitor.inspect_err(|_| reporter.close())?;
        let shared = Arc::new(Shared { reporter, monitor });
        Ok(Stalls { shared })
    }
}

/// Why a thread could not enlist.
///
/// ```
/// use indent_sysmon::stalls::EnlistError;
/// assert_eq!(EnlistError::Twice.to_string(), "cannot enlist: this thread is enlisted already");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum EnlistError {
    /// As many threads as possible are enlisted. See [`Builder::threads`].
    Full {
        /// The limit.
        threads: usize,
    },
    /// The thread is enlisted already.
    Twice,
    /// No memory for a signal stack.
    Stack(io::Error),
}

impl fmt::Display for EnlistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnlistError::Full { threads } => write!(
                f,
                "cannot enlist: the limit of {threads} threads is reached; raise `Builder::threads`"
            ),
            EnlistError::Twice => f.write_str("cannot enlist: this thread is enlisted already"),
            EnlistError::Stack(error) => {
                write!(f, "cannot map a signal stack for this thread: {error}")
            }
        }
    }
}

impl Error for EnlistError {}

/// An enlisted thread; the value cannot leave the thread. The thread may end without a drop.
///
/// See the [module](self) for an example.
#[derive(Debug)]
pub struct Enlisted {
    record: &'static Record,
    shared: Arc<Shared>,
    /// Pieces of work that have begun and not ended.
    depth: Cell<u32>,
    of_this_thread: PhantomData<*const ()>,
}

impl Enlisted {
    /// Begins a piece of work, which ends when the value is dropped.
    ///
    /// A piece that begins inside another one is part of it: the outermost label counts.
    ///
    /// ```
    /// # use indent_sysmon::stalls::Stalls;
    /// # let stalls = Stalls::start(std::time::Duration::from_millis(10), |_| ())?;
    /// # let enlisted = stalls.enlist()?;
    /// let requests = ["GET /", "GET /cart"];
    /// for request in requests {
    ///     let _job = enlisted.begin(request);
    ///     // serves it
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn begin(&self, label: &'static str) -> Job<'_> {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            self.record.begin(label);
            self.shared.monitor.notice();
        }
        Job { enlisted: self }
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        handler::forget_here(self.record);
        self.record.free();
    }
}

/// A piece of work that has begun.
///
/// See [`Enlisted::begin`] for an example.
#[derive(Debug)]
#[must_use = "the piece of work ends when this is dropped"]
pub struct Job<'a> {
    enlisted: &'a Enlisted,
}

impl Drop for Job<'_> {
    #[inline]
    fn drop(&mut self) {
        let depth = self.enlisted.depth.get() - 1;
        self.enlisted.depth.set(depth);
        if depth == 0 {
            self.enlisted.record.end();
        }
    }
}
