#![expect(unsafe_code, reason = "puts fibers into intrusive lists")]
//! Pairs that talk come together.
//!
//! A fiber that is woken from another thread costs whoever wakes it a post and often the kernel's wake-up of a
//! sleeping thread; one that is woken by a sibling costs a store. So two fibers that wake each other again and
//! again, from two threads, are brought to one: the one that is woken moves to the thread of its waker,
//! if its frames allow it, and runs there as soon as that one waits.
//!
//! Each fiber remembers who woke it last from another thread, and how many times in a row. A pair is
//! two fibers of which each was woken so by the other, [`TIMES`] times. So a fiber that many talk to stays
//! where it is, and so does one whose waker never waits for it: there both threads have something to do. Whoever
//! moves, for whatever reason, begins to count anew: pairs that were taken apart because another worker was idle
//! have that worker for a while at least.
//!
//! Only the caller of a wake writes the memory of the fiber it made runnable (I1), and only a fiber's own
//! thread reads it as the waker's.

use crate::base::loom::atomic;
use crate::fiber::{FiberRef, Record};
use crate::sched::carrier::Carrier;
use crate::sched::{class, context, verdict};

/// So many wakes in a row make two fibers a pair.
const TIMES: u16 = 8;
/// The count takes the lowest bits of the word, the waker's number as many as are left: two that are alike only
/// now and then are taken for one, and the worst is that a fiber moves for nothing.
const COUNT_BITS: u32 = 4;

fn name(fiber: FiberRef) -> u16 {
    (fiber.id() as u16) << COUNT_BITS
}

/// Of a fiber that has started.
fn memory(fiber: &Record) -> &atomic::AtomicU16 {
    &fiber.worker
}

/// Whether this word says that this fiber was the waker, often enough.
fn knows(word: u16, fiber: FiberRef) -> bool {
    word ^ name(fiber) == TIMES
}

/// A fiber is woken by whoever runs on this carrier, which is not its home.
#[inline]
fn remember(fiber: FiberRef, waker: FiberRef) -> u16 {
    let company = memory(&fiber);
    let before = company.load(atomic::Ordering::Relaxed);
    let now = match before ^ name(waker) {
        TIMES => before,
        count @ 1..TIMES => name(waker) | (count + 1),
        _ => name(waker) | 1,
    };
    company.store(now, atomic::Ordering::Relaxed);
    now
}

/// It runs here from now on, for the first time or after it was elsewhere.
#[inline]
pub(crate) fn forget(fiber: FiberRef) {
    memory(&fiber).store(0, atomic::Ordering::Relaxed);
}

/// A fiber was made runnable on another carrier than its home: if the two are a pair, it is next here. False if
/// it is not.
#[inline]
pub(crate) fn pulls(here: &Carrier, fiber: FiberRef) -> bool {
    let Some(waker) = here.current.get() else {
        return false;
    };
    let is_pair = knows(remember(fiber, waker), waker)
        && knows(memory(&waker).load(atomic::Ordering::Relaxed), fiber);
    is_pair && pull(here, fiber)
}

#[cold]
fn pull(here: &Carrier, fiber: FiberRef) -> bool {
    if !verdict::is_free(fiber) || class::is_batch(&fiber) || here.keeps_fibers() || here.retires()
    {
        return false;
    }
    let Some(token) = context::enter() else {
        return false;
    };
    if let Some(before) = here.home().next.replace(fiber) {
        // SAFETY: runnable by I1, so in no list, and alive by I3.
        unsafe { here.home().queue.push(before.pointer()) };
    }
    here.note_sibling();
    token.worker().counters.pulled.add(1);
    true
}
