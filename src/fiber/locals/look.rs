#![expect(unsafe_code, reason = "reads memory that is nobody's variable")]
//! The look: a second net for addresses of thread-locals.
//!
//! The frames of a parked fiber say whether it may move (`sysmon/src/frames`): they are read off the
//! machine code, and what the analysis does not see they do not say. So what a fiber has is searched
//! as well, for words that are addresses of thread-locals of the executable on its thread, or in the
//! thread's control block. If there is one, the fiber is bound at this park. The look binds more,
//! never less, and what it finds is reported under a name of its own.
//!
//! *What is searched*, at every byte, since a packed struct may have a word anywhere:
//! - the registers that functions preserve for their callers, which are noted on the stack
//!   (`switch::suspend`);
//! - the fiber's thread-locals, in place, before they are saved; but not those that are vouched for
//!   (`frames/lists/variables.txt`), whose address is known not to be kept.
//!
//! Not the stack (`SEARCH_STACKS` in `sched/mobility.rs`; below is why), and not the heap: an
//! address that is only there is not found.
//!
//! *When.* A search takes some ten nanoseconds for each kilobyte, so it is left out where there is
//! nothing to find: where the fiber's outermost function leads to no function that has the address
//! of a thread-local, not even between two instructions (`frames/verdict/near.rs`; calls through
//! pointers are not followed for this). This is asked once for a fiber and noted in its record; a
//! fiber that is apart from all addresses pays a comparison of a byte.
//!
//! *What is found by mistake.* A word need not be in use: frames have room that they do not write to,
//! where calls that have returned have left something. Optimized code mostly uses a thread-local
//! without its address in a register, so a word is left only by a function that gives the address to
//! another one; most of these bind the fiber by its frames. The frames of the runtime itself are on
//! every stack that parks, right where calls have been before, and do have such room. They keep no
//! address of a thread-local (`tests/frames.rs` reads their code), so of what is found in them only
//! registers count that they have saved for their callers, by their unwind rows. What is found by
//! mistake in other frames binds the fiber until it parks the next time. In an ordinary service that
//! were half of the parks, and in code without optimization more: so stacks are not searched.
//!
//! The scheduler's own registers would be found, as the first frames of a fiber save them: they are
//! cleared before a fiber begins (`switch::call_outermost`).
//!
//! *How.* Addresses in one area have the same upper bytes. The third and the fourth tell them best
//! from other pointers, and are compared at sixteen positions at once.
//!
//! Rejected: to search for addresses of the C library's thread-locals, too: it leaves them on every
//! stack, a frame of its own binds, and what it hands out is on a list. To search all stacks (see
//! above for the time), or aligned words only. To search only the frames of functions that have
//! addresses: their registers are saved further down, and a function that is not known to have one
//! is what the look is for.

use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};
use std::ops::Range;

use super::{Block, LAYOUT, Layout, Relaxed, WORD};

/// Positions that one vector covers.
const VECTOR: usize = size_of::<__m128i>();
/// Positions that are tested before a branch.
const STEP: usize = 4 * VECTOR;
/// Addresses with the same bytes from the third one on.
const PAGE: u32 = 16;

impl Block {
    /// Where the thread has its thread-locals and its control block. Any thread.
    fn area(&self) -> Option<(&'static Layout, Range<usize>)> {
        let thread = self.thread.load(Relaxed);
        let layout = LAYOUT.get()?.as_ref().ok().filter(|_| thread != 0)?;
        let [start, end] = [layout.area.start, layout.area.end];
        let area = thread.wrapping_add_signed(start)..thread.wrapping_add_signed(end);
        Some((layout, area))
    }

    /// What `judge` says of the first position, in a part of a stack, of an address of this
    /// thread's thread-locals of which it says anything.
    ///
    /// # Safety
    /// The memory is mapped, and no other thread writes to it meanwhile.
    pub(crate) unsafe fn find_on_stack<T>(
        &self,
        stack: Range<usize>,
        mut judge: impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let (_, area) = self.area()?;
        let mut from = stack.start;
        loop {
            // SAFETY: by the caller's promise.
            let found = unsafe { find(from..stack.end, &area) }?;
            let judged = judge(found);
            if judged.is_some() {
                return judged;
            }
            from = found + 1;
        }
    }

    /// The first position of such an address in the thread-locals of the fiber whose values are in
    /// the block, as a distance from the thread pointer. Own thread only.
    pub(crate) fn find_in_locals(&self) -> Option<isize> {
        let (layout, area) = self.area()?;
        let thread = self.thread.load(Relaxed);
        let (first, last) = (layout.searched.first()?, layout.searched.last()?);
        let end = thread.wrapping_add_signed(last.end);
        let mut from = thread.wrapping_add_signed(first.start);
        loop {
            // SAFETY: thread-locals of the calling thread, and what is between them.
            let found = unsafe { find(from..end, &area) }?;
            let offset = found.wrapping_sub(thread) as isize;
            if layout.searches(offset) {
                return Some(offset);
            }
            from = found + 1;
        }
    }
}

/// The first position in memory, at any byte, of a word that is an address in the area.
///
/// # Safety
/// The memory is mapped, and no other thread writes to it meanwhile.
#[inline(never)]
pub(super) unsafe fn find(memory: Range<usize>, area: &Range<usize>) -> Option<usize> {
    if memory.len() < WORD || area.is_empty() {
        return None;
    }
    let memory = memory.start..memory.end - (WORD - 1); // where a word may begin
    let pages = area.start >> PAGE..=(area.end - 1) >> PAGE;
    // One, rarely two.
    pages
        .filter_map(|page| {
            // SAFETY: by the caller's promise.
            unsafe { find_in_page(memory.clone(), page, area) }
        })
        .min()
}

