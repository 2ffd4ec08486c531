//! The generator SplitMix64: fixed sequences that are the same on every machine. Not for secrets.

/// A generator with its state.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number, uniform in `[-1, 1)`.
    pub fn next_signed(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 * libm::ldexp(1.0, -52) - 1.0
    }

    /// The numbers below `count` in a random order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for k in (1..count).rev() {
            order.swap(k, (self.next_bits() % (k as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first outputs for the seed 1234567.
    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = SplitMix64(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_bits()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let mut order = random.permutation(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
