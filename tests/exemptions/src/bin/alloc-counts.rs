#![expect(unsafe_code, reason = "an allocator")]
//! An allocator in Rust that counts in thread-locals without a destructor.
//!
//! `alloc-counts COUNT`: a fiber begins with zero, and its count is that of its own allocations,
//! whatever the runtime and other fibers allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use indent::{task, time};
use indent_exemptions::{crowd, number, report, run, thread};

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: forwards to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + 1);
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how much the calling fiber has allocated and freed.
#[inline(never)]
fn counts() -> (usize, usize) {
    (ALLOCATED.get(), FREED.get())
}

fn main() {
    let count = number(1);
    run(
        |builder| builder,
        |rt| {
            rt.wait_until_surveyed(None);
            let moved = crowd(rt, count, |n| {
                let first = counts();
                let before = thread();
                for turn in 0..20 {
                    let then = counts();
                    let boxes = [black_box(Box::new(n)), black_box(Box::new(turn))];
                    let [one, two] = boxes;
                    drop(one);
                    assert_eq!(counts(), (then.0 + 2, then.1 + 1));
                    match (n + turn) % 3 {
                        0 => task::yield_now(),
                        1 => time::sleep(Duration::from_millis(1)),
                        _ => (),
                    }
                    assert_eq!(*two, turn);
                }
                (first, counts(), thread() != before)
            });
            let first = moved.iter().map(|(first, ..)| first.0 + first.1).max();
            report("first", first.unwrap_or(0));
            let last = moved.iter().map(|(_, last, _)| last.0.max(last.1)).max();
            report("last", last.unwrap_or(0));
            report("moved", moved.iter().filter(|(.., moved)| *moved).count());
        },
    );
}
