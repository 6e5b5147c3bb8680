#![expect(unsafe_code, reason = "reads the words of a suspended stack")]
//! Climbs a suspended stack, frame by frame, and judges it.
//!
//! This file runs in signal handlers. Its rules: no allocation, no lock, no thread-local, no panic,
//! no formatting. All it knows about code it looks up in the map of [sites](super::sites).
//!
//! A walk starts from three registers and ends at the *root*: the stack pointer that the runtime
//! had just before it called the outermost function, that is, the address right above the return
//! address of that call. Frames above it are the runtime's own.
//!
//! Invariants of a walk:
//! - U1. Every word is read through [`Stack`], which refuses addresses that are not aligned and
//!   inside.
//! - U2. A frame's CFA is above its stack pointer, so walks end; there are at most [`FRAMES`].
//! - U3. A saved `rbp` is read only from inside its frame.
//! - U4. A walk succeeds only if a CFA *is* the root. A CFA beyond it means that a row was wrong or
//!   the stack is not what it seems: [`End::Broken`]. Rejected: stopping at the first CFA at or
//!   beyond the root; one wrong `rbp` would then hide frames.
//!
//! A suspended frame stands after a call, and its return address may be the first byte of the next
//! function if the call never returns. So the lookup uses the last byte of the call. For an
//! interrupted frame it uses the instruction itself; rows are right there only where the compiler
//! wrote them for every instruction.

use std::ops::Range;

use super::Mobility;
use super::ahead::ask_ahead;
use super::rows::{Base, CallersBp, Row, WORD};
use super::sites::{Sites, sites};
use crate::system_call::SystemCall;

/// Maximum number of frames of one walk; a deeper stack counts as broken.
pub(crate) const FRAMES: usize = 4096;

/// Stands for an unknown `rbp`: no stack is at this address.
pub(crate) const UNKNOWN: usize = usize::MAX;

/// The memory of a suspended stack.
///
/// ```
/// use indent_sysmon::frames::Stack;
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// // SAFETY: the array outlives it, and nothing writes to it.
/// let stack = unsafe { Stack::new(range.start.addr()..range.end.addr()) };
/// # let _ = stack;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    range: Range<usize>,
}

impl Stack {
    /// Wraps the stack between two addresses.
    ///
    /// # Safety
    /// While the value is used the memory is mapped and readable, and only the thread that uses the
    /// value writes to it.
    #[inline]
    pub unsafe fn new(range: Range<usize>) -> Stack {
        Stack { range }
    }

    /// Reads the word at an address, if it is aligned and inside.
    #[inline]
    pub(crate) fn read(&self, at: usize) -> Option<usize> {
        if !self.holds(at, at.wrapping_add(WORD)) {
            return None;
        }
        // SAFETY: inside, and `new`'s caller is responsible for the inside.
        Some(unsafe { super::peek::word(at) })
    }

    /// Whether all words from one address to another are inside.
    #[inline]
    pub(crate) fn holds(&self, from: usize, to: usize) -> bool {
        let inside = self.range.start <= from && from <= to && to <= self.range.end;
        inside && (from | to).is_multiple_of(WORD)
    }
}

/// Registers that a walk starts from.
///
/// ```
/// use indent_sysmon::frames::Registers;
/// let suspended = Registers::after_call(0x4010_05, 0x7ff0, 0x7ff8);
/// assert_eq!(suspended, Registers::interrupted(0x4010_04, 0x7ff0, 0x7ff8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Address that is looked up.
    pub(crate) pc: usize,
    pub(crate) sp: usize,
    pub(crate) bp: usize,
}

impl Registers {
    /// Describes a stack that waits in a call.
    ///
    /// The arguments are the return address, and the stack pointer and `rbp` that it will have
    /// then.
    #[inline]
    pub fn after_call(ip: usize, sp: usize, bp: usize) -> Self {
        let pc = ip.wrapping_sub(1);
        Registers { pc, sp, bp }
    }

