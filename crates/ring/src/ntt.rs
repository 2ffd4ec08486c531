//! The negacyclic number-theoretic transform: multiplication in `Z_q[X]/(X^n + 1)` becomes slot by
//! slot.
//!
//! The forward transform takes coefficients in order to values in bit-reversed order: entry `j` is
//! the polynomial's value at `psi^(2 brv(j) + 1)`, where `psi` is [`crate::prime::primitive_root`].
//! Every kernel takes and gives residues in `[0, q)`, so all of them agree byte for byte.

mod scalar;
mod vector;

use crate::{Isa, Modulus, prime};
use std::sync::OnceLock;

/// A modulus with the constants of its transform of degree `2^log_n`.
pub struct NttTable {
    modulus: Modulus,
    log_n: u32,
    psi: u64,
    // Each instruction set has its own order of the roots; only the orders in use are computed.
    scalar: OnceLock<scalar::Roots>,
    four_lanes: OnceLock<vector::Roots>,
    eight_lanes: OnceLock<vector::Roots>,
}

impl NttTable {
    /// The transform of degree `2^log_n` modulo `q`; `None` unless `q < 2^51` is a prime equal to 1
    /// mod `2n`.
    pub fn new(q: u64, log_n: u32) -> Option<Self> {
        if !(4..=17).contains(&log_n) {
            return None;
        }
        let modulus = Modulus::new(q)?;
        let psi = prime::primitive_root(&modulus, log_n)?;
        let (scalar, four_lanes, eight_lanes) = Default::default();
        let table = Self { modulus, log_n, psi, scalar, four_lanes, eight_lanes };
        // Computes the roots for this machine now rather than in the first transform.
        match Isa::detect() {
            Isa::Avx512 | Isa::Avx512Ifma if table.is_vector() => _ = table.vector_roots(8),
            Isa::Avx2 if table.is_vector() => _ = table.vector_roots(4),
            _ => _ = table.scalar_roots(),
        }
        Some(table)
    }

    /// The modulus.
    pub fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    /// The degree `n` of the ring.
    pub fn degree(&self) -> usize {
        1 << self.log_n
    }

    /// Coefficients to values, in place.
    pub fn forward(&self, isa: Isa, a: &mut [u64]) {
        assert_eq!(a.len(), self.degree());
        if self.is_vector() { vector::forward(isa, self, a) } else { self.forward_scalar(a) }
    }

    /// Values to coefficients, in place.
    pub fn inverse(&self, isa: Isa, a: &mut [u64]) {
        self.inverse_scaled(isa, a, 1);
    }

    /// Values to coefficients times the constant `scale`, in place, for the price of
    /// [`NttTable::inverse`]: the constant is folded into the division by `n`.
    pub fn inverse_scaled(&self, isa: Isa, a: &mut [u64], scale: u64) {
        assert_eq!(a.len(), self.degree());
        let n_inverse = self.modulus.inv(self.degree() as u64);
        let scale = self.modulus.mul(n_inverse, scale);
        if self.is_vector() { vector::inverse(isa, self, a, scale) } else { self.inverse_scalar(a, scale) }
    }

    /// The value of `X^(n/2)` at the first half of the entries; at the second half it is the
    /// negative. `X^(n/2)` encodes the imaginary unit in every slot.
    pub fn imaginary_unit(&self) -> u64 {
        // brv(j) of the first half is even, so (2 brv(j) + 1) n/2 = n/2 mod 2n.
        self.modulus.pow(self.psi, 1 << (self.log_n - 1))
    }

    /// Whether the degree is large enough for the vector kernels.
    fn is_vector(&self) -> bool {
        self.log_n >= vector::MIN_LOG_N
    }

    fn forward_scalar(&self, a: &mut [u64]) {
        self.scalar_roots().forward(&self.modulus, a);
    }

    fn inverse_scalar(&self, a: &mut [u64], scale: u64) {
        self.scalar_roots().inverse(&self.modulus, a, scale);
    }

    fn scalar_roots(&self) -> &scalar::Roots {
        self.scalar.get_or_init(|| {
            scalar::Roots::new(&self.modulus, &bit_reversed_powers(&self.modulus, self.psi, self.log_n))
        })
    }

    fn vector_roots(&self, lanes: usize) -> &vector::Roots {
        let cell = if lanes == 8 { &self.eight_lanes } else { &self.four_lanes };
        cell.get_or_init(|| vector::Roots::new(&self.modulus, self.psi, self.log_n, lanes))
    }
}

