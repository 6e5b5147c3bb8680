#![expect(unsafe_code, reason = "the two ends of a queue")]
//! What the monitor and the helper do.
//!
//! The monitor's part (`impl Pool`) follows its rules: no allocation, no lock, no file. Steps:
//!
//! 1. At each look it *settles*: notes which pieces of work have ended, and which have begun.
//! 2. For a late thread that is due for a report it *opens the case*: it notes the label.
//! 3. Then it needs the stack. It copies the stack of a thread that sleeps. It requests the stack
//!    of a thread that runs by a signal, and checks for the answer at the next look.
//! 4. When it has the stack, or has waited long enough, it hands the helper a [`PendingReport`].

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::record::{self, Record};
use super::spsc::Spsc;
use super::{EnlistError, Stage, Stall, handler};
use crate::{
    Activity, Chores, Helper, Phase, Pool, SystemCall, TICK, Thread, ThreadState, symbols,
};

/// Looks within the limit.
const LOOKS: u32 = 10;
/// The longest time between two looks.
const SELDOM: Duration = Duration::from_millis(100);
/// CPU time after which a thread that has not copied its stack counts as unable to.
const PATIENCE: Duration = Duration::from_millis(5);
/// A thread that ran for this long between two looks is on a CPU.
const RUNS: Duration = Duration::from_micros(125);
/// Factor by which a piece of work must have grown since its last report to be reported again.
const AGAIN: u64 = 10;
/// Room for reports that were not made yet.
const QUEUED: usize = 256;

pub(super) type Callback = Box<dyn Fn(&Stall) + Send + Sync>;

pub(super) struct Reporter {
    limit: u64,
    pause: Duration,
    signal: i32,
    callback: Callback,
    /// The monitor counts nanoseconds since this instant.
    began: Instant,
    now: AtomicU64,
    records: Box<[OnceLock<&'static Record>]>,
    /// How many records were ever used.
    used: AtomicUsize,
    seating: Mutex<()>,
    helper: OnceLock<Helper>,
    queue: Spsc<PendingReport>,
    missed: AtomicU64,
}

/// What the helper needs for a report.
#[derive(Clone, Copy)]
struct PendingReport {
    record: &'static Record,
    label: &'static str,
    lasted: u64,
    ran: Option<u64>,
    stage: Stage,
    state: ThreadState,
    call: Option<SystemCall>,
    /// Index of the record's snapshot with the stack.
    stack: Option<usize>,
}

/// What is known about a late thread.
struct Seen {
    state: ThreadState,
    call: Option<SystemCall>,
    stack: bool,
}

impl Seen {
    const fn running(stack: bool) -> Self {
        Seen {
            state: ThreadState::Running,
            call: None,
            stack,
        }
    }
}

impl Reporter {
    pub(super) fn new(limit: Duration, signal: i32, threads: usize, callback: Callback) -> Self {
        Reporter {
            limit: nanos(limit),
            pause: (limit / LOOKS).clamp(TICK, SELDOM),
            signal,
            callback,
            began: Instant::now(),
            now: AtomicU64::new(0),
            records: (0..threads).map(|_| OnceLock::new()).collect(),
            used: AtomicUsize::new(0),
            seating: Mutex::new(()),
            helper: OnceLock::new(),
            queue: Spsc::new(QUEUED),
            missed: AtomicU64::new(0),
        }
    }

    /// Starts the helper.
    pub(super) fn open(self: &Arc<Self>) -> io::Result<()> {
        let helper = Helper::start("stalls-helper", self.clone())?;
        let _ = self.helper.set(helper);
        Ok(())
    }

    /// After the monitor ended: ends the helper, and makes the remaining reports.
    pub(super) fn close(&self) {
        self.tick(Instant::now()); // what has ended since the last look
        self.helper.get().inspect(|helper| helper.stop());
        self.report_all();
    }

    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// Enlists the calling thread.
    pub(super) fn enlist_here(&self) -> Result<&'static Record, EnlistError> {
        let ours = |record: &Record| self.records().any(|own| std::ptr::eq(own, record));
        if handler::is_enlisted_in(ours) {
            return Err(EnlistError::Twice);
        }
        let record = self.free_record()?;
        let settled = handler::prepare_here(record, self.signal);
        settled.map(|()| record).map_err(|error| {
            record.free();
            EnlistError::Stack(error)
        })
    }

