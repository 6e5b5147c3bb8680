//! Which frame of a stack has a word, and whether it matters there.

use super::sites::sites;
use super::study;
use super::trace::TraceCache;
use super::verdict::Nearness;
use super::walk::{Climb, Climber, FRAMES, Registers, Stack};

/// What has a word of a stack; see [`TraceCache::holder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The frame that stands at this place in the code, or one of its callers: it has saved a
    /// register there.
    Frame(usize),
    /// A frame of the runtime, which has something of its own there, or something that was left by
    /// a call that has returned.
    Runtime,
    /// It cannot be told.
    Unknown,
}

impl TraceCache {
    /// What has the word at a position of a suspended stack whose frames are all movable.
    ///
    /// Functions of the runtime are known not to keep the address of a thread-local while their
    /// stack is suspended. What matters in a frame of theirs are registers of its callers.
    ///
    /// ```
    /// use indent_sysmon::frames::{Holder, Registers, Stack, TraceCache};
    ///
    /// let words = [0usize; 16];
    /// let range = words.as_ptr_range();
    /// let range = range.start.addr()..range.end.addr();
    /// // SAFETY: the array outlives it, and is not written to.
    /// let stack = unsafe { Stack::new(range.clone()) };
    /// let start = Registers::after_call(drop::<u8> as fn(u8) as usize + 1, range.start, 0);
    /// let holder = TraceCache::new().holder(&start, &stack, range.end, range.start);
    /// assert_eq!(holder, Holder::Unknown); // there has been no survey
    /// ```
    pub fn holder(
        &mut self,
        start: &Registers,
        stack: &Stack,
        root: usize,
        position: usize,
    ) -> Holder {
        self.find_holder(start, stack, root, position)
            .unwrap_or(Holder::Unknown)
    }

    fn find_holder(
        &mut self,
        start: &Registers,
        stack: &Stack,
        root: usize,
        position: usize,
    ) -> Option<Holder> {
        let (judge, executable) = (study::judge()?, study::executable()?);
        let mut climber = Climber::new(start, stack, root);
        for _ in 0..FRAMES {
            let (place, sp) = (climber.pc, climber.sp);
            let site = sites().get(place);
            let site = site.or_else(|| study::find_now(&mut self.unwinder, place))?;
            let cfa = match climber.climb(site.row()?) {
                Climb::Up => climber.sp,
                Climb::Root => root,
                Climb::Broken => return None,
            };
            if position >= cfa {
                continue;
            }
            // Below the stack pointer is what an interruption has saved.
            let matters = position < sp
                || judge.nearness(place) != Nearness::Within
                || self.unwinder.has_saved(executable, place, cfa - position);
            return Some(match matters {
                true => Holder::Frame(place),
                false => Holder::Runtime,
            });
        }
        None
    }
}
