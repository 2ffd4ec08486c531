//! The vector kernels against the scalar ones, on eight emulated lanes.

use super::*;
use crate::Isa;
use crate::automorphism::Permutation;
use crate::packed;
use crate::simd::emulated::Emulated;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Eight lanes on any machine.
#[test]
fn eight_lanes_agree_with_scalar() {
    for q in [3, 12289, 68718428161, 1125899903827969, 2251799813554177] {
        let m = Modulus::new(q).unwrap();
        let edges = [0, 1, q - 1, q / 2, q / 2 + 1];
        let vectors: Vec<Vec<u64>> = (0..24)
            .map(|k| {
                (0..93u64)
                    .map(|i| if i < 64 { edges[(i / (1 + k % 7) % 5) as usize] } else { i.pow(9) * (k + 1) % q })
                    .collect()
            })
            .chain((0..24).map(|_| vec![q - 1; 93]))
            .collect();
        for first in [0, 24] {
            let v: Vec<&[u64]> = vectors[first..].iter().map(Vec::as_slice).collect();
            for terms in 1..=MAX_DOT_TERMS {
                let (x, y0, y1) = (&v[..terms], &v[8..8 + terms], &v[16..16 + terms]);
                let plus = (terms < MAX_DOT_TERMS && terms % 2 == 0).then_some((v[7], q - 1));
                let plus = [plus, plus.filter(|_| terms % 4 == 0)];
                let mut out = [vec![0; 93], vec![0; 93], vec![0; 93], vec![0; 93]];
                let [ours0, ours1, expected0, expected1] = &mut out;
                // SAFETY: the emulated set needs no features; the lengths agree.
                unsafe { dot_pair_body(Emulated, &m, ours0, ours1, x, y0, y1, plus) };
                scalar::dot_pair_into(&m, expected0, expected1, x, y0, y1, plus);
                assert!(ours0 == expected0 && ours1 == expected1, "{terms} terms, q {q}");
                // SAFETY: as above.
                unsafe { dot_pair_ifma(Emulated, &m, ours0, ours1, x, y0, y1, plus) };
                assert!(ours0 == expected0 && ours1 == expected1, "{terms} terms of integers, q {q}");
                let scalars: Vec<u64> = (0..terms).map(|k| [q - 1, q / 2, 1][k % 3]).collect();
                let [ours, expected, ..] = &mut out;
                for one in [&mut *ours, &mut *expected] {
                    one.copy_from_slice(v[23]);
                }
                scalar::add_combination_assign(&m, expected, x, &scalars);
                let mut with_integers = ours.clone();
                // SAFETY: as above.
                unsafe {
                    add_combination_body(Emulated, &m, ours, x, &scalars);
                    add_combination_ifma(Emulated, &m, &mut with_integers, x, &scalars);
                }
                assert!(ours == expected && with_integers == *expected, "combination of {terms}, q {q}");
            }
            let (mut ours, mut expected) = (v[0].to_vec(), v[0].to_vec());
            // SAFETY: as above.
            unsafe {
                mul_body(Emulated, &m, &mut ours, v[1]);
                mul_add_body(Emulated, &m, &mut ours, v[2], v[3]);
                sub_mul_scalar_body(Emulated, &m, &mut ours, v[4], q / 2);
                add_body(Emulated, &m, &mut ours, v[5]);
                neg_body(Emulated, &m, &mut ours);
            }
            scalar::mul_assign(&m, &mut expected, v[1]);
            scalar::mul_add_assign(&m, &mut expected, v[2], v[3]);
            scalar::sub_mul_scalar_assign(&m, &mut expected, v[4], q / 2);
            scalar::add_assign(&m, &mut expected, v[5]);
            scalar::neg_assign(&m, &mut expected);
            assert_eq!(ours, expected, "q {q}");
        }
    }
}

#[test]
fn eight_lanes_permute() {
    let (q, n) = (Modulus::new(1125899903827969).unwrap(), 64u64);
    let (a, b): (Vec<u64>, Vec<u64>) = (0..n).map(|i| (i * i + 3, q.value() - 1 - i)).unzip();
    for galois in [1, 5, 25, 127, 77] {
        let permutation = Permutation::new(6, galois);
        let part = permutation.whole();
        let (mut ours, mut expected) = (b.clone(), b.clone());
        // SAFETY: the emulated set needs no features; the lengths agree.
        unsafe { add_permuted_body(Emulated, &q, &mut ours, &a, &part) };
        scalar::add_permuted_assign(&q, &mut expected, &a, &part);
        assert_eq!(ours, expected, "{galois}");
        // SAFETY: as above.
        unsafe { permute_body(Emulated, &mut ours, &a, &part) };
        scalar::permute_into(&mut expected, &a, &part);
        assert_eq!(ours, expected, "{galois}");
    }
}

