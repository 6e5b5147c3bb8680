//! Gives back the pages of stacks that are not needed.
//!
//! A pool tracks its smallest length since the last trim. Stacks that were not needed in that time,
//! beyond those a pool may keep, give back all pages but the two on top, and wait in a separate
//! list until the others are used up. A thread that has time trims about once a second: a stack
//! that is taken and returned often costs nothing, and a finished fiber never pays a system call
//! that stops other CPUs.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{CLASSES, POOL_KEEPS_PAGES, StackGuard, StackHead, lock, stride};
use crate::sys::memory::{self, Advice, PAGE};
use crate::util::list::List;

/// Stacks taken out of the pool at a time.
const BATCH: usize = 64;

/// A pool has grown beyond what it should keep since the last trim.
static GROWN: AtomicBool = AtomicBool::new(false);

/// Notes that a stack was returned to a pool, which has `free` stacks now.
pub(super) fn note(free: usize) {
    if free > POOL_KEEPS_PAGES && !GROWN.load(Relaxed) {
        GROWN.store(true, Relaxed);
    }
}

/// Whether it is time to [`trim`].
pub(crate) fn has_grown() -> bool {
    GROWN.load(Relaxed)
}

/// Trims all pools once; true if another call will find something to do.
pub(crate) fn trim() -> bool {
    GROWN.store(false, Relaxed);
    let mut again = false;
    for guard in [StackGuard::Marker, StackGuard::Page] {
        for class in 0..CLASSES as u8 {
            let mut pool = lock(guard, class);
            let free = pool.free.len();
            let unneeded = std::mem::replace(&mut pool.lowest, free);
            drop(pool);
            let mut surplus = unneeded.saturating_sub(POOL_KEEPS_PAGES);
            while surplus > 0 {
                let n = surplus.min(BATCH);
                surplus -= n;
                if !trim_some(guard, class, n) {
                    break; // they are needed after all
                }
            }
            again |= lock(guard, class).free.len() > POOL_KEEPS_PAGES;
        }
    }
    again
}

fn trim_some(guard: StackGuard, class: u8, n: usize) -> bool {
    let mut taken = List::new();
    let mut pool = lock(guard, class);
    if pool.free.len() < POOL_KEEPS_PAGES + n {
        return false;
    }
    for _ in 0..n {
        let stack = pool.free.pop().expect("there are more");
        // SAFETY: just popped, so in no list; stacks stay mapped.
        unsafe { taken.push(stack) };
    }
    pool.lowest = pool.lowest.saturating_sub(n);
    drop(pool);
    let mut trimmed = List::new();
    while let Some(stack) = taken.pop() {
        // SAFETY: the head of a stack is valid as long as the stack is.
        give_back_pages(unsafe { stack.as_ref() }); // a system call: not under the lock
        // SAFETY: as above.
        unsafe { trimmed.push(stack) };
    }
    lock(guard, class).trimmed.append(trimmed);
    true
}

/// Gives back all pages but the two on top, which the next fiber needs at once.
fn give_back_pages(head: &StackHead) {
    // SAFETY: the head is there.
    let low = unsafe { StackHead::lowest_of(head) };
    let top = head.limit() + stride(head.class());
    let keep = top - 2 * PAGE;
    let at = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(low)).expect("not at zero");
    // Most fibers never reach so far down, and the query is cheaper than to give back nothing.
    if memory::is_resident(at, keep - low) {
        // SAFETY: the stack is free: only the resident coroutine's root frames, in the pages kept,
        // are of use.
        let _ = unsafe { memory::advise(at, keep - low, Advice::GiveBack) };
    }
}
