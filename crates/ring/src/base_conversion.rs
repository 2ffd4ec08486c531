//! Conversion of residues modulo some primes to residues modulo others, for the centred integer
//! that they represent.
//!
//! For `x mod Q`, `Q = q_1 ... q_m`, let `y_i = [x (Q/q_i)^-1]_{q_i}`, centred. Then
//! `x = sum_i y_i Q/q_i - v Q` for an integer `v`. With `v = round(sum_i y_i / q_i)` the right side
//! is the representative of `x` in `[-Q/2, Q/2]`, up to rounding of the sum at the ends of the
//! interval, where either end is valid.
//!
//! The rounded sum is the only floating-point computation that decides a result. It is a fixed
//! chain of IEEE fused multiply-adds, which scalar code, vector code and a GPU compute to the same
//! bits.

mod scalar;
mod vector;

use crate::{Isa, Modulus};

/// The most source primes of one conversion: the 7 special primes and the prime of a rescale merged
/// with them. With centred operands the lazy sums of the vector kernels are exact for this many
/// terms and the term of `v`.
pub const MAX_SOURCES: usize = 8;

/// Coefficients converted at a time: those of eight sources take half of a 64 KiB or all of a 32
/// KiB first cache.
const BLOCK: usize = 512;

/// Constants of the conversion from one set of primes.
pub struct BaseConverter {
    sources: Vec<SourcePrime>,
}

struct SourcePrime {
    modulus: Modulus,
    /// `(Q/q_i)^-1 mod q_i`.
    hat_inverse: u64,
}

/// Constants of the conversion to one more prime.
pub struct ConversionTarget {
    modulus: Modulus,
    /// `Q/q_i mod t`, centred, for each source.
    hats: Vec<f64>,
    /// `-Q mod t`, centred.
    minus_product: f64,
    /// The same numbers times `2^52`, in `[0, t)`, for kernels on integers.
    integers: IntegerConstants,
    /// `Q^-1 mod t`.
    product_inverse: u64,
}

struct IntegerConstants {
    hats: Vec<u64>,
    minus_product: u64,
}

impl BaseConverter {
    /// The conversion from the given pairwise different primes.
    pub fn new(sources: &[Modulus]) -> Self {
        assert!((1..=MAX_SOURCES).contains(&sources.len()), "1 to {MAX_SOURCES} source primes");
        let sources = sources
            .iter()
            .map(|&modulus| {
                let hat = product_mod(&modulus, sources.iter().filter(|s| s.value() != modulus.value()));
                SourcePrime { modulus, hat_inverse: modulus.inv(hat) }
            })
            .collect();
        Self { sources }
    }

    /// Number of source primes.
    pub fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// The constant `(Q/q_i)^-1` that takes residue `i` of `x` to `y_i`; an inverse NTT can fold it
    /// in.
    pub fn hat_inverse(&self, i: usize) -> u64 {
        self.sources[i].hat_inverse
    }

    /// Constants for the prime `t`, which is not a source.
    pub fn target(&self, t: &Modulus) -> ConversionTarget {
        let others = |skip: usize| self.sources.iter().enumerate().filter(move |(k, _)| *k != skip);
        let hats: Vec<u64> =
            (0..self.sources.len()).map(|i| product_mod(t, others(i).map(|(_, s)| &s.modulus))).collect();
        let product = product_mod(t, self.sources.iter().map(|s| &s.modulus));
        let minus_product = t.neg(product);
        let times_2_52 = |x: u64| t.mul(x, (1 << 52) % t.value());
        ConversionTarget {
            modulus: *t,
            hats: hats.iter().map(|&hat| t.center(hat) as f64).collect(),
            minus_product: t.center(minus_product) as f64,
            integers: IntegerConstants {
                hats: hats.iter().map(|&hat| times_2_52(hat)).collect(),
                minus_product: times_2_52(minus_product),
            },
            product_inverse: t.inv(product),
        }
    }

