#![expect(unsafe_code, reason = "turns stored pointers back into fibers")]
//! A worker's runnable fibers: the LIFO slot for the newest, the local queue for the others.
//!
//! The queue consists of two ring buffers, for fibers that have started and for those that have
//! not. They take turns: a fiber that was woken does not wait behind a thousand starts. A ring
//! buffer is a bounded array with two counters that only grow. The worker's holder pushes at the
//! tail. Any thread, the holder too, takes from the head: it reads the slots there, then moves the
//! head forward with one compare-exchange.
//!
//! **I6** Each fiber leaves once. A taker reads slots `head..head + n` and then moves the head; if
//! that succeeds, the head had not moved since it was read. The holder overwrites a slot only after
//! seeing the head beyond it (acquire), so it had not overwritten any of them. A taker that fails
//! discards what it read. (The counters wrap after 2³² pushes; an error would need a taker that
//! sleeps through all of them between two instructions.)
//!
//! Rejected: crossbeam-deque. Its unbounded buffer brings epoch reclamation (a thread-local, an
//! allocation inside the scheduler) for a queue that is bounded anyway; it is no faster
//! (`docs/rejected.md`).

use std::ptr::{self, NonNull};

use crate::fiber::{FiberRef, Record};
use crate::util::list::List;
use crate::util::loom::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

fn fiber(record: *mut Record) -> Option<FiberRef> {
    // SAFETY: I3: a pointer in a slot or ring is a queued fiber, and the caller has just taken it.
    NonNull::new(record).map(|record| unsafe { FiberRef::new(record) })
}

/// The LIFO slot: room for one fiber.
pub(crate) struct LifoSlot(AtomicPtr<Record>);

impl LifoSlot {
    pub(crate) fn new() -> Self {
        LifoSlot(AtomicPtr::new(ptr::null_mut()))
    }

    /// Stores a fiber and returns the one that was there. A full barrier: nothing that follows is
    /// ordered before it.
    pub(crate) fn replace(&self, new: FiberRef) -> Option<FiberRef> {
        fiber(self.0.swap(new.pointer().as_ptr(), SeqCst))
    }

    pub(crate) fn take(&self) -> Option<FiberRef> {
        if self.0.load(Relaxed).is_null() {
            return None;
        }
        fiber(self.0.swap(ptr::null_mut(), AcqRel))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(SeqCst).is_null()
    }
}

struct Ring {
    head: AtomicU32,
    tail: AtomicU32,
    slots: Box<[AtomicPtr<Record>]>,
}

