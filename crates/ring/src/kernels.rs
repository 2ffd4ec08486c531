//! Loops over the residues of one limb. Each has a scalar reference and vector versions that give
//! the same bytes. All panic on slices of different lengths.

mod scalar;
pub(crate) mod vector;

use crate::automorphism::Part;
use crate::packed::{Packed, Residues};
use crate::{Isa, Modulus};

/// The most terms of one [`dot_pair_into`]. With 51-bit moduli and centred operands the lazy sums
/// of the vector versions stay exact.
pub const MAX_DOT_TERMS: usize = 8;

/// `a += b`.
pub fn add_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    vector::add_assign(isa, q, a, b);
}

/// `a -= b`.
pub fn sub_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    vector::sub_assign(isa, q, a, b);
}

/// `a = -a`.
pub fn neg_assign(isa: Isa, q: &Modulus, a: &mut [u64]) {
    vector::neg_assign(isa, q, a);
}

/// `out = a b`.
pub fn mul_into(isa: Isa, q: &Modulus, out: &mut [u64], a: &[u64], b: &[u64]) {
    vector::mul_into(isa, q, out, a, b);
}

/// `a *= b`.
pub fn mul_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64]) {
    vector::mul_assign(isa, q, a, b);
}

/// `acc += a b`.
pub fn mul_add_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[u64], b: &[u64]) {
    vector::mul_add_assign(isa, q, acc, a, b);
}

/// `a *= s` for a constant residue `s`.
pub fn mul_scalar_assign(isa: Isa, q: &Modulus, a: &mut [u64], s: u64) {
    vector::mul_scalar_assign(isa, q, a, s);
}

/// `acc += a s` for a constant residue `s`.
pub fn mul_scalar_add_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[u64], s: u64) {
    vector::mul_scalar_add_assign(isa, q, acc, a, s);
}

/// `a = (a - b) s` for a constant residue `s`: the last step of a division by a product of limbs.
pub fn sub_mul_scalar_assign(isa: Isa, q: &Modulus, a: &mut [u64], b: &[u64], s: u64) {
    vector::sub_mul_scalar_assign(isa, q, a, b, s);
}

/// `acc += sum_k s[k] a[k]`, reading and writing `acc` once.
pub fn add_combination_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[&[u64]], s: &[u64]) {
    assert!(a.len() == s.len() && s.iter().all(|&s| s < q.value()));
    for (a, s) in a.chunks(MAX_DOT_TERMS).zip(s.chunks(MAX_DOT_TERMS)) {
        vector::add_combination_assign(isa, q, acc, a, s);
    }
}

/// A vector and a residue to multiply it by.
pub type Scaled<'a> = (&'a [u64], u64);

/// `out0 = sum_k x[k] y0[k]`, `out1 = sum_k x[k] y1[k]`, reading `x` once.
pub fn dot_pair_into(isa: Isa, q: &Modulus, out: (&mut [u64], &mut [u64]), x: &[&[u64]], y0: &[&[u64]], y1: &[&[u64]]) {
    vector::dot_pair_into(isa, q, out.0, out.1, x, y0, y1, [None, None]);
}

