//! The encoder between complex vectors and integer polynomials.
//!
//! Slot `j` of a polynomial `p` is `p(zeta^(5^j))` with `zeta = exp(i pi / N)`. A vector shorter
//! than `N/2`, of a power of two `n`, is encoded in the subring of `X^(N/2n)`, which repeats it
//! over all slots.

use crate::{Error, Result};
use num_complex::Complex64;

/// The transform between slots and coefficients of a ring of degree `2^log_n`.
pub struct Encoder {
    log_n: u32,
    /// `zeta^k` for `k < 2N`, from a portable sine and cosine: all machines encode to the same
    /// integers.
    roots: Vec<Complex64>,
    /// `5^j mod 2N`.
    powers_of_five: Vec<u32>,
}

impl Encoder {
    /// The encoder for degree `2^log_n`.
    pub fn new(log_n: u32) -> Self {
        let m = 2usize << log_n;
        let roots = (0..m).map(|k| root_of_unity(k, m)).collect();
        let powers_of_five =
            std::iter::successors(Some(1u32), |&x| Some((5 * u64::from(x) % m as u64) as u32)).take(m / 4).collect();
        Self { log_n, roots, powers_of_five }
    }

    /// Slots of a full vector.
    pub fn slots(&self) -> usize {
        1 << (self.log_n - 1)
    }

    /// Integer coefficients of the polynomial whose slots are `scale * values`, rounded.
    pub fn encode(&self, values: &[Complex64], scale: f64) -> Result<Vec<i64>> {
        let coefficients = self.coefficients(values)?;
        coefficients.iter().enumerate().map(|(k, &c)| rounded(c, scale, k)).collect()
    }

    /// Coefficients of the polynomial whose slots are `values`, before they are scaled and rounded.
    pub fn coefficients(&self, values: &[Complex64]) -> Result<Vec<f64>> {
        let n = values.len();
        if !n.is_power_of_two() || n > self.slots() {
            return Err(Error::SlotCount { got: n, slots: self.slots() });
        }
        let mut work = values.to_vec();
        self.slots_to_coefficients(&mut work);
        let gap = self.slots() / n;
        let mut out = vec![0.0; 2 * self.slots()];
        for (k, z) in work.iter().enumerate() {
            (out[k * gap], out[self.slots() + k * gap]) = (z.re, z.im);
        }
        Ok(out)
    }

    /// The `n` slots of a polynomial in `X^(N/2n)` with the given coefficients (already divided by
    /// the scale).
    pub fn decode(&self, coefficients: &[f64], n: usize) -> Result<Vec<Complex64>> {
        if !n.is_power_of_two() || n > self.slots() || coefficients.len() != 2 * self.slots() {
            return Err(Error::SlotCount { got: n, slots: self.slots() });
        }
        let gap = self.slots() / n;
        let mut work: Vec<Complex64> =
            (0..n).map(|k| Complex64::new(coefficients[k * gap], coefficients[self.slots() + k * gap])).collect();
        self.coefficients_to_slots(&mut work);
        Ok(work)
    }

    /// Twiddle `j` of the butterflies of length `len`.
    fn twiddle(&self, len: usize, j: usize) -> Complex64 {
        let period = 4 * len;
        let e = self.powers_of_five[j] as usize % period;
        self.roots[e * (self.roots.len() / period)]
    }

    fn coefficients_to_slots(&self, a: &mut [Complex64]) {
        bit_reverse_permute(a);
        let mut len = 2;
        while len <= a.len() {
            let half = len / 2;
            let twiddles: Vec<Complex64> = (0..half).map(|j| self.twiddle(len, j)).collect();
            for block in a.chunks_exact_mut(len) {
                let (low, high) = block.split_at_mut(half);
                for ((x, y), w) in low.iter_mut().zip(high).zip(&twiddles) {
                    let t = *y * w;
                    *y = *x - t;
                    *x += t;
                }
            }
            len *= 2;
        }
    }

