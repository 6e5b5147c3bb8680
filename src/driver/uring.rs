#![expect(unsafe_code, reason = "shares memory with the kernel")]
//! Requests that the kernel completes: io_uring, one ring for each worker.
//!
//! A request is written into the *submission queue* as an entry, and told by a number when it is complete, in
//! the *completion queue*. Here the numbers are addresses of operations (`sched/io/ring.rs`), which know who
//! waits; nothing here follows them. Entries are pushed one by one and *submitted* many at a time.
//!
//! *Who may do what.* Anybody may push, and take completions, on any thread, with preemption disabled (S6): each end has a
//! lock of its own, held for a few words. The holder of the worker submits, and the watch (`sched/io/watch.rs`), which
//! runs nobody's code; others ask it to. `pending` counts entries that are in the queue and that
//! nobody has begun to submit. Who submits takes the count and tells the kernel that number, without a lock: the
//! kernel takes entries in order, and one system call after the other. What it did not take is counted again.
//! So an entry is never forgotten, and a number never too large. What must not fail for want of room, a cancel say, is
//! put aside and goes into the queue when there is some.
//!
//! *Sleep.* The holder of the worker sleeps in the system call that submits, and is woken by a bell that the ring
//! polls (`uring/waker.rs`). Who has taken a completion that a sleeper was meant to see nudges it: by a completion for
//! nobody, for which nothing has to be polled.
//!
//! *Nothing is lost.* When the completion queue is full the kernel keeps what does not fit, and says so by a
//! flag, which whoever takes completions looks at when the queue is empty.
//!
//! *When the kernel refuses.* A call that was interrupted, or out of time, is none the worse for it. One that is
//! refused for want of memory, or because completions have to be taken first, passes: whoever slept pauses, and looks
//! again; entries wait. Anything else is said once, and treated alike.
//!
//! Where a wait cannot be given a limit by an argument it gets one by a request of its own.
//!
//! A transfer that has just been tried in vain is told to poll before it tries again, where the kernel knows how:
//! 13 % less CPU for an echo (median of four alternating runs, 64 and 1,000 connections; 5.5 µs a request, epoll 5.1;
//! single runs differ by more).
//! Rejected: a stream that was just emptied goes to the ring without a try, as it waits without one by epoll; no gain
//! was seen: 0.9 times the CPU for an echo with 64 connections, 1.2 with 1,000 (medians of three noisy runs, against a
//! somewhat older build).
//! Rejected, with figures (`docs/rejected.md`, `cargo bench --bench ring`): registered files, provided
//! buffers, multishot RECV and ACCEPT, wake-ups by messages between rings. A registered ring belongs to one thread, which a worker does not.
//! Promising there, and not tried in a runtime: a SEND without a call before it (0.71 to 0.76 of the CPU of an echo; but the
//! fiber parks for each, and what it sends leaves when the worker submits), and an ACCEPT that polls first, as transfers
//! do, after a call in vain (0.82 of an accept, Linux 6.10).
//!
//! Rejected, from what completions depend on: rings of one issuer and deferred task work (a worker changes
//! threads), a kernel thread that submits (it competes with computing fibers: p99 4.5 ms), cooperative task work
//! (2 ms beside a thread that computes).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

pub(crate) use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

use super::epoll::{give_waker_back, take_waker};
use crate::base::loom::{Mutex, lock};
use crate::base::os;

mod entry;
mod probe;
mod waker;

pub(crate) use entry::{Room, entry, finish};
pub(crate) use probe::refusal;
use waker::Waker;

/// Entries a queue has room for before they have to be submitted.
const ENTRIES: u32 = 256;
/// Completions there is room for; more are kept by the kernel.
const COMPLETIONS: u32 = 4096;
/// Completions that are taken at once.
pub(crate) const BATCH: usize = 32;

/// After a refusal.
const PAUSE: Duration = Duration::from_millis(1);

/// Numbers of requests of our own: others have none of these bits.
const WAKER: u64 = 1;
const NOBODY: u64 = 2;
const NUDGE: u64 = 3;
const OWN: u64 = 3;
/// In the number of a poll that nobody's memory depends on: if the ring goes, it goes with it.
pub(crate) const POLL: u64 = 4;

