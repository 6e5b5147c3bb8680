#![expect(unsafe_code, reason = "system calls")]
//! Memory mappings, and the limits on them.

use std::io;
use std::ptr::{self, NonNull};

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
/// unmapping the rest.
pub(crate) fn map_aligned(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let raw = map(len + align)?;
    let lead = raw.as_ptr().align_offset(align);
    // SAFETY: `lead <= align`, so the result and its `len` bytes lie within the mapping.
    let start = unsafe { raw.add(lead) };
    // SAFETY: the part in front of `start`, which no other code has seen.
    unsafe { unmap(raw, lead) };
    // SAFETY: one past the part we keep.
    let end = unsafe { start.add(len) };
    // SAFETY: the part behind it, which no other code has seen.
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

/// Advice to the kernel about a range of memory.
#[derive(Clone, Copy)]
pub(crate) enum Advice {
    HugePages,
    NoHugePages,
    /// Drops the contents and the pages; the next touch finds zeros.
    GiveBack,
    /// An access raises SIGSEGV from now on, without a mapping of its own (Linux 6.13).
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

/// Whether any page of the range is in memory; true if the kernel does not answer.
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

/// Makes the range inaccessible; it becomes a mapping of its own.
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

/// Lets the C library's allocator have an arena for each of `threads` threads, once per process,
/// unless the environment sets the limit.
///
/// By default all threads share 8 arenas per CPU, and a fiber that is interrupted while it holds
/// the lock of one blocks all others that share it.
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

/// Returns how many mappings a process may have (`vm.max_map_count`).
pub(crate) fn max_mappings() -> usize {
    const KERNEL_DEFAULT: usize = 65_530;
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(KERNEL_DEFAULT)
}
