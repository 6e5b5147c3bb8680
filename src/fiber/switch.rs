#![expect(unsafe_code, reason = "switches stacks; see I5")]
//! Switches between a scheduler and a fiber: corosensei behind `resume` and `suspend`.
//!
//! A coroutine is made once for every stack and stays on it: its root loop runs one fiber after
//! another, so that starting a fiber on a used stack is one switch and nothing more. Between two
//! fibers it holds nothing that would need dropping.
//!
//! **I5** Only the carrier that runs a fiber touches its coroutine, from the first `resume` on. A
//! fiber changes carriers only while it is switched out. The carrier that resumes it got it through
//! a queue or a wake, whose acquire pairs with the release of the carrier that switched it out.
//! corosensei's `Coroutine` is not `Send` because of what may lie on its stack; that part is the
//! contract of `spawn` and of the scheduler (a started fiber changes carriers only if its frames
//! allow it).
//!
//! The floating-point control words (MXCSR, x87) are not saved: they belong to the thread, as any
//! C function call assumes. A fiber that changes them must restore them before it blocks.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::fiber::record::{FiberRef, Held, Record};
use crate::fiber::stack::{Slot, StackHead};
use crate::sys::arch;
use crate::util::loom::atomic::Ordering::Relaxed;

/// Why a fiber came back to its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// It yielded; enqueue it behind the others.
    Yielded,
    /// It announced a park; commit it.
    Parking,
    /// It yields, and its worker must move to another carrier.
    HandedOver,
    /// It was interrupted, at an instruction: enqueue it behind the others.
    Interrupted,
    /// It has ended; the stack is free.
    Finished,
}

/// The function that runs on the fiber's stack, given by the scheduler.
pub(crate) type Body = fn(FiberRef);

/// The part of a stack that frames may use: from below its head to the limit stored there.
struct Extent(*const StackHead);

// SAFETY: cut by `stack.rs`, which puts a guard at the lower end and leaves at least
// `MIN_STACK_SIZE` above it.
unsafe impl Stack for Extent {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.0.addr()).expect("no stack at address zero")
    }

    fn limit(&self) -> StackPointer {
        // SAFETY: the coroutine whose extent this is lies in that head.
        StackPointer::new(unsafe { StackHead::limit_of(self.0) }).expect("as above")
    }
}

type Routine = Coroutine<FiberRef, Back, (), Extent>;
type Exit = Yielder<FiberRef, Back>;

/// The coroutine that lives on a stack, and the exit through which its fiber leaves.
#[repr(C)]
pub(crate) struct Resident {
    routine: Slot<Routine>,
    /// Null: there is no coroutine yet. Dangling: it has not run yet.
    exit: *const Exit,
    /// The stack pointer of the root: frames of the fiber lie below it.
    root: usize,
}

impl Resident {
    pub(crate) fn none() -> Self {
        Resident {
            routine: Slot::new(std::mem::MaybeUninit::uninit()),
            exit: ptr::null(),
            root: 0,
        }
    }

    /// Destroys the coroutine without running anything on it.
    ///
    /// # Safety
    /// Its last fiber has ended.
    pub(crate) unsafe fn destroy(&mut self) {
        if std::mem::replace(&mut self.exit, ptr::null()).is_null() {
            return;
        }
        // SAFETY: the door says that it is there.
        let routine = unsafe { self.routine.get_mut().assume_init_mut() };
        // SAFETY: between two fibers the root loop holds nothing that needs dropping.
        unsafe { routine.force_reset() };
        // SAFETY: there, and the door says that it is not, from here on.
        unsafe { self.routine.get_mut().assume_init_drop() };
    }
}

/// The root of every fiber's stack. Never inlined: what it calls has a frame of its own, below the
/// address stored here.
#[inline(never)]
fn root(exit: &Exit, first: FiberRef, body: Body) {
    let mut fiber = first;
    loop {
        // The first frame stores the exit, for `suspend`.
        let stack = fiber.stack.load(Relaxed);
        // SAFETY: the stack this runs on; no other thread touches its head while its fiber runs
        // (I5).
        unsafe { (*stack).resident.exit = ptr::from_ref(exit) };
        // SAFETY: as above.
        unsafe { (*stack).resident.root = arch::stack_pointer() };
        body(fiber);
        fiber = exit.suspend(Back::Finished);
    }
}

/// The outermost function of a fiber.
pub(crate) type Outermost = unsafe extern "C-unwind" fn(&Record);

