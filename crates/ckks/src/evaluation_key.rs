//! Switching keys, and where the evaluator finds them.

use crate::{Error, Params, Result};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a switching key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyId {
    /// From `s^2` to `s`, after a product.
    Relinearisation,
    /// From `s(X^g)` to `s`, after the automorphism `X -> X^g`.
    Galois(u64),
    /// From the secret to the ephemeral sparse one.
    ToSparse,
    /// From `s'(X^g)` to `s`, after the automorphism `X -> X^g`, where `s'` is the ephemeral sparse secret; 1 is the identity.
    FromSparse(u64),
}

impl KeyId {
    /// Whether such a key leads to or from the ephemeral sparse secret.
    pub fn is_sparse(self) -> bool {
        matches!(self, Self::ToSparse | Self::FromSparse(_))
    }

    /// The primes at which the digits of such a key for `limbs` limbs begin.
    pub fn digit_starts(self, params: &Params, limbs: usize) -> &[usize] {
        // What a key from the sparse secret is applied to is small: one digit, which is the whole gadget.
        let digits = if matches!(self, Self::FromSparse(_)) { 1 } else { params.digits(limbs) };
        &params.digit_starts()[..digits]
    }

    /// The primes such a key for `limbs` limbs lives over.
    pub fn basis(self, params: &Params, limbs: usize) -> Basis {
        // So small that the special primes of a key for `q0` alone hide its noise.
        let p = params.special_for(if matches!(self, Self::FromSparse(_)) { 1 } else { limbs });
        Basis { q: limbs, p }
    }

    /// Limbs of all polynomials of such a key for `limbs` limbs.
    pub fn total_limbs(self, params: &Params, limbs: usize) -> usize {
        2 * self.digit_starts(params, limbs).len() * self.basis(params, limbs).limbs()
    }
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Relinearisation => write!(f, "relinearisation key"),
            Self::Galois(g) => write!(f, "Galois key for X -> X^{g}"),
            Self::ToSparse => write!(f, "key to the sparse secret"),
            Self::FromSparse(1) => write!(f, "key from the sparse secret"),
            Self::FromSparse(g) => write!(f, "key from the sparse secret for X -> X^{g}"),
        }
    }
}

/// One switching key: for each digit a pair `(b, a)` with `b + a t = P g_j s + e` under the target secret `t`.
///
/// For automorphisms the target is `s(X^(1/g))`: the inner product is taken first and the automorphism last, so that one
/// set of digits serves many rotations.
pub struct SwitchingKey<P> {
    /// What it is for.
    pub id: KeyId,
    /// The primes it lives over. It serves every ciphertext with at most `basis.q` limbs.
    pub basis: Basis,
    /// Stands for the uniform halves `a`.
    pub seed: Seed,
    /// Its digits.
    pub digits: Vec<(P, P)>,
}

/// Where keys come from that are not in memory yet.
pub trait KeySource<P>: Send + Sync {
    /// The keys there are.
    fn available(&self) -> Vec<(KeyId, Basis)>;

    /// Loads one of them; `None` if there is none. It is called with a lock held, so it must not wait for a task of a
    /// thread pool.
    fn load(&self, id: KeyId, basis: Basis) -> Result<Option<SwitchingKey<P>>>;
}

/// A key that is in memory, or that its source has.
struct KeyEntry<P> {
    basis: Basis,
    key: OnceLock<Arc<SwitchingKey<P>>>,
    loading: Mutex<()>,
}

impl<P> KeyEntry<P> {
    fn new(basis: Basis) -> Self {
        Self { basis, key: OnceLock::new(), loading: Mutex::new(()) }
    }
}

/// The keys a server works with, by purpose and size. Those of a source are loaded when they are first asked for, each
/// once.
pub struct EvaluationKeys<P> {
    entries: HashMap<KeyId, Vec<KeyEntry<P>>>,
    source: Option<Box<dyn KeySource<P>>>,
    version: u64,
}

/// A number that no other keys have.
fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

impl<P> Default for EvaluationKeys<P> {
    fn default() -> Self {
        Self { entries: HashMap::new(), source: None, version: new_version() }
    }
}

impl<P> EvaluationKeys<P> {
    /// The keys of a source.
    pub fn with_source(source: Box<dyn KeySource<P>>) -> Self {
        let mut keys = Self::default();
        for (id, basis) in source.available() {
            keys.add_entry(id, KeyEntry::new(basis));
        }
        keys.source = Some(source);
        keys
    }

    /// Adds a key. Those to and from the sparse secret must be of one ephemeral secret, which no key names: a bootstrap with keys
    /// of two decrypts to noise.
    pub fn insert(&mut self, key: SwitchingKey<P>) {
        let (id, basis) = (key.id, key.basis);
        self.add_entry(id, KeyEntry { key: OnceLock::from(Arc::new(key)), ..KeyEntry::new(basis) });
    }

    fn add_entry(&mut self, id: KeyId, entry: KeyEntry<P>) {
        let sizes = self.entries.entry(id).or_default();
        let index = sizes.partition_point(|other| other.basis.q < entry.basis.q);
        sizes.insert(index, entry);
        self.version = new_version();
    }

    /// Tells these keys from all others, and from themselves before one was added: the same version finds the same keys.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The smallest key of that purpose over at least the primes of `basis` and exactly its special primes.
    pub fn find(&self, id: KeyId, basis: Basis) -> Result<&Arc<SwitchingKey<P>>> {
        let sizes = self.entries.get(&id).map_or(&[][..], Vec::as_slice);
        let fits = |entry: &&KeyEntry<P>| entry.basis.q >= basis.q && entry.basis.p == basis.p;
        let entry = sizes.iter().find(fits).ok_or(Error::MissingKey { key: id, limbs: basis.q })?;
        match entry.key.get() {
            Some(key) => Ok(key),
            None => self.load(id, entry),
        }
    }

    /// Loads a key unless another thread just did. After a failure the next call tries again.
    fn load<'a>(&self, id: KeyId, entry: &'a KeyEntry<P>) -> Result<&'a Arc<SwitchingKey<P>>> {
        let _one_at_a_time = entry.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = entry.key.get() {
            return Ok(key);
        }
        let loaded = self.source.as_ref().map_or(Ok(None), |source| source.load(id, entry.basis))?;
        let key = loaded.ok_or(Error::MissingKey { key: id, limbs: entry.basis.q })?;
        Ok(entry.key.get_or_init(|| Arc::new(key)))
    }

    /// Loads all keys that are not in memory yet.
    pub fn load_all(&self) -> Result<()> {
        for (&id, sizes) in &self.entries {
            for entry in sizes {
                self.load(id, entry)?;
            }
        }
        Ok(())
    }

    /// All keys, in memory or not: purpose and primes.
    pub fn available(&self) -> impl Iterator<Item = (KeyId, Basis)> {
        self.entries.iter().flat_map(|(&id, sizes)| sizes.iter().map(move |entry| (id, entry.basis)))
    }

    /// All keys in memory.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<SwitchingKey<P>>> {
        self.entries.values().flatten().filter_map(|entry| entry.key.get())
    }

    /// Limbs of all keys in memory together.
    pub fn limbs(&self) -> usize {
        self.iter().map(|k| 2 * k.digits.len() * k.basis.limbs()).sum()
    }
}
