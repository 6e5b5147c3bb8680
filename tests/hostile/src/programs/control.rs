#![expect(unsafe_code, reason = "calls assembly")]
//! Control words: MXCSR, the x87 unit's, and the registers x87 and MMX share.
//!
//! A fiber that changes a control word finds it unchanged after every switch. Every other fiber
//! finds what the ABI promises: rounding to nearest, nothing flushed to zero, and an empty x87
//! stack. The *watcher* among them checks all the time, in a region and outside.

use std::arch::global_asm;
use std::hint::black_box;

use super::Program;
use crate::noise::{mix, stir};
use crate::region::{Hidden, region};
use crate::stage::{Kernel, Stage};

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "region-x87",
        "a full x87 stack, rounded up to 24 bits",
        |stage| beside_watchers(stage, x87),
    )
    .regions(),
    Program::new("region-mmx", "8 registers that are x87's, too", |stage| {
        beside_watchers(stage, mmx);
    })
    .regions(),
    Program::new(
        "region-mxcsr",
        "rounded down, the smallest numbers flushed to zero",
        |stage| beside_watchers(stage, mxcsr),
    )
    .regions(),
];

const FIBERS: usize = 6;
/// Number of rounds, enough for some milliseconds.
const ROUNDS: u64 = 200_000;

global_asm!(
    r#"
    .text
    .balign 16
    .globl hostile_x87
    .hidden hostile_x87
    .type hostile_x87, @function
hostile_x87: # seven numbers, the last of which stays, and room for a control word
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6
    fld qword ptr [rdi + 8 * \i]
    .endr
2:
    fld st(0)
    fmul st, st(0)
    .irp i, 2, 3, 4, 5, 6, 7
    fadd st(\i), st
    .endr
    fstp st(0)
    dec rsi
    jnz 2b
    fnstcw [rdi + 56]
    .irp i, 0, 1, 2, 3, 4, 5, 6
    fstp qword ptr [rdi + 8 * \i]
    .endr
    ret
    .cfi_endproc
    .size hostile_x87, . - hostile_x87

    .balign 16
    .globl hostile_mmx
    .hidden hostile_mmx
    .type hostile_mmx, @function
hostile_mmx:
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    movq mm\i, [rdi + 8 * \i]
    .endr
2:
    .irp i, 1, 2, 3, 4, 5, 6, 7
    paddd mm\i, mm0
    .endr
    pxor mm0, mm7
    pshufw mm0, mm0, 0x39
    dec rsi
    jnz 2b
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    movq [rdi + 8 * \i], mm\i
    .endr
    emms
    ret
    .cfi_endproc
    .size hostile_mmx, . - hostile_mmx

    .balign 16
    .globl hostile_mxcsr
    .hidden hostile_mxcsr
    .type hostile_mxcsr, @function
hostile_mxcsr: # a small number, a factor, a sum, what to add to it, and room for a control word
    .cfi_startproc
    movsd xmm2, [rdi + 16]
    movsd xmm3, [rdi + 24]
2:  movsd xmm0, [rdi]
    mulsd xmm0, [rdi + 8]  # flushed to zero, or not
    movsd xmm1, xmm3
    divsd xmm1, [rdi + 32] # rounded down, or not
    addsd xmm2, xmm1
    movq rax, xmm0
    or [rdi + 40], rax
    dec rsi
    jnz 2b
    movsd [rdi + 16], xmm2
    stmxcsr [rdi + 48]
    ret
    .cfi_endproc
    .size hostile_mxcsr, . - hostile_mxcsr

    .balign 16
    .globl hostile_set_controls
    .hidden hostile_set_controls
    .type hostile_set_controls, @function
hostile_set_controls: # MXCSR and the x87 control word
    .cfi_startproc
    mov [rsp - 8], edi
    ldmxcsr [rsp - 8]
    mov [rsp - 16], esi
    fldcw [rsp - 16]
    ret
    .cfi_endproc
    .size hostile_set_controls, . - hostile_set_controls

    .balign 16
    .globl hostile_watch
    .hidden hostile_watch
    .type hostile_watch, @function
hostile_watch: # returns the control bits of MXCSR, the x87 control word and the tags
    .cfi_startproc
2:  stmxcsr [rsp - 8]
    mov eax, [rsp - 8]
    and eax, 0xffc0
    fnstenv [rsp - 64]
    fldenv [rsp - 64]
    movzx edx, word ptr [rsp - 64]
    movzx ecx, word ptr [rsp - 56]
    shl rdx, 32
    shl rcx, 48
    or rax, rdx
    or rax, rcx
    cmp rax, rdi
    jne 3f
    dec rsi
    jnz 2b
3:  ret
    .cfi_endproc
    .size hostile_watch, . - hostile_watch
"#
);

