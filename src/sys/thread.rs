#![expect(unsafe_code, reason = "system calls")]
//! Threads: their numbers, CPU time, memory and ends.

use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::{arch, futex};

/// Sleeps; a signal may end it early.
pub(crate) fn sleep(time: Duration) {
    futex::wait(&AtomicU32::new(0), 0, Some(time));
}

/// Returns the calling thread's number in the kernel. May be called in a signal handler.
///
/// Never inlined: the frame of its caller may be one that moves.
#[inline(never)]
pub(crate) fn number() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Returns how many nanoseconds the calling thread has run on a CPU. May be called in a signal
/// handler.
pub(crate) fn cpu_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the memory of the calling thread: its stack, and above it its control block and the
/// thread-locals of the program and of all libraries that were loaded with it. `None` where they
/// are not all in one place, or the place is unknown.
pub(crate) fn memory() -> Option<std::ops::Range<usize>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: takes nothing.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: fills the attributes in.
    let failed = unsafe { libc::pthread_getattr_np(own, attributes.as_mut_ptr()) };
    if failed != 0 {
        return None;
    }
    let (mut start, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: filled in above.
    let failed =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut size) };
    // SAFETY: as above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let memory = start.addr()..start.addr() + size;
    let inside = |address: usize| memory.contains(&address);
    let whole = inside(arch::thread_pointer()) && inside(arch::stack_pointer());
    (failed == 0 && whole).then_some(memory)
}

/// Yields to other threads. May be called in a signal handler.
pub(crate) fn yield_now() {
    // SAFETY: takes nothing.
    unsafe { libc::sched_yield() };
}

/// Joins a thread that has ended, destructors of its thread-locals included; else returns the
/// handle.
///
/// [`JoinHandle::is_finished`] is true while those destructors run. They are the users' and may
/// wait for the caller, so a plain join after it could block for ever.
pub(crate) fn try_join(thread: JoinHandle<()>) -> Result<(), JoinHandle<()>> {
    let name = thread.as_pthread_t() as libc::pthread_t; // another type with musl
    // SAFETY: the thread is neither joined nor detached while the handle is there; nothing is
    // written through null.
    let refused = unsafe { libc::pthread_tryjoin_np(name, ptr::null_mut()) };
    if refused != 0 {
        return Err(thread);
    }
    let _joined = thread.into_pthread_t(); // so that it is not detached, too
    Ok(())
}

/// Whether `thread` is the calling thread. Also correct in destructors of thread-locals, where
/// [`std::thread::current`] may panic.
#[inline(never)]
pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    let name = thread.as_pthread_t() as libc::pthread_t; // another type with musl
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: both are valid: the other thread is not joined.
    unsafe { libc::pthread_equal(own, name) != 0 }
}

/// Lowers the calling thread's priority: raises its nice value by `steps`, up to the maximum.
/// Threads that it starts inherit that.
pub(crate) fn be_nicer(steps: libc::c_int) {
    // SAFETY: takes a number only. On Linux this is the thread's own value, and more is always
    // allowed.
    unsafe { libc::nice(steps) };
}
