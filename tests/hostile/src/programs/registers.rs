#![expect(unsafe_code, reason = "calls assembly")]
//! Registers, flags and the red zone, full all the time.
//!
//! Each function here is assembly. It takes the address of some numbers and the number of rounds,
//! loads all registers of one kind from there, loops and stores them. A register that is lost at
//! any moment, by a switch or by a freeze, soon spoils all others, so it shows in the end. The
//! functions keep to the ABI and have unwind tables: a walk up the stack passes them at every
//! instruction.
//!
//! Their computation must not forget: a register that was wrong for a moment stays wrong.
//!
//! Rejected: `asm!` in a function. It may not use all registers, and where it moves the stack
//! pointer the function's unwind tables are wrong.

use std::arch::global_asm;

use super::Program;
use crate::noise::{mix, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "region-general",
        "all general registers, one carry through all of them",
        |stage| stage.repeat_in_region(FIBERS, general),
    )
    .regions(),
    Program::new(
        "region-flags",
        "two chains of carries, in CF and in OF",
        |stage| stage.repeat_in_region(FIBERS, flags),
    )
    .cpu("no ADX", || std::arch::is_x86_feature_detected!("adx"))
    .regions(),
    Program::new(
        "region-direction",
        "the direction flag set, beside fibers that copy",
        direction,
    )
    .regions(),
    Program::new(
        "region-red-zone",
        "128 bytes below the stack pointer, which stays where it is",
        |stage| stage.repeat_in_region(FIBERS, red_zone),
    )
    .regions(),
];

const FIBERS: usize = 6;
/// Number of rounds, enough for some milliseconds.
const ROUNDS: u64 = 400_000;

global_asm!(
    r#"
    .text
    .balign 16
    .globl hostile_general
    .hidden hostile_general
    .type hostile_general, @function
hostile_general:
    .cfi_startproc
    .irp r, rbx, rbp, r12, r13, r14, r15, rdi, rsi
    push \r
    .cfi_adjust_cfa_offset 8
    .endr
    .cfi_offset rbx, -16
    .cfi_offset rbp, -24
    .cfi_offset r12, -32
    .cfi_offset r13, -40
    .cfi_offset r14, -48
    .cfi_offset r15, -56
    mov r15, [rdi]
    mov r14, [rdi + 8]
    mov r13, [rdi + 16]
    mov r12, [rdi + 24]
    mov r11, [rdi + 32]
    mov r10, [rdi + 40]
    mov r9, [rdi + 48]
    mov r8, [rdi + 56]
    mov rbp, [rdi + 64]
    mov rbx, [rdi + 72]
    mov rdx, [rdi + 80]
    mov rcx, [rdi + 88]
    mov rax, [rdi + 96]
    mov rsi, [rdi + 104]
    mov rdi, [rdi + 112]
    stc
2:  # `dec` leaves the carry alone, so the chain has no end
    adc rax, r15
    adc rcx, rax
    adc rdx, rcx
    adc rbx, rdx
    adc rsi, rbx
    adc rdi, rsi
    adc rbp, rdi
    adc r8, rbp
    adc r9, r8
    adc r10, r9
    adc r11, r10
    adc r12, r11
    adc r13, r12
    adc r14, r13
    adc r15, r14
    dec qword ptr [rsp]
    jnz 2b
    mov [rsp], rax
    mov rax, [rsp + 8]
    mov [rax], r15
    mov [rax + 8], r14
    mov [rax + 16], r13
    mov [rax + 24], r12
    mov [rax + 32], r11
    mov [rax + 40], r10
    mov [rax + 48], r9
    mov [rax + 56], r8
    mov [rax + 64], rbp
    mov [rax + 72], rbx
    mov [rax + 80], rdx
    mov [rax + 88], rcx
    mov [rax + 104], rsi
    mov [rax + 112], rdi
    mov rcx, [rsp]
    mov [rax + 96], rcx
    add rsp, 16
    .cfi_adjust_cfa_offset -16
    .irp r, r15, r14, r13, r12, rbp, rbx
    pop \r
    .cfi_adjust_cfa_offset -8
    .cfi_restore \r
    .endr
    ret
    .cfi_endproc
    .size hostile_general, . - hostile_general

    .balign 16
    .globl hostile_flags
    .hidden hostile_flags
    .type hostile_flags, @function
hostile_flags:
    .cfi_startproc
    mov rcx, rsi
    mov rax, [rdi]
    mov rdx, [rdi + 8]
    mov rsi, [rdi + 16]
    mov r8, [rdi + 24]
    mov r9, [rdi + 32]
    mov r10, [rdi + 40]
    xor r11d, r11d # clears both
2:  # neither the counting nor the jump changes any flag
    adcx rax, rdx
    adox rsi, r8
    adcx rdx, rsi
    adox r8, r9
    adcx r9, r10
    adox r10, rax
    lea rcx, [rcx - 1]
    jrcxz 3f
    jmp 2b
3:  mov [rdi], rax
    mov [rdi + 8], rdx
    mov [rdi + 16], rsi
    mov [rdi + 24], r8
    mov [rdi + 32], r9
    mov [rdi + 40], r10
    setc al
    seto dl
    mov [rdi + 48], al
    mov [rdi + 49], dl
    ret
    .cfi_endproc
    .size hostile_flags, . - hostile_flags

    .balign 16
    .globl hostile_direction
    .hidden hostile_direction
    .type hostile_direction, @function
hostile_direction:
    .cfi_startproc
    mov rcx, rsi
    mov r8, rdi
    xor edx, edx
    std
2:  lea rsi, [r8 + 120]
    .rept 16
    lodsq
    rol rdx, 7
    xor rdx, rax
    .endr
    dec rcx
    jnz 2b
    cld
    mov [r8], rdx
    ret
    .cfi_endproc
    .size hostile_direction, . - hostile_direction

    .balign 16
    .globl hostile_red_zone
    .hidden hostile_red_zone
    .type hostile_red_zone, @function
hostile_red_zone:
    .cfi_startproc
    .irp i, 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120
    mov rax, [rdi + \i]
    mov [rsp - 128 + \i], rax
    .endr
2:  mov rax, [rsp - 128]
    .irp i, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120
    add [rsp - 128 + \i], rax
    .endr
    mov rax, [rsp - 8]
    rol rax, 9
    mov [rsp - 128], rax
    dec rsi
    jnz 2b
    .irp i, 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120
    mov rax, [rsp - 128 + \i]
    mov [rdi + \i], rax
    .endr
    ret
    .cfi_endproc
    .size hostile_red_zone, . - hostile_red_zone
"#
);

