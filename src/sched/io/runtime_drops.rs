#![expect(unsafe_code, reason = "references that are counted by hand")]
//! References to other runtimes that must not be dropped where a fiber is woken.
//!
//! A thread that wakes a fiber of another runtime keeps that runtime alive meanwhile (`wake.rs`),
//! and may hold the last reference to it. To drop a runtime frees memory and runs user code:
//! neither the scheduler nor the I/O poller may do that (S9). They leave their reference on a list
//! and ask the collector to drop what is there.
//!
//! The list consists of the runtimes themselves, so nothing is allocated. `owed` counts the
//! references to a runtime that were left; the thread that raises it from zero puts the runtime on
//! the list. A thread that has taken the list reads the link first, and takes all that is owed
//! after that: from then on the runtime may be on the list again, and the references belong to the
//! thread that took them.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::sched::Shared;
use crate::sched::block::wake::DeferredDrop;

/// A runtime's place on the list.
#[derive(Default)]
pub(crate) struct RuntimeDrops {
    owed: AtomicUsize,
    next: AtomicPtr<Shared>,
}

static LIST: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Puts a reference on the list.
fn leave(runtime: Arc<Shared>) {
    let drops = &runtime.runtime_drops;
    if drops.owed.fetch_add(1, SeqCst) == 0 {
        let this = Arc::as_ptr(&runtime).cast_mut();
        let mut first = LIST.load(SeqCst);
        loop {
            drops.next.store(first, SeqCst);
            match LIST.compare_exchange(first, this, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
    }
    std::mem::forget(runtime); // it is owed
}

/// Drops the references on the list. Called by threads that may drop a runtime.
pub(crate) fn drop_deferred_runtimes() {
    let mut at = LIST.swap(ptr::null_mut(), SeqCst);
    // SAFETY: a runtime on the list is owed a reference, which is ours since we took the list.
    while let Some(runtime) = unsafe { at.as_ref() } {
        let next = runtime.runtime_drops.next.load(SeqCst);
        for _ in 0..runtime.runtime_drops.owed.swap(0, SeqCst) {
            // SAFETY: as many were forgotten as are owed, each from an `Arc`.
            drop(unsafe { Arc::from_raw(at) });
        }
        at = next;
    }
}

impl Shared {
    /// Lets go of what a notification kept alive. The caller holds a reference to this runtime.
    pub(super) fn defer_drop(&self, kept: DeferredDrop) {
        if let Some(runtime) = kept.into_runtime()
            && !ptr::eq(&*runtime, self)
        {
            leave(runtime);
            self.drop_runtimes_soon();
        }
    }
}
