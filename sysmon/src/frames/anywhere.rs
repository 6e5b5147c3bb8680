#![expect(unsafe_code, reason = "calls the allocator by its raw functions")]
//! Judges a stack that was interrupted at an instruction outside of any region (I35), and the
//! allocator of a program in which such stacks are left.
//!
//! Rules of `judge_anywhere`: it runs in signal handlers, as `walk` does.
//!
//! *The allocator.* Other stacks run on the thread of a stack that was left, and the scheduler
//! allocates. So a stack must not be left while it holds a lock of the allocator. An allocator in C
//! is behind a call, and no stack with a frame of C is left. Code in Rust may be anywhere, by
//! link-time optimization; then all of it has to be free of locks. It is found from four functions
//! of this file that allocate and free: what the compiler has put into them, or calls there, is
//! what it puts into other functions. The search follows calls and jumps, and slots that the loader
//! has filled in and protected. A call through any other pointer may lead to a lock, so the program
//! is refused. The search does not follow functions by which the standard library panics: a stack
//! that panics is not left.

use std::alloc::{self, Layout};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::ops::Range;
use std::sync::OnceLock;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::image::{self, memory::Memory};
use super::objects::{Object, Objects};
use super::study;
use super::trace::TraceCache;
use super::verdict::{Function, InPlace, Judge};
use super::walk::{Climb, Climber, Registers, Stack};

/// Maximum number of frames: each of them takes a microsecond.
const DEEP: usize = 128;

impl TraceCache {
    /// Whether an interrupted stack may be left in place and continue on another thread.
    ///
    /// The answer is based on its code. It is true if every frame up to the root lies in the
    /// executable, can be climbed from, is movable, is written in Rust, and belongs neither to the
    /// allocator nor to the runtime; and if the innermost function has nothing to do with the
    /// runtime or with addresses of thread-locals. It is false before [`Judge::refuses_in_place`]
    /// has found nothing against it.
    ///
    /// What the registers and words of the stack hold is not looked at here. Like
    /// [`judge`](Self::judge), for the thread that owns the cache; for signal handlers too.
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
        if ALLOCATOR.get() != Some(&None) {
            return false;
        }
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

/// Why the program's allocator may hold a lock in Rust code, if it may; set by the first request.
static ALLOCATOR: OnceLock<Option<&'static str>> = OnceLock::new();

const UNKNOWN: &str = "its allocator cannot be found";
const POINTERS: &str = "its allocator calls functions through pointers";
const LOCKS: &str = "its allocator is written in Rust and may hold a lock";
/// Maximum number of functions of an allocator: a larger one is not followed to its end.
const MOST: usize = 1_000;

/// Name prefixes of functions that do not return: the standard library panics, or ends the process.
const PANICS: [&str; 9] = [
    "core::panicking::",
    "std::panicking::",
    "core::option::unwrap_failed",
    "core::option::expect_failed",
    "core::result::unwrap_failed",
    "core::slice::index::",
    "alloc::alloc::handle_alloc_error",
    "std::alloc::handle_alloc_error",
    "std::process::abort",
];

impl Judge {
    /// Returns why no interrupted stack of this program is left in place outside of regions.
    ///
    /// First it calls [`in_place_refusal`](Self::in_place_refusal), then it reads the code of the
    /// allocator. `None` means no objection: from then on [`TraceCache::judge_anywhere`] may return
    /// true. Allocates.
    ///
    /// ```
    /// let judge = indent_sysmon::frames::Judge::survey();
    /// assert!(judge.refuses_in_place().is_some()); // stacks take no thread-locals along
    /// ```
    pub fn refuses_in_place(&self) -> Option<&'static str> {
        let refusal = self.in_place_refusal();
        refusal.or_else(|| *ALLOCATOR.get_or_init(|| self.refuses_allocator()))
    }

    fn refuses_allocator(&self) -> Option<&'static str> {
        let entries: [usize; 4] = black_box([
            obtain as unsafe fn(Layout) -> *mut u8 as usize,
            obtain_zeroed as unsafe fn(Layout) -> *mut u8 as usize,
            release as unsafe fn(*mut u8, Layout) as usize,
            resize as unsafe fn(*mut u8, Layout, usize) -> *mut u8 as usize,
        ]);
        let objects = Objects::now();
        let Some(executable) = objects
            .list
            .first()
            .filter(|first| first.contains(entries[0]))
        else {
            return Some(UNKNOWN);
        };
        Search {
            functions: (self.functions().filter(|f| executable.contains(f.start))).collect(),
            memory: image::map(executable),
            executable,
            found: BTreeSet::new(),
            next: Vec::new(),
        }
        .run(&entries)
        .err()
    }
}

