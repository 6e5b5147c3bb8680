#![expect(
    unsafe_code,
    reason = "stands in for a function of the C library, and calls destructors"
)]
//! Destructors of thread-locals, on their way to the C library.
//!
//! std registers the destructor of a thread-local when the thread first uses it, by a function of
//! the C library whose name is a weak symbol. A definition in the executable comes before the
//! library's. Statically linked C libraries are one with the executable, and musl has no such
//! function: there is none here, then, and nothing is exchanged.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use super::{Destructor, Locals, c_int, c_void, here, ptr};
use crate::fiber::record::{FiberRef, Record};
use crate::fiber::switch;
use crate::sys::{arch, program};
use crate::util::loom::atomic;

/// The C library's function; null if it was not looked up yet.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static SEEN: AtomicBool = AtomicBool::new(false);

thread_local!(static PROBE: RefCell<String> = const { RefCell::new(String::new()) });

/// Checks that registrations of destructors arrive here; else the error is why not.
#[inline(never)]
pub(super) fn is_in_place() -> Result<(), &'static str> {
    if cfg!(indent_sanitize) {
        return Err("the program is built for a sanitizer");
    }
    if cfg!(not(all(
        target_env = "gnu",
        not(target_feature = "crt-static")
    ))) {
        return Err("the C library is linked statically");
    }
    if next().is_none() {
        return Err("the C library takes no destructors of thread-locals");
    }
    // The first use of the variable: its destructor is registered now.
    PROBE.with(|probe| probe.borrow_mut().clear());
    match SEEN.load(Relaxed) {
        true => Ok(()),
        false => Err("destructors of thread-locals are not registered with the runtime"),
    }
}

type Register = unsafe extern "C" fn(Destructor, *mut c_void, *mut c_void) -> c_int;

/// Looks up the C library's function.
fn next() -> Option<Register> {
    let mut found = NEXT.load(Relaxed);
    if found.is_null() {
        found = program::find_next(c"__cxa_thread_atexit_impl");
        NEXT.store(found, Relaxed);
    }
    // SAFETY: the C library's function of this name has this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Register>(found) })
}

/// Registers a destructor that runs at the end of the calling thread, or of the fiber.
///
/// # Safety
/// As for the C library's.
#[cfg(all(
    target_env = "gnu",
    not(target_feature = "crt-static"),
    not(indent_sanitize)
))]
#[unsafe(no_mangle)]
unsafe extern "C" fn __cxa_thread_atexit_impl(
    destructor: Destructor,
    variable: *mut c_void,
    object: *mut c_void,
) -> c_int {
    SEEN.store(true, Relaxed);
    if let Some(block) = here()
        && let Some(layout) = block.layout.get()
    {
        let offset = variable.addr().wrapping_sub(arch::thread_pointer()) as isize;
        if layout.has(offset) {
            let list = match block.fiber.get() {
                // SAFETY: the fiber that runs here is the caller.
                Some(fiber) => &unsafe { Locals::make(fiber) }.destructors,
                None => &block.strays,
            };
            list.add(destructor, offset);
            return 0;
        }
    }
    match next() {
        // SAFETY: by the caller's promise.
        Some(next) => unsafe { next(destructor, variable, object) },
        None => 0, // never run, as destructors of the main thread may not be
    }
}

/// Whether the calling fiber has destructors of thread-locals to run.
pub(crate) fn has_destructors(fiber: FiberRef) -> bool {
    // SAFETY: it is the caller.
    let own = unsafe { Locals::of(fiber) };
    own.is_some_and(|own| !own.destructors.is_empty())
}

/// On a fiber whose closure has ended: runs the destructors of its thread-locals.
///
/// # Safety
/// On the stack of `fiber`, with preemption enabled.
pub(crate) unsafe fn run_destructors(fiber: FiberRef) {
    while has_destructors(fiber) {
        // A destructor has the address of its variable, which its code does not show.
        fiber.pins.fetch_add(1, atomic::Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { switch::call_outermost(fiber, run_list) };
        fiber.pins.fetch_sub(1, atomic::Ordering::Relaxed);
    }
}

/// # Safety
/// On the stack of `fiber`.
unsafe extern "C-unwind" fn run_list(fiber: &Record) {
    let head = fiber.stack.load(atomic::Ordering::Relaxed);
    // SAFETY: we stand on this stack.
    let own = unsafe { (*head).locals.own.get() };
    // SAFETY: its fiber has destructors: that is why we are called.
    unsafe { &*own }.destructors.run();
}