/// Calls the outermost function of a fiber; the runtime's frames above it are not examined.
///
/// # Safety
/// On the stack of `fiber`; and what `f` requires.
pub(crate) unsafe fn call_outermost(fiber: FiberRef, f: Outermost) {
    let stack = fiber.stack.load(Relaxed);
    // SAFETY: we stand on this stack, so its head is ours (I5).
    let before = unsafe { (*stack).resident.root };
    let restore = Restore(stack, before);
    // SAFETY: as above.
    let root = unsafe { &raw mut (*stack).resident.root };
    let record = ptr::from_ref::<Record>(&fiber).cast();
    // SAFETY: by the caller's promise; the record is that of the fiber, which runs.
    unsafe { indent_call_outermost(root, record, f as *const c_void) };
    drop(restore);
}

/// Restores the root, also if the called function unwinds.
struct Restore(*mut StackHead, usize);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: made on the stack whose head this is, and dropped on it.
        unsafe { (*self.0).resident.root = self.1 };
    }
}

unsafe extern "C-unwind" {
    /// Calls `f`, an [`Outermost`], with the record of the fiber, and stores the stack pointer just
    /// before in `root`.
    fn indent_call_outermost(root: *mut usize, fiber: *const c_void, f: *const c_void);
}

// The registers that functions preserve are cleared first. Those that no frame of the runtime has
// used since the switch are the scheduler's, and the C library's start of a thread has the thread
// pointer in one of them; the fiber's frames would save it, and the scan of its stack would find
// it. `rbp` points into this stack.
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl indent_call_outermost",
    ".hidden indent_call_outermost",
    ".type indent_call_outermost,@function",
    "indent_call_outermost:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r13, 0",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r14, 0",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r15, 0",
    "mov [rdi], rsp",
    "mov rdi, rsi",
    "xor ebx, ebx",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "call rdx",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r15",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r14",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r13",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size indent_call_outermost, . - indent_call_outermost",
);

/// Runs `fiber` on its stack until it switches back.
///
/// # Safety
/// The fiber has a stack, is switched out and the caller's to run (I1, I5).
#[inline]
pub(crate) unsafe fn resume(fiber: FiberRef, body: Body) -> Back {
    let stack = fiber.stack.load(Relaxed);
    // SAFETY: I5: the head is the running carrier's.
    if unsafe { (*stack).resident.exit.is_null() } {
        // SAFETY: as above.
        unsafe { make(stack, body) };
    }
    // SAFETY: as above.
    let slot = unsafe { (*stack).resident.routine.get() };
    // SAFETY: no other thread has a reference to it (I5).
    let slot = unsafe { &mut *slot };
    // SAFETY: made above or earlier.
    let routine = unsafe { slot.assume_init_mut() };
    match routine.resume(fiber) {
        CoroutineResult::Yield(back) => back,
        CoroutineResult::Return(()) => unreachable!("the root of a stack never returns"),
    }
}

/// Creates a coroutine on a stack that has none.
///
/// # Safety
/// The stack is the caller's and its fiber not started.
#[cold]
unsafe fn make(stack: *mut StackHead, body: Body) {
    // SAFETY: by the caller's promise.
    let head = unsafe { &mut *stack };
    let routine = Routine::with_stack(Extent(stack), move |exit: &Exit, fiber| {
        root(exit, fiber, body)
    });
    head.resident.routine.get_mut().write(routine);
    head.resident.exit = ptr::dangling();
}

/// Cache lines that the innermost frames of a fiber that waits for a descriptor take up.
const FRAMES: usize = 10;

/// Prefetches the cache lines that resuming `fiber` will touch.
#[inline]
pub(crate) fn prefetch(fiber: FiberRef) {
    let top = fiber.stack_pointer.load(Relaxed);
    for line in 0..FRAMES {
        arch::prefetch(top + line * 64);
    }
    arch::prefetch(fiber.stack.load(Relaxed).addr());
}

/// Leaves the calling fiber's stack; returns when the fiber is resumed, perhaps on another thread.
///
/// # Safety
/// Called on the stack of `fiber`.
#[inline]
pub(crate) unsafe fn suspend(fiber: FiberRef, back: Back) {
    // All of them, in this frame, so that the address scan (`locals/scan.rs`) sees them, too.
    let mut registers = [0; 8];
    arch::note_registers(&mut registers);
    let [first @ .., _, _, _, _, _] = &registers;
    // SAFETY: by the caller's promise.
    unsafe { suspend_at(fiber, back, first) };
}

