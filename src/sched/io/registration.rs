//! Waiting for readiness by epoll: what is known of each descriptor, and the fibers that wait.
//!
//! A runtime that uses epoll has one epoll instance ([`Epoll`]), made when a fiber first waits for
//! a descriptor. A descriptor joins the instance of the runtime that its first waiter belongs to
//! and stays there until it is closed. What is known of it is in a [`FdRecord`]: for each
//! [`Direction`], reading and writing, a count of the events so far, and the waiters.
//!
//! **I23** *No event is lost.* The kernel reports each change once. A fiber that waits has read the
//! event count ([`ReadinessToken`]), then made a call that would have blocked, then read the count
//! again under the lock of the direction. If the count is the same the fiber joins the list, else
//! it tries again. An event after the first read has changed the count, or finds the fiber on the
//! list. This holds for each of several waiters: an event is not used up by the first.
//!
//! **I24** *A waiter is notified once, or withdraws.* Both take it off the list under the lock; a
//! notifier that took it off keeps preemption disabled until it has notified it (S6).
//!
//! Records are never freed. They are used again under another *generation*: events of a descriptor
//! that was closed meanwhile are ignored.
//!
//! In a runtime that uses io_uring only waiters of a select use records (`polls.rs`), and
//! descriptors join no instance.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::Instant;

use crate::driver::Driver;
use crate::driver::epoll::{Epoll, Events, Ready};
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Cancel, Woken};
use crate::sched::Shared;
use crate::sched::block::suspend;
use crate::sched::block::wake::{DeferredDrop, Waiter};
use crate::sched::io::direction::{Direction, NOTIFY_BATCH};
use crate::sched::io::polls::Polls;
use crate::sched::io::{Ended, poller};
use crate::sched::workers::context;
use crate::sys::descriptor::Interest;
use crate::sys::fork;
use crate::util::loom::{Mutex, lock};

/// The events of one direction of a descriptor that had been reported at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadinessToken {
    /// As in [`Registration`].
    key: u64,
    /// How many, modulo the size of the word.
    pub(crate) events: u32,
}

/// What is known of one descriptor.
#[derive(Default)]
pub(super) struct FdRecord {
    generation: AtomicU32,
    /// The epoll instance that the descriptor is in, if it is in one.
    membership: Mutex<Option<Membership>>,
    directions: [Mutex<Direction>; 2],
    /// Events of each direction. Counted under the lock of the direction.
    events: [AtomicU32; 2],
    /// Something was reported that data alone does not explain: an end, an error, an urgent byte.
    exceptional: AtomicBool,
    /// Waiters of each direction in runtimes that use io_uring.
    pub(super) polls: [Mutex<Polls>; 2],
}

/// A descriptor's place in an epoll instance.
struct Membership {
    runtime: Weak<Shared>,
    /// A second descriptor of the same open file, which is the one in the instance if the
    /// descriptor itself is there already under the key of another registration.
    duplicate: Option<OwnedFd>,
}

