#![expect(unsafe_code, reason = "cuts stacks out of mapped memory")]
//! Stacks: slabs of address space, guards, pools.
//!
//! ```text
//!  low                                                              high
//!  | guard | ................ usable ................ | StackHead | colour |   next stack …
//! ```
//!
//! A stack comes in size classes, powers of two. Its head, at the top, lies in the page that every
//! fiber touches anyway. The head holds the coroutine that lives on the stack (`switch.rs`), the
//! link for lists, and the time limits of the fiber (`limits.rs`). The kernel commits page by page:
//! that is how a stack grows.
//!
//! The guard is [`GUARD`] bytes long: code that was compiled without stack probes (most C) touches
//! a large frame at its far end first, and must not reach the next stack (S15). It is installed
//! once, when a stack is first cut from its slab: markers without a mapping of their own
//! (`MADV_GUARD_INSTALL`), else inaccessible pages. Those split the mapping in two, so that the
//! process limit on mappings becomes a limit on stacks. In both cases its length costs address
//! space, and eight bytes of page table for each page of it, but no memory and no further mapping.
//!
//! Slabs are never unmapped (a fault handler must be able to look up any address at any time). Free
//! stacks wait in one pool per class for the next fiber of any runtime; workers keep a few of the
//! default class in a [`Cache`]. Under a sanitizer neither slabs nor pools are used: each stack is
//! its own mapping and is unmapped when its fiber ends, so that stale pointers into it are
//! detected.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::fiber::limits::Limits;
use crate::fiber::locals::Locals;
use crate::fiber::switch::Resident;
use crate::sys::memory::{self, Advice, PAGE};
use crate::util::list::{Linked, List};
use crate::util::preempt_check;

mod trim;

pub(crate) use trim::{has_grown, trim};

/// A sanitizer's frames are several times larger.
const SMALLEST: usize = if cfg!(indent_sanitize) {
    64 * 1024
} else {
    16 * 1024
};
const LARGEST: usize = 1 << 30;
pub(crate) const CLASSES: usize = (LARGEST / SMALLEST).trailing_zeros() as usize + 1;

/// The first slab of a class has at least this size; each further one is twice as large …
const FIRST_SLAB: usize = 16 * 1024 * 1024;
/// … up to this size: a million default stacks then take some twenty slabs.
const LAST_SLAB: usize = 16 << 30;

/// Size of a guard: more than 64 KiB, and an odd number of pages (see [`stride`]).
const GUARD: usize = 64 * 1024 + PAGE;

/// Free stacks in a worker's cache; beyond, half go to the pool.
const CACHE: usize = 64;
/// Free stacks in a pool that keep their pages; beyond, unneeded ones give them back (`trim.rs`).
const POOL_KEEPS_PAGES: usize = 1024;

/// How the end of a stack is guarded.
///
/// With either kind more than 64 KiB below each stack cannot be touched, so that an overflow of C
/// code without stack probes faults, too, instead of writing into another fiber's stack.
///
/// ```
/// use indent::runtime::{Builder, StackGuard};
///
/// let rt = Builder::new().build()?;
/// match rt.metrics().stack_guard {
///     StackGuard::Marker => assert_eq!(rt.metrics().fiber_limit, None),
///     _ => println!("no more than {:?} fibers at once", rt.metrics().fiber_limit),
/// }
/// # Ok::<(), indent::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackGuard {
    /// Markers in the page table (`MADV_GUARD_INSTALL`, Linux 6.13): no mapping of their own.
    Marker,
    /// Inaccessible pages (`mprotect`): two mappings for every stack.
    Page,
}

/// Returns the stack class for a size in bytes; `None` if there is no such class.
pub(crate) fn class_for(size: usize) -> Option<u8> {
    if size == 0 || size > LARGEST {
        return None;
    }
    let rounded = size.next_power_of_two().max(SMALLEST);
    Some((rounded / SMALLEST).trailing_zeros() as u8)
}

pub(crate) const fn class_size(class: u8) -> usize {
    SMALLEST << class
}

pub(crate) const LARGEST_STACK: usize = LARGEST;

/// Distance from one stack of a class to the next: the guard comes on top of the size. The odd
/// number of pages matters: at a multiple of a large power of two the same lines of all stacks
/// would compete for a few cache sets.
const fn stride(class: u8) -> usize {
    class_size(class) + GUARD
}

/// Stacks begin at different cache lines of their uppermost page; this many variants.
const COLOURS: usize = 16;
const CACHE_LINE: usize = 64;

