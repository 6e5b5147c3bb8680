#![expect(unsafe_code, reason = "shares memory with the kernel")]
//! Requests that the kernel completes: io_uring, one ring for each worker.
//!
//! A request is written into the *submission queue* as an entry, and told by a number when it is complete, in
//! the *completion queue*. Here the numbers are addresses of operations (`sched/io/ring.rs`), which know who
//! waits; nothing here follows them. Entries are pushed one by one and *submitted* many at a time.
//!
//! *Who may do what.* Anybody may push, and take completions, on any thread, with the mark up (S6): each end has a
//! lock of its own, held for a few words. The holder of the worker submits, and the watch (`sched/io/watch.rs`), which
//! runs nobody's code; others ask it to. `pending` counts entries that are in the queue and that
//! nobody has begun to submit. Who submits takes the count and tells the kernel that number, without a lock: the
//! kernel takes entries in order, and one system call after the other. What it did not take is counted again.
//! So an entry is never forgotten, and a number never too large.
//!
//! *Sleep.* The holder of the worker sleeps in the system call that submits. Its *bell* (`epoll.rs`) is polled
//! by the ring. Completions of polls are brought about by the thread that submitted them, whatever it does
//! meanwhile; if it sleeps in the kernel, uninterruptibly, they are not. Sockets have to live with that here
//! (hence epoll is what is used unless somebody says otherwise), but wake-ups must not. So whoever sleeps has
//! the bell polled in its own name, and gives up the poll of the one before; it is submitted by the sleeper, or by
//! the watch, which is never stuck. That is told and done under the
//! lock of the completions: either the old poll's completion is still in the queue, and ends the sleep at once, or
//! it was taken, and the poll is known to be over.
//!
//! *Nothing is lost.* When the completion queue is full the kernel keeps what does not fit, and says so by a
//! flag, which whoever takes completions looks at when the queue is empty.
//!
//! Which operations there are is asked, not guessed from versions. Where a wait cannot be given a limit by an
//! argument it gets one by a request of its own.
//!
//! A transfer that has just been tried in vain is told to poll before it tries again, where the kernel knows how:
//! 13 % less CPU for an echo (median of four alternating runs, 64 and 1,000 connections; 5.5 µs a request, epoll 5.1;
//! single runs differ by more).
//! Rejected: a stream that was just emptied goes to the ring without a try, as it waits without one by epoll; no gain
//! was seen: 0.9 times the CPU for an echo with 64 connections, 1.2 with 1,000 (medians of three noisy runs, against a
//! somewhat older build).
//! Not tried: multishot accept, registered files, provided buffers, wake-ups by messages between rings. A registered
//! ring belongs to one thread, which a worker does not.
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
use io_uring::{IoUring, Probe, cqueue, opcode, types};

use super::epoll::{give_bell_back, take_bell};
use crate::base::loom::{Mutex, lock};

mod entry;

pub(crate) use entry::{Room, entry, finish};

/// Entries a queue has room for before they have to be submitted.
const ENTRIES: u32 = 256;
/// Completions there is room for; more are kept by the kernel.
const COMPLETIONS: u32 = 4096;
/// Completions that are taken at once.
pub(crate) const BATCH: usize = 32;

/// Numbers of requests that are no operations: addresses have none of these bits.
const BELL: u64 = 1;
const NOBODY: u64 = 2;
const KIND: u64 = 7;

const GETEVENTS: u32 = 1;
const EXT_ARG: u32 = 8;

/// What a ring is used for, and thus has to know.
const NEEDED: [(u8, &str); 11] = [
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::PollRemove::CODE, "POLL_REMOVE"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::Send::CODE, "SEND"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::Timeout::CODE, "TIMEOUT"),
];

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
    completions: Mutex<Bell>,
    pending: AtomicUsize,
    /// Somebody who may not submit wants it to be done.
    is_urgent: AtomicBool,
    /// Operations that have been pushed, and not been taken.
    in_flight: AtomicUsize,
    bell: RawFd,
    /// The kernel takes a limit with a wait.
    has_limits: bool,
}

