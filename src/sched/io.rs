//! Waiting for descriptors: who waits, who is told, and by whom.
//!
//! Each worker has a set of descriptors ([`Epoll`]), made when a fiber first waits on it. A descriptor joins the
//! set of the worker that its first waiter runs on and stays there until it is closed. Sets are looked into
//!
//! - by their worker, now and then while it has other work, and before it sleeps; then it sleeps in the set;
//! - by the *watch*, a thread of its own, while the worker is in a dispatch that is known to be long
//!   (`watch.rs` here below): readiness reaches its fiber although the worker computes.
//!
//! Whoever finds something ready wakes who waits for it, by the same ways as any other waker: so a fiber that
//! should not have to wait presses (`press.rs`).
//!
//! A *source* is what is known of one descriptor: for each way, reading and writing, whether something has
//! happened that nobody has used yet, and who waits.
//!
//! **I23** *No event is lost.* The kernel tells each change once, after the call that found it. Whoever waits
//! has made a call that would have blocked, then, under the lock of the way, either uses up an event or puts
//! himself on the list. An event that came before that is noted (and at worst ends one wait for nothing); one that
//! comes after finds him on the list. **I24** *A waiter is called once, or withdraws.* Both take it off the
//! list under the lock; who takes it off to call it has the mark up until it is called (S6).
//!
//! Sources are never freed, and used again under another *generation*: events of a descriptor that was closed
//! meanwhile mean nobody.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::base::descriptor::Interest;
use crate::base::loom::{Mutex, MutexGuard, lock};
use crate::driver::epoll::{Epoll, Ready};
use crate::fiber::reason::ParkReason;
use crate::fiber::state::{Hearing, Woken};
use crate::sched::context;
use crate::sched::wake::Waiter;
use crate::sched::worker::Worker;
use crate::sched::{Shared, block};

pub(crate) mod watch;

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

/// One way of a descriptor.
#[derive(Default)]
struct Way {
    /// Something has happened since somebody last waited.
    happened: bool,
    /// Who waits: mostly one.
    first: Option<usize>,
    others: Vec<usize>,
}

impl Way {
    fn push(&mut self, waiter: usize) {
        match self.first {
            None => self.first = Some(waiter),
            Some(_) => self.others.push(waiter),
        }
    }

    /// False if it is not there: somebody has taken it off to call it.
    fn withdraw(&mut self, waiter: usize) -> bool {
        if self.first == Some(waiter) {
            self.first = self.others.pop();
            return true;
        }
        let place = self.others.iter().position(|other| *other == waiter);
        place.map(|at| self.others.swap_remove(at)).is_some()
    }
}

/// What is known of one descriptor.
#[derive(Default)]
struct Source {
    generation: AtomicU32,
    /// In whose set it is, while it is in one.
    place: Mutex<Option<Place>>,
    ways: [Mutex<Way>; 2],
}

/// The set of a worker.
struct Place {
    runtime: Weak<Shared>,
    worker: usize,
}

impl Place {
    fn remove(self, fd: BorrowedFd<'_>) -> Option<Arc<Shared>> {
        let runtime = self.runtime.upgrade()?;
        if let Some(io) = runtime.workers[self.worker].io.get() {
            io.remove(fd);
        }
        Some(runtime)
    }
}

const CHUNKS: usize = 26;
const FIRST: usize = 64;
/// Chunk n holds `FIRST << n` of them.
static SOURCES: [OnceLock<Box<[Source]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: OnceLock<Mutex<Free>> = OnceLock::new();

#[derive(Default)]
struct Free {
    list: Vec<u32>,
    used: u32,
}

/// With the mark up.
fn free() -> MutexGuard<'static, Free> {
    lock(FREE.get_or_init(Mutex::default))
}

fn source(index: u32) -> &'static Source {
    let at = index as usize + FIRST;
    let chunk = at.ilog2() - FIRST.ilog2();
    let size = FIRST << chunk;
    let sources = SOURCES[chunk as usize]
        .get_or_init(|| std::iter::repeat_with(Source::default).take(size).collect());
    &sources[at - size]
}

