//! Arithmetic modulo one prime.

/// Largest number of bits of a modulus. Two residues of 51 bits stay below 2^53 when added twice,
/// so that every lazy sum in the floating-point kernels is an exactly representable integer.
pub const MAX_BITS: u32 = 51;

/// A prime modulus `q < 2^51` with the constants of its reductions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modulus {
    q: u64,
    bits: u32,
    /// `floor(2^(2 bits) / q)`, for Barrett reduction of a product.
    mu: u64,
    /// `q` as a double, exact.
    pub(crate) q_f64: f64,
    /// `1/q` rounded to nearest.
    pub(crate) q_inv_f64: f64,
}

impl Modulus {
    /// The modulus `q`; `None` unless `2 < q < 2^51` and `q` is odd.
    pub fn new(q: u64) -> Option<Self> {
        if q <= 2 || q.is_multiple_of(2) || q >> MAX_BITS != 0 {
            return None;
        }
        let bits = 64 - q.leading_zeros();
        let mu = ((1u128 << (2 * bits)) / u128::from(q)) as u64;
        Some(Self { q, bits, mu, q_f64: q as f64, q_inv_f64: 1.0 / q as f64 })
    }

    /// The number itself.
    #[inline(always)]
    pub fn value(&self) -> u64 {
        self.q
    }

    /// Number of bits of `q`.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// `a + b mod q` for residues.
    #[inline(always)]
    pub fn add(&self, a: u64, b: u64) -> u64 {
        let s = a + b;
        s.min(s.wrapping_sub(self.q))
    }

    /// `a - b mod q` for residues.
    #[inline(always)]
    pub fn sub(&self, a: u64, b: u64) -> u64 {
        let d = a.wrapping_sub(b);
        d.min(d.wrapping_add(self.q))
    }

    /// `-a mod q` for a residue.
    #[inline(always)]
    pub fn neg(&self, a: u64) -> u64 {
        self.sub(0, a)
    }

    /// `a * b mod q` for residues.
    #[inline(always)]
    pub fn mul(&self, a: u64, b: u64) -> u64 {
        self.reduce_product(u128::from(a) * u128::from(b))
    }

    /// `z mod q` for `z < q^2` by Barrett: the estimate of the quotient is at most 2 too small.
    #[inline(always)]
    fn reduce_product(&self, z: u128) -> u64 {
        let t = (z >> (self.bits - 1)) as u64;
        let quotient = ((u128::from(t) * u128::from(self.mu)) >> (self.bits + 1)) as u64;
        let r = (z as u64).wrapping_sub(quotient.wrapping_mul(self.q));
        let r = r.min(r.wrapping_sub(2 * self.q));
        r.min(r.wrapping_sub(self.q))
    }

    /// `z mod q` for any `z`.
    pub fn reduce_u128(&self, z: u128) -> u64 {
        (z % u128::from(self.q)) as u64
    }

    /// `z mod q` in `[0, q)` for any signed `z`.
    pub fn reduce_i128(&self, z: i128) -> u64 {
        z.rem_euclid(i128::from(self.q)) as u64
    }

    /// `z mod q` in `[0, q)` for a signed `|z| < 2^62`: a quotient from doubles is at most one off
    /// for `q >= 2^16`.
    #[inline(always)]
    pub fn reduce_i64(&self, z: i64) -> u64 {
        let quotient = (z as f64 * self.q_inv_f64) as i64;
        let q = self.q as i64;
        let mut r = z.wrapping_sub(quotient.wrapping_mul(q));
        r += q & (r >> 63);
        r += q & (r >> 63);
        r -= q & ((q - 1 - r) >> 63);
        (r - (q & ((q - 1 - r) >> 63))) as u64
    }

    /// `z mod q` in `[0, q)` for a signed `|z| < q`, without a branch on `z` (used on secrets).
    #[inline(always)]
    pub fn reduce_small(&self, z: i64) -> u64 {
        debug_assert!(z.unsigned_abs() < self.q);
        (z + ((z >> 63) & self.q as i64)) as u64
    }

    /// The representative of the residue `a` in `(-q/2, q/2)`.
    #[inline(always)]
    pub fn center(&self, a: u64) -> i64 {
        if a > self.q / 2 { a as i64 - self.q as i64 } else { a as i64 }
    }

    /// `a^e mod q`.
    pub fn pow(&self, mut a: u64, mut e: u64) -> u64 {
        let mut r = 1;
        while e > 0 {
            if e & 1 == 1 {
                r = self.mul(r, a);
            }
            a = self.mul(a, a);
            e >>= 1;
        }
        r
    }

    /// `a^-1 mod q` for a nonzero residue (`q` is prime).
    pub fn inv(&self, a: u64) -> u64 {
        self.pow(a, self.q - 2)
    }

    /// `floor(2^64 w / q)`, the companion of a constant `w` for [`Modulus::mul_shoup`].
    pub fn shoup(&self, w: u64) -> u64 {
        ((u128::from(w) << 64) / u128::from(self.q)) as u64
    }

    /// `a w mod q` with `w_shoup = self.shoup(w)`; `a` may be any 64-bit number.
    #[inline(always)]
    pub fn mul_shoup(&self, a: u64, w: u64, w_shoup: u64) -> u64 {
        let quotient = ((u128::from(a) * u128::from(w_shoup)) >> 64) as u64;
        let r = a.wrapping_mul(w).wrapping_sub(quotient.wrapping_mul(self.q));
        r.min(r.wrapping_sub(self.q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moduli() -> Vec<Modulus> {
        [3u64, 12289, 68718428161, 4398044938241, 1125899903827969, 2251799813554177]
            .map(|q| Modulus::new(q).unwrap())
            .to_vec()
    }

    proptest! {
        #[test]
        fn agrees_with_wide_arithmetic(x: u64, y: u64) {
            for m in moduli() {
                let q = u128::from(m.value());
                let (a, b) = (x % m.value(), y % m.value());
                prop_assert_eq!(u128::from(m.add(a, b)), (u128::from(a) + u128::from(b)) % q);
                prop_assert_eq!(u128::from(m.sub(a, b)), (u128::from(a) + q - u128::from(b)) % q);
                prop_assert_eq!(u128::from(m.mul(a, b)), u128::from(a) * u128::from(b) % q);
                prop_assert_eq!(u128::from(m.mul_shoup(x, b, m.shoup(b))), u128::from(x) * u128::from(b) % q);
                prop_assert_eq!(m.reduce_i128(i128::from(m.center(a))), a);
                let z = (x as i64) >> 2;
                if m.value() >> 16 != 0 {
                    prop_assert_eq!(m.reduce_i64(z), m.reduce_i128(z.into()));
                    let multiple = (z / m.value() as i64) * m.value() as i64;
                    for z in [multiple - 1, multiple, multiple + 1] {
                        prop_assert_eq!(m.reduce_i64(z), m.reduce_i128(z.into()));
                    }
                }
            }
        }
    }

    #[test]
    fn edges() {
        for m in moduli() {
            let top = m.value() - 1;
            assert_eq!(m.mul(top, top), 1);
            assert_eq!(m.add(top, top), top - 1);
            assert_eq!(m.neg(0), 0);
            assert_eq!(m.mul(m.inv(2), 2), 1);
        }
        assert!(Modulus::new(1 << 51).is_none());
        assert!(Modulus::new((1 << 51) + 1).is_none());
        assert!(Modulus::new(10).is_none());
    }
}