/// [`dot_pair_into`] with packed `y0` and `y1`. Each given `plus[h] = (a, s)` adds `s a` to output
/// `h`. This is the inner product of a key-switch.
pub fn dot_packed_pair_plus_into(
    isa: Isa,
    q: &Modulus,
    out: (&mut [u64], &mut [u64]),
    x: &[&[u64]],
    y0: &[Packed<'_>],
    y1: &[Packed<'_>],
    plus: [Option<Scaled<'_>>; 2],
) {
    assert!(plus.iter().flatten().all(|(_, s)| *s < q.value()));
    vector::dot_packed_pair_into(isa, q, out.0, out.1, x, y0, y1, plus);
}

/// [`dot_pair_into`] with packed `x`, the weights of a sum.
pub fn packed_dot_pair_into(
    isa: Isa,
    q: &Modulus,
    out: (&mut [u64], &mut [u64]),
    x: &[Packed<'_>],
    y0: &[&[u64]],
    y1: &[&[u64]],
) {
    vector::packed_dot_pair_into(isa, q, out.0, out.1, x, y0, y1, [None, None]);
}

/// Whether all vectors of a dot product have one length, there are as many `y0` and `y1` as `x`,
/// and no more terms than the sums hold.
fn is_dot_pair<X: Residues, Y: Residues>(
    out0: &[u64],
    out1: &[u64],
    x: &[X],
    y0: &[Y],
    y1: &[Y],
    plus: [Option<Scaled<'_>>; 2],
) -> bool {
    let n = out0.len();
    let terms = x.len() + usize::from(plus.iter().any(Option::is_some));
    out1.len() == n
        && (1..=MAX_DOT_TERMS).contains(&terms)
        && x.len() == y0.len()
        && x.len() == y1.len()
        && x.iter().all(|x| x.len() == n)
        && y0.iter().chain(y1).all(|y| y.len() == n)
        && plus.iter().flatten().all(|(a, _)| a.len() == n)
}

/// Whether all vectors of a linear combination have one length, with a factor each, and there are
/// no more than the sums hold.
fn is_combination(acc: &[u64], a: &[&[u64]], s: &[u64]) -> bool {
    a.len() == s.len() && a.len() <= MAX_DOT_TERMS && a.iter().all(|a| a.len() == acc.len())
}

/// `out` is `a`, permuted. `a` holds the sources of the part, and `out` its entries.
pub fn permute_into(isa: Isa, out: &mut [u64], a: &[u64], part: &Part<'_>) {
    vector::permute_into(isa, out, a, part);
}

/// `acc += a`, with `a` permuted as in [`permute_into`].
pub fn add_permuted_assign(isa: Isa, q: &Modulus, acc: &mut [u64], a: &[u64], part: &Part<'_>) {
    vector::add_permuted_assign(isa, q, acc, a, part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{packed, prime};

    /// Not a multiple of any vector length.
    const LEN: usize = 8 * 23 + 5;

    fn moduli() -> Vec<Modulus> {
        let mut moduli: Vec<_> =
            [36, 42, 50, 51].iter().flat_map(|&bits| prime::ntt_primes_below(bits, 16, 2)).collect();
        moduli.extend([3, 17, 12289]);
        moduli.into_iter().map(|q| Modulus::new(q).unwrap()).collect()
    }

    /// Every pair of edge values somewhere in vectors of different `salt`, then random residues.
    fn sample(q: u64, salt: u64) -> Vec<u64> {
        let edges = [0, 1, q - 1, q / 2, q / 2 + 1];
        let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..LEN)
            .map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if i < 125 { edges[i / 5usize.pow((salt % 3) as u32) % 5] } else { (state >> 11) % q }
            })
            .collect()
    }

    /// Runs `kernel` on every instruction set and expects the scalar bytes.
    fn check(name: &str, kernel: impl Fn(Isa) -> Vec<Vec<u64>>) {
        let expected = kernel(Isa::Scalar);
        for isa in Isa::available() {
            assert_eq!(kernel(isa), expected, "{name} {isa:?}");
        }
    }

    fn with(a: &[u64], kernel: impl Fn(&mut [u64])) -> Vec<Vec<u64>> {
        let mut a = a.to_vec();
        kernel(&mut a);
        vec![a]
    }

    #[test]
    fn kernels_agree() {
        for q in &moduli() {
            let v = q.value();
            let samples = [sample(v, 0), sample(v, 1), sample(v, 2)];
            let tops = [vec![v - 1; LEN], vec![v - 1; LEN], vec![v - 1; LEN]];
            let halves = [vec![v / 2; LEN], vec![v / 2 + 1; LEN], vec![v - 1; LEN]];
            for [a, b, c] in [&samples, &tops, &halves] {
                check("add", |isa| with(a, |a| add_assign(isa, q, a, b)));
                check("sub", |isa| with(a, |a| sub_assign(isa, q, a, b)));
                check("neg", |isa| with(a, |a| neg_assign(isa, q, a)));
                check("mul into", |isa| with(c, |out| mul_into(isa, q, out, a, b)));
                check("mul", |isa| with(a, |a| mul_assign(isa, q, a, b)));
                check("mul add", |isa| with(c, |acc| mul_add_assign(isa, q, acc, a, b)));
                for s in [0, 1, v - 1, v / 2, v / 2 + 1, a[LEN - 1]] {
                    check("mul scalar", |isa| with(a, |a| mul_scalar_assign(isa, q, a, s)));
                    check("mul scalar add", |isa| with(c, |acc| mul_scalar_add_assign(isa, q, acc, a, s)));
                    check("sub mul scalar", |isa| with(a, |a| sub_mul_scalar_assign(isa, q, a, b, s)));
                }
            }
        }
    }

    #[test]
    fn dot_products_agree() {
        for q in &moduli() {
            let v = q.value();
            let random: Vec<_> = (0..24).map(|salt| sample(v, salt)).collect();
            let constants = [v - 1, v / 2, v / 2 + 1].map(|value| vec![vec![value; LEN]; 24]);
            for vectors in constants.iter().chain([&random]) {
                let vectors: Vec<&[u64]> = vectors.iter().map(Vec::as_slice).collect();
                for terms in 1..=MAX_DOT_TERMS {
                    let s = q.value() / 2;
                    let scalars: Vec<u64> = (0..terms).map(|k| [q.value() - 1, s, 1][k % 3]).collect();
                    check("combination", |isa| {
                        let mut acc = vectors[23].to_vec();
                        add_combination_assign(isa, q, &mut acc, &vectors[..terms], &scalars);
                        vec![acc]
                    });
                    let plus = [Some((vectors[22], q.value() - 1)), (terms % 2 == 0).then_some((vectors[21], s))];
                    check_packed(q, &vectors, terms, plus);
                    check("dot pair", |isa| {
                        let (mut out0, mut out1) = (vec![0; LEN], vec![0; LEN]);
                        let (x, y0, y1) = (&vectors[..terms], &vectors[8..8 + terms], &vectors[16..16 + terms]);
                        dot_pair_into(isa, q, (&mut out0, &mut out1), x, y0, y1);
                        vec![out0, out1]
                    });
                }
            }
        }
    }

    /// With a part of the vectors packed: the same as without, on every instruction set.
    fn check_packed(q: &Modulus, vectors: &[&[u64]], terms: usize, plus: [Option<Scaled<'_>>; 2]) {
        let whole = LEN - LEN % 128;
        let vectors: Vec<&[u64]> = vectors.iter().map(|v| &v[..whole]).collect();
        let plus = plus.map(|plus| plus.map(|(a, s)| (&a[..whole], s)));
        let words: Vec<Vec<u64>> = vectors.iter().map(|v| packed::pack(v)).collect();
        let packed: Vec<Packed<'_>> = words.iter().map(|w| Packed::new(w)).collect();
        let run = |kernel: &dyn Fn((&mut [u64], &mut [u64]))| {
            let (mut out0, mut out1) = (vec![0; whole], vec![0; whole]);
            kernel((&mut out0, &mut out1));
            vec![out0, out1]
        };
        let (a, b, c) = (1..terms, 8..7 + terms, 16..15 + terms);
        let plain = |isa| {
            run(&|out| {
                let (x, y0, y1) = (&vectors[a.clone()], &vectors[b.clone()], &vectors[c.clone()]);
                vector::dot_pair_into(isa, q, out.0, out.1, x, y0, y1, plus);
            })
        };
        let keys = |isa| {
            run(&|out| {
                let (x, y0, y1) = (&vectors[a.clone()], &packed[b.clone()], &packed[c.clone()]);
                dot_packed_pair_plus_into(isa, q, out, x, y0, y1, plus);
            })
        };
        check("dot pair plus", plain);
        check("dot packed pair plus", keys);
        assert_eq!(keys(Isa::Scalar), plain(Isa::Scalar));
        let (a, b, c) = (0..terms, 8..8 + terms, 16..16 + terms);
        let weights = |isa| {
            run(&|out| packed_dot_pair_into(isa, q, out, &packed[a.clone()], &vectors[b.clone()], &vectors[c.clone()]))
        };
        check("packed dot pair", weights);
        let plain =
            |isa| run(&|out| dot_pair_into(isa, q, out, &vectors[a.clone()], &vectors[b.clone()], &vectors[c.clone()]));
        assert_eq!(weights(Isa::Scalar), plain(Isa::Scalar));
    }

    #[test]
    fn scalar_dot_is_the_sum_of_products() {
        let q = &moduli()[6];
        let (a, b) = (sample(q.value(), 4), sample(q.value(), 5));
        let (mut out0, mut out1) = (vec![0; LEN], vec![0; LEN]);
        dot_pair_into(Isa::Scalar, q, (&mut out0, &mut out1), &[&a, &b], &[&b, &a], &[&a, &b]);
        for i in 0..LEN {
            assert_eq!(out0[i], q.add(q.mul(a[i], b[i]), q.mul(a[i], b[i])));
            assert_eq!(out1[i], q.add(q.mul(a[i], a[i]), q.mul(b[i], b[i])));
        }
    }
}
