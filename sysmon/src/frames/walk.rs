#![expect(unsafe_code, reason = "reads the words of a suspended stack")]
//! Climbs a suspended stack, frame by frame, and judges it.
//!
//! Law of this file: it runs in signal handlers. No allocation, no lock, no thread-local, no panic,
//! no formatting. All it knows about code it looks up in the map of [sites](super::sites).
//!
//! A walk starts from three registers and ends at the *root*: the stack pointer that the runtime had
//! just before it called the outermost function, that is, the address right above the return address
//! of that call. Frames above it are the runtime's own.
//!
//! What keeps a walk honest:
//! - W1. Every word is read through [`Stack`], which refuses what is not aligned and inside.
//! - W2. A frame's CFA is above its stack pointer, so walks end; there are at most [`FRAMES`].
//! - W3. A saved `rbp` is read from inside its frame only.
//! - W4. It ends well only if a CFA *is* the root. One beyond it means that a row was wrong or the
//!   stack is not what it seems: [`End::Broken`]. Rejected: to stop at the first CFA at or beyond the
//!   root; one wrong `rbp` would then hide frames.
//!
//! A suspended frame stands after a call, and its return address may be the first byte of the next
//! function if the call never returns. So what is looked up is the last byte of the call. For an
//! interrupted frame it is the instruction itself; rows are right there only where the compiler
//! wrote them for every instruction.

use std::ops::{ControlFlow, Range};

use super::Verdict;
use super::ahead::ask_ahead;
use super::rows::{Base, CallersBp, WORD};
use super::sites::{Site, Sites, sites};
use crate::call::SystemCall;

/// Frames of one walk at most; what is deeper counts as broken.
pub(crate) const FRAMES: usize = 4096;

/// For an `rbp` that nobody knows: no stack is there.
pub(crate) const UNKNOWN: usize = usize::MAX;

/// The memory of a suspended stack.
///
/// ```
/// use indent_sysmon::frames::Stack;
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// // SAFETY: the array outlives it, and nobody writes to it.
/// let stack = unsafe { Stack::new(range.start.addr()..range.end.addr()) };
/// # let _ = stack;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    range: Range<usize>,
}

impl Stack {
    /// A stack between two addresses.
    ///
    /// # Safety
    /// While the value is used the memory is mapped and readable, and only the thread that uses the
    /// value writes to it.
    #[inline]
    pub unsafe fn new(range: Range<usize>) -> Stack {
        Stack { range }
    }

    /// The word at an address, if it is aligned and inside.
    #[inline]
    pub(crate) fn read(&self, at: usize) -> Option<usize> {
        if !self.holds(at, at.wrapping_add(WORD)) {
            return None;
        }
        // SAFETY: inside, and `new`'s caller answers for the inside.
        Some(unsafe { super::peek::word(at) })
    }

    /// Whether all words from one address to another are inside.
    #[inline]
    pub(crate) fn holds(&self, from: usize, to: usize) -> bool {
        let inside = self.range.start <= from && from <= to && to <= self.range.end;
        inside && (from | to).is_multiple_of(WORD)
    }
}

/// What a walk starts from.
///
/// ```
/// use indent_sysmon::frames::Registers;
/// let suspended = Registers::after_call(0x4010_05, 0x7ff0, 0x7ff8);
/// assert_eq!(suspended, Registers::interrupted(0x4010_04, 0x7ff0, 0x7ff8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// What is looked up.
    pub(crate) pc: usize,
    pub(crate) sp: usize,
    pub(crate) bp: usize,
}

impl Registers {
    /// A stack that waits in a call: where it will return to, and the stack pointer and `rbp` it will
    /// have then.
    #[inline]
    pub fn after_call(ip: usize, sp: usize, bp: usize) -> Self {
        let pc = ip.wrapping_sub(1);
        Registers { pc, sp, bp }
    }

    /// What they are here, in the function this is called from, for a walk while it waits for what
    /// it calls next.
    ///
    /// ```
    /// use indent_sysmon::frames::Registers;
    /// assert_ne!(Registers::here(), Registers::here()); // two instructions
    /// ```
    #[inline(always)]
    pub fn here() -> Self {
        let (ip, sp, bp);
        // SAFETY: only reads registers.
        unsafe {
            std::arch::asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nomem, nostack, preserves_flags),
            );
        }
        Registers::interrupted(ip, sp, bp)
    }

    /// A thread that sleeps in this call: its `rbp` is not known. For
    /// [`Snapshot`](super::Snapshot), which guesses it where it is needed.
    ///
    /// ```
    /// use indent_sysmon::{SystemCall, frames::Registers};
    /// let call = SystemCall { number: 0, sp: 0x7ff0, pc: 0x4010_05 };
    /// assert_ne!(Registers::asleep(&call), Registers::after_call(call.pc, call.sp, 0));
    /// ```
    #[inline]
    pub fn asleep(call: &SystemCall) -> Self {
        Registers::after_call(call.pc, call.sp, UNKNOWN)
    }

    /// A stack that was interrupted at an instruction.
    #[inline]
    pub fn interrupted(ip: usize, sp: usize, bp: usize) -> Self {
        Registers { pc: ip, sp, bp }
    }
}

