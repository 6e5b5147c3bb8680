//! Small helpers of the programs: pseudo-random numbers, and ways to spend time.

use std::hint::black_box;
use std::time::{Duration, Instant};

#[path = "../../common/random.rs"]
#[expect(unreachable_pub, reason = "shared with other packages")]
mod random;
pub(crate) use random::Random;

/// Mixes the bits of a number; the same result for the same number.
pub(crate) fn stir(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Adds a value to a checksum.
pub(crate) fn mix(sum: u64, value: u64) -> u64 {
    stir(sum ^ value).wrapping_add(sum.rotate_left(17))
}

/// Returns bytes that compress somewhat: runs and repetitions, the same for the same seed.
pub(crate) fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut random = Random::new(seed + 1);
    let mut bytes = Vec::with_capacity(n);
    while bytes.len() < n {
        let run = random.below(24) as usize + 1;
        let byte = random.below(64) as u8;
        bytes.extend(std::iter::repeat_n(byte, run.min(n - bytes.len())));
    }
    bytes
}

/// Returns the checksum of some bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = mix(sum, u64::from_le_bytes(word));
    }
    sum
}

/// Computes for this long by the clock, without a call to the runtime or the kernel.
pub(crate) fn compute_for(time: Duration) {
    let start = Instant::now();
    let mut x = 1;
    while start.elapsed() < time {
        for _ in 0..200 {
            x = stir(black_box(x));
        }
    }
    black_box(x);
}