/// Eight lanes read packed residues, as keys and as weights.
#[test]
fn eight_lanes_read_packed_residues() {
    let m = Modulus::new(2251799813554177).unwrap();
    let vectors: Vec<Vec<u64>> =
        (0..6u64).map(|k| (0..256u64).map(|i| (i + 2).pow(7) * (k + 3) % m.value()).collect()).collect();
    let words: Vec<Vec<u64>> = vectors.iter().map(|v| packed::pack(v)).collect();
    let p: Vec<Packed<'_>> = words.iter().map(|w| Packed::new(w)).collect();
    let v: Vec<&[u64]> = vectors.iter().map(Vec::as_slice).collect();
    let run = |kernel: &dyn Fn(&mut [u64], &mut [u64])| {
        let mut out = [vec![0; 256], vec![0; 256]];
        let [out0, out1] = &mut out;
        kernel(out0, out1);
        out
    };
    let expected = run(&|a, b| scalar::dot_pair_into(&m, a, b, &v[..2], &v[2..4], &v[4..], [None; 2]));
    // SAFETY: the emulated set needs no features; the lengths agree.
    unsafe {
        let keys = run(&|a, b| dot_pair_body(Emulated, &m, a, b, &v[..2], &p[2..4], &p[4..], [None; 2]));
        let weights = run(&|a, b| dot_pair_body(Emulated, &m, a, b, &p[..2], &v[2..4], &v[4..], [None; 2]));
        assert!(keys == expected && weights == expected);
        let keys = run(&|a, b| dot_pair_ifma(Emulated, &m, a, b, &v[..2], &p[2..4], &p[4..], [None; 2]));
        let weights = run(&|a, b| dot_pair_ifma(Emulated, &m, a, b, &p[..2], &v[2..4], &v[4..], [None; 2]));
        assert!(keys == expected && weights == expected);
    }
}

/// Slices of wrong lengths are refused before anything is read or written, by every instruction
/// set: a kernel that ran would change a byte of its output or read outside its operands.
#[test]
fn kernels_refuse_slices_of_other_lengths() {
    let q = &Modulus::new(1125899903827969).unwrap();
    let (long, short) = (&[1u64; 64][..], &[1u64; 8][..]);
    let words = packed::pack(&[1; 128]);
    let (packed, none) = (Packed::new(&words), [None; 2]);
    let permutation = Permutation::new(6, 5);
    let (whole, half) = (permutation.whole(), permutation.part(0, 32));
    type Kernel<'a> = &'a dyn Fn(Isa, &mut [u64], &mut [u64]);
    let kernels: [(&str, Kernel<'_>); 16] = [
        ("add", &|isa, a, _| add_assign(isa, q, a, short)),
        ("sub", &|isa, a, _| sub_assign(isa, q, a, short)),
        ("mul into, first", &|isa, a, _| mul_into(isa, q, a, short, long)),
        ("mul into, second", &|isa, a, _| mul_into(isa, q, a, long, short)),
        ("mul", &|isa, a, _| mul_assign(isa, q, a, short)),
        ("mul add", &|isa, a, _| mul_add_assign(isa, q, a, long, short)),
        ("mul scalar add", &|isa, a, _| mul_scalar_add_assign(isa, q, a, short, 3)),
        ("sub mul scalar", &|isa, a, _| sub_mul_scalar_assign(isa, q, a, short, 3)),
        ("dot pair, vectors", &|isa, a, b| dot_pair_into(isa, q, a, b, &[long], &[long], &[short], none)),
        ("dot pair, counts", &|isa, a, b| dot_pair_into(isa, q, a, b, &[long; 2], &[long], &[long; 2], none)),
        ("dot pair, output", &|isa, a, b| dot_pair_into(isa, q, a, &mut b[..8], &[long], &[long], &[long], none)),
        ("dot pair, plus", &|isa, a, b| {
            dot_pair_into(isa, q, a, b, &[long], &[long], &[long], [None, Some((short, 1))]);
        }),
        ("packed", &|isa, a, b| dot_packed_pair_into(isa, q, a, b, &[long], &[packed], &[packed], none)),
        ("combination", &|isa, a, _| add_combination_assign(isa, q, a, &[long, short], &[1, 2])),
        ("permute", &|isa, a, _| permute_into(isa, a, long, &half)),
        ("add permuted", &|isa, a, _| add_permuted_assign(isa, q, a, short, &whole)),
    ];
    for isa in Isa::available() {
        for (name, kernel) in &kernels {
            let (mut a, mut b) = (vec![7; 64], vec![7; 64]);
            let refused = catch_unwind(AssertUnwindSafe(|| kernel(isa, &mut a, &mut b))).err();
            let said = refused.and_then(|panic| panic.downcast::<&str>().ok()).map(|said| *said);
            let kernel = said.and_then(|said| said.strip_prefix("the lengths of the arguments of "));
            let words = name.split(',').next().unwrap().split(' ');
            assert!(kernel.is_some(), "{name} {isa:?} accepts other lengths");
            assert!(words.clone().all(|word| kernel.unwrap().contains(word)), "{name} {isa:?}: {said:?}");
            assert!(a.iter().chain(&b).all(|&x| x == 7), "{name} {isa:?} wrote before it refused");
        }
    }
}
