#![expect(unsafe_code, reason = "allocates by hand")]
//! Memory from the system's allocator, not the program's: that one may use thread-locals, whose
//! destructors are registered here, in the middle of an allocation.

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};

/// A value in memory of its own.
pub(super) fn put<T>(value: T) -> *mut T {
    let at = room(Layout::new::<T>()).cast::<T>();
    // SAFETY: large enough, and aligned.
    unsafe { at.write(value) };
    at
}

/// The value, out of its memory.
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

/// Room, not empty, whatever is in it.
pub(super) fn room(layout: Layout) -> *mut u8 {
    assert!(layout.size() > 0, "room for nothing");
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
