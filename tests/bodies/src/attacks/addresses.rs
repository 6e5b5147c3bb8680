//! Addresses of thread-locals that are kept where they are hard to find.
//!
//! Each body checks the address against a fresh one after the switch: on a thread they are the
//! same. Where the frames that took the address no longer exist, it is only data.

use std::cell::Cell;
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::prepared;
use crate::body::{Me, Outcome, Shared, ensure};
use crate::step::{step, thread};

thread_local! {
    static VARIABLE: Cell<u64> = const { Cell::new(0) };
    static SAVED: Cell<usize> = const { Cell::new(0) };
    static PACKED: Cell<Packed> = const { Cell::new(Packed { tag: 0, address: 0, n: 0 }) };
}

type Taker = Box<dyn Fn() -> usize + Send + Sync>;
/// Two functions: save the address, and check that it is the saved one.
type Saver = (
    Box<dyn Fn() + Send + Sync>,
    Box<dyn Fn() -> bool + Send + Sync>,
);
type Nested = Box<dyn Fn(u64) -> (bool, bool) + Send + Sync>;

static TAKER: OnceLock<Taker> = OnceLock::new();
static SAVER: OnceLock<Saver> = OnceLock::new();
static NESTED: OnceLock<Nested> = OnceLock::new();

/// Makes the closures before any fiber starts, by code that no fiber refers to.
pub(super) fn prepare() {
    drop(TAKER.set(Box::new(seen)));
    let save = || SAVED.set(seen());
    let is_saved = || SAVED.get() == seen();
    drop(SAVER.set((Box::new(save), Box::new(is_saved))));
    drop(NESTED.set(Box::new(outer)));
}

/// Returns the address, by a call.
#[inline(never)]
pub(super) fn seen() -> usize {
    VARIABLE.with(|variable| std::ptr::from_ref(variable).addr())
}

/// Returns the same, by code that no frame refers to.
#[inline(never)]
pub(super) fn unseen() -> usize {
    prepared(&TAKER)()
}

/// An address at an odd offset.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Packed {
    tag: u8,
    address: usize,
    n: u64,
}

pub(crate) fn in_a_box(me: &Me, address: impl Fn() -> usize) -> Outcome {
    for _ in 0..20 {
        let kept = black_box(Box::new(address()));
        step();
        ensure!(*kept == address(), "moved while a box has the address");
    }
    Ok(me.n)
}

pub(crate) fn in_a_packed_struct(me: &Me, address: impl Fn() -> usize) -> Outcome {
    for i in 0..20 {
        let packed = Packed {
            tag: i,
            address: address(),
            n: me.n,
        };
        let kept = black_box(Box::new(packed));
        step();
        let Packed {
            tag,
            address: kept,
            n,
        } = *kept;
        ensure!((tag, n) == (i, me.n), "other values");
        ensure!(kept == address(), "moved while a struct has the address");
    }
    Ok(me.n)
}

/// Puts the address into a box in a function that has it from a call, for one instruction only.
///
/// No frame that exists at the switch ever had it.
pub(crate) fn stored_at_once(me: &Me) -> Outcome {
    #[inline(never)]
    fn store(place: &AtomicUsize) {
        place.store(seen(), Relaxed);
    }
    let kept: Box<AtomicUsize> = Box::default();
    for _ in 0..20 {
        store(black_box(&kept));
        let before = thread();
        step();
        ensure!(thread() == before, "moved while a box has the address");
    }
    Ok(me.n)
}

/// Both thread-locals are used by code that no frame refers to.
pub(crate) fn in_a_thread_local_hidden(me: &Me) -> Outcome {
    let (save, is_saved) = prepared(&SAVER);
    for _ in 0..20 {
        save();
        step();
        ensure!(is_saved(), "moved with a saved address");
    }
    Ok(me.n)
}

pub(crate) fn in_a_thread_local(me: &Me, address: impl Fn() -> usize) -> Outcome {
    #[inline(never)]
    fn save(address: usize) {
        SAVED.set(address);
    }
    for _ in 0..20 {
        save(address());
        step();
        ensure!(SAVED.get() == address(), "moved with a saved address");
    }
    Ok(me.n)
}

pub(crate) fn in_a_packed_local(me: &Me, address: impl Fn() -> usize) -> Outcome {
    for i in 0..20 {
        PACKED.set(Packed {
            tag: i,
            address: address(),
            n: me.n,
        });
        step();
        let Packed {
            tag,
            address: kept,
            n,
        } = PACKED.get();
        ensure!((tag, n) == (i, me.n), "another's value");
        ensure!(kept == address(), "moved with a saved address");
    }
    Ok(me.n)
}

/// Numbers by the addresses of thread-locals.
type Table = Mutex<HashMap<usize, u64>>;

/// Names the thread by the address in a table that all share, as many locks do.
pub(crate) fn as_a_key(me: &Me, address: impl Fn() -> usize) -> Outcome {
    static TABLES: Shared<Table> = Shared::new();
    let table = TABLES.of(me.round);
    #[inline(never)]
    fn put(table: &Table, address: usize, n: u64) -> Option<u64> {
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        table.insert(address, n)
    }
    #[inline(never)]
    fn take(table: &Table, address: usize) -> Option<u64> {
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        table.remove(&address)
    }
    for i in 0..20 {
        let n = me.number() * 100 + i;
        let before = put(table, address(), n);
        ensure!(before.is_none(), "two have one address");
        step();
        let found = take(table, address());
        ensure!(found == Some(n), "not found by the address");
    }
    Ok(me.n)
}

/// All that remains of the address when `outer` has returned.
struct Kept<'a>(&'a Cell<u64>);

/// Has the address in a box only.
///
/// Returns whether the value was right, and the thread the same.
#[inline(never)]
#[expect(clippy::boxed_local, reason = "the address is to be on the heap")]
fn inner(kept: Box<Kept<'_>>, n: u64) -> (bool, bool) {
    let before = thread();
    kept.0.set(n);
    step();
    (kept.0.get() == n, thread() == before)
}

/// Takes the address in a frame that may no longer exist: it has ended with a jump.
#[inline(never)]
fn outer(n: u64) -> (bool, bool) {
    VARIABLE.with(|variable| inner(Box::new(Kept(variable)), n))
}

fn nested(me: &Me, outer: impl Fn(u64) -> (bool, bool)) -> Outcome {
    for i in 0..20 {
        let (right, stayed) = outer(me.n * 100 + i);
        ensure!(right, "another's value");
        ensure!(stayed, "moved with a reference to a thread-local");
    }
    Ok(me.n)
}

pub(crate) fn by_a_tail_call(me: &Me) -> Outcome {
    nested(me, outer)
}

pub(crate) fn by_a_tail_call_hidden(me: &Me) -> Outcome {
    nested(me, prepared(&NESTED))
}
