#![expect(unsafe_code, reason = "an allocator")]
//! No in-place preemption in a program whose allocator is called through pointers.
//!
//! The functions behind the pointers may hold a lock.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::Builder;

mod common;

/// An allocator whose functions can be exchanged before there are threads.
struct Exchangeable {
    alloc: UnsafeCell<unsafe fn(Layout) -> *mut u8>,
    dealloc: UnsafeCell<unsafe fn(*mut u8, Layout)>,
}

// SAFETY: written before there are other threads.
unsafe impl Sync for Exchangeable {}

#[global_allocator]
static EXCHANGEABLE: Exchangeable = Exchangeable {
    alloc: UnsafeCell::new(alloc_locked),
    dealloc: UnsafeCell::new(dealloc_locked),
};

static LOCK: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn under_lock<T>(f: impl FnOnce() -> T) -> T {
    while LOCK.swap(true, SeqCst) {
        spin_loop();
    }
    let result = f();
    LOCK.store(false, SeqCst);
    result
}

unsafe fn alloc_locked(layout: Layout) -> *mut u8 {
    ALLOCATIONS.fetch_add(1, Relaxed);
    // SAFETY: by the caller's promise.
    under_lock(|| unsafe { System.alloc(layout) })
}

unsafe fn dealloc_locked(at: *mut u8, layout: Layout) {
    // SAFETY: by the caller's promise.
    under_lock(|| unsafe { System.dealloc(at, layout) });
}

// SAFETY: forwards to the system's allocator, one call at a time.
unsafe impl GlobalAlloc for Exchangeable {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no thread writes it any more.
        let alloc = unsafe { *self.alloc.get() };
        // SAFETY: by the caller's promise.
        unsafe { alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: no thread writes it any more.
        let dealloc = unsafe { *self.dealloc.get() };
        // SAFETY: by the caller's promise.
        unsafe { dealloc(at, layout) };
    }
}

#[test]
fn with_an_allocator_behind_pointers_fibers_keep_their_threads_and_one_line_says_so() {
    let text = common::alone("behind_pointers");
    // Checks of the standard library, and how panics print, may lead to a lock as well.
    let line = "preempt_in_place has no effect in this program: its allocator";
    assert_eq!(text.matches(line).count(), 1, "{text}");
}

mod child {
    use super::*;

    #[test]
    #[ignore = "run by a test above, in a process of its own"]
    fn behind_pointers() {
        // Hides from the compiler which functions are there.
        let (alloc, dealloc) = black_box((EXCHANGEABLE.alloc.get(), EXCHANGEABLE.dealloc.get()));
        // SAFETY: the other threads of the test binary only wait for this test.
        unsafe { *alloc = black_box(alloc_locked) };
        // SAFETY: as above.
        unsafe { *dealloc = black_box(dealloc_locked) };
        common::within(60, || {
            // SAFETY: no fiber keeps something of its thread from a function that it called through
            // a pointer.
            unsafe { indent_sysmon::frames::trust_pointers() };
            let quantum = Duration::from_millis(1);
            let builder = Builder::new().workers(2).preempt_quantum(quantum);
            let rt = builder.preempt_in_place(true).build().expect("a runtime");
            rt.wait_until_surveyed(None);
            let stop = Arc::new(AtomicBool::new(false));
            let fibers: Vec<_> = (0..8)
                .map(|_| {
                    let stop = stop.clone();
                    rt.spawn(move || {
                        while !stop.load(Relaxed) {
                            black_box(vec![0_u8; 100]);
                            black_box((0..1_000).fold(0, |sum, n| black_box(sum ^ n)));
                        }
                    })
                })
                .collect();
            common::wait_for("freezes", || rt.metrics().freezes_total > 20);
            stop.store(true, Relaxed);
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(rt.metrics().in_place_outside_regions_total, 0);
            assert!(ALLOCATIONS.load(Relaxed) > 0);
        });
    }
}
