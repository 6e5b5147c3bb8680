#![expect(
    unsafe_code,
    reason = "slots that are full or not; moves values by pointer"
)]
//! Values that were sent and not yet received, first in first out.
//!
//! Values come and go by pointer: whoever moves one into a buffer has none any more, and none is dropped
//! here, but with the buffer itself. A buffer is used under the lock of its channel, so it never allocates and
//! never frees: a *ring* is made with all its room; a *chain* grows by blocks that its user brings along, and
//! gives the user those it has no use for.

use std::mem::{self, MaybeUninit};
use std::ptr;

/// Values in one block of a chain.
const BLOCK: usize = 32;

pub(crate) enum Buffer<T> {
    Ring(Ring<T>),
    Chain(Chain<T>),
}

impl<T> Buffer<T> {
    /// A ring of this capacity, or a chain.
    pub(crate) fn new(capacity: Option<usize>) -> Self {
        match capacity {
            Some(capacity) => Buffer::Ring(Ring::new(capacity)),
            None => Buffer::Chain(Chain::new()),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Buffer::Ring(ring) => ring.len,
            Buffer::Chain(chain) => chain.len,
        }
    }

    /// Whether there is room for one more. A chain has room if it has a block for it.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Buffer::Ring(ring) => ring.len < ring.capacity,
            Buffer::Chain(chain) => chain.has_room(),
        }
    }

    /// Moves a value in.
    ///
    /// # Safety
    /// There is room, and the pointer is to a value that is the caller's no more.
    #[inline]
    pub(crate) unsafe fn push(&mut self, value: *const T) {
        match self {
            // SAFETY: by the caller's promise.
            Buffer::Ring(ring) => unsafe { ring.push(value) },
            // SAFETY: as above.
            Buffer::Chain(chain) => unsafe { chain.push(value) },
        }
    }

    /// Moves the oldest value to `to`. False if there is none.
    ///
    /// # Safety
    /// There is room for one at `to`.
    #[inline]
    pub(crate) unsafe fn pop(&mut self, to: *mut T) -> bool {
        let place = match self {
            Buffer::Ring(ring) => ring.pop(),
            Buffer::Chain(chain) => chain.pop(),
        };
        if let Some(place) = place {
            // SAFETY: a full slot, which counts as empty since `pop`; `to` by the caller's promise.
            unsafe { ptr::copy_nonoverlapping(place, to, 1) };
        }
        place.is_some()
    }
}

impl<T> Buffer<T> {
    /// Memory that pops have left, to be freed without the lock.
    #[inline]
    pub(crate) fn surplus(&mut self) -> Surplus<T> {
        match self {
            Buffer::Ring(_) => Surplus(ptr::null_mut()),
            Buffer::Chain(chain) => mem::replace(&mut chain.surplus, Surplus(ptr::null_mut())),
        }
    }
}

impl<T> Buffer<T> {
    /// Drops the oldest value. False if there is none.
    fn drop_one(&mut self) -> bool {
        let mut value = MaybeUninit::uninit();
        // SAFETY: there is room in a local.
        let was_there = unsafe { self.pop(value.as_mut_ptr()) };
        if was_there {
            // SAFETY: just moved there.
            drop(unsafe { value.assume_init() });
        }
        was_there
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        /// If the drop of one value unwinds, the others are dropped all the same: somebody may wait for that.
        struct Rest<'a, T>(&'a mut Buffer<T>);

        impl<T> Drop for Rest<'_, T> {
            fn drop(&mut self) {
                while self.0.drop_one() {}
            }
        }

        let rest = Rest(self);
        while rest.0.drop_one() {}
    }
}

/// So many slots and no more. A single one is inside: then nothing is allocated.
pub(crate) struct Ring<T> {
    first: MaybeUninit<T>,
    slots: Box<[MaybeUninit<T>]>,
    head: usize,
    len: usize,
    capacity: usize,
}

impl<T> Ring<T> {
    fn new(capacity: usize) -> Self {
        let allocated = if capacity > 1 { capacity } else { 0 };
        Ring {
            first: MaybeUninit::uninit(),
            slots: Box::new_uninit_slice(allocated),
            head: 0,
            len: 0,
            capacity,
        }
    }

    #[inline]
    fn slot(&mut self, at: usize) -> *mut T {
        if self.capacity == 1 {
            self.first.as_mut_ptr()
        } else {
            self.slots[at].as_mut_ptr()
        }
    }

    /// # Safety
    /// As for `Buffer::push`.
    #[inline]
    unsafe fn push(&mut self, value: *const T) {
        let mut at = self.head + self.len;
        if at >= self.capacity {
            at -= self.capacity;
        }
        self.len += 1;
        let slot = self.slot(at);
        // SAFETY: an empty slot, as there is room; the value by the caller's promise.
        unsafe { ptr::copy_nonoverlapping(value, slot, 1) };
    }

