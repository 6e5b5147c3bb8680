#![expect(unsafe_code, reason = "calls code for CPUs that have AVX2")]
//! Computation and nothing else: a preemption may spoil registers.

use std::hint::black_box;

use super::Program;
use crate::noise::{mix, stir};
use crate::stage::Stage;

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "arithmetic",
        "whole numbers in registers, endless",
        arithmetic,
    )
    .pure(),
    Program::new(
        "floats",
        "sums of floats, whose rounding shows every lost bit",
        floats,
    )
    .pure(),
    Program::new("avx", "wide registers, full all the time", avx).pure(),
];

const FIBERS: usize = 6;

fn arithmetic(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, whole_numbers);
}

/// Computes a chain in which every number depends on all before.
pub(super) fn whole_numbers(seed: u64) -> u64 {
    let mut sum = seed;
    for i in 0..400_000 {
        sum = stir(black_box(sum).wrapping_add(i));
    }
    sum
}

/// Computes a chain of additions, roots and divisions: each depends on all before.
fn floats(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, fractions);
}

pub(super) fn fractions(seed: u64) -> u64 {
    let (mut x, mut sum) = (seed as f64 + 0.5, 0.0_f64);
    let mut narrow = 1.0_f32;
    for _ in 0..200_000 {
        x = (black_box(x) * 1.000_1 + 1.0).sqrt() + 1.0 / (x + 2.0);
        sum += x.sin().abs() / 3.0;
        narrow = narrow.mul_add(0.999, x as f32 * 0.001);
    }
    mix(sum.to_bits(), u64::from(narrow.to_bits()))
}

/// Computes on many lanes at once, with AVX2 where there is AVX2.
fn avx(stage: &'static Stage) {
    stage.repeat_pure(FIBERS, wide);
}

fn wide(seed: u64) -> u64 {
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has it, as just checked.
        unsafe { lanes_wide(seed) }
    } else {
        lanes(seed)
    }
}

#[target_feature(enable = "avx2")]
fn lanes_wide(seed: u64) -> u64 {
    lanes(seed)
}

/// Computes on sixteen rows of eight that feed each other: too many for the registers there are.
#[inline(always)]
fn lanes(seed: u64) -> u64 {
    let mut rows = [[0.0_f32; 8]; 16];
    let mut whole = [[0_u32; 8]; 8];
    for (i, cell) in rows.iter_mut().flatten().enumerate() {
        *cell = (stir(seed + i as u64) % 1000) as f32 / 7.0;
    }
    for step in 0..5_000_u32 {
        let next = rows[(step % 16) as usize];
        for row in &mut rows {
            for (cell, other) in row.iter_mut().zip(next) {
                *cell = *cell * 0.75 + other * 0.25 + 0.125;
            }
        }
        for row in &mut whole {
            for (cell, other) in row.iter_mut().zip(next) {
                *cell = cell.rotate_left(5) ^ other.to_bits().wrapping_add(step);
            }
        }
    }
    let floats = rows.iter().flatten().map(|cell| u64::from(cell.to_bits()));
    let wholes = whole.iter().flatten().map(|&cell| u64::from(cell));
    floats.chain(wholes).fold(seed, mix)
}
