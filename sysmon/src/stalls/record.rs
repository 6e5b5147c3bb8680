#![expect(unsafe_code, reason = "puts a label together again")]
//! All that is known about one seat.
//!
//! Who writes what: the thread that has the seat its slot, label and stack; the monitor the case and
//! the request; the handler a snapshot and the answer; the helper takes snapshots. So a word has
//! one writer at a time, and none of them waits.
//!
//! **A label belongs to its dispatch.** The thread, at a beginning: 1 label, 2 count, 3 phase "work"; at
//! an end: 4 phase "idle"; each a release. A reader: 1 label, 2 phase, 3 count, each an acquire. If it
//! saw any of a later label, it sees the "idle" before that, or a later "work" and then a later count:
//! so a label read before phase and count were found unchanged is the one of that count.
//!
//! **A seat is not given away while somebody means its last thread.** Whoever does counts in `engaged`:
//! the monitor, which 1 counts, 2 looks whether the thread is in that piece of work still. Who takes a
//! seat whose thread has left 1 takes it, 2 looks whether anybody is engaged. All of that is
//! sequentially consistent: if the monitor found the thread at work, it had counted before the thread
//! left, so before the seat was taken.
//!
//! Records are made once and never freed. They form a list for the handler, which only grows.

use std::fmt;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Mutex, MutexGuard};

use crate::frames::Snapshot;
use crate::{Activity, Phase, Thread};

/// Words of a stack that are kept.
const WORDS: usize = 2048;
/// Stacks that are kept until the helper has come to them.
const SNAPSHOTS: usize = 4;

pub(super) struct Record {
    pub(super) activity: Activity,
    pub(super) thread: Thread,
    label: AtomicPtr<u8>,
    length: AtomicUsize,
    /// Where the thread's stack begins and ends.
    pub(super) stack: [AtomicUsize; 2],
    /// In which dispatch the handler is to copy the stack, or none: zero.
    pub(super) request: AtomicU64,
    /// In which it has.
    pub(super) answer: AtomicU64,
    snapshots: [Snapshot<WORDS>; SNAPSHOTS],
    /// The one that is written next.
    place: AtomicUsize,
    /// A bit for each snapshot that is the helper's, or will be.
    handed_out: AtomicU32,
    pub(super) case: Case,
    /// How many mean the thread that has it, or had it last.
    pub(super) engaged: AtomicU32,
    taken: AtomicBool,
    name: Mutex<String>,
    /// The next one of all there are.
    next: AtomicPtr<Record>,
}

/// What the monitor remembers of one seat; it alone reads and writes this.
pub(super) struct Case {
    /// The piece of work that was last seen, and since when.
    pub(super) dispatch: AtomicU64,
    pub(super) since: AtomicU64,
    /// How long its thread had run then.
    pub(super) ran: AtomicU64,
    /// How long its thread had run at the last look that found it late.
    pub(super) clock: AtomicU64,
    /// How long it has lasted when it is to be told of.
    pub(super) due: AtomicU64,
    /// How long its thread had run when its stack was asked for; zero if it was not.
    pub(super) asked: AtomicU64,
    /// It is late: the thread is meant, and its label is known.
    pub(super) open: AtomicBool,
    pub(super) told: AtomicBool,
    pub(super) label: [AtomicUsize; 2],
}

impl Case {
    const fn new() -> Self {
        Case {
            dispatch: AtomicU64::new(0),
            since: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            due: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            open: AtomicBool::new(false),
            told: AtomicBool::new(false),
            label: [const { AtomicUsize::new(0) }; 2],
        }
    }
}

/// All records there are.
static FIRST: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
/// Those that are no detector's.
static SPARE: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<&'static Record>> {
    SPARE.lock().unwrap_or_else(|e| e.into_inner())
}

impl Record {
    const fn new() -> Self {
        Record {
            activity: Activity::new(),
            thread: Thread::new(),
            label: AtomicPtr::new(ptr::null_mut()),
            length: AtomicUsize::new(0),
            stack: [const { AtomicUsize::new(0) }; 2],
            request: AtomicU64::new(0),
            answer: AtomicU64::new(0),
            snapshots: [const { Snapshot::new() }; SNAPSHOTS],
            place: AtomicUsize::new(0),
            handed_out: AtomicU32::new(0),
            case: Case::new(),
            engaged: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            name: Mutex::new(String::new()),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// For a detector, which gives it back.
    pub(super) fn acquire() -> &'static Record {
        let mut spare = spare();
        if let Some(record) = spare.pop() {
            return record;
        }
        let record: &'static Record = Box::leak(Box::new(Record::new()));
        // One at a time, by the lock: nobody else adds to the list.
        record.next.store(FIRST.load(Relaxed), Relaxed);
        FIRST.store(ptr::from_ref(record).cast_mut(), Release);
        record
    }

    /// No detector's any more: no thread has it, and neither monitor nor helper know it.
    pub(super) fn release(&'static self) {
        self.snapshots.iter().for_each(Snapshot::clear);
        self.handed_out.store(0, SeqCst);
        self.engaged.store(0, SeqCst);
        self.request.store(0, SeqCst);
        self.case.open.store(false, SeqCst);
        spare().push(self);
    }

    /// The record a signal carries the address of. For handlers.
    pub(super) fn at(address: usize) -> Option<&'static Record> {
        let follow = |at: &AtomicPtr<Record>| {
            let next = at.load(Acquire);
            // SAFETY: null or a record, and those are never freed.
            unsafe { next.as_ref() }
        };
        let mut all = std::iter::successors(follow(&FIRST), |record| follow(&record.next));
        all.find(|record| record.address() == address)
    }

