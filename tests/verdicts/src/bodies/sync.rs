//! Locks, channels and cells that are initialized once.
//!
//! A lock of std or parking_lot is a word in memory; a guard of it is `!Send` because other systems
//! require the locking thread to unlock. Here nothing of the thread is kept: a guard may move, and
//! must be able to, for a thread that waits for it in the kernel may be the very one its fiber left
//! (A6). A fiber that waits for a lock sleeps with its thread, and what it used for that is not
//! used any more when the call returns: the slow paths are harmless.
//!
//! Channels keep the waiting thread's handle in a thread-local, and compare thread ids. All of that
//! is over when a call returns, and while a call waits, so does its thread: sending and receiving
//! is harmless. Epochs register the thread: bound.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock, mpsc};
use std::time::Duration;

use super::{BOUND, MOVABLE, each, table};
use crate::Probe;

table! {
    arc_and_atomic: MOVABLE;
    mutex_guard_held: MOVABLE;
    rwlock_guards_held: MOVABLE;
    condvar_timed_out: MOVABLE;
    once_and_once_lock: MOVABLE;
    once_lock_parks_inside: BOUND;
    lazy_lock_forced: MOVABLE;
    once_cell_filled: MOVABLE;
    mpsc_sent_and_received: MOVABLE;
    mpsc_iterator_held: MOVABLE;
    parking_lot_guard_held: MOVABLE;
    parking_lot_rwlock_held: MOVABLE;
    parking_lot_reentrant_held: BOUND;
    crossbeam_channel_between: each("M?M?B");
    epoch_pinned: BOUND;
}

fn arc_and_atomic(probe: &Probe) -> bool {
    let shared = Arc::new(AtomicU64::new(probe.seed));
    let other = black_box(shared.clone());
    probe.park();
    other.fetch_add(1, Relaxed);
    shared.load(Relaxed) == probe.seed.wrapping_add(1)
}

fn mutex_guard_held(probe: &Probe) -> bool {
    let mutex = Mutex::new(probe.seed);
    let Ok(mut guard) = black_box(&mutex).lock() else {
        return false;
    };
    probe.park();
    *guard ^= 1;
    drop(guard);
    mutex.try_lock().is_ok_and(|value| *value == probe.seed ^ 1)
}

fn rwlock_guards_held(probe: &Probe) -> bool {
    let lock = RwLock::new(probe.seed);
    let (Ok(one), Ok(two)) = (black_box(&lock).read(), lock.read()) else {
        return false;
    };
    probe.park();
    let same = *one == *two;
    drop((one, two));
    let Ok(mut writer) = lock.write() else {
        return false;
    };
    probe.park();
    *writer += 1;
    same
}

fn condvar_timed_out(probe: &Probe) -> bool {
    let (mutex, condvar) = (Mutex::new(probe.seed), Condvar::new());
    let Ok(guard) = mutex.lock() else {
        return false;
    };
    let waited = condvar.wait_timeout(guard, Duration::from_nanos(1));
    probe.park();
    waited.is_ok_and(|(value, _)| *value == probe.seed)
}

fn once_and_once_lock(probe: &Probe) -> bool {
    let (once, cell, count) = (Once::new(), OnceLock::new(), Cell::new(0));
    once.call_once(|| count.set(count.get() + 1));
    let before = *cell.get_or_init(|| probe.seed);
    probe.park();
    once.call_once(|| count.set(count.get() + 1));
    count.get() == 1 && *cell.get_or_init(|| 0) == before
}

/// Other fibers that want the value wait with their threads.
///
/// A frame of std's that might have to wait itself, and then reads `errno`, stays on the stack:
/// bound.
fn once_lock_parks_inside(probe: &Probe) -> bool {
    let cell = OnceLock::new();
    let value = *black_box(&cell).get_or_init(|| {
        probe.park();
        probe.seed
    });
    value == probe.seed
}

static SQUARES: LazyLock<Vec<u64>> = LazyLock::new(|| (0..10).map(|i| i * i).collect());

fn lazy_lock_forced(probe: &Probe) -> bool {
    let nine = SQUARES[3];
    probe.park();
    nine == 9 && SQUARES.len() == 10
}

fn once_cell_filled(probe: &Probe) -> bool {
    let cell = once_cell::sync::OnceCell::new();
    let before = *cell.get_or_init(|| probe.seed);
    probe.park();
    *cell.get_or_init(|| 0) == before
}

fn mpsc_sent_and_received(probe: &Probe) -> bool {
    let (sender, receiver) = mpsc::channel();
    let sent = sender.send(probe.seed).is_ok();
    probe.park();
    sent && receiver.recv() == Ok(probe.seed)
}

fn mpsc_iterator_held(probe: &Probe) -> bool {
    let (sender, receiver) = mpsc::sync_channel(4);
    let sent = (0..4).all(|i| sender.send(i).is_ok());
    drop(sender);
    let mut received = receiver.iter();
    let first = received.next();
    probe.park();
    sent && first == Some(0) && received.sum::<u64>() == 6
}

fn parking_lot_guard_held(probe: &Probe) -> bool {
    let mutex = parking_lot::Mutex::new(probe.seed);
    let mut guard = black_box(&mutex).lock();
    probe.park();
    *guard ^= 1;
    drop(guard);
    *mutex.lock() == probe.seed ^ 1
}

fn parking_lot_rwlock_held(probe: &Probe) -> bool {
    let lock = parking_lot::RwLock::new(probe.seed);
    let guard = black_box(&lock).read();
    probe.park();
    let same = *guard == probe.seed;
    drop(guard);
    *lock.write() += 1;
    same
}

/// Knows its owner by the address of a thread-local.
fn parking_lot_reentrant_held(probe: &Probe) -> bool {
    let mutex = parking_lot::ReentrantMutex::new(Cell::new(probe.seed));
    let outer = mutex.lock();
    probe.park();
    let Some(inner) = mutex.try_lock() else {
        return false;
    };
    inner.set(1);
    outer.get() == 1
}

fn crossbeam_channel_between(probe: &Probe) -> bool {
    let (sender, receiver) = crossbeam_channel::bounded(2);
    let sent = sender.send(probe.seed).is_ok();
    probe.park();
    sent && receiver.recv() == Ok(probe.seed)
}

fn epoch_pinned(probe: &Probe) -> bool {
    use crossbeam_epoch::{Atomic, Owned};
    let slot = Atomic::new(probe.seed);
    let guard = crossbeam_epoch::pin();
    let old = slot.swap(Owned::new(1), std::sync::atomic::Ordering::AcqRel, &guard);
    probe.park();
    let right = epoch::read(&old) == Some(probe.seed) && crossbeam_epoch::is_pinned();
    epoch::retire(&guard, old);
    epoch::retire(
        &guard,
        slot.swap(
            crossbeam_epoch::Shared::null(),
            std::sync::atomic::Ordering::AcqRel,
            &guard,
        ),
    );
    right
}

/// Operations on the previous contents of an atomic, for its owner.
mod epoch {
    #![expect(unsafe_code, reason = "crossbeam-epoch's ways to read and to free")]
    use crossbeam_epoch::{Guard, Shared};

    pub(super) fn read(old: &Shared<'_, u64>) -> Option<u64> {
        // SAFETY: the guard of the caller's keeps what was in the slot when it was taken out.
        unsafe { old.as_ref() }.copied()
    }

    pub(super) fn retire(guard: &Guard, old: Shared<'_, u64>) {
        // SAFETY: the caller has taken it out of its slot, and calls this once.
        unsafe { guard.defer_destroy(old) };
    }
}