/// The head at the top of every stack. A switch needs only its first cache line. Its address
/// identifies the stack.
#[repr(C, align(64))]
pub(crate) struct StackHead {
    /// While the stack is free, the link of the list it is in; else see [`StackHead::region`].
    link: crate::util::loom::atomic::AtomicPtr<StackHead>,
    /// The lowest address, a multiple of the page size; its low bits hold class and guard kind.
    bottom: usize,
    pub(crate) resident: Resident,
    limits: Limits,
    pub(crate) locals: Locals,
    /// What the fiber waits for or last waited for, if that has a name: the address of a lock, or
    /// the id of a fiber that it joins. For dumps.
    awaited: std::sync::atomic::AtomicUsize,
}

// SAFETY: the link is written by lists only.
unsafe impl Linked for StackHead {
    fn link(&self) -> &crate::util::loom::atomic::AtomicPtr<Self> {
        &self.link
    }
}

impl StackHead {
    const PAGED: usize = PAGE / 2;

    fn class(&self) -> u8 {
        (self.bottom & (Self::PAGED - 1)) as u8
    }

    fn guard(&self) -> StackGuard {
        if self.bottom & Self::PAGED == 0 {
            StackGuard::Marker
        } else {
            StackGuard::Page
        }
    }

    /// The lowest byte of the stack, guard included.
    pub(crate) fn limit(&self) -> usize {
        // SAFETY: it is there.
        unsafe { Self::limit_of(self) }
    }

    /// Returns the same without a reference to the rest of the head.
    ///
    /// # Safety
    /// There is a head.
    pub(crate) unsafe fn limit_of(head: *const StackHead) -> usize {
        // SAFETY: by the caller's promise; not written once the stack is cut.
        unsafe { (*head).bottom & !(PAGE - 1) }
    }

    /// The lowest byte that may be used.
    ///
    /// # Safety
    /// There is a head.
    pub(crate) unsafe fn lowest_of(head: *const StackHead) -> usize {
        // SAFETY: by the caller's promise.
        unsafe { Self::limit_of(head) + GUARD }
    }

    /// The innermost region the stack's fiber is in (a type of the layers above), in a frame of its
    /// own; null if there is none.
    ///
    /// # Safety
    /// There is a head; on the thread that runs the fiber, or while no thread runs it.
    pub(crate) unsafe fn region(head: *const StackHead) -> *const () {
        // SAFETY: by the caller's promise.
        unsafe { (*head).link.load(Relaxed) }.cast()
    }

    /// # Safety
    /// As for `region`; and the stack is in no list.
    pub(crate) unsafe fn set_region(head: *const StackHead, region: *const ()) {
        let region = region.cast_mut().cast();
        // SAFETY: by the caller's promise.
        unsafe { (*head).link.store(region, Relaxed) };
    }

    /// The time limits of the stack's fiber, or of an earlier one: the record has a flag for
    /// whether there are any.
    ///
    /// # Safety
    /// There is a head; on the thread that runs the fiber; and it does not leave the stack while
    /// the result is used.
    pub(crate) unsafe fn limits<'a>(head: *const StackHead) -> &'a Limits {
        // SAFETY: by the caller's promise; and only its fiber touches it.
        unsafe { &(*head).limits }
    }

    /// Names what the stack's fiber is about to wait for.
    ///
    /// # Safety
    /// There is a head.
    pub(crate) unsafe fn set_awaited(head: *const StackHead, name: usize) {
        // SAFETY: by the caller's promise; the field is atomic.
        unsafe { (*head).awaited.store(name, Relaxed) };
    }

    /// The name of what the stack's fiber waits for, or last waited for.
    ///
    /// # Safety
    /// There is a head.
    pub(crate) unsafe fn awaited(head: *const StackHead) -> usize {
        // SAFETY: by the caller's promise; the field is atomic.
        unsafe { (*head).awaited.load(Relaxed) }
    }

    /// Whether `address` lies in the guard.
    pub(crate) fn guards(&self, address: usize) -> bool {
        (self.limit()..self.limit() + GUARD).contains(&address)
    }
}

/// A range of address space that holds stacks, for the fault handler. The list only grows.
struct Slab {
    start: usize,
    end: usize,
    next: *const Slab,
}

static SLABS: AtomicPtr<Slab> = AtomicPtr::new(ptr::null_mut());
static SLAB_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether `address` lies in a stack, used or not. Takes no lock: for signal handlers.
pub(crate) fn is_stack_address(address: usize) -> bool {
    let mut slab = SLABS.load(Acquire).cast_const();
    // SAFETY: slabs are leaked, and `next` was set before they were published.
    while let Some(here) = unsafe { slab.as_ref() } {
        if (here.start..here.end).contains(&address) {
            return true;
        }
        slab = here.next;
    }
    false
}