    /// What its signals carry.
    pub(super) fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Whether it can be had; then it is the caller's.
    pub(super) fn take(&self) -> bool {
        if self.taken.swap(true, SeqCst) {
            return false;
        }
        let free = self.engaged.load(SeqCst) == 0;
        if !free {
            self.taken.store(false, SeqCst);
        }
        free
    }

    /// The calling thread, which took it, sits down.
    pub(super) fn enlist(&self, [low, high]: [usize; 2]) {
        self.stack[0].store(low, SeqCst);
        self.stack[1].store(high, SeqCst);
        self.request.store(0, SeqCst);
        self.thread.enlist();
        let thread = std::thread::current();
        let number = self.thread.number().unwrap_or_default();
        let name = thread
            .name()
            .map_or(format!("thread {number}"), str::to_owned);
        *self.name() = name;
    }

    /// The calling thread, which sits here, begins something.
    #[inline]
    pub(super) fn begin(&self, label: &'static str) {
        self.label.store(label.as_ptr().cast_mut(), Release);
        self.length.store(label.len(), Release);
        self.activity.dispatch();
    }

    #[inline]
    pub(super) fn end(&self) {
        self.activity.set_phase(Phase::Idle);
    }

    /// The calling thread ends, or wants to be watched no more: it is not signalled from here on.
    pub(super) fn leave(&self) {
        self.end();
        self.thread.leave();
    }

    /// After it stood up: the seat is free.
    pub(super) fn free(&self) {
        self.leave();
        self.taken.store(false, SeqCst);
    }

    /// Whether the thread is in this piece of work still.
    pub(super) fn is_in(&self, dispatch: u64) -> bool {
        let works = self.activity.phase() == Phase::Fiber;
        fence(Acquire); // in this order, see the head of this file
        works && self.activity.dispatches() == dispatch
    }

    /// The label of this dispatch, in two words, and the thread is meant from here on; none if the
    /// dispatch is over.
    pub(super) fn engage(&self, dispatch: u64) -> Option<[usize; 2]> {
        self.engaged.fetch_add(1, SeqCst);
        let label = [
            self.label.load(Acquire).expose_provenance(),
            self.length.load(Acquire),
        ];
        fence(SeqCst);
        if self.is_in(dispatch) {
            return Some(label);
        }
        self.disengage();
        None
    }

    pub(super) fn disengage(&self) {
        self.engaged.fetch_sub(1, SeqCst);
    }

    /// The monitor: chooses an empty snapshot for the next stack; false if the helper has them all.
    pub(super) fn make_room(&self) -> bool {
        let handed_out = self.handed_out.load(SeqCst);
        let free = (0..SNAPSHOTS).find(|place| handed_out & 1 << place == 0);
        if let Some(place) = free {
            self.place.store(place, SeqCst);
            self.snapshots[place].clear();
        }
        free.is_some()
    }

    /// Where the next stack goes.
    pub(super) fn snapshot(&self) -> &Snapshot<WORDS> {
        // In bounds without a check that could panic: this is for the handler too.
        &self.snapshots[self.place.load(SeqCst) % SNAPSHOTS]
    }

    /// The monitor: the stack that was taken is the helper's, under this number.
    pub(super) fn hand_out(&self) -> usize {
        let place = self.place.load(SeqCst);
        self.handed_out.fetch_or(1 << place, SeqCst);
        place
    }

    /// The frames of a stack that was lent, which is given back.
    pub(super) fn frames(&self, place: usize) -> Vec<usize> {
        let frames = self.snapshots[place].frames();
        self.give_up(place);
        frames.unwrap_or_default()
    }

    /// Nobody wants the stack that was lent.
    pub(super) fn give_up(&self, place: usize) {
        self.snapshots[place].clear();
        self.handed_out.fetch_and(!(1 << place), SeqCst);
    }

    /// The name of the thread that sits here; as long as somebody is engaged it stays.
    pub(super) fn name(&self) -> MutexGuard<'_, String> {
        self.name.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A label again.
///
/// # Safety
/// The words are what [`Record::engage`] gave.
pub(super) unsafe fn label([start, length]: [usize; 2]) -> &'static str {
    let start = ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: both words are of one `&'static str`, see the head of this file.
    let bytes = unsafe { std::slice::from_raw_parts(start, length) };
    // SAFETY: as above, so it is text.
    unsafe { std::str::from_utf8_unchecked(bytes) }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({:?})", self.thread.number())
    }
}