/// A frame, as a walk shows it.
///
/// See [`walk`].
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// An address inside the instruction that the frame stands at.
    pub address: usize,
    /// Its stack pointer: the frame lies above.
    pub sp: usize,
    /// What its function allows.
    pub verdict: Verdict,
}

/// How a walk ended.
///
/// See [`walk`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the root: all frames were seen.
    Root,
    /// The visitor had seen enough.
    Stopped,
    /// Nobody knows about this place in the code yet; it was asked for.
    Unknown {
        /// The place.
        address: usize,
        /// Whether the helper has to be rung to call [`resolve`](super::resolve).
        ring: bool,
    },
    /// There is no way on from here: no unwind row that could be used, or the stack is not what the
    /// rows say.
    Broken {
        /// The place.
        address: usize,
    },
}

/// Shows the frames of a suspended stack, innermost first. `root` is the stack pointer just before
/// the outermost function was called.
///
/// Allocates nothing and takes no lock; as good as its visitor in a signal handler.
///
/// ```
/// use indent_sysmon::frames::{self, End, Registers, Stack, Verdict};
/// use std::ops::ControlFlow;
///
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// let range = range.start.addr()..range.end.addr();
/// // SAFETY: the array outlives it, and nobody writes to it.
/// let stack = unsafe { Stack::new(range.clone()) };
/// let code = drop::<u8> as fn(u8) as usize;
/// let start = Registers::after_call(code + 1, range.start, 0);
/// let walk = || frames::walk(&start, &stack, range.end, |_| ControlFlow::Continue(()));
///
/// assert_eq!(walk(), End::Unknown { address: code, ring: true });
/// frames::resolve(|_| Verdict::Free); // on the helper's thread
/// assert!(!matches!(walk(), End::Unknown { address, .. } if address == code));
/// ```
pub fn walk(
    start: &Registers,
    stack: &Stack,
    root: usize,
    visit: impl FnMut(Frame) -> ControlFlow<()>,
) -> End {
    walk_in(sites(), start, stack, root, visit)
}

/// [`walk`] by any map.
pub(crate) fn walk_in(
    sites: &Sites,
    start: &Registers,
    stack: &Stack,
    root: usize,
    mut visit: impl FnMut(Frame) -> ControlFlow<()>,
) -> End {
    let mut climber = Climber::new(start, stack, root);
    for _ in 0..FRAMES {
        let Some(site) = sites.get(climber.pc) else {
            return climber.ask(sites);
        };
        if visit(climber.frame(site)).is_break() {
            return End::Stopped;
        }
        match climber.climb(site) {
            Climb::Up => {}
            Climb::Root => return End::Root,
            Climb::Broken => break,
        }
    }
    let address = climber.pc;
    End::Broken { address }
}

/// Where the `rbp` of a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BpFrom {
    /// It is the one the walk started with.
    Start,
    /// At this address.
    Slot(usize),
    /// A row did not say.
    Nowhere,
}

/// A walk's place on the stack.
pub(crate) struct Climber<'a> {
    pub(crate) pc: usize,
    pub(crate) sp: usize,
    pub(crate) bp: usize,
    pub(crate) bp_from: BpFrom,
    stack: &'a Stack,
    root: usize,
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Climb {
    /// It is at the caller now; the return address was right below its stack pointer.
    Up,
    Root,
    Broken,
}

impl<'a> Climber<'a> {
    #[inline]
    pub(crate) fn new(start: &Registers, stack: &'a Stack, root: usize) -> Self {
        let &Registers { pc, sp, bp } = start;
        let bp_from = BpFrom::Start;
        Climber {
            pc,
            sp,
            bp,
            bp_from,
            stack,
            root,
        }
    }

    #[inline]
    fn frame(&self, site: Site) -> Frame {
        Frame {
            address: self.pc,
            sp: self.sp,
            verdict: site.verdict(),
        }
    }

