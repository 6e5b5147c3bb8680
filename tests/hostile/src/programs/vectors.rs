#![expect(unsafe_code, reason = "calls assembly for CPUs that have what it uses")]
//! Vector registers, full all the time: all of them, masks and tiles too.
//!
//! As in `registers.rs`, each function loads its registers, loops and stores them. Beside each
//! fiber that uses wide registers there is one with narrow ones, so that every switch leaves
//! traces.

use std::arch::global_asm;

use super::Program;
use crate::noise::{mix, stir};
use crate::region::region;
use crate::stage::{Kernel, Stage};

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("region-sse2", "16 registers of 128 bits", |stage| {
        stage.repeat_in_region(FIBERS, sse2);
    })
    .regions(),
    Program::new("region-avx", "16 registers of 256 bits", |stage| {
        beside_narrow(stage, avx);
    })
    .cpu("no AVX", || std::arch::is_x86_feature_detected!("avx"))
    .regions(),
    Program::new(
        "region-fma",
        "AVX2 and FMA: whole and other numbers",
        |stage| {
            beside_narrow(stage, fma);
        },
    )
    .cpu("no AVX2 or FMA", || {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    })
    .regions(),
    Program::new(
        "region-avx512",
        "32 registers of 512 bits, 7 of masks",
        |stage| beside_narrow(stage, avx512),
    )
    .cpu("no AVX-512", || {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
    })
    .regions(),
    Program::new("region-amx", "8 tiles of a kilobyte", |stage| {
        beside_narrow(stage, amx);
    })
    .cpu("no AMX, or not allowed", may_use_amx)
    .regions(),
];

const FIBERS: usize = 6;
/// Number of rounds, enough for some milliseconds.
const ROUNDS: u64 = 300_000;

global_asm!(
    r#"
    .text
    .balign 16
    .globl hostile_sse2
    .hidden hostile_sse2
    .type hostile_sse2, @function
hostile_sse2:
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu xmm\i, [rdi + 16 * \i]
    .endr
2:
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    paddq xmm\i, xmm0
    .endr
    pxor xmm0, xmm15
    pshufd xmm0, xmm0, 0x39
    dec rsi
    jnz 2b
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqu [rdi + 16 * \i], xmm\i
    .endr
    ret
    .cfi_endproc
    .size hostile_sse2, . - hostile_sse2

    .balign 16
    .globl hostile_avx
    .hidden hostile_avx
    .type hostile_avx, @function
hostile_avx:
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovups ymm\i, [rdi + 32 * \i]
    .endr
2:
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vxorps ymm\i, ymm\i, ymm0
    .endr
    vpermilps ymm0, ymm15, 0x39
    vperm2f128 ymm0, ymm0, ymm14, 0x21
    dec rsi
    jnz 2b
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovups [rdi + 32 * \i], ymm\i
    .endr
    vzeroupper
    ret
    .cfi_endproc
    .size hostile_avx, . - hostile_avx

    .balign 16
    .globl hostile_fma
    .hidden hostile_fma
    .type hostile_fma, @function
hostile_fma: # 0 is the number one, 1 to 11 are numbers, 12 to 15 whole ones
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovups ymm\i, [rdi + 32 * \i]
    .endr
2:
    .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
    vfmadd132pd ymm\i, ymm11, ymm0
    .endr
    vpaddq ymm12, ymm12, ymm13
    vpermq ymm13, ymm12, 0x39
    vpaddq ymm14, ymm14, ymm15
    vpxor ymm15, ymm15, ymm12
    dec rsi
    jnz 2b
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovups [rdi + 32 * \i], ymm\i
    .endr
    vzeroupper
    ret
    .cfi_endproc
    .size hostile_fma, . - hostile_fma

    .balign 16
    .globl hostile_avx512
    .hidden hostile_avx512
    .type hostile_avx512, @function
hostile_avx512:
    .cfi_startproc
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 zmm\i, [rdi + 64 * \i]
    .endr
    .irp i, 1, 2, 3, 4, 5, 6, 7
    kmovq k\i, [rdi + 64 * \i]
    .endr
2:
    .irp i, 1, 2, 3, 4, 5, 6, 7
    vpaddq zmm\i {{k\i}}, zmm\i, zmm0
    kxorq k\i, k\i, k7
    .endr
    .irp i, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vpaddq zmm\i, zmm\i, zmm0
    .endr
    vpermq zmm0, zmm31, 0x39
    vpxorq zmm0, zmm0, zmm1
    vpmovq2m k7, zmm0
    kxorq k7, k7, k1
    dec rsi
    jnz 2b
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    vmovdqu64 [rdi + 64 * \i], zmm\i
    .endr
    .irp i, 1, 2, 3, 4, 5, 6, 7
    kmovq rax, k\i
    xor [rdi + 64 * \i], rax
    .endr
    vzeroupper
    ret
    .cfi_endproc
    .size hostile_avx512, . - hostile_avx512

    .balign 16
    .globl hostile_amx
    .hidden hostile_amx
    .type hostile_amx, @function
hostile_amx: # at the address: 64 bytes that say how large the tiles are, then the tiles
    .cfi_startproc
    ldtilecfg [rdi]
    lea rax, [rdi + 64]
    mov ecx, 64
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    tileloadd tmm\i, [rax + rcx]
    add rax, 1024
    .endr
2:  tdpbuud tmm0, tmm3, tmm4
    tdpbuud tmm1, tmm5, tmm6
    tdpbuud tmm2, tmm7, tmm3
    dec rsi
    jnz 2b
    lea rax, [rdi + 64]
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    tilestored [rax + rcx], tmm\i
    add rax, 1024
    .endr
    tilerelease
    ret
    .cfi_endproc
    .size hostile_amx, . - hostile_amx
"#
);