/// Allocates, as all code of the program does.
#[inline(never)]
unsafe fn obtain(layout: Layout) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { alloc::alloc(layout) }
}

/// Allocates zeroed memory, as all code of the program does.
#[inline(never)]
unsafe fn obtain_zeroed(layout: Layout) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { alloc::alloc_zeroed(layout) }
}

/// Frees, as all code of the program does.
#[inline(never)]
unsafe fn release(at: *mut u8, layout: Layout) {
    // SAFETY: by the caller's promise.
    unsafe { alloc::dealloc(at, layout) };
}

/// Makes an allocation larger or smaller, as all code of the program does.
#[inline(never)]
unsafe fn resize(at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { alloc::realloc(at, layout, size) }
}

/// A search for everything that the allocator calls.
struct Search<'a> {
    /// Functions of the executable, in order.
    functions: Vec<Function<'a>>,
    memory: Memory,
    executable: &'a Object,
    /// Start addresses of functions that were found, and those of them that have not been read.
    found: BTreeSet<usize>,
    next: Vec<Range<usize>>,
}

impl Search<'_> {
    fn run(mut self, entries: &[usize]) -> Result<(), &'static str> {
        for &entry in entries {
            self.follow(entry)?;
        }
        while let Some(function) = self.next.pop() {
            self.read(function)?;
            if self.found.len() > MOST {
                return Err(LOCKS);
            }
        }
        Ok(())
    }

    /// Handles a call of, or a jump to, this address.
    fn follow(&mut self, target: usize) -> Result<(), &'static str> {
        if !self.executable.contains(target) {
            return Ok(()); // behind a call
        }
        let after = self.functions.partition_point(|f| f.start <= target);
        let function = after.checked_sub(1).map(|index| self.functions[index]);
        let Some(function) = function.filter(|function| target < function.end) else {
            return self.follow_stub(target);
        };
        if !self.found.insert(function.start) {
            return Ok(());
        }
        // Code without a name is read: it may be a stub of the linker.
        let name = function.name().unwrap_or_default();
        let is_c = !name.is_empty() && !name.contains("::");
        if !is_c && !PANICS.iter().any(|begins| name.starts_with(begins)) {
            self.next.push(function.start..function.end);
        }
        Ok(())
    }

    /// Follows a stub of the linker, which jumps to another object and has no unwind row.
    fn follow_stub(&mut self, target: usize) -> Result<(), &'static str> {
        const LONGEST: usize = 32;
        for instruction in self.decode(target..target + LONGEST)? {
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::IndirectBranch => return self.follow_slot(&instruction),
                _ => break,
            }
        }
        Err(UNKNOWN)
    }

    fn read(&mut self, function: Range<usize>) -> Result<(), &'static str> {
        for instruction in self.decode(function.clone())? {
            let exchanges = instruction.mnemonic() == Mnemonic::Xchg
                && (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
            if instruction.has_lock_prefix() || exchanges {
                return Err(LOCKS);
            }
            match instruction.flow_control() {
                FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                    self.follow_slot(&instruction)?;
                }
                FlowControl::Call
                | FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                    if instruction.op0_kind() == OpKind::NearBranch64 =>
                {
                    let target = instruction.near_branch_target() as usize;
                    if !function.contains(&target) {
                        self.follow(target)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Follows a call or a jump through memory.
    ///
    /// The target is known if the loader has filled in that memory and then protected it.
    fn follow_slot(&mut self, instruction: &Instruction) -> Result<(), &'static str> {
        let relative = instruction.op0_kind() == OpKind::Memory
            && instruction.memory_base() == Register::RIP
            && instruction.memory_index() == Register::None;
        let slot = instruction.memory_displacement64() as usize;
        let is_protected = |relro: &Range<usize>| relro.contains(&slot);
        let protected = relative && self.executable.relro.as_ref().is_some_and(is_protected);
        let target = protected.then(|| self.memory.word(slot)).flatten();
        self.follow(target.ok_or(POINTERS)?)
    }

    fn decode(&self, range: Range<usize>) -> Result<Vec<Instruction>, &'static str> {
        let start = range.start as u64;
        let bytes = self.memory.bytes(range).ok_or(UNKNOWN)?;
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        Ok(decoder.iter().collect())
    }
}
