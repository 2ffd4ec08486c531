//! Switching keys and the collection in which the evaluator looks them up.

use crate::{Error, Params, Result, security};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

/// The purpose of a switching key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyId {
    /// From `s^2` to `s`, after a product.
    Relinearisation,
    /// From `s(X^g)` to `s`, after the automorphism `X -> X^g`.
    Galois(u64),
    /// From the secret to the ephemeral sparse one.
    ToSparse,
    /// From `s'(X^g)` to `s`, after the automorphism `X -> X^g`, where `s'` is the ephemeral sparse
    /// secret. For `g = 1` the automorphism is the identity.
    FromSparse(u64),
    /// From `s(X^g)` to `s` over all primes: with it, a server derives keys from the sparse secret
    /// ([`crate::derivation`]). It serves nothing else.
    Master(u64),
}

impl KeyId {
    /// Whether such a key leads to or from the ephemeral sparse secret.
    pub fn is_sparse(self) -> bool {
        matches!(self, Self::ToSparse | Self::FromSparse(_))
    }

    /// The limbs at which the digits of such a key for `limbs` limbs begin, in the order of its
    /// basis. None for a master key of a set that has no master keys.
    pub fn digit_starts(self, params: &Params, limbs: usize) -> &[usize] {
        match self {
            // The operand of a key from the sparse secret is small, so it is not split: one digit.
            Self::FromSparse(_) => &params.digit_starts()[..1],
            Self::Master(_) => params.master_digit_starts(),
            _ => &params.digit_starts()[..params.digits(limbs)],
        }
    }

    /// The limbs that the digits of such a key consist of: the first ones of its basis.
    pub fn digit_limbs(self, params: &Params, limbs: usize) -> usize {
        match self {
            Self::Master(_) => params.sparse_key_basis().limbs(),
            _ => limbs,
        }
    }

    /// The primes of such a key for `limbs` limbs.
    pub fn basis(self, params: &Params, limbs: usize) -> Basis {
        match self {
            // The operand is so small that the special primes of a key for `q0` alone hide its
            // noise.
            Self::FromSparse(_) => Basis { q: limbs, p: params.special_for(1) },
            Self::Master(_) => params.full_basis(),
            _ => params.key_basis(limbs),
        }
    }

    /// Fails for a key for `limbs` limbs of less than 128 bits, unless the name of the set says
    /// that it is insecure.
    pub fn require_security(self, params: &Params, limbs: usize) -> Result<()> {
        if params.is_insecure_by_name() {
            return Ok(());
        }
        let literal = params.literal();
        // Under the sparse secret only a much smaller modulus is secure: its weight is decisive.
        let weight = if self == Self::ToSparse { literal.sparse_weight } else { literal.secret_weight };
        let log_qp = params.log_qp(self.basis(params, limbs));
        security::require(&self.to_string(), params.log_n(), weight, log_qp)
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
            Self::Master(g) => write!(f, "master key for X -> X^{g}"),
        }
    }
}

/// A switching key: for each digit `j` a pair `(b, a)` with `b + a t = P g_j s + e`, where `s` is
/// the old secret, `t` the target secret, and `P` the product of the special primes (of a master
/// key those behind its digits). `g_j` is 1 modulo the primes of the digit and 0 modulo the others.
///
/// For the automorphism `X -> X^g` the target is `s(X^(1/g))`. The inner product comes first and
/// the automorphism last, so that many rotations share one set of digits.
pub struct SwitchingKey<P> {
    /// What it is for.
    pub id: KeyId,
    /// Its primes. It serves every ciphertext with at most `basis.q` limbs.
    pub basis: Basis,
    /// The seed of the uniform halves `a`. A derived key has none, and is never written.
    pub seed: Option<Seed>,
    /// Its digits.
    pub digits: Vec<(P, P)>,
}

/// A source of keys that are not in memory yet.
pub trait KeySource<P>: Send + Sync {
    /// The keys of the source.
    fn available(&self) -> Vec<(KeyId, Basis)>;