impl Membership {
    fn new(shared: &Shared, fd: BorrowedFd<'_>, key: u64) -> io::Result<Self> {
        let epoll = shared.make_epoll()?;
        let duplicate = match epoll.add(fd, key) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let duplicate = fd.try_clone_to_owned()?;
                epoll.add(duplicate.as_fd(), key)?;
                Some(duplicate)
            }
            added => added.map(|()| None)?,
        };
        Ok(Membership {
            runtime: Arc::downgrade(&shared.arc()),
            duplicate,
        })
    }

    /// Whether it is in the instance of this runtime. Another runtime may end, or be busy.
    fn belongs_to(&self, shared: &Shared) -> bool {
        ptr::eq(self.runtime.as_ptr(), shared)
    }

    /// Takes the descriptor out of the instance. What is returned may hold the last reference to a
    /// runtime.
    #[must_use = "dropped with preemption enabled"]
    fn remove(self, fd: BorrowedFd<'_>) -> (Membership, Option<Arc<Shared>>) {
        let runtime = self.runtime.upgrade();
        if let Some(epoll) = runtime.as_ref().and_then(|of| of.driver.epoll_instance()) {
            epoll.remove(
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

/// Records that belong to no registration.
struct Free {
    list: Vec<u32>,
    /// Records from this index on have never been used.
    used: u32,
}

pub(super) fn record_at(index: u32) -> &'static FdRecord {
    let index = index as usize;
    let make = || {
        std::iter::repeat_with(FdRecord::default)
            .take(CHUNK)
            .collect()
    };
    &RECORDS[index / CHUNK].get_or_init(make)[index % CHUNK]
}

/// Takes a free record and returns its key. Called with preemption disabled.
fn take_record() -> u64 {
    let mut free = lock(&FREE);
    let index = free.list.pop().unwrap_or_else(|| {
        free.used += 1;
        free.used - 1
    });
    let generation = record_at(index).generation.load(SeqCst);
    u64::from(generation) << 32 | u64::from(index)
}

/// A descriptor's record, kept by the owner of the descriptor: none until a fiber first waits.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The key of its record, plus one; or zero.
    key: AtomicU64,
}

impl Registration {
    pub(crate) const fn new() -> Self {
        Registration {
            key: AtomicU64::new(0),
        }
    }

    /// The events so far. Read before a try whose failure leads to a wait.
    #[inline]
    pub(crate) fn readiness(&self, interest: Interest) -> ReadinessToken {
        let key = self.key.load(SeqCst);
        let events = match key {
            0 => 0,
            key => record_at((key - 1) as u32).events[interest as usize].load(SeqCst),
        };
        ReadinessToken { key, events }
    }

    /// Parks the calling fiber until there is an event after `seen`. May return for no reason.
    pub(super) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        deadline: Option<Instant>,
    ) -> io::Result<Ended> {
        let waiter = Waiter::caller();
        if !self.enlist_waiter(fd, interest, seen, &waiter)? {
            suspend::charge();
            return Ok(Ended::Ready);
        }
        // From here on the waiter's address is known: it stays until it is notified or withdrawn.
        let (mut deadline, mut cancel) = (deadline, Cancel::Enabled);
        loop {
            let woken = waiter.park(deadline, ParkReason::Io, cancel);
            if waiter.was_notified() {
                return Ok(Ended::Ready);
            }
            if woken != Woken::ByWake {
                match woken {
                    _ if !self.withdraw_waiter(interest, &waiter) => {
                        // The notification is on its way.
                        (deadline, cancel) = (None, Cancel::Disabled);
                    }
                    Woken::ByCancel => return Ok(Ended::Cancelled),
                    _ => return Ok(Ended::TimedOut),
                }
            }
        }
    }

    /// Lists a waiter of a fiber, to be notified of the first event after `seen`.
    ///
    /// False if there has been one already: then the waiter is not notified.
    pub(super) fn enlist_waiter(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        seen: ReadinessToken,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        let seen = self.register(fd, interest)?.unwrap_or(seen);
        if seen.key == 0 || self.key.load(SeqCst) != seen.key {
            return Ok(false); // another fiber registered the descriptor after the try
        }
        let record = record_at((seen.key - 1) as u32);
        let _guard = context::disable_preempt();
        let mut direction = lock(&record.directions[interest as usize]);
        if record.events[interest as usize].load(SeqCst) != seen.events {
            return Ok(false);
        }
        direction.push(waiter.address());
        Ok(true)
    }

    /// Takes a waiter back that was enlisted. False if it was notified, or is about to be.
    pub(super) fn withdraw_waiter(&self, interest: Interest, waiter: &Waiter) -> bool {
        let record = record_at((self.key.load(SeqCst) - 1) as u32);
        let _guard = context::disable_preempt();
        lock(&record.directions[interest as usize]).withdraw(waiter.address())
    }

    /// Adds the descriptor to the epoll instance of the caller's runtime, unless it is there.
    ///
    /// If it was added the kernel reports first what it is ready for; the token that is returned is
    /// from before that.
    #[inline(never)] // not part of a frame that waits: what system calls touch would bind it
    fn register(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
    ) -> io::Result<Option<ReadinessToken>> {
        // With a worker: it is awake, and polls the instance from here on (I31).
        let entered = context::here().expect("on a fiber").enter_with_worker();
        let shared = entered.carrier().shared();
        let key = self.key();
        let record = record_at((key - 1) as u32);
        let mut membership = lock(&record.membership);
        if membership.as_ref().is_some_and(|of| of.belongs_to(shared)) {
            return Ok(None);
        }
        let events = record.events[interest as usize].load(SeqCst);
        // The new membership first: until it exists, other waiters are notified by the old one.
        let made = Membership::new(shared, fd, key - 1).map(|new| membership.replace(new));
        let left = made.map(|old| old.map(|old| old.remove(fd)));
        drop(membership);
        drop(entered);
        left.map(|_dropped_with_preemption_enabled| Some(ReadinessToken { key, events }))
    }

    /// The key, of a new record if there was none. Called with preemption disabled.
    pub(super) fn key(&self) -> u64 {
        let key = self.key.load(SeqCst);
        if key != 0 {
            return key;
        }
        let new = take_record() + 1;
        match self.key.compare_exchange(0, new, SeqCst, SeqCst) {
            Ok(_) => new,
            Err(other) => {
                drop(free_record(new - 1)); // it has no waiters
                other
            }
        }
    }

    /// The key of a descriptor that a waiter has been enlisted for.
    pub(super) fn known_key(&self) -> u64 {
        self.key.load(SeqCst)
    }

    /// Whether there was no read event after the first `events`, and data explains all events so
    /// far; if so, a token to wait with.
    ///
    /// A reader that has read all there was can then wait without another try. An end of stream may
    /// have been reported before, and is not reported again: hence the second condition.
    pub(crate) fn is_quiet_since(&self, events: u32) -> Option<ReadinessToken> {
        let now = self.readiness(Interest::Read);
        let is_exceptional = || {
            let record = record_at((now.key - 1) as u32);
            record.exceptional.load(SeqCst)
        };
        let is_quiet = now.key != 0 && now.events == events && !is_exceptional();
        is_quiet.then_some(now)
    }

    /// Ends the registration: the descriptor is about to be closed or given away. It has no
    /// waiters.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let key = self.key.swap(0, SeqCst);
        if key == 0 || fork::in_child() {
            return; // F1: the epoll instance is the parent's, too
        }
        let guard = context::disable_preempt();
        let membership = lock(&record_at((key - 1) as u32).membership).take();
        let left = (membership.map(|of| of.remove(fd)), free_record(key - 1));
        drop(guard);
        drop(left);
    }
}