    /// Asks for the site of its place, and for those that are likely to come.
    #[cold]
    pub(crate) fn ask(&self, sites: &Sites) -> End {
        let ring = sites.want(self.pc);
        let more = ask_ahead(sites, self.stack, self.sp, self.root);
        End::Unknown {
            address: self.pc,
            ring: ring | more,
        }
    }

    /// Goes to the caller, by the site of its place.
    #[inline]
    pub(crate) fn climb(&mut self, site: Site) -> Climb {
        self.try_climb(site).unwrap_or(Climb::Broken)
    }

    #[inline]
    fn try_climb(&mut self, site: Site) -> Option<Climb> {
        let row = site.row()?;
        let base = match (row.base, self.bp_from) {
            (Base::Sp, _) => self.sp,
            (Base::Bp, BpFrom::Nowhere) => return None,
            (Base::Bp, _) => self.bp,
        };
        let cfa = base.checked_add(row.cfa as usize * WORD)?;
        if cfa <= self.sp || cfa > self.root || !self.stack.holds(self.sp, cfa) {
            return None; // W2, W4
        }
        if cfa == self.root {
            return Some(Climb::Root);
        }
        self.pc = self.stack.read(cfa - WORD)?.wrapping_sub(1);
        match row.bp {
            CallersBp::Same => {}
            CallersBp::Unknown => self.bp_from = BpFrom::Nowhere,
            CallersBp::Saved(below) => {
                let slot = cfa.checked_sub(below as usize * WORD)?;
                if slot < self.sp {
                    return None; // W3
                }
                self.bp = self.stack.read(slot)?;
                self.bp_from = BpFrom::Slot(slot);
            }
        }
        self.sp = cfa;
        Some(Climb::Up)
    }
}

/// What the frames of a stack allow, all in all.
///
/// See [`judge_stack`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The worst of its frames; Home at best while one is unknown, Alone if the stack cannot be
    /// walked.
    pub verdict: Verdict,
    /// Nothing more can come out. If not, what was unknown has been asked for.
    pub complete: bool,
    /// The innermost frame with that verdict, unless it is Free; or where the walk could not go on.
    pub binding: Option<usize>,
    /// Whether the helper has to be rung to call [`resolve`](super::resolve).
    pub ring: bool,
}

/// Judges a suspended stack. As [`walk`], for any thread and for signal handlers.
///
/// ```
/// use indent_sysmon::frames::{self, Registers, Stack, Verdict};
///
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// let range = range.start.addr()..range.end.addr();
/// // SAFETY: the array outlives it, and nobody writes to it.
/// let stack = unsafe { Stack::new(range.clone()) };
/// let code = drop::<u8> as fn(u8) as usize;
/// let start = Registers::after_call(code + 1, range.start, 0);
///
/// let judgement = frames::judge_stack(&start, &stack, range.end);
/// assert_eq!(judgement.verdict, Verdict::Home); // not known yet, and asked for
/// assert!(!judgement.complete && judgement.ring);
/// ```
pub fn judge_stack(start: &Registers, stack: &Stack, root: usize) -> Judgement {
    judge_in(sites(), start, stack, root)
}

/// [`judge_stack`] by any map.
pub(crate) fn judge_in(sites: &Sites, start: &Registers, stack: &Stack, root: usize) -> Judgement {
    let mut worst = Worst::NEW;
    let end = walk_in(sites, start, stack, root, |frame| {
        worst.note(frame.address, frame.verdict)
    });
    worst.judgement(end)
}

/// The worst verdict so far.
#[derive(Clone, Copy)]
pub(crate) struct Worst {
    verdict: Verdict,
    binding: Option<usize>,
}

impl Worst {
    pub(crate) const NEW: Worst = Worst {
        verdict: Verdict::Free,
        binding: None,
    };

    /// Breaks when it cannot become worse.
    #[inline]
    pub(crate) fn note(&mut self, address: usize, verdict: Verdict) -> ControlFlow<()> {
        if verdict > self.verdict {
            self.verdict = verdict;
            self.binding = Some(address);
        }
        match self.verdict {
            Verdict::Alone => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    pub(crate) fn judgement(mut self, end: End) -> Judgement {
        let (complete, ring) = match end {
            End::Root | End::Stopped => (true, false),
            End::Unknown { address, ring } => {
                let _ = self.note(address, Verdict::Home);
                (false, ring)
            }
            End::Broken { address } => {
                let _ = self.note(address, Verdict::Alone);
                (true, false)
            }
        };
        Judgement {
            verdict: self.verdict,
            complete,
            binding: self.binding,
            ring,
        }
    }
}

#[cfg(all(test, not(indent_loom)))]
mod interrupted;
#[cfg(all(test, not(indent_loom)))]
pub(crate) mod tests;
