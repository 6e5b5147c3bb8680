#![expect(
    unsafe_code,
    reason = "records are shared by pointer and counted by hand"
)]
//! What there is of a fiber from `spawn` until the last handle lets go.
//!
//! A record is `SIZE` bytes in a slab (`slab.rs`) whose memory is never unmapped, so a stale
//! pointer reads an old or a newer fiber, never foreign memory. What keeps a record *this* fiber's
//! is its count: the runtime holds one reference until the fiber is over, a `JoinHandle` one, an
//! `Unparker` one, and whoever lists fibers one for as long as it looks (`Held`).
//!
//! Who may touch what:
//! - `state`, `join`, the counts: anyone, they are protocols of their own.
//! - `link`: whoever put the record into a list or took it out of one.
//! - `job` and its storage: the spawner until the record is queued; then the fiber; after `join`
//!   says DONE, whoever that word gives the result to (see `job.rs`).
//! - everything else is written before the record is queued, or by the carrier that runs the
//!   fiber, and read by anyone who holds a reference: atomics, relaxed, each meaningful alone.
//!
//! **I3** A [`FiberRef`] is only held by someone whose role keeps the record alive: a queue, the
//! carrier that runs it, the fiber itself, a waiter word whose owner cannot leave before the wake.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync;

use crate::base::list::Linked;
use crate::base::loom::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use crate::fiber::job::{self, Job};
use crate::fiber::reason::ParkReason;
use crate::fiber::slab::Remote;
use crate::fiber::stack::StackHead;
use crate::fiber::state::{Phase, State};

/// Letters and a version, so that a debugger finds live records in memory.
const MAGIC: u32 = u32::from_le_bytes(*b"FIB\x02");

/// No worker was asked for.
pub(crate) const ANY_WORKER: u16 = u16::MAX;

#[repr(C, align(64))]
pub(crate) struct Record {
    /// `MAGIC` while the record belongs to a fiber.
    magic: AtomicU32,
    /// When it was made runnable, if that is to be known; see `sched/latency.rs`.
    pub(crate) woken_at: AtomicU32,
    pub(crate) state: State,
    link: AtomicPtr<Record>,
    /// Who waits for the result; see `job.rs`.
    pub(crate) join: AtomicUsize,
    /// References; zero while the record is free.
    refs: AtomicU32,
    /// The worker that must start it, or `ANY_WORKER`.
    pub(crate) worker: AtomicU16,
    /// How much it computes between two parks; see `sched/class.rs`.
    pub(crate) heat: AtomicU8,
    /// Live `no_preempt` sections; its own only.
    pub(crate) no_preempt_depth: AtomicU8,
    /// Where on its stack its registers lie since it last switched out (`switch.rs`).
    pub(crate) stack_pointer: AtomicUsize,
    /// The carrier (a type of the layers above) that a switched-out fiber is bound to; null if it
    /// may run on any thread.
    pub(crate) thread: AtomicPtr<()>,
    /// Null until the first dispatch and again once the fiber is over.
    pub(crate) stack: AtomicPtr<StackHead>,

    id: AtomicU64,
    /// The runtime (a type of the layers above); valid until the fiber is over.
    pub(crate) runtime: AtomicPtr<()>,
    location: AtomicPtr<Location<'static>>,
    name: AtomicPtr<Box<str>>,
    /// Where the record goes when it is free.
    owner: AtomicPtr<Remote>,
    /// Whether it is in a time limit, and more (`sched/limit.rs`); its own only.
    pub(crate) limited: sync::atomic::AtomicU8,
    /// How often it has caught the unwinding of a blocking call (`sched/swallow.rs`); its own only.
    pub(crate) swallowed: sync::atomic::AtomicU8,
    reason: AtomicU8,
    /// The size class of the stack it wants.
    pub(crate) stack_class: AtomicU8,
    /// Live `pin()` guards, and one more for a fiber built pinned; and `UNTIL_THE_END`.
    pub(crate) pins: AtomicU16,
    /// Whether the fiber is parked inside its own frames, because it unwinds: its thread waits
    /// there and not at the bottom of its stack (S3).
    blocks_carrier: AtomicBool,
    /// Whether it may change threads since it last switched out; see `sched/mobility.rs`.
    pub(crate) mobility: AtomicU8,
    /// Where its last park as a bound fiber was counted (`sched/bound.rs`).
    pub(crate) bound_entry: AtomicU16,
    /// It has one of the places for unwinding fibers (`sched/gate.rs`).
    pub(crate) gate_pass: AtomicBool,
    /// It has used thread-locals (`locals.rs`); its holder's only.
    pub(crate) has_locals: AtomicBool,
    /// The tick of its runtime's clock at which it last parked, or began to wait for a thread.
    waits_since: AtomicU32,
    pub(crate) job: Job,
}

