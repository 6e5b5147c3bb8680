#![expect(unsafe_code, reason = "shares memory with the kernel")]
//! Completion: io_uring, one ring for each worker.
//!
//! A request is written into the *submission queue* as an *entry* with a number. When the kernel
//! has carried it out, a *completion* with that number is in the *completion queue*. Here the
//! numbers are addresses of operations (`sched/io/operation.rs`), which know their waiters; nothing
//! in this module follows them. Entries are pushed one by one and *submitted* many at a time.
//!
//! *Which thread may do what.* Any thread may push, and take completions, with preemption disabled
//! (S6): each end has a lock of its own, held for a few words. The holder of the worker submits,
//! and the I/O poller (`sched/io/poller.rs`), which runs no user code; other threads ask it to.
//!
//! *Submission.* `pending` counts entries that are in the queue and that no thread has begun to
//! submit. A thread that submits takes the count and passes it to the kernel as the number of
//! entries, without a lock: the kernel takes entries in order, and one system call after the other.
//! What it did not take is counted again. So an entry is never forgotten, and a number never too
//! large. Entries that must not fail for want of room, cancels for instance, are put aside in
//! `deferred` and go into the queue when there is some.
//!
//! *Sleep.* The holder of the worker sleeps in the system call that submits, and is woken through
//! an eventfd that the ring polls (`uring/waker.rs`). A thread that has taken a completion that a
//! sleeper was meant to see *nudges* the sleeper: by a completion of a NOP, for which nothing has
//! to be polled.
//!
//! *Nothing is lost.* When the completion queue is full the kernel keeps what does not fit, and
//! sets a flag, which a thread that takes completions looks at when the queue is empty.
//!
//! *When the kernel refuses.* A call that was interrupted or has timed out was not refused. A call
//! that is refused for want of memory, or because completions have to be taken first, succeeds
//! later: a sleeper pauses, and looks again; entries wait. Any other error is reported once, and
//! treated alike.
//!
//! Where a wait cannot be given a limit by an argument it gets one by a request of its own.
//!
//! A transfer that has just failed with `WouldBlock` is to poll before it tries again, where the
//! kernel knows how: that saves CPU time.
//!
//! Rejected (`docs/rejected.md`, `cargo bench --bench ring`):
//! - To give the read of a stream that was just emptied to the ring without a try, as it waits
//!   without one by epoll: no gain.
//! - Registered files, provided buffers, multishot RECV and ACCEPT, wake-ups by messages between
//!   rings. A registered ring belongs to one thread, which a worker does not.
//! - For what completions then depend on: rings of one issuer and deferred task work (a worker
//!   changes threads), a kernel thread that submits (it competes with computing fibers),
//!   cooperative task work (completions are late beside a thread that computes).
//!
//! Promising, and not tried in a runtime: a SEND without a call before it (but the fiber parks for
//! each, and what it sends leaves when the worker submits), and an ACCEPT that polls first, as
//! transfers do, after a call that would have blocked.

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
use crate::sys::stderr;
use crate::util::loom::{Mutex, lock};

mod entry;
mod probe;
mod waker;

pub(crate) use entry::{Message, entry, write_back};
pub(crate) use probe::refusal;
use waker::Waker;

/// Entries a queue has room for before they have to be submitted.
const ENTRIES: u32 = 256;
/// Completions there is room for; more are kept by the kernel.
const COMPLETIONS: u32 = 4096;
/// Completions that are taken under one lock hold.
pub(crate) const COMPLETION_BATCH: usize = 32;

/// Before the kernel is asked again after a refusal.
const PAUSE: Duration = Duration::from_millis(1);

/// Bits in the numbers of the ring's own requests. Numbers of operations have none of them.
const OWN_BITS: u64 = 3;
/// A poll of the waker.
const WAKER: u64 = 1;
/// A request whose completion means nothing.
const IGNORED: u64 = 2;
const NUDGE: u64 = 3;
/// A bit in the number of a poll that no memory depends on: it may be in flight when the ring is
/// dropped.
pub(crate) const POLL: u64 = 4;

const GETEVENTS: u32 = 1;
const EXT_ARG: u32 = 8;

/// A completed operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) operation: u64,
    /// What a system call would have returned, with an error as a negative number.
    pub(crate) result: i32,
}

