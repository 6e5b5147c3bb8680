#![expect(unsafe_code, reason = "reads memory that is nobody's variable")]
//! Reads a word wherever it is: on stacks, between constants.
//!
//! By an instruction of its own and not by a load the compiler knows of: what lies there are no
//! variables of ours, and AddressSanitizer takes the gaps it leaves between variables for errors.

/// The word at an address, aligned or not.
///
/// # Safety
/// All of it is mapped and readable, and nobody writes to it meanwhile.
#[inline(always)]
pub(crate) unsafe fn word(address: usize) -> usize {
    let word: usize;
    // SAFETY: by the caller's promise; reads memory and changes nothing.
    unsafe {
        std::arch::asm!(
            "mov {word}, [{address}]",
            word = lateout(reg) word,
            address = in(reg) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    word
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_word_need_not_be_aligned() {
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8, 9];
        let address = bytes.as_ptr().addr() + 1;
        // SAFETY: the last eight of nine.
        let word = unsafe { super::word(address) };
        assert_eq!(word, 0x0908_0706_0504_0302);
    }
}
