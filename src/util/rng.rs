//! A small random generator for picking victims: quality does not matter, speed does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Xorshift with a 64-bit state, never zero.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        // The odd constant (2^64 over the golden ratio) spreads small seeds over all bits.
        Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`, which must not be zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// A new generator, for code that needs a few numbers and has none.
pub(crate) fn fresh() -> Rng {
    static SEEDS: AtomicU64 = AtomicU64::new(0);
    let mut rng = Rng::new(SEEDS.fetch_add(1, Relaxed));
    rng.next(); // seeds that are close together begin with similar numbers
    rng
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn every_value_below_the_bound_turns_up() {
        let mut rng = Rng::new(0);
        let mut seen = [0; 7];
        for _ in 0..7_000 {
            seen[rng.below(7)] += 1;
        }
        assert!(seen.iter().all(|&n| n > 500), "{seen:?}");
    }
}