/// The meaning of a completion's result.
#[derive(Debug)]
pub(crate) enum Answer {
    Count(usize),
    /// Nothing was done, because it was cancelled.
    Cancelled,
    /// Nothing was done: the ring does not wait on this descriptor.
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

/// A ring: a submission queue and a completion queue shared with the kernel.
pub(crate) struct Uring {
    ring: IoUring,
    /// Held to push.
    submissions: Mutex<()>,
    /// Held to take completions.
    completions: Mutex<Waker>,
    /// Entries in the queue that no thread has begun to submit.
    pending: AtomicUsize,
    /// A thread that may not submit has asked for it.
    submit_requested: AtomicBool,
    /// Operations that have been pushed, and whose completions have not been taken.
    in_flight: AtomicUsize,
    /// How many of them are a [`POLL`].
    polls: AtomicUsize,
    /// Entries that did not fit into the queue. They name numbers only.
    deferred: Mutex<Vec<Entry>>,
    has_deferred: AtomicBool,
    /// There is a nudge on its way, or in the queue for the next sleeper.
    is_nudged: AtomicBool,
    waker: RawFd,
    /// The kernel takes a time limit with a wait.
    has_limits: bool,
    has_complained: AtomicBool,
}

/// What a call of `io_uring_enter` did.
struct EnterResult {
    taken: usize,
    /// Entries it should have taken, and did not.
    left: usize,
    /// It did not wait, and would not if it were made again at once.
    refused: bool,
}

/// The argument of a wait with a time limit.
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
            submit_requested: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            deferred: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            is_nudged: AtomicBool::new(false),
            waker: take_waker()?,
            has_limits,
            has_complained: AtomicBool::new(false),
        })
    }

    /// The eventfd that ends a sleep in it, through `eventfd::notify`.
    pub(crate) fn waker(&self) -> RawFd {
        self.waker
    }

    /// The ring's own descriptor, which is readable when there are completions.
    pub(crate) fn raw(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Operations whose completions have not been taken.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Whether there is an operation whose completion has not been taken.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight() > 0
    }

    /// Whether entries wait to be submitted. May be called in a signal handler.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(SeqCst) > 0 || self.has_deferred.load(SeqCst)
    }

    /// Writes an operation into the submission queue; the kernel sees it when it is submitted.
    ///
    /// Its completion bears `number`, an address or a [`POLL`]. False if there is no room, since
    /// the kernel does not take entries: take completions first. Called by the holder of the
    /// worker.
    ///
    /// # Safety
    /// Whatever the entry names stays there until the completion was taken, and so does what is at
    /// the address.
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: Entry, number: u64) -> bool {
        debug_assert_eq!(number & OWN_BITS, 0, "the number has bits of the ring");
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

    /// Asks the kernel to cancel the operation with this number; its completion comes all the same.
    ///
    /// Called by any thread; to be submitted.
    pub(crate) fn cancel(&self, number: u64) {
        let entry = opcode::AsyncCancel::new(number).build();
        self.write_or_defer(entry.user_data(IGNORED));
    }

    /// Ends the sleep of a thread that sleeps here, or is about to.
    ///
    /// Called by a thread that has just taken completions; to be submitted.
    pub(crate) fn nudge(&self) {
        // One is enough until it is taken: by the sleeper, or by a thread that comes here later.
        if !self.is_nudged.swap(true, SeqCst) {
            self.write_or_defer(opcode::Nop::new().build().user_data(NUDGE));
        }
    }

    /// Notes that what was pushed is to be submitted, for a thread that may submit.
    pub(crate) fn request_submit(&self) {
        self.submit_requested.store(true, SeqCst);
    }

    /// Whether [`request_submit`](Self::request_submit) was called since the last call.
    pub(crate) fn take_submit_request(&self) -> bool {
        self.submit_requested.load(SeqCst) && self.submit_requested.swap(false, SeqCst)
    }

    /// Pushes an entry, and submits to make room for it. Called by the holder of the worker.
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
        let held = lock(&self.submissions);
        // SAFETY: the lock of the submissions is held, so there is no other handle of the queue.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: by the caller's promise.
        let pushed = unsafe { queue.push(entry) }.is_ok();
        drop(queue); // publishes the entry
        drop(held);
        if pushed {
            self.pending.fetch_add(1, SeqCst);
        }
        pushed
    }

    /// Pushes an entry that names numbers only, or puts it aside.
    fn write_or_defer(&self, entry: Entry) {
        // SAFETY: names numbers only.
        if !unsafe { self.try_write(&entry) } {
            let mut deferred = lock(&self.deferred);
            deferred.push(entry);
            self.has_deferred.store(true, SeqCst);
        }
    }

    /// Pushes the entries that were put aside, as far as there is room.
    fn write_deferred(&self) {
        if !self.has_deferred.load(SeqCst) {
            return;
        }
        let mut deferred = lock(&self.deferred);
        while let Some(entry) = deferred.pop() {
            // SAFETY: it names numbers only.
            if !unsafe { self.try_write(&entry) } {
                deferred.push(entry);
                break;
            }
        }
        self.has_deferred.store(!deferred.is_empty(), SeqCst);
    }

    /// Submits what was pushed; returns how many entries the kernel took.
    ///
    /// Called by the holder of the worker, or the I/O poller.
    pub(crate) fn submit(&self) -> usize {
        let mut all = 0;
        loop {
            self.write_deferred();
            let taken = match self.pending.load(SeqCst) {
                0 => 0,
                _ => self.enter(0, 0, None).taken,
            };
            all += taken;
            if taken == 0 || !self.has_deferred.load(SeqCst) {
                return all;
            }
        }
    }

    /// Submits, and waits for `wanted` completions. May return early for no reason.
    fn enter(&self, wanted: u32, flags: u32, limit: Option<&Limit>) -> EnterResult {
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
        EnterResult {
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
            _ => stderr::print(&format!(
                "indent: io_uring_enter fails: {error}; it is tried again and again\n"
            )),
        }
        true
    }

    /// Submits, and sleeps until there is a completion, the waker is notified, or `time` has
    /// passed; `None`: without a limit. May return early for no reason.
    ///
    /// The caller holds the worker; `carrier` is its index.
    pub(crate) fn sleep(&self, carrier: usize, time: Option<Duration>) {
        self.write_deferred();
        let is_polled = self.poll_waker(carrier);
        let entered = is_polled.then(|| self.enter_for(time)).flatten();
        if entered.as_ref().is_none_or(|entered| entered.left > 0) {
            lock(&self.completions).forget_owner(); // any thread may submit the poll
        }
        if entered.is_none_or(|entered| entered.refused) {
            std::thread::sleep(PAUSE); // so short that a notification may come during it
        }
    }

    /// The sleep itself; `None` if there is no room for the entry it needs.
    fn enter_for(&self, time: Option<Duration>) -> Option<EnterResult> {
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
        // It ends with the first completion, so it does not wake a later sleeper.
        let entry = opcode::Timeout::new(&time).count(1).build();
        // SAFETY: the kernel only reads the time, when the entry is submitted: now, or, if it
        // refuses, later; then what it finds on this stack is some other time, or none, for a
        // request whose completion is ignored.
        let pushed = unsafe { self.write(&entry.user_data(IGNORED)) };
        pushed.then(|| self.enter(1, GETEVENTS, None))
    }

    /// Takes completions into `batch`, and returns their number. If `batch` is full there may be
    /// more.
    ///
    /// Fibers wait for them: the caller keeps preemption disabled until it has notified them.
    pub(crate) fn take(&self, batch: &mut [Completion; COMPLETION_BATCH]) -> usize {
        let mut waker = lock(&self.completions);
        let mut taken = self.take_queued(&mut waker, batch);
        if taken < COMPLETION_BATCH && self.has_overflown() {
            self.enter(0, GETEVENTS, None); // moves what did not fit into the queue
            taken += self.take_queued(&mut waker, &mut batch[taken..]);
        }
        drop(waker);
        let polls = batch[..taken].iter().filter(|c| c.operation & POLL != 0);
        self.polls.fetch_sub(polls.count(), SeqCst);
        self.in_flight.fetch_sub(taken, SeqCst);
        taken
    }

    fn take_queued(&self, waker: &mut Waker, batch: &mut [Completion]) -> usize {
        // SAFETY: `waker` is behind the lock of the completions, so there is no other handle of
        // the queue.
        let mut queue = unsafe { self.ring.completion_shared() };
        let mut taken = 0;
        while taken < batch.len() {
            let Some(entry) = queue.next() else { break };
            match entry.user_data() & OWN_BITS {
                WAKER => waker.on_completion(self.waker, &entry),
                NUDGE => self.is_nudged.store(false, SeqCst),
                IGNORED => {}
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
        let _held = lock(&self.submissions);
        // SAFETY: the lock of the submissions is held, so there is no other handle of the queue.
        unsafe { self.ring.submission_shared() }.cq_overflow()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let polls = self.polls.load(SeqCst);
        debug_assert_eq!(
            self.in_flight(),
            polls,
            "a ring is dropped with operations in flight"
        );
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