    /// Loads a key; `None` if the source does not have it. The caller holds a lock, so the function
    /// must not wait for a task of a thread pool.
    fn load(&self, id: KeyId, basis: Basis) -> Result<Option<SwitchingKey<P>>>;
}

/// A key that is in memory or can be loaded from the source.
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

/// The keys of a server, by purpose and size. Keys of a source are loaded once, when they are first
/// used.
pub struct EvaluationKeys<P> {
    entries: HashMap<KeyId, Vec<KeyEntry<P>>>,
    source: Option<Box<dyn KeySource<P>>>,
    version: u64,
}

/// Most keys that are loaded at a time: each takes memory for a digit of it.
const MAX_LOADERS: usize = 8;

/// The keys that are loaded at a time. Loading one takes two threads.
fn loaders() -> usize {
    rayon::current_num_threads().div_ceil(2).min(MAX_LOADERS)
}

/// A number that no other collection of keys has.
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

    /// Adds a key. All keys to and from the sparse secret must belong to one ephemeral secret. Keys
    /// do not name it: a bootstrap with keys of two ephemeral secrets decrypts to noise.
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

    /// Removes the keys of a purpose, of all sizes.
    pub fn remove(&mut self, id: KeyId) {
        self.entries.remove(&id);
        self.version = new_version();
    }

    /// The version of this collection. It changes with every added or removed key, and no two
    /// collections share one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The smallest key of that purpose with at least the chain primes and exactly the special
    /// primes of `basis`.
    pub fn find(&self, id: KeyId, basis: Basis) -> Result<&Arc<SwitchingKey<P>>> {
        let sizes = self.entries.get(&id).map_or(&[][..], Vec::as_slice);
        let fits = |entry: &&KeyEntry<P>| entry.basis.q >= basis.q && entry.basis.p == basis.p;
        let entry = sizes.iter().find(fits).ok_or(Error::MissingKey { key: id, limbs: basis.q })?;
        match entry.key.get() {
            Some(key) => Ok(key),
            None => self.load(id, entry),
        }
    }

    /// Loads a key unless another thread has loaded it. After a failure the next call tries again.
    fn load<'a>(&self, id: KeyId, entry: &'a KeyEntry<P>) -> Result<&'a Arc<SwitchingKey<P>>> {
        let _one_at_a_time = entry.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = entry.key.get() {
            return Ok(key);
        }
        let loaded = self.source.as_ref().map_or(Ok(None), |source| source.load(id, entry.basis))?;
        let key = loaded.ok_or(Error::MissingKey { key: id, limbs: entry.basis.q })?;
        Ok(entry.key.get_or_init(|| Arc::new(key)))
    }

    /// Loads all keys that are not in memory yet, several at a time. `progress` learns after each
    /// key how many are loaded, of how many, and may end the loading with an error.
    pub fn load_all<E: From<Error>>(
        &self,
        mut progress: impl FnMut(usize, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E>
    where
        P: Send + Sync,
    {
        let mut missing: Vec<(KeyId, &KeyEntry<P>)> =
            self.entries.iter().flat_map(|(&id, sizes)| sizes.iter().map(move |entry| (id, entry))).collect();
        missing.retain(|(_, entry)| entry.key.get().is_none());
        // The largest first, so that no loader is left alone with a large one at the end.
        missing.sort_by_key(|(id, entry)| (std::cmp::Reverse(entry.basis.limbs()), *id));
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (sender, results) = mpsc::channel();
        let load_next = |sender: &mpsc::Sender<Result<()>>| {
            while !stopped.load(Ordering::Relaxed) {
                let Some(&(id, entry)) = missing.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                if sender.send(self.load(id, entry).map(drop)).is_err() {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..loaders().min(missing.len()) {
                let sender = sender.clone();
                scope.spawn(move || load_next(&sender));
            }
            drop(sender);
            let ended = results.iter().zip(1..).try_for_each(|(loaded, done)| {
                loaded?;
                progress(done, missing.len())
            });
            stopped.store(true, Ordering::Relaxed);
            ended
        })
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