    /// The centred `x` modulo each target's prime, from `scaled[i] = x (Q/q_i)^-1 mod q_i`.
    ///
    /// The conversion works in blocks that stay in the L1 cache, so each source is read once for
    /// all targets.
    pub fn convert(&self, isa: Isa, scaled: &[&[u64]], targets: &[&ConversionTarget], out: &mut [&mut [u64]]) {
        let n = scaled.first().map_or(0, |s| s.len());
        assert!(scaled.len() == self.sources.len() && scaled.iter().all(|s| s.len() == n));
        assert!(targets.len() == out.len() && out.iter().all(|o| o.len() == n));
        if isa.or_scalar() == Isa::Avx512Ifma {
            return self.convert_integers(isa, scaled, targets, out);
        }
        // A cache line between blocks keeps them out of the same cache sets.
        let mut centred = [[0.0; BLOCK + 8]; MAX_SOURCES];
        let mut overflow = [0.0; BLOCK];
        for start in (0..n).step_by(BLOCK) {
            let end = n.min(start + BLOCK);
            for (i, y) in centred[..scaled.len()].iter_mut().enumerate() {
                self.center_into(isa, i, &scaled[i][start..end], &mut y[..end - start]);
            }
            let mut y = [[].as_slice(); MAX_SOURCES];
            y.iter_mut().zip(&centred).for_each(|(y, centred)| *y = &centred[..end - start]);
            let y = &y[..scaled.len()];
            let v = &mut overflow[..end - start];
            self.overflow_into(isa, y, v);
            for (target, out) in targets.iter().zip(out.iter_mut()) {
                self.convert_into(isa, target, y, v, &mut out[start..end]);
            }
        }
    }

    /// [`BaseConverter::convert`] with integers. As `y_i` centred is `y_i`, less `q_i` where it is
    /// negative, the sum over `y_i` in `[0, q_i)` exceeds that over centred ones by `n Q` if `n` of
    /// them are negative: `v + n` takes the place of `v`.
    fn convert_integers(&self, isa: Isa, scaled: &[&[u64]], targets: &[&ConversionTarget], out: &mut [&mut [u64]]) {
        let n = scaled.first().map_or(0, |s| s.len());
        let moduli = self.sources.iter().map(|s| s.modulus).collect::<Vec<_>>();
        let mut overflow = [0; BLOCK];
        for start in (0..n).step_by(BLOCK) {
            let end = n.min(start + BLOCK);
            let mut y = [[].as_slice(); MAX_SOURCES];
            y.iter_mut().zip(scaled).for_each(|(y, scaled)| *y = &scaled[start..end]);
            let y = &y[..scaled.len()];
            let v = &mut overflow[..end - start];
            vector::integer_overflow_into(isa, &moduli, y, v);
            for (target, out) in targets.iter().zip(out.iter_mut()) {
                let IntegerConstants { hats, minus_product } = &target.integers;
                vector::convert_integers_into(isa, &target.modulus, hats, *minus_product, y, v, &mut out[start..end]);
            }
        }
    }

    /// `y_i` centred, as doubles (exact: under 2^50), from `scaled = x (Q/q_i)^-1 mod q_i`.
    fn center_into(&self, isa: Isa, i: usize, scaled: &[u64], y: &mut [f64]) {
        let q = &self.sources[i].modulus;
        vector::center_into(isa, q, scaled, y);
    }

    /// `v = round(sum_i y_i / q_i)`.
    fn overflow_into(&self, isa: Isa, y: &[&[f64]], v: &mut [f64]) {
        let mut inverses = [0.0; MAX_SOURCES];
        for (inverse, source) in inverses.iter_mut().zip(&self.sources) {
            *inverse = source.modulus.q_inv_f64;
        }
        vector::overflow_into(isa, &inverses[..self.sources.len()], y, v);
    }

    /// The centred `x` modulo `target`'s prime.
    fn convert_into(&self, isa: Isa, target: &ConversionTarget, y: &[&[f64]], v: &[f64], out: &mut [u64]) {
        let source_bits = self.sources.iter().map(|s| s.modulus.bits()).max().unwrap_or(0);
        let wide = source_bits + target.modulus.bits() > 101;
        vector::convert_into(isa, &target.modulus, &target.hats, target.minus_product, wide, y, v, out);
    }
}

impl ConversionTarget {
    /// The prime converted to.
    pub fn modulus(&self) -> &Modulus {
        &self.modulus
    }

    /// `Q^-1 mod t`, which divides by the source primes after the converted remainder is
    /// subtracted.
    pub fn product_inverse(&self) -> u64 {
        self.product_inverse
    }
}

