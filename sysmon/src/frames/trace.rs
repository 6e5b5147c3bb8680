#![expect(unsafe_code, reason = "compares words of a suspended stack")]
//! Remembers walks: a stack suspended again at the same place is judged by comparing words.
//!
//! A [`Trace`] is one finished walk: which words of the stack it depended on, where they were
//! (counted from the starting stack pointer), and what they were. Judging the next stack by it is a
//! handful of loads and comparisons, without a search in the map of sites.
//!
//! Claim: if a stack starts at the same instruction, as far below its root, and each recorded word
//! is as recorded, then a walk of it meets the same places and comes to the same judgement.
//!
//! Proof. Positions are counted from the starting stack pointer; the words themselves are return
//! addresses (compared as they are) and values of `rbp` (compared as positions). By induction over
//! the frames: frame i of both walks has the same place in the code, the same position, and an
//! `rbp` from the same source (the start, or the slot at some position). For i = 0 this is the key.
//! Let it hold for i.
//! - T1. The same place has the same site, for ever (`sites`, V1).
//! - T2. If its row counts from `rsp`, the CFA has the same position, which the place alone
//!   decides. If it counts from `rbp`, the source of that `rbp` is recorded with the position it
//!   gave, and it gives the same now; so the CFA has the same position too.
//! - T3. The return address of frame i is right below the CFA, is recorded and is the same: so is
//!   the place of frame i + 1. Its position is the CFA's. Its `rbp` has the same source, as the row
//!   says.
//! - T4. The walk is at the root if the CFA's position is that of the root, which the key has.
//!
//! So all places are the same, and the stack is movable if all of them are. A walk that stopped at
//! a frame that is bound is a trace as well: its words are those up to that frame. All the checks a
//! walk makes depend on positions alone, except that of the stack's bounds: they are compared as a
//! whole, since no word is outside of start and root. ∎
//!
//! Not remembered: walks that were not finished, places too far from the start for a [`Word`], more
//! than [`DEPTH`] return addresses.

use super::rows::{Base, Unwinder, WORD};
use super::sites::{Site, Sites, sites};
use super::verdict::Nearness;
use super::walk::{BpFrom, Climb, Climber, End, FRAMES, Judgement, Registers, Stack};
use super::{Mobility, study};

/// Maximum number of return addresses of a trace.
const DEPTH: usize = 24;

/// Maximum number of `rbp` values of a trace, beside the starting one.
///
/// Where the compiler keeps frame pointers, each frame has its own.
const BASES: usize = DEPTH;

/// Maximum number of frames inside a region; up to as many again around it are looked at.
const DEEP: usize = 128;

/// Number of traces of one cache, and of one of its sets.
///
/// Stacks that start at the same place, equally deep, and differ further up are in one set. All
/// waiting stacks wait at a few places.
const TRACES: usize = 64;
const WAYS: usize = 4;
const SETS: usize = TRACES / WAYS;

/// Marks a trace for which the starting `rbp` does not matter.
const ANY: u32 = u32::MAX;

/// A recorded word of the stack.
#[derive(Clone, Copy)]
struct Word {
    /// Position of the word.
    at: u32,
    /// Expected value: a return address counted from the starting one, or a position.
    want: u32,
}

const NO_WORD: Word = Word { at: 0, want: 0 };

/// One remembered walk.
#[derive(Clone, Copy)]
struct Trace {
    /// Place in the code where it starts; 0: nothing is remembered here.
    pc: usize,
    /// Result of the walk.
    end: End,
    /// Position of the root.
    root: u32,
    /// Position that the starting `rbp` points to, or [`ANY`].
    bp: u32,
    depth: u8,
    bases: u8,
    /// The slots of return addresses; the first `depth` count.
    returns: [Word; DEPTH],
    /// The slots of `rbp`; the first `bases` count.
    saved: [Word; BASES],
}

impl Trace {
    const NONE: Trace = Trace {
        pc: 0,
        end: End::Bound { address: 0 },
        root: 0,
        bp: ANY,
        depth: 0,
        bases: 0,
        returns: [NO_WORD; DEPTH],
        saved: [NO_WORD; BASES],
    };

