//! The vector transform against the scalar one, on eight emulated lanes.

use super::super::NttTable;
use super::*;
use crate::simd::emulated::Emulated;
use crate::{Isa, prime};

/// Eight lanes on any machine: the arithmetic of the AVX-512 kernels without their instructions.
#[test]
fn eight_lanes_agree_with_scalar() {
    for log_n in MIN_LOG_N..=13 {
        for bits in [20, 36, 47, 48, 50, 51] {
            let q = prime::ntt_primes_below(bits, log_n, 1)[0];
            let table = NttTable::new(q, log_n).unwrap();
            let n = table.degree();
            let mixed = (0..n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % q).collect();
            for a in [vec![q - 1; n], vec![q / 2; n], vec![q / 2 + 1; n], mixed] {
                let (mut ours, mut expected) = (a.clone(), a);
                // SAFETY: the emulated set needs no features; the lengths are those of the table.
                unsafe { forward_any(Emulated, &table, &mut ours) };
                table.forward_scalar(&mut expected);
                assert_eq!(ours, expected, "forward, log n {log_n}, q {q}");
                ours.reverse();
                expected.reverse();
                // SAFETY: as above.
                unsafe { inverse_any(Emulated, &table, &mut ours, 12345) };
                table.inverse_scalar(&mut expected, 12345);
                assert_eq!(ours, expected, "inverse, log n {log_n}, q {q}");
            }
        }
    }
}

/// A transform of another length than the table's degree is refused before anything is written.
#[test]
fn transforms_refuse_slices_of_other_lengths() {
    let table = NttTable::new(prime::ntt_primes_below(50, 10, 1)[0], 10).unwrap();
    let small = NttTable::new(prime::ntt_primes_below(50, 6, 1)[0], 6).unwrap();
    for isa in Isa::available() {
        for (table, len) in [(&table, 512), (&table, 2048), (&small, 64)] {
            let mut a = vec![7; len];
            let run = std::panic::AssertUnwindSafe(|| forward(isa, table, &mut a));
            assert!(std::panic::catch_unwind(run).is_err(), "{isa:?} {len}");
            let run = std::panic::AssertUnwindSafe(|| inverse(isa, table, &mut a, 1));
            assert!(std::panic::catch_unwind(run).is_err(), "{isa:?} {len}");
            assert!(a.iter().all(|&x| x == 7), "{isa:?} {len}");
        }
    }
}