    /// Finds a record that no thread has, and whose last thread has no report pending.
    fn free_record(&self) -> Result<&'static Record, EnlistError> {
        let _one_at_a_time = self.seating.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(record) = self.records().find(|record| record.take()) {
            return Ok(record);
        }
        let (used, threads) = (self.used.load(SeqCst), self.records.len());
        let free = self
            .records
            .get(used)
            .ok_or(EnlistError::Full { threads })?;
        let record = *free.get_or_init(Record::acquire);
        record.take(); // it is in no other list yet
        self.used.store(used + 1, SeqCst);
        Ok(record)
    }

    fn records(&self) -> impl Iterator<Item = &'static Record> {
        let used = self.used.load(SeqCst);
        (0..used).filter_map(|index| self.records[index].get().copied())
    }

    fn record(&self, index: usize) -> &'static Record {
        self.records[index].get().expect("below `used`")
    }
}

/// The monitor's part.
impl Reporter {
    /// Notes what has ended and what has begun.
    fn settle(&self, record: &'static Record, now: u64) {
        let case = &record.case;
        let dispatch = record.activity.dispatches();
        let works = record.activity.phase() == Phase::Fiber;
        let other = dispatch != case.dispatch.load(Relaxed);
        if case.open.load(Relaxed) && (other || !works) {
            self.close_case(record, now);
        }
        if works && other {
            case.dispatch.store(dispatch, Relaxed);
            case.since.store(now, Relaxed);
            let ran = record.thread.cpu_time().map_or(u64::MAX, nanos);
            case.ran.store(ran, Relaxed);
            case.due.store(self.limit, Relaxed);
            case.reported.store(false, Relaxed);
            case.asked.store(0, Relaxed);
        }
    }

    /// Reports the end of a piece of work that was late.
    fn close_case(&self, record: &'static Record, now: u64) {
        let case = &record.case;
        // Its stack may have arrived just before.
        let stack = case.asked.load(Relaxed) > 0 && has_answered(record);
        let seen = Seen::running(stack);
        self.hand_over(record, now, Stage::Ended, &seen);
        case.open.store(false, Relaxed);
        record.disengage();
    }

    /// Handles a piece of work that has lasted for at least a tick.
    fn late(&self, record: &'static Record, dispatch: u64, asleep: bool) {
        let (case, now) = (&record.case, self.now.load(Relaxed));
        let lasted = now.saturating_sub(case.since.load(Relaxed));
        let ran = record.thread.cpu_time().map_or(u64::MAX, nanos).max(1);
        let before = case.clock.swap(ran, Relaxed);
        if case.dispatch.load(Relaxed) != dispatch || lasted < case.due.load(Relaxed) {
            return;
        }
        if !case.open.load(Relaxed) {
            let Some(label) = record.engage(dispatch) else {
                return;
            };
            let [start, length] = label;
            case.label[0].store(start, Relaxed);
            case.label[1].store(length, Relaxed);
            case.open.store(true, Relaxed);
        }
        let seen = match asleep {
            true => look_at_sleeper(record),
            false => self.look_at_runner(record, dispatch, ran, ran.saturating_sub(before)),
        };
        let Some(seen) = seen else { return };
        let stage = match case.reported.swap(true, Relaxed) {
            false => Stage::Found,
            true => Stage::GoesOn,
        };
        self.hand_over(record, now, stage, &seen);
        let due = lasted.max(self.limit).max(1);
        case.due.store(due.saturating_mul(AGAIN), Relaxed);
        case.asked.store(0, Relaxed);
        record.request.store(0, SeqCst);
        record.answer.store(0, SeqCst);
    }

    /// Requests the stack of a thread that runs; `None` while it may still come.
    ///
    /// The thread has run for `ran` in all, and for `lately` since the last look. A thread that
    /// did not run since then waits for a CPU, perhaps at the end of a
    /// system call, which a signal would end: it is signalled when it runs.
    fn look_at_runner(
        &self,
        record: &'static Record,
        dispatch: u64,
        ran: u64,
        lately: u64,
    ) -> Option<Seen> {
        let asked = record.case.asked.load(Relaxed);
        if asked > 0 && has_answered(record) {
            return Some(Seen::running(true));
        }
        // In the thread's own CPU time: while it waits for a CPU it cannot answer.
        if asked > 0 && ran.saturating_sub(asked) >= nanos(PATIENCE) {
            return Some(Seen::running(false));
        }
        if lately < nanos(RUNS) {
            return None;
        }
        if asked == 0 {
            if !record.make_room() {
                return None; // the helper has not processed the last stacks
            }
            record.answer.store(0, SeqCst);
            record.request.store(dispatch, SeqCst);
            record.case.asked.store(ran, Relaxed);
        }
        // Again if it ran and did not answer: it may have been inside another handler.
        if asked == 0 || ran.saturating_sub(asked) >= nanos(TICK) {
            record.thread.signal_with(self.signal, record.address());
        }
        None
    }

