#![expect(unsafe_code, reason = "signals and registers")]
use super::*;
use crate::sys::signal::{self, c_int, siginfo_t};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

thread_local! {
    /// Where the last redirected thread stood; how often it was.
    static STOOD: Cell<[usize; 3]> = const { Cell::new([0; 3]) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static CONTROLS: Cell<Option<Controls>> = const { Cell::new(None) };
}

/// What the handler saw.
static SEEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Uses up what it may: all caller-saved registers, the x87 stack, vectors.
extern "C" fn target(saved: &Saved) {
    STOOD.set(saved.registers());
    CALLS.set(CALLS.get() + 1);
    CONTROLS.set(Some(Controls::now()));
    let numbers: Vec<f64> = (0..64).map(|n| f64::from(black_box(n)).sqrt()).collect();
    assert!(black_box(numbers.iter().sum::<f64>()) > 300.0);
    // SAFETY: all of these may be changed by a call.
    unsafe {
        std::arch::asm!(
            "xor eax, eax",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor esi, esi",
            "xor edi, edi",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            "fldpi",
            "fldpi",
            "fstp st(0)",
            "fstp st(0)",
            "pcmpeqd xmm0, xmm0",
            "pcmpeqd xmm1, xmm1",
            "pcmpeqd xmm15, xmm15",
            clobber_abi("C"),
        );
    }
}

extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the argument of the running handler.
    let at = unsafe { crate::sys::arch::interrupted(context) };
    for (place, value) in SEEN.iter().zip([at.code, at.stack, at.frame]) {
        place.store(value, SeqCst);
    }
    let controls = Controls {
        mxcsr: 0x1f80,
        x87: 0x37f,
    };
    // SAFETY: a thread's stack has room, and the interrupted code, below, does not mind.
    unsafe { redirect(context, target, controls) };
}

/// The tests share one signal.
fn interrupting() -> (c_int, std::sync::MutexGuard<'static, ()>) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(|e| e.into_inner());
    prepare();
    let number = libc::SIGRTMIN() + 3;
    signal::install(number, on_signal).expect("a handler");
    (number, alone)
}

/// All general registers, all of the vector registers every machine has, the flags, the red zone
/// and the x87 stack are live over a signal; the number of those that were lost.
#[inline(never)]
fn lost(number: c_int) -> u64 {
    NUMBER.store(number as u64, SeqCst);
    let (pid, wrong): (i64, u64);
    // SAFETY: no memory of others but the red zone is touched (there is no call inside), and
    // everything changed is said.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "push rbp",
            // A leaf: 64 bytes of red zone in use.
            "mov qword ptr [rsp - 8], 0x11", "mov qword ptr [rsp - 64], 0x22", "mov qword ptr [rsp - 128], 0x33",
            "fld1", "fldpi",
            "mov eax, 0x0f0f0f0f", "movd xmm0, eax", "pshufd xmm0, xmm0, 0",
            "movdqa xmm1, xmm0", "movdqa xmm7, xmm0", "movdqa xmm8, xmm0", "movdqa xmm15, xmm0",
            "mov rbx, 3", "mov rbp, 5", "mov r8, 8", "mov r9, 9", "mov r10, 10", "mov r12, 12", "mov r13, 13",
            "mov r14, 14", "mov r15, 15",
            // rt_tgsigqueueinfo would need memory: tgkill(getpid(), gettid(), signal).
            "mov eax, 39", "syscall", "mov edi, eax",
            "mov eax, 186", "syscall", "mov esi, eax",
            "mov rdx, [rip + {signal}]", "mov eax, 234", "syscall",
            // Here, or at the last instruction, the thread was redirected.
            "xor edi, edi",
            "cmp rbx, 3", "setne al", "movzx eax, al", "add edi, eax",
            "cmp rbp, 5", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r8, 8", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r9, 9", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r10, 10", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r12, 12", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r13, 13", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r14, 14", "setne al", "movzx eax, al", "add edi, eax",
            "cmp r15, 15", "setne al", "movzx eax, al", "add edi, eax",
            "cmp qword ptr [rsp - 8], 0x11", "setne al", "movzx eax, al", "add edi, eax",
            "cmp qword ptr [rsp - 64], 0x22", "setne al", "movzx eax, al", "add edi, eax",
            "cmp qword ptr [rsp - 128], 0x33", "setne al", "movzx eax, al", "add edi, eax",
            "pcmpeqd xmm1, xmm0", "pcmpeqd xmm7, xmm0", "pcmpeqd xmm8, xmm0", "pcmpeqd xmm15, xmm0",
            "pand xmm1, xmm7", "pand xmm8, xmm15", "pand xmm1, xmm8", "pmovmskb eax, xmm1",
            "cmp eax, 0xffff", "setne al", "movzx eax, al", "add edi, eax",
            "movd eax, xmm0", "cmp eax, 0x0f0f0f0f", "setne al", "movzx eax, al", "add edi, eax",
            "fldpi", "fcomip st, st(1)", "setne al", "movzx eax, al", "add edi, eax", "fstp st(0)",
            "fld1", "fcomip st, st(1)", "setne al", "movzx eax, al", "add edi, eax", "fstp st(0)",
            "pop rbp", "pop rbx",
            signal = sym NUMBER,
            out("rax") pid, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") wrong, out("r8") _,
            out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            out("xmm0") _, out("xmm1") _, out("xmm7") _, out("xmm8") _, out("xmm15") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _, out("st(4)") _, out("st(5)") _,
            out("st(6)") _, out("st(7)") _,
        );
    }
    black_box(pid);
    wrong
}

