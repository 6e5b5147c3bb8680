//! A stall detector for any program: which piece of work holds its thread up, for how long, and where.
//!
//! A thread takes a [`Enlisted`] and says when it [begins](Seat::begin) a piece of work, by a label. If
//! one takes longer than the limit, a function of the program is told, with the stack of that moment.
//! Everything else is done by threads beside it:
//!
//! - the *monitor* sees how long each piece has lasted. If its thread runs, it signals it; if it sleeps
//!   in the kernel, it is left in peace (a signal would end its system call with `EINTR`), and its stack
//!   is read from outside;
//! - the *handler*, on the late thread itself, copies the stack and does nothing else;
//! - the *helper* climbs the copy, looks up the names, and tells.
//!
//! **When it is told.** A piece of work is told of when it has lasted for the limit, again each time
//! it has lasted ten times as long as when it was last told of, and when it ends, with its whole
//! length ([`Stage`]). One that ends before its stack was seen is told of once, at its end. Times
//! are what the monitor saw: it looks ten times within the limit, but at most once a millisecond
//! ([`TICK`](crate::TICK)), and counts from the look that first found the piece. So what took less than
//! the limit is never told of, and a length may be wrong by two looks.
//!
//! **What it costs.** Two fences' worth of nanoseconds for each piece; see the README for figures. While
//! no piece of work is under way both threads sleep without a timer.
//!
//! **Signals.** By default the detector uses the last real-time signal but one, which hardly anybody
//! does (the last one is valgrind's): the runtime `indent` has SIGURG, and real-time signals are queued
//! and not merged. [`Builder::signal`] takes another. A signal of ours carries the address of its seat;
//! any other goes to the handler that was there before. The handler stays installed for ever, so
//! that a late signal ends nobody. Several detectors share it.
//!
//! **What it does not see**: work that nobody said had begun; the frames of a thread that is on a stack
//! of its own making (a fiber's); or that blocks the signal: then there is a label and no stack.
//!
//! | file | what it knows |
//! |---|---|
//! | `record` | all about one seat: what its thread publishes, and what others note |
//! | `handler` | the signal, the handler, and the stack it runs on |
//! | `reporter` | what the monitor and the helper do |
//! | `spsc` | how the monitor hands over to the helper |
//! | `report` | what is told |
//!
//! Records are never freed, but used again: a signal may be under way to any thread at any time,
//! and the handler goes through all of them.
//!
//! Rejected: seats in thread-locals (the handler may not touch a thread-local that was not
//! made yet); clocks in `begin` (they cost more than all the rest).
//!
//! ```
//! use indent_sysmon::stalls::{Stall, Stalls};
//! use std::sync::mpsc;
//! use std::time::{Duration, Instant};
//!
//! let (sender, told) = mpsc::channel();
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
//! drop(stalls); // tells what there is left to callback
//!
//! let told: Vec<Stall> = told.try_iter().collect();
//! assert!(!told.is_empty());
//! assert!(told.iter().all(|stall| stall.label == "slow"));
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

/// Seats of a detector, unless it is told otherwise.
const THREADS: usize = 256;

/// A detector with its two threads; they end when it is dropped.
///
/// See the [module](self) for an example.
#[derive(Debug)]
pub struct Stalls {
    shared: Arc<Shared>,
}

/// What a detector and its seats share.
#[derive(Debug)]
struct Shared {
    reporter: Arc<Reporter>,
    monitor: Monitor,
}

impl Stalls {
    /// Starts a detector that calls `callback` for each piece of work that takes longer than `limit`.
    ///
    /// `callback` is called on a thread of its own and may take its time; what happens meanwhile is told
    /// later. If it panics the panic is printed, and it is called again for the next one.
    ///
    /// See the [module](self) for an example.
    pub fn start(
        limit: Duration,
        callback: impl Fn(&Stall) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Builder::new(limit).start(callback)
    }

    /// The calling thread can be watched from here on, as long as it keeps the seat.
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

    /// How many stalls could not be told of, because too many came at once.
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

/// Ends both threads and tells what there is left to tell, on the calling thread. Not to be dropped by
/// the function that is told. Seats that are still taken can be used, but are not watched any more.
impl Drop for Stalls {
    fn drop(&mut self) {
        self.shared.monitor.stop();
        self.shared.reporter.close();
    }
}

/// A detector with other settings than the usual ones.
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
///     assert_eq!(refused.join().unwrap(), "all threads are taken; there are 1");
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
    /// For work that should take less than this.
    ///
    /// See [`Builder`] for an example.
    pub fn new(limit: Duration) -> Self {
        Builder {
            limit,
            signal: handler::usual_signal(),
            threads: THREADS,
        }
    }

    /// The signal by which a thread is made to show its stack: SIGURG, SIGUSR1, SIGUSR2, SIGIO, SIGWINCH
    /// or a real-time signal but the first. One that other parts of the program use as well is no harm
    /// as long as they pass on what is not theirs.
    ///
    /// See [`Builder`] for an example.
    pub fn signal(mut self, signal: i32) -> Self {
        self.signal = signal;
        self
    }

    /// How many threads can be watched at once. One that is used takes some 65 KiB, for copies of
    /// its stack.
    ///
    /// See [`Builder`] for an example.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Starts it; see [`Stalls::start`].
    ///
    /// ```
    /// use indent_sysmon::stalls::Builder;
    /// use std::time::Duration;
    ///
    /// let builder = Builder::new(Duration::from_millis(10)).signal(libc::SIGKILL);
    /// let refused = builder.start(|_| ()).unwrap_err().to_string();
    /// assert!(refused.starts_with("signal 9: allowed is URG, "), "{refused}");
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

/// Why a thread got no seat.
///
/// ```
/// use indent_sysmon::stalls::EnlistError;
/// assert_eq!(EnlistError::Twice.to_string(), "this thread has a enlisted already");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum EnlistError {
    /// All are taken. See [`Builder::threads`].
    Full {
        /// How many there are.
        threads: usize,
    },
    /// The thread has one.
    Twice,
    /// There is no memory for a signal stack.
    Stack(io::Error),
}

impl fmt::Display for EnlistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnlistError::Full { threads } => write!(f, "all seats are taken; there are {threads}"),
            EnlistError::Twice => f.write_str("this thread has a seat already"),
            EnlistError::Stack(error) => write!(f, "no memory for a signal stack: {error}"),
        }
    }
}

impl Error for EnlistError {}

/// A watched thread's; it cannot leave the thread. The thread may end without dropping it.
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
    /// The thread begins a piece of work, which ends when the value is dropped.
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

/// A piece of work that goes on.
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
