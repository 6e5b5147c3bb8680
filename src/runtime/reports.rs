//! What a runtime reports about fibers: which run for too long, and which keep a thread.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use indent_sysmon::frames;

use crate::park;
use crate::runtime::{Builder, Handle, Overrun, Overruns, Runtime, blocking};
use crate::sched::mobility::bound::{BoundReport, BoundSite, Cause};
use crate::sched::mobility::verdict;

impl Builder {
    /// Calls the closure with a report when a fiber has run for longer than the quantum.
    ///
    /// The report comes when the fiber has computed for the [quantum](Self::preempt_quantum)
    /// without a call into the runtime, and again when that time has doubled. Several closures may
    /// be set; [`Handle::on_overrun`] adds one later.
    ///
    /// The closure is called on a thread of its own, with one report after the other. A slow
    /// closure delays later reports only; those for which there is no room are counted
    /// ([`Metrics::overrun_reports_lost_total`](crate::runtime::Metrics::overrun_reports_lost_total)).
    /// If the closure panics, one line on standard error says so, and it is called again. It must
    /// not own the runtime. There are no reports where [`preempt`](Self::preempt) is off.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new()
    ///     .on_overrun(|overrun| eprintln!("{overrun}"))
    ///     .build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn on_overrun(mut self, listener: impl Fn(&Overrun) + Send + Sync + 'static) -> Self {
        self.on_overrun.push(Arc::new(listener));
        self
    }

    /// Sets whether fibers that run longer than the [quantum](Self::preempt_quantum) are reported
    /// on standard error.
    ///
    /// The first of each spawn site and function is reported at once, then one line a second at
    /// most. Variable: `INDENT_LOG_OVERRUNS`.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().log_overruns(true).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn log_overruns(mut self, on: bool) -> Self {
        self.log_overruns = Some(on);
        self
    }

    /// Sets whether fibers that keep a thread while parked are reported on standard error.
    ///
    /// Each spawn site and each cause is reported once, with the calls that lead to the
    /// thread-local or foreign function, and with what to do about it. [`Runtime::binding`] returns
    /// the same with counts. Variable: `INDENT_LOG_BOUND`.
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().log_bound(true).build()?;
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn log_bound(mut self, on: bool) -> Self {
        self.log_bound = Some(on);
        self
    }
}

impl Runtime {
    /// Which fibers have run for longer than the [quantum](Builder::preempt_quantum) so far: see
    /// [`Handle::overruns`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// println!("{}", rt.overruns());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn overruns(&self) -> Overruns {
        self.handle().overruns()
    }

    /// Reports which fibers keep a thread while they are parked: see [`Handle::binding`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// println!("{}", rt.binding());
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn binding(&self) -> Bindings {
        self.handle().binding()
    }
}

impl Handle {
    /// Calls the closure with every later overrun report; see [`Builder::on_overrun`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.handle().on_overrun(|overrun| eprintln!("{overrun}"));
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn on_overrun(&self, listener: impl Fn(&Overrun) + Send + Sync + 'static) {
        self.shared.listen(Arc::new(listener));
    }

    /// Reports which fibers have run for longer than the [quantum](Builder::preempt_quantum) so
    /// far.
    ///
    /// There is a row for each spawn site and function. The last events may be missing. Looks
    /// functions up by name, which takes some time; a fiber that calls this waits as for
    /// [`blocking`].
    ///
    /// ```
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// if let Some(worst) = rt.handle().overruns().rows.first() {
    ///     println!("{:?} has run for {:?} in all", worst.function, worst.total);
    /// }
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn overruns(&self) -> Overruns {
        in_background(self.shared.overruns())
    }

