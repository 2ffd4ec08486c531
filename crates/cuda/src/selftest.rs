//! Every operation on two backends, limb by limb: what anyone with a GPU can run.

use crate::CudaBackend;
use hetal_ckks::Backend;
use hetal_ckks::backend::{Failure, KeyedAutomorphism};
use hetal_ring::{Basis, Isa, RnsRing};

/// A ring to compare two backends in.
pub struct RingPrimes<'a> {
    /// Log of the degree.
    pub log_n: u32,
    /// The primes of the chain.
    pub q: &'a [u64],
    /// The special primes.
    pub p: &'a [u64],
    /// Where digits begin.
    pub digit_starts: &'a [usize],
}

/// What an operation gave: a hash of each limb.
type Outcome = Vec<[u8; 32]>;

/// An operation whose results differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The operation and its shape.
    pub operation: String,
    /// The first limb that differs.
    pub limb: usize,
}

/// How many results were compared, and those that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityReport {
    /// Results compared.
    pub compared: usize,
    /// Those that differ.
    pub mismatches: Vec<Mismatch>,
}

/// Runs every operation on both backends, at several numbers of limbs, on random residues and on
/// those at the ends of their ranges. The same salt gives the same inputs.
///
/// # Errors
///
/// The first failure of a device behind one of them.
pub fn compare<A: Backend, B: Backend>(
    a: &A,
    b: &B,
    ring: &RingPrimes<'_>,
    salt: u64,
) -> Result<ParityReport, Failure> {
    let mut report = ParityReport { compared: 0, mismatches: Vec::new() };
    let full = ring.q.len();
    let mut sizes = vec![full, full.div_ceil(2) + 1, 2, 1];
    sizes.retain(|&q| q <= full);
    sizes.dedup();
    for q in sizes {
        let (left, right) = (Run::new(a, ring, salt, q).all()?, Run::new(b, ring, salt, q).all()?);
        for ((operation, x), (_, y)) in left.into_iter().zip(right) {
            report.compared += 1;
            if let Some(limb) = x.iter().zip(&y).position(|(x, y)| x != y).or((x.len() != y.len()).then_some(0)) {
                report.mismatches.push(Mismatch { operation: format!("{operation} at {q} limbs"), limb });
            }
        }
    }
    Ok(report)
}

/// Lets a GPU transform, multiply, divide and switch keys, on few limbs, and compares with the
/// CPU: quick, for a GPU about to be used.
///
/// # Errors
///
/// The failure of the GPU, or a result that is wrong.
pub fn probe(card: &CudaBackend, ring: &RingPrimes<'_>) -> crate::Result<()> {
    let failed = |reason: String| crate::Error::Driver { operation: "a test of its arithmetic", reason };
    let cpu = RnsRing::new(ring.log_n, ring.q, ring.p, Isa::detect());
    let cpu = cpu.map_err(|q| failed(format!("{q} is no prime for its ring")))?;
    let limbs = ring.q.len().min(3);
    let said = |failure: Failure| match failure {
        Failure::OutOfMemory { needed, free, total } => crate::Error::OutOfMemory { needed, free, total },
        other => failed(other.to_string()),
    };
    let ours = Run::new(card, ring, 1, limbs).few().map_err(said)?;
    let theirs = Run::new(&cpu, ring, 1, limbs).few().map_err(said)?;
    match ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs) {
        Some(((operation, _), _)) => Err(failed(format!("{operation} gave a wrong result"))),
        None => Ok(()),
    }
}

/// A hash of each limb of a polynomial.
///
/// # Errors
///
/// The failure of the device it is on.
pub fn hashes<B: Backend>(backend: &B, poly: &B::Poly) -> Result<Vec<[u8; 32]>, Failure> {
    let words = |limb: &Vec<u64>| limb.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    Ok(backend.download(poly)?.iter().map(|limb| *blake3::hash(&words(limb)).as_bytes()).collect())
}