impl Ring {
    /// Creates an empty ring buffer; `capacity` is a power of two.
    fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "ring of {capacity}");
        let slots = (0..capacity)
            .map(|_| AtomicPtr::new(ptr::null_mut()))
            .collect();
        Ring {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            slots,
        }
    }

    fn slot(&self, at: u32) -> &AtomicPtr<Record> {
        &self.slots[at as usize & (self.slots.len() - 1)]
    }

    fn len(&self) -> usize {
        let head = self.head.load(SeqCst);
        let len = self.tail.load(SeqCst).wrapping_sub(head) as usize;
        // The head may have overtaken an old tail between the two loads.
        if len > self.slots.len() { 0 } else { len }
    }

    /// Whether the ring is empty. Never true while a fiber is in it: the head is read first and
    /// only grows.
    #[inline]
    fn is_empty(&self) -> bool {
        self.head.load(SeqCst) == self.tail.load(SeqCst)
    }

    /// Holder only: pushes a fiber; returns it if the ring is full.
    fn push(&self, new: FiberRef) -> Result<(), FiberRef> {
        let head = self.head.load(Acquire);
        let tail = self.tail.load(Relaxed);
        if tail.wrapping_sub(head) as usize >= self.slots.len() {
            return Err(new);
        }
        self.slot(tail).store(new.pointer().as_ptr(), Relaxed);
        self.tail.store(tail.wrapping_add(1), Release);
        Ok(())
    }

    /// Holder only: pops the oldest fiber.
    fn pop(&self) -> Option<FiberRef> {
        let mut head = self.head.load(Acquire);
        loop {
            if head == self.tail.load(Relaxed) {
                return None;
            }
            let found = self.slot(head).load(Relaxed);
            match self
                .head
                .compare_exchange_weak(head, head.wrapping_add(1), AcqRel, Acquire)
            {
                Ok(_) => return fiber(found),
                Err(now) => head = now,
            }
        }
    }

    /// Returns the fiber at the head, which another thread may take and run at any moment. Its
    /// record stays mapped: good for a prefetch or a hint, and nothing else.
    #[inline]
    fn peek(&self) -> Option<FiberRef> {
        let head = self.head.load(Relaxed);
        if head == self.tail.load(Relaxed) {
            return None;
        }
        fiber(self.slot(head).load(Relaxed))
    }

    /// Holder only: takes the older half, for the global queue.
    fn take_half(&self) -> List<Record> {
        let mut head = self.head.load(Acquire);
        loop {
            let len = self.tail.load(Relaxed).wrapping_sub(head);
            let n = len / 2;
            match self
                .head
                .compare_exchange_weak(head, head.wrapping_add(n), AcqRel, Acquire)
            {
                Ok(_) => {
                    let mut list = List::new();
                    for at in 0..n {
                        // Only the holder overwrites slots, and this is the holder.
                        let found = self.slot(head.wrapping_add(at)).load(Relaxed);
                        let found = NonNull::new(found).expect("a filled slot");
                        // SAFETY: just taken, so in no list; a queued record stays alive (I3).
                        unsafe { list.push(found) };
                    }
                    return list;
                }
                Err(now) => head = now,
            }
        }
    }

    /// Moves half of `self`, rounded up, into `thief`, and returns one of them to run at once.
    ///
    /// Thief's holder only. `thief` is empty, so that the two end even.
    fn steal_into(&self, thief: &Ring) -> Option<FiberRef> {
        debug_assert_eq!(thief.len(), 0);
        let start = thief.tail.load(Relaxed);
        let mut head = self.head.load(Acquire);
        loop {
            let len = self.tail.load(Acquire).wrapping_sub(head);
            if len == 0 {
                return None;
            }
            if len as usize > self.slots.len() {
                head = self.head.load(Acquire); // the head that was read is old
                continue;
            }
            let n = len - len / 2;
            for at in 0..n {
                // Perhaps overwritten meanwhile; then the exchange below fails (I6).
                let found = self.slot(head.wrapping_add(at)).load(Relaxed);
                thief.slot(start.wrapping_add(at)).store(found, Relaxed);
            }
            match self
                .head
                .compare_exchange_weak(head, head.wrapping_add(n), AcqRel, Acquire)
            {
                Ok(_) => {
                    // The last one runs at once, so it never becomes visible in the ring.
                    let last = thief.slot(start.wrapping_add(n - 1)).load(Relaxed);
                    thief.tail.store(start.wrapping_add(n - 1), Release);
                    return fiber(last);
                }
                Err(now) => head = now,
            }
        }
    }
}

/// The local queue of a worker.
pub(crate) struct Queue {
    started: Ring,
    unstarted: Ring,
    /// The fiber that was popped last had not started; written by the holder only.
    turn: AtomicBool,
}

impl Queue {
    /// Creates an empty queue; `capacity`, for fibers of either kind, is a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        Queue {
            started: Ring::new(capacity),
            unstarted: Ring::new(capacity),
            turn: AtomicBool::new(false),
        }
    }

    fn ring_for(&self, fiber: FiberRef) -> &Ring {
        if fiber.is_unstarted() {
            &self.unstarted
        } else {
            &self.started
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.started.len() + self.unstarted.len()
    }

    /// Whether the queue is empty. Never true while a fiber is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.started.is_empty() && self.unstarted.is_empty()
    }

    /// Whether a started fiber waits in the queue.
    pub(crate) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Holder only: pushes a fiber. If there is no room, returns it and the older half of its kind.
    #[inline]
    pub(crate) fn push(&self, fiber: FiberRef) -> Result<(), (FiberRef, List<Record>)> {
        let ring = self.ring_for(fiber);
        ring.push(fiber).map_err(|back| (back, ring.take_half()))
    }

    /// Holder only: pops a fiber.
    #[inline]
    pub(crate) fn pop(&self) -> Option<FiberRef> {
        if self.unstarted.is_empty() {
            return self.started.pop();
        }
        self.pop_in_turn()
    }

    fn pop_in_turn(&self) -> Option<FiberRef> {
        let turn = !self.turn.load(Relaxed);
        self.turn.store(turn, Relaxed);
        let [first, second] = match turn {
            true => [&self.started, &self.unstarted],
            false => [&self.unstarted, &self.started],
        };
        first.pop().or_else(|| second.pop())
    }

    /// Holder only: returns the next started fiber, for a prefetch and nothing else. A thief may
    /// take it, and another thread run it, at any moment.
    #[inline]
    pub(crate) fn peek_started(&self) -> Option<FiberRef> {
        self.started.peek()
    }

    /// Returns the fiber in the queue if it is the only one and has started. A hint: another thread
    /// may take and run it at any moment.
    pub(crate) fn peek_only(&self) -> Option<FiberRef> {
        let is_only = self.unstarted.is_empty() && self.started.len() == 1;
        is_only.then(|| self.started.peek())?
    }

    /// Moves half of one kind into the empty queue of a thief; returns one of them to run at once.
    pub(crate) fn steal_into(&self, thief: &Queue) -> Option<FiberRef> {
        let started = self.started.steal_into(&thief.started);
        started.or_else(|| self.unstarted.steal_into(&thief.unstarted))
    }
}