    /// Reports which fibers keep a thread while they are parked, and why.
    ///
    /// A fiber is [bound](crate::task::Mobility::Bound) if a frame on its stack may hold something
    /// of its thread, such as a reference to a thread-local. The report has one row for each spawn
    /// site and cause, with the number of parks since the runtime started and of threads kept at
    /// this moment. Parks of movable fibers are not counted. Looks functions up by name, which
    /// takes some time; a fiber that calls this waits as for [`blocking`].
    ///
    /// ```
    /// use std::cell::RefCell;
    /// use std::time::Duration;
    ///
    /// thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    ///
    /// let rt = indent::runtime::Builder::new().workers(1).build()?;
    /// rt.wait_until_surveyed(None);
    /// rt.spawn(|| {
    ///     BUFFER.with_borrow_mut(|buffer| {
    ///         indent::time::sleep(Duration::from_millis(1)); // the thread-local is borrowed
    ///         buffer.push(1);
    ///     })
    /// })
    /// .join()
    /// .unwrap();
    /// let report = rt.handle().binding();
    /// assert!(report.rows.iter().any(|row| row.parks > 0), "{report}");
    /// # Ok::<(), indent::StartError>(())
    /// ```
    pub fn binding(&self) -> Bindings {
        in_background(|| Bindings::new(&self.shared.bound_report()))
    }
}

/// Calls a slow closure: on a fiber, by the blocking pool.
fn in_background<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    match park::current_fiber() {
        Some(_) => blocking(f),
        None => f(),
    }
}

/// Fibers that keep a thread while they are parked, by spawn site and cause.
///
/// The rows with the most parks come first. See [`Handle::binding`].
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// rt.wait_until_surveyed(None);
/// let report = rt.binding();
/// assert!(report.rows.is_empty(), "{report}");
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Bindings {
    /// One for each spawn site and cause.
    pub rows: Vec<BindingRow>,
    /// Parks of bound fibers that are in no row, because there are too many different ones.
    pub others: u64,
    /// Parks before the program's code had been read, when every fiber keeps its thread.
    pub unjudged: u64,
}

/// Why a fiber keeps its thread while it is parked; see [`Bindings`].
///
/// ```
/// use indent::runtime::{BindingCause, Builder};
///
/// let rt = Builder::new().workers(1).build()?;
/// let pinned = |row: &&indent::runtime::BindingRow| row.cause == BindingCause::Pinned;
/// println!("{} sites spawn pinned fibers", rt.binding().rows.iter().filter(pinned).count());
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BindingCause {
    /// A frame on its stack may hold something of the thread.
    Frame,
    /// The address of a thread-local was found on its stack or in one of its thread-locals, though
    /// no frame shows that it keeps one.
    Address,
    /// The fiber is pinned, by [`task::pin`](crate::task::pin) or its builder.
    Pinned,
    /// The fiber blocks in a destructor while it unwinds.
    Unwinding,
    /// Every fiber is bound, because the program's code could not be read.
    Everything,
}

/// A row of [`Bindings`].
///
/// ```
/// let rt = indent::runtime::Builder::new().workers(1).build()?;
/// for row in rt.binding().rows {
///     println!("{} keeps {} threads: {:?}", row.location, row.threads, row.variable);
/// }
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BindingRow {
    /// Where the fibers were spawned.
    pub location: &'static Location<'static>,
    /// Why the fibers keep their threads.
    pub cause: BindingCause,
    /// The function that uses something of the thread, if a frame binds the fibers and its code
    /// could be read.
    pub function: Option<String>,
    /// The thread-local that it uses, if that is known by name.
    pub variable: Option<String>,
    /// The calls from a frame of the fiber to that use: functions, and how each leads to the next.
    pub path: Vec<(String, String)>,
    /// Parks so far.
    pub parks: u64,
    /// Threads that parked fibers keep at this moment.
    pub threads: usize,
    /// What can be done about it, in a sentence.
    pub advice: &'static str,
}