    /// Whether a walk from here is the one remembered. The root is inside the stack.
    #[inline]
    fn fits(&self, start: &Registers, stack: &Stack, root: u32) -> bool {
        let same_key = self.pc == start.pc && self.root == root;
        let bp = start.bp.wrapping_sub(start.sp);
        same_key
            && (self.bp == ANY || self.bp as usize == bp)
            && self.returns_fit(start, stack)
            && self.saved_fit(start, stack)
    }

    #[inline]
    fn returns_fit(&self, start: &Registers, stack: &Stack) -> bool {
        let fits = |word: &Word| {
            let want = start.pc.wrapping_add_signed(word.want as i32 as isize);
            self.word(start, stack, word.at) == want
        };
        let count = usize::from(self.depth).min(DEPTH);
        self.returns[..count].iter().all(fits)
    }

    #[inline]
    fn saved_fit(&self, start: &Registers, stack: &Stack) -> bool {
        let fits = |word: &Word| {
            let want = start.sp.wrapping_add(word.want as usize);
            self.word(start, stack, word.at) == want
        };
        let count = usize::from(self.bases).min(BASES);
        self.saved[..count].iter().all(fits)
    }

    /// Reads a recorded word, on a stack whose root has the same position.
    #[inline]
    fn word(&self, start: &Registers, stack: &Stack, at: u32) -> usize {
        let address = start.sp + at as usize;
        debug_assert!(
            stack.holds(address, address + WORD),
            "{at} below {}",
            self.root
        );
        // SAFETY: a recorded word lies between start and root, whole and aligned: the walk read it
        // there. All of that is inside this stack, too, by the position of its root (`judge_in`),
        // and `Stack::new`'s caller is responsible for the inside.
        unsafe { super::peek::word(address) }
    }
}

/// A walk that is being recorded.
struct Recorder<'a> {
    start: &'a Registers,
    trace: Trace,
    /// Whether it still fits a trace.
    fits: bool,
}

impl Recorder<'_> {
    /// Records `rbp`, before the walk climbs from a frame whose CFA is counted from it.
    fn base(&mut self, climber: &Climber<'_>) {
        let Ok(want) = u32::try_from(climber.bp.wrapping_sub(self.start.sp)) else {
            self.fits = false;
            return;
        };
        match climber.bp_from {
            BpFrom::Start => self.trace.bp = want,
            BpFrom::Slot(slot) => self.slot(slot, want),
            BpFrom::Nowhere => self.fits = false,
        }
    }

    fn slot(&mut self, slot: usize, want: u32) {
        let at = (slot - self.start.sp) as u32; // below the root, whose position fits
        let count = usize::from(self.trace.bases);
        if self.trace.saved[..count].iter().any(|word| word.at == at) {
            return;
        }
        match self.trace.saved.get_mut(count) {
            Some(word) => *word = Word { at, want },
            None => return self.fits = false,
        }
        self.trace.bases += 1;
    }

    /// Records the return address, after the walk climbed.
    fn climbed(&mut self, climber: &Climber<'_>) {
        let ip = climber.pc.wrapping_add(1);
        let Ok(want) = i32::try_from(ip.wrapping_sub(self.start.pc) as isize) else {
            self.fits = false;
            return;
        };
        let at = (climber.sp - WORD - self.start.sp) as u32;
        let want = want as u32;
        match self.trace.returns.get_mut(usize::from(self.trace.depth)) {
            Some(word) => *word = Word { at, want },
            None => return self.fits = false,
        }
        self.trace.depth += 1;
    }
}

