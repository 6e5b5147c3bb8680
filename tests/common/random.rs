//! Pseudo-random numbers, the same for the same seed.

/// A small generator of pseudo-random numbers, the same for the same seed.
pub struct Random(u64);

impl Random {
    /// Makes a generator from any seed.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