/// One backend's run with polynomials of `q` limbs of the chain.
struct Run<'a, B: Backend> {
    backend: &'a B,
    ring: &'a RingPrimes<'a>,
    salt: u64,
    basis: Basis,
    outcomes: Vec<(String, Outcome)>,
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(backend: &'a B, ring: &'a RingPrimes<'a>, salt: u64, q: usize) -> Self {
        Self { backend, ring, salt, basis: Basis { q, p: ring.p.len() }, outcomes: Vec::new() }
    }

    fn all(mut self) -> Result<Vec<(String, Outcome)>, Failure> {
        self.copies();
        self.sums_and_products();
        self.constants();
        self.tensors();
        self.divisions();
        self.key_switches();
        self.rotations();
        self.backend.health()?;
        Ok(self.outcomes)
    }

    /// A few operations that use the kernels of a multiplication and a rotation.
    fn few(mut self) -> Result<Vec<(String, Outcome)>, Failure> {
        let (b, basis) = (self.backend, self.basis);
        let (x, y) = (self.poly(basis, 1), self.poly(basis, 2));
        self.record("a product", &b.mul(&x, &y, basis));
        self.record("an automorphism", &b.automorphism(&x, 5));
        self.record("a division", &b.divide(b.mul(&x, &y, basis), 0));
        let coefficients: Vec<i64> = (0..1i64 << self.ring.log_n).map(|k| k * k - 1000).collect();
        self.record("a transform", &b.lift(basis, &coefficients));
        let bottom = self.poly(Basis { q: 1, p: 0 }, 4);
        self.record("a conversion", &b.raise(&bottom, basis));
        if basis.p > 0 {
            let digits = b.decompose(self.poly(self.chain(), 1), self.ring.digit_starts, basis.p);
            let (u0, u1) = b.inner_product(&digits, &self.key(5, basis.p));
            self.record("half of a key-switch", &u0);
            self.record("the other half of a key-switch", &u1);
        }
        self.backend.health()?;
        Ok(self.outcomes)
    }

    /// Notes a result. A failure on the way to it is seen by `health` at the end.
    fn record(&mut self, operation: &str, poly: &B::Poly) {
        self.outcomes.push((operation.to_owned(), hashes(self.backend, poly).unwrap_or_default()));
    }

    fn chain(&self) -> Basis {
        Basis { q: self.basis.q, p: 0 }
    }

    fn full(&self) -> Basis {
        Basis { q: self.ring.q.len(), p: self.ring.p.len() }
    }

    fn prime(&self, basis: Basis, i: usize) -> u64 {
        if i < basis.q { self.ring.q[i] } else { self.ring.p[i - basis.q] }
    }

    /// A polynomial with every pair of extreme residues somewhere, or (salts of one in four)
    /// nothing but one of them.
    fn poly(&self, basis: Basis, salt: u64) -> B::Poly {
        let n = 1usize << self.ring.log_n;
        let mut state = (self.salt ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        let limbs: Vec<Vec<u64>> = (0..basis.limbs())
            .map(|i| {
                let q = self.prime(basis, i);
                let edges = [0, 1, q - 1, q / 2, q / 2 + 1];
                let entry = |k: usize| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    match salt % 4 {
                        3 => edges[2 + (salt / 4 % 3) as usize],
                        _ if k < 125 => edges[k / 5usize.pow((salt % 3) as u32) % 5],
                        _ => (state >> 11) % q,
                    }
                };
                (0..n).map(entry).collect()
            })
            .collect();
        let limbs: Vec<&[u64]> = limbs.iter().map(Vec::as_slice).collect();
        self.backend.upload(basis, &limbs)
    }

    fn halves(&self, basis: Basis, salt: usize) -> Vec<(u64, u64)> {
        let half = |i: usize, k: usize| {
            let q = self.prime(basis, i);
            [q - 1, q / 2, q / 2 + 1, 0, 1, 0x1234_5678_9abc % q][(i + k + salt) % 6]
        };
        (0..basis.limbs()).map(|i| (half(i, 0), half(i, 3))).collect()
    }

    fn copies(&mut self) {
        let (b, basis, chain) = (self.backend, self.basis, self.chain());
        let bound = (1i64 << 62) - 1;
        let coefficients: Vec<i64> = (0..1i64 << self.ring.log_n)
            .map(|k| [0, 1, -1, bound, -bound, k.wrapping_mul(0x1234_5678_9abc_def1) >> 2][k as usize % 6])
            .collect();
        self.record("lift", &b.lift(basis, &coefficients));
        self.record("lift to the chain", &b.lift(chain, &coefficients));
        let reals: Vec<f64> = (0..1u64 << self.ring.log_n)
            .map(|k| [0.0, 0.5, -1.5, 2.5, -0.75, 3e9, -1e12][k as usize % 7] * (1.0 + (k as f64) / 1024.0))
            .collect();
        let reals = b.keep(&reals);
        for factor in [1.0, 1048576.0, 1.0 / 3.0] {
            self.record("lift scaled", &b.lift_scaled(basis, &reals, factor));
        }
        self.record("zero", &b.zero(basis));
        let a = self.poly(self.full(), 1);
        self.record("upload", &a);
        self.record("copy truncated", &b.copy_truncated(&a, basis));
        self.record("copy truncated to the chain", &b.copy_truncated(&a, chain));
        self.record("copy truncated to one special prime", &b.copy_truncated(&a, Basis { q: basis.q, p: 1 }));
        // A copy is not changed with what it was copied from, nor the other way round.
        let mut copy = b.copy_truncated(&a, chain);
        b.neg_assign(&mut copy);
        self.record("copy changed", &copy);
        self.record("original of a changed copy", &a);
        let mut clone = a.clone();
        b.truncate(&mut clone, basis);
        b.add_assign(&mut clone, &a);
        self.record("truncated clone changed", &clone);
        self.record("original of a changed clone", &a);
    }

    fn sums_and_products(&mut self) {
        let (b, basis, chain) = (self.backend, self.basis, self.chain());
        for (x, y) in [(1, 2), (3, 7), (5, 3)] {
            let (large, other) = (self.poly(self.full(), x), self.poly(basis, y));
            let mut sum = other.clone();
            b.add_assign(&mut sum, &large);
            self.record("add", &sum);
            let mut difference = other.clone();
            b.sub_assign(&mut difference, &large);
            self.record("sub", &difference);
            let mut negative = other.clone();
            b.neg_assign(&mut negative);
            self.record("neg", &negative);
            self.record("mul", &b.mul(&large, &other, basis));
            self.record("mul on the chain", &b.mul(&other, &large, chain));
            let mut acc = self.poly(basis, 11);
            b.mul_add_assign(&mut acc, &large, &other);
            self.record("mul add", &acc);
            b.mul_add_assign(&mut acc, &other, &other);
            self.record("mul add, square", &acc);
        }
    }

    fn constants(&mut self) {
        let (b, basis, chain) = (self.backend, self.basis, self.chain());
        for salt in 0..3 {
            let halves = self.halves(basis, salt);
            let large = self.poly(self.full(), salt as u64);
            let mut a = b.copy_truncated(&large, basis);
            b.mul_halves_assign(&mut a, &halves);
            self.record("mul halves", &a);
            b.add_products_with_halves(&mut a, &[(&large, halves.clone()), (&large, self.halves(basis, salt + 1))]);
            self.record("products with halves", &a);
            b.add_halves_assign(&mut a, &halves);
            self.record("add halves", &a);
            let low = self.poly(chain, 3 + 4 * salt as u64);
            b.add_lifted_assign(&mut a, &low);
            self.record("add lifted", &a);
            let mut shared = large.clone();
            b.add_lifted_assign(&mut shared, &self.poly(Basis { p: 0, ..self.full() }, 9));
            self.record("add lifted to a clone", &shared);
        }
        for (count, basis) in [(0, basis), (1, basis), (7, chain), (19, basis)] {
            let polys: Vec<B::Poly> = (0..4).map(|k| self.poly(if k < 2 { basis } else { self.full() }, k)).collect();
            let terms: Vec<_> =
                (0..count).map(|k| ((&polys[k % 2 * 2], &polys[k % 2 * 2 + 1]), self.halves(basis, k))).collect();
            for (start, constant) in [(false, true), (true, true), (true, false)] {
                let start = start.then(|| (self.poly(basis, 3), self.poly(basis, 5)));
                let constant = constant.then(|| self.halves(basis, 2));
                if start.is_some() || count > 0 {
                    let (s0, s1) = b.linear_sum(start, basis, &terms, constant.as_ref());
                    self.record("linear sum 0", &s0);
                    self.record("linear sum 1", &s1);
                }
            }
        }
        let order = 2u64 << self.ring.log_n;
        let a = self.poly(basis, 2);
        for galois in [1, 5, 25, order - 1, order / 2 + 1, 5u64.pow(11) % order] {
            self.record("automorphism", &b.automorphism(&a, galois));
        }
    }

    fn tensors(&mut self) {
        let (b, chain) = (self.backend, self.chain());
        let wide = Basis { p: 0, ..self.full() };
        let polys: Vec<B::Poly> = (0..8).map(|k| self.poly(if k % 2 == 0 { wide } else { chain }, k)).collect();
        let edge = self.poly(chain, 3);
        for count in [1, 3, 9, 35] {
            let pick = |k: usize| &polys[k % polys.len()];
            let terms: Vec<_> = (0..count).map(|k| ((pick(k), pick(k + 1)), (pick(2 * k), pick(3 * k + 1)))).collect();
            for d in b.tensor_sum(&terms, chain) {
                self.record("tensor sum", &d);
            }
            let plain: Vec<_> = (0..count).map(|k| ((pick(k), pick(k + 1)), pick(2 * k + 1))).collect();
            let (s0, s1) = b.plain_sum(&plain, chain);
            self.record("plain sum 0", &s0);
            self.record("plain sum 1", &s1);
            let plain: Vec<_> = (0..count).map(|_| ((&edge, &edge), &edge)).collect();
            self.record("plain sum of squares", &b.plain_sum(&plain, chain).0);
            let terms: Vec<_> = (0..count).map(|_| ((&edge, &edge), (&edge, &edge))).collect();
            for d in b.tensor_sum(&terms, chain) {
                self.record("tensor sum of squares", &d);
            }
        }
    }

    fn divisions(&mut self) {
        let (b, basis, chain) = (self.backend, self.basis, self.chain());
        for salt in [2, 3, 5] {
            self.record("divide by special primes", &b.divide(self.poly(basis, salt), 0));
            if chain.q > 1 {
                self.record("rescale", &b.divide(self.poly(chain, salt), 1));
                if basis.p < hetal_ring::base_conversion::MAX_SOURCES {
                    self.record("divide and rescale", &b.divide(self.poly(basis, salt), 1));
                }
            }
            if chain.q > 2 {
                self.record("rescale by two primes", &b.divide(self.poly(chain, salt), 2));
            }
            for (drop_q, galois) in [(0, 1), (1, 5), (0, (2 << self.ring.log_n) - 1)] {
                if chain.q > drop_q && basis.p + drop_q <= hetal_ring::base_conversion::MAX_SOURCES {
                    let pair = (self.poly(basis, salt), self.poly(basis, salt + 1));
                    let (x, y) = b.divide_pair(pair, drop_q, galois);
                    self.record("divide pair 0", &x);
                    self.record("divide pair 1", &y);
                }
            }
            let bottom = self.poly(Basis { q: 1, p: 0 }, salt);
            self.record("raise", &b.raise(&bottom, basis));
            self.record("raise on the chain", &b.raise(&bottom, chain));
        }
    }

    /// A key with so many special primes.
    fn key(&self, salt: u64, p: usize) -> Vec<(B::Packed, B::Packed)> {
        let digits = self.ring.digit_starts.len() as u64;
        let basis = Basis { p, ..self.full() };
        let half = |salt| self.backend.pack(self.backend.copy_truncated(&self.poly(self.full(), salt), basis));
        (0..digits).map(|j| (half(salt + 2 * j), half(salt + 2 * j + 1))).collect()
    }

    fn key_switches(&mut self) {
        let (b, chain, p) = (self.backend, self.chain(), self.basis.p);
        for (salt, key_salt) in [(1, 5), (3, 40), (7, 3)] {
            for p in [p, 1] {
                if p != p.min(self.ring.p.len()) || p == 0 {
                    continue;
                }
                // Keys have as many special primes as the digits.
                let own = self.key(key_salt, p);
                let digits = b.decompose(self.poly(chain, salt), self.ring.digit_starts, p);
                let (u0, u1) = b.inner_product(&digits, &own);
                self.record("inner product 0", &u0);
                self.record("inner product 1", &u1);
                let wide = self.poly(Basis { p: 0, ..self.full() }, salt + 1);
                let (s0, s1) = b.inner_product_plus(&digits, &own, [Some(&wide), (salt != 1).then_some(&wide)]);
                self.record("inner product plus 0", &s0);
                self.record("inner product plus 1", &s1);
                for galois in [5, (2 << self.ring.log_n) - 1] {
                    let acc = (salt != 3).then(|| (u0.clone(), s1.clone()));
                    for added in [&s0, &wide] {
                        let (a0, a1) = b.add_switched(acc.clone(), added, &digits, &own, galois);
                        self.record("add switched 0", &a0);
                        self.record("add switched 1", &a1);
                    }
                    self.record("accumulator", &u0);
                }
            }
        }
    }

    fn rotations(&mut self) {
        let (b, basis) = (self.backend, self.basis);
        let wide = Basis { p: 0, ..self.full() };
        let order = 2u64 << self.ring.log_n;
        let keys = [self.key(50, basis.p), self.key(71, basis.p)];
        let weights: Vec<B::Packed> =
            (0..7).map(|k| b.pack(self.poly(if k % 2 == 0 { basis } else { self.full() }, k))).collect();
        for (steps, rows) in [(1, 1), (8, 4), (19, 5)] {
            let mut galois = 1u64;
            let steps: Vec<KeyedAutomorphism<'_, B::Packed>> = (0..steps)
                .map(|k| {
                    let key = (k % 5 != 0).then_some(&keys[k % 2][..]);
                    galois = galois * 5 % order;
                    KeyedAutomorphism { galois: if key.is_some() { galois } else { 1 }, key }
                })
                .collect();
            let weight = |r: usize, k: usize| (!(r + 2 * k).is_multiple_of(7)).then(|| &weights[(r + 3 * k) % 7]);
            let rows: Vec<Vec<Option<&B::Packed>>> =
                (0..rows).map(|r| (0..steps.len()).map(|k| weight(r, k + 1)).collect()).collect();
            let c0 = self.poly(wide, 6);
            let digits = b.decompose(self.poly(self.chain(), 8), self.ring.digit_starts, basis.p);
            for (u0, u1) in b.rotation_sums(&c0, &digits, &steps, &rows) {
                self.record("rotation sums 0", &u0);
                self.record("rotation sums 1", &u1);
            }
        }
    }
}
