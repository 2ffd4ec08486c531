//! The vector transform against the scalar one, on eight emulated lanes.

use super::super::NttTable;
use super::*;
use crate::prime;
use crate::simd::emulated::Emulated;

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
