//! Randomness that a seed brings back.

/// Reproducible random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    /// One below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Whether something happens that happens so many times in a thousand.
    pub fn chance(&mut self, permille: usize) -> bool {
        self.below(1000) < permille
    }

    /// One of the numbers at which things go wrong.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 16] = [
            0,
            1,
            2,
            3,
            5,
            64,
            255,
            2047,
            4096,
            u32::MAX as u64,
            1 << 32,
            1 << 62,
            1 << 63,
            u64::MAX,
            f64::NAN.to_bits(),
            f64::INFINITY.to_bits(),
        ];
        EDGES[self.below(EDGES.len())].wrapping_add(self.next() % 3).wrapping_sub(1)
    }
}
