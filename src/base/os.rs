#![expect(unsafe_code, reason = "system calls")]
//! The kernel's services this crate uses, as small safe functions where that is possible.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sleeps while `word` holds `expected`; also returns early for no reason, as futexes do.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` and `limit` outlive the call; the kernel only reads them.
    let failed = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, limit) } != 0;
    if failed && errno() == libc::EINTR {
        INTERRUPTED.fetch_add(1, Relaxed);
    }
}

static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// How often a wait of ours was ended by a signal, in the whole process.
pub(crate) fn interrupted_calls() -> u64 {
    INTERRUPTED.load(Relaxed)
}

/// Wakes one thread that sleeps on the word at `address`; the address need not be valid any more.
pub(crate) fn futex_wake(address: *const u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key and reads nothing through it.
    unsafe { libc::syscall(libc::SYS_futex, address, op, 1) };
}

/// Wakes all threads that sleep on the word.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key and reads nothing through it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, libc::c_int::MAX) };
}

/// Writes a one to an eventfd. May be called in a signal handler.
pub(crate) fn notify_eventfd(fd: i32) {
    let one = 1_u64;
    // SAFETY: reads eight bytes of `one`. At the most a full counter refuses it: then somebody has rung.
    unsafe { libc::write(fd, (&raw const one).cast(), size_of::<u64>()) };
}

/// Sets an eventfd that does not block back to zero. May be called in a signal handler.
pub(crate) fn drain_eventfd(fd: i32) {
    let mut count = 0_u64;
    // SAFETY: writes eight bytes to `count`. If the counter is zero the call fails and changes
    // nothing.
    unsafe { libc::read(fd, (&raw mut count).cast(), size_of::<u64>()) };
}

/// A word a single thread sleeps on. A rouse is never lost: one that comes first makes the next
/// wait return at once. Waits also return for no reason, so callers look again at what they wait
/// for.
pub(crate) struct Parker(AtomicU32);

impl Parker {
    const QUIET: u32 = 0;
    const ASLEEP: u32 = 1;
    const NOTIFIED: u32 = 2;
    /// Its thread sleeps elsewhere, and an eventfd wakes it, whose number stands above these bits.
    const ELSEWHERE: u32 = 3;
    const STATES: u32 = 2;

    pub(crate) const fn new() -> Self {
        Parker(AtomicU32::new(Self::QUIET))
    }

    /// Sleeps until rung or until the time is over; true if it was rung.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        if self
            .0
            .compare_exchange(Self::QUIET, Self::ASLEEP, SeqCst, SeqCst)
            .is_ok()
        {
            futex_wait(&self.0, Self::ASLEEP, timeout);
        }
        self.0.swap(Self::QUIET, SeqCst) == Self::NOTIFIED
    }

    /// The same, where `sleep` does not return for long unless something else happens there, or somebody
    /// writes to the eventfd, which is never closed.
    pub(crate) fn wait_elsewhere(&self, eventfd: i32, sleep: impl FnOnce()) -> bool {
        let elsewhere = (eventfd as u32) << Self::STATES | Self::ELSEWHERE;
        if self
            .0
            .compare_exchange(Self::QUIET, elsewhere, SeqCst, SeqCst)
            .is_ok()
        {
            sleep();
        }
        self.0.swap(Self::QUIET, SeqCst) == Self::NOTIFIED
    }

    pub(crate) fn notify(&self) {
        let address = self.0.as_ptr();
        // The owner may be gone as soon as the swap is done: after it only the address is used.
        match self.0.swap(Self::NOTIFIED, SeqCst) {
            Self::ASLEEP => futex_wake(address),
            word if word & Self::ELSEWHERE == Self::ELSEWHERE => {
                notify_eventfd((word >> Self::STATES) as i32);
            }
            _ => {}
        }
    }
}

/// Sleeps; a signal may end it early.
pub(crate) fn sleep(time: Duration) {
    futex_wait(&AtomicU32::new(0), 0, Some(time));
}

