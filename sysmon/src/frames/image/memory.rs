#![expect(unsafe_code, reason = "reads what the loader mapped")]
//! Reads an object as it is mapped.
//!
//! **Stays mapped.** Only objects that are never unloaded are read: the executable, and the object
//! that holds this very code. So what the loader says is mapped can be read at any time.
//!
//! Memory is *constant* if it never changes once the loader is done: read-only segments, and the
//! part of the writable one that is protected after relocation. An object linked without that
//! protection has its tables among its variables; then all of those count as constant. They are
//! read one word at a time and volatile, so a word that does change is at worst an old one.

use std::ops::Range;

use crate::frames::peek;

/// What a part of the memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Constant,
    Variable,
}

#[derive(Clone, Debug)]
struct Part {
    range: Range<usize>,
    kind: Kind,
    /// Mapped read-only by the loader: may be borrowed.
    frozen: bool,
}

/// The parts of one object. Where two overlap, the one added last counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    parts: Vec<Part>,
}

impl Memory {
    /// Adds a part.
    ///
    /// # Safety
    /// The range is mapped, readable, and stays so; if `frozen`, no code ever writes to it.
    pub(crate) unsafe fn add(&mut self, range: Range<usize>, kind: Kind, frozen: bool) {
        self.parts.push(Part {
            range,
            kind,
            frozen,
        });
    }

    /// Gives another kind to the known parts of a range.
    pub(crate) fn rename(&mut self, range: Range<usize>, kind: Kind) {
        let common = self.parts.iter().filter_map(|part| {
            let start = part.range.start.max(range.start);
            let end = part.range.end.min(range.end);
            (start < end).then_some(Part {
                range: start..end,
                kind,
                frozen: part.frozen,
            })
        });
        let common: Vec<Part> = common.collect();
        self.parts.extend(common);
    }

    /// Finds the part around an address. A plain loop, which is fast in builds without
    /// optimization.
    fn part(&self, address: usize) -> Option<&Part> {
        let parts = self.parts.as_slice();
        let mut index = parts.len();
        while index > 0 {
            index -= 1;
            let part = &parts[index];
            if part.range.start <= address && address < part.range.end {
                return Some(part);
            }
        }
        None
    }

    pub(crate) fn kind(&self, address: usize) -> Option<Kind> {
        Some(self.part(address)?.kind)
    }

    /// Whether this address was never written, not even by the loader.
    pub(crate) fn is_frozen(&self, address: usize) -> bool {
        self.part(address).is_some_and(|part| part.frozen)
    }

    /// Borrows memory that is mapped read-only. The result has as much of the range as one part
    /// has.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Option<&'static [u8]> {
        let parts = self.parts.as_slice();
        let mut index = 0;
        while index < parts.len() {
            let part = &parts[index];
            if part.frozen && part.range.start <= range.start && range.start < part.range.end {
                break;
            }
            index += 1;
        }
        let part = parts.get(index)?;
        let length = range.end.min(part.range.end).checked_sub(range.start)?;
        // SAFETY: by the promise of `add`: mapped for ever, and never written.
        Some(unsafe { std::slice::from_raw_parts(range.start as *const u8, length) })
    }

    /// The eight bytes at an address, aligned or not.
    pub(crate) fn word(&self, address: usize) -> Option<usize> {
        let last = address.checked_add(size_of::<usize>() - 1)?;
        if last >= self.part(address)?.range.end && self.part(last).is_none() {
            return None;
        }
        // SAFETY: by the promise of `add`, first and last byte are mapped, and parts are larger
        // than a word.
        Some(unsafe { peek::word(address) })
    }

    /// The four bytes at a read-only address, as a signed number.
    pub(crate) fn half(&self, address: usize) -> Option<i32> {
        if !self.is_frozen(address) {
            return None;
        }
        match self.word(address) {
            Some(word) => Some(word as i32),
            None => Some((self.word(address.checked_sub(4)?)? >> 32) as i32), // the last four bytes
        }
    }

    /// All parts of a kind, in the order of their addresses. Later kinds cut earlier ones short.
    pub(crate) fn ranges(&self, kind: Kind) -> Vec<Range<usize>> {
        let mut edges: Vec<usize> = self
            .parts
            .iter()
            .flat_map(|p| [p.range.start, p.range.end])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for pair in edges.windows(2) {
            if self.kind(pair[0]) != Some(kind) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == pair[0] => last.end = pair[1],
                _ => ranges.push(pair[0]..pair[1]),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> (Memory, usize) {
        let bytes: &'static [u64; 8] = Box::leak(Box::new([1, 2, 3, 4, 5, 6, 7, 8]));
        let start = bytes.as_ptr() as usize;
        let mut memory = Memory::default();
        // SAFETY: leaked, and never written.
        unsafe { memory.add(start..start + 64, Kind::Text, true) };
        memory.rename(start + 16..start + 32, Kind::Constant);
        (memory, start)
    }

    #[test]
    fn a_part_can_have_a_name_of_its_own() {
        let (memory, start) = page();
        assert_eq!(memory.kind(start), Some(Kind::Text));
        assert_eq!(memory.kind(start + 16), Some(Kind::Constant));
        assert_eq!(memory.kind(start + 64), None);
        let text = memory.ranges(Kind::Text);
        assert_eq!(text, [start..start + 16, start + 32..start + 64]);
    }

    /// Linkers round the end of what is protected up to a page.
    #[test]
    fn a_name_may_reach_beyond_what_is_known() {
        let (mut memory, start) = page();
        memory.rename(start + 48..start + 4096, Kind::Variable);
        assert_eq!(memory.kind(start + 40), Some(Kind::Text));
        assert_eq!(memory.kind(start + 56), Some(Kind::Variable));
        assert_eq!(memory.kind(start + 64), None);
    }

    #[test]
    fn words_are_read_up_to_the_last_one() {
        let (memory, start) = page();
        assert_eq!(memory.word(start + 8), Some(2));
        assert_eq!(memory.word(start + 56), Some(8));
        assert_eq!(memory.word(start + 57), None);
        assert_eq!(
            memory.bytes(start + 60..start + 99).map(<[u8]>::len),
            Some(4)
        );
    }
}
