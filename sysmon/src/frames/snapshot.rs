#![expect(unsafe_code, reason = "walks a copy as if it were the stack")]
//! A copy of a stack, taken in a signal handler and walked later by somebody else.
//!
//! [`walk`](super::walk) climbs a stack where it lies, by what is known about its code; what is not
//! known yet has to be found out by the helper, and then there must be another walk. For a report that
//! is too late: the stack has moved on. So here the handler only copies words, and everything that
//! needs tables is done on the copy.
//!
//! Law of [`Snapshot::take`]: it runs in signal handlers. No allocation, no lock, no thread-local, no
//! panic, no formatting.
//!
//! States: empty → being written → full → being read → empty. Each arrow has one owner, who got it by
//! a compare-and-swap, so the words between two arrows have one user; they are atomic only because
//! the compiler cannot know that.
//!
//! The copy is walked by [`Climber`] with all its checks. It lies elsewhere than the stack did, so
//! values that point into the stack are moved first, all of them: a walk reads return addresses,
//! which never do, and saved values of `rbp`, which must be moved if they do.
//!
//! Of a thread that sleeps in the kernel `rbp` is not known. Most of the C library does without; where a
//! frame needs it, it is guessed from the words of the copy. A wrong guess ends the walk or shows a frame
//! too few: that is good enough for a report, and for nothing else.
//!
//! Rejected: an unwinder in the handler. That of the C library needs 8 KiB of stack and more, and
//! takes locks in old versions.

use std::sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::Verdict;
use super::objects::{Object, Objects, Segment};
use super::peek::word;
use super::rows::{Base, Unwinder, WORD, beginning, while_still};
use super::sites::{Found, find};
use super::walk::{BpFrom, Climb, Climber, FRAMES, Registers, Stack};

const EMPTY: u8 = 0;
const WRITTEN: u8 = 1;
const FULL: u8 = 2;
const READ: u8 = 3;

/// Room for the innermost `WORDS` words of one stack.
///
/// A thread that is interrupted takes it in its handler; another one asks for the frames when it has
/// the time. What does not fit is cut off: the outermost frames are missing then.
///
/// ```
/// use indent_sysmon::frames::{Registers, Snapshot, Stack};
///
/// static SEEN: Snapshot<16> = Snapshot::new();
///
/// // A stack that waits in a call.
/// let words = [0usize; 8];
/// let range = words.as_ptr_range();
/// // SAFETY: the array outlives it, and nobody writes to it.
/// let stack = unsafe { Stack::new(range.start.addr()..range.end.addr()) };
/// let code = drop::<u8> as fn(u8) as usize;
/// let start = Registers::after_call(code + 1, range.start.addr(), 0);
///
/// assert!(SEEN.take(&start, &stack));
/// assert!(!SEEN.take(&start, &stack), "nobody has looked at the first one");
/// let frames = SEEN.frames().unwrap();
/// assert_eq!(frames[0], code);
/// assert_eq!(SEEN.frames(), None, "it was handed out");
/// ```
///
/// `examples/watch.rs` does this in a handler, with the registers that the kernel hands it.
#[derive(Debug)]
pub struct Snapshot<const WORDS: usize> {
    state: AtomicU8,
    /// Place in the code, stack pointer, `rbp`.
    start: [AtomicUsize; 3],
    /// How many words are used.
    count: AtomicUsize,
    words: [AtomicUsize; WORDS],
}

impl<const WORDS: usize> Default for Snapshot<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const WORDS: usize> Snapshot<WORDS> {
    /// An empty one.
    ///
    /// See [`Snapshot`] for an example.
    pub const fn new() -> Self {
        Snapshot {
            state: AtomicU8::new(EMPTY),
            start: [const { AtomicUsize::new(0) }; 3],
            count: AtomicUsize::new(0),
            words: [const { AtomicUsize::new(0) }; WORDS],
        }
    }