unsafe extern "C" {
    fn hostile_sse2(registers: *mut u64, rounds: u64);
    fn hostile_avx(registers: *mut u64, rounds: u64);
    fn hostile_fma(registers: *mut u64, rounds: u64);
    fn hostile_avx512(registers: *mut u64, rounds: u64);
    fn hostile_amx(registers: *mut u64, rounds: u64);
}

/// Returns `n` different words.
fn words(seed: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| stir(seed + i)).collect()
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, &word| mix(sum, word))
}

fn sse2(seed: u64) -> u64 {
    let mut words = words(seed, 16 * 2);
    // SAFETY: the memory has room for 16 registers of two words.
    unsafe { hostile_sse2(words.as_mut_ptr(), ROUNDS) };
    sum(&words)
}

fn avx(seed: u64) -> u64 {
    let mut words = words(seed, 16 * 4);
    // SAFETY: the memory has room for 16 registers of four words; the CPU has them, or this is not
    // called.
    unsafe { hostile_avx(words.as_mut_ptr(), ROUNDS) };
    sum(&words)
}

fn fma(seed: u64) -> u64 {
    let mut words = words(seed, 16 * 4);
    let numbers = words[..12 * 4].iter_mut();
    numbers.for_each(|word| *word = (0.25 + (*word % 1000) as f64 / 4000.0).to_bits());
    words[..4].fill(1_f64.to_bits()); // with smaller numbers an error would vanish
    // SAFETY: as for `avx`.
    unsafe { hostile_fma(words.as_mut_ptr(), ROUNDS) };
    sum(&words)
}

fn avx512(seed: u64) -> u64 {
    let mut words = words(seed, 32 * 8);
    // SAFETY: the memory has room for 32 registers of eight words; the CPU has them, or this is not
    // called.
    unsafe { hostile_avx512(words.as_mut_ptr(), ROUNDS / 2) };
    sum(&words)
}

/// Runs fibers half of which use narrow registers.
fn beside_narrow(stage: &'static Stage, wide: Kernel) {
    let both = move |seed: u64| {
        if seed.is_multiple_of(2) {
            wide(seed)
        } else {
            sse2(seed)
        }
    };
    stage.compare(FIBERS, both, move |input| region(|| both(input)));
}

/// Number of tiles: sixteen rows of 64 bytes each.
const TILES: usize = 8;

fn amx(seed: u64) -> u64 {
    let mut words = words(seed, 8 + TILES as u64 * 128);
    let mut shape = [0_u8; 64];
    shape[0] = 1; // the only palette there is, for the following bytes
    for tile in 0..TILES {
        shape[16 + 2 * tile] = 64; // bytes in a row
        shape[48 + tile] = 16; // rows
    }
    for (word, bytes) in words.iter_mut().zip(shape.chunks(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    // SAFETY: the shape, and room for eight tiles of a kilobyte; the CPU has them and the kernel
    // lets this process use them, or this is not called.
    unsafe { hostile_amx(words.as_mut_ptr(), ROUNDS / 10) };
    sum(&words)
}

/// Asks the kernel for the tiles, whose state it saves only for processes that asked.
fn may_use_amx() -> bool {
    const REQUEST: libc::c_long = 0x1023; // ARCH_REQ_XCOMP_PERM
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call changes what this process is allowed to do, and touches none of its memory.
    let status = unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) };
    status == 0
}
