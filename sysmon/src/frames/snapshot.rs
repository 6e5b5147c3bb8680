#![expect(unsafe_code, reason = "walks a copy as if it were the stack")]
//! A copy of a stack, taken in a signal handler and walked later by another thread.
//!
//! [`judge_stack`](super::judge_stack) climbs a stack where it lies, by what is known about its
//! code; the helper has to resolve what is not known yet, and then another walk is needed. For a
//! report that is too late: the stack has moved on. So here the handler only copies words, and
//! everything that needs tables is done on the copy.
//!
//! Rules of [`Snapshot::take`]: it runs in signal handlers. No allocation, no lock, no
//! thread-local, no panic, no formatting.
//!
//! States: empty → being written → full → being read → empty. Each transition has one owner, the
//! thread whose compare-and-swap succeeded, so the words have one user between two transitions;
//! they are atomic only because the compiler cannot know that.
//!
//! [`Climber`] walks the copy with all its checks. The copy lies elsewhere than the stack did, so
//! all values that point into the stack are relocated first: a walk reads return addresses, which
//! never do, and saved values of `rbp`, which must be relocated if they do.
//!
//! A thread that sleeps in the kernel need not be woken for a snapshot: the monitor copies its
//! stack from where the kernel reports the call ([`Snapshot::take_asleep`]), by a system call that
//! fails where a load would end the process, since a sleeper may wake and end at any time. The
//! kernel does not report its `rbp`. Where a frame's size depends on it, it is guessed: of all
//! words that have a return address above them, the one from which the climb continues for longest.
//!
//! Rejected: an unwinder in the handler. That of the C library needs 8 KiB of stack and more, and
//! takes locks in old versions.

use std::sync::atomic::{
    AtomicU8, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::objects::Objects;
use super::rows::{Base, Unwinder, WORD, beginning, while_still};
use super::walk::{BpFrom, Climb, Climber, FRAMES, Registers, Stack, UNKNOWN};
use crate::system_call::SystemCall;

const EMPTY: u8 = 0;
const WRITTEN: u8 = 1;
const FULL: u8 = 2;
const READ: u8 = 3;

/// Number of words that are tried in place of an unknown `rbp`.
const GUESSES: usize = 64;

/// Holds the innermost `WORDS` words of one stack.
///
/// An interrupted thread takes the snapshot in its handler; another thread asks for the frames when
/// it has the time. What does not fit is cut off: the outermost frames are missing then.
///
/// ```
/// use indent_sysmon::frames::{Registers, Snapshot, Stack};
///
/// static SEEN: Snapshot<16> = Snapshot::new();
///
/// // A stack that waits in a call.
/// let words = [0usize; 8];
/// let range = words.as_ptr_range();
/// // SAFETY: the array outlives it, and nothing writes to it.
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
/// [`stalls`](crate::stalls) does this in a handler, with the registers that the kernel passes to
/// it.
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
    /// Makes an empty snapshot.
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

    /// Copies a stack; for signal handlers too.
    ///
    /// Returns false if the last snapshot has not been read, or the stack pointer is not inside.
    /// Takes half a nanosecond a word at most where memory is warm.
    ///
    /// See [`Snapshot`] for an example.
    pub fn take(&self, start: &Registers, stack: &Stack) -> bool {
        self.fill(start, |words| {
            let mut count = 0;
            for place in words {
                let Some(word) = stack.read(start.sp.wrapping_add(count * WORD)) else {
                    break;
                };
                place.store(word, Relaxed);
                count += 1;
            }
            count
        })
    }

    /// Copies the stack of another thread, up to `high`, while it sleeps in this call.
    ///
    /// Returns false if the last snapshot has not been read, or the kernel does not allow it. Keeps
    /// the rules of the monitor.
    ///
    /// The caller must find out afterwards whether the thread still sleeps. If it does not, the
    /// copy is useless but harmless: see [`clear`](Self::clear).
    ///
    /// ```
    /// use indent_sysmon::{SystemCall, frames::Snapshot};
    ///
    /// let snapshot = Snapshot::<16>::new();
    /// let stack = [0usize; 8]; // instead of a sleeper's
    /// let range = stack.as_ptr_range();
    /// let code = drop::<u8> as fn(u8) as usize;
    /// let call = SystemCall { number: libc::SYS_read, sp: range.start.addr(), pc: code + 1 };
    /// if snapshot.take_asleep(&call, range.end.addr()) {
    ///     assert_eq!(snapshot.frames().unwrap()[0], code);
    /// }
    /// ```
    pub fn take_asleep(&self, call: &SystemCall, high: usize) -> bool {
        let most = high.saturating_sub(call.sp) / WORD;
        call.sp.is_multiple_of(WORD)
            && self.fill(&Registers::asleep(call), |words| {
                copy_from(call.sp, &words[..most.min(WORDS)])
            })
    }

    /// Goes from empty to full, if `copy` returns that it has copied words.
    ///
    /// Returns false if the snapshot is not empty.
    fn fill(&self, start: &Registers, copy: impl FnOnce(&[AtomicUsize]) -> usize) -> bool {
        if !self.go(EMPTY, WRITTEN) {
            return false;
        }
        let &Registers { pc, sp, bp } = start;
        for (place, value) in self.start.iter().zip([pc, sp, bp]) {
            place.store(value, Relaxed);
        }
        let count = copy(&self.words);
        self.count.store(count, Relaxed);
        let taken = count > 0;
        self.state.store(if taken { FULL } else { EMPTY }, Release);
        taken
    }

    /// Discards the snapshot, if there is one; keeps the rules of the monitor.
    ///
    /// ```
    /// let snapshot = indent_sysmon::frames::Snapshot::<16>::new();
    /// snapshot.clear();
    /// assert_eq!(snapshot.frames(), None);
    /// ```
    pub fn clear(&self) {
        self.go(FULL, EMPTY);
    }

    /// Returns the frames of the snapshot, if there is one, and makes room for the next.
    ///
    /// Innermost first. For each frame, an address inside the instruction it stands at
    /// (`backtrace::resolve` expects one more). Ends early where the code has no usable unwind row.
    ///
    /// Not for signal handlers: allocates, and takes the loader's lock.
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

    /// Makes one transition of the state.
    fn go(&self, from: u8, to: u8) -> bool {
        let went = self.state.compare_exchange(from, to, AcqRel, Acquire);
        went.is_ok()
    }
}