unsafe extern "C" {
    fn hostile_x87(numbers: *mut u64, rounds: u64);
    fn hostile_mmx(numbers: *mut u64, rounds: u64);
    fn hostile_mxcsr(numbers: *mut u64, rounds: u64);
    fn hostile_set_controls(mxcsr: u32, x87: u32);
    fn hostile_watch(expected: u64, rounds: u64) -> u64;
}

/// Function that changes the control words.
///
/// A function that does is bound to its thread, and so is every fiber that visibly calls it: no
/// fiber would be switched away.
static SET: Hidden<unsafe extern "C" fn(u32, u32)> = Hidden::new();

/// All exceptions masked; to nearest; 64 bits of x87.
const USUAL: (u32, u32) = (0x1f80, 0x037f);
/// Round down, flush to zero, treat the smallest numbers as zeros.
const DOWN: u32 = 0xbfc0;
/// Round up, to 24 bits.
const UP: u32 = 0x087f;

/// Calls `f`, which computes with assembly only, under these control words.
fn under(mxcsr: u32, x87: u32, f: impl FnOnce()) {
    let set = SET.get();
    // SAFETY: two valid words, with all exceptions masked; until they are restored no floats of
    // Rust are computed with.
    unsafe { set(mxcsr, x87) };
    f();
    // SAFETY: as above; these are the previous words.
    unsafe { set(USUAL.0, USUAL.1) };
}

/// MXCSR, x87 control word and tags of a thread as the ABI requires them.
const DEFAULT: u64 = 0xffff_037f_0000_1f80;

fn numbers(seed: u64) -> [u64; 8] {
    std::array::from_fn(|i| stir(seed + i as u64))
}

fn sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, &number| mix(sum, number))
}

fn x87(seed: u64) -> u64 {
    let mut numbers = numbers(seed).map(|n| (1.0 + (n % 1000) as f64 / 1000.0).to_bits());
    numbers[7] = 0;
    under(USUAL.0, UP, || {
        // SAFETY: the function reads seven numbers and writes eight.
        unsafe { hostile_x87(numbers.as_mut_ptr(), ROUNDS) }
    });
    sum(&numbers)
}

fn mmx(seed: u64) -> u64 {
    let mut numbers = numbers(seed);
    // SAFETY: the function reads and writes eight numbers.
    unsafe { hostile_mmx(numbers.as_mut_ptr(), 2 * ROUNDS) };
    sum(&numbers)
}

fn mxcsr(seed: u64) -> u64 {
    let number = |x: f64| x.to_bits();
    let third = 1.0 + (seed % 97) as f64 / 97.0;
    let small = f64::MIN_POSITIVE;
    let mut numbers = [small, 0.5, 1.0, third, 3.0, 0.0, 0.0, 0.0].map(number);
    under(DOWN, USUAL.1, || {
        // SAFETY: the function reads and writes the first seven numbers.
        unsafe { hostile_mxcsr(numbers.as_mut_ptr(), ROUNDS) }
    });
    // The flushed result is zero, and the sticky flag that records it is masked out.
    numbers[6] &= 0xffc0;
    sum(&numbers)
}

fn watch(_: u64) -> u64 {
    // SAFETY: the function touches no memory but its own red zone.
    unsafe { hostile_watch(DEFAULT, ROUNDS / 20) }
}

/// Runs fibers half of which watch, in a region or outside.
fn beside_watchers(stage: &'static Stage, changes: Kernel) {
    SET.is(hostile_set_controls);
    let watch: Kernel = black_box(watch); // it changes the masks for one instruction
    let kind = move |seed: u64| match seed % 4 {
        0 | 2 => changes(seed),
        _ => watch(seed),
    };
    stage.same("the control words of a thread", watch(0), DEFAULT);
    stage.compare(FIBERS, kind, move |seed| {
        if seed % 4 == 3 {
            watch(seed)
        } else {
            region(|| kind(seed))
        }
    });
}
