#![expect(unsafe_code, reason = "reassembles a label from its two words")]
//! Everything known about one watched thread.
//!
//! Writers: the enlisted thread writes its activity, label and stack; the monitor the case and
//! the request; the handler a snapshot and the answer; the helper takes snapshots. So a word has
//! one writer at a time, and none of them waits.
//!
//! **A label belongs to its dispatch.** The thread, at a beginning: 1 label, 2 count, 3 phase
//! "work"; at an end: 4 phase "idle"; each a release. A reader: 1 label, 2 phase, 3 count, each an
//! acquire. If it saw any word of a later label, it sees the "idle" before that, or a later "work"
//! and then a later count: so a label read before phase and count were found unchanged is the label
//! of that count.
//!
//! **A record is not given to another thread while its last thread is still meant.** `engaged`
//! counts the users of a record's thread. The monitor 1 increments it, 2 checks that the thread is
//! still in that piece of work. A thread that takes a record whose thread has left 1 takes it, 2
//! checks that `engaged` is zero. All of that is sequentially consistent: if the monitor found the
//! thread at work, it had counted before the thread left, so before the record was taken.
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

/// Words of a stack that are copied.
const WORDS: usize = 2048;
/// Stack copies that are kept until the helper has processed them.
const SNAPSHOTS: usize = 4;

pub(super) struct Record {
    pub(super) activity: Activity,
    pub(super) thread: Thread,
    label: AtomicPtr<u8>,
    length: AtomicUsize,
    /// Start and end of the thread's stack.
    pub(super) stack: [AtomicUsize; 2],
    /// The dispatch in which the handler must copy the stack; zero for none.
    pub(super) request: AtomicU64,
    /// The dispatch in which the handler copied it.
    pub(super) answer: AtomicU64,
    snapshots: [Snapshot<WORDS>; SNAPSHOTS],
    /// Index of the snapshot that is written next.
    place: AtomicUsize,
    /// One bit for each snapshot that is the helper's, or will be.
    handed_out: AtomicU32,
    pub(super) case: Case,
    /// How many users mean the thread that has this record, or had it last.
    pub(super) engaged: AtomicU32,
    taken: AtomicBool,
    name: Mutex<String>,
    /// The next record in the list of all.
    next: AtomicPtr<Record>,
}

/// What the monitor remembers about one record; only the monitor reads and writes this.
pub(super) struct Case {
    /// The piece of work that was last seen, and since when.
    pub(super) dispatch: AtomicU64,
    pub(super) since: AtomicU64,
    /// CPU time of its thread at that moment.
    pub(super) ran: AtomicU64,
    /// CPU time of its thread at the last look that found it late.
    pub(super) clock: AtomicU64,
    /// The length at which it is due for a report.
    pub(super) due: AtomicU64,
    /// CPU time of its thread when its stack was requested; zero if it was not.
    pub(super) asked: AtomicU64,
    /// The work is late: the record is engaged, and its label is known.
    pub(super) open: AtomicBool,
    pub(super) reported: AtomicBool,
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
            reported: AtomicBool::new(false),
            label: [const { AtomicUsize::new(0) }; 2],
        }
    }
}

/// The list of all records.
static FIRST: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
/// Records that no detector uses.
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

    /// Returns a record for a detector, which releases it later.
    pub(super) fn acquire() -> &'static Record {
        let mut spare = spare();
        if let Some(record) = spare.pop() {
            return record;
        }
        let record: &'static Record = Box::leak(Box::new(Record::new()));
        // One thread at a time, by the lock: no other thread adds to the list.
        record.next.store(FIRST.load(Relaxed), Relaxed);
        FIRST.store(ptr::from_ref(record).cast_mut(), Release);
        record
    }

    /// Returns a record from a detector: no thread has it, and neither monitor nor helper use it.
    pub(super) fn release(&'static self) {
        self.snapshots.iter().for_each(Snapshot::clear);
        self.handed_out.store(0, SeqCst);
        self.engaged.store(0, SeqCst);
        self.request.store(0, SeqCst);
        self.case.open.store(false, SeqCst);
        spare().push(self);
    }

    /// Finds the record whose address a signal carries. For signal handlers.
    pub(super) fn at(address: usize) -> Option<&'static Record> {
        let follow = |at: &AtomicPtr<Record>| {
            let next = at.load(Acquire);
            // SAFETY: null or a record, and those are never freed.
            unsafe { next.as_ref() }
        };
        let mut all = std::iter::successors(follow(&FIRST), |record| follow(&record.next));
        all.find(|record| record.address() == address)
    }

    /// The address that its signals carry.
    pub(super) fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Tries to take the record for the calling thread; returns false if it is in use.
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

    /// Enlists the calling thread, which took the record.
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

    /// Begins a piece of work on the calling thread, which is enlisted here.
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

    /// Ends the watch of the calling thread: it is not signalled from here on.
    pub(super) fn leave(&self) {
        self.end();
        self.thread.leave();
    }

    /// Leaves, and makes the record free for another thread.
    pub(super) fn free(&self) {
        self.leave();
        self.taken.store(false, SeqCst);
    }

    /// Whether the thread is still in this piece of work.
    pub(super) fn is_in(&self, dispatch: u64) -> bool {
        let works = self.activity.phase() == Phase::Fiber;
        fence(Acquire); // in this order, see the head of this file
        works && self.activity.dispatches() == dispatch
    }

    /// Returns the label of this dispatch, in two words, and engages the record.
    ///
    /// `None` if the dispatch has ended.
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

    /// Monitor: chooses a free snapshot for the next stack; false if the helper has them all.
    pub(super) fn make_room(&self) -> bool {
        let handed_out = self.handed_out.load(SeqCst);
        let free = (0..SNAPSHOTS).find(|place| handed_out & 1 << place == 0);
        if let Some(place) = free {
            self.place.store(place, SeqCst);
            self.snapshots[place].clear();
        }
        free.is_some()
    }

    /// The snapshot that takes the next stack.
    pub(super) fn snapshot(&self) -> &Snapshot<WORDS> {
        // In bounds without a check that could panic: this is for the handler too.
        &self.snapshots[self.place.load(SeqCst) % SNAPSHOTS]
    }

    /// Monitor: hands the taken stack to the helper, under the returned index.
    pub(super) fn hand_out(&self) -> usize {
        let place = self.place.load(SeqCst);
        self.handed_out.fetch_or(1 << place, SeqCst);
        place
    }

    /// Returns the frames of a stack that was handed out, and takes it back.
    pub(super) fn frames(&self, place: usize) -> Vec<usize> {
        let frames = self.snapshots[place].frames();
        self.give_up(place);
        frames.unwrap_or_default()
    }

    /// Takes back a stack that was handed out and is not needed.
    pub(super) fn give_up(&self, place: usize) {
        self.snapshots[place].clear();
        self.handed_out.fetch_and(!(1 << place), SeqCst);
    }

    /// The name of the enlisted thread; stable while the record is engaged.
    pub(super) fn name(&self) -> MutexGuard<'_, String> {
        self.name.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Reassembles a label.
///
/// # Safety
/// The words are what [`Record::engage`] returned.
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
