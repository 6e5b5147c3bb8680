#![expect(unsafe_code, reason = "reads any memory, sixteen bytes at a time")]
//! Searches memory for addresses, at every byte offset.
//!
//! An address in a packed structure lies at an odd offset, and two halves of a vector register hold
//! two of them. So every eight bytes are checked, wherever they begin. That is fast because all
//! addresses of a thread's memory have nearly the same upper bytes: three comparisons of sixteen
//! bytes rule out nearly all of sixteen places.
//!
//! Runs in signal handlers: no allocation, no lock, no panic.

use std::arch::x86_64::{__m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};
use std::ops::Range;

const WORD: usize = size_of::<usize>();
/// Bits of an address below the bytes that are compared.
const LOW: u32 = 24;
/// The most different upper bytes that the addresses in one range may have.
const MOST: usize = 8;

/// Finds the first place in `memory` with eight bytes that are an address in `within`. If that
/// range is too large for a search, every place counts.
///
/// # Safety
/// The memory is mapped and readable, and no other thread writes to it meanwhile.
#[inline(never)]
pub(crate) unsafe fn find(memory: &Range<usize>, within: &Range<usize>) -> Option<usize> {
    if within.is_empty() || memory.len() < WORD {
        return None;
    }
    let tops = within.start >> LOW..=(within.end - 1) >> LOW;
    if tops.end() - tops.start() >= MOST {
        return Some(memory.start);
    }
    // SAFETY: by the caller's promise.
    tops.filter_map(|top| unsafe { find_top(memory, within, top) })
        .min()
}

/// Finds the first address with these upper bytes.
///
/// # Safety
/// As for `find`; there are eight bytes at least.
#[target_feature(enable = "sse2")] // which all x86_64 processors have
unsafe fn find_top(memory: &Range<usize>, within: &Range<usize>, top: usize) -> Option<usize> {
    const WIDE: usize = size_of::<__m128i>();
    // SAFETY: by the caller's promise: every `at` has eight bytes of the memory before it ends.
    let is_there = |at: usize| within.contains(&unsafe { word(at) });
    let byte = |shift: u32| _mm_set1_epi8((top >> shift) as u8 as i8);
    let wanted = [byte(0), byte(8), byte(16)];
    let last = memory.end - WORD; // the last place where eight bytes begin
    let mut at = memory.start;
    // Places `at` to `at + 15`; their bytes 3 to 5 end at `at + 21`.
    while at + WIDE + 5 <= memory.end && at + WIDE - 1 <= last {
        let equal = |which: usize| {
            // SAFETY: by the loop's condition all sixteen bytes are inside.
            _mm_cmpeq_epi8(unsafe { vector(at + 3 + which) }, wanted[which])
        };
        let all = _mm_and_si128(_mm_and_si128(equal(0), equal(1)), equal(2));
        let mut places = _mm_movemask_epi8(all) as u32;
        while places != 0 {
            let place = at + places.trailing_zeros() as usize;
            if is_there(place) {
                return Some(place);
            }
            places &= places - 1;
        }
        at += WIDE;
    }
    (at..=last).find(|&at| is_there(at))
}

/// Reads with an instruction: the bytes belong to no variable of this code, and some of them were
/// never written.
///
/// # Safety
/// The bytes may be read.
#[inline(always)]
unsafe fn vector(at: usize) -> __m128i {
    let bytes: __m128i;
    // SAFETY: by the caller's promise; reads memory and changes nothing.
    unsafe {
        std::arch::asm!(
            "movdqu {bytes}, [{at}]",
            bytes = lateout(xmm_reg) bytes,
            at = in(reg) at,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    bytes
}

/// # Safety
/// As for `vector`.
#[inline(always)]
unsafe fn word(at: usize) -> usize {
    let word: usize;
    // SAFETY: by the caller's promise; reads memory and changes nothing.
    unsafe {
        std::arch::asm!(
            "mov {word}, [{at}]",
            word = lateout(reg) word,
            at = in(reg) at,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    word
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn found_in(bytes: &[u8], within: &Range<usize>) -> Option<usize> {
        let range = bytes.as_ptr_range();
        let memory = range.start.expose_provenance()..range.end.addr();
        // SAFETY: a slice.
        let found = unsafe { find(&memory, within) };
        found.map(|at| at - memory.start)
    }

    fn finds_in(bytes: &[u8], within: &Range<usize>) -> bool {
        found_in(bytes, within).is_some()
    }

    #[test]
    fn the_first_of_several_is_found_whatever_their_upper_bytes() {
        let within = 0x7f12_34ff_f000..0x7f12_3500_1000;
        let mut bytes = [0_u8; 64];
        bytes[3..11].copy_from_slice(&0x7f12_3500_0001_usize.to_le_bytes());
        bytes[40..48].copy_from_slice(&0x7f12_34ff_f001_usize.to_le_bytes());
        assert_eq!(found_in(&bytes, &within), Some(3));
    }

    #[test]
    fn an_address_is_found_wherever_it_begins_and_ends() {
        let within = 0x7f12_34ff_f000..0x7f12_3500_1000; // the upper bytes differ
        let addresses = [
            within.start,
            0x7f12_34ff_ffff,
            0x7f12_3500_0000,
            within.end - 1,
        ];
        for length in [8, 9, 20, 21, 22, 23, 24, 31, 40, 100, 333] {
            let mut bytes = vec![0; length];
            assert!(!finds_in(&bytes, &within));
            for at in 0..=length - WORD {
                for address in addresses {
                    bytes[at..at + WORD].copy_from_slice(&address.to_le_bytes());
                    assert!(finds_in(&bytes, &within), "{address:x} at {at} of {length}");
                    for wrong in [within.start - 1, within.end, address | 1 << 48] {
                        bytes[at..at + WORD].copy_from_slice(&wrong.to_le_bytes());
                        assert!(!finds_in(&bytes, &within), "{wrong:x} at {at} of {length}");
                    }
                }
                bytes[at..at + WORD].fill(0);
            }
        }
    }

    #[test]
    fn what_is_too_short_has_none_and_what_is_too_large_counts_as_found() {
        assert!(!finds_in(&[0x7f; 7], &(0..usize::MAX)));
        assert!(finds_in(&[0x7f; 8], &(0..usize::MAX)));
        assert!(!finds_in(&[0x7f; 64], &(5..5)));
    }
}