/// Copies words of this process from an address on, and returns how many.
///
/// Where they are not mapped, it returns 0.
fn copy_from(address: usize, words: &[AtomicUsize]) -> usize {
    let size = size_of_val(words);
    let here = libc::iovec {
        iov_base: words.as_ptr().cast_mut().cast(),
        iov_len: size,
    };
    let there = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: size,
    };
    // SAFETY: takes nothing and cannot fail.
    let process = unsafe { libc::getpid() };
    // SAFETY: the kernel writes to words that are atomic, and of which the caller is the one user.
    let copied = unsafe { libc::process_vm_readv(process, &here, 1, &there, 1, 0) };
    usize::try_from(copied).map_or(0, |bytes| bytes / WORD)
}

/// Returns the places of all frames of a stack whose words begin at the stack pointer.
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
    // SAFETY: the copy, which stays as it is until the end of this function.
    let stack = unsafe { Stack::new(range.start.addr()..range.end.addr()) };
    let mut copy = Copied {
        root: range.end.addr(),
        objects: Objects::now(),
        unwinder: Unwinder::new(),
        stack,
    };
    let mut places = Vec::new();
    let stopped = copy.climb(Registers { sp, bp, ..start }, &mut places);
    if let Some(stopped) = stopped.filter(|_| bp == UNKNOWN) {
        places.pop(); // the guess begins with this place
        places.extend(copy.guess(stopped));
    }
    places
}

/// A copy of a stack, and what is needed to climb it.
struct Copied {
    stack: Stack,
    root: usize,
    objects: Objects,
    unwinder: Unwinder,
}

impl Copied {
    /// Records the places from these registers on.
    ///
    /// Returns the registers where it cannot continue because the `rbp` it was given is missing or
    /// wrong.
    fn climb(&mut self, start: Registers, places: &mut Vec<usize>) -> Option<Registers> {
        let mut climber = Climber::new(&start, &self.stack, self.root);
        while places.len() < FRAMES {
            places.push(climber.pc);
            let Some(row) = self.unwinder.row_in(&self.objects, climber.pc) else {
                break;
            };
            let at = Registers {
                pc: climber.pc,
                sp: climber.sp,
                bp: climber.bp,
            };
            let given = climber.bp_from == BpFrom::Start;
            match climber.climb(row) {
                Climb::Up => {}
                Climb::Broken if given && row.base == Base::Bp => return Some(at),
                Climb::Root | Climb::Broken => break,
            }
        }
        None
    }

    /// Returns the longest climb from there on, over all candidates for `rbp`.
    fn guess(&mut self, from: Registers) -> Vec<usize> {
        let mut best = vec![from.pc];
        let slots = (from.sp..self.root).step_by(WORD);
        let is_code = |address| {
            let segments = self.objects.at(address).map(|object| &object.segments);
            let mut segments = segments.into_iter().flatten();
            segments.any(|segment| segment.executable && segment.range.contains(&address))
        };
        let above = |slot: usize| {
            self.stack
                .read(slot + WORD)
                .map(|word| word.wrapping_sub(1))
        };
        let likely = slots.filter(|slot| above(*slot).is_some_and(is_code));
        for bp in likely.take(GUESSES).collect::<Vec<_>>() {
            let mut places = Vec::new();
            self.climb(Registers { bp, ..from }, &mut places);
            if places.len() > best.len() {
                best = places;
            }
        }
        best
    }
}

/// Returns the start addresses of the functions around these addresses.
///
/// An unknown address stays as it is. With this, two interruptions of one function can be
/// distinguished from those of two functions. Not for signal handlers.
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

    /// Returns the frames by a snapshot of a deep stack, and those by the C library's unwinder.
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
        // SAFETY: the array outlives it, and nothing writes to it.
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
