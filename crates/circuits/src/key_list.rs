//! The keys a circuit needs, collected.

use hetal_ckks::{KeyId, Params};
use hetal_ring::automorphism;
use std::collections::BTreeMap;

/// Purposes, each with the limbs of the largest ciphertext it is for; apart for every number of special primes.
pub(crate) struct KeyList<'a> {
    params: &'a Params,
    wanted: BTreeMap<(KeyId, usize), usize>,
}

impl<'a> KeyList<'a> {
    pub(crate) fn new(params: &'a Params) -> Self {
        Self { params, wanted: BTreeMap::new() }
    }

    pub(crate) fn want(&mut self, id: KeyId, limbs: usize) {
        let largest = self.wanted.entry((id, self.params.special_for(limbs))).or_default();
        *largest = limbs.max(*largest);
    }

    pub(crate) fn want_rotation(&mut self, k: i64, limbs: usize) {
        self.want(KeyId::Galois(automorphism::rotation_to_galois(self.params.log_n(), k)), limbs);
    }

    pub(crate) fn want_conjugation(&mut self, limbs: usize) {
        self.want(KeyId::Galois(automorphism::conjugation(self.params.log_n())), limbs);
    }

    pub(crate) fn into_vec(self) -> Vec<(KeyId, usize)> {
        self.wanted.into_iter().map(|((id, _), limbs)| (id, limbs)).collect()
    }
}
