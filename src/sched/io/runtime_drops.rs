#![expect(unsafe_code, reason = "references that are counted by hand")]
//! Letting go of other runtimes, where nobody may drop one.
//!
//! Who wakes a fiber of another runtime keeps that one alive meanwhile (`wake.rs`), and may be the last who does. To
//! drop it frees memory, and runs what is the user's: not by the scheduler, nor by the watch (S9). They leave
//! their reference on a list, and ask the collector to drop what is there.
//!
//! The list consists of the runtimes themselves, so nothing is allocated: `owed` says how many references were
//! left of one, and who raises it from zero puts it on the list. Who has taken the list reads the link, and takes all
//! that is owed after that: from then on the runtime may be on the list again, and from then on we own what we drop.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::sched::Shared;
use crate::sched::wake::DeferredDrop;

/// A runtime's place on the list.
#[derive(Default)]
pub(crate) struct RuntimeDrops {
    owed: AtomicUsize,
    next: AtomicPtr<Shared>,
}

static LIST: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Puts a reference on the list.
fn release(runtime: Arc<Shared>) {
    let runtime_drops = &runtime.runtime_drops;
    if runtime_drops.owed.fetch_add(1, SeqCst) == 0 {
        let this = Arc::as_ptr(&runtime).cast_mut();
        let mut first = LIST.load(SeqCst);
        loop {
            runtime_drops.next.store(first, SeqCst);
            match LIST.compare_exchange(first, this, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
    }
    std::mem::forget(runtime); // it is owed
}

/// Drops what was left. By whoever may drop a runtime.
pub(crate) fn drop_deferred_runtimes() {
    let mut at = LIST.swap(ptr::null_mut(), SeqCst);
    // SAFETY: a runtime on the list is owed a reference, which is ours since we took the list.
    while let Some(runtime) = unsafe { at.as_ref() } {
        let next = runtime.runtime_drops.next.load(SeqCst);
        for _ in 0..runtime.runtime_drops.owed.swap(0, SeqCst) {
            // SAFETY: so many were forgotten, of an `Arc` each.
            drop(unsafe { Arc::from_raw(at) });
        }
        at = next;
    }
}

impl Shared {
    /// After a wake, wherever the caller is; of this runtime he has a reference of his own.
    pub(super) fn defer_drop(&self, kept: DeferredDrop) {
        if let Some(runtime) = kept.into_runtime()
            && !ptr::eq(&*runtime, self)
        {
            release(runtime);
            self.drop_runtimes_soon();
        }
    }
}