const GETEVENTS: u32 = 1;
const EXT_ARG: u32 = 8;

/// An operation that is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) operation: u64,
    /// What a system call would have returned, with the error as a negative number.
    pub(crate) result: i32,
}

/// What a result says.
#[derive(Debug)]
pub(crate) enum Answer {
    Count(usize),
    /// Nothing was done, because somebody wanted it so.
    Cancelled,
    /// Nothing was done: the ring does not wait for this.
    WouldBlock,
    Failed(io::Error),
}

impl Answer {
    pub(crate) fn of(result: i32) -> Self {
        match (usize::try_from(result), -result) {
            (Ok(count), _) => Answer::Count(count),
            (_, libc::ECANCELED | libc::EINTR) => Answer::Cancelled,
            (_, libc::EAGAIN) => Answer::WouldBlock,
            (_, error) => Answer::Failed(io::Error::from_raw_os_error(error)),
        }
    }
}

pub(crate) struct Uring {
    ring: IoUring,
    /// For whoever pushes, and for whoever takes.
    submissions: Mutex<()>,
    completions: Mutex<Waker>,
    pending: AtomicUsize,
    /// Somebody who may not submit wants it to be done.
    is_urgent: AtomicBool,
    /// Operations that have been pushed, and not been taken.
    in_flight: AtomicUsize,
    /// How many of them are a [`POLL`].
    polls: AtomicUsize,
    /// What did not fit into the queue, and names numbers only.
    aside: Mutex<Vec<Entry>>,
    has_aside: AtomicBool,
    /// There is a nudge on its way, or in the queue for whoever sleeps next.
    is_nudged: AtomicBool,
    waker: RawFd,
    /// The kernel takes a limit with a wait.
    has_limits: bool,
    has_complained: AtomicBool,
}

/// How a call of the kernel went.
struct Call {
    taken: usize,
    /// Entries it should have taken, and did not.
    left: usize,
    /// It did not wait, and would not if it were called again at once.
    refused: bool,
}

/// The argument of a wait.
#[repr(C)]
struct Limit {
    signals: u64,
    size: u32,
    pad: u32,
    time: u64,
}

impl Uring {
    pub(crate) fn new() -> io::Result<Self> {
        Uring::with(ENTRIES, COMPLETIONS)
    }

    fn with(entries: u32, completions: u32) -> io::Result<Self> {
        let ring = probe::make(entries, completions)?;
        let has_limits = ring.params().is_feature_ext_arg();
        Ok(Uring {
            ring,
            submissions: Mutex::new(()),
            completions: Mutex::new(Waker::new()),
            pending: AtomicUsize::new(0),
            is_urgent: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            aside: Mutex::new(Vec::new()),
            has_aside: AtomicBool::new(false),
            is_nudged: AtomicBool::new(false),
            waker: take_waker()?,
            has_limits,
            has_complained: AtomicBool::new(false),
        })
    }

    /// The descriptor that ends a sleep in it, through `os::notify_eventfd`.
    pub(crate) fn waker(&self) -> RawFd {
        self.waker
    }

    /// The ring itself, which is readable when there are completions.
    pub(crate) fn raw(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Operations whose completion nobody has taken so far.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Whether something waits to be submitted. May be called in a signal handler.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(SeqCst) > 0 || self.has_aside.load(SeqCst)
    }