    #[inline]
    fn pop(&mut self) -> Option<*const T> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slot(self.head);
        self.len -= 1;
        self.head += 1;
        if self.head == self.capacity {
            self.head = 0;
        }
        Some(slot)
    }
}

/// Blocks, each with a pointer to the next.
pub(crate) struct Chain<T> {
    /// Null if there is none.
    head: *mut Block<T>,
    tail: *mut Block<T>,
    /// Where in the first block the oldest value is, and where in the last one the next will be.
    read: usize,
    write: usize,
    len: usize,
    /// One that is not in use.
    spare: Option<Box<Block<T>>>,
    surplus: Surplus<T>,
}

/// Blocks that are of no use, for whoever has taken a value to free. Mostly none, or one.
pub(crate) struct Surplus<T>(*mut Block<T>);

impl<T> Surplus<T> {
    fn add(&mut self, mut block: Box<Block<T>>) {
        block.next = self.0;
        self.0 = Box::into_raw(block);
    }
}

impl<T> Drop for Surplus<T> {
    fn drop(&mut self) {
        while !self.0.is_null() {
            // SAFETY: made by `Box::into_raw` in `add`, and taken off the list here.
            self.0 = unsafe { Box::from_raw(self.0) }.next;
        }
    }
}

// SAFETY: it owns its blocks and the values in them.
unsafe impl<T: Send> Send for Chain<T> {}

pub(crate) struct Block<T> {
    next: *mut Block<T>,
    values: [MaybeUninit<T>; BLOCK],
}

impl<T> Block<T> {
    /// Made where it stays: it may be larger than a stack.
    pub(crate) fn new() -> Box<Self> {
        let mut block = Box::<Self>::new_uninit();
        // SAFETY: a field of what was allocated.
        let next = unsafe { &raw mut (*block.as_mut_ptr()).next };
        // SAFETY: as above; there is nothing to be dropped.
        unsafe { next.write(ptr::null_mut()) };
        // SAFETY: the other field needs no value.
        unsafe { block.assume_init() }
    }
}

impl<T> Chain<T> {
    fn new() -> Self {
        Chain {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            read: 0,
            write: BLOCK,
            len: 0,
            spare: None,
            surplus: Surplus(ptr::null_mut()),
        }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.write < BLOCK || self.spare.is_some()
    }

    /// A block for later. If there is one already the caller keeps this.
    pub(crate) fn grow(&mut self, block: Box<Block<T>>) -> Option<Box<Block<T>>> {
        if self.spare.is_some() {
            return Some(block);
        }
        self.spare = Some(block);
        None
    }

    /// # Safety
    /// As for `Buffer::push`.
    #[inline]
    unsafe fn push(&mut self, value: *const T) {
        if self.write == BLOCK {
            self.append();
        }
        // SAFETY: the last block, which is there since `append`.
        let slot = unsafe { &mut (*self.tail).values }[self.write].as_mut_ptr();
        // SAFETY: an empty slot; the value by the caller's promise.
        unsafe { ptr::copy_nonoverlapping(value, slot, 1) };
        self.write += 1;
        self.len += 1;
    }

    fn append(&mut self) {
        let block = self.spare.take().expect("there is room");
        let block = Box::into_raw(block);
        if self.head.is_null() {
            (self.head, self.read) = (block, 0);
        } else {
            // SAFETY: the last block of the chain, which is not empty.
            unsafe { (*self.tail).next = block };
        }
        (self.tail, self.write) = (block, 0);
    }

    #[inline]
    fn pop(&mut self) -> Option<*const T> {
        if self.len == 0 {
            return None;
        }
        if self.read == BLOCK {
            self.drop_first();
        }
        // SAFETY: the first block, which is there as there are values.
        let slot = unsafe { &mut (*self.head).values }[self.read].as_mut_ptr();
        self.read += 1;
        self.len -= 1;
        Some(slot)
    }

    /// The first block is used up and another follows. It is the next spare one, instead of that before.
    fn drop_first(&mut self) {
        // SAFETY: made by `Box::into_raw`, and off the chain from here on.
        let mut block = unsafe { Box::from_raw(self.head) };
        self.head = mem::replace(&mut block.next, ptr::null_mut());
        self.read = 0;
        if let Some(block) = self.spare.replace(block) {
            self.surplus.add(block);
        }
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        // The values are gone, by the drop of the buffer.
        while !self.head.is_null() {
            self.drop_first();
        }
    }
}
