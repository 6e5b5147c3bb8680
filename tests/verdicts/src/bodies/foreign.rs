#![expect(unsafe_code, reason = "calls C, and is called back by it")]
//! C functions on the stack, and the state that they leave behind.

use std::hint::black_box;
use std::io;

use super::{BOUND, MOVABLE, each, table};
use crate::Probe;

table! {
    called_back_by_c: BOUND;
    errno_before_and_after: each("MBBBB");
    pthread_self_held: BOUND;
    number_parsed_by_c: MOVABLE;
    process_id_of_c: MOVABLE;
}

struct Callback<'a> {
    probe: &'a Probe,
    calls: u32,
}

unsafe extern "C" fn compare(
    one: *const libc::c_void,
    other: *const libc::c_void,
    callback: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: `called_back_by_c` passes a `Callback` that outlives the sort.
    let callback = unsafe { &mut *callback.cast::<Callback<'_>>() };
    callback.calls += 1;
    if callback.calls == 3 {
        callback.probe.park();
    }
    // SAFETY: an element of the sorted array.
    let one = unsafe { *one.cast::<u32>() };
    // SAFETY: as above.
    let other = unsafe { *other.cast::<u32>() };
    one.cmp(&other) as libc::c_int
}

unsafe extern "C" {
    fn qsort_r(
        base: *mut libc::c_void,
        count: libc::size_t,
        size: libc::size_t,
        compare: unsafe extern "C" fn(
            *const libc::c_void,
            *const libc::c_void,
            *mut libc::c_void,
        ) -> libc::c_int,
        argument: *mut libc::c_void,
    );
}

/// A frame of libc lies between two Rust frames, and the analysis has not read what it keeps.
fn called_back_by_c(probe: &Probe) -> bool {
    let mut numbers = [5u32, 3, 9, 1, 7, 2];
    let mut callback = Callback { probe, calls: 0 };
    // SAFETY: the array has as many elements of this size; `compare` gets the callback.
    unsafe {
        qsort_r(
            numbers.as_mut_ptr().cast(),
            numbers.len(),
            size_of::<u32>(),
            compare,
            (&raw mut callback).cast(),
        );
    }
    numbers.is_sorted()
}

/// If a function of std reads it, nothing of `errno` is left.
///
/// If that function is inlined, the address may be kept over the park: bound.
fn errno_before_and_after(probe: &Probe) -> bool {
    let fails = || {
        // SAFETY: the call closes nothing.
        unsafe { libc::close(black_box(-1)) };
        io::Error::last_os_error().raw_os_error()
    };
    let before = fails();
    probe.park();
    before == Some(libc::EBADF) && fails() == Some(libc::EBADF)
}

fn pthread_self_held(probe: &Probe) -> bool {
    // SAFETY: the call has no conditions.
    let before = unsafe { libc::pthread_self() };
    probe.park();
    // SAFETY: the call has no conditions.
    before == unsafe { libc::pthread_self() }
}

fn number_parsed_by_c(probe: &Probe) -> bool {
    let text = black_box(c"-17 and more");
    // SAFETY: the text ends with a zero.
    let before = unsafe { libc::atoi(text.as_ptr()) };
    probe.park();
    before == -17
}

fn process_id_of_c(probe: &Probe) -> bool {
    // SAFETY: the call has no conditions.
    let before = unsafe { libc::getpid() };
    probe.park();
    before as u32 == std::process::id()
}