    /// By the holder of the worker: writes an operation down; the kernel knows of it when it is submitted. It is told
    /// by this number, an address or a [`POLL`]. False if there is no room, since the kernel does not take any: take
    /// completions first.
    ///
    /// # Safety
    /// Whatever the entry names stays there until the completion was taken, and so does whoever is at the
    /// address.
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: Entry, number: u64) -> bool {
        debug_assert_eq!(number & OWN, 0, "a number with room for our bits");
        self.count(number, 1);
        // SAFETY: by the caller's promise.
        let pushed = unsafe { self.write(&entry.user_data(number)) };
        if !pushed {
            self.count(number, -1);
        }
        pushed
    }

    fn count(&self, number: u64, more: isize) {
        let more = more as usize; // modulo the size of the word
        if number & POLL != 0 {
            self.polls.fetch_add(more, SeqCst);
        }
        self.in_flight.fetch_add(more, SeqCst);
    }

    /// Asks for the operation of this number to be over, if it is not; its completion comes all the same.
    /// By anybody; to be submitted.
    pub(crate) fn cancel(&self, number: u64) {
        let entry = opcode::AsyncCancel::new(number).build();
        self.write_surely(entry.user_data(NOBODY));
    }

    /// Ends the sleep of whoever sleeps here, or is about to. By whoever has just taken completions; to be submitted.
    pub(crate) fn nudge(&self) {
        // One is enough, until it is taken: then by the sleeper, or by somebody who comes here after that.
        if !self.is_nudged.swap(true, SeqCst) {
            self.write_surely(opcode::Nop::new().build().user_data(NUDGE));
        }
    }

    /// Somebody else than the holder of the worker wants what was pushed to be submitted.
    pub(crate) fn urge(&self) {
        self.is_urgent.store(true, SeqCst);
    }

    /// Whether that was so.
    pub(crate) fn was_urged(&self) -> bool {
        self.is_urgent.load(SeqCst) && self.is_urgent.swap(false, SeqCst)
    }

    /// By the holder of the worker.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    unsafe fn write(&self, entry: &Entry) -> bool {
        loop {
            // SAFETY: by the caller's promise.
            if unsafe { self.try_write(entry) } {
                return true;
            }
            if self.submit() == 0 {
                return false;
            }
        }
    }

    /// # Safety
    /// As for [`push`](Self::push).
    unsafe fn try_write(&self, entry: &Entry) -> bool {
        let turn = lock(&self.submissions);
        // SAFETY: it is our turn, so there is no other.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: by the caller's promise.
        let pushed = unsafe { queue.push(entry) }.is_ok();
        drop(queue); // tells the kernel
        drop(turn);
        if pushed {
            self.pending.fetch_add(1, SeqCst);
        }
        pushed
    }

    /// An entry that names numbers only.
    fn write_surely(&self, entry: Entry) {
        // SAFETY: names numbers only.
        if !unsafe { self.try_write(&entry) } {
            let mut aside = lock(&self.aside);
            aside.push(entry);
            self.has_aside.store(true, SeqCst);
        }
    }

    /// What was put aside goes into the queue, as far as there is room.
    fn write_aside(&self) {
        if !self.has_aside.load(SeqCst) {
            return;
        }
        let mut aside = lock(&self.aside);
        while let Some(entry) = aside.pop() {
            // SAFETY: it names numbers only.
            if !unsafe { self.try_write(&entry) } {
                aside.push(entry);
                break;
            }
        }
        self.has_aside.store(!aside.is_empty(), SeqCst);
    }

    /// Tells the kernel what was pushed; how much of it it took. By the holder of the worker, or the watch.
    pub(crate) fn submit(&self) -> usize {
        let mut all = 0;
        loop {
            self.write_aside();
            let taken = match self.pending.load(SeqCst) {
                0 => 0,
                _ => self.enter(0, 0, None).taken,
            };
            all += taken;
            if taken == 0 || !self.has_aside.load(SeqCst) {
                return all;
            }
        }
    }

    /// Submits, and waits for so many completions. Returns early for no reason.
    fn enter(&self, wanted: u32, flags: u32, limit: Option<&Limit>) -> Call {
        let ours = self.pending.swap(0, SeqCst);
        let number = u32::try_from(ours).expect("no more than there is room for");
        let caller = self.ring.submitter();
        // SAFETY: `limit`, if there is one, is what the flags say, and so is its size.
        let answer = unsafe { caller.enter(number, wanted, flags, limit) };
        let (taken, refused) = match answer {
            Ok(taken) => (taken, false),
            Err(error) => (0, self.is_refusal(&error)),
        };
        let left = ours.saturating_sub(taken);
        if left > 0 {
            self.pending.fetch_add(left, SeqCst);
        }
        Call {
            taken,
            left,
            refused,
        }
    }

    #[cold]
    fn is_refusal(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME) => return false,
            Some(libc::EAGAIN | libc::EBUSY) => {}
            _ if self.has_complained.swap(true, Relaxed) => {}
            _ => os::complain(&format!(
                "indent: io_uring_enter fails: {error}; it is tried again and again\n"
            )),
        }
        true
    }

    /// Submits, and sleeps until there is a completion, the bell rings, or so much time has passed; `None`: for
    /// ever. Returns early for no reason, too. The caller holds the worker, and is known by this number.
    pub(crate) fn sleep(&self, who: usize, time: Option<Duration>) {
        self.write_aside();
        let polled = self.has_bell_polled(who);
        let call = polled.then(|| self.enter_for(time)).flatten();
        if call.as_ref().is_none_or(|call| call.left > 0) {
            lock(&self.completions).unname(); // who knows who submits it
        }
        if call.is_none_or(|call| call.refused) {
            std::thread::sleep(PAUSE); // short enough not to hear a bell
        }
    }

    /// The sleep itself; none if there is no room for what it needs.
    fn enter_for(&self, time: Option<Duration>) -> Option<Call> {
        let Some(time) = time.map(timespec) else {
            return Some(self.enter(1, GETEVENTS, None));
        };
        if self.has_limits {
            let limit = Limit {
                signals: 0,
                size: 0,
                pad: 0,
                time: (&raw const time).addr() as u64,
            };
            return Some(self.enter(1, GETEVENTS | EXT_ARG, Some(&limit)));
        }
        // It is over with the first completion, so it does not wake a later sleeper.
        let entry = opcode::Timeout::new(&time).count(1).build();
        // SAFETY: the kernel only reads the time, when the entry is submitted: now, or, if it refuses, later; then
        // what it finds on this stack is some other time, or none, for a request that is nobody's.
        let pushed = unsafe { self.write(&entry.user_data(NOBODY)) };
        pushed.then(|| self.enter(1, GETEVENTS, None))
    }

    /// Takes what is complete, as far as there is room. By the same. If that is full there may be more. Whom it belongs to
    /// waits for it: preemption is disabled until he is told.
    pub(crate) fn take(&self, batch: &mut [Completion; BATCH]) -> usize {
        let mut waker = lock(&self.completions);
        let mut taken = self.take_queued(&mut waker, batch);
        if taken < BATCH && self.has_overflown() {
            self.enter(0, GETEVENTS, None); // what did not fit
            taken += self.take_queued(&mut waker, &mut batch[taken..]);
        }
        drop(waker);
        let polls = batch[..taken].iter().filter(|c| c.operation & POLL != 0);
        self.polls.fetch_sub(polls.count(), SeqCst);
        self.in_flight.fetch_sub(taken, SeqCst);
        taken
    }

    fn take_queued(&self, waker: &mut Waker, batch: &mut [Completion]) -> usize {
        // SAFETY: the bell is behind the lock of the completions, so there is no other.
        let mut queue = unsafe { self.ring.completion_shared() };
        let mut taken = 0;
        while taken < batch.len() {
            let Some(entry) = queue.next() else { break };
            match entry.user_data() & OWN {
                WAKER => waker.heard(self.waker, &entry),
                NUDGE => self.is_nudged.store(false, SeqCst),
                NOBODY => {}
                _ => {
                    batch[taken] = Completion {
                        operation: entry.user_data(),
                        result: entry.result(),
                    };
                    taken += 1;
                }
            }
        }
        taken
    }

    fn has_overflown(&self) -> bool {
        let _turn = lock(&self.submissions);
        // SAFETY: it is our turn, so there is no other.
        unsafe { self.ring.submission_shared() }.cq_overflow()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let polls = self.polls.load(SeqCst);
        debug_assert_eq!(self.in_flight(), polls, "a ring that goes under somebody");
        give_waker_back(self.waker);
    }
}

fn timespec(time: Duration) -> types::Timespec {
    types::Timespec::new()
        .sec(time.as_secs().min(i64::MAX as u64))
        .nsec(time.subsec_nanos())
}

#[cfg(all(test, not(indent_loom)))]
mod tests;