/// Caches the traces of one thread, by where they start. A hit costs about a nanosecond a frame.
///
/// ```
/// use indent_sysmon::frames::{Mobility, Registers, Stack, TraceCache};
///
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// let range = range.start.addr()..range.end.addr();
/// // SAFETY: the array outlives it, and nothing writes to it.
/// let stack = unsafe { Stack::new(range.clone()) };
/// let code = drop::<u8> as fn(u8) as usize;
/// let start = Registers::after_call(code + 1, range.start, 0);
///
/// let mut cache = TraceCache::new();
/// let judgement = cache.judge(&start, &stack, range.end);
/// assert_eq!(judgement.mobility, Mobility::Bound); // not known yet; requested
/// assert!(!judgement.complete);
/// ```
pub struct TraceCache {
    traces: Box<[[Trace; WAYS]; SETS]>,
    /// Which trace of each set is replaced next, counted up.
    oldest: [u8; SETS],
    pub(super) unwinder: Unwinder,
}

impl Default for TraceCache {
    fn default() -> Self {
        TraceCache::new()
    }
}

impl std::fmt::Debug for TraceCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let traces = self.traces.as_flattened().iter();
        let used = traces.filter(|trace| trace.pc != 0).count();
        f.debug_struct("TraceCache").field("used", &used).finish()
    }
}

impl TraceCache {
    /// Makes an empty cache; this is the only time it allocates.
    pub fn new() -> Self {
        TraceCache {
            traces: Box::new([[Trace::NONE; WAYS]; SETS]),
            oldest: [0; SETS],
            unwinder: Unwinder::new(),
        }
    }

    /// Judges a stack like [`judge_stack`](super::judge_stack), and is faster the next time.
    ///
    /// Once there has been a survey, places that were not requested before are resolved at once, in
    /// some microseconds each: then the judgement is complete.
    #[inline]
    pub fn judge(&mut self, start: &Registers, stack: &Stack, root: usize) -> Judgement {
        self.judge_in(sites(), start, stack, root, study::find_now)
    }

    /// Judges an interrupted stack that may be left in place inside a region of its code (S2).
    ///
    /// The *region* is given by the stack pointer just before its outermost function was called.
    /// The stack may be left if every frame up to the region lies in the executable, can be climbed
    /// from, is movable, and is none of the runtime's. `None` if not, and before there has been a
    /// survey.
    ///
    /// The result is about the whole stack. It is movable only if the stack may also continue on
    /// another thread, and bound otherwise: the code that opened the region has promised that
    /// nothing of the thread is held around it.
    ///
    /// Like [`judge`](Self::judge), for the thread that owns the cache; for signal handlers too.
    ///
    /// ```
    /// use indent_sysmon::frames::{Registers, Stack, TraceCache};
    ///
    /// let words = [0usize; 16];
    /// let range = words.as_ptr_range();
    /// let range = range.start.addr()..range.end.addr();
    /// // SAFETY: the array outlives it, and nothing writes to it.
    /// let stack = unsafe { Stack::new(range.clone()) };
    /// let start = Registers::interrupted(drop::<u8> as fn(u8) as usize, range.start, 0);
    /// let (region, root) = (range.start + 32, range.end);
    /// assert_eq!(TraceCache::new().judge_region(&start, &stack, region, root), None);
    /// ```
    pub fn judge_region(
        &mut self,
        start: &Registers,
        stack: &Stack,
        region: usize,
        root: usize,
    ) -> Option<Mobility> {
        if start.sp >= region {
            return None;
        }
        let mut climber = Climber::new(start, stack, root);
        let mut whole = Mobility::Movable;
        for number in 0..FRAMES {
            let outside = climber.sp >= region;
            if outside && (whole == Mobility::Bound || number >= 2 * DEEP) {
                return Some(Mobility::Bound);
            }
            if !outside && number >= DEEP {
                return None; // each frame takes a microsecond
            }
            let found = study::find_interrupted(&mut self.unwinder, climber.pc);
            let row = found.and_then(|(site, nearness)| Some((site.row()?, nearness)));
            let Some((row, nearness)) = row else {
                return outside.then_some(Mobility::Bound);
            };
            match nearness {
                Nearness::Within if !outside => return None,
                // It may hold what the runtime has just returned about its thread.
                Nearness::Leads if !outside => whole = Mobility::Bound,
                _ => {}
            }
            match climber.climb(row) {
                Climb::Up if !outside && climber.sp > region => return None, // U4
                Climb::Up => {}
                Climb::Root if outside => return Some(whole),
                Climb::Root => return None,
                Climb::Broken => return outside.then_some(Mobility::Bound),
            }
        }
        None
    }

