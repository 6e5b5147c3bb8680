//! Waiting for descriptors: who waits, who is told, and by whom.
//!
//! A runtime has one epoll instance ([`Epoll`], the *set*), made when a fiber first waits for a
//! descriptor. A descriptor joins the set of the runtime that its first waiter belongs to and stays
//! there until it is closed. Events are taken
//!
//! - by workers: now and then while they have other work, and when they run out of it; a worker
//!   that sleeps may do so in the set (`polling_right.rs`);
//! - by the poller thread (`poller.rs`) while all workers are in dispatches that are known to be
//!   long.
//!
//! The thread that takes an event wakes the fibers that wait for it, like any other waker: a fiber
//! that should not have to wait presses (`press.rs`).
//!
//! A *source* is what is known of one descriptor: for each way, reading and writing, how often
//! something was told of it, and who waits.
//!
//! **I23** *No event is lost.* The kernel reports each change once. A fiber that waits has read the
//! event count, then made a call that would have blocked, then read the count again under the lock
//! of the direction. If the count is the same the fiber joins the list, else it tries again. An
//! event after the first read has changed the count, or finds the fiber on the list. This holds for
//! each of several waiters: an event is not used up by the first. **I24** *A waiter is notified
//! once, or withdraws.* Both take it off the list under the lock; a notifier that took it off keeps
//! the preemption disabled until it has notified it (S6).
//!
//! All this is about the set; a runtime with `INDENT_IO=uring` uses rings instead (`operation.rs` here
//! below, and `polls.rs` for selects), and has no set.
//!
//! Sources are never freed, and used again under another *generation*: events of a descriptor that
//! was closed meanwhile are ignored.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::base::descriptor::Interest;
use crate::base::fork;
use crate::base::loom::{Mutex, lock};
use crate::driver::epoll::{Epoll, Events, Ready};
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::context;
use crate::sched::io::polls::Polls;
use crate::sched::wake::{DeferredDrop, Waiter};
use crate::sched::worker::Worker;
use crate::sched::{Shared, block};

mod direction;
pub(crate) mod operation;
pub(crate) mod poller;
pub(crate) mod polling_right;
mod polls;
mod runtime_drops;

use direction::{Direction, NOTIFY_BATCH};
pub(crate) use runtime_drops::{RuntimeDrops, drop_deferred_runtimes};

/// How a wait ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It may be ready.
    Ready,
    TimedOut,
    /// The fiber is to end.
    Cancelled,
}

/// What had been told of one way of a descriptor at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadinessToken {
    /// As in [`Registration`].
    key: u64,
    pub(crate) events: u32,
}

/// What is known of one descriptor.
#[derive(Default)]
struct FdRecord {
    generation: AtomicU32,
    /// In whose set it is, while it is in one.
    membership: Mutex<Option<Membership>>,
    directions: [Mutex<Direction>; 2],
    /// How often something was told of each way. Counted under its lock.
    event_counts: [AtomicU32; 2],
    /// It has an end, an error or an urgent byte to tell, or had.
    odd: AtomicBool,
    /// Who waits by a ring.
    polls: [Mutex<Polls>; 2],
}

/// The set that a descriptor is in.
struct Membership {
    runtime: Weak<Shared>,
    /// Another number for the same open file, if the descriptor itself is there under another key: somebody
    /// else waits for it, too, with a registration of its own.
    duplicate: Option<OwnedFd>,
}