    /// Copies a stack; false if the last one has not been looked at, or the stack pointer is not
    /// inside. For signal handlers too; half a nanosecond a word at most where memory is warm.
    ///
    /// See [`Snapshot`] for an example.
    pub fn take(&self, start: &Registers, stack: &Stack) -> bool {
        if !self.go(EMPTY, WRITTEN) {
            return false;
        }
        let &Registers { pc, sp, bp } = start;
        for (place, value) in self.start.iter().zip([pc, sp, bp]) {
            place.store(value, Relaxed);
        }
        let mut count = 0;
        for place in &self.words {
            let Some(word) = stack.read(sp.wrapping_add(count * WORD)) else {
                break;
            };
            place.store(word, Relaxed);
            count += 1;
        }
        self.count.store(count, Relaxed);
        let taken = count > 0;
        self.state.store(if taken { FULL } else { EMPTY }, Release);
        taken
    }

    /// The frames of the stack that was taken, if one was, and room for the next. Innermost first; of
    /// each an address inside the instruction it stands at (one more is what
    /// `backtrace::resolve` expects). Ends early where the code has no unwind row that could be used.
    ///
    /// Not for handlers: allocates, and takes the loader's lock.
    ///
    /// See [`Snapshot`] for an example.
    pub fn frames(&self) -> Option<Vec<usize>> {
        if !self.go(FULL, READ) {
            return None;
        }
        let [pc, sp, bp] = [0, 1, 2].map(|i| self.start[i].load(Relaxed));
        let used = self.words.iter().take(self.count.load(Relaxed));
        let words = used.map(|word| word.load(Relaxed)).collect();
        self.state.store(EMPTY, Release);
        Some(climb(Registers { pc, sp, bp }, words))
    }

    /// One arrow.
    fn go(&self, from: u8, to: u8) -> bool {
        let went = self.state.compare_exchange(from, to, AcqRel, Acquire);
        went.is_ok()
    }
}

/// The places of all frames of a stack whose words begin at the stack pointer.
fn climb(start: Registers, mut words: Vec<usize>) -> Vec<usize> {
    let was = start.sp..=start.sp.wrapping_add(words.len() * WORD);
    let shift = words.as_ptr().addr().wrapping_sub(start.sp);
    let moved = |value: usize| match was.contains(&value) {
        true => value.wrapping_add(shift),
        false => value,
    };
    for word in &mut words {
        *word = moved(*word);
    }
    let [sp, bp] = [start.sp, start.bp].map(moved);
    let range = words.as_ptr_range();
    let root = range.end.addr();
    // SAFETY: the copy, which stays as it is until the end of this function.
    let stack = unsafe { Stack::new(range.start.addr()..root) };
    let mut climber = Climber::new(&Registers { sp, bp, ..start }, &stack, root);
    let objects = Objects::now();
    let mut unwinder = Unwinder::new();
    let mut places = Vec::new();
    while places.len() < FRAMES {
        places.push(climber.pc);
        let found = find(&objects, &mut unwinder, &mut |_| Verdict::Alone, climber.pc);
        let Found::Site(site) = found else { break };
        if start.bp == 0 && site.row().is_some_and(|row| row.base == Base::Bp) {
            guess_bp(&mut climber, &words, &objects);
        }
        if climber.climb(site) != Climb::Up {
            break;
        }
    }
    places
}

/// For a frame that is found by an `rbp` nobody knows, of the program's own code: right above what `rbp`
/// points to lies the return address, so it is the first word that returns from a call of this very
/// function, or else the first that returns from a call through a register.
fn guess_bp(climber: &mut Climber<'_>, words: &[usize], objects: &Objects) {
    if matches!(climber.bp_from, BpFrom::Slot(_)) && climber.bp > climber.sp {
        return; // somebody has saved it
    }
    let Some(program) = objects.list.first().filter(|o| o.contains(climber.pc)) else {
        return;
    };
    let function = beginning(program, climber.pc);
    let start = words.as_ptr().addr();
    let first = climber.sp.saturating_sub(start) / WORD + 1;
    let mut perhaps = None;
    for (i, word) in words.iter().enumerate().skip(first) {
        match called_before(program, *word) {
            Called::Function(at) if Some(at) == function => {
                perhaps = Some(i);
                break;
            }
            Called::Register => perhaps = perhaps.or(Some(i)),
            Called::Function(_) | Called::Nothing => {}
        }
    }
    if let Some(i) = perhaps {
        climber.bp = start + (i - 1) * WORD;
        climber.bp_from = BpFrom::Start;
    }
}

