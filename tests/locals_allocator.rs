#![expect(unsafe_code, reason = "an allocator")]
//! Thread-locals of fibers in a program whose allocator has thread-locals with destructors.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use indent::runtime::Builder;
use indent::task;

mod common;

/// Counts in a thread-local, and adds the count to a total when the thread-local is destroyed.
struct Counting;

struct Count(Cell<usize>);

static SUM: AtomicUsize = AtomicUsize::new(0);

impl Drop for Count {
    fn drop(&mut self) {
        SUM.fetch_add(self.0.get(), Relaxed);
    }
}

thread_local!(static COUNT: Count = const { Count(Cell::new(0)) });

// SAFETY: forwards to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.0.set(count.0.get() + 1));
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_allocator_may_have_thread_locals_with_destructors() {
    thread_local!(static LIST: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });
    common::within(60, || {
        let rt = Builder::new().workers(2).build().unwrap();
        let fibers: Vec<_> = (0..200)
            .map(|own: usize| {
                rt.spawn(move || {
                    for turn in 1..20 {
                        LIST.with_borrow_mut(|list| list.push(own.to_string()));
                        task::yield_now();
                        LIST.with_borrow(|list| assert_eq!(list.len(), turn));
                    }
                })
            })
            .collect();
        for fiber in fibers {
            fiber.join().unwrap();
        }
        drop(rt);
        assert!(SUM.load(Relaxed) >= 200 * 19, "{SUM:?}");
    });
}