impl Membership {
    fn new(shared: &Shared, fd: BorrowedFd<'_>, key: u64) -> io::Result<Self> {
        let set = shared.set()?;
        let duplicate = match set.add(fd, key) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let duplicate = fd.try_clone_to_owned()?;
                set.add(duplicate.as_fd(), key)?;
                Some(duplicate)
            }
            added => added.map(|()| None)?,
        };
        Ok(Membership {
            runtime: Arc::downgrade(&shared.arc()),
            duplicate,
        })
    }

    /// Whether it is the set of this runtime. Another runtime may end, or be busy.
    fn belongs_to(&self, shared: &Shared) -> bool {
        ptr::eq(self.runtime.as_ptr(), shared)
    }

    /// Takes it out of the set. What is left may be the last of a runtime: to be dropped with preemption enabled.
    #[must_use = "dropped with preemption enabled"]
    fn remove(self, fd: BorrowedFd<'_>) -> (Membership, Option<Arc<Shared>>) {
        let runtime = self.runtime.upgrade();
        if let Some(set) = runtime.as_ref().and_then(|at| at.io_set.get()) {
            set.remove(
                self.duplicate
                    .as_ref()
                    .map_or(fd, |duplicate| duplicate.as_fd()),
            );
        }
        (self, runtime)
    }
}

const CHUNKS: usize = 4096;
const CHUNK: usize = 1024;
static RECORDS: [OnceLock<Box<[FdRecord]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
/// Made when it is first used: a model's mutex has no constant constructor.
static FREE: LazyLock<Mutex<Free>> = LazyLock::new(|| {
    Mutex::new(Free {
        list: Vec::new(),
        used: 0,
    })
});

struct Free {
    list: Vec<u32>,
    used: u32,
}

fn record(index: u32) -> &'static FdRecord {
    let index = index as usize;
    let make = || {
        std::iter::repeat_with(FdRecord::default)
            .take(CHUNK)
            .collect()
    };
    &RECORDS[index / CHUNK].get_or_init(make)[index % CHUNK]
}

/// The key of a source nobody used yet, or not any more. With the preemption disabled.
fn take_record() -> u64 {
    let mut free = lock(&FREE);
    let index = free.list.pop().unwrap_or_else(|| {
        free.used += 1;
        free.used - 1
    });
    let generation = record(index).generation.load(SeqCst);
    u64::from(generation) << 32 | u64::from(index)
}

/// What a descriptor has of us, inside whatever owns it: nothing until somebody waits.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The key of its source, and one; or zero.
    key: AtomicU64,
}

impl Registration {
    pub(crate) const fn new() -> Self {
        Registration {
            key: AtomicU64::new(0),
        }
    }

    /// What has been told so far. To be asked before a try whose failure leads to a wait.
    #[inline]
    pub(crate) fn readiness(&self, interest: Interest) -> ReadinessToken {
        let key = self.key.load(SeqCst);
        let events = match key {
            0 => 0,
            key => record((key - 1) as u32).event_counts[interest as usize].load(SeqCst),
        };
        ReadinessToken { key, events }
    }

