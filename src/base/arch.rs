#![expect(unsafe_code, reason = "single instructions")]
//! What differs between architectures; so far there is one.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("indent runs on x86_64 only so far: add the three functions of src/base/arch.rs");

/// Where the caller is in its code, its stack pointer and its frame pointer, all at one instruction:
/// from these its callers can be found.
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

/// The stack pointer of the caller.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let here: usize;
    // SAFETY: reads one register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    here
}

/// Asks for a cache line that will be needed soon. Any address will do, even an invalid one.
#[inline(always)]
pub(crate) fn prefetch(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
}
