#![expect(unsafe_code, reason = "an allocator")]
//! No in-place preemption in a program whose allocator is written in Rust and has a lock.
//!
//! The scheduler would wait for a lock that only the fiber can release.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use indent::runtime::Builder;

mod common;

struct Locked {
    lock: AtomicBool,
    allocations: AtomicU64,
}

#[global_allocator]
static LOCKED: Locked = Locked {
    lock: AtomicBool::new(false),
    allocations: AtomicU64::new(0),
};

impl Locked {
    fn under_lock<T>(&self, f: impl FnOnce() -> T) -> T {
        while self.lock.swap(true, SeqCst) {
            spin_loop();
        }
        let result = f();
        self.lock.store(false, SeqCst);
        result
    }
}

// SAFETY: forwards to the system's allocator, one call at a time.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocations.fetch_add(1, Relaxed);
        // SAFETY: by the caller's promise.
        self.under_lock(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        self.under_lock(|| unsafe { System.dealloc(at, layout) });
    }
}

#[test]
fn with_an_allocator_that_locks_fibers_keep_their_threads() {
    common::within(60, || {
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
        assert!(LOCKED.allocations.load(Relaxed) > 0);
    });
}
