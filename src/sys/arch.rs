#![expect(unsafe_code, reason = "single instructions")]
//! Code that depends on the architecture; so far there is one.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("indent runs on x86_64 only so far: add the three functions of src/sys/arch.rs");

/// Returns the caller's instruction, stack and frame pointers, all at one instruction. An unwinder
/// can find its callers from these.
#[inline(always)]
pub(crate) fn registers() -> [usize; 3] {
    let (code, stack, frame): (usize, usize, usize);
    // SAFETY: reads three registers.
    unsafe {
        std::arch::asm!(
            "lea {}, [rip]",
            "mov {}, rsp",
            "mov {}, rbp",
            out(reg) code, out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags),
        );
    }
    [code, stack, frame]
}

/// Stores the same three, and then the other registers that a function preserves for its callers.
#[inline(always)]
pub(crate) fn note_registers(place: &mut [usize; 8]) {
    // SAFETY: writes registers to the eight words of the array.
    unsafe {
        std::arch::asm!(
            "lea {code}, [rip]",
            "mov [{place}], {code}",
            "mov [{place} + 8], rsp",
            "mov [{place} + 16], rbp",
            "mov [{place} + 24], rbx",
            "mov [{place} + 32], r12",
            "mov [{place} + 40], r13",
            "mov [{place} + 48], r14",
            "mov [{place} + 56], r15",
            code = out(reg) _,
            place = in(reg) place,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the stack pointer of the caller.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let here: usize;
    // SAFETY: reads one register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    here
}

/// Returns the thread pointer of the calling thread; its thread-locals lie below. Not for code that
/// can switch to another thread.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let here: usize;
    // SAFETY: the first word of a thread's control block is its own address. Not `pure`: another
    // thread may execute the next one.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) here, options(nostack, preserves_flags, readonly));
    }
    here
}

/// Prefetches a cache line. Any address will do, even an invalid one.
#[inline(always)]
pub(crate) fn prefetch(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
}

/// Where a signal interrupted its thread.
pub(crate) struct At {
    pub(crate) code: usize,
    pub(crate) stack: usize,
    pub(crate) frame: usize,
    /// In a system call that slept: it will fail with `EINTR`, or restart.
    pub(crate) in_kernel: bool,
}

/// # Safety
/// `context` is the third argument of a running signal handler.
pub(crate) unsafe fn interrupted(context: *mut libc::c_void) -> At {
    // SAFETY: by the caller's promise.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let register = |name: libc::c_int| context.uc_mcontext.gregs[name as usize];
    let code = register(libc::REG_RIP) as usize;
    // SAFETY: the instruction that comes next is mapped.
    let in_kernel = unsafe { sleeps_at(code, register(libc::REG_RAX)) };
    At {
        code,
        stack: register(libc::REG_RSP) as usize,
        frame: register(libc::REG_RBP) as usize,
        in_kernel,
    }
}

/// Whether the thread is in a system call that waits: right behind it, and it failed with `EINTR`;
/// or right before it, to begin again (or for the first time: then it is soon inside).
///
/// # Safety
/// `code` is the address of the instruction that comes next.
unsafe fn sleeps_at(code: usize, result: i64) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const PAGE: usize = 4096;
    let is_call = |at: usize| {
        // On one page with the instruction that comes next.
        let there = at / PAGE == code / PAGE && (at + 1) / PAGE == code / PAGE;
        let bytes = std::ptr::with_exposed_provenance::<[u8; 2]>(at);
        // SAFETY: on a page that holds code.
        there && unsafe { bytes.read_unaligned() } == SYSCALL
    };
    is_call(code) || result == -i64::from(libc::EINTR) && is_call(code.wrapping_sub(2))
}