#[test]
fn interrupted_code_finds_every_register_as_it_was() {
    let (number, _alone) = interrupting();
    for turn in 1..=1000 {
        assert_eq!(lost(number), 0, "registers were lost in turn {turn}");
        assert_eq!(CALLS.get(), turn, "it was not redirected");
        let seen = [0, 1, 2].map(|i| SEEN[i].load(SeqCst));
        assert_eq!(STOOD.get(), seen, "where it stands is known");
    }
}

#[test]
fn control_words_are_the_regions_inside_and_the_codes_own_afterwards() {
    let (number, _alone) = interrupting();
    let usual = Controls::now();
    let odd = Controls {
        mxcsr: 0xdf80, // rounds down, flushes to zero
        x87: 0x77f,    // rounds down
    };
    // SAFETY: only control words, put back below.
    unsafe { set(odd) };
    // SAFETY: a signal to this thread, with a handler.
    unsafe { libc::raise(number) };
    let after = Controls::now();
    // SAFETY: as above.
    unsafe { set(usual) };
    assert_eq!(CONTROLS.get(), Some(usual), "what the function saw");
    assert_eq!(after, odd);
}

/// # Safety
/// They are put back before anybody else computes.
unsafe fn set(controls: Controls) {
    // SAFETY: by the caller's promise.
    unsafe {
        std::arch::asm!(
            "ldmxcsr [{mxcsr}]",
            "fldcw [{x87}]",
            mxcsr = in(reg) &raw const controls.mxcsr,
            x87 = in(reg) &raw const controls.x87,
            options(nostack, readonly),
        );
    }
}

#[test]
fn errors_inside_a_redirected_call_are_seen_with_the_interrupted_frame_in_between() {
    extern "C" fn look(_: &Saved) {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        NAMES.with_borrow_mut(|names| *names = trace);
    }
    thread_local!(static NAMES: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) });
    extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, context: *mut libc::c_void) {
        let controls = Controls {
            mxcsr: 0x1f80,
            x87: 0x37f,
        };
        // SAFETY: as above.
        unsafe { redirect(context, look, controls) };
    }
    #[inline(never)]
    fn somebody_in_the_middle(number: c_int) -> i32 {
        // SAFETY: a signal to this thread, with a handler.
        black_box(unsafe { libc::raise(number) }) + 1
    }
    prepare();
    let number = libc::SIGRTMIN() + 4;
    signal::install(number, on_signal).expect("a handler");
    assert_eq!(somebody_in_the_middle(number), 1);
    let names = NAMES.take();
    assert!(names.contains("indent_in_place_switch"), "{names}");
    if cfg!(target_env = "musl") {
        return crate::sys::stderr::print(
            "SKIPPED errors_inside_a_redirected_call: musl's raise cannot be unwound\n",
        );
    }
    assert!(names.contains("somebody_in_the_middle"), "{names}");
}
