#![expect(
    unsafe_code,
    reason = "records are shared by pointer and counted by hand"
)]
//! A fiber's record: its data from `spawn` until the last handle is dropped.
//!
//! A record is `SIZE` bytes in a slab (`slab.rs`) whose memory is never unmapped, so a stale
//! pointer reads an old or a newer fiber, never foreign memory. Its reference count keeps a record
//! *this* fiber's: the runtime holds one reference until the fiber has ended, a `JoinHandle` one,
//! an `Unparker` one, and code that lists fibers one for as long as it looks (`Held`).
//!
//! Access rules:
//! - `state`, `join`, the counts: any thread; they are protocols of their own.
//! - `link`: the thread that put the record into a list or took it out of one.
//! - `job` and its storage: the spawner until the record is queued; then the fiber; after `join`
//!   is DONE, the side to which that word gives the result (see `job.rs`).
//! - everything else is written before the record is queued, or by the carrier that runs the
//!   fiber, and read by any holder of a reference: atomics, relaxed, each meaningful alone.
//!
//! **I3** A [`FiberRef`] is only held in a role that keeps the record alive: by a queue, by the
//! carrier that runs the fiber, by the fiber itself, by a waiter word whose owner cannot leave
//! before the wake.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync;

use crate::fiber::job::{self, Job};
use crate::fiber::reason::ParkReason;
use crate::fiber::slab::Remote;
use crate::fiber::stack::StackHead;
use crate::fiber::state::{Phase, State};
use crate::util::list::Linked;
use crate::util::loom::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Letters and a version, so that a debugger finds live records in memory.
const MAGIC: u32 = u32::from_le_bytes(*b"FIB\x02");

/// The value of `worker` for a fiber that any worker may start.
pub(crate) const ANY_WORKER: u16 = u16::MAX;

#[repr(C, align(64))]
pub(crate) struct Record {
    /// `MAGIC` while the record belongs to a fiber.
    magic: AtomicU32,
    /// When it was made runnable, if that is measured; see `sched/workers/latency.rs`.
    pub(crate) woken_at: AtomicU32,
    pub(crate) state: State,
    link: AtomicPtr<Record>,
    /// The join word: the state of the result, or its waiter; see `job.rs`.
    pub(crate) join: AtomicUsize,
    /// References; zero while the record is free.
    refs: AtomicU32,
    /// The worker that must start it, or `ANY_WORKER`.
    pub(crate) worker: AtomicU16,
    /// How much it computes between two parks; see `sched/preempt/class.rs`.
    pub(crate) cpu_score: AtomicU8,
    /// Live `no_preempt` sections; used by the fiber itself only.
    pub(crate) no_preempt_depth: AtomicU8,
    /// Where on its stack its registers were stored when it last switched out (`switch.rs`).
    pub(crate) stack_pointer: AtomicUsize,
    /// The carrier (a type of the layers above) that a switched-out fiber is bound to; null if it
    /// may run on any thread.
    pub(crate) thread: AtomicPtr<()>,
    /// Null until the first dispatch and again once the fiber has ended.
    pub(crate) stack: AtomicPtr<StackHead>,

    id: AtomicU64,
    /// The runtime (a type of the layers above); valid until the fiber has ended.
    pub(crate) runtime: AtomicPtr<()>,
    location: AtomicPtr<Location<'static>>,
    name: AtomicPtr<Box<str>>,
    /// Where the record is put when it is free.
    owner: AtomicPtr<Remote>,
    /// Whether it is in a time limit, and more (`sched/block/time_limit.rs`); used by the fiber
    /// itself only.
    pub(crate) limited: sync::atomic::AtomicU8,
    /// How often it caught the unwinding of a blocking call (`sched/block/unwind_backoff.rs`); its
    /// own only.
    pub(crate) swallowed: sync::atomic::AtomicU8,
    reason: AtomicU8,
    /// The size class of the stack it requests.
    pub(crate) stack_class: AtomicU8,
    /// Live `pin()` guards, and one more for a fiber built pinned; and `UNTIL_THE_END`.
    pub(crate) pins: AtomicU16,
    /// Whether the fiber is parked inside its own frames, because it unwinds: its thread waits
    /// there and not at the bottom of its stack (S3).
    blocks_carrier: AtomicBool,
    /// Whether it may change threads since it last switched out; see `sched/mobility/verdict.rs`.
    pub(crate) mobility: AtomicU8,
    /// The entry under which its last park as a bound fiber was counted
    /// (`sched/mobility/bound.rs`).
    pub(crate) bound_entry: AtomicU16,
    /// It has one of the permits for unwinding fibers (`sched/block/unwind_limit.rs`).
    pub(crate) unwind_permit: AtomicBool,
    /// It has used thread-locals (`locals.rs`); used by the thread that holds the fiber only.
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

// A panic leaves nothing half-changed in a record: all of it is atomics and internal protocols.
impl std::panic::RefUnwindSafe for Record {}

/// A name as records keep it, behind a thin pointer.
pub(crate) type Name = Box<Box<str>>;

/// The properties of a fiber that its spawn sets.
pub(crate) struct NewFiber {
    pub(crate) location: &'static Location<'static>,
    /// In the form in which the record keeps it, so that `init` allocates nothing.
    pub(crate) name: Option<Name>,
    pub(crate) worker: u16,
    pub(crate) stack_class: u8,
    pub(crate) pinned: bool,
    pub(crate) runtime: *mut (),
}

impl Record {
    /// Initial reference count of a new fiber: the runtime's and its `JoinHandle`'s.
    const INITIAL_REFS: u32 = 2;

