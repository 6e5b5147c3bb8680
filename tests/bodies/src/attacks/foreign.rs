#![expect(unsafe_code, reason = "calls C, and is called back by it")]
//! A library in C that is linked into the program.

use std::ffi::{c_int, c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use super::libc::twice;
use super::prepared;
use crate::body::{Me, Outcome, ensure};
use crate::step::{step, thread};

unsafe extern "C" {
    safe fn foreign_set(value: c_long);
    safe fn foreign_get() -> c_long;
    safe fn foreign_register(function: unsafe extern "C" fn(*mut c_void));
    fn foreign_fire(value: c_long, argument: *mut c_void) -> c_long;
    safe fn foreign_lock() -> c_int;
    safe fn foreign_unlock() -> c_int;
}

type Both = (
    Box<dyn Fn(c_long) + Send + Sync>,
    Box<dyn Fn() -> c_long + Send + Sync>,
);

static BOTH: OnceLock<Both> = OnceLock::new();

/// Registers the callback before any fiber starts, by code that no fiber refers to.
pub(super) fn prepare() {
    foreign_register(called_back);
    drop(BOTH.set((Box::new(|n| foreign_set(n)), Box::new(|| foreign_get()))));
}

unsafe extern "C" fn called_back(stayed: *mut c_void) {
    let before = thread();
    step();
    // SAFETY: `callback` passes one that outlives the call.
    unsafe { *stayed.cast::<bool>() = thread() == before };
}

/// A callback that was registered with the library switches; the library keeps a thread-local.
pub(crate) fn callback(me: &Me) -> Outcome {
    for i in 0..20 {
        let (n, mut stayed) = ((me.n * 100 + i) as c_long, false);
        // SAFETY: the callback takes a `bool`.
        let found = unsafe { foreign_fire(n, (&raw mut stayed).cast()) };
        ensure!(found == n, "another's value");
        ensure!(stayed, "moved with frames of C on the stack");
    }
    Ok(me.n)
}

pub(crate) fn thread_local(me: &Me) -> Outcome {
    for i in 0..20 {
        foreign_set((me.n * 100 + i) as c_long);
        step();
        let found = foreign_get() as u64;
        ensure!(found == me.n * 100 + i, "another's value");
    }
    foreign_set(0);
    Ok(me.n)
}

/// Does the same by closures in a static.
pub(crate) fn thread_local_hidden(me: &Me) -> Outcome {
    let (set, get) = prepared(&BOTH);
    for i in 0..20 {
        set((me.n * 100 + i) as c_long);
        step();
        ensure!(get() as u64 == me.n * 100 + i, "another's value");
    }
    Ok(me.n)
}

pub(crate) fn recursive_mutex(me: &Me) -> Outcome {
    static OWNER: AtomicU64 = AtomicU64::new(0);
    let (lock, unlock) = (|| foreign_lock() == 0, || foreign_unlock() == 0);
    twice(&OWNER, me.number() + 1, lock, unlock)
}
