//! The atomics of this crate: `std`'s, or loom's when a model runs (`--cfg indent_loom`).
//!
//! Only protocols that have a model take their atomics from here. Everything with a `static` or a
//! futex word uses `std` directly: loom's atomics have no constant constructor and no address.

#[cfg(not(indent_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(indent_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};

/// Locks and ignores poisoning: a panic under an internal lock is the runtime's own, and leaves
/// what the lock protects as it was. Preemption must be disabled on a fiber's thread (S6).
#[track_caller]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    crate::util::preempt_check::expect_disabled();
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One step of a spin loop; lets the model checker run another thread.
pub(crate) fn spin() {
    #[cfg(not(indent_loom))]
    std::thread::yield_now();
    #[cfg(indent_loom)]
    loom::thread::yield_now();
}

/// Pauses before a retry of something that will not take long, after `failures` retries: first a
/// spin hint, then a yield, then a sleep, for a thread that must run but cannot while this one
/// does.
#[cold]
pub(crate) fn pause(failures: u32) {
    #[cfg(indent_loom)]
    let _ = (failures, spin());
    #[cfg(not(indent_loom))]
    match failures {
        0..64 => std::hint::spin_loop(),
        64..128 => spin(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Reads a word that the caller is about to exchange.
///
/// In models this read is an exchange too. Loom reorders an access only against the latest access
/// to the same word: after a plain load the exchange finds its own thread's load there, and loom
/// never tries it before the loads of other threads. The caller's exchange decides in any case, so
/// the model loses no behaviour.
#[inline(always)]
pub(crate) fn load_to_exchange<T>(word: &atomic::AtomicPtr<T>) -> *mut T {
    use atomic::Ordering::SeqCst;
    #[cfg(not(indent_loom))]
    return word.load(SeqCst);
    #[cfg(indent_loom)]
    match word.compare_exchange(std::ptr::null_mut(), std::ptr::null_mut(), SeqCst, SeqCst) {
        Ok(word) | Err(word) => word,
    }
}

/// The cheap half of an asymmetric barrier: orders this thread's earlier stores before its later
/// loads *provided* the other side calls [`heavy_barrier`].
#[inline(always)]
pub(crate) fn light_barrier() {
    #[cfg(indent_loom)]
    if !membarrier_fails() {
        atomic::fence(atomic::Ordering::SeqCst);
    }
    #[cfg(not(indent_loom))]
    if crate::sys::membarrier::works() {
        atomic::compiler_fence(atomic::Ordering::SeqCst);
    } else {
        atomic::fence(atomic::Ordering::SeqCst);
    }
}

/// The expensive half: every other thread of the process passes a full barrier before this returns
/// (`membarrier`), or, where the kernel never had it, a fence that pairs with theirs.
///
/// False if the kernel refuses the call: then the light barriers of other threads order nothing,
/// and the caller needs another proof, or must do without what the barrier was for (S18).
#[must_use]
pub(crate) fn heavy_barrier() -> bool {
    #[cfg(not(indent_loom))]
    let done = crate::sys::membarrier::issue();
    #[cfg(indent_loom)]
    let done = !membarrier_fails();
    atomic::fence(atomic::Ordering::SeqCst);
    done
}

#[cfg(indent_loom)]
std::thread_local! {
    /// Of the model that runs on this thread, which has all the model's threads.
    static MEMBARRIER_FAILS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(indent_loom)]
fn membarrier_fails() -> bool {
    MEMBARRIER_FAILS.get()
}

/// For models: from here on heavy barriers fail, and light ones order nothing.
#[cfg(all(test, indent_loom))]
pub(crate) fn let_membarrier_fail(fails: bool) {
    MEMBARRIER_FAILS.set(fails);
}

#[cfg(not(indent_loom))]
pub(crate) use crate::util::lock::RawLock;

/// The lock in models waits by the checker's means, which cannot see that a spin ends.
#[cfg(indent_loom)]
pub(crate) struct RawLock {
    mutex: Mutex<()>,
    held: std::cell::RefCell<Option<MutexGuard<'static, ()>>>,
}

#[cfg(indent_loom)]
#[expect(unsafe_code, reason = "keeps a guard beside its lock")]
mod raw {
    use super::*;

    // SAFETY: `held` is touched only by the thread that has the lock.
    unsafe impl Sync for RawLock {}
    // SAFETY: as above; a model's threads are one thread.
    unsafe impl Send for RawLock {}

    impl RawLock {
        pub(crate) fn new() -> Self {
            RawLock {
                mutex: Mutex::new(()),
                held: Default::default(),
            }
        }

        pub(crate) fn acquire(&self) {
            let guard = self.mutex.lock().expect("no panic in a model");
            // SAFETY: it is dropped by `release`, while the lock is there.
            let guard = unsafe {
                std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)
            };
            *self.held.borrow_mut() = Some(guard);
        }

        /// # Safety
        /// As for the real one.
        pub(crate) unsafe fn release(&self) {
            let guard = self.held.borrow_mut().take();
            drop(guard);
        }
    }
}

/// Makes a constructor `const`, except in models: loom's atomics have no constant constructor.
macro_rules! const_fn {
    ($(#[$about:meta])* $seen:vis const fn $($rest:tt)*) => {
        #[cfg(not(indent_loom))]
        $(#[$about])* $seen const fn $($rest)*
        #[cfg(indent_loom)]
        $(#[$about])* $seen fn $($rest)*
    };
}
pub(crate) use const_fn;