    fn hand_over(&self, record: &'static Record, now: u64, stage: Stage, seen: &Seen) {
        let case = &record.case;
        let words = [0, 1].map(|word: usize| case.label[word].load(Relaxed));
        let lasted = now.saturating_sub(case.since.load(Relaxed));
        let ran = record.thread.cpu_time().map(nanos);
        let ran = ran.and_then(|ran| ran.checked_sub(case.ran.load(Relaxed)));
        let pending = PendingReport {
            record,
            // SAFETY: noted when the case was opened, from `engage`.
            label: unsafe { record::label(words) },
            lasted,
            ran: ran.map(|ran| ran.min(lasted)),
            stage,
            state: seen.state,
            call: seen.call,
            stack: seen.stack.then(|| record.hand_out()),
        };
        record.engaged.fetch_add(1, SeqCst);
        // SAFETY: the monitor's thread, or that of `close` when there is no monitor.
        if unsafe { self.queue.push(pending) } {
            self.helper.get().inspect(|helper| helper.ask(1));
            return;
        }
        self.missed.fetch_add(1, Relaxed);
        record.disengage();
        pending.stack.inspect(|place| record.give_up(*place));
    }
}

/// Whether the handler has copied the stack in the piece of work of the case.
fn has_answered(record: &Record) -> bool {
    record.answer.load(SeqCst) == record.case.dispatch.load(Relaxed)
}

/// Copies the stack of a thread that does not run; `None` if it runs.
fn look_at_sleeper(record: &Record) -> Option<Seen> {
    let state = record.thread.state();
    if state == ThreadState::Running {
        return None;
    }
    let call = record.thread.system_call();
    record.request.store(0, SeqCst); // it may have been asked while it ran
    let Some(from) = call.filter(|_| record.make_room()) else {
        let stack = false;
        return Some(Seen { state, call, stack });
    };
    let stack = (record.snapshot()).take_asleep(&from, record.stack[1].load(SeqCst));
    if record.thread.system_call() != call {
        record.snapshot().clear(); // it woke meanwhile
        record.case.asked.store(0, Relaxed);
        return None;
    }
    Some(Seen { state, call, stack })
}

impl Pool for Reporter {
    fn workers(&self) -> usize {
        self.used.load(SeqCst)
    }

    fn activity(&self, worker: usize) -> &Activity {
        &self.record(worker).activity
    }

    fn thread(&self, worker: usize) -> Option<&Thread> {
        Some(&self.record(worker).thread)
    }

    fn tick(&self, now: Instant) {
        let now = nanos(now.saturating_duration_since(self.began));
        self.now.store(now, Relaxed);
        self.records().for_each(|record| self.settle(record, now));
    }

    fn overran(&self, worker: usize, dispatch: u64) {
        self.late(self.record(worker), dispatch, false);
    }

    fn asleep(&self, worker: usize, dispatch: u64) {
        self.late(self.record(worker), dispatch, true);
    }

    fn pause(&self) -> Duration {
        self.pause
    }
}

/// The helper's part.
impl Reporter {
    fn report_all(&self) {
        // SAFETY: the helper's thread, or that of `close` when there is no helper.
        while let Some(pending) = unsafe { self.queue.pop() } {
            let stall = stall(&pending);
            // The panic has been printed; the next report is made all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.callback)(&stall)));
        }
    }
}

fn stall(pending: &PendingReport) -> Stall {
    let record = pending.record;
    let frames = pending.stack.map(|place| record.frames(place));
    let thread = record.name().clone();
    record.disengage();
    Stall {
        label: pending.label,
        thread,
        lasted: Duration::from_nanos(pending.lasted),
        ran: pending.ran.map(Duration::from_nanos),
        stage: pending.stage,
        state: pending.state,
        call: pending.call,
        stack: symbols::name(&frames.unwrap_or_default()),
    }
}

impl Chores for Reporter {
    fn help(&self, _asked: u32) -> Option<Duration> {
        self.report_all();
        None
    }
}

/// Releases the records: no thread is enlisted any more, and both threads have ended.
impl Drop for Reporter {
    fn drop(&mut self) {
        self.records().for_each(Record::release);
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Desk {{ seats: {} }}", self.used.load(Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