/// `powers[k] = psi^brv(k)`, the order in which the transform's stages consume them.
fn bit_reversed_powers(modulus: &Modulus, psi: u64, log_n: u32) -> Vec<u64> {
    let n = 1usize << log_n;
    let mut powers = vec![0; n];
    let mut power = 1;
    for k in 0..n {
        powers[bit_reverse(k, log_n)] = power;
        power = modulus.mul(power, psi);
    }
    powers
}

/// The low `bits` bits of `k` in reverse order.
pub fn bit_reverse(k: usize, bits: u32) -> usize {
    k.reverse_bits() >> (usize::BITS - bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn evaluate(m: &Modulus, a: &[u64], x: u64) -> u64 {
        a.iter().rev().fold(0, |acc, &c| m.add(m.mul(acc, x), c))
    }

    fn sample(q: u64, n: usize, salt: u64) -> Vec<u64> {
        let mut state = salt | 1;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 11) % q
            })
            .collect()
    }

    const PRIMES: [u64; 4] = [68718428161, 4398044938241, 1125899903827969, 2251799813554177];

    #[test]
    fn forward_evaluates_at_the_documented_points() {
        let table = NttTable::new(PRIMES[2], 6).unwrap();
        let m = *table.modulus();
        let psi = prime::primitive_root(&m, 6).unwrap();
        let a = sample(m.value(), 64, 5);
        for isa in Isa::available() {
            let mut b = a.clone();
            table.forward(isa, &mut b);
            for (j, &value) in b.iter().enumerate() {
                let point = m.pow(psi, 2 * bit_reverse(j, 6) as u64 + 1);
                assert_eq!(value, evaluate(&m, &a, point), "{isa:?} entry {j}");
            }
        }
    }

    #[test]
    fn imaginary_unit_is_the_half_degree_monomial() {
        let table = NttTable::new(PRIMES[1], 10).unwrap();
        let mut a = vec![0; 1024];
        a[512] = 1;
        table.forward(Isa::Scalar, &mut a);
        let unit = table.imaginary_unit();
        assert!(a[..512].iter().all(|&x| x == unit));
        assert!(a[512..].iter().all(|&x| x == table.modulus().neg(unit)));
    }

    /// Round trip, scaling and agreement of all kernels with the scalar one, at every degree, prime
    /// size and edge value.
    #[test]
    fn kernels_agree_and_invert() {
        for log_n in 4..=17 {
            for bits in [36, 42, 50, 51] {
                let q = prime::ntt_primes_below(bits, log_n, 1)[0];
                let table = NttTable::new(q, log_n).unwrap();
                let n = table.degree();
                let edges = [vec![q - 1; n], vec![0; n], vec![q / 2; n], vec![q / 2 + 1; n]];
                let alternating = (0..n).map(|i| if i % 2 == 0 { q - 1 } else { 1 }).collect();
                for a in edges.into_iter().chain([alternating, sample(q, n, u64::from(log_n)), sample(q, n, q)]) {
                    let mut expected = a.clone();
                    table.forward(Isa::Scalar, &mut expected);
                    let mut expected_inverse = a.clone();
                    table.inverse_scaled(Isa::Scalar, &mut expected_inverse, 12345);
                    for isa in Isa::available() {
                        let mut b = a.clone();
                        table.forward(isa, &mut b);
                        assert_eq!(b, expected, "{isa:?} forward, log n {log_n}, q {q}");
                        table.inverse(isa, &mut b);
                        assert_eq!(b, a, "{isa:?} round trip, log n {log_n}, q {q}");
                        let mut b = a.clone();
                        table.inverse_scaled(isa, &mut b, 12345);
                        assert_eq!(b, expected_inverse, "{isa:?} inverse, log n {log_n}, q {q}");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn product_of_values_is_negacyclic_convolution(salt: u64) {
            for q in PRIMES {
                let table = NttTable::new(q, 4).unwrap();
                let m = *table.modulus();
                let (a, b) = (sample(q, 16, salt), sample(q, 16, salt.rotate_left(17)));
                let mut expected = vec![0; 16];
                for i in 0..16 {
                    for j in 0..16 {
                        let product = m.mul(a[i], b[j]);
                        let k = (i + j) % 16;
                        expected[k] = if i + j < 16 { m.add(expected[k], product) } else { m.sub(expected[k], product) };
                    }
                }
                let (mut fa, mut fb) = (a, b);
                table.forward(Isa::Scalar, &mut fa);
                table.forward(Isa::Scalar, &mut fb);
                let mut c: Vec<u64> = fa.iter().zip(&fb).map(|(&x, &y)| m.mul(x, y)).collect();
                table.inverse(Isa::Scalar, &mut c);
                prop_assert_eq!(c, expected);
            }
        }
    }
}
