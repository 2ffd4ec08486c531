//! Collects the keys that a circuit needs.

use hetal_ckks::{KeyId, Params};
use hetal_ring::automorphism;
use std::collections::BTreeMap;

/// Purposes, each with the limbs of its largest ciphertext, separately for every number of special
/// primes.
pub(crate) struct KeyList<'a> {
    params: &'a Params,
    wanted: BTreeMap<(KeyId, usize), usize>,
}

impl<'a> KeyList<'a> {
    pub(crate) fn new(params: &'a Params) -> Self {
        Self { params, wanted: BTreeMap::new() }
    }

    pub(crate) fn want(&mut self, id: KeyId, limbs: usize) {
        let largest = self.wanted.entry((id, id.basis(self.params, limbs).p)).or_default();
        *largest = limbs.max(*largest);
    }

    /// The key of a rotation, if it needs one.
    pub(crate) fn want_rotation(&mut self, k: i64, limbs: usize) {
        if k == 0 {
            return;
        }
        self.want(KeyId::Galois(automorphism::rotation_to_galois(self.params.log_n(), k)), limbs);
    }

    /// The key from the sparse secret that follows a rotation.
    pub(crate) fn want_rotation_from_sparse(&mut self, k: i64, limbs: usize) {
        self.want(KeyId::FromSparse(automorphism::rotation_to_galois(self.params.log_n(), k)), limbs);
    }

    pub(crate) fn want_conjugation(&mut self, limbs: usize) {
        self.want(KeyId::Galois(automorphism::conjugation(self.params.log_n())), limbs);
    }

    pub(crate) fn into_vec(self) -> Vec<(KeyId, usize)> {
        self.wanted.into_iter().map(|((id, _), limbs)| (id, limbs)).collect()
    }
}