/// Suspends a fiber whose frames count as standing at `registers`.
///
/// # Safety
/// As for `suspend`; the registers are those of a frame of the fiber that waits for this call.
#[inline]
pub(crate) unsafe fn suspend_at(fiber: FiberRef, back: Back, registers: &[usize; 3]) {
    let top = ptr::from_ref(registers).expose_provenance();
    fiber.stack_pointer.store(top, Relaxed);
    let stack = fiber.stack.load(Relaxed);
    // SAFETY: we stand on this stack, so its head is ours (I5).
    let exit = unsafe { (*stack).resident.exit };
    // SAFETY: `root` noted it; it lies in the root frame, which outlives us.
    let _same_fiber = unsafe { &*exit }.suspend(back);
}

/// The position of a switched-out fiber, for code that examines its frames.
pub(crate) struct Suspended {
    /// The next instruction, the stack pointer and the frame pointer.
    pub(crate) registers: [usize; 3],
    /// The fiber's frames lie below this address.
    pub(crate) root: usize,
    /// The part of its stack that it uses.
    pub(crate) stack: Range<usize>,
}

impl Suspended {
    /// The part of the stack below the root; empty if the stack pointer is on another stack.
    pub(crate) fn inside(&self) -> Range<usize> {
        let sp = self.registers[1];
        let head = ptr::with_exposed_provenance::<StackHead>(self.stack.end);
        // SAFETY: `at` found it there.
        let lowest = unsafe { StackHead::lowest_of(head) };
        if lowest <= sp && sp < self.root && self.root <= self.stack.end {
            sp..self.root
        } else {
            0..0
        }
    }
}

/// The address range where a switched-out fiber has stored its registers.
pub(crate) fn noted_registers(fiber: FiberRef) -> Range<usize> {
    let noted = fiber.stack_pointer.load(Relaxed);
    noted..noted + size_of::<[usize; 8]>()
}

/// Returns the position of `fiber`.
///
/// # Safety
/// It is started and switched out, and the caller's by I1 meanwhile.
pub(crate) unsafe fn suspended(fiber: FiberRef) -> Suspended {
    let top = ptr::with_exposed_provenance::<[usize; 3]>(fiber.stack_pointer.load(Relaxed));
    // SAFETY: `suspend_at` noted the address of a variable in a frame that is still there.
    let registers = unsafe { *top };
    // SAFETY: a started fiber has a stack, and this one is the caller's.
    unsafe { at(fiber, registers) }
}

/// Returns the position of the calling fiber, for itself.
///
/// # Safety
/// The caller runs on `fiber`, and does not return from the function `registers` are of meanwhile.
pub(crate) unsafe fn running(fiber: FiberRef, registers: [usize; 3]) -> Suspended {
    // SAFETY: a fiber that runs has a stack.
    unsafe { at(fiber, registers) }
}

/// Returns the position of a fiber that is stopped or asleep on another thread, with these
/// registers; without registers, of a switched-out fiber.
///
/// The answer may be wrong if the fiber continues meanwhile: only for callers that can handle any
/// answer. `None` if it has no stack.
pub(crate) fn elsewhere(fiber: &Held, registers: Option<[usize; 3]>) -> Option<Suspended> {
    let stack = fiber.stack.load(Relaxed);
    // A stack is never unmapped, but its fiber may end at any time, and it becomes another's.
    if stack.is_null() || cfg!(indent_sanitize) {
        return None;
    }
    // SAFETY: heads stay where they are.
    let root = unsafe { &raw const (*stack).resident.root };
    // SAFETY: in such a head, and aligned.
    let root = unsafe { root.read_volatile() };
    // SAFETY: as above.
    let lowest = unsafe { StackHead::lowest_of(stack) };
    let registers = registers.or_else(|| {
        let top = fiber.stack_pointer.load(Relaxed);
        let inside = lowest <= top && top + size_of::<[usize; 3]>() <= stack.addr();
        let top = ptr::with_exposed_provenance::<[usize; 3]>(top);
        // SAFETY: aligned and inside the used part of a stack that stays mapped.
        (inside && top.is_aligned()).then(|| unsafe { top.read_volatile() })
    })?;
    Some(Suspended {
        registers,
        root,
        stack: registers[1]..stack.expose_provenance(),
    })
}

/// # Safety
/// The fiber has a stack and is the caller's.
unsafe fn at(fiber: FiberRef, registers: [usize; 3]) -> Suspended {
    let stack = fiber.stack.load(Relaxed);
    // SAFETY: by the caller's promise.
    let root = unsafe { (*stack).resident.root };
    Suspended {
        registers,
        root,
        stack: registers[1]..stack.expose_provenance(),
    }
}
