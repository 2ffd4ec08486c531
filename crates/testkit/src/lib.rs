#![doc = include_str!("../README.md")]
#![allow(clippy::unwrap_used, clippy::panic)]

pub mod allocation;
mod canaries;
pub mod exposition;
pub mod fuzz;
pub mod postgres;
mod random;
pub mod samples;
mod watchdog;

pub use canaries::Canaries;
pub use random::Random;
pub use watchdog::{SetOnDrop, Watchdog};

use hetal_ckks::bytes::Codec;
use hetal_ckks::{Ciphertext, Complex64, EvalMod, EvaluationKeys, Evaluator, KeyId, Params, ParamsLiteral};
use hetal_ckks::{LiftForm, PublicKey, RoundedCiphertext, SeededCiphertext, derivation};
use hetal_keys::{Decryptor, Encryptor, EphemeralSecret, KeyGenerator, SecretKey};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Basis, Isa, PackedPoly, Poly, RnsRing, prime};

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A parameter set with a secret key, everything from fixed seeds.
pub struct TestOwner {
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
    seeds: Mutex<TestSeeds>,
    /// Drawn with the first key to or from it: those of all sets belong together.
    ephemeral: OnceLock<EphemeralSecret>,
}

impl TestOwner {
    /// A client of a built-in set, on the fastest kernels.
    pub fn new(set: &str, label: u64) -> Self {
        Self::with_isa(set, label, Isa::detect())
    }

    /// A client of a built-in set on given kernels.
    pub fn with_isa(set: &str, label: u64, isa: Isa) -> Self {
        Self::of(Params::named(set).unwrap(), label, isa)
    }

    /// A client of any set.
    pub fn of(params: Params, label: u64, isa: Isa) -> Self {
        let params = Arc::new(params);
        let ring = Arc::new(params.ring_on(isa).unwrap());
        let mut seeds = TestSeeds::insecure(label);
        Self {
            evaluator: Evaluator::new(Arc::clone(&params), Arc::clone(&ring)),
            secret: SecretKey::generate(&params, &mut seeds),
            generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)),
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            seeds: Mutex::new(seeds),
            ephemeral: OnceLock::new(),
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
        self.encryptor.encrypt(&self.secret, &plain, &mut *self.seeds.lock().unwrap())
    }

    /// Encrypts at a usable level, the uniform half as a seed.
    pub fn encrypt_seeded(&self, values: &[Complex64], level: usize) -> SeededCiphertext<Poly> {
        let basis = Basis { q: self.params.limbs(level), p: 0 };
        let plain = self.evaluator.encode(values, self.params.scale(level), basis).unwrap();
        self.encryptor.encrypt_seeded(&self.secret, &plain, &mut *self.seeds.lock().unwrap())
    }

    /// Encrypts coefficients modulo `q0`, rounded.
    pub fn encrypt_rounded(&self, coefficients: &[i64], log_bound: u32, form: LiftForm) -> RoundedCiphertext {
        let seeds = &mut *self.seeds.lock().unwrap();
        self.encryptor.encrypt_rounded(&self.secret, coefficients, (log_bound, form), seeds).unwrap()
    }

    /// Encrypts with a public key at a usable level.
    pub fn encrypt_public(&self, key: &PublicKey<Poly>, values: &[Complex64], level: usize) -> Ciphertext<Poly> {
        let basis = Basis { q: self.params.limbs(level), p: 0 };
        let plain = self.evaluator.encode(values, self.params.scale(level), basis).unwrap();
        self.encryptor.encrypt_public(key, &plain, &mut *self.seeds.lock().unwrap()).unwrap()
    }

    /// A public key.
    pub fn public_key(&self, limbs: usize) -> PublicKey<Poly> {
        self.encryptor.public_key(&self.secret, limbs, &mut *self.seeds.lock().unwrap())
    }

    /// Reads and writes the set's objects.
    pub fn codec(&self) -> Codec<RnsRing> {
        Codec::new(Arc::clone(&self.params), Arc::clone(&self.ring))
    }

    /// Decrypts.
    pub fn decrypt(&self, ct: &Ciphertext<Poly>) -> Vec<Complex64> {
        self.decryptor.decrypt(&self.secret, ct).unwrap().expose()
    }

    /// Adds the keys `(purpose, limbs)` to `keys`.
    pub fn add_keys(&self, keys: &mut EvaluationKeys<PackedPoly>, wanted: impl IntoIterator<Item = (KeyId, usize)>) {
        let seeds = &mut *self.seeds.lock().unwrap();
        for (id, limbs) in wanted {
            let ephemeral = id.is_sparse().then(|| self.ephemeral(seeds));
            keys.insert(self.generator.make(&self.secret, (id, limbs), ephemeral, seeds).unwrap());
        }
    }

    /// Derives the keys of `wanted` that `keys` lacks, as a server does.
    pub fn derive_keys(&self, keys: &mut EvaluationKeys<PackedPoly>, wanted: &[(KeyId, usize)]) {
        let target = (&*self.ring, self.ring.isa());
        derivation::derive(&self.params, target, keys, wanted, |_, _| Ok::<_, hetal_ckks::Error>(())).unwrap();
    }

    fn ephemeral(&self, seeds: &mut TestSeeds) -> &EphemeralSecret {
        self.ephemeral.get_or_init(|| EphemeralSecret::new(&self.params, seeds))
    }
}

/// The smallest set there is: two primes, one special one, degree 2^10, no bootstrap. Objects are a
/// few KiB.
pub fn tiny_params() -> Params {
    tiny_with_special("insecure-tiny10", 1)
}

/// [`tiny_params`] with a second special prime, which keys for one prime and keys from the sparse
/// secret do without.
pub fn tiny_params_of_two_kinds() -> Params {
    tiny_with_special("insecure-tiny10-2", 2)
}

/// [`tiny_params`] with master keys: one special prime for keys from the sparse secret, two for
/// theirs.
pub fn tiny_params_of_master_keys() -> Params {
    tiny_with_special("insecure-tiny10-3", 3)
}

fn tiny_with_special(name: &'static str, special: usize) -> Params {
    let prime = |bits| prime::ntt_primes_below(bits, 10, 1);
    Params::new(ParamsLiteral {
        name: name.into(),
        log_n: 10,
        secret_weight: 64,
        sparse_weight: 16,
        log_scale: 30,
        log_message_ratio: 0,
        q0: prime(33)[0],
        slots_to_coeffs: vec![].into(),
        usable: prime(30).into(),
        eval_mod_primes: vec![].into(),
        coeffs_to_slots: vec![].into(),
        special: prime::ntt_primes_below(42, 10, special).into(),
        eval_mod: EvalMod { k: 1, degree: 0, squarings: 0, correction: false },
    })
    .unwrap()
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
    let differences = a.iter().zip(b).map(|(x, y)| (x - y).norm());
    // A maximum passes over what is not a number.
    differences.inspect(|d| assert!(!d.is_nan(), "not a number")).fold(0.0, f64::max)
}

/// The mean difference of two vectors.
pub fn mean_error(a: &[Complex64], b: &[Complex64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).norm()).sum::<f64>() / a.len() as f64
}

/// A folder of its own for a test, removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// A fresh, empty folder.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("hetal-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
