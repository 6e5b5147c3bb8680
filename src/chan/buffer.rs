#![expect(
    unsafe_code,
    reason = "slots that are full or not; moves values by pointer"
)]
//! The buffer of a channel: values that were sent and not yet received, first in, first out.
//!
//! Values enter and leave by pointer, and each move transfers ownership. The buffer drops values
//! only when it is dropped itself. A buffer is used under the lock of its channel, so it never
//! allocates and never frees:
//!
//! - a *ring* is allocated with all its slots;
//! - a *chain* grows by blocks that the caller allocates without the lock, and hands unused blocks
//!   back.

use std::mem::{self, MaybeUninit};
use std::ptr;

/// Number of values in one block of a chain.
const BLOCK: usize = 32;

pub(crate) enum Buffer<T> {
    Ring(Ring<T>),
    Chain(Chain<T>),
}

impl<T> Buffer<T> {
    /// Creates a ring of this capacity, or a chain if there is none.
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

    /// Whether there is room for one more value. A chain has room if it has a slot or a spare
    /// block.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Buffer::Ring(ring) => ring.len < ring.capacity,
            Buffer::Chain(chain) => chain.has_room(),
        }
    }

    /// Moves a value into the buffer.
    ///
    /// # Safety
    /// There is room, and the pointer is to a value that the caller gives up.
    #[inline]
    pub(crate) unsafe fn push(&mut self, value: *const T) {
        match self {
            // SAFETY: by the caller's promise.
            Buffer::Ring(ring) => unsafe { ring.push(value) },
            // SAFETY: as above.
            Buffer::Chain(chain) => unsafe { chain.push(value) },
        }
    }

    /// Moves the oldest value to `to`. Returns false if there is none.
    ///
    /// # Safety
    /// There is room for one value at `to`.
    #[inline]
    pub(crate) unsafe fn pop(&mut self, to: *mut T) -> bool {
        let place = match self {
            Buffer::Ring(ring) => ring.pop(),
            Buffer::Chain(chain) => chain.pop(),
        };
        if let Some(place) = place {
            // SAFETY: `place` is a full slot that counts as empty since `pop`; `to` is valid by the
            // caller's promise.
            unsafe { ptr::copy_nonoverlapping(place, to, 1) };
        }
        place.is_some()
    }
}

impl<T> Buffer<T> {
    /// Takes the blocks that pops have emptied, so that the caller frees them without the lock.
    #[inline]
    pub(crate) fn surplus(&mut self) -> Surplus<T> {
        match self {
            Buffer::Ring(_) => Surplus(ptr::null_mut()),
            Buffer::Chain(chain) => mem::replace(&mut chain.surplus, Surplus(ptr::null_mut())),
        }
    }
}

impl<T> Buffer<T> {
    /// Drops the oldest value. Returns false if there is none.
    fn drop_one(&mut self) -> bool {
        let mut value = MaybeUninit::uninit();
        // SAFETY: there is room in a local.
        let was_there = unsafe { self.pop(value.as_mut_ptr()) };
        if was_there {
            // SAFETY: `pop` moved a value there.
            drop(unsafe { value.assume_init() });
        }
        was_there
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        /// Drops the remaining values even if the drop of one unwinds: other code may rely on their
        /// drops.
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

/// A fixed number of slots. A single slot is stored inline, without an allocation.
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
        // SAFETY: the slot is empty, as there is room; the value is valid by the caller's promise.
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

/// A linked list of blocks.
pub(crate) struct Chain<T> {
    /// The first block, or null.
    head: *mut Block<T>,
    tail: *mut Block<T>,
    /// Index of the oldest value in the first block; `write` is the next free index of the last
    /// block.
    read: usize,
    write: usize,
    len: usize,
    /// An unused block.
    spare: Option<Box<Block<T>>>,
    surplus: Surplus<T>,
}

/// Blocks without a use, freed by the receiver that has emptied them. Usually none or one.
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

// SAFETY: the chain owns its blocks and the values in them.
unsafe impl<T: Send> Send for Chain<T> {}

pub(crate) struct Block<T> {
    next: *mut Block<T>,
    values: [MaybeUninit<T>; BLOCK],
}

impl<T> Block<T> {
    /// Allocates a block in place, since it may be larger than a stack.
    pub(crate) fn new() -> Box<Self> {
        let mut block = Box::<Self>::new_uninit();
        // SAFETY: a field of the allocation.
        let next = unsafe { &raw mut (*block.as_mut_ptr()).next };
        // SAFETY: as above; the field has no old value to drop.
        unsafe { next.write(ptr::null_mut()) };
        // SAFETY: the other field needs no initialization.
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

    /// Adds a spare block. Returns it if there is a spare one already.
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
        // SAFETY: the last block, which exists since `append`.
        let slot = unsafe { &mut (*self.tail).values }[self.write].as_mut_ptr();
        // SAFETY: the slot is empty; the value is valid by the caller's promise.
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
        // SAFETY: the first block, which exists because there are values.
        let slot = unsafe { &mut (*self.head).values }[self.read].as_mut_ptr();
        self.read += 1;
        self.len -= 1;
        Some(slot)
    }

    /// Removes the first block, which is empty and has a successor. It replaces the spare block.
    fn drop_first(&mut self) {
        // SAFETY: made by `Box::into_raw`, and no longer in the chain.
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
        // The values are gone: the buffer drops them before its chain.
        while !self.head.is_null() {
            self.drop_first();
        }
    }
}
