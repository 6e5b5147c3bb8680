#![expect(unsafe_code, reason = "recovers from faults in a signal handler")]
//! Walks of an interrupted stack with C's unwinder, which may fault.
//!
//! Compilers write unwind rows that are right at every instruction, and so does the runtime for its
//! trampoline. Inline assembly that moves the stack pointer has no rows of its own: corosensei's
//! switch pushes registers and changes stacks inside one `asm!` block, and for those few
//! instructions the row of the function around it takes another word of the stack for the return
//! address. libgcc checks nothing: it reads code at whatever word it found. So a profiler that
//! walks from any instruction must survive a fault in its own walk, as profilers in use do.
//!
//! A walk that faults is ended here, and the instruction it began at is recorded. The caller
//! decides whether the rows there may be wrong ([`abandoned`]): surviving a fault must not hide
//! rows of the runtime, or of any compiler, that are wrong.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most frames that a walk looks at.
const MOST_FRAMES: u64 = 200;
/// Room on the signal stack for an unwinder, and for a fault in it.
const ROOM: usize = 32 << 10;
/// Most walks that are recorded.
const NOTED: usize = 64;

/// Functions of corosensei that change stacks.
const SWITCHES: [&str; 4] = [
    "switch_yield",
    "switch_and_link",
    "switch_and_reset",
    "stack_init_trampoline",
];

/// Instructions at which walks began that faulted.
static BEGAN: [AtomicUsize; NOTED] = [const { AtomicUsize::new(0) }; NOTED];
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Previous handlers of these signals.
static BEFORE: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];
const FATAL: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

thread_local! {
    /// The stack pointer to go back to; zero while this thread does not walk.
    static WALKS: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn hostile_guarded(walk: extern "C" fn(*mut u64), frames: *mut u64, sp: *mut usize) -> bool;
    fn hostile_recover();
    static __executable_start: u8;
    static etext: u8;
}

// Calls a function after saving all callee-saved registers, and records the stack pointer: from
// there `hostile_recover` returns true in its place.
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".type hostile_guarded,@function",
    "hostile_guarded:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov [rdx], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    "jmp 2f",
    ".type hostile_recover,@function",
    "hostile_recover:",
    "mov eax, 1",
    "2:",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
);

/// Installs the handlers before the first walk.
///
/// Faults in walks end those walks; other faults go to the previous handler.
pub(crate) fn prepare() {
    for (signal, before) in FATAL.into_iter().zip(&BEFORE) {
        // SAFETY: all zeros is a valid action without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut old = action;
        // SAFETY: the call only reads the present action.
        let status = unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) };
        assert_eq!(status, 0, "what handles faults");
        let _ = before.set(old);
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler touches only atomics and thread-locals without destructors.
        let status = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        assert_eq!(status, 0, "a handler");
    }
}

/// Walks the stack that a handler has interrupted; returns the number of frames.
///
/// Returns `None` if there is no room for that on the signal stack, or if the walk faulted.
///
/// # Safety
///
/// `context` is the third argument of the running handler, for which [`prepare`] was called.
pub(crate) unsafe fn walk(context: *const c_void) -> Option<u64> {
    let signal_stack = signal_stack().filter(|stack| stack.len() >= ROOM)?;
    let mut frames = 0;
    let saved = WALKS.with(Cell::as_ptr);
    // SAFETY: both belong to this thread; after a fault it restores what it saved.
    let faulted = unsafe { hostile_guarded(climb, &mut frames, saved) };
    WALKS.set(0);
    if !faulted {
        return Some(frames);
    }
    // SAFETY: by the caller's promise.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = |register: c_int| registers[register as usize] as usize;
    // One handler interrupted another: where the first one began is not known.
    let nested = signal_stack.contains(&at(libc::REG_RSP));
    let began = if nested { 0 } else { at(libc::REG_RIP) };
    if let Some(slot) = BEGAN.get(FAULTS.fetch_add(1, Relaxed)) {
        slot.store(began, Relaxed);
    }
    None
}

extern "C" fn climb(frames: *mut u64) {
    let count = |_: &backtrace::Frame| {
        // SAFETY: the counter of the `walk` that waits for this callback.
        unsafe { *frames += 1 };
        // SAFETY: as above.
        unsafe { *frames < MOST_FRAMES }
    };
    // SAFETY: the call is not synchronized with code that names frames; it names none.
    unsafe { backtrace::trace_unsynchronized(count) };
}

/// Returns the signal stack of the calling thread.
fn signal_stack() -> Option<std::ops::Range<usize>> {
    let mut stack = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: there is room for the answer; nothing is changed.
    let status = unsafe { libc::sigaltstack(std::ptr::null(), &mut stack) };
    let begin = stack.ss_sp.addr();
    (status == 0 && stack.ss_flags & libc::SS_DISABLE == 0).then(|| begin..begin + stack.ss_size)
}

/// Returns true if a walk has room on this thread's signal stack.
///
/// std's signal stacks have no room for it; carriers use those until they have a larger one.
pub(crate) fn has_room() -> bool {
    signal_stack().is_some_and(|stack| stack.len() >= ROOM)
}

/// # Safety
///
/// To be installed as a handler with information.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: by the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let program = (&raw const __executable_start).addr()..(&raw const etext).addr();
    let back = WALKS.get();
    if back != 0 && !program.contains(&at) {
        registers[libc::REG_RSP as usize] = back as i64;
        registers[libc::REG_RIP as usize] = hostile_recover as *const () as usize as i64;
        return;
    }
    let index = usize::from(signal == FATAL[1]);
    let Some(before) = BEFORE[index].get() else {
        return;
    };
    if before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the flags of an action with information say that its handler has this type.
        let handler = unsafe {
            std::mem::transmute::<
                usize,
                unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
            >(before.sa_sigaction)
        };
        // SAFETY: the arguments of this very handler.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: the previous action is valid; the instruction faults again.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

/// Returns how many walks faulted, and those faults that a switch does not explain.
///
/// For each of those it returns the functions around the instruction at which the walk began. A
/// program without symbols reports none.
pub(crate) fn abandoned() -> (usize, Vec<String>) {
    let faults = FAULTS.load(Relaxed);
    let began = BEGAN.iter().take(faults).map(|slot| slot.load(Relaxed));
    let named = began.filter(|&at| at != 0).map(names);
    let is_wrong = |names: &Vec<String>| {
        let in_switch = |name: &String| SWITCHES.iter().any(|switch| name.contains(switch));
        !names.is_empty() && !names.iter().any(in_switch)
    };
    let wrong = named.filter(is_wrong).map(|names| names.join(" in "));
    (faults, wrong.collect())
}

/// Returns the function that holds an instruction, after those that were inlined into it.
fn names(at: usize) -> Vec<String> {
    let mut names = Vec::new();
    // One byte further, because an address is taken for the one after a call.
    backtrace::resolve(std::ptr::without_provenance_mut(at + 1), |symbol| {
        names.extend(symbol.name().map(|name| name.to_string()));
    });
    names
}