/// In `pins`: the fiber stays on its thread until it ends. Guards are counted below this bit.
pub(crate) const UNTIL_THE_END: u16 = 1 << 15;

// SAFETY: `link` is written by lists only.
unsafe impl Linked for Record {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

// A panic leaves nothing half-changed in a record: all of it is atomics and protocols of our own.
impl std::panic::RefUnwindSafe for Record {}

/// A name as records keep it, by a thin pointer.
pub(crate) type Name = Box<Box<str>>;

/// What a spawn says about its fiber.
pub(crate) struct Birth {
    pub(crate) location: &'static Location<'static>,
    /// In the form in which the record keeps it: nothing is allocated at birth.
    pub(crate) name: Option<Name>,
    pub(crate) worker: u16,
    pub(crate) stack_class: u8,
    pub(crate) pinned: bool,
    pub(crate) runtime: *mut (),
}

impl Record {
    /// How many references a new fiber has: the runtime's and its `JoinHandle`'s.
    const BORN_WITH: u32 = 2;

    /// Makes a free record a fiber's. The name of the fiber before it, to be dropped where memory may be
    /// freed: where a fiber ends that is not so.
    #[inline]
    #[must_use = "dropped without a lock or the mark"]
    pub(crate) fn be_born(&self, id: u64, birth: Birth) -> Option<Name> {
        self.state.reset();
        self.woken_at.store(0, Relaxed);
        self.join.store(0, Relaxed);
        self.worker.store(birth.worker, Relaxed);
        self.id.store(id, Relaxed);
        self.thread.store(ptr::null_mut(), Relaxed);
        self.stack.store(ptr::null_mut(), Relaxed);
        self.stack_pointer.store(0, Relaxed);
        self.runtime.store(birth.runtime, Relaxed);
        self.limited.store(0, Relaxed);
        self.swallowed.store(0, Relaxed);
        self.location
            .store(ptr::from_ref(birth.location).cast_mut(), Relaxed);
        let name = birth.name.map_or(ptr::null_mut(), Box::into_raw);
        let former = self.name.load(Relaxed); // nobody else writes it
        self.name.store(name, Relaxed);
        self.reason.store(ParkReason::None as u8, Relaxed);
        self.stack_class.store(birth.stack_class, Relaxed);
        self.pins.store(u16::from(birth.pinned), Relaxed);
        self.blocks_carrier.store(false, Relaxed);
        self.gate_pass.store(false, Relaxed);
        self.has_locals.store(false, Relaxed);
        self.waits_since.store(0, Relaxed);
        self.mobility.store(0, Relaxed);
        self.bound_entry.store(u16::MAX, Relaxed);
        self.no_preempt_depth.store(0, Relaxed);
        self.heat.store(0, Relaxed);
        self.magic.store(MAGIC, Relaxed);
        // Last, and a release: whoever gets a reference by `try_hold` sees all of the above.
        self.refs.store(Self::BORN_WITH, Release);
        // SAFETY: from `Box::into_raw` above, and the fiber it was for is gone.
        (!former.is_null()).then(|| unsafe { Box::from_raw(former) })
    }

    pub(crate) fn set_owner(&self, owner: &'static Remote) {
        self.owner.store(ptr::from_ref(owner).cast_mut(), Relaxed);
    }

    pub(crate) fn owner(&self) -> &'static Remote {
        // SAFETY: set once, from a `'static` reference, when the slab cut the record.
        unsafe { &*self.owner.load(Relaxed) }
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    /// The name, for whoever holds a reference.
    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY: null or a box that is dropped when the record is another fiber's.
        unsafe { self.name.load(Relaxed).as_ref() }.map(|name| &**name)
    }

    pub(crate) fn location(&self) -> &'static Location<'static> {
        // SAFETY: written at birth from a `'static` reference.
        unsafe { &*self.location.load(Relaxed) }
    }

    /// Where it stands, for whoever lists fibers: it is done as soon as its result is there.
    pub(crate) fn phase(&self) -> Phase {
        match self.state.phase() {
            _ if job::is_done(&self.join) => Phase::Done,
            Phase::Runnable if self.stack.load(Relaxed).is_null() => Phase::Unstarted,
            phase => phase,
        }
    }

    pub(crate) fn reason(&self) -> ParkReason {
        ParkReason::from_number(self.reason.load(Relaxed))
    }

    /// The fiber is about to park, at this tick of its runtime's clock.
    pub(crate) fn note_park(&self, reason: ParkReason, tick: u32) {
        self.reason.store(reason as u8, Relaxed);
        self.note_wait(tick);
    }

    /// The fiber waits from this tick of its runtime's clock on.
    pub(crate) fn note_wait(&self, tick: u32) {
        self.waits_since.store(tick, Relaxed);
    }

    /// The tick at which it last began to wait.
    pub(crate) fn waits_since(&self) -> u32 {
        self.waits_since.load(Relaxed)
    }

