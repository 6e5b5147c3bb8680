#![expect(unsafe_code, reason = "reads any memory, sixteen bytes at a time")]
//! Looks for addresses in memory, at every byte offset.
//!
//! An address of a packed structure lies at an odd offset, and two halves of a vector register hold
//! two of them. So every eight bytes are looked at, wherever they begin. That is fast because all
//! addresses of a thread's memory have nearly the same upper bytes: three comparisons of sixteen
//! bytes rule out nearly all of sixteen places.
//!
//! Runs in signal handlers: no allocation, no lock, no panic.

use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};
use std::ops::Range;

const WORD: usize = size_of::<usize>();
/// Bits of an address below the bytes that are compared.
const LOW: u32 = 24;
/// Different upper bytes at most that addresses in one range may have.
const MOST: usize = 8;

/// Whether some eight bytes of `memory` are an address in `within`. True also if the range is too
/// large to be looked for.
///
/// # Safety
/// The memory is mapped and readable, and only the calling thread writes to it.
pub(crate) unsafe fn finds(memory: &Range<usize>, within: &Range<usize>) -> bool {
    if within.is_empty() || memory.len() < WORD {
        return false;
    }
    let tops = within.start >> LOW..=(within.end - 1) >> LOW;
    if tops.end() - tops.start() >= MOST {
        return true;
    }
    // SAFETY: by the caller's promise.
    tops.into_iter()
        .any(|top| unsafe { finds_top(memory, within, top) })
}

/// The same for addresses with these upper bytes.
///
/// # Safety
/// As for `finds`; there are eight bytes at least.
#[target_feature(enable = "sse2")] // which all processors of this kind have
unsafe fn finds_top(memory: &Range<usize>, within: &Range<usize>, top: usize) -> bool {
    const WIDE: usize = size_of::<__m128i>();
    let is_there = |at: usize| {
        let word = std::ptr::with_exposed_provenance::<usize>(at);
        // SAFETY: by the caller's promise: every `at` has eight bytes of the memory before it ends.
        within.contains(&unsafe { word.read_unaligned() })
    };
    let byte = |shift: u32| _mm_set1_epi8((top >> shift) as u8 as i8);
    let wanted = [byte(0), byte(8), byte(16)];
    let last = memory.end - WORD; // the last place where eight bytes begin
    let mut at = memory.start;
    // Places `at` to `at + 15`; their bytes 3 to 5 end at `at + 21`.
    while at + WIDE + 5 <= memory.end && at + WIDE - 1 <= last {
        let equal = |which: usize| {
            let bytes = std::ptr::with_exposed_provenance::<__m128i>(at + 3 + which);
            // SAFETY: by the loop's condition all sixteen bytes are inside.
            _mm_cmpeq_epi8(unsafe { _mm_loadu_si128(bytes) }, wanted[which])
        };
        let all = _mm_and_si128(_mm_and_si128(equal(0), equal(1)), equal(2));
        let mut places = _mm_movemask_epi8(all) as u32;
        while places != 0 {
            if is_there(at + places.trailing_zeros() as usize) {
                return true;
            }
            places &= places - 1;
        }
        at += WIDE;
    }
    (at..=last).any(is_there)
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::*;

    fn finds_in(bytes: &[u8], within: &Range<usize>) -> bool {
        let range = bytes.as_ptr_range();
        let memory = range.start.expose_provenance()..range.end.addr();
        // SAFETY: a slice.
        unsafe { finds(&memory, within) }
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
