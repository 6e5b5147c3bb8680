#![expect(unsafe_code, reason = "a queue without a lock")]
//! A bounded queue from one thread to another; it never allocates and never waits.
//!
//! Places are counted without end and used in turn. Only the writer advances `written`, after it
//! has filled a place, and only the reader advances `read`, after it has emptied one. So the places
//! from `read` to `written` are the reader's, and the others the writer's.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// A queue of values that need no drop.
pub(super) struct Spsc<T> {
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
    written: AtomicUsize,
    read: AtomicUsize,
}

// SAFETY: values go from one thread to another, and each place has one user at a time, see above.
unsafe impl<T: Copy + Send> Sync for Spsc<T> {}

impl<T: Copy + Send> Spsc<T> {
    pub(super) fn new(room: usize) -> Self {
        let empty = || UnsafeCell::new(MaybeUninit::uninit());
        Spsc {
            places: std::iter::repeat_with(empty).take(room).collect(),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        }
    }

    fn place(&self, count: usize) -> *mut MaybeUninit<T> {
        self.places[count % self.places.len()].get()
    }

    /// Adds a value; returns false if there is no room.
    ///
    /// # Safety
    /// Only one thread at a time calls this.
    pub(super) unsafe fn push(&self, value: T) -> bool {
        let written = self.written.load(Relaxed);
        if written - self.read.load(Acquire) == self.places.len() {
            return false;
        }
        // SAFETY: beyond what the reader may look at, and there is one writer by the caller's
        // promise.
        unsafe { self.place(written).write(MaybeUninit::new(value)) };
        self.written.store(written + 1, Release);
        true
    }

    /// Takes the oldest value.
    ///
    /// # Safety
    /// Only one thread at a time calls this.
    pub(super) unsafe fn pop(&self) -> Option<T> {
        let read = self.read.load(Relaxed);
        if read == self.written.load(Acquire) {
            return None;
        }
        // SAFETY: the writer is past this place until `read` advances, and there is one reader.
        let value = unsafe { self.place(read).read() };
        self.read.store(read + 1, Release);
        // SAFETY: the place was written, as `written` shows.
        Some(unsafe { value.assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_and_what_finds_no_room_is_refused() {
        let spsc = Spsc::new(3);
        let mut next = 0..;
        for round in 0..5 {
            // SAFETY: one thread.
            let pushed = (0..4).map(|i| unsafe { spsc.push(round * 3 + i) });
            assert_eq!(pushed.collect::<Vec<_>>(), [true, true, true, false]);
            // SAFETY: one thread.
            let popped = std::iter::from_fn(|| unsafe { spsc.pop() });
            assert!(popped.eq(next.by_ref().take(3)));
        }
    }

    #[test]
    fn what_one_thread_writes_another_reads() {
        let spsc = &Spsc::new(4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..10_000u64 {
                    // SAFETY: the one writer.
                    while !unsafe { spsc.push([value; 4]) } {
                        std::thread::yield_now();
                    }
                }
            });
            for value in 0..10_000 {
                // SAFETY: the one reader.
                let popped = std::iter::repeat_with(|| unsafe { spsc.pop() });
                assert_eq!(popped.flatten().next(), Some([value; 4]));
            }
        });
    }
}