/// The first position of an address in this page of the area.
///
/// # Safety
/// As for `find`, with `WORD - 1` bytes behind the memory.
#[inline]
#[target_feature(enable = "sse2")] // which every x86-64 has
unsafe fn find_in_page(memory: Range<usize>, page: usize, area: &Range<usize>) -> Option<usize> {
    // The bytes of a pointer into a page that differ most from those of other pointers.
    let (third, fourth) = (page as i8, (page >> 8) as i8);
    let bytes = (_mm_set1_epi8(third), _mm_set1_epi8(fourth));
    let mut at = memory.start;
    while at + STEP <= memory.end {
        // SAFETY: by the caller's promise.
        let part = |n: usize| unsafe { fits(at + n * VECTOR, bytes) };
        let (first, last) = (
            _mm_or_si128(part(0), part(1)),
            _mm_or_si128(part(2), part(3)),
        );
        let some = any(_mm_or_si128(first, last));
        if some {
            // SAFETY: by the caller's promise.
            let found = unsafe { find_slowly(at..at + STEP, area) };
            if found.is_some() {
                return found;
            }
        }
        at += STEP;
    }
    while at < memory.end {
        // The last vector begins earlier, if there is room.
        let last = memory.end.saturating_sub(VECTOR).max(memory.start);
        let vector = at.min(last);
        let whole = vector + VECTOR <= memory.end;
        // SAFETY: by the caller's promise.
        if !whole || any(unsafe { fits(vector, bytes) }) {
            // SAFETY: as above.
            let found = unsafe { find_slowly(vector..memory.end.min(vector + VECTOR), area) };
            if found.is_some() {
                return found;
            }
        }
        at += VECTOR;
    }
    None
}

/// Of each of the next positions, whether the third and fourth byte of the word there are these.
///
/// # Safety
/// The words of all positions may be read.
#[inline]
#[target_feature(enable = "sse2")]
unsafe fn fits(at: usize, bytes: (__m128i, __m128i)) -> __m128i {
    // SAFETY: by the caller's promise.
    let third = unsafe { load(at + 2) };
    // SAFETY: as above.
    let fourth = unsafe { load(at + 3) };
    _mm_and_si128(
        _mm_cmpeq_epi8(third, bytes.0),
        _mm_cmpeq_epi8(fourth, bytes.1),
    )
}

#[inline]
#[target_feature(enable = "sse2")]
fn any(fits: __m128i) -> bool {
    _mm_movemask_epi8(fits) != 0
}

/// Position by position.
///
/// # Safety
/// As for `find`.
#[cold]
#[inline(never)]
unsafe fn find_slowly(memory: Range<usize>, area: &Range<usize>) -> Option<usize> {
    let mut positions = memory;
    // SAFETY: by the caller's promise.
    positions.find(|&at| area.contains(&unsafe { word(at) }))
}

/// By an instruction of its own: what lies there are no variables of ours, and some of it was
/// never written.
///
/// # Safety
/// The bytes may be read.
#[inline(always)]
unsafe fn load(at: usize) -> __m128i {
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
/// As for `load`.
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

    fn found(bytes: &[u8], area: Range<usize>) -> Option<usize> {
        let start = bytes.as_ptr().expose_provenance();
        // SAFETY: the slice is there, and nothing writes to it.
        let found = unsafe { find(start..start + bytes.len(), &area) };
        found.map(|at| at - start)
    }

    #[test]
    fn a_word_is_found_at_every_byte_of_memory_of_any_length() {
        let area = 0x7f12_3456_7000..0x7f12_3456_8900;
        for length in 0..300 {
            let mut bytes = vec![0x34_u8; length];
            assert_eq!(found(&bytes, area.clone()), None);
            for at in 0..length.saturating_sub(WORD - 1) {
                bytes.fill(0x34);
                bytes[at..at + WORD].copy_from_slice(&0x7f12_3456_8123_usize.to_le_bytes());
                assert_eq!(found(&bytes, area.clone()), Some(at), "of {length}");
            }
        }
    }

    #[test]
    fn only_words_in_the_area_are_found_whatever_pages_it_has() {
        let start = 0x7f12_3456_f000_usize;
        for size in [1, 0x900, 0x1000, 0x2000, 0x1_5000, 0x3_0000] {
            let area = start..start + size;
            let is_found = |word: usize| {
                let mut bytes = [0xa5_u8; 133];
                bytes[77..77 + WORD].copy_from_slice(&word.to_le_bytes());
                found(&bytes, area.clone()) == Some(77)
            };
            for inside in [0, size / 2, size - 1] {
                assert!(is_found(start + inside), "{inside:#x} of {size:#x}");
            }
            let outside = [start - 1, start + size, start ^ 1 << 40, 0, usize::MAX];
            assert!(!outside.into_iter().any(is_found), "of {size:#x}");
        }
    }

    #[test]
    fn the_first_of_several_is_found_though_it_is_of_another_page() {
        let area = 0x7f12_3456_f000..0x7f12_3457_1000_usize;
        let mut bytes = [0_u8; 64];
        bytes[3..11].copy_from_slice(&0x7f12_3457_0001_usize.to_le_bytes());
        bytes[40..48].copy_from_slice(&0x7f12_3456_f001_usize.to_le_bytes());
        assert_eq!(found(&bytes, area), Some(3));
    }
}