    /// Turns a free record into a new fiber's.
    ///
    /// Returns the name of the record's last fiber, for the caller to drop where memory may be
    /// freed: where a fiber ends that is not allowed.
    #[inline]
    #[must_use = "dropped without a lock or the mark"]
    pub(crate) fn init(&self, id: u64, birth: NewFiber) -> Option<Name> {
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
        let former = self.name.load(Relaxed); // no other thread writes it
        self.name.store(name, Relaxed);
        self.reason.store(ParkReason::None as u8, Relaxed);
        self.stack_class.store(birth.stack_class, Relaxed);
        self.pins.store(u16::from(birth.pinned), Relaxed);
        self.blocks_carrier.store(false, Relaxed);
        self.unwind_permit.store(false, Relaxed);
        self.has_locals.store(false, Relaxed);
        self.waits_since.store(0, Relaxed);
        self.mobility.store(0, Relaxed);
        self.bound_entry.store(u16::MAX, Relaxed);
        self.no_preempt_depth.store(0, Relaxed);
        self.cpu_score.store(0, Relaxed);
        self.magic.store(MAGIC, Relaxed);
        // Last, and a release: a thread that gets a reference by `try_hold` sees all of the above.
        self.refs.store(Self::INITIAL_REFS, Release);
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

    /// The name; the caller holds a reference.
    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY: null or a box that is dropped when the record is another fiber's.
        unsafe { self.name.load(Relaxed).as_ref() }.map(|name| &**name)
    }

    pub(crate) fn location(&self) -> &'static Location<'static> {
        // SAFETY: written at birth from a `'static` reference.
        unsafe { &*self.location.load(Relaxed) }
    }

    /// The phase, for listings: a fiber is done as soon as its result is there.
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

    /// Notes that the fiber is about to park, at this tick of its runtime's clock.
    pub(crate) fn note_park(&self, reason: ParkReason, tick: u32) {
        self.reason.store(reason as u8, Relaxed);
        self.note_wait(tick);
    }

    /// Notes that the fiber waits from this tick of its runtime's clock on.
    pub(crate) fn note_wait(&self, tick: u32) {
        self.waits_since.store(tick, Relaxed);
    }

    /// The tick at which it last began to wait.
    pub(crate) fn waits_since(&self) -> u32 {
        self.waits_since.load(Relaxed)
    }

    /// Fiber only: names what it is about to wait for, the address of a lock or the id of a fiber.
    pub(crate) fn set_awaited(&self, name: usize) {
        let head = self.stack.load(Relaxed);
        // SAFETY: a fiber that runs has a stack.
        unsafe { StackHead::set_awaited(head, name) };
    }

    /// Returns the name of what it waits for, if its park reason has one.
    pub(crate) fn awaited(&self) -> Option<usize> {
        let head = self.stack.load(Acquire);
        let has_name = self.reason().names_awaited() && !head.is_null();
        // SAFETY: the heads of stacks stay mapped.
        has_name.then(|| unsafe { StackHead::awaited(head) })
    }

    /// Notes that the fiber is about to park inside its own frames, or has done so.
    pub(crate) fn set_blocks_carrier(&self, blocks: bool) {
        self.blocks_carrier.store(blocks, Release);
    }

    /// Fiber only: it stays on its thread until it ends, whatever its frames allow.
    pub(crate) fn keep_on_thread(&self) {
        self.pins.fetch_or(UNTIL_THE_END, Relaxed);
    }

    pub(crate) fn blocks_carrier(&self) -> bool {
        self.blocks_carrier.load(Acquire)
    }

    /// Whether it has never run.
    #[inline]
    pub(crate) fn is_unstarted(&self) -> bool {
        self.stack.load(Relaxed).is_null()
    }

    /// Whether it must not be interrupted now.
    pub(crate) fn in_no_preempt(&self) -> bool {
        self.no_preempt_depth.load(Relaxed) > 0
    }

    /// Writes one line that names the fiber: `fiber 42 'name', spawned at file:line`.
    pub(crate) fn describe(&self, f: &mut impl fmt::Write) -> fmt::Result {
        write!(f, "fiber {}", self.id())?;
        if let Some(name) = self.name() {
            write!(f, " '{name}'")?;
        }
        let at = self.location();
        write!(f, ", spawned at {}:{}", at.file(), at.line())
    }

    /// Takes a reference if the record belongs to a fiber.
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

    /// Drops one reference; true if it was the last and the record is now the caller's, to put
    /// back into its slab.
    #[must_use]
    fn release(&self) -> bool {
        if self.refs.fetch_sub(1, Release) > 1 {
            return false;
        }
        fence(Acquire); // pairs with the releases of all others
        self.magic.store(0, Relaxed);
        true
    }
}

/// A pointer to a fiber, held in a role that keeps its record alive (I3).
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

    /// Takes a counted reference, from a role that keeps the record alive (I3).
    pub(crate) fn hold(self) -> Held {
        self.refs.fetch_add(1, Relaxed);
        Held(self.0)
    }

    /// Drops the runtime's reference: the fiber has ended and left its stack. Returns the record if
    /// that was the last reference, to be put into its slab.
    pub(crate) fn end(self) -> Option<NonNull<Record>> {
        self.release().then_some(self.0)
    }
}

impl Deref for FiberRef {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: I3.
        unsafe { self.0.as_ref() }
    }
}

/// A counted reference to a fiber.
pub(crate) struct Held(NonNull<Record>);

// SAFETY: as for `FiberRef`.
unsafe impl Send for Held {}
// SAFETY: as for `FiberRef`.
unsafe impl Sync for Held {}

impl Held {
    /// Takes over a reference that was counted by `init`.
    ///
    /// # Safety
    /// That reference is the caller's and is not taken over twice.
    pub(crate) unsafe fn adopt(fiber: FiberRef) -> Self {
        Held(fiber.0)
    }

    /// An uncounted pointer, valid while `self` lives.
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
        if self.release() {
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