    /// Parks the calling fiber until something is told that it had not seen before its try. It may return for
    /// no reason.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Ended> {
        let waiter = Waiter::caller();
        if !self.enlist(fd, interest, seen, &waiter)? {
            block::charge();
            return Ok(Ended::Ready);
        }
        // From here on the waiter's address is known: it stays until it was called or withdrawn.
        let (mut deadline, mut cancel) = (deadline, Cancel::Enabled);
        loop {
            let woken = waiter.park(deadline, ParkReason::Io, cancel);
            if waiter.was_notified() {
                return Ok(Ended::Ready);
            }
            if woken != Woken::ByWake {
                match woken {
                    _ if !self.withdraw(interest, &waiter) => {
                        (deadline, cancel) = (None, Cancel::Disabled); // the call is on its way
                    }
                    Woken::ByCancel => return Ok(Ended::Cancelled),
                    _ => return Ok(Ended::TimedOut),
                }
            }
        }
    }

    /// Has the waiter, one of a fiber, called when something is told that it had not seen. False if that is so
    /// already: then nobody will call.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        let seen = self.register(fd, interest)?.unwrap_or(seen);
        if seen.key == 0 || self.key.load(SeqCst) != seen.key {
            return Ok(false); // somebody else registered it after the try
        }
        let record = record((seen.key - 1) as u32);
        let _guard = context::disable_preempt();
        let mut direction = lock(&record.directions[interest as usize]);
        if record.event_counts[interest as usize].load(SeqCst) != seen.events {
            return Ok(false);
        }
        direction.push(waiter.address());
        Ok(true)
    }

    /// Takes a waiter back that was enlisted. False if it was called, or is about to be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        let record = record((self.key.load(SeqCst) - 1) as u32);
        let _guard = context::disable_preempt();
        lock(&record.directions[interest as usize]).withdraw(waiter.address())
    }

    /// Puts it into the set of the caller's runtime, unless it is there. Then the kernel reports
    /// first what it is ready for, and this is what had been reported before that.
    #[inline(never)] // not part of a frame that waits: what system calls touch would bind it
    fn register(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
    ) -> io::Result<Option<ReadinessToken>> {
        // With a worker: it is awake, and looks into the set from here on (I31).
        let token = context::here().expect("on a fiber").enter_with_worker();
        let shared = token.carrier().shared();
        let key = self.key();
        let record = record((key - 1) as u32);
        let mut membership = lock(&record.membership);
        if membership
            .as_ref()
            .is_some_and(|membership| membership.belongs_to(shared))
        {
            return Ok(None);
        }
        let events = record.event_counts[interest as usize].load(SeqCst);
        // The new place first: until it exists, other waiters are notified by the old one.
        let made = Membership::new(shared, fd, key - 1).map(|new| membership.replace(new));
        let left = made.map(|old| old.map(|old| old.remove(fd)));
        drop(membership);
        drop(token);
        left.map(|_with_preemption_enabled| Some(ReadinessToken { key, events }))
    }

    /// The key, of a new source if there was none. With the preemption disabled.
    fn key(&self) -> u64 {
        let key = self.key.load(SeqCst);
        if key != 0 {
            return key;
        }
        let new = take_record() + 1;
        match self.key.compare_exchange(0, new, SeqCst, SeqCst) {
            Ok(_) => new,
            Err(other) => {
                drop(give_back(new - 1)); // nothing was there
                other
            }
        }
    }

    /// Whether nothing was told since then, and all that was told before is explained by data: then whoever has
    /// read all there was can wait without another try. What ends a stream may have been told before, and is
    /// not told again.
    pub(crate) fn is_quiet_since(&self, events: u32) -> Option<ReadinessToken> {
        let seen = self.readiness(Interest::Read);
        let is_quiet = seen.key != 0
            && seen.events == events
            && !record((seen.key - 1) as u32).odd.load(SeqCst);
        is_quiet.then_some(seen)
    }

    /// The descriptor is about to be closed, or to be somebody else's. Nobody waits for it.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let key = self.key.swap(0, SeqCst);
        if key == 0 || fork::in_child() {
            return; // F1: the set is the parent's, too
        }
        let guard = context::disable_preempt();
        let membership = lock(&record((key - 1) as u32).membership).take();
        let left = (
            membership.map(|membership| membership.remove(fd)),
            give_back(key - 1),
        );
        drop(guard);
        drop(left);
    }
}

/// Events for it mean nobody from here on. With the preemption disabled; what is left is dropped without.
#[must_use = "dropped with preemption enabled"]
fn give_back(key: u64) -> [Direction; 2] {
    let record = record(key as u32);
    record.generation.fetch_add(1, SeqCst);
    let left = [0, 1].map(|direction| std::mem::take(&mut *lock(&record.directions[direction])));
    record.odd.store(false, SeqCst);
    lock(&FREE).list.push(key as u32);
    left
}

impl FdRecord {
    fn set_exceptional(&self, generation: u32) {
        let guard = context::disable_preempt();
        let direction = lock(&self.directions[Interest::Read as usize]); // as `tell` does: the generation stays
        if self.generation.load(SeqCst) == generation {
            self.odd.store(true, SeqCst);
        }
        drop(direction);
        drop(guard);
    }

