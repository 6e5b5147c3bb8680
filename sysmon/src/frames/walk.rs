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
//! - U1. Every word is read through [`Stack`], which refuses what is not aligned and inside.
//! - U2. A frame's CFA is above its stack pointer, so walks end; there are at most [`FRAMES`].
//! - U3. A saved `rbp` is read from inside its frame only.
//! - U4. It ends well only if a CFA *is* the root. One beyond it means that a row was wrong or the
//!   stack is not what it seems: [`End::Broken`]. Rejected: to stop at the first CFA at or beyond the
//!   root; one wrong `rbp` would then hide frames.
//!
//! A suspended frame stands after a call, and its return address may be the first byte of the next
//! function if the call never returns. So what is looked up is the last byte of the call. For an
//! interrupted frame it is the instruction itself; rows are right there only where the compiler
//! wrote them for every instruction.

use std::ops::Range;

use super::Mobility;
use super::ahead::ask_ahead;
use super::rows::{Base, CallersBp, Row, WORD};
use super::sites::{Sites, sites};
use crate::system_call::SystemCall;

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

/// How a walk ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At the root: all frames were seen, and all are movable.
    Root,
    /// At a place in the code that binds.
    Bound { address: usize },
    /// At a place that is not known yet; it was asked for. `ring`: the helper has to be rung.
    Unknown { address: usize, ring: bool },
    /// There is no way on from here: the stack is not what the rows say.
    Broken { address: usize },
}

/// Shows the frames of a suspended stack, innermost first, as far as they are movable: the place in
/// the code and the stack pointer of each. `root` is the stack pointer just before the outermost
/// function was called.
pub(crate) fn walk_in(
    sites: &Sites,
    start: &Registers,
    stack: &Stack,
    root: usize,
    mut visit: impl FnMut(usize, usize),
) -> End {
    let mut climber = Climber::new(start, stack, root);
    let mut bound = false;
    for _ in 0..FRAMES {
        let address = climber.pc;
        let Some(site) = sites.get(address) else {
            return climber.ask(sites);
        };
        let Some(row) = site.row_after(&mut bound) else {
            return End::Bound { address };
        };
        if !bound {
            visit(address, climber.sp);
        }
        match climber.climb(row) {
            Climb::Up => {}
            _ if bound => return End::Bound { address },
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

    /// Goes to the caller, by the row of its place.
    #[inline]
    pub(crate) fn climb(&mut self, row: Row) -> Climb {
        self.try_climb(row).unwrap_or(Climb::Broken)
    }

    #[inline]
    fn try_climb(&mut self, row: Row) -> Option<Climb> {
        let base = match (row.base, self.bp_from) {
            (Base::Sp, _) => self.sp,
            (Base::Bp, BpFrom::Nowhere) => return None,
            (Base::Bp, _) => self.bp,
        };
        let cfa = base.checked_add(row.cfa as usize * WORD)?;
        if cfa <= self.sp || cfa > self.root || !self.stack.holds(self.sp, cfa) {
            return None; // U2, U4
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
                    return None; // U3
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
    /// Movable only if all frames are known and movable.
    pub mobility: Mobility,
    /// Nothing more can come out. If not, what was unknown has been asked for.
    pub complete: bool,
    /// The innermost frame that binds or is unknown, or where the walk could not go on.
    pub binding: Option<usize>,
    /// Whether the helper has to be rung to call [`resolve`](super::resolve).
    pub ring: bool,
}

impl Judgement {
    #[inline]
    pub(crate) fn of(end: End) -> Self {
        let (binding, complete, ring) = match end {
            End::Root => (None, true, false),
            End::Unknown { address, ring } => (Some(address), false, ring),
            End::Bound { address } | End::Broken { address } => (Some(address), true, false),
        };
        let mobility = match binding {
            None => Mobility::Movable,
            Some(_) => Mobility::Bound,
        };
        Judgement {
            mobility,
            complete,
            binding,
            ring,
        }
    }
}

/// Judges a suspended stack. `root` is the stack pointer just before the outermost function was
/// called. Allocates nothing and takes no lock: for any thread and for signal handlers.
///
/// ```
/// use indent_sysmon::frames::{self, Mobility, Registers, Stack};
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
/// assert_eq!(judgement.mobility, Mobility::Bound); // not known yet, and asked for
/// assert!(!judgement.complete && judgement.ring);
/// frames::resolve(|_| Mobility::Bound); // on the helper's thread
/// let judgement = frames::judge_stack(&start, &stack, range.end);
/// assert_eq!((judgement.complete, judgement.binding), (true, Some(code)));
/// ```
pub fn judge_stack(start: &Registers, stack: &Stack, root: usize) -> Judgement {
    judge_in(sites(), start, stack, root)
}

/// [`judge_stack`] by any map.
pub(crate) fn judge_in(sites: &Sites, start: &Registers, stack: &Stack, root: usize) -> Judgement {
    Judgement::of(walk_in(sites, start, stack, root, |_, _| ()))
}

#[cfg(all(test, not(indent_loom)))]
mod interrupted;
#[cfg(all(test, not(indent_loom)))]
pub(crate) mod tests;