    /// [`judge`](Self::judge) with any map, which must be the same every time.
    #[inline]
    pub(crate) fn judge_in(
        &mut self,
        sites: &Sites,
        start: &Registers,
        stack: &Stack,
        root: usize,
        find: impl FnMut(&mut Unwinder, usize) -> Option<Site>,
    ) -> Judgement {
        let position = u32::try_from(root.wrapping_sub(start.sp));
        let inside = stack.holds(start.sp, root);
        let Some(position) = position.ok().filter(|_| inside && start.pc != 0) else {
            return super::walk::judge_in(sites, start, stack, root);
        };
        let set = set(start.pc, position);
        if let Some(trace) = fitting(&self.traces[set], start, stack, position) {
            return Judgement::of(trace.end);
        }
        let mut find = find;
        let unwinder = &mut self.unwinder;
        let mut get = |pc| sites.get(pc).or_else(|| find(unwinder, pc));
        let (judgement, walked) = record(sites, &mut get, start, stack, root, position);
        if let Some(walked) = walked {
            let oldest = &mut self.oldest[set];
            self.traces[set][usize::from(*oldest) % WAYS] = walked;
            *oldest = oldest.wrapping_add(1);
        }
        judgement
    }
}

#[inline]
fn fitting<'a>(
    traces: &'a [Trace; WAYS],
    start: &Registers,
    stack: &Stack,
    root: u32,
) -> Option<&'a Trace> {
    traces.iter().find(|trace| trace.fits(start, stack, root))
}

/// Chooses the set of a starting point.
///
/// Stack pointers are multiples of 16, and those of one place differ by a few of these.
#[inline]
fn set(pc: usize, root: u32) -> usize {
    const FRACTION: u64 = 0x9E37_79B9_7F4A_7C15; // of the golden ratio: neighbours lie far apart
    let key = (pc as u64).wrapping_add(u64::from(root) >> 4);
    (key.wrapping_mul(FRACTION) >> (64 - SETS.ilog2())) as usize
}

/// Walks, and returns the judgement and what to remember of the walk.
#[cold]
fn record(
    sites: &Sites,
    get: &mut dyn FnMut(usize) -> Option<Site>,
    start: &Registers,
    stack: &Stack,
    root: usize,
    position: u32,
) -> (Judgement, Option<Trace>) {
    let mut recorder = Recorder {
        start,
        trace: Trace {
            pc: start.pc,
            root: position,
            ..Trace::NONE
        },
        fits: true,
    };
    let end = walk_recorded(sites, get, stack, root, &mut recorder);
    let finished = matches!(end, End::Root | End::Bound { .. });
    let trace = (finished && recorder.fits).then_some(Trace {
        end,
        ..recorder.trace
    });
    (Judgement::of(end), trace)
}

/// [`walk_in`](super::walk::walk_in) with a recorder.
fn walk_recorded(
    sites: &Sites,
    get: &mut dyn FnMut(usize) -> Option<Site>,
    stack: &Stack,
    root: usize,
    recorder: &mut Recorder<'_>,
) -> End {
    let mut climber = Climber::new(recorder.start, stack, root);
    let mut bound = false;
    for _ in 0..FRAMES {
        let address = climber.pc;
        let Some(site) = get(address) else {
            return climber.ask(sites);
        };
        let Some(row) = site.row_after(&mut bound) else {
            return End::Bound { address };
        };
        if row.base == Base::Bp {
            recorder.base(&climber);
        }
        match climber.climb(row) {
            Climb::Up => recorder.climbed(&climber),
            _ if bound => return End::Bound { address },
            Climb::Root => return End::Root,
            Climb::Broken => break,
        }
    }
    let address = climber.pc;
    End::Broken { address }
}

#[cfg(all(test, not(indent_loom)))]
mod tests;