fn product_mod<'a>(modulus: &Modulus, factors: impl Iterator<Item = &'a Modulus>) -> u64 {
    factors.fold(1, |product, f| modulus.mul(product, f.value() % modulus.value()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: [u64; 7] =
        [1125899903827969, 68718428161, 68724326401, 68724719617, 4398044938241, 4398043496449, 1125899902124033];
    const P: [u64; 8] = [
        2251799813554177,
        2251799810670593,
        2251799809884161,
        2251799807131649,
        2251799806345217,
        2251799805165569,
        2251799799267329,
        1125899887312897,
    ];

    fn moduli(values: &[u64]) -> Vec<Modulus> {
        values.iter().map(|&q| Modulus::new(q).unwrap()).collect()
    }

    /// Signed integers small enough for i128, converted through every kernel.
    fn check(sources: &[u64], targets: &[u64], values: &[i128]) {
        let converter = BaseConverter::new(&moduli(sources));
        for isa in Isa::available() {
            let scale = |(i, q): (usize, &Modulus)| -> Vec<u64> {
                values.iter().map(|&x| q.mul(q.reduce_i128(x), converter.hat_inverse(i))).collect()
            };
            let scaled: Vec<Vec<u64>> = moduli(sources).iter().enumerate().map(scale).collect();
            let scaled: Vec<&[u64]> = scaled.iter().map(Vec::as_slice).collect();
            let constants: Vec<ConversionTarget> = moduli(targets).iter().map(|t| converter.target(t)).collect();
            let mut outputs = vec![vec![0; values.len()]; targets.len()];
            let mut out: Vec<&mut [u64]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            converter.convert(isa, &scaled, &constants.iter().collect::<Vec<_>>(), &mut out);
            for (t, out) in moduli(targets).iter().zip(&outputs) {
                for (&x, &r) in values.iter().zip(out) {
                    assert_eq!(r, t.reduce_i128(x), "{isa:?} {x} mod {}", t.value());
                }
            }
        }
    }

    #[test]
    fn signed_integers_convert_exactly() {
        let mut values = vec![0, 1, -1, 1 << 90, -(1 << 90), (1 << 100) + 12345, -(1 << 100) + 7];
        let mut state = 1u64;
        while values.len() < 256 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            values.push((i128::from(state as i64) << (state >> 60)) + i128::from(state));
        }
        for count in 3..=7 {
            check(&Q[..count], &P, &values);
        }
        for count in 3..=8 {
            check(&P[..count], &Q, &values);
        }
    }

    #[test]
    fn one_source_is_a_centred_reduction() {
        let q = Q[4] as i128;
        let half = q / 2;
        let mut values = vec![0, 1, -1, half, -half, half - 1];
        values.resize(16, 3);
        check(&Q[4..5], &[Q[0], Q[1], P[0]], &values);
    }

    /// Arbitrary residues (no small integer behind them): every kernel gives the scalar kernel's
    /// bytes.
    #[test]
    fn kernels_agree_on_all_residues() {
        // The last pair has 51 bits on both sides.
        for (sources, targets) in [(&Q[..], &P[..]), (&P[..], &Q[..6]), (&P[..6], &P[6..7]), (&P[1..], &P[..1])] {
            let sources = moduli(sources);
            let converter = BaseConverter::new(&sources);
            // More than one block, and a remainder that is no whole vector.
            let n = 1291;
            let mut state = 99u64;
            let scaled: Vec<Vec<u64>> = sources
                .iter()
                .map(|q| {
                    (0..n)
                        .map(|i| match i {
                            0 => q.value() - 1,
                            1 => q.value() / 2,
                            2 => q.value() / 2 + 1,
                            3 => 0,
                            4..12 => q.value() / 2 + (i as u64 + q.value() / 4) % 2,
                            _ => {
                                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                                (state >> 11) % q.value()
                            }
                        })
                        .collect()
                })
                .collect();
            let scaled: Vec<&[u64]> = scaled.iter().map(Vec::as_slice).collect();
            let constants: Vec<ConversionTarget> = moduli(targets).iter().map(|t| converter.target(t)).collect();
            let run = |isa: Isa| {
                let mut outputs = vec![vec![0; n]; targets.len()];
                let mut out: Vec<&mut [u64]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                converter.convert(isa, &scaled, &constants.iter().collect::<Vec<_>>(), &mut out);
                outputs
            };
            let expected = run(Isa::Scalar);
            for isa in Isa::available() {
                assert_eq!(run(isa), expected, "{isa:?}");
            }
        }
    }
}
