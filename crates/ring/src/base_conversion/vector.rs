//! Conversion on vectors of doubles.

use super::{MAX_SOURCES, scalar};
use crate::Modulus;
use crate::kernels::vector::{Sum, power_of_two};
use crate::simd::{Field, Integers52, Montgomery52, Simd, Sum52, TWO_52, ifma_kernel, to_double, vector_kernel};

vector_kernel! {
    pub(super) fn center_into(q: &Modulus, scaled: &[u64], y: &mut [f64])
        requires (scaled.len() == y.len()) = center_body, else scalar::center_into
}
vector_kernel! {
    pub(super) fn overflow_into(inverses: &[f64], y: &[&[f64]], v: &mut [f64])
        requires (are_sources(inverses.len(), y, v.len())) = overflow_body, else scalar::overflow_into
}
vector_kernel! {
    // `wide`: a source and the target have 51 bits.
    pub(super) fn convert_into(
        t: &Modulus, hats: &[f64], minus_product: f64, wide: bool, y: &[&[f64]], v: &[f64], out: &mut [u64],
    ) requires (are_sources(hats.len(), y, out.len()) && v.len() == out.len()) = convert_body, else convert_scalar
}

ifma_kernel! {
    /// `v + n` of [`super::BaseConverter::convert_integers`].
    pub(super) fn integer_overflow_into(moduli: &[Modulus], y: &[&[u64]], v: &mut [u64])
        requires (are_sources(moduli.len(), y, v.len())) = integer_overflow_body, else scalar::integer_overflow_into
}
ifma_kernel! {
    /// The constants come multiplied by `2^52`.
    pub(super) fn convert_integers_into(
        t: &Modulus, hats: &[u64], minus_product: u64, y: &[&[u64]], v: &[u64], out: &mut [u64],
    ) requires (are_sources(hats.len(), y, out.len()) && v.len() == out.len()) = convert_integers_body, else scalar::convert_integers_into
}

/// Whether there are `count` sources, as many as a conversion takes, of `len` elements each.
fn are_sources<T>(count: usize, y: &[&[T]], len: usize) -> bool {
    y.len() == count && count <= MAX_SOURCES && y.iter().all(|y| y.len() == len)
}

fn convert_scalar(
    t: &Modulus,
    hats: &[f64],
    minus_product: f64,
    _wide: bool,
    y: &[&[f64]],
    v: &[f64],
    out: &mut [u64],
) {
    scalar::convert_into(t, hats, minus_product, y, v, out);
}

/// Vectors of sums done together: one chain of additions each, so that none waits for its own
/// result.
const TOGETHER: usize = 2;

/// All of `y` from element `start` on.
fn tails<'a, T>(y: &[&'a [T]], start: usize) -> [&'a [T]; MAX_SOURCES] {
    let mut tails: [&[T]; MAX_SOURCES] = [&[]; MAX_SOURCES];
    for (tail, y) in tails.iter_mut().zip(y) {
        *tail = &y[start..];
    }
    tails
}

#[inline(always)]
unsafe fn center_body<S: Simd>(_set: S, q: &Modulus, scaled: &[u64], y: &mut [f64]) {
    let end = y.len() & !(S::LANES - 1);
    // SAFETY: the caller's features; both slices have `end` elements.
    unsafe {
        let (half, q) = (S::splat((q.value() / 2) as f64), S::splat(q.q_f64));
        for i in (0..end).step_by(S::LANES) {
            let x = to_double::<S>(S::load_u(scaled.as_ptr().add(i)));
            S::store(y.as_mut_ptr().add(i), S::sub_above(x, half, q));
        }
    }
    scalar::center_into(q, &scaled[end..], &mut y[end..]);
}