    /// Returns the registers of the calling function, for a walk during the next call it makes.
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

    /// Describes a thread that sleeps in this system call.
    ///
    /// Its `rbp` is not known; [`Snapshot`](super::Snapshot) guesses it where it is needed.
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

    /// Describes a stack that was interrupted at an instruction.
    #[inline]
    pub fn interrupted(ip: usize, sp: usize, bp: usize) -> Self {
        Registers { pc: ip, sp, bp }
    }
}

/// Result of a walk.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The walk reached the root: all frames were seen, and all are movable.
    Root,
    /// The walk reached a place in the code that binds.
    Bound { address: usize },
    /// The walk reached an unknown place, and requested it. `ring`: the helper must be notified.
    Unknown { address: usize, ring: bool },
    /// The walk cannot continue from here: the stack is not what the rows say.
    Broken { address: usize },
}

/// Visits the frames of a suspended stack, innermost first, as far as they are movable.
///
/// Each visit gets the place in the code and the stack pointer. `root` is the stack pointer just
/// before the outermost function was called.
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

/// Source of the `rbp` of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BpFrom {
    /// The `rbp` that the walk started with.
    Start,
    /// The slot at this address.
    Slot(usize),
    /// Unknown: a row did not say.
    Nowhere,
}

/// Position of a walk on the stack.
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

    /// Requests the site of its place, and the sites that are likely to be needed next.
    #[cold]
    pub(crate) fn ask(&self, sites: &Sites) -> End {
        let ring = sites.want(self.pc);
        let more = ask_ahead(sites, self.stack, self.sp, self.root);
        End::Unknown {
            address: self.pc,
            ring: ring | more,
        }
    }

    /// Moves to the caller, by the row of its place.
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

/// Judgement on a whole stack, from all of its frames.
///
/// See [`judge_stack`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Movable only if all frames are known and movable.
    pub mobility: Mobility,
    /// Whether the judgement is final. If not, what was unknown has been requested.
    pub complete: bool,
    /// The innermost frame that binds or is unknown, or where the walk could not continue.
    pub binding: Option<usize>,
    /// Whether the helper must be notified, so that it calls [`resolve`](super::resolve).
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

/// Judges a suspended stack.
///
/// `root` is the stack pointer just before the outermost function was called. Allocates nothing and
/// takes no lock, so it may run on any thread and in signal handlers.
///
/// ```
/// use indent_sysmon::frames::{self, Mobility, Registers, Stack};
///
/// let words = [0usize; 16];
/// let range = words.as_ptr_range();
/// let range = range.start.addr()..range.end.addr();
/// // SAFETY: the array outlives it, and nothing writes to it.
/// let stack = unsafe { Stack::new(range.clone()) };
/// let code = drop::<u8> as fn(u8) as usize;
/// let start = Registers::after_call(code + 1, range.start, 0);
///
/// let judgement = frames::judge_stack(&start, &stack, range.end);
/// assert_eq!(judgement.mobility, Mobility::Bound); // not known yet; requested
/// assert!(!judgement.complete && judgement.ring);
/// frames::resolve(|_| Mobility::Bound); // on the helper's thread
/// let judgement = frames::judge_stack(&start, &stack, range.end);
/// assert_eq!((judgement.complete, judgement.binding), (true, Some(code)));
/// ```
pub fn judge_stack(start: &Registers, stack: &Stack, root: usize) -> Judgement {
    judge_in(sites(), start, stack, root)
}

/// [`judge_stack`] with any map of sites.
pub(crate) fn judge_in(sites: &Sites, start: &Registers, stack: &Stack, root: usize) -> Judgement {
    Judgement::of(walk_in(sites, start, stack, root, |_, _| ()))
}

#[cfg(all(test, not(indent_loom)))]
mod interrupted;
#[cfg(all(test, not(indent_loom)))]
pub(crate) mod tests;
