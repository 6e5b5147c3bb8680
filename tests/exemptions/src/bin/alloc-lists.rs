#![expect(unsafe_code, reason = "an allocator")]
//! An allocator in Rust: lists of free memory in a thread-local, freed when it is destroyed.
//!
//! `alloc-lists COUNT` has lists for each fiber; with the argument `named` after it they stay with
//! the thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Smallest size class; sizes are powers of two from this one on.
const SMALLEST: usize = 16;
const CLASSES: usize = 8;
/// Longest list; further memory goes back to the system.
const LONGEST: usize = 16;

/// Free memory of one size: each block begins with the address of the next.
struct List {
    first: Cell<*mut *mut u8>,
    length: Cell<usize>,
}

impl List {
    fn pop(&self) -> Option<*mut u8> {
        let first = self.first.get();
        if first.is_null() {
            return None;
        }
        // SAFETY: the block is in the list, so its first word is what `push` wrote.
        let next = unsafe { first.read() };
        self.first.set(next.cast());
        self.length.set(self.length.get() - 1);
        Some(first.cast())
    }

    /// Adds a block; returns false if there is no room in the list.
    ///
    /// # Safety
    ///
    /// `block` is not used any more, aligned to a word and at least as large.
    unsafe fn push(&self, block: *mut u8) -> bool {
        if self.length.get() == LONGEST {
            return false;
        }
        let block: *mut *mut u8 = block.cast();
        // SAFETY: by the caller's promise.
        unsafe { block.write(self.first.get().cast()) };
        self.first.set(block);
        self.length.set(self.length.get() + 1);
        true
    }
}

/// The lists of one thread, or of one fiber.
struct Lists([List; CLASSES]);

impl Drop for Lists {
    fn drop(&mut self) {
        for (class, list) in self.0.iter().enumerate() {
            while let Some(block) = list.pop() {
                // SAFETY: the block was allocated with this layout, and is in no list any more.
                unsafe { System.dealloc(block, layout_of(class)) };
            }
        }
    }
}

thread_local! {
    static LISTS: Lists = const {
        Lists([const { List { first: Cell::new(ptr::null_mut()), length: Cell::new(0) } }; CLASSES])
    };
}

/// Returns the class of the list that this memory comes from, if any.
fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(SMALLEST).next_power_of_two();
    let class = (size / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES && layout.align() <= SMALLEST).then_some(class)
}

fn layout_of(class: usize) -> Layout {
    Layout::from_size_align(SMALLEST << class, SMALLEST).expect("powers of two")
}

struct Allocator;

// SAFETY: memory of a class has its size and alignment, is in one list or in use, and everything
// else is the system's. A list that is destroyed neither takes nor returns memory.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            // SAFETY: by the caller's promise.
            return unsafe { System.alloc(layout) };
        };
        let cached = LISTS.try_with(|lists| lists.0[class].pop());
        cached.ok().flatten().unwrap_or_else(|| {
            // SAFETY: the layout is not empty.
            unsafe { System.alloc(layout_of(class)) }
        })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            // SAFETY: by the caller's promise; `alloc` passed it on, too.
            return unsafe { System.dealloc(block, layout) };
        };
        let push = |lists: &Lists| {
            // SAFETY: by the caller's promise it is not used any more; every class is large enough.
            unsafe { lists.0[class].push(block) }
        };
        if !LISTS.try_with(push).unwrap_or(false) {
            // SAFETY: `alloc` allocated it with this layout.
            unsafe { System.dealloc(block, layout_of(class)) };
        }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() {
    let named = std::env::args().nth(2).is_some_and(|word| word == "named");
    indent_exemptions::allocating::program(|builder| match named {
        true => builder.per_thread(concat!(module_path!(), "::LISTS")),
        false => builder,
    });
}