fn publish(at: NonNull<u8>, bytes: usize) {
    let start = at.as_ptr().addr();
    let slab = Box::into_raw(Box::new(Slab {
        start,
        end: start + bytes,
        next: ptr::null(),
    }));
    let mut next = SLABS.load(Relaxed);
    loop {
        // SAFETY: ours until the exchange publishes it.
        unsafe { (*slab).next = next };
        match SLABS.compare_exchange_weak(next, slab, Release, Relaxed) {
            Ok(_) => break,
            Err(now) => next = now,
        }
    }
    SLAB_COUNT.fetch_add(1, Relaxed);
}

/// The free stacks of one class and guard kind, and the slab that new ones are cut from.
struct Pool {
    free: List<StackHead>,
    /// Free stacks that have given back their pages.
    trimmed: List<StackHead>,
    /// The smallest length of `free` since the last [`trim`].
    lowest: usize,
    /// The uncut rest of the newest slab.
    fresh: usize,
    end: usize,
    slab_bytes: usize,
}

type Pools = [Mutex<Pool>; CLASSES];

static MARKED: Pools = [const { Mutex::new(Pool::new()) }; CLASSES];
static PAGED: Pools = [const { Mutex::new(Pool::new()) }; CLASSES];

impl Pool {
    const fn new() -> Self {
        Pool {
            free: List::new(),
            trimmed: List::new(),
            lowest: 0,
            fresh: 0,
            end: 0,
            slab_bytes: 0,
        }
    }

    fn cut(&mut self, class: u8, guard: StackGuard) -> io::Result<NonNull<StackHead>> {
        let size = stride(class);
        if self.end - self.fresh < size {
            self.map_slab(size)?;
        }
        let bottom = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(self.fresh))
            .expect("no stack at address zero");
        // SAFETY: the lowest pages of a stack that has no user yet, inside our slab.
        unsafe { install_guard(bottom, guard)? };
        self.fresh += size;
        // SAFETY: `size` bytes from `bottom` are ours.
        Ok(unsafe { place_head(bottom, class, guard) })
    }

    fn map_slab(&mut self, size: usize) -> io::Result<()> {
        let mut bytes = (self.slab_bytes * 2).clamp(FIRST_SLAB, LAST_SLAB).max(size);
        let at = loop {
            match memory::map(bytes) {
                Ok(at) => break at,
                // Too much at once (ulimit -v, strict overcommit): try with less.
                Err(_) if bytes / 2 >= size => bytes /= 2,
                Err(error) => return Err(error),
            }
        };
        // SAFETY: fresh; a refusal only costs memory.
        let _ = unsafe { memory::advise(at, bytes, Advice::NoHugePages) };
        publish(at, bytes);
        self.slab_bytes = bytes;
        self.fresh = at.as_ptr().expose_provenance();
        self.end = self.fresh + bytes;
        Ok(())
    }
}

/// # Safety
/// The `GUARD` bytes at `bottom` are mapped and unused.
unsafe fn install_guard(bottom: NonNull<u8>, guard: StackGuard) -> io::Result<()> {
    match guard {
        // SAFETY: by the caller's promise.
        StackGuard::Marker => unsafe { memory::advise(bottom, GUARD, Advice::InstallGuard) },
        // SAFETY: by the caller's promise.
        StackGuard::Page => unsafe { memory::forbid(bottom, GUARD) },
    }
}

/// # Safety
/// The bytes of a stack of this class, from `bottom` on, are the caller's.
unsafe fn place_head(bottom: NonNull<u8>, class: u8, guard: StackGuard) -> NonNull<StackHead> {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let colour = SERIAL.fetch_add(1, Relaxed) % COLOURS;
    let offset = stride(class) - colour * CACHE_LINE - size_of::<StackHead>();
    // SAFETY: inside the stack.
    let head = unsafe { bottom.add(offset) }.cast::<StackHead>();
    let link = crate::util::loom::atomic::AtomicPtr::new(ptr::null_mut());
    let paged = if guard == StackGuard::Page {
        StackHead::PAGED
    } else {
        0
    };
    let bottom = bottom.as_ptr().expose_provenance() | paged | usize::from(class);
    let value = StackHead {
        link,
        bottom,
        resident: Resident::none(),
        limits: Limits::new(),
        locals: Locals::none(),
        awaited: std::sync::atomic::AtomicUsize::new(0),
    };
    // SAFETY: stacks are page-aligned and the head's size is a multiple of its alignment.
    unsafe { head.write(value) };
    head
}

fn pools(guard: StackGuard) -> &'static Pools {
    match guard {
        StackGuard::Marker => &MARKED,
        StackGuard::Page => &PAGED,
    }
}

