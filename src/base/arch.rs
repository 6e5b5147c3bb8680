#![expect(unsafe_code, reason = "single instructions")]
//! What differs between architectures; so far there is one.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("indent runs on x86_64 only so far: add the two functions of src/base/arch.rs");

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