/// How the bell is polled.
struct Bell {
    /// In whose name, by which request.
    polled: Option<(usize, u64)>,
    requests: u64,
    /// One request for all rings of the bell; not every kernel can.
    for_good: bool,
}

/// The argument of a wait.
#[repr(C)]
struct Limit {
    signals: u64,
    size: u32,
    pad: u32,
    time: u64,
}

/// Transfers can be told to poll before they try. Known when somebody has asked for a [`refusal`].
static POLLS_FIRST: AtomicBool = AtomicBool::new(false);

fn polls_first() -> bool {
    POLLS_FIRST.load(Relaxed)
}

/// Why rings cannot be used here, if so.
pub(crate) fn refusal() -> Option<io::Error> {
    let check = || {
        let ring = IoUring::new(1)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if let Some((_, name)) = NEEDED.iter().find(|(code, _)| !probe.is_supported(*code)) {
            let what = format!("this kernel's io_uring has no {name}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        // There is no other sign of it: it came with this operation.
        POLLS_FIRST.store(probe.is_supported(opcode::Socket::CODE), Relaxed);
        if !ring.params().is_feature_nodrop() {
            let what = "this kernel's io_uring loses completions when there are many";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(())
    };
    check().err()
}

impl Uring {
    pub(crate) fn new() -> io::Result<Self> {
        Uring::with(ENTRIES, COMPLETIONS)
    }

    fn with(entries: u32, completions: u32) -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .setup_clamp()
            .setup_cqsize(completions)
            .dontfork()
            .build(entries)?;
        let has_limits = ring.params().is_feature_ext_arg();
        Ok(Uring {
            ring,
            submissions: Mutex::new(()),
            completions: Mutex::new(Bell {
                polled: None,
                requests: 0,
                for_good: true,
            }),
            pending: AtomicUsize::new(0),
            is_urgent: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            bell: take_bell()?,
            has_limits,
        })
    }

    /// What wakes whoever sleeps in it, by `os::ring_eventfd`.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell
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
        self.pending.load(SeqCst) > 0
    }

    /// By the holder of the worker: writes an operation down; the kernel knows of it when it is submitted. False if there is no room, since
    /// the kernel does not take any: take completions first.
    ///
    /// # Safety
    /// Whatever the entry names stays there until the completion was taken, and so does whoever is at the
    /// address.
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: Entry, address: usize) -> bool {
        let number = address as u64;
        debug_assert_eq!(number & KIND, 0, "an address with room for our bits");
        self.in_flight.fetch_add(1, SeqCst);
        // SAFETY: by the caller's promise.
        let pushed = unsafe { self.write(&entry.user_data(number)) };
        if !pushed {
            self.in_flight.fetch_sub(1, SeqCst);
        }
        pushed
    }

    /// Asks for the operation at this address to be over, if it is not; its completion comes all the same.
    /// False if there is no room. By anybody; to be submitted.
    #[must_use]
    pub(crate) fn cancel(&self, address: usize) -> bool {
        let entry = opcode::AsyncCancel::new(address as u64).build();
        // SAFETY: names a number only.
        unsafe { self.try_write(&entry.user_data(NOBODY)) }
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

    /// Tells the kernel what was pushed; how much of it it took. By the holder of the worker, or the watch.
    pub(crate) fn submit(&self) -> usize {
        match self.pending.load(SeqCst) {
            0 => 0,
            _ => self.enter(0, 0, None),
        }
    }

    /// Submits, and waits for so many completions. Returns early for no reason.
    fn enter(&self, wanted: u32, flags: u32, limit: Option<&Limit>) -> usize {
        let ours = self.pending.swap(0, SeqCst);
        let number = u32::try_from(ours).expect("no more than there is room for");
        let caller = self.ring.submitter();
        // SAFETY: `limit`, if there is one, is what the flags say, and so is its size.
        let taken = unsafe { caller.enter(number, wanted, flags, limit) }.unwrap_or(0);
        if taken < ours {
            self.pending.fetch_add(ours - taken, SeqCst);
        }
        taken
    }

    /// Submits, and sleeps until there is a completion, the bell rings, or so much time has passed; `None`: for
    /// ever. Returns early for no reason, too. The caller holds the worker, and is known by this number.
    pub(crate) fn sleep(&self, who: usize, time: Option<Duration>) {
        if !self.has_bell_polled(who) {
            return;
        }
        let time = time.map(timespec);
        match &time {
            Some(time) if self.has_limits => {
                let limit = Limit {
                    signals: 0,
                    size: 0,
                    pad: 0,
                    time: std::ptr::from_ref(time).addr() as u64,
                };
                self.enter(1, GETEVENTS | EXT_ARG, Some(&limit));
            }
            Some(time) => {
                // It is over with the first completion, so it does not wake a later sleeper.
                let entry = opcode::Timeout::new(time).count(1).build();
                // SAFETY: the kernel reads the time when the entry is submitted, which is now.
                if unsafe { self.write(&entry.user_data(NOBODY)) } {
                    self.enter(1, GETEVENTS, None);
                }
            }
            None => {
                self.enter(1, GETEVENTS, None);
            }
        }
    }

    /// Sees to it that the bell is polled in this name, from the next submission on. False if there is no room.
    fn has_bell_polled(&self, who: usize) -> bool {
        let mut bell = lock(&self.completions);
        match bell.polled {
            Some((name, _)) if name == who => return true,
            Some((_, old)) => {
                let entry = opcode::PollRemove::new(old).build();
                // SAFETY: names a number only.
                if !unsafe { self.write(&entry.user_data(NOBODY)) } {
                    return false;
                }
            }
            None => {}
        }
        bell.requests += 1;
        let number = (bell.requests * (KIND + 1)) | BELL;
        let entry = opcode::PollAdd::new(types::Fd(self.bell), libc::POLLIN as u32)
            .multi(bell.for_good)
            .build();
        // SAFETY: names a number only.
        let pushed = unsafe { self.write(&entry.user_data(number)) };
        bell.polled = pushed.then_some((who, number));
        pushed
    }

    /// Takes what is complete, as far as there is room. By the same. If that is full there may be more. Whom it belongs to
    /// waits for it: the mark is up until he is told.
    pub(crate) fn take(&self, batch: &mut [Completion; BATCH]) -> usize {
        let mut bell = lock(&self.completions);
        let mut taken = self.take_queued(&mut bell, batch);
        if taken < BATCH && self.has_overflown() {
            self.enter(0, GETEVENTS, None); // what did not fit
            taken += self.take_queued(&mut bell, &mut batch[taken..]);
        }
        drop(bell);
        self.in_flight.fetch_sub(taken, SeqCst);
        taken
    }

    fn take_queued(&self, bell: &mut Bell, batch: &mut [Completion]) -> usize {
        // SAFETY: the bell is behind the lock of the completions, so there is no other.
        let mut queue = unsafe { self.ring.completion_shared() };
        let mut taken = 0;
        while taken < batch.len() {
            let Some(entry) = queue.next() else { break };
            match entry.user_data() & KIND {
                BELL => bell.heard(self.bell, &entry),
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

impl Bell {
    /// A completion of a poll of the bell.
    fn heard(&mut self, eventfd: RawFd, entry: &cqueue::Entry) {
        let is_ours = self
            .polled
            .is_some_and(|(_, number)| number == entry.user_data());
        if !is_ours || cqueue::more(entry.flags()) {
            return;
        }
        self.polled = None;
        if entry.result() == -libc::EINVAL {
            self.for_good = false;
        }
        if !self.for_good {
            let mut count = 0_u64;
            // SAFETY: writes at most eight bytes to `count`. Fails if it has not rung, without waiting.
            unsafe { libc::read(eventfd, (&raw mut count).cast(), size_of::<u64>()) };
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        debug_assert_eq!(self.in_flight(), 0, "a ring that goes under somebody");
        give_bell_back(self.bell);
    }
}

fn timespec(time: Duration) -> types::Timespec {
    types::Timespec::new()
        .sec(time.as_secs().min(i64::MAX as u64))
        .nsec(time.subsec_nanos())
}

#[cfg(all(test, not(indent_loom)))]
mod tests;
