#![expect(unsafe_code, reason = "allocates by hand")]
//! Memory from the system's allocator. The program's may use thread-locals, and would register
//! their destructors here in the middle of an allocation.

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};

/// Moves a value into newly allocated memory.
pub(super) fn put<T>(value: T) -> *mut T {
    let at = room(Layout::new::<T>()).cast::<T>();
    // SAFETY: large enough, and aligned.
    unsafe { at.write(value) };
    at
}

/// Moves the value out, and frees its memory.
///
/// # Safety
/// `put` made it, and it is not used any more.
pub(super) unsafe fn take<T>(at: *mut T) -> T {
    // SAFETY: by the caller's promise.
    let value = unsafe { at.read() };
    // SAFETY: by the caller's promise, with this layout.
    unsafe { free(at.cast(), Layout::new::<T>()) };
    value
}

/// Allocates uninitialized memory of a nonzero size.
pub(super) fn room(layout: Layout) -> *mut u8 {
    assert!(layout.size() > 0, "cannot allocate zero bytes");
    // SAFETY: not empty.
    let at = unsafe { System.alloc(layout) };
    if at.is_null() {
        handle_alloc_error(layout);
    }
    at
}

/// # Safety
/// `room` made it with this layout, and it is not used any more.
pub(super) unsafe fn free(at: *mut u8, layout: Layout) {
    // SAFETY: by the caller's promise.
    unsafe { System.dealloc(at, layout) };
}
