//! Primes that carry a negacyclic NTT, and their roots of unity.

use crate::Modulus;

/// Whether `n` is prime: Miller-Rabin with the twelve bases that decide every 64-bit number.
pub fn is_prime(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 {
        return false;
    }
    if let Some(&p) = BASES.iter().find(|&&p| n.is_multiple_of(p)) {
        return n == p;
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    let mul = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(n)) as u64;
    BASES.iter().all(|&base| {
        let (mut x, mut square, mut e) = (1, base, odd);
        while e > 0 {
            if e & 1 == 1 {
                x = mul(x, square);
            }
            square = mul(square, square);
            e >>= 1;
        }
        if x == 1 || x == n - 1 {
            return true;
        }
        (1..twos).any(|_| {
            x = mul(x, x);
            x == n - 1
        })
    })
}

/// Whether `q` is a prime equal to 1 modulo `2 * 2^log_n`: the ring of degree `2^log_n` has an NTT
/// modulo `q`.
pub fn is_ntt_prime(q: u64, log_n: u32) -> bool {
    q & ((1 << (log_n + 1)) - 1) == 1 && is_prime(q)
}

/// The `count` NTT primes nearest below `2^bits`, largest first.
pub fn ntt_primes_below(bits: u32, log_n: u32, count: usize) -> Vec<u64> {
    let step = 1u64 << (log_n + 1);
    let mut candidate = (1u64 << bits) + 1;
    let mut found = Vec::with_capacity(count);
    while found.len() < count && candidate > step {
        candidate -= step;
        if is_prime(candidate) {
            found.push(candidate);
        }
    }
    found
}

/// The primitive `2^(log_n + 1)`-th root of unity `x^((q-1)/2n)` with the smallest `x` that gives
/// one: a fixed choice, so that transforms (and bytes) agree between machines.
pub fn primitive_root(modulus: &Modulus, log_n: u32) -> Option<u64> {
    let q = modulus.value();
    if !is_ntt_prime(q, log_n) {
        return None;
    }
    (2..q).map(|x| modulus.pow(x, (q - 1) >> (log_n + 1))).find(|&root| modulus.pow(root, 1 << log_n) == q - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_primes_by_trial_division() {
        for n in 0..5000u64 {
            let naive = n > 1 && (2..n).take_while(|d| d * d <= n).all(|d| n % d != 0);
            assert_eq!(is_prime(n), naive, "{n}");
        }
        assert!(!is_prime(3_215_031_751), "a strong pseudoprime to 2, 3, 5, 7");
    }

    #[test]
    fn generated_primes_have_roots() {
        for q in ntt_primes_below(50, 16, 5) {
            let m = Modulus::new(q).unwrap();
            let root = primitive_root(&m, 16).unwrap();
            assert_eq!(m.pow(root, 1 << 17), 1);
            assert_eq!(m.pow(root, 1 << 16), q - 1);
        }
        assert!(primitive_root(&Modulus::new(12289).unwrap(), 16).is_none());
    }
}
