//! Sections in which a fiber is not preempted.

use crate::sched::block::suspend::NoPreemptSection;

/// Calls `f` with preemption of the calling fiber disabled.
///
/// Use it for a few instructions that other fibers wait for, such as a spin lock of your own: a
/// fiber that is preempted while it holds one makes the others spin. Nothing else needs it. If the
/// fiber has used up its quantum when `f` returns, it yields then. `f` may block, and calls may
/// nest. On a plain thread `f` is called without effect.
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
