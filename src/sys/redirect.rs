#![expect(unsafe_code, reason = "registers of an interrupted thread")]
//! Redirects interrupted code: it calls a function before it continues.
//!
//! This file has all x86_64 code of in-place preemption.
//!
//! A signal handler makes its thread continue at [`indent_in_place_switch`], on the stack of the
//! interrupted code, which notices nothing of it. This *trampoline* saves what the handler cannot
//! (the extended state: x87, SSE, AVX, AVX-512, whatever the kernel has enabled), calls the
//! function, and then restores every register and continues with the interrupted instruction.
//!
//! ```text
//! interrupted rsp →  ┌──────────────────────────┐ CFA
//!                    │ red zone, 128 bytes: the │
//!                    │ interrupted code's       │
//!                    ├──────────────────────────┤
//!                    │ rip, rflags, rbp, rax, … │ `Saved`: written by the handler
//!            rbp  →  │ … r14, r15               │
//!                    │ control words            │
//!                    ├──────────────────────────┤
//!            rsp  →  │ XSAVE area, 64-aligned   │ written by the trampoline
//!                    └──────────────────────────┘
//! ```
//!
//! The handler sets `rbp` to `Saved`, so that from its first instruction to its last the
//! trampoline's unwind rows are right: debuggers, profilers and `Backtrace` see the interrupted
//! frame as the caller, marked as a signal frame (its address is an instruction, not one behind a
//! call). The runtime's own walks (`indent_sysmon::frames`) stop at that mark: code that is
//! interrupted inside the trampoline or below it is not preempted in place.
//!
//! The function gets the state that the ABI promises: direction flag clear, x87 stack empty, and
//! the control words (MXCSR, x87) that its caller passes; the interrupted code gets its own back.
//! PKRU, which controls what memory the *thread* may access, is neither saved nor restored.
//!
//! Rejected: saving the extended state from the signal frame, which the kernel has filled in (its
//! layout depends on the kernel, and the trampoline must restore from its own stack anyway); XSAVEC
//! (it needs one more feature bit for a saving in the noise).

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The control words for a call: MXCSR, and the x87 control word above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Controls {
    mxcsr: u32,
    x87: u16,
}

/// Flags of MXCSR that are results of past operations, not settings.
const HAPPENED: u32 = 0x3f;

impl Controls {
    /// Whether computations under both have the same results.
    pub(crate) fn are_like(self, other: Controls) -> bool {
        (self.mxcsr | HAPPENED, self.x87) == (other.mxcsr | HAPPENED, other.x87)
    }

    /// Returns the control words of the calling thread.
    #[inline]
    pub(crate) fn now() -> Self {
        let mut now = Controls::default();
        // SAFETY: both write to the fields they are given.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{mxcsr}]",
                "fnstcw [{x87}]",
                mxcsr = in(reg) &raw mut now.mxcsr,
                x87 = in(reg) &raw mut now.x87,
                options(nostack, preserves_flags),
            );
        }
        now
    }
}

/// Registers of the interrupted code, on its stack, as the trampoline restores them.
#[repr(C)]
pub(crate) struct Saved {
    controls: Controls,
    /// r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbx, rdx, rcx, rax.
    general: [i64; 14],
    rbp: i64,
    flags: i64,
    rip: i64,
}

/// Indices of those registers in a `ucontext_t`.
const GENERAL: [libc::c_int; 14] = [
    libc::REG_R15,
    libc::REG_R14,
    libc::REG_R13,
    libc::REG_R12,
    libc::REG_R11,
    libc::REG_R10,
    libc::REG_R9,
    libc::REG_R8,
    libc::REG_RDI,
    libc::REG_RSI,
    libc::REG_RBX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RAX,
];

/// Bytes below the stack pointer that belong to the interrupted code.
const RED_ZONE: usize = 128;
/// Bytes of stack that the function and its callees may use.
const ROOM: usize = 16 * 1024;

/// Flags that are cleared for a call.
const AC: i64 = 1 << 18;
const NT: i64 = 1 << 14;
const DF: i64 = 1 << 10;
const TF: i64 = 1 << 8;

/// Parts of the extended state that are examined: x87, SSE, and those up to AVX-512's.
const LOOKED_AT: usize = 8;
/// Offset in an XSAVE area and size of each of these; zero for the first two, whose place is fixed.
static PLACES: [[AtomicU32; 2]; LOOKED_AT] =
    [const { [const { AtomicU32::new(0) }; 2] }; LOOKED_AT];
/// Parts that hold no address: protection keys, and the layout of tiles.
const WITHOUT_ADDRESS: u64 = 1 << 9 | 1 << 17;

/// Size of the XSAVE area, zero where there is none, and which parts of it are saved.
static SIZE: AtomicUsize = AtomicUsize::new(0);
static PARTS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// A function that interrupted code calls.
pub(crate) type Target = extern "C" fn(&Saved);

