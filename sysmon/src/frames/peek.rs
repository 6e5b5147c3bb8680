#![expect(unsafe_code, reason = "reads memory that is nobody's variable")]
//! Reads a word at any address: on stacks, between constants.
//!
//! It uses an instruction of its own and not a load that the compiler sees: the words there are not
//! variables of ours, and AddressSanitizer reports the gaps it leaves between variables as errors.

/// Reads the word at an address, aligned or not.
///
/// # Safety
/// All of it is mapped and readable, and nothing writes to it meanwhile.
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
