//! Dev-only: a client in a box (secret key, encryption, decryption under fixed seeds) and generators of test values.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, Params};
use hetal_keys::{Decryptor, Encryptor, KeyGenerator, SecretKey};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Basis, Isa, Poly, RnsRing};
use std::cell::RefCell;
use std::sync::Arc;

/// A parameter set with a secret key, everything from fixed seeds.
pub struct Client {
    /// The set.
    pub params: Arc<Params>,
    /// Its ring.
    pub ring: Arc<RnsRing>,
    /// Arithmetic without the secret.
    pub evaluator: Evaluator<RnsRing>,
    /// The secret.
    pub secret: SecretKey,
    /// Makes keys.
    pub generator: KeyGenerator,
    encryptor: Encryptor,
    decryptor: Decryptor,
    seeds: RefCell<TestSeeds>,
}

impl Client {
    /// A client of a built-in set, on the fastest kernels.
    pub fn new(set: &str, label: u64) -> Self {
        Self::with_isa(set, label, Isa::detect())
    }

    /// A client of a built-in set on given kernels.
    pub fn with_isa(set: &str, label: u64, isa: Isa) -> Self {
        let params = Arc::new(Params::named(set).unwrap());
        let ring = Arc::new(RnsRing::new(params.log_n(), params.chain(), params.special(), isa).unwrap());
        let mut seeds = TestSeeds::insecure(label);
        Self {
            evaluator: Evaluator::new(Arc::clone(&params), Arc::clone(&ring)),
            secret: SecretKey::generate(&params, &mut seeds),
            generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)),
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            seeds: RefCell::new(seeds),
            params,
            ring,
        }
    }

    /// Encrypts at a usable level.
    pub fn encrypt(&self, values: &[Complex64], level: usize) -> Ciphertext<Poly> {
        self.encrypt_at(values, self.params.limbs(level), self.params.scale(level))
    }

    /// Encrypts with any limbs and scale.
    pub fn encrypt_at(&self, values: &[Complex64], limbs: usize, scale: f64) -> Ciphertext<Poly> {
        let plain = self.evaluator.encode(values, scale, Basis { q: limbs, p: 0 }).unwrap();
        self.encryptor.encrypt(&self.secret, &plain, &mut *self.seeds.borrow_mut())
    }

    /// Decrypts.
    pub fn decrypt(&self, ct: &Ciphertext<Poly>) -> Vec<Complex64> {
        self.decryptor.decrypt(&self.secret, ct).unwrap()
    }

    /// Adds the keys `(purpose, limbs)` to `keys`.
    pub fn add_keys(&self, keys: &mut EvaluationKeys<Poly>, wanted: impl IntoIterator<Item = (KeyId, usize)>) {
        let seeds = &mut *self.seeds.borrow_mut();
        for (id, limbs) in wanted {
            match id {
                KeyId::Relinearisation => {
                    keys.insert(self.generator.relinearisation(&self.secret, limbs, seeds).unwrap());
                }
                KeyId::Galois(g) => keys.insert(self.generator.galois(&self.secret, g, limbs, seeds).unwrap()),
                KeyId::ToSparse => {
                    let pair = self.generator.encapsulation(&self.secret, seeds).unwrap();
                    pair.into_iter().for_each(|key| keys.insert(key));
                }
                KeyId::FromSparse => {}
            }
        }
    }
}

/// Reproducible complex numbers with both parts in [-1, 1].
pub fn complex_vector(n: usize, salt: u64) -> Vec<Complex64> {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| Complex64::new(next(), next())).collect()
}

/// The largest difference of two vectors.
pub fn max_error(a: &[Complex64], b: &[Complex64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).norm()).fold(0.0, f64::max)
}

/// The mean difference of two vectors.
pub fn mean_error(a: &[Complex64], b: &[Complex64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).norm()).sum::<f64>() / a.len() as f64
}