/// Determines what must be saved. Called before the first [`redirect`].
pub(crate) fn prepare() {
    const OSXSAVE: u32 = 1 << 27;
    const PKRU: u64 = 1 << 9;
    let features = std::arch::x86_64::__cpuid(1);
    if features.ecx & OSXSAVE == 0 {
        return;
    }
    let area = std::arch::x86_64::__cpuid_count(0xd, 0);
    let parts = enabled_parts() & !PKRU;
    PARTS[0].store(parts as u32, Relaxed);
    PARTS[1].store((parts >> 32) as u32, Relaxed);
    for (part, [start, size]) in (0..).zip(&PLACES).skip(2) {
        let place = std::arch::x86_64::__cpuid_count(0xd, part);
        start.store(place.ebx, Relaxed);
        size.store(place.eax, Relaxed);
    }
    SIZE.store(area.ebx as usize, Relaxed);
}

/// The parts of the extended state that the kernel has enabled (XCR0); only where there is OSXSAVE.
fn enabled_parts() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register that is there, by OSXSAVE.
    unsafe {
        std::arch::asm!(
            "xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Bytes of stack needed below the interrupted stack pointer; `None` where redirection is
/// unsupported.
pub(crate) fn room_needed() -> Option<usize> {
    let area = SIZE.load(Relaxed);
    (area > 0).then_some(RED_ZONE + size_of::<Saved>() + area + 64 + ROOM)
}

/// An XSAVE area in which every part has its initial value.
#[repr(C, align(64))]
struct Initial([u8; 512 + 64]);

static INITIAL: Initial = Initial([0; 512 + 64]);

/// Clears the vector registers of the calling thread, so that the code that runs next has none of
/// the caller's addresses in registers that it never uses. A plain call, which may change all of
/// them anyway.
#[inline(never)]
pub(crate) extern "C" fn clear_vectors() {
    const AVX: u32 = 1 << 2;
    /// Masks, and what AVX-512 has beyond AVX; not x87, SSE and AVX, with which MXCSR is loaded.
    const BEYOND: u32 = 0xf8;
    let parts = PARTS[0].load(Relaxed);
    if parts & AVX == 0 {
        return; // unknown, or not there: then some fibers freeze that need not
    }
    // SAFETY: both instructions are there, by the parts that are enabled; they change registers
    // only that a call may change.
    unsafe {
        std::arch::asm!(
            "vzeroall",
            "xrstor64 [{initial}]",
            initial = in(reg) &raw const INITIAL,
            in("eax") parts & BEYOND,
            in("edx") 0,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// The registers of interrupted code, where the kernel has stored them.
pub(crate) struct Held {
    pub(crate) controls: Controls,
    /// The general registers, then the parts of the extended state that are in use.
    pub(crate) parts: [Range<usize>; 1 + LOOKED_AT],
}

/// Returns the registers of interrupted code. `None` if there may be more than are known.
///
/// # Safety
/// `context` is the third argument of the running handler.
pub(crate) unsafe fn held(context: *mut libc::c_void) -> Option<Held> {
    /// r8 to r15, then those up to `rip`.
    const GENERAL: usize = 17;
    const CWD: usize = 0;
    const MXCSR: usize = 24;
    const X87: Range<usize> = 32..160;
    const SSE: Range<usize> = 160..416;
    const MAGIC: usize = 464;
    const IN_USE: usize = 512;
    const HAS_MORE: u32 = 0x4650_5853;
    // SAFETY: by the caller's promise.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let general = context.uc_mcontext.gregs[..GENERAL].as_ptr_range();
    let state = context.uc_mcontext.fpregs.cast::<u8>();
    if state.is_null() {
        return None;
    }
    // SAFETY: the kernel has put 512 bytes there; the offsets are those of FXSAVE.
    let magic = unsafe { state.wrapping_add(MAGIC).cast::<u32>().read_unaligned() };
    if magic != HAS_MORE {
        return None; // not by XSAVE
    }
    // SAFETY: as above; the magic number says that the header of an XSAVE area follows.
    let in_use = unsafe { state.wrapping_add(IN_USE).cast::<u64>().read_unaligned() };
    let known = ((1 << LOOKED_AT) - 1) | WITHOUT_ADDRESS;
    if in_use & !known != 0 {
        return None;
    }
    let base = state.expose_provenance();
    let mut parts = [const { 0..0 }; 1 + LOOKED_AT];
    parts[0] = general.start.expose_provenance()..general.end.addr();
    for (part, [start, size]) in PLACES.iter().enumerate() {
        let place = match part {
            0 => X87,
            1 => SSE,
            _ => {
                let start = start.load(Relaxed) as usize;
                start..start + size.load(Relaxed) as usize
            }
        };
        if in_use & 1 << part != 0 {
            parts[1 + part] = base + place.start..base + place.end;
        }
    }
    // SAFETY: as above.
    let mxcsr = unsafe { state.wrapping_add(MXCSR).cast::<u32>().read_unaligned() };
    // SAFETY: as above.
    let x87 = unsafe { state.wrapping_add(CWD).cast::<u16>().read_unaligned() };
    Some(Held {
        controls: Controls { mxcsr, x87 },
        parts,
    })
}

impl Saved {
    /// Returns the interrupted instruction, and the stack pointer and `rbp` at it.
    pub(crate) fn registers(&self) -> [usize; 3] {
        let above = std::ptr::from_ref(self).addr() + size_of::<Saved>();
        [self.rip as usize, above + RED_ZONE, self.rbp as usize]
    }
}

/// Makes the handler's thread call `target` with these control words when the handler has returned,
/// and then continue with the interrupted instruction as if nothing had happened.
///
/// # Safety
/// `context` is the third argument of the running handler; the interrupted code is on a stack that
/// has [`room_needed`] below it, its stack pointer is a multiple of eight, and it tolerates what
/// `target` does. `target` returns, and does not unwind.
pub(crate) unsafe fn redirect(context: *mut libc::c_void, target: Target, controls: Controls) {
    // SAFETY: by the caller's promise.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let sp = registers[libc::REG_RSP as usize] as usize;
    let at = sp - RED_ZONE - size_of::<Saved>();
    let saved = Saved {
        controls,
        general: GENERAL.map(|register| registers[register as usize]),
        rbp: registers[libc::REG_RBP as usize],
        flags: registers[libc::REG_EFL as usize],
        rip: registers[libc::REG_RIP as usize],
    };
    // SAFETY: below what the interrupted code uses, and inside its stack, by the caller's promise.
    unsafe { std::ptr::with_exposed_provenance_mut::<Saved>(at).write(saved) };
    // Alignment checks, the direction of strings, single steps: the interrupted code's own.
    registers[libc::REG_EFL as usize] &= !(AC | NT | DF | TF);
    registers[libc::REG_RSP as usize] = at as i64;
    registers[libc::REG_RBP as usize] = at as i64;
    registers[libc::REG_RBX as usize] = target as usize as i64;
    registers[libc::REG_RIP as usize] = indent_in_place_switch as *const () as usize as i64;
}

// The offsets below are these.
const _: () = assert!(size_of::<Saved>() == 144 && std::mem::offset_of!(Saved, general) == 8);
const _: () = assert!(std::mem::offset_of!(Saved, rbp) == 120);

unsafe extern "C" {
    fn indent_in_place_switch();
}

// Entered with rsp = rbp = `Saved`, and rbx = the function. The CFA, which is the interrupted rsp,
// lies 144 + 128 bytes above `Saved`.
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl indent_in_place_switch",
    ".hidden indent_in_place_switch",
    ".type indent_in_place_switch,@function",
    "indent_in_place_switch:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_def_cfa rbp, 272",
    ".cfi_offset rip, -136",
    ".cfi_offset rbp, -152",
    ".cfi_offset rax, -160",
    ".cfi_offset rcx, -168",
    ".cfi_offset rdx, -176",
    ".cfi_offset rbx, -184",
    ".cfi_offset rsi, -192",
    ".cfi_offset rdi, -200",
    ".cfi_offset r8, -208",
    ".cfi_offset r9, -216",
    ".cfi_offset r10, -224",
    ".cfi_offset r11, -232",
    ".cfi_offset r12, -240",
    ".cfi_offset r13, -248",
    ".cfi_offset r14, -256",
    ".cfi_offset r15, -264",
    "sub rsp, [rip + {size}]",
    "and rsp, -64",
    // The header of the area must be zero where XSAVE does not write.
    "xor eax, eax",
    "lea rdi, [rsp + 512]",
    "mov ecx, 8",
    "rep stosq",
    "mov eax, [rip + {parts}]",
    "mov edx, [rip + {parts} + 4]",
    "xsave64 [rsp]",
    "fninit",
    "fldcw [rbp + 4]",
    "ldmxcsr [rbp]",
    "mov rdi, rbp",
    "call rbx",
    "mov eax, [rip + {parts}]",
    "mov edx, [rip + {parts} + 4]",
    "xrstor64 [rsp]",
    "mov r15, [rbp + 8]",
    "mov r14, [rbp + 16]",
    "mov r13, [rbp + 24]",
    "mov r12, [rbp + 32]",
    "mov r11, [rbp + 40]",
    "mov r10, [rbp + 48]",
    "mov r9, [rbp + 56]",
    "mov r8, [rbp + 64]",
    "mov rdi, [rbp + 72]",
    "mov rsi, [rbp + 80]",
    "mov rbx, [rbp + 88]",
    "mov rdx, [rbp + 96]",
    "mov rcx, [rbp + 104]",
    "mov rax, [rbp + 112]",
    "lea rsp, [rbp + 120]",
    ".cfi_def_cfa rsp, 152",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbp",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "ret 128",
    ".cfi_endproc",
    ".size indent_in_place_switch, . - indent_in_place_switch",
    size = sym SIZE,
    parts = sym PARTS,
);

#[cfg(all(test, not(indent_loom)))]
mod tests;