/// The kernel's number of the calling thread. May be called in a signal handler. Never inlined: the
/// frame of its caller may be one that moves.
#[inline(never)]
pub(crate) fn thread_number() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// What the calling thread's last failed call left; a signal handler puts it back.
#[inline(never)]
pub(crate) fn errno() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *at }
}

#[inline(never)]
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: takes nothing and cannot fail.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *at = errno };
}

/// Nanoseconds the calling thread has run. May be called in a signal handler.
pub(crate) fn own_cpu_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The memory of the calling thread: its stack, and above it its control block and the thread-locals
/// of the program and of all libraries that came with it. `None` where they are not all in one
/// place, or the system does not say where.
pub(crate) fn thread_memory() -> Option<std::ops::Range<usize>> {
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
    let whole = inside(super::arch::thread_pointer()) && inside(super::arch::stack_pointer());
    (failed == 0 && whole).then_some(memory)
}

/// Lets others run. May be called in a signal handler.
pub(crate) fn yield_thread() {
    // SAFETY: takes nothing.
    unsafe { libc::sched_yield() };
}

const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const MISSING: u8 = 2;

static MEMBARRIER: AtomicU8 = AtomicU8::new(UNKNOWN);

fn membarrier_call(command: libc::c_int) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks the kernel once; called before the first worker exists, so that every light barrier of a
/// runtime sees the same answer.
pub(crate) fn prepare_membarrier() {
    if MEMBARRIER.load(SeqCst) == UNKNOWN {
        let works = membarrier_call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        MEMBARRIER.store(if works { WORKS } else { MISSING }, SeqCst);
    }
}

#[inline(always)]
pub(crate) fn membarrier_works() -> bool {
    MEMBARRIER.load(Relaxed) == WORKS
}

/// Times the kernel refused a barrier that it had promised.
static BARRIERS_REFUSED: AtomicU64 = AtomicU64::new(0);

/// Makes every thread of the process pass a full barrier; false if the kernel refuses now what it
/// promised at the start. A seccomp filter does that, and may do so on some threads only.
///
/// Where there never was a `membarrier` light barriers are fences, and nothing is left to do.
#[must_use]
pub(crate) fn membarrier() -> bool {
    let done = !membarrier_works() || membarrier_call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    if !done {
        BARRIERS_REFUSED.fetch_add(1, Relaxed);
    }
    done
}

/// How often [`membarrier`] failed, on any thread of the process.
pub(crate) fn barriers_refused() -> u64 {
    BARRIERS_REFUSED.load(Relaxed)
}

pub(crate) const PAGE: usize = 4096;

/// Reserves `len` bytes of private memory, committed page by page on first touch.
pub(crate) fn map(len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()).expect("mmap returned null"))
}

/// Reserves `len` bytes aligned to `align`, a multiple of the page size, by reserving more and
/// giving back what hangs over.
pub(crate) fn map_aligned(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let raw = map(len + align)?;
    let lead = raw.as_ptr().align_offset(align);
    // SAFETY: `lead <= align`, so the result and its `len` bytes lie within the mapping.
    let start = unsafe { raw.add(lead) };
    // SAFETY: the part in front of `start`, which nobody has seen.
    unsafe { unmap(raw, lead) };
    // SAFETY: one past the part we keep.
    let end = unsafe { start.add(len) };
    // SAFETY: the part behind it, which nobody has seen.
    unsafe { unmap(end, align - lead) };
    Ok(start)
}

/// # Safety
/// Nothing uses these bytes any more.
pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: by the caller's promise.
        unsafe { libc::munmap(at.as_ptr().cast(), len) };
    }
}

/// What to tell the kernel about a range of memory.
#[derive(Clone, Copy)]
pub(crate) enum Advice {
    HugePages,
    NoHugePages,
    /// Drop the contents and the pages; the next touch finds zeros.
    GiveBack,
    /// Touching it raises SIGSEGV from now on, without a mapping of its own (Linux 6.13).
    InstallGuard,
}