fn lock(guard: StackGuard, class: u8) -> std::sync::MutexGuard<'static, Pool> {
    preempt_check::expect_disabled();
    pools(guard)[usize::from(class)]
        .lock()
        .unwrap_or_else(|e| e.into_inner())
}

/// Returns a free stack from the pool, or a new one.
pub(crate) fn obtain(class: u8, guard: StackGuard) -> io::Result<NonNull<StackHead>> {
    if cfg!(indent_sanitize) {
        let size = stride(class);
        let bottom = memory::map(size)?;
        // SAFETY: a fresh mapping.
        unsafe { install_guard(bottom, guard)? };
        publish(bottom, size);
        // SAFETY: a fresh mapping of that size.
        return Ok(unsafe { place_head(bottom, class, guard) });
    }
    let mut pool = lock(guard, class);
    if let Some(stack) = pool.free.pop() {
        pool.lowest = pool.lowest.min(pool.free.len());
        return Ok(stack);
    }
    match pool.trimmed.pop() {
        Some(stack) => Ok(stack),
        None => pool.cut(class, guard),
    }
}

/// Returns a stack whose fiber has ended to the pool.
pub(crate) fn give_back(stack: NonNull<StackHead>) {
    // SAFETY: the head of a stack is valid as long as the stack is.
    let head = unsafe { stack.as_ref() };
    let (class, guard) = (head.class(), head.guard());
    if cfg!(indent_sanitize) {
        let limit = head.limit();
        // SAFETY: its fiber has ended and no other thread knows the stack.
        let head = unsafe { &mut *stack.as_ptr() };
        // SAFETY: as above.
        unsafe { head.resident.destroy() };
        let bottom = ptr::with_exposed_provenance_mut::<u8>(limit);
        let bottom = NonNull::new(bottom).expect("no stack at address zero");
        // SAFETY: the whole mapping of this stack, made by `obtain`. The published range stays
        // behind, which at worst makes the fault handler look twice.
        unsafe { memory::unmap(bottom, stride(class)) };
        return;
    }
    let mut pool = lock(guard, class);
    // SAFETY: free, so in no list; stacks stay mapped.
    unsafe { pool.free.push_front(stack) };
    trim::note(pool.free.len());
}

/// Whether the kernel supports guard markers; tested once.
pub(crate) fn best_guard() -> StackGuard {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    match ANSWER.load(Relaxed) {
        1 => StackGuard::Marker,
        2 => StackGuard::Page,
        _ => {
            let works = memory::map(PAGE).is_ok_and(|page| {
                // SAFETY: a page of our own.
                let works = unsafe { memory::advise(page, PAGE, Advice::InstallGuard) }.is_ok();
                // SAFETY: as above.
                unsafe { memory::unmap(page, PAGE) };
                works
            });
            ANSWER.store(if works { 1 } else { 2 }, Relaxed);
            if works {
                StackGuard::Marker
            } else {
                StackGuard::Page
            }
        }
    }
}

/// The most stacks there can be beside `threads` threads; `None` if only memory limits them.
pub(crate) fn limit(guard: StackGuard, threads: usize) -> Option<usize> {
    match guard {
        StackGuard::Marker => None,
        StackGuard::Page => Some(limit_by_mappings(memory::max_mappings(), threads)),
    }
}

/// The most threads for fibers that the mappings of the process allow, beside those of stacks.
pub(crate) fn most_threads(guard: StackGuard) -> usize {
    let mappings = memory::max_mappings();
    match guard {
        StackGuard::Marker => mappings / MAPPINGS_OF_THREAD,
        StackGuard::Page => share_of_threads(mappings) / MAPPINGS_OF_THREAD,
    }
}

/// The most stacks with guard pages that `mappings` allow beside the threads of fibers.
///
/// A bound fiber keeps a thread, and before the program's code has been read every parked fiber
/// does. If the stacks took all mappings the kernel would refuse those threads, and if the threads
/// took them a fiber within the limit would get no stack; so each has its share.
fn limit_by_mappings(mappings: usize, threads: usize) -> usize {
    /// Mappings the rest of the process needs: libraries, heaps, other threads.
    const OTHERS: usize = 2048;
    const A_STACK: usize = 2;
    let for_threads = threads.saturating_mul(MAPPINGS_OF_THREAD);
    let for_threads = for_threads.min(share_of_threads(mappings));
    (mappings.saturating_sub(OTHERS + for_threads) / A_STACK).max(1)
}

