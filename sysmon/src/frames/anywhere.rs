//! Judges a stack that was interrupted at an instruction, outside of any region (I35).
//!
//! Law of this file: it runs in signal handlers, as `walk` does.

use super::study;
use super::trace::TraceCache;
use super::verdict::InPlace;
use super::walk::{Climb, Climber, Registers, Stack};

/// Frames at most: each of them takes a microsecond.
const DEEP: usize = 128;

impl TraceCache {
    /// Whether an interrupted stack may be left where it stands and go on on another thread, as
    /// far as its code shows: if every frame up to the root lies in the executable, can be climbed
    /// from, is movable, is written in Rust, and belongs neither to the allocator nor to the
    /// runtime; and if the innermost function has nothing to do with the runtime or with addresses
    /// of thread-locals. False before there has been a survey.
    ///
    /// What the registers and words of the stack hold is not looked at here. As
    /// [`judge`](Self::judge) for the thread that owns the cache; for signal handlers too.
    ///
    /// ```
    /// use indent_sysmon::frames::{Registers, Stack, TraceCache};
    ///
    /// let words = [0usize; 16];
    /// let range = words.as_ptr_range();
    /// let range = range.start.addr()..range.end.addr();
    /// // SAFETY: the array outlives it, and is not written to.
    /// let stack = unsafe { Stack::new(range.clone()) };
    /// let start = Registers::interrupted(drop::<u8> as fn(u8) as usize, range.start, 0);
    /// assert!(!TraceCache::new().judge_anywhere(&start, &stack, range.end));
    /// ```
    pub fn judge_anywhere(&mut self, start: &Registers, stack: &Stack, root: usize) -> bool {
        let mut climber = Climber::new(start, stack, root);
        for number in 0..DEEP {
            let Some((site, in_place)) = study::find_in_place(&mut self.unwinder, climber.pc)
            else {
                return false;
            };
            let allowed = match in_place {
                InPlace::Never => false,
                InPlace::Waiting => number > 0,
                InPlace::Anywhere => true,
            };
            let Some(row) = site.row().filter(|_| allowed) else {
                return false;
            };
            match climber.climb(row) {
                Climb::Up => {}
                Climb::Root => return true,
                Climb::Broken => return false,
            }
        }
        false
    }
}