impl BindingRow {
    fn new(site: &BoundSite) -> Self {
        let cause = match site.cause {
            Cause::Frame(_) => BindingCause::Frame,
            Cause::InRegister | Cause::InLocal(_) => BindingCause::Address,
            Cause::Pin => BindingCause::Pinned,
            Cause::Unwinding => BindingCause::Unwinding,
            Cause::Setting => BindingCause::Everything,
        };
        let mut row = BindingRow {
            location: site.location,
            cause,
            function: None,
            variable: None,
            path: Vec::new(),
            parks: site.parks,
            threads: site.threads,
            advice: "",
        };
        row.advice = match site.cause {
            Cause::Frame(address) => row.explain(address),
            Cause::InRegister => {
                "the address of a thread-local is in a register: let go of what came out of a \
                 thread-local before the fiber blocks"
            }
            Cause::InLocal(offset) => row.name_local(offset),
            Cause::Pin => "the fiber is pinned: drop the guard of task::pin before it blocks",
            Cause::Unwinding => {
                "the fiber blocks in a destructor while it unwinds: block in no destructor"
            }
            Cause::Setting => "all fibers are bound: by a setting, or as the code cannot be read",
        };
        row
    }

    /// Names the thread-local that has the address of one; returns the advice.
    fn name_local(&mut self, offset: isize) -> &'static str {
        self.variable = verdict::local_around(offset);
        let variable = self
            .variable
            .clone()
            .unwrap_or_else(|| "a thread-local".to_owned());
        self.path = vec![(variable, "has the address of a thread-local".to_owned())];
        "the address of a thread-local is in this one: keep a value there, or clear it before the \
         fiber blocks"
    }

    /// Names what binds; returns the advice.
    fn explain(&mut self, address: usize) -> &'static str {
        if let Some(judge) = frames::judge() {
            let why = judge.explain(address);
            self.function = why.function().map(str::to_owned);
            self.variable = why.variable().map(str::to_owned);
            let step = |step: &frames::Step| (step.function().to_owned(), step.how().to_owned());
            self.path = why.path().iter().map(step).collect();
        }
        if self.variable.is_some() {
            "the frame may hold a reference to the thread-local: use it in a function of its own \
             that returns before the fiber blocks, or declare it harmless (unsafe): \
             Builder::harmless_thread_local"
        } else {
            "make the call in a function of its own that returns before the fiber blocks, or inside \
             runtime::blocking, or declare it harmless (unsafe): Builder::harmless_function"
        }
    }
}

impl fmt::Display for BindingRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindingRow { location, .. } = self;
        write!(
            f,
            "fibers spawned at {}:{}",
            location.file(),
            location.line()
        )?;
        write!(f, ", {} parks, {} threads now", self.parks, self.threads)?;
        for (function, how) in &self.path {
            write!(f, "\n  {function} {how}")?;
        }
        write!(f, "\n  {}", self.advice)
    }
}

impl Bindings {
    /// Names what binds, and adds rows that say the same.
    fn new(report: &BoundReport) -> Self {
        let mut rows: HashMap<_, BindingRow> = HashMap::new();
        for row in report.sites.iter().map(BindingRow::new) {
            let key = (row.location, row.path.clone(), row.advice);
            let same = |sum: &mut BindingRow| {
                sum.parks += row.parks;
                sum.threads += row.threads;
            };
            rows.entry(key).and_modify(same).or_insert(row);
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        let place = |row: &BindingRow| (row.location.file(), row.location.line());
        rows.sort_by(|a, b| (b.parks, b.threads, place(a)).cmp(&(a.parks, a.threads, place(b))));
        Bindings {
            rows,
            others: report.others,
            unjudged: report.unjudged,
        }
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            f.write_str("no fiber is known to have kept a thread while it was parked")?;
        }
        for (i, row) in self.rows.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}{row}")?;
        }
        for (parks, which) in [
            (self.others, "of other bound fibers"),
            (self.unjudged, "before the code had been read"),
        ] {
            if parks > 0 {
                write!(f, "\nand {parks} parks {which}")?;
            }
        }
        Ok(())
    }
}

/// The line on standard error about a new spawn site and cause.
pub(crate) fn bound_line(site: &BoundSite) -> String {
    let row = BindingRow::new(site);
    let mut line = format!(
        "indent: fibers spawned at {}:{} keep a thread while they are parked",
        row.location.file(),
        row.location.line()
    );
    for (function, how) in &row.path {
        line.push_str(&format!("; {function} {how}"));
    }
    line.push_str(&format!(" ({})\n", row.advice));
    line
}