/// # Safety
/// Nothing that lies in the range is needed any more, if the advice drops it.
pub(crate) unsafe fn advise(at: NonNull<u8>, len: usize, advice: Advice) -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let number = match advice {
        Advice::HugePages => libc::MADV_HUGEPAGE,
        Advice::NoHugePages => libc::MADV_NOHUGEPAGE,
        Advice::GiveBack => libc::MADV_DONTNEED,
        Advice::InstallGuard => MADV_GUARD_INSTALL,
    };
    // SAFETY: by the caller's promise.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, number) })
}

/// Whether any page of the range is in memory; true if that is not known.
pub(crate) fn is_resident(at: NonNull<u8>, len: usize) -> bool {
    const PAGES: usize = 256;
    let mut pages = [0u8; PAGES];
    (0..len).step_by(PAGES * PAGE).any(|offset| {
        let part = (len - offset).min(PAGES * PAGE);
        let start = at.as_ptr().wrapping_add(offset);
        // SAFETY: writes one byte a page into `pages`, which has room for as many; reads nothing.
        let known = unsafe { libc::mincore(start.cast(), part, pages.as_mut_ptr()) } == 0;
        !known
            || pages[..part.div_ceil(PAGE)]
                .iter()
                .any(|page| page & 1 != 0)
    })
}

/// Makes the range untouchable; it becomes a mapping of its own.
///
/// # Safety
/// Nothing uses the range.
pub(crate) unsafe fn forbid(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: by the caller's promise.
    check(unsafe { libc::mprotect(at.as_ptr().cast(), len, libc::PROT_NONE) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Where the loader finds a name behind the object that this code is in; null if nowhere.
#[inline(never)]
pub(crate) fn find_next(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: a string that ends; it is only looked for.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Writes to standard error without std's lock: used where a lock somebody holds must not stop us.
pub(crate) fn complain(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(n) {
            Ok(0) => return,
            Ok(written) => rest = &rest[written..],
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Joins a thread that has ended, destructors of its thread-locals included; the handle comes back
/// if it has not. [`JoinHandle::is_finished`] is true while those destructors run, which are the
/// users' and may wait for the caller, so a plain join after it could wait for ever.
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

/// Whether the calling thread is this one. Also right in destructors of thread-locals, where
/// [`std::thread::current`] may panic.
#[inline(never)]
pub(crate) fn is_own(thread: &JoinHandle<()>) -> bool {
    let name = thread.as_pthread_t() as libc::pthread_t; // another type with musl
    // SAFETY: takes nothing and cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: both are valid: the other thread is not joined.
    unsafe { libc::pthread_equal(own, name) != 0 }
}

/// Makes the calling thread give way to others: so many steps nicer than it was, as far as that goes.
/// What it starts inherits that.
pub(crate) fn be_nicer(steps: libc::c_int) {
    // SAFETY: takes a number only. On Linux this is the thread's own value, and more is always allowed.
    unsafe { libc::nice(steps) };
}

/// Lets the C library's allocator have an arena for each of so many threads, once per process,
/// unless the environment says how many there may be. By default 8 per CPU are shared by all
/// threads, and a fiber that is interrupted while it holds the lock of one makes all others that
/// share it wait.
pub(crate) fn allow_arenas(threads: usize) {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        let is_set = std::env::var_os("MALLOC_ARENA_MAX").is_some()
            || std::env::var("GLIBC_TUNABLES").is_ok_and(|all| all.contains("arena_max"));
        if !is_set {
            let most = threads.min(i32::MAX as usize) as i32;
            ONCE.call_once(|| {
                // SAFETY: takes two numbers, and locks the allocator for as long.
                unsafe { libc::mallopt(libc::M_ARENA_MAX, most) };
            });
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = threads;
}

/// How many mappings a process may have (`vm.max_map_count`).
pub(crate) fn max_mappings() -> usize {
    const KERNEL_DEFAULT: usize = 65_530;
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(KERNEL_DEFAULT)
}

/// Ends the process by SIGALRM after so many seconds, whatever it is doing then.
pub(crate) fn end_process_in(seconds: u32) {
    // SAFETY: reinstates the default action, which needs no code of ours.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
    // SAFETY: takes a number only.
    unsafe { libc::alarm(seconds) };
}