#[cfg(all(test, indent_loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Fibers of the model are numbers cast to pointers; they are never dereferenced.
    fn number(n: usize) -> FiberRef {
        // SAFETY: never dereferenced.
        unsafe { FiberRef::new(NonNull::new(ptr::without_provenance_mut(n)).unwrap()) }
    }

    fn value(fiber: FiberRef) -> usize {
        fiber.pointer().as_ptr().addr()
    }

    #[test]
    fn loom_every_fiber_leaves_the_ring_once() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let ring = Arc::new(Ring::new(2));
            ring.push(number(1)).ok().unwrap();
            ring.push(number(2)).ok().unwrap();
            let victim = ring.clone();
            let thief = loom::thread::spawn(move || {
                let own = Ring::new(2);
                let mut got = Vec::new();
                got.extend(victim.steal_into(&own).map(value));
                got.extend(std::iter::from_fn(|| own.pop()).map(value));
                got
            });
            let mut got = Vec::new();
            got.extend(ring.pop().map(value));
            // Overwrites slots the thief may be reading.
            for n in [3, 4] {
                if let Err(back) = ring.push(number(n)) {
                    got.push(value(back));
                }
            }
            got.extend(std::iter::from_fn(|| ring.pop()).map(value));
            got.extend(thief.join().unwrap());
            got.sort_unstable();
            assert_eq!(got, [1, 2, 3, 4]);
        });
    }
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn number(n: usize) -> FiberRef {
        // SAFETY: never dereferenced.
        unsafe { FiberRef::new(NonNull::new(ptr::without_provenance_mut(n)).unwrap()) }
    }

    #[test]
    fn a_full_ring_gives_the_fiber_back() {
        let ring = Ring::new(4);
        for n in 1..=4 {
            assert!(ring.push(number(n)).is_ok());
        }
        assert!(ring.push(number(5)).is_err());
        assert_eq!(ring.len(), 4);
    }

    #[test]
    fn a_thief_takes_half_and_runs_one() {
        let (ring, own) = (Ring::new(8), Ring::new(8));
        for n in 1..=7 {
            assert!(ring.push(number(n)).is_ok());
        }
        assert!(ring.steal_into(&own).is_some());
        assert_eq!((ring.len(), own.len()), (3, 3));
    }

    #[test]
    fn stress_thieves_and_holder_take_each_fiber_once() {
        const COUNT: usize = 200_000;
        let ring = Arc::new(Ring::new(64));
        let over = Arc::new(AtomicBool::new(false));
        let thieves: Vec<_> = (0..2)
            .map(|_| {
                let (ring, over) = (ring.clone(), over.clone());
                std::thread::spawn(move || {
                    let own = Ring::new(64);
                    let mut sum = 0;
                    while !over.load(Acquire) || !ring.is_empty() {
                        let stolen = ring.steal_into(&own);
                        for fiber in stolen.into_iter().chain(std::iter::from_fn(|| own.pop())) {
                            sum += fiber.pointer().as_ptr().addr();
                        }
                    }
                    sum
                })
            })
            .collect();
        let mut sum = 0;
        for n in 1..=COUNT {
            let mut fiber = number(n);
            while let Err(back) = ring.push(fiber) {
                fiber = back;
                sum += ring.pop().map_or(0, |f| f.pointer().as_ptr().addr());
            }
        }
        over.store(true, Release);
        sum += thieves
            .into_iter()
            .map(|t| t.join().unwrap())
            .sum::<usize>();
        sum += std::iter::from_fn(|| ring.pop())
            .map(|f| f.pointer().as_ptr().addr())
            .sum::<usize>();
        assert_eq!(sum, COUNT * (COUNT + 1) / 2);
    }
}