/// The key of a source nobody used yet, or not any more. With the mark up.
fn take_source() -> u64 {
    let mut free = free();
    let index = free.list.pop().unwrap_or_else(|| {
        free.used += 1;
        free.used - 1
    });
    let generation = source(index).generation.load(SeqCst);
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

    /// Parks the calling fiber until the descriptor may be ready. It may return for no reason.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        deadline: Option<Instant>,
    ) -> io::Result<Ended> {
        let waiter = Waiter::caller();
        if !self.enlist(fd, interest, &waiter)? {
            block::charge();
            return Ok(Ended::Ready);
        }
        // From here on the waiter's address is known: it stays until it was called or withdrawn.
        let (mut deadline, mut hearing) = (deadline, Hearing::Open);
        loop {
            let woken = waiter.park(deadline, ParkReason::Io, hearing);
            if waiter.was_called() {
                return Ok(Ended::Ready);
            }
            if woken != Woken::ByWake {
                match woken {
                    _ if !self.withdraw(interest, &waiter) => {
                        (deadline, hearing) = (None, Hearing::Deaf); // the call is on its way
                    }
                    Woken::ByCancel => return Ok(Ended::Cancelled),
                    _ => return Ok(Ended::TimedOut),
                }
            }
        }
    }

    /// Has the waiter, one of a fiber, called when something happens. False if something has happened
    /// already: then nobody will call.
    pub(crate) fn enlist(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        waiter: &Waiter,
    ) -> io::Result<bool> {
        let source = self.register(fd)?;
        let _mark = context::marked();
        let mut way = lock(&source.ways[interest as usize]);
        if std::mem::take(&mut way.happened) {
            return Ok(false);
        }
        way.push(waiter.address());
        Ok(true)
    }

    /// Takes a waiter back that was enlisted. False if it was called, or is about to be.
    pub(crate) fn withdraw(&self, interest: Interest, waiter: &Waiter) -> bool {
        let source = source((self.key.load(SeqCst) - 1) as u32);
        let _mark = context::marked();
        lock(&source.ways[interest as usize]).withdraw(waiter.address())
    }

    /// Its source, in some worker's set.
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<&'static Source> {
        let mark = context::marked();
        let mut key = self.key.load(SeqCst);
        if key == 0 {
            let new = take_source() + 1;
            match self.key.compare_exchange(0, new, SeqCst, SeqCst) {
                Ok(_) => key = new,
                Err(other) => {
                    give_back(new - 1);
                    key = other;
                }
            }
        }
        let source = source((key - 1) as u32);
        let mut place = lock(&source.place);
        if place
            .as_ref()
            .is_none_or(|place| place.runtime.strong_count() == 0)
        {
            let shared = mark.shared().expect("a fiber has a runtime");
            let worker = context::enter().map_or(0, |token| token.worker().index);
            shared.set_of(worker)?.add(fd, key - 1)?;
            *place = Some(Place {
                runtime: Arc::downgrade(&shared.arc()),
                worker,
            });
        }
        drop(place);
        Ok(source)
    }

    /// The descriptor is about to be closed, or to be somebody else's. Nobody waits for it.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let key = self.key.swap(0, SeqCst);
        if key == 0 {
            return;
        }
        let mark = context::marked();
        let place = lock(&source((key - 1) as u32).place).take();
        let runtime = place.and_then(|place| place.remove(fd));
        give_back(key - 1);
        drop(mark);
        drop(runtime); // perhaps the last
    }
}

/// Events for it mean nobody from here on. With the mark up.
fn give_back(key: u64) {
    let source = source(key as u32);
    source.generation.fetch_add(1, SeqCst);
    for way in &source.ways {
        *lock(way) = Way::default();
    }
    free().list.push(key as u32);
}

impl Source {
    /// Something has happened: whoever waits is called.
    fn tell(&self, interest: Interest, generation: u32) {
        let mark = context::marked();
        let mut way = lock(&self.ways[interest as usize]);
        if self.generation.load(SeqCst) != generation {
            return; // of a descriptor that is closed
        }
        way.happened = way.first.is_none();
        let (first, others) = (way.first.take(), std::mem::take(&mut way.others));
        drop(way);
        let call = |address: usize| {
            #[expect(unsafe_code, reason = "calls a waiter by its address")]
            // SAFETY: I24: it was on the list, so it is there until it is called, by us alone.
            unsafe {
                Waiter::call(&mark, address)
            }
        };
        let kept: Vec<_> = others.into_iter().map(call).collect();
        let kept = (first.map(call), kept);
        drop(mark);
        drop(kept);
    }
}

fn tell(ready: Ready) {
    let (source, generation) = (source(ready.key as u32), (ready.key >> 32) as u32);
    if ready.read {
        source.tell(Interest::Read, generation);
    }
    if ready.write {
        source.tell(Interest::Write, generation);
    }
}

impl Shared {
    /// The set of a worker, made if there is none yet.
    fn set_of(&self, worker: usize) -> io::Result<&Epoll> {
        let place = &self.workers[worker].io;
        if place.get().is_none() {
            let set = Epoll::new()?;
            self.io_watch.include(self, &set, worker)?;
            let _ = place.set(set); // or another fiber was faster
        }
        Ok(place.get().expect("just set"))
    }

    /// Wakes who waits for what has become ready, and first waits for that, for so long at most.
    pub(crate) fn poll_io(&self, worker: &Worker, time: Option<Duration>) {
        if let Some(set) = worker.io.get() {
            set.wait(time, tell);
        }
    }

    /// At the end, when the sets go: whoever else waits there looks for another.
    pub(crate) fn leave_io(&self) {
        let mark = context::marked();
        let used = free().used;
        let mut left = Vec::new();
        for index in 0..used {
            let source = source(index);
            let mut place = lock(&source.place);
            if place
                .as_ref()
                .is_some_and(|p| std::ptr::eq(p.runtime.as_ptr(), self))
            {
                left.push((source, source.generation.load(SeqCst)));
                *place = None;
            }
        }
        drop(mark);
        for (source, generation) in left {
            source.tell(Interest::Read, generation);
            source.tell(Interest::Write, generation);
        }
    }
}

impl Worker {
    /// Whether somebody may wait for a descriptor in its set.
    #[inline]
    pub(crate) fn has_sources(&self) -> bool {
        self.io.get().is_some_and(|set| !set.is_empty())
    }
}
