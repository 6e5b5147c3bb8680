#![expect(unsafe_code, reason = "cuts records out of mapped memory")]
//! Slabs of records.
//!
//! A slab belongs to one worker (or, behind a lock, to all plain threads). It hands out records
//! from its free list, most recently used first, then those that other threads returned, then fresh
//! ones. A record that is freed by any thread but the slab's holder goes to the slab's [`Remote`],
//! an inbox.
//!
//! Chunks are never unmapped and slabs never dropped: when a runtime ends, its slabs wait for the
//! next runtime. So a `JoinHandle` may outlive its runtime, and [`every_record`] may walk all
//! chunks at any time without stopping other threads: it takes a reference before it looks.

use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::fiber::record::{Held, Record};
use crate::sys::memory::{self, Advice};
use crate::util::inbox::Inbox;
use crate::util::list::List;
use crate::util::preempt_check;

/// The first chunk of a slab: enough for a small program without a huge page.
const FIRST_CHUNK: usize = 64 * 1024;
/// Later chunks: one huge page each. A fresh small page costs a fault for every sixteen records.
const CHUNK: usize = 2 * 1024 * 1024;
/// How many ids a slab takes at a time from the global counter.
const ID_BLOCK: u64 = 1024;

/// The part of a slab that other threads use: where they return its records.
pub(crate) struct Remote(Inbox<Record>);

impl Remote {
    /// Returns a free record to its slab, from any thread.
    pub(crate) fn give_back(&self, record: NonNull<Record>) {
        // SAFETY: slab memory stays valid, and a free record is in no list.
        unsafe { self.0.post(record) };
    }
}

/// The head of a chunk; records follow it.
#[repr(C, align(64))]
struct Chunk {
    next: *const Chunk,
    /// How many records have ever been handed out, oldest first.
    used: AtomicUsize,
    capacity: usize,
}

/// All chunks of the process, newest first; it only grows.
static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// Slabs of runtimes that ended.
static IDLE: Mutex<Vec<Slab>> = Mutex::new(Vec::new());

impl Chunk {
    fn map(bytes: usize) -> &'static Chunk {
        let result = if bytes < CHUNK {
            memory::map(bytes)
        } else {
            memory::map_aligned(bytes, CHUNK)
        };
        let Ok(at) = result else {
            // `spawn` cannot fail, and without a record there is nothing to queue.
            panic!("no memory for {bytes} bytes of fiber records: free memory or spawn less");
        };
        if bytes >= CHUNK {
            // SAFETY: no other code has seen the mapping; refusal only costs speed.
            let _ = unsafe { memory::advise(at, bytes, Advice::HugePages) };
        }
        let chunk = at.cast::<Chunk>();
        let capacity = (bytes - size_of::<Chunk>()) / size_of::<Record>();
        let mut next = CHUNKS.load(Relaxed);
        loop {
            // SAFETY: the mapping is large enough, page-aligned and ours until it is published.
            unsafe {
                chunk.write(Chunk {
                    next,
                    used: AtomicUsize::new(0),
                    capacity,
                })
            };
            match CHUNKS.compare_exchange_weak(next, chunk.as_ptr(), Release, Relaxed) {
                // SAFETY: never unmapped.
                Ok(_) => return unsafe { chunk.as_ref() },
                Err(now) => next = now,
            }
        }
    }

    /// Returns record number `i`, which must be below `used` or about to be.
    fn record(&self, i: usize) -> NonNull<Record> {
        debug_assert!(i < self.capacity);
        let first = ptr::from_ref(self)
            .wrapping_add(1)
            .cast::<Record>()
            .cast_mut();
        NonNull::new(first.wrapping_add(i)).expect("chunks are not at address zero")
    }
}

pub(crate) struct Slab {
    free: List<Record>,
    chunk: &'static Chunk,
    remote: &'static Remote,
    ids: std::ops::Range<u64>,
}

// SAFETY: the only `!Sync` thing behind its references, a chunk's `next`, is never written after
// the chunk was published; a free list moves with the right to its members.
unsafe impl Send for Slab {}

impl Slab {
    /// Returns a slab of a former runtime, or a new one.
    pub(crate) fn obtain() -> Slab {
        preempt_check::expect_disabled();
        let idle = IDLE.lock().unwrap_or_else(|e| e.into_inner()).pop();
        idle.unwrap_or_else(|| Slab {
            free: List::new(),
            chunk: Chunk::map(FIRST_CHUNK),
            remote: Box::leak(Box::new(Remote(Inbox::new()))),
            ids: 0..0,
        })
    }

    /// Leaves the slab to the next runtime.
    pub(crate) fn retire(self) {
        preempt_check::expect_disabled();
        IDLE.lock().unwrap_or_else(|e| e.into_inner()).push(self);
    }

    pub(crate) fn is_owner_of(&self, record: &Record) -> bool {
        ptr::eq(record.owner(), self.remote)
    }

    /// Takes a free record, and a new id for it.
    pub(crate) fn take(&mut self) -> (NonNull<Record>, u64) {
        if self.ids.is_empty() {
            let start = NEXT_ID.fetch_add(ID_BLOCK, Relaxed);
            self.ids = start..start + ID_BLOCK;
        }
        let id = self.ids.start;
        self.ids.start += 1;
        if let Some(record) = self.free.pop() {
            return (record, id);
        }
        (self.refill(), id)
    }

    fn refill(&mut self) -> NonNull<Record> {
        self.free = self.remote.0.take();
        if let Some(record) = self.free.pop() {
            return record;
        }
        if self.chunk.used.load(Relaxed) == self.chunk.capacity {
            self.chunk = Chunk::map(CHUNK);
        }
        let used = self.chunk.used.load(Relaxed);
        let record = self.chunk.record(used);
        // SAFETY: in bounds, and fresh anonymous memory: zeros, a valid value for every field that
        // is read before `init` has written it (atomics and a count of zero).
        unsafe { record.as_ref() }.set_owner(self.remote);
        self.chunk.used.store(used + 1, Release); // publishes the owner with it
        record
    }

    /// Returns a record of this slab.
    pub(crate) fn put(&mut self, record: NonNull<Record>) {
        // SAFETY: free, so in no list; slab memory stays valid.
        unsafe { self.free.push_front(record) };
    }
}

/// Calls `see` with every fiber of the process that has a record now.
pub(crate) fn every_record(mut see: impl FnMut(Held)) {
    // SAFETY: chunks are never unmapped and `next` is set before they are published.
    let mut chunk = unsafe { CHUNKS.load(Acquire).as_ref() };
    while let Some(here) = chunk {
        for i in 0..here.used.load(Acquire) {
            // SAFETY: below `used`, so it was cut and its count is a valid atomic.
            if let Some(held) = unsafe { here.record(i).as_ref() }.try_hold() {
                see(held);
            }
        }
        // SAFETY: as above.
        chunk = unsafe { here.next.as_ref() };
    }
}