    /// Something has happened: whoever waits is called, a few at a time, and nothing is allocated or freed
    /// meanwhile (S9). Whoever comes while that goes on has seen it. What was kept for that is given to `part`.
    fn tell(&self, interest: Interest, generation: u32, mut part: impl FnMut(DeferredDrop)) {
        let mut left = None;
        loop {
            let mut kept = [const { None::<DeferredDrop> }; NOTIFY_BATCH];
            let guard = context::disable_preempt();
            let mut direction = lock(&self.directions[interest as usize]);
            if self.generation.load(SeqCst) != generation {
                return; // of a descriptor that is closed
            }
            let most = left.unwrap_or_else(|| {
                self.event_counts[interest as usize].fetch_add(1, SeqCst);
                direction.len()
            });
            let batch = direction.take(most);
            drop(direction);
            for (address, kept) in batch.iter().zip(&mut kept) {
                #[expect(unsafe_code, reason = "calls a waiter by its address")]
                // SAFETY: I24: it was on the list, so it is there until it is called, by us alone.
                let called = unsafe { Waiter::notify(&guard, *address) };
                *kept = Some(called);
            }
            drop(guard);
            kept.into_iter().flatten().for_each(&mut part);
            match most - batch.len() {
                more @ 1.. if batch.len() == NOTIFY_BATCH => left = Some(more),
                _ => return,
            }
        }
    }
}

impl Shared {
    /// The epoll instance of this runtime, made if there is none yet.
    fn set(&self) -> io::Result<&Epoll> {
        debug_assert!(self.settings.uring_asked_by.is_none(), "a set beside rings");
        if self.io_set.get().is_none() {
            let set = Epoll::new()?;
            self.io_poller.add_instance(self, set.raw(), poller::SET)?;
            let _ = self.io_set.set(set); // or another fiber was faster, and this one is closed
        }
        Ok(self.io_set.get().expect("just set"))
    }

    /// Wakes the fibers that wait for what has become ready. By the worker's holder.
    pub(crate) fn poll_io(&self, worker: &Worker) {
        debug_assert!(
            worker
                .carrier()
                .is_some_and(|carrier| ptr::eq(carrier, context::carrier())),
            "by the holder: completions depend on the thread that submits"
        );
        if self.io_set.get().is_some() {
            self.poll_epoll();
        }
        self.poll_ring(worker);
        worker.note_poll();
    }

    /// Takes the events there are, and wakes the fibers that wait for them. By any thread without
    /// the seat.
    fn poll_epoll(&self) {
        let Some(set) = self.io_set.get() else {
            return;
        };
        let events = set.wait(Some(Duration::ZERO));
        if events.has_rung() {
            self.pass_wakeup_on(set);
        }
        self.deliver_events(&events);
    }

    /// Submits to the worker's ring, and takes what is complete.
    fn poll_ring(&self, worker: &Worker) {
        if let Some(ring) = worker.uring.get() {
            self.wait_in_ring(worker, ring, Some(Duration::ZERO));
            self.reap(ring);
        }
    }

    /// Wakes the fibers that wait for these events.
    pub(crate) fn deliver_events(&self, events: &Events) {
        events.tell(|ready| self.tell(ready));
    }

    /// At the end, when the set goes: fibers of other runtimes that wait there register elsewhere.
    pub(crate) fn leave_epoll(&self) {
        let guard = context::disable_preempt();
        let used = lock(&FREE).used;
        let mut left = Vec::new();
        for index in 0..used {
            let record = record(index);
            let mut membership = lock(&record.membership);
            if membership
                .as_ref()
                .is_some_and(|membership| membership.belongs_to(self))
            {
                left.push((record, record.generation.load(SeqCst)));
                *membership = None;
            }
        }
        drop(guard);
        for (record, generation) in left {
            record.tell(Interest::Read, generation, drop);
            record.tell(Interest::Write, generation, drop);
        }
    }

    fn tell(&self, ready: Ready) {
        let (record, generation) = (record(ready.key as u32), (ready.key >> 32) as u32);
        if ready.odd {
            record.set_exceptional(generation); // before anybody hears of it
        }
        let part = |kept| self.defer_drop(kept);
        if ready.read {
            record.tell(Interest::Read, generation, part);
        }
        if ready.write {
            record.tell(Interest::Write, generation, part);
        }
    }
}