    fn slots_to_coefficients(&self, a: &mut [Complex64]) {
        let mut len = a.len();
        while len >= 2 {
            let half = len / 2;
            let twiddles: Vec<Complex64> = (0..half).map(|j| self.twiddle(len, j).conj()).collect();
            for block in a.chunks_exact_mut(len) {
                let (low, high) = block.split_at_mut(half);
                for ((x, y), w) in low.iter_mut().zip(high).zip(&twiddles) {
                    let difference = *x - *y;
                    *x += *y;
                    *y = difference * w;
                }
            }
            len /= 2;
        }
        bit_reverse_permute(a);
        let inverse = 1.0 / a.len() as f64;
        a.iter_mut().for_each(|z| *z *= inverse);
    }

    /// The butterfly of length `len` of the map from (bit-reversed) coefficients to `n` slots, as
    /// its three diagonals `(rotation, values)`, or its inverse. The product of all butterflies,
    /// short ones first, is the whole map.
    pub fn butterfly(&self, n: usize, len: usize, inverse: bool) -> [(usize, Vec<Complex64>); 3] {
        let half = len / 2;
        let zero = Complex64::ZERO;
        let (mut main, mut upper, mut lower) = (vec![zero; n], vec![zero; n], vec![zero; n]);
        for i in 0..n {
            let (j, low) = (i % half, i % len < half);
            let w = self.twiddle(len, j);
            match (inverse, low) {
                // low = x + w y, high = x - w y
                (false, true) => (main[i], upper[i]) = (Complex64::ONE, w),
                (false, false) => (main[i], lower[i]) = (-w, Complex64::ONE),
                // x = (low + high)/2, y = (low - high) conj(w)/2
                (true, true) => (main[i], upper[i]) = (Complex64::new(0.5, 0.0), Complex64::new(0.5, 0.0)),
                (true, false) => (main[i], lower[i]) = (-w.conj() * 0.5, w.conj() * 0.5),
            }
        }
        [(0, main), (half, upper), (n - half, lower)]
    }
}

/// `exp(2 pi i k / m)` for `m` a multiple of 8, exact on the axes and symmetric between octants.
fn root_of_unity(k: usize, m: usize) -> Complex64 {
    let octant = m / 8;
    let (turn, rest) = (k / octant, k % octant);
    let angle = |x: usize| 2.0 * std::f64::consts::PI * x as f64 / m as f64;
    let point = |x: usize| Complex64::new(libm::cos(angle(x)), libm::sin(angle(x)));
    let swap = |z: Complex64| Complex64::new(z.im, z.re);
    match turn {
        0 => point(rest),
        1 => swap(point(octant - rest)),
        2 => Complex64::I * point(rest),
        3 => Complex64::I * swap(point(octant - rest)),
        4 => -point(rest),
        5 => -swap(point(octant - rest)),
        6 => -Complex64::I * point(rest),
        _ => -Complex64::I * swap(point(octant - rest)),
    }
}

/// `scale * x` as an integer that every backend can lift.
pub(crate) fn rounded(x: f64, scale: f64, index: usize) -> Result<i64> {
    let scaled = (x * scale).round_ties_even();
    if scaled.abs() < (1i64 << 62) as f64 {
        Ok(scaled as i64)
    } else {
        Err(Error::NotEncodable { index, value: x, log_scale: libm::log2(scale) })
    }
}