unsafe extern "C" {
    fn hostile_general(numbers: *mut Numbers, rounds: u64);
    fn hostile_flags(numbers: *mut Numbers, rounds: u64);
    fn hostile_direction(numbers: *mut Numbers, rounds: u64);
    fn hostile_red_zone(numbers: *mut Numbers, rounds: u64);
}

type Numbers = [u64; 16];

fn numbers(seed: u64) -> Numbers {
    std::array::from_fn(|i| stir(seed + i as u64))
}

fn sum(numbers: &Numbers) -> u64 {
    numbers.iter().fold(0, |sum, &number| mix(sum, number))
}

fn general(seed: u64) -> u64 {
    let mut numbers = numbers(seed);
    // SAFETY: the function reads and writes fifteen of the sixteen numbers.
    unsafe { hostile_general(&mut numbers, ROUNDS) };
    sum(&numbers)
}

fn flags(seed: u64) -> u64 {
    let mut numbers = numbers(seed);
    // SAFETY: the function reads and writes the first seven; the CPU has the instructions, or this
    // is not called.
    unsafe { hostile_flags(&mut numbers, 2 * ROUNDS) };
    sum(&numbers)
}

fn backwards(seed: u64) -> u64 {
    let mut numbers = numbers(seed);
    // SAFETY: the function reads all numbers and writes the first.
    unsafe { hostile_direction(&mut numbers, ROUNDS) };
    sum(&numbers)
}

fn red_zone(seed: u64) -> u64 {
    let mut numbers = numbers(seed);
    // SAFETY: the function reads and writes all numbers, and nothing above its own frame.
    unsafe { hostile_red_zone(&mut numbers, ROUNDS) };
    sum(&numbers)
}

/// Copies back and forth, in the wrong direction if another fiber's flag is set.
fn copies(seed: u64) -> u64 {
    let mut lines: Vec<Vec<u8>> = (0..64).map(|i| vec![(seed + i) as u8; 3000]).collect();
    for i in 0..4_000 {
        let copy = lines[i % 64].clone();
        lines[(i * 7 + 1) % 64][..1500].copy_from_slice(&copy[1500..]);
    }
    lines
        .iter()
        .flatten()
        .fold(seed, |sum, &byte| sum.rotate_left(3) ^ u64::from(byte))
}

fn direction(stage: &'static Stage) {
    stage.repeat_in_region(FIBERS, |seed| {
        if seed.is_multiple_of(2) {
            backwards(seed)
        } else {
            copies(seed)
        }
    });
}
