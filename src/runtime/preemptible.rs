//! Regions in which a fiber may be preempted in place at any instruction.

use crate::sched::preempt::in_place::Region;
use crate::sys::arch;

/// Calls `f` with in-place preemption of the calling fiber allowed at any instruction.
///
/// A fiber that computes for long is preempted in any case. Outside of such a region its thread is
/// frozen with it, and the other fibers need another thread. That is sound whatever the code does,
/// but ten thousand fibers that compute at the same time share few threads, and get long slices.
/// Inside a region the fiber is switched out like one that yields: it occupies no thread, and the
/// thread runs other fibers before it comes back. So use it for numeric code that you know, and
/// that calls nothing unusual.
///
/// The runtime checks as much as machine code shows: a fiber is switched only where no function
/// between the instruction and the region uses a thread-local, and all of them belong to the
/// executable. Everywhere else (in `malloc`, in C libraries, while a panic unwinds, deep in a
/// nearly full stack, on processors other than x86_64, before the program's code was read) it is
/// frozen together with its thread, as if it were in no region. What machine code does not show is
/// your promise.
///
/// Regions nest. Inside [`no_preempt`](super::no_preempt) the fiber is not interrupted, whichever
/// of the two is the inner one. `f` may block, spawn, and panic; the panic propagates. On a plain
/// thread `f` is called without effect. A fiber that was switched out is resumed before it ends or
/// is cancelled: nothing is dropped in the middle of the region. It continues on its own thread, or
/// on another one if nothing on its whole stack is bound to its own. It finds `errno` and the
/// control words of the floating-point units as it left them, and other fibers never see the values
/// it has set inside the region.
///
/// # Safety
/// At every instruction of `f`, and *around* the region, in all callers:
/// - nothing that belongs to the thread is in use: no borrow of a thread-local (`with`,
///   `with_borrow_mut`), no value taken from one (`rand::rng()`, an entered `tracing` span, a
///   `thread::current()` that is compared later), no state of a C library that is kept per thread
///   (a locale, a library's "last error"). Other fibers run on this thread in the middle of it and
///   would find it half-changed;
/// - no kernel state of the thread is changed and put back (signal mask, affinity, namespaces,
///   credentials);
/// - no code of this fiber relies on staying on one thread between two instructions in a way only
///   its author can know: a thread-bound pointer fetched from a static, a handle that is not `Send`
///   for good reason.
///
/// - `f` is not left for another stack of your own (a coroutine's, a generator's) and entered
///   again;
/// - no clock or number of the thread is read that is compared with a later one (its CPU time, its
///   id).
///
/// And so that the program makes progress: no code on this thread waits for the fiber in a way that
/// blocks or occupies the thread, which the fiber may need to continue. So no lock is held that
/// blocks its thread, such as `std::sync::Mutex`, and no code spins or sleeps in the kernel until
/// `f` has done something.
///
/// # Examples
/// Right: numbers in, numbers out.
/// ```
/// use indent::runtime;
///
/// fn checksum(data: &[u8]) -> u64 {
///     data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
///         (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
///     })
/// }
///
/// let data = vec![7; 100_000];
/// let fiber = indent::spawn(move || {
///     // SAFETY: computes on memory of its own; no thread-local, no lock, here or in the caller.
///     unsafe { runtime::preemptible(|| checksum(&data)) }
/// });
/// assert_eq!(fiber.join().unwrap() % 2, 1);
/// ```
/// Right: the lock is taken for the moment it takes, around each region and not over it.
/// ```
/// use std::sync::Mutex;
///
/// static TOTAL: Mutex<u64> = Mutex::new(0);
///
/// indent::spawn(|| {
///     // SAFETY: arithmetic; the lock below is not held yet.
///     let sum = unsafe { indent::runtime::preemptible(|| (0..100_000u64).sum::<u64>()) };
///     *TOTAL.lock().unwrap() += sum;
/// })
/// .join()
/// .unwrap();
/// ```
/// Wrong, though it compiles: a thread-local is borrowed around the region. Another fiber on this
/// thread finds it borrowed, and panics.
/// ```no_run
/// use std::cell::RefCell;
///
/// thread_local!(static BUFFER: RefCell<Vec<u64>> = RefCell::default());
///
/// BUFFER.with_borrow_mut(|buffer| unsafe {
///     // WRONG: `buffer` belongs to the thread.
///     indent::runtime::preemptible(|| buffer.sort())
/// });
/// ```
/// Wrong: the generator is the thread's, and so is the middle of its next number.
/// ```ignore
/// let mut random = rand::rng();
/// // WRONG: `random` came out of a thread-local.
/// unsafe { indent::runtime::preemptible(|| random.random::<u64>()) };
/// ```
pub unsafe fn preemptible<R>(f: impl FnOnce() -> R) -> R {
    within(f)
}

/// Never inlined, and it does something after the call: so it has a frame, right below which that
/// of `call` begins.
#[inline(never)]
fn within<R>(f: impl FnOnce() -> R) -> R {
    let region = Region::new(arch::stack_pointer());
    let inside = region.open();
    let result = call(f);
    drop(inside);
    result
}

/// The outermost function of the region.
#[inline(never)]
fn call<R>(f: impl FnOnce() -> R) -> R {
    f()
}
