#![expect(
    unsafe_code,
    reason = "asks the kernel, and changes registers of the thread"
)]
//! Direct requests to the kernel by number, and registers of the thread that only its code can
//! change.
//!
//! Requests go by libc's `syscall`, as `nix` does, or by the instruction, as `rustix` does. The
//! registers are rounding modes and rights.
//!
//! If the analysis can tell the number, the number decides; everything else could be anything.

use std::arch::asm;
use std::hint::black_box;

use super::{BOUND, MOVABLE, each, table};
use crate::Probe;

table! {
    thread_number_by_syscall: BOUND;
    thread_number_by_instruction: BOUND;
    thread_number_by_nix: BOUND;
    thread_number_by_rustix: BOUND;
    thread_number_by_a_tail_call: BOUND;
    thread_number_by_a_pointer: BOUND;
    thread_number_or_another: BOUND;
    thread_number_by_choice: BOUND;
    any_number_by_syscall: BOUND;
    any_number_by_instruction: BOUND;
    process_id_by_syscall: MOVABLE;
    process_id_by_instruction: MOVABLE;
    process_id_by_rustix: each("BMMMM");
    asked_many_times: MOVABLE;
    rounding_changed: BOUND;
    old_rounding_changed: BOUND;
    rights_changed: BOUND;
}

/// Returns true if it gives the same before and after a park.
fn stays(probe: &Probe, number: impl Fn() -> i64) -> bool {
    let before = number();
    probe.park();
    before == number()
}

/// Asks by libc's function.
macro_rules! ask {
    ($number:expr) => {
        // SAFETY: the call asks for a number, without arguments.
        unsafe { libc::syscall($number) }
    };
}

/// Asks by the instruction.
macro_rules! ask_at_once {
    ($number:expr) => {{
        let answer: i64;
        // SAFETY: the call asks for a number, without arguments.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") $number => answer,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        answer
    }};
}

fn thread_number_by_syscall(probe: &Probe) -> bool {
    stays(probe, || ask!(libc::SYS_gettid))
}

fn thread_number_by_instruction(probe: &Probe) -> bool {
    stays(probe, || ask_at_once!(libc::SYS_gettid))
}

fn thread_number_by_nix(probe: &Probe) -> bool {
    stays(probe, || nix::unistd::gettid().as_raw().into())
}

fn thread_number_by_rustix(probe: &Probe) -> bool {
    stays(probe, || {
        rustix::thread::gettid().as_raw_nonzero().get().into()
    })
}

#[inline(never)]
fn ends_with_asking() -> i64 {
    ask!(libc::SYS_gettid)
}

fn thread_number_by_a_tail_call(probe: &Probe) -> bool {
    stays(probe, ends_with_asking)
}

fn thread_number_by_a_pointer(probe: &Probe) -> bool {
    let function: unsafe extern "C" fn(i64, ...) -> i64 = black_box(libc::syscall);
    // SAFETY: the call asks for a number, without arguments.
    stays(probe, || unsafe { function(libc::SYS_gettid) })
}

/// Two ways lead to one call.
fn thread_number_or_another(probe: &Probe) -> bool {
    let number = match black_box(true) {
        true => libc::SYS_gettid,
        false => libc::SYS_getpid,
    };
    stays(probe, || ask!(number))
}

/// Many ways, by a table of numbers or of jumps.
fn thread_number_by_choice(probe: &Probe) -> bool {
    let choose = |which: u32| match which {
        0 => ask!(libc::SYS_getpid),
        1 => ask!(libc::SYS_getppid),
        2 => ask!(libc::SYS_gettid),
        3 => ask!(libc::SYS_sched_yield),
        4 => ask!(libc::SYS_getpid) + 1,
        _ => ask!(libc::SYS_getppid) + 2,
    };
    stays(probe, || choose(black_box(2)))
}

fn any_number_by_syscall(probe: &Probe) -> bool {
    stays(probe, || ask!(black_box(libc::SYS_getpid)))
}

fn any_number_by_instruction(probe: &Probe) -> bool {
    stays(probe, || ask_at_once!(black_box(libc::SYS_getpid)))
}

fn process_id_by_syscall(probe: &Probe) -> bool {
    stays(probe, || ask!(libc::SYS_getpid))
}

fn process_id_by_instruction(probe: &Probe) -> bool {
    stays(probe, || ask_at_once!(libc::SYS_getpid))
}

fn process_id_by_rustix(probe: &Probe) -> bool {
    stays(probe, || {
        rustix::process::getpid().as_raw_nonzero().get().into()
    })
}

/// The function stays in a register.
fn asked_many_times(probe: &Probe) -> bool {
    stays(probe, || {
        let first = ask!(libc::SYS_getpid);
        let parents = (0..black_box(3))
            .map(|_| ask!(libc::SYS_getppid))
            .sum::<i64>();
        ask!(libc::SYS_sched_yield) + first + parents + ask!(libc::SYS_getpid)
    })
}

/// The control and status register of SSE.
fn mode() -> u32 {
    let mut mode = 0_u32;
    // SAFETY: the instruction stores it into a local variable.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack)) };
    mode & !0x3f // without the flags of the computation
}

fn set_mode(mode: u32) {
    // SAFETY: a previous value, or one with another rounding mode, under which nothing is computed.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
}

fn rounding_changed(probe: &Probe) -> bool {
    let old = mode();
    set_mode(old ^ 0x6000);
    probe.park();
    let right = mode() == old ^ 0x6000;
    set_mode(old);
    right
}

/// The control word of the x87 unit.
fn old_mode() -> u16 {
    let mut mode = 0_u16;
    // SAFETY: the instruction stores it into a local variable.
    unsafe { asm!("fnstcw [{}]", in(reg) &raw mut mode, options(nostack)) };
    mode
}

fn set_old_mode(mode: u16) {
    // SAFETY: a previous value, or one with another rounding mode, under which nothing is computed.
    unsafe { asm!("fldcw [{}]", in(reg) &raw const mode, options(nostack)) };
}

fn old_rounding_changed(probe: &Probe) -> bool {
    let old = old_mode();
    set_old_mode(old ^ 0x0c00);
    probe.park();
    let right = old_mode() == old ^ 0x0c00;
    set_old_mode(old);
    right
}

/// Not every processor has rights to change, so nothing is changed.
fn rights_changed(probe: &Probe) -> bool {
    if black_box(false) {
        // SAFETY: never executed.
        unsafe { asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack)) };
    }
    probe.park();
    true
}
