//! What transforms leave on the stack, read through the operating system.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

use hetal_ring::{Basis, Isa, RnsRing, prime};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The part of the stack that is searched, in bytes.
const DEPTH: usize = 128 << 10;

/// The numbers below the caller's frame that look like partial transforms: whole doubles of the
/// size of residues. Addresses, counters and text are none.
#[inline(never)]
fn partial_transforms_on_the_stack() -> usize {
    // Its address is that of a whole word.
    let marker = 0u64;
    let here = std::hint::black_box(&marker) as *const u64 as u64;
    let mut stack = vec![0; DEPTH];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut stack, here - DEPTH as u64).unwrap();
    let doubles = stack.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().unwrap()));
    // Residues modulo a prime of 50 bits; random words of other origin are hardly ever such
    // numbers.
    let residue_sizes = 40f64.exp2()..51f64.exp2();
    doubles.filter(|x| x.fract() == 0.0 && residue_sizes.contains(&x.abs())).count()
}

/// Transforms of secrets, forward and back, leave nothing; all others leave their working memory.
#[test]
fn a_secret_leaves_no_trace_on_the_stack() {
    // The smallest degree whose transforms need working memory.
    let log_n = 13;
    let primes = prime::ntt_primes_below(50, log_n, 1);
    let basis = Basis { q: 1, p: 0 };
    let secret: Vec<i64> = (0..1 << log_n).map(|i: i64| (i * i / 7) % 3 - 1).collect();
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
        let ring = RnsRing::new(log_n, &primes, &[], isa).unwrap();
        // One thread does all limbs, on the stack that is searched.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        pool.install(|| {
            assert_eq!(partial_transforms_on_the_stack(), 0, "{isa:?}: a fresh stack");
            let mut lifted = ring.lift_secret(basis, &secret);
            assert_eq!(partial_transforms_on_the_stack(), 0, "{isa:?}: lifted");
            ring.inverse_secret(&mut lifted);
            assert_eq!(partial_transforms_on_the_stack(), 0, "{isa:?}: decrypted");
            // The search finds what is there: these transforms are not wiped.
            ring.forward(&mut lifted);
            assert!(partial_transforms_on_the_stack() > 128, "{isa:?}: forward");
            ring.inverse_secret(&mut lifted);
            assert_eq!(partial_transforms_on_the_stack(), 0, "{isa:?}: decrypted after another");
            ring.inverse(&mut lifted);
            assert!(partial_transforms_on_the_stack() > 128, "{isa:?}: inverse");
        });
    }
}