#[inline(always)]
unsafe fn overflow_body<S: Simd>(_set: S, inverses: &[f64], y: &[&[f64]], v: &mut [f64]) {
    let end = v.len() & !(S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many as
    // inverses.
    unsafe {
        for i in (0..end).step_by(S::LANES) {
            let mut sum = S::splat(0.0);
            for (y, &inverse) in y.iter().zip(inverses) {
                sum = S::mul_add(S::load(y.as_ptr().add(i)), S::splat(inverse), sum);
            }
            S::store(v.as_mut_ptr().add(i), S::round(sum));
        }
    }
    scalar::overflow_into(inverses, &tails(y, end)[..y.len()], &mut v[end..]);
}

#[inline(always)]
unsafe fn convert_body<S: Simd>(
    _set: S,
    t: &Modulus,
    hats: &[f64],
    minus_product: f64,
    wide: bool,
    y: &[&[f64]],
    v: &[f64],
    out: &mut [u64],
) {
    let end = out.len() & !(TOGETHER * S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many of y as
    // hats.
    unsafe {
        if wide {
            convert_terms::<S, true>(t, hats, minus_product, y, v, &mut out[..end]);
        } else {
            convert_terms::<S, false>(t, hats, minus_product, y, v, &mut out[..end]);
        }
    }
    scalar::convert_into(t, hats, minus_product, &tails(y, end)[..y.len()], &v[end..], &mut out[end..]);
}

/// The sum of products, exactly. With sources below `2^s` and the target below `2^t`,
/// `|y| < 2^(s-1)` and `|hat| < 2^(t-1)`:
/// - Usual, `s + t <= 101`: 8 products below `2^99` stay within `2^102` of the base `1.5 2^103`,
///   and the low part is 8 times `2^50` at most.
/// - `WIDE`, `s = t = 51`: 8 products below `2^100` stay within `2^103` of the base `1.5 2^104`,
///   and the low part grows by `2^51`: it is reduced after 3 terms, and then is below
///   `t/2 + 3 2^51 < 2^53` always.
///
/// The sum is below `8 2^50 t/2 = 2^52 t`, so the high part reduced is `3/2 t` at most; the low
/// part reduced is `t/2 + 2` (or `7/6 t` if `t` is tiny) and `v` times a number of size `t/2`, with
/// `|v| <= 4`, is `2 t`. These together are `4 t < 2^53`.
#[inline(always)]
unsafe fn convert_terms<S: Simd, const WIDE: bool>(
    t: &Modulus,
    hats: &[f64],
    minus_product: f64,
    y: &[&[f64]],
    v: &[f64],
    out: &mut [u64],
) {
    // SAFETY: the caller's.
    unsafe {
        let f = Field::<S>::new(t);
        let base = S::splat(1.5 * power_of_two(if WIDE { 104 } else { 103 }));
        let minus_product = S::splat(minus_product);
        for i in (0..out.len()).step_by(TOGETHER * S::LANES) {
            let mut sums = [Sum::<S>::new(base); TOGETHER];
            for k in 0..y.len() {
                let (y, hat) = (y.get_unchecked(k).as_ptr().add(i), S::splat(*hats.get_unchecked(k)));
                for (j, sum) in sums.iter_mut().enumerate() {
                    if WIDE && k > 0 && k % 3 == 0 {
                        sum.low = f.reduce_any(sum.low);
                    }
                    sum.add(S::load(y.add(j * S::LANES)), hat);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                let v = S::load(v.as_ptr().add(i + j * S::LANES));
                let low = S::mul_add(v, minus_product, f.reduce_any(sum.low));
                let total = S::add(sum.high_mod(&f, base), low);
                S::store_u(out.as_mut_ptr().add(i + j * S::LANES), f.residue(f.reduce(total)));
            }
        }
    }
}

#[inline(always)]
unsafe fn integer_overflow_body<S: Integers52>(_set: S, moduli: &[Modulus], y: &[&[u64]], v: &mut [u64]) {
    let end = v.len() & !(S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many as
    // moduli.
    unsafe {
        let (zero, one, bias) = (S::splat(0.0), S::splat(1.0), S::splat(TWO_52));
        for i in (0..end).step_by(S::LANES) {
            let (mut sum, mut negative) = (zero, zero);
            for (y, q) in y.iter().zip(moduli) {
                let x = to_double::<S>(S::load_u(y.as_ptr().add(i)));
                let centred = S::sub_above(x, S::splat((q.value() / 2) as f64), S::splat(q.q_f64));
                sum = S::mul_add(centred, S::splat(q.q_inv_f64), sum);
                negative = S::add(negative, S::if_negative(centred, one, zero));
            }
            let v_and_bias = S::add(S::add(S::round(sum), negative), bias);
            S::store_u(v.as_mut_ptr().add(i), S::below_52(S::bits(v_and_bias)));
        }
    }
    scalar::integer_overflow_into(moduli, &tails(y, end)[..y.len()], &mut v[end..]);
}

/// Vectors of sums of integers done together.
const INTEGERS_TOGETHER: usize = 4;

/// The sum is at most `8 (2^51 - 1) (t - 1) + 8 (t - 1) < 2^54 t`, as `v` is at most 8.
#[inline(always)]
unsafe fn convert_integers_body<S: Integers52>(
    _set: S,
    t: &Modulus,
    hats: &[u64],
    minus: u64,
    y: &[&[u64]],
    v: &[u64],
    out: &mut [u64],
) {
    let end = out.len() & !(INTEGERS_TOGETHER * S::LANES - 1);
    // SAFETY: the caller's features; all slices have `end` elements, and there are as many of y as
    // hats.
    unsafe {
        let montgomery = Montgomery52::<S>::new(t);
        let minus_product = S::splat_u(minus);
        for i in (0..end).step_by(INTEGERS_TOGETHER * S::LANES) {
            let mut sums = [Sum52::<S>::zero(); INTEGERS_TOGETHER];
            for (j, sum) in sums.iter_mut().enumerate() {
                sum.add(S::load_u(v.as_ptr().add(i + j * S::LANES)), minus_product);
            }
            for k in 0..y.len() {
                let (y, hat) = (y.get_unchecked(k).as_ptr().add(i), S::splat_u(*hats.get_unchecked(k)));
                for (j, sum) in sums.iter_mut().enumerate() {
                    sum.add(S::load_u(y.add(j * S::LANES)), hat);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                S::store_u(out.as_mut_ptr().add(i + j * S::LANES), montgomery.quotient(sum));
            }
        }
    }
    scalar::convert_integers_into(t, hats, minus, &tails(y, end)[..y.len()], &v[end..], &mut out[end..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::emulated::Emulated;

    /// Slices of wrong lengths are refused before anything is written, by every instruction set.
    #[test]
    fn conversions_refuse_slices_of_other_lengths() {
        let t = &Modulus::new(2251799813554177).unwrap();
        let (long, short, words, few) = (&[1.0; 64][..], &[1.0; 8][..], &[1u64; 64][..], &[1u64; 8][..]);
        type Kernel<'a> = &'a dyn Fn(Isa, &mut [u64], &mut [f64]);
        let kernels: [(&str, Kernel<'_>); 8] = [
            ("center", &|isa, _, y| center_into(isa, t, few, y)),
            ("overflow, sources", &|isa, _, v| overflow_into(isa, &[0.1; 2], &[long], v)),
            ("overflow, length", &|isa, _, v| overflow_into(isa, &[0.1; 2], &[long, short], v)),
            ("convert, source", &|isa, out, _| convert_into(isa, t, &[1.0], 1.0, true, &[short], long, out)),
            ("convert, v", &|isa, out, _| convert_into(isa, t, &[1.0], 1.0, false, &[long], short, out)),
            ("integer overflow", &|isa, v, _| integer_overflow_into(isa, &[*t], &[few], v)),
            ("integers, hats", &|isa, out, _| convert_integers_into(isa, t, &[], 1, &[words], words, out)),
            ("integers, v", &|isa, out, _| convert_integers_into(isa, t, &[1], 1, &[words], few, out)),
        ];
        for isa in Isa::available() {
            for (name, kernel) in &kernels {
                let (mut out, mut doubles) = (vec![7; 64], vec![7.0; 64]);
                let run = std::panic::AssertUnwindSafe(|| kernel(isa, &mut out, &mut doubles));
                assert!(std::panic::catch_unwind(run).is_err(), "{name} {isa:?} accepts other lengths");
                assert!(out.iter().all(|&x| x == 7) && doubles.iter().all(|&x| x == 7.0), "{name} {isa:?} wrote");
            }
        }
    }

    /// Eight lanes on any machine, at the largest sums.
    #[test]
    fn eight_lanes_agree_with_scalar() {
        let t = Modulus::new(2251799813554177).unwrap();
        let top = ((1u64 << 50) - 1) as f64;
        for (y, hat, wide) in [(top, (t.value() / 2) as f64, true), (top / 2.0 - 0.5, -((t.value() / 2) as f64), false)]
        {
            let (plus, minus) = (vec![y; 19], vec![-y; 19]);
            for count in 1..=MAX_SOURCES {
                let ys: Vec<&[f64]> = (0..count).map(|k| if k == 5 { &minus[..] } else { &plus[..] }).collect();
                let (hats, v) = (vec![hat; count], vec![-4.0; 19]);
                let (mut ours, mut expected) = ([0; 19], [0; 19]);
                // SAFETY: the emulated set needs no features; the lengths agree.
                unsafe { convert_body(Emulated, &t, &hats, hat, wide, &ys, &v, &mut ours) };
                scalar::convert_into(&t, &hats, hat, &ys, &v, &mut expected);
                assert_eq!(ours, expected, "{count} terms, wide {wide}");
            }
        }
    }

    /// The largest sums of integers.
    #[test]
    fn integers_agree_with_scalar() {
        for t in [3, 68718428161, 1125899903827969, 2251799813554177] {
            let t = Modulus::new(t).unwrap();
            let (y, v, hats) = (vec![(1 << 51) - 1; 45], vec![8; 45], vec![t.value() - 1; MAX_SOURCES]);
            for count in 1..=MAX_SOURCES {
                let (ys, hats) = (vec![&y[..]; count], &hats[..count]);
                let (mut ours, mut expected) = ([0; 45], [0; 45]);
                // SAFETY: the emulated set needs no features; the lengths agree.
                unsafe { convert_integers_body(Emulated, &t, hats, t.value() - 1, &ys, &v, &mut ours) };
                scalar::convert_integers_into(&t, hats, t.value() - 1, &ys, &v, &mut expected);
                assert_eq!(ours, expected, "{count} terms, t {}", t.value());
                // Both are the sum over 2^52.
                let sum = ((1 << 51) - 1) * count as i128 + 8;
                let residue = t.mul(t.reduce_i128(sum), t.value() - 1);
                assert_eq!(t.mul(expected[0], (1 << 52) % t.value()), residue);
            }
        }
    }

    /// Residues at and around the ends of their ranges, with integers and with doubles.
    #[test]
    fn integers_give_the_bytes_of_doubles() {
        let sources = [
            2251799813554177,
            2251799810670593,
            2251799809884161,
            2251799807131649,
            2251799806345217,
            1125899903827969,
            68718428161,
            12289,
        ];
        let moduli: Vec<Modulus> = sources.iter().map(|&q| Modulus::new(q).unwrap()).collect();
        let y: Vec<Vec<u64>> = sources
            .iter()
            .enumerate()
            .map(|(k, &q)| {
                let edges = [0, 1, q / 2, q / 2 + 1, q - 1];
                (0..93u64)
                    .map(|i| match i {
                        0..8 => q - 1,
                        8..64 => edges[(i / (1 + k as u64) % 5) as usize],
                        _ => i.pow(9) % q,
                    })
                    .collect()
            })
            .collect();
        let doubles: Vec<Vec<f64>> = y
            .iter()
            .zip(&moduli)
            .map(|(y, q)| {
                let mut centred = vec![0.0; 93];
                scalar::center_into(q, y, &mut centred);
                centred
            })
            .collect();
        let inverses: Vec<f64> = moduli.iter().map(|q| q.q_inv_f64).collect();
        for count in 1..=sources.len() {
            let ys: Vec<&[u64]> = y[..count].iter().map(Vec::as_slice).collect();
            let centred: Vec<&[f64]> = doubles[..count].iter().map(Vec::as_slice).collect();
            let (mut v, mut v_double) = ([0; 93], [0.0; 93]);
            scalar::overflow_into(&inverses[..count], &centred, &mut v_double);
            // SAFETY: the emulated set needs no features; the lengths agree.
            unsafe { integer_overflow_body(Emulated, &moduli[..count], &ys, &mut v) };
            for t in [3, 12289 - 4096, 68718428161 - 2, 1125899903827969 - 4, 2251799813554177] {
                // Any product will do that fits: of these numbers with a prime it is not zero.
                let t = Modulus::new(t).unwrap();
                let product = sources[..count].iter().fold(1, |p, &q| t.mul(p, q % t.value()));
                let hats: Vec<u64> = (0..count)
                    .map(|k| (0..count).filter(|&j| j != k).fold(1, |p, j| t.mul(p, sources[j] % t.value())))
                    .collect();
                let centred_hats: Vec<f64> = hats.iter().map(|&h| t.center(h) as f64).collect();
                let minus = t.neg(product);
                let (mut ours, mut expected) = ([0; 93], [0; 93]);
                let times = |x: u64| t.mul(x, (1 << 52) % t.value());
                let hats: Vec<u64> = hats.iter().map(|&hat| times(hat)).collect();
                // SAFETY: as above.
                unsafe { convert_integers_body(Emulated, &t, &hats, times(minus), &ys, &v, &mut ours) };
                scalar::convert_into(&t, &centred_hats, t.center(minus) as f64, &centred, &v_double, &mut expected);
                assert_eq!(ours, expected, "{count} sources, t {}", t.value());
            }
        }
    }
}
