#![expect(unsafe_code, reason = "reads memory that is no variable of ours")]
//! The address scan: a second check for addresses of thread-locals in a parked fiber.
//!
//! Whether a parked fiber may move is read off its frames' machine code (`sysmon/src/frames`). To
//! catch what that analysis overlooks, what the fiber has is scanned as well, for words that are
//! addresses of thread-locals of the executable on its thread, or addresses in the thread's control
//! block. If there is one, the fiber is bound at this park. The scan binds more, never less, and
//! what it finds is reported under a name of its own.
//!
//! *What is scanned*, at every byte, since a packed struct may have a word anywhere:
//! - the registers that functions preserve for their callers, which are stored on the stack
//!   (`switch::suspend`);
//! - the fiber's thread-locals, in place, before they are saved; but not those on a list
//!   (`frames/lists/variables.txt`), whose address is known not to be kept.
//!
//! Neither the stack nor the heap: an address that is only there is not found.
//!
//! *When.* A scan takes some ten nanoseconds for each kilobyte, so it is left out where there is
//! nothing to find: where the fiber's outermost function leads to no function that has the address
//! of a thread-local, not even between two instructions (`frames/verdict/near.rs`; calls through
//! pointers are not followed for this). This is looked up once for a fiber and stored in its
//! record; a fiber without a path to such addresses pays a comparison of a byte. Otherwise the scan
//! costs less than the copy of the same thread-locals when the fiber leaves.
//!
//! The scheduler's own registers would be found, as the first frames of a fiber save them: they are
//! cleared before a fiber begins (`switch::call_outermost`).
//!
//! Rejected: to scan stacks. A word there need not be in use: frames have room that they do not
//! write to, where calls that have returned have left values. In an ordinary service such words
//! bound half of the parks, and in code without optimization more. To scan for addresses of the C
//! library's thread-locals: it leaves them everywhere, a frame of its own binds, and what it hands
//! out is on a list. To scan aligned words only: a packed struct may have one anywhere.

use std::ops::Range;

use super::{Block, LAYOUT, Layout, Relaxed};
use crate::util::search;

impl Block {
    /// The memory of the thread's thread-locals and its control block. Any thread may call this.
    fn area(&self) -> Option<(&'static Layout, Range<usize>)> {
        let thread = self.thread.load(Relaxed);
        let layout = LAYOUT.get()?.as_ref().ok().filter(|_| thread != 0)?;
        let [start, end] = [layout.area.start, layout.area.end];
        let area = thread.wrapping_add_signed(start)..thread.wrapping_add_signed(end);
        Some((layout, area))
    }

    /// Whether there is an address of a thread-local in some memory.
    ///
    /// # Safety
    /// The memory is mapped, and no other thread writes to it meanwhile.
    pub(crate) unsafe fn has_address_in(&self, memory: Range<usize>) -> bool {
        let found = self
            .area()
            // SAFETY: by the caller's promise.
            .and_then(|(_, area)| unsafe { search::find(&memory, &area) });
        found.is_some()
    }

    /// Finds the first such address in the thread-locals of the fiber whose values are in
    /// the block, as a distance from the thread pointer. The calling thread holds the fiber (I1).
    pub(crate) fn find_in_locals(&self) -> Option<isize> {
        let (layout, area) = self.area()?;
        let thread = self.thread.load(Relaxed);
        let (first, last) = (layout.searched.first()?, layout.searched.last()?);
        let end = thread.wrapping_add_signed(last.end);
        let mut from = thread.wrapping_add_signed(first.start);
        loop {
            // SAFETY: thread-locals of a thread that does not end meanwhile, and what is between
            // them. Only the fiber writes to those that matter.
            let found = unsafe { search::find(&(from..end), &area) }?;
            let offset = found.wrapping_sub(thread) as isize;
            if layout.searches(offset) {
                return Some(offset);
            }
            from = found + 1;
        }
    }
}