    /// By the fiber itself: names what it is about to wait for, the address of a lock or the id of
    /// a fiber.
    pub(crate) fn set_awaited(&self, name: usize) {
        let head = self.stack.load(Relaxed);
        // SAFETY: a fiber that runs has a stack.
        unsafe { StackHead::set_awaited(head, name) };
    }

    /// The name of what it waits for, if its reason is one that has a name.
    pub(crate) fn awaited(&self) -> Option<usize> {
        let head = self.stack.load(Acquire);
        let has_name = self.reason().names_awaited() && !head.is_null();
        // SAFETY: the heads of stacks stay mapped.
        has_name.then(|| unsafe { StackHead::awaited(head) })
    }

    /// The fiber is about to park inside its own frames, or has done so.
    pub(crate) fn set_blocks_carrier(&self, blocks: bool) {
        self.blocks_carrier.store(blocks, Release);
    }

    /// By the fiber itself: it does not leave its thread any more, whatever its frames allow.
    pub(crate) fn keep_on_thread(&self) {
        self.pins.fetch_or(UNTIL_THE_END, Relaxed);
    }

    pub(crate) fn blocks_carrier(&self) -> bool {
        self.blocks_carrier.load(Acquire)
    }

    /// It has never run.
    #[inline]
    pub(crate) fn is_unstarted(&self) -> bool {
        self.stack.load(Relaxed).is_null()
    }

    /// It is not to be interrupted now.
    pub(crate) fn in_no_preempt(&self) -> bool {
        self.no_preempt_depth.load(Relaxed) > 0
    }

    /// One line that names the fiber: `fiber 42 'name', spawned at file:line`.
    pub(crate) fn describe(&self, f: &mut impl fmt::Write) -> fmt::Result {
        write!(f, "fiber {}", self.id())?;
        if let Some(name) = self.name() {
            write!(f, " '{name}'")?;
        }
        let at = self.location();
        write!(f, ", spawned at {}:{}", at.file(), at.line())
    }

    /// Takes a reference if the record is in use at all.
    pub(crate) fn try_hold(&self) -> Option<Held> {
        let mut refs = self.refs.load(Relaxed);
        while refs > 0 {
            match self
                .refs
                .compare_exchange_weak(refs, refs + 1, Acquire, Relaxed)
            {
                Ok(_) => return Some(Held(NonNull::from(self))),
                Err(now) => refs = now,
            }
        }
        None
    }

    /// Gives one reference up; true if it was the last and the record is now the caller's, to
    /// put back into its slab.
    #[must_use]
    fn let_go(&self) -> bool {
        if self.refs.fetch_sub(1, Release) > 1 {
            return false;
        }
        fence(Acquire); // pairs with the releases of all others
        self.magic.store(0, Relaxed);
        true
    }
}

/// A fiber, by someone whose role keeps its record alive (I3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FiberRef(NonNull<Record>);

// SAFETY: a record is shared between threads by design; its fields say who may touch what.
unsafe impl Send for FiberRef {}
// SAFETY: as above.
unsafe impl Sync for FiberRef {}

impl FiberRef {
    /// # Safety
    /// The caller's role keeps the record alive while the result is used (I3).
    pub(crate) unsafe fn new(record: NonNull<Record>) -> Self {
        FiberRef(record)
    }

    pub(crate) fn pointer(self) -> NonNull<Record> {
        self.0
    }

    /// A counted reference, from a role that keeps the record alive (I3).
    pub(crate) fn hold(self) -> Held {
        self.refs.fetch_add(1, Relaxed);
        Held(self.0)
    }

    /// The runtime gives up its reference: the fiber is over and off its stack. A record that
    /// nobody else holds comes back, to be put into its slab.
    pub(crate) fn end(self) -> Option<NonNull<Record>> {
        self.let_go().then_some(self.0)
    }
}

impl Deref for FiberRef {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: I3.
        unsafe { self.0.as_ref() }
    }
}

/// A counted reference.
pub(crate) struct Held(NonNull<Record>);

// SAFETY: as for `FiberRef`.
unsafe impl Send for Held {}
// SAFETY: as for `FiberRef`.
unsafe impl Sync for Held {}

impl Held {
    /// Takes over a reference that was counted at birth.
    ///
    /// # Safety
    /// That reference is the caller's and is not taken over twice.
    pub(crate) unsafe fn adopt(fiber: FiberRef) -> Self {
        Held(fiber.0)
    }

    /// Uncounted, while `self` lives.
    pub(crate) fn fiber(&self) -> FiberRef {
        FiberRef(self.0)
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        self.refs.fetch_add(1, Relaxed);
        Held(self.0)
    }
}

impl Deref for Held {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: we hold a reference.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.let_go() {
            self.owner().give_back(self.0);
        }
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::Record;

    #[test]
    fn a_record_is_four_cache_lines() {
        assert_eq!(size_of::<Record>(), 256);
    }
}
