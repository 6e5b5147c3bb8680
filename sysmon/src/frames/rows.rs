#![expect(
    unsafe_code,
    reason = "reads the unwind tables where the loader mapped them"
)]
//! How to climb from a frame to its caller: one row of the unwind tables, condensed.
//!
//! The *CFA* of a frame is the stack pointer its caller had just before the call; the return
//! address lies right below it. A row says, for one instruction, how far the CFA is above the stack
//! pointer or above `rbp`, and where the caller's `rbp` is. Nothing else is needed to climb a
//! stack: in rows that a compiler writes for code which calls something, no other register is ever
//! the base.
//!
//! Rows that say anything else (other registers, expressions as in a PLT, a return address that is
//! not below the CFA, signal frames) are *not walkable*: [`Unwinder::row`] returns `None` for them,
//! as it does for code without an entry, and a walk that meets one ends there.
//!
//! A register without a rule keeps its value: that is what the x86-64 ABI says of `rbp`, and what
//! compilers mean by it.
//!
//! Tables of the executable stay for ever; those of a library may be unmapped while they are read.
//! They are read inside [`while_still`], which holds the loader's lock. Rejected: holding it for
//! the executable as well (an unwinder older than glibc 2.35 takes it for every panic).
//!
//! Everything here runs on the helper's thread.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer, Register,
    RegisterRule, UnwindContext, UnwindSection, UnwindTableRow, X86_64,
};

use super::objects::{Census, Object, Objects};

/// Unit of the tables: the CFA and everything saved is aligned to it.
pub(crate) const WORD: usize = size_of::<usize>();

/// Maximum number of words that fits a row; a gigabyte of stack fits.
pub(crate) const MOST_WORDS: u32 = (1 << 28) - 1;

/// What the distance of the CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Sp,
    Bp,
}

/// Where the caller's `rbp` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallersBp {
    /// Still in `rbp`.
    Same,
    /// This many words below the CFA.
    Saved(u32),
    Unknown,
}

/// How to climb from a frame to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) base: Base,
    /// How many words the CFA is above the base; at least one.
    pub(crate) cfa: u32,
    pub(crate) bp: CallersBp,
}

type Bytes = EndianSlice<'static, LittleEndian>;

/// Finds rows. Reuses gimli's scratch memory between lookups.
pub(crate) struct Unwinder {
    context: Box<UnwindContext<usize>>,
}

impl Unwinder {
    pub(crate) fn new() -> Self {
        Unwinder {
            context: Box::new(UnwindContext::new()),
        }
    }

    /// Returns the row for an instruction; `None`: not walkable.
    ///
    /// The object must stay mapped meanwhile.
    pub(crate) fn row(&mut self, object: &Object, pc: usize) -> Option<Row> {
        let tables = Tables::of(object)?;
        let fde = tables.function(pc)?;
        if fde.is_signal_trampoline() {
            return None;
        }
        let (frames, bases) = (&tables.frames, &tables.bases);
        let row = fde.unwind_info_for_address(frames, bases, &mut self.context, pc as u64);
        condense(row.ok()?)
    }

    /// Returns the row for an instruction of any object that is still mapped.
    pub(crate) fn row_in(&mut self, objects: &Objects, pc: usize) -> Option<Row> {
        let object = objects.at(pc)?;
        match std::ptr::eq(object, &objects.list[0]) {
            true => self.row(object, pc),
            false => while_still(objects.census, || self.row(object, pc)).flatten(),
        }
    }
}

/// Returns where the function around an instruction begins.
///
/// The object must stay mapped meanwhile.
pub(crate) fn beginning(object: &Object, pc: usize) -> Option<usize> {
    let function = Tables::of(object)?.function(pc)?;
    Some(function.initial_address() as usize)
}

/// The unwind tables of one object.
struct Tables {
    index: gimli::ParsedEhFrameHdr<Bytes>,
    frames: EhFrame<Bytes>,
    bases: BaseAddresses,
}

