//! Switching keys, and where the evaluator finds them.

use crate::{Error, Result};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::collections::HashMap;
use std::sync::Arc;

/// What a switching key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyId {
    /// From `s^2` to `s`, after a product.
    Relinearisation,
    /// From `s(X^g)` to `s`, after the automorphism `X -> X^g`.
    Galois(u64),
    /// From the secret to the ephemeral sparse one.
    ToSparse,
    /// From the ephemeral sparse secret back.
    FromSparse,
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Relinearisation => write!(f, "relinearisation key"),
            Self::Galois(g) => write!(f, "Galois key for X -> X^{g}"),
            Self::ToSparse => write!(f, "key to the sparse secret"),
            Self::FromSparse => write!(f, "key from the sparse secret"),
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

/// The keys a server works with, by purpose and size.
pub struct EvaluationKeys<P> {
    keys: HashMap<KeyId, Vec<Arc<SwitchingKey<P>>>>,
}

impl<P> Default for EvaluationKeys<P> {
    fn default() -> Self {
        Self { keys: HashMap::new() }
    }
}

impl<P> EvaluationKeys<P> {
    /// Adds a key.
    pub fn insert(&mut self, key: SwitchingKey<P>) {
        let sizes = self.keys.entry(key.id).or_default();
        let place = sizes.partition_point(|k| k.basis.q < key.basis.q);
        sizes.insert(place, Arc::new(key));
    }

    /// The smallest key of that purpose over at least the primes of `basis` and exactly its special primes.
    pub fn find(&self, id: KeyId, basis: Basis) -> Result<&Arc<SwitchingKey<P>>> {
        let sizes = self.keys.get(&id).map_or(&[][..], Vec::as_slice);
        let fits = |k: &&Arc<SwitchingKey<P>>| k.basis.q >= basis.q && k.basis.p == basis.p;
        sizes.iter().find(fits).ok_or(Error::MissingKey { key: id, limbs: basis.q })
    }

    /// All keys.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<SwitchingKey<P>>> {
        self.keys.values().flatten()
    }

    /// Limbs of all keys together.
    pub fn limbs(&self) -> usize {
        self.iter().map(|k| 2 * k.digits.len() * k.basis.limbs()).sum()
    }
}