/// What the instruction before an address calls.
enum Called {
    Function(usize),
    /// Nobody can tell which.
    Register,
    Nothing,
}

/// The program's code and its slots stay where they are, so they can be read.
fn called_before(program: &Object, address: usize) -> Called {
    let code = |s: &&Segment| s.executable && s.range.contains(&address);
    let from = address.wrapping_sub(WORD);
    let inside = |s: &Segment| s.range.contains(&from);
    if !program.segments.iter().find(code).is_some_and(inside) {
        return Called::Nothing;
    }
    // SAFETY: code of the program, which is mapped for ever and written by nobody.
    let bytes = unsafe { word(from) }.to_le_bytes();
    let distance = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let there = address.wrapping_add_signed(distance as isize);
    match bytes {
        [_, _, _, 0xe8, ..] => Called::Function(there),
        [_, _, 0xff, 0x15, ..] if program.contains(there) && program.contains(there + WORD) => {
            // SAFETY: a slot of the program, which the loader has filled in.
            Called::Function(unsafe { word(there) })
        }
        [.., 0xff, 0xd0..=0xd7] | [.., 0x41, 0xff, _] | [.., 0xff, 0x50..=0x57, _] => {
            Called::Register
        }
        _ => Called::Nothing,
    }
}

/// Where the functions begin that these addresses lie in; an address nobody knows stays as it is. Two
/// interruptions of one function are told from those of two functions by that. Not for handlers.
///
/// ```
/// use indent_sysmon::frames;
///
/// let code = drop::<String> as fn(String) as usize;
/// assert_eq!(frames::beginnings(&[code + 1, 8]), [code, 8]);
/// ```
pub fn beginnings(addresses: &[usize]) -> Vec<usize> {
    let objects = Objects::now();
    let begin = |&address: &usize| {
        let object = objects.at(address);
        let found = object.map(|object| while_still(objects.census, || beginning(object, address)));
        found.flatten().flatten().unwrap_or(address)
    };
    addresses.iter().map(begin).collect()
}

#[cfg(all(test, not(indent_loom)))]
mod tests {
    use super::super::probe::{Caught, catch, descend, within};
    use super::*;

    /// What a snapshot of a deep stack says, and what the C library's unwinder does.
    fn both<const WORDS: usize>() -> (Vec<usize>, Vec<usize>) {
        let (mut seen, mut told) = (Vec::new(), Vec::new());
        within(|| {
            descend(20, &mut || {
                catch(&mut |caught: &Caught| {
                    let snapshot = Box::new(Snapshot::<WORDS>::new());
                    assert!(snapshot.take(&caught.start, &caught.stack));
                    seen = snapshot.frames().unwrap();
                    told = caught.told().iter().map(|place| place.0 - 1).collect();
                });
            });
        });
        (seen, told)
    }

    #[test]
    fn a_copy_is_climbed_like_the_stack_itself() {
        let (seen, told) = both::<8192>();
        assert!(seen.len() > 20);
        assert_eq!(seen, told);
    }

    #[test]
    fn of_a_stack_that_does_not_fit_the_innermost_frames_are_shown() {
        let (seen, told) = both::<64>();
        assert!(!seen.is_empty() && seen.len() < told.len());
        assert_eq!(seen, told[..seen.len()]);
    }

    #[test]
    fn a_stack_pointer_outside_takes_nothing_and_leaves_room() {
        let words = [0usize; 8];
        let range = words.as_ptr_range();
        // SAFETY: the array outlives it, and nobody writes to it.
        let stack = unsafe { Stack::new(range.start.addr()..range.end.addr()) };
        let snapshot = Snapshot::<8>::new();
        for sp in [0, range.start.addr() + 1, range.end.addr()] {
            assert!(!snapshot.take(&Registers::interrupted(0, sp, 0), &stack));
        }
        assert_eq!(snapshot.frames(), None);
        let start = Registers::interrupted(0, range.start.addr(), 0);
        assert!(snapshot.take(&start, &stack));
    }
}