fn bit_reverse_permute<T>(a: &mut [T]) {
    let bits = a.len().trailing_zeros();
    if bits == 0 {
        return;
    }
    for i in 0..a.len() {
        let j = hetal_ring::ntt::bit_reverse(i, bits);
        if i < j {
            a.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(coefficients: &[f64], log_n: u32, j: u32) -> Complex64 {
        let m = 2u64 << log_n;
        let mut e = 1u64;
        (0..j).for_each(|_| e = e * 5 % m);
        let at = |k: u64| Complex64::from_polar(1.0, 2.0 * std::f64::consts::PI * (k % m) as f64 / m as f64);
        coefficients.iter().enumerate().map(|(k, &c)| at(e * k as u64) * c).sum()
    }

    #[test]
    fn slots_are_values_at_powers_of_five() {
        let encoder = Encoder::new(6);
        let coefficients: Vec<f64> = (0..64).map(|k| f64::from(k * k % 17) - 8.0).collect();
        let slots = encoder.decode(&coefficients, 32).unwrap();
        for (j, z) in slots.iter().enumerate() {
            assert!((z - naive(&coefficients, 6, j as u32)).norm() < 1e-11, "slot {j}");
        }
    }

    proptest! {
        #[test]
        fn round_trip_at_every_length(log_slots in 0u32..=9, salt: u64) {
            let encoder = Encoder::new(10);
            let n = 1usize << log_slots;
            let value = |k: usize| {
                let x = (salt ^ (k as u64).wrapping_mul(0x9E3779B97F4A7C15)).wrapping_mul(0xD1342543DE82EF95);
                Complex64::new((x >> 40) as f64 / 8e6 - 1.0, (x & 0xFF_FFFF) as f64 / 8e6 - 1.0)
            };
            let values: Vec<Complex64> = (0..n).map(value).collect();
            let scale = (1u64 << 40) as f64;
            let encoded = encoder.encode(&values, scale).unwrap();
            let reals: Vec<f64> = encoded.iter().map(|&c| c as f64 / scale).collect();
            for (a, b) in values.iter().zip(encoder.decode(&reals, n).unwrap()) {
                prop_assert!((a - b).norm() < 1e-10);
            }
            // A short vector repeats over all slots.
            for (j, b) in encoder.decode(&reals, 512).unwrap().iter().enumerate() {
                prop_assert!((values[j % n] - b).norm() < 1e-10);
            }
        }
    }

    #[test]
    fn butterflies_multiply_to_the_transform() {
        let encoder = Encoder::new(7);
        for n in [8usize, 64] {
            let input: Vec<Complex64> = (0..n).map(|k| Complex64::new(k as f64, 1.0 / (k + 1) as f64)).collect();
            let mut expected = input.clone();
            encoder.coefficients_to_slots(&mut expected);
            let mut a = input.clone();
            bit_reverse_permute(&mut a);
            let apply = |a: &[Complex64], len, inverse| -> Vec<Complex64> {
                let diagonals = encoder.butterfly(n, len, inverse);
                (0..n).map(|i| diagonals.iter().map(|(r, d)| d[i] * a[(i + r) % n]).sum()).collect()
            };
            let lengths: Vec<usize> = (1..=n.ilog2()).map(|k| 1 << k).collect();
            for &len in &lengths {
                a = apply(&a, len, false);
            }
            assert!(a.iter().zip(&expected).all(|(x, y)| (x - y).norm() < 1e-9));
            for &len in lengths.iter().rev() {
                a = apply(&a, len, true);
            }
            bit_reverse_permute(&mut a);
            assert!(a.iter().zip(&input).all(|(x, y)| (x - y).norm() < 1e-9));
        }
    }

    #[test]
    fn what_cannot_be_encoded_says_so() {
        let encoder = Encoder::new(10);
        let one = |x: f64| vec![Complex64::new(x, 0.0); 4];
        assert!(matches!(encoder.encode(&one(f64::NAN), 1.0), Err(Error::NotEncodable { .. })));
        assert!(matches!(encoder.encode(&one(1e30), 1.0), Err(Error::NotEncodable { .. })));
        assert!(matches!(encoder.encode(&[Complex64::ZERO; 3], 1.0), Err(Error::SlotCount { .. })));
        assert!(matches!(encoder.encode(&vec![Complex64::ZERO; 1024], 1.0), Err(Error::SlotCount { .. })));
    }
}