/// Frees a record: its events are ignored from here on. Called with preemption disabled.
#[must_use = "dropped with preemption enabled"]
fn free_record(key: u64) -> [Direction; 2] {
    let record = record_at(key as u32);
    record.generation.fetch_add(1, SeqCst);
    let left = [0, 1].map(|index| std::mem::take(&mut *lock(&record.directions[index])));
    record.exceptional.store(false, SeqCst);
    lock(&FREE).list.push(key as u32);
    left
}

impl FdRecord {
    fn set_exceptional(&self, generation: u32) {
        let guard = context::disable_preempt();
        // As in `notify`: the generation stays while the lock is held.
        let direction = lock(&self.directions[Interest::Read as usize]);
        if self.generation.load(SeqCst) == generation {
            self.exceptional.store(true, SeqCst);
        }
        drop(direction);
        drop(guard);
    }

    /// Counts an event and notifies the fibers that wait for it, `NOTIFY_BATCH` under one lock
    /// hold.
    ///
    /// Allocates and frees nothing meanwhile (S9). A fiber that comes while this goes on has seen
    /// the event. What may hold a last reference is passed to `defer_drop`.
    fn notify(
        &self,
        interest: Interest,
        generation: u32,
        mut defer_drop: impl FnMut(DeferredDrop),
    ) {
        let mut left = None;
        loop {
            let mut kept = [const { None::<DeferredDrop> }; NOTIFY_BATCH];
            let guard = context::disable_preempt();
            let mut direction = lock(&self.directions[interest as usize]);
            if self.generation.load(SeqCst) != generation {
                return; // an event of a descriptor that is closed
            }
            let most = left.unwrap_or_else(|| {
                self.events[interest as usize].fetch_add(1, SeqCst);
                direction.len()
            });
            let batch = direction.take(most);
            drop(direction);
            for (address, kept) in batch.iter().zip(&mut kept) {
                #[expect(unsafe_code, reason = "notifies a waiter by its address")]
                // SAFETY: I24: it was on the list, so it is there until it is notified, here and
                // nowhere else.
                let notified = unsafe { Waiter::notify(&guard, *address) };
                *kept = Some(notified);
            }
            drop(guard);
            kept.into_iter().flatten().for_each(&mut defer_drop);
            match most - batch.len() {
                more @ 1.. if batch.len() == NOTIFY_BATCH => left = Some(more),
                _ => return,
            }
        }
    }
}

impl Shared {
    /// The epoll instance of this runtime, made if there is none yet.
    fn make_epoll(&self) -> io::Result<&Epoll> {
        let Driver::Epoll(instance) = &self.driver else {
            unreachable!("a descriptor is registered with epoll in a runtime that uses io_uring");
        };
        if let Some(epoll) = instance.get() {
            return Ok(epoll);
        }
        let epoll = Epoll::new()?;
        self.io_poller
            .add_instance(self, epoll.raw(), poller::EPOLL_KEY)?;
        Ok(instance.store(epoll)) // or another fiber was faster, and this one is closed
    }

    /// Wakes the fibers that wait for these events.
    pub(super) fn deliver_events(&self, events: &Events) {
        events.for_each(|ready| self.deliver_event(ready));
    }

    fn deliver_event(&self, ready: Ready) {
        let (record, generation) = (record_at(ready.key as u32), (ready.key >> 32) as u32);
        if ready.exceptional {
            record.set_exceptional(generation); // before a waiter is notified
        }
        let defer_drop = |kept| self.defer_drop(kept);
        if ready.read {
            record.notify(Interest::Read, generation, defer_drop);
        }
        if ready.write {
            record.notify(Interest::Write, generation, defer_drop);
        }
    }

    /// At the end, when the epoll instance goes: fibers of other runtimes that wait there register
    /// elsewhere.
    pub(crate) fn leave_epoll(&self) {
        let guard = context::disable_preempt();
        let used = lock(&FREE).used;
        let mut left = Vec::new();
        for index in 0..used {
            let record = record_at(index);
            let mut membership = lock(&record.membership);
            if membership.as_ref().is_some_and(|of| of.belongs_to(self)) {
                left.push((record, record.generation.load(SeqCst)));
                *membership = None;
            }
        }
        drop(guard);
        for (record, generation) in left {
            record.notify(Interest::Read, generation, drop);
            record.notify(Interest::Write, generation, drop);
        }
    }
}
