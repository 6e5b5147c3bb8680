//! Sections of a fiber that are not to be interrupted.

use crate::sched::block::NoPreemptSection;

/// Calls `f`, and does not interrupt the calling fiber meanwhile.
///
/// For a few instructions that others wait for, such as a spin lock of your own: a fiber that is stopped
/// while it holds one makes the others spin. Nothing else needs it. If the fiber has run for long enough
/// when `f` returns, it gives way then. `f` may block, and nest; on a plain thread it is just called.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering::{Acquire, Release}};
///
/// static LOCK: AtomicBool = AtomicBool::new(false);
///
/// indent::spawn(|| {
///     indent::runtime::no_preempt(|| {
///         while LOCK.swap(true, Acquire) {
///             std::hint::spin_loop();
///         }
///         // a few instructions
///         LOCK.store(false, Release);
///     });
/// })
/// .join()
/// .unwrap();
/// ```
pub fn no_preempt<R>(f: impl FnOnce() -> R) -> R {
    let _section = NoPreemptSection::new();
    f()
}