impl Tables {
    fn of(object: &Object) -> Option<Tables> {
        let header = object.unwind.clone()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.start as u64);
        let index = EhFrameHdr::from(bytes(object, header)?);
        let index = index.parse(&bases, WORD as u8).ok()?;
        let Pointer::Direct(frames) = index.eh_frame_ptr() else {
            return None;
        };
        let frames = frames as usize;
        // The header says where it begins, not where it ends: at the latest with its segment.
        let segment = object.segments.iter().find(|s| s.range.contains(&frames))?;
        let bases = bases.set_eh_frame(frames as u64);
        let frames = EhFrame::from(bytes(object, frames..segment.range.end)?);
        Some(Tables {
            index,
            frames,
            bases,
        })
    }

    /// Returns the entry of the function around an instruction.
    fn function(&self, pc: usize) -> Option<gimli::FrameDescriptionEntry<Bytes>> {
        let table = self.index.table()?;
        let entry = EhFrame::cie_from_offset;
        table
            .fde_for_address(&self.frames, &self.bases, pc as u64, entry)
            .ok()
    }
}

/// Returns a part of an object, if it is inside a read-only segment.
fn bytes(object: &Object, range: Range<usize>) -> Option<Bytes> {
    let inside = |s: &&super::objects::Segment| {
        s.range.start <= range.start && range.end <= s.range.end && !s.writable
    };
    object.segments.iter().find(inside)?;
    let start = std::ptr::with_exposed_provenance(range.start);
    // SAFETY: the loader mapped this segment and nothing writes to it. It outlives what is made of
    // it here: the caller ensures that the object stays (`Unwinder::row`), and nothing of it is
    // kept.
    let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(start, range.len()) };
    Some(EndianSlice::new(bytes, LittleEndian))
}

fn condense(row: &UnwindTableRow<usize>) -> Option<Row> {
    let below_cfa = Some(RegisterRule::Offset(-(WORD as i64)));
    if row.register(X86_64::RA) != below_cfa {
        return None;
    }
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
        return None;
    };
    let base = match register {
        X86_64::RSP => Base::Sp,
        X86_64::RBP => Base::Bp,
        _ => return None,
    };
    Some(Row {
        base,
        cfa: words(offset).filter(|words| *words > 0)?,
        bp: callers_bp(row.register(X86_64::RBP)),
    })
}

const _: () = assert!(X86_64::RA.0 == 16 && matches!(X86_64::RBP, Register(6)));

fn callers_bp(rule: Option<RegisterRule<usize>>) -> CallersBp {
    match rule {
        None | Some(RegisterRule::SameValue) => CallersBp::Same,
        Some(RegisterRule::Offset(offset)) => match words(-offset) {
            Some(below) if below > 1 => CallersBp::Saved(below),
            _ => CallersBp::Unknown,
        },
        Some(_) => CallersBp::Unknown,
    }
}

fn words(bytes: i64) -> Option<u32> {
    let words = u32::try_from(bytes / WORD as i64).ok()?;
    (bytes % WORD as i64 == 0 && words <= MOST_WORDS).then_some(words)
}

/// Calls `f` while the loader loads and unloads nothing, if nothing changed since the census.
///
/// `f` must not wait for any other thread.
pub(crate) fn while_still<F: FnOnce() -> T, T>(census: Census, f: F) -> Option<T> {
    let mut call = Call {
        census,
        f: Some(f),
        result: None,
    };
    // SAFETY: `first` gets this very pointer and returns before the call does.
    unsafe { libc::dl_iterate_phdr(Some(first::<F, T>), (&raw mut call).cast()) };
    call.result
}

struct Call<F, T> {
    census: Census,
    f: Option<F>,
    result: Option<T>,
}

/// Called by the loader, under its lock; returns "enough", so for the first object only.
unsafe extern "C" fn first<F: FnOnce() -> T, T>(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    call: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader's, for the time of this call.
    let info = unsafe { &*info };
    // SAFETY: `while_still` passed it and waits.
    let call = unsafe { &mut *call.cast::<Call<F, T>>() };
    let now = Census {
        loaded: info.dlpi_adds,
        unloaded: info.dlpi_subs,
    };
    if now == call.census {
        call.result = call.f.take().map(|f| f());
    }
    1
}

#[cfg(all(test, not(indent_loom)))]
mod tests;