/// The most mappings that are reserved for threads where stacks need mappings, too: a quarter. Most
/// fibers of most programs need no thread of their own, so that a large number of threads is rarely
/// used up and must not leave fibers without stacks.
fn share_of_threads(mappings: usize) -> usize {
    mappings / 4
}

/// Mappings that a thread for fibers can take: its stack, std's signal stack and the runtime's,
/// each with a guard, and the two parts of an arena of the C library's allocator.
const MAPPINGS_OF_THREAD: usize = 8;

/// Number of slabs mapped so far, for the metrics.
pub(crate) fn slabs() -> usize {
    SLAB_COUNT.load(Relaxed)
}

/// A worker's cache of free stacks of the default class, most recently used first.
pub(crate) struct Cache {
    free: List<StackHead>,
    class: u8,
    guard: StackGuard,
}

impl Cache {
    pub(crate) fn new(class: u8, guard: StackGuard) -> Self {
        Cache {
            free: List::new(),
            class,
            guard,
        }
    }

    pub(crate) fn take(&mut self, class: u8) -> io::Result<NonNull<StackHead>> {
        if class == self.class
            && let Some(stack) = self.free.pop()
        {
            return Ok(stack);
        }
        obtain(class, self.guard)
    }

    pub(crate) fn put(&mut self, stack: NonNull<StackHead>) {
        // SAFETY: the head of a stack is valid as long as the stack is.
        let class = unsafe { stack.as_ref() }.class();
        if class != self.class || cfg!(indent_sanitize) {
            return give_back(stack);
        }
        // SAFETY: free, so in no list; stacks stay mapped.
        unsafe { self.free.push_front(stack) };
        if self.free.len() > CACHE {
            self.keep(CACHE / 2);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.free.len()
    }

    /// Moves all but `n` stacks to the pool and returns how many. The least recently used stay,
    /// since a list gives up its front only; the next few fibers warm them.
    pub(crate) fn keep(&mut self, n: usize) -> usize {
        let surplus = self.free.len().saturating_sub(n);
        for _ in 0..surplus {
            give_back(self.free.pop().expect("longer than n"));
        }
        surplus
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Room for a resident coroutine's object in the head.
pub(crate) type Slot<T> = std::cell::UnsafeCell<MaybeUninit<T>>;

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(feature = "sanitizer"))]
    fn a_switch_needs_one_cache_line_of_the_head() {
        assert_eq!(std::mem::offset_of!(StackHead, limits), CACHE_LINE);
        assert_eq!(size_of::<StackHead>(), 4 * CACHE_LINE);
    }

    #[test]
    fn sizes_round_up_to_powers_of_two() {
        assert_eq!(class_for(1), Some(0));
        assert_eq!(class_for(SMALLEST), Some(0));
        assert_eq!(class_for(SMALLEST + 1), Some(1));
        assert_eq!(class_size(class_for(256 * 1024).unwrap()), 256 * 1024);
        assert_eq!(class_size(class_for(LARGEST).unwrap()), LARGEST);
        assert_eq!(class_for(LARGEST + 1), None);
        assert_eq!(class_for(0), None);
        assert_eq!(usize::from(class_for(LARGEST).unwrap()), CLASSES - 1);
    }

    #[test]
    fn threads_keep_mappings_that_stacks_do_not_take() {
        let (mappings, others) = (65_530, 2048);
        assert_eq!(limit_by_mappings(mappings, 0), (mappings - others) / 2);
        for threads in [1, 128, 1024, 2000] {
            let left = mappings - 2 * limit_by_mappings(mappings, threads);
            assert!(left >= others + threads * MAPPINGS_OF_THREAD, "{threads}");
            assert!(
                left <= others + threads * MAPPINGS_OF_THREAD + 1,
                "{threads}"
            );
        }
    }

    #[test]
    fn many_threads_leave_most_mappings_to_stacks() {
        for mappings in [16_384, 65_530, 1_048_576] {
            for threads in [10_000, 1 << 20, usize::MAX] {
                let stacks = limit_by_mappings(mappings, threads);
                assert!(2 * stacks >= mappings / 2, "{mappings} {threads}");
            }
        }
        for mappings in 0..4096 {
            assert!(limit_by_mappings(mappings, usize::MAX) >= 1, "{mappings}");
        }
    }

    #[test]
    fn a_returned_stack_is_the_next_one_out() {
        let class = class_for(32 * 1024).unwrap();
        let mut cache = Cache::new(class, best_guard());
        let first = cache.take(class).unwrap();
        assert!(is_stack_address(first.as_ptr().addr()));
        cache.put(first);
        if !cfg!(indent_sanitize) {
            assert_eq!(cache.take(class).unwrap(), first);
            give_back(first);
        }
    }
}
