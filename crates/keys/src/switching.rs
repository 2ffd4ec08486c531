//! Generation of switching keys.

use crate::secret::SecretPoly;
use crate::{Error, SecretKey};
use hetal_ckks::{EvaluationKeys, KeyId, Params, Result, SwitchingKey};
use hetal_ring::sampler::{Domain, Gaussian, Seed, SeedSource};
use hetal_ring::{Basis, Modulus, PackedPoly, Poly, RnsRing, automorphism, kernels};
use std::sync::Arc;
use zeroize::Zeroize;

/// A sparse secret under which a bootstrap raises the modulus. It is dropped after the keys to and
/// from it are made.
pub struct EphemeralSecret(SecretKey);

impl EphemeralSecret {
    /// A fresh ephemeral secret.
    pub fn new(params: &Params, seeds: &mut dyn SeedSource) -> Self {
        Self(SecretKey::sparse(params, seeds))
    }

    /// The ephemeral secret that a set of keys needs: `None` if no key is to or from it.
    ///
    /// Keys in only one direction are refused. The secret is not kept, so the other direction could
    /// never be made.
    pub fn for_keys(
        params: &Params,
        wanted: &[(KeyId, usize)],
        seeds: &mut dyn SeedSource,
    ) -> crate::Result<Option<Self>> {
        let to = wanted.iter().any(|(id, _)| *id == KeyId::ToSparse);
        let from = wanted.iter().any(|(id, _)| matches!(id, KeyId::FromSparse(_)));
        if to != from {
            return Err(Error::LoneSparseKey);
        }
        Ok(to.then(|| Self::new(params, seeds)))
    }
}

/// Makes switching keys for a parameter set.
pub struct KeyGenerator {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    gaussian: Gaussian,
}

impl KeyGenerator {
    /// A generator for a parameter set.
    pub fn new(params: Arc<Params>, ring: Arc<RnsRing>) -> Self {
        Self { params, ring, gaussian: Gaussian::new() }
    }

    /// Makes all keys of a set: each purpose with the limbs of the largest ciphertext it serves.
    ///
    /// `hetal_circuits::encrypted::keys` lists what a circuit needs.
    pub fn generate(
        &self,
        secret: &SecretKey,
        wanted: &[(KeyId, usize)],
        seeds: &mut dyn SeedSource,
    ) -> crate::Result<EvaluationKeys<PackedPoly>> {
        let ephemeral = EphemeralSecret::for_keys(&self.params, wanted, seeds)?;
        let mut keys = EvaluationKeys::default();
        for &key in wanted {
            keys.insert(self.make(secret, key, ephemeral.as_ref(), seeds)?);
        }
        Ok(keys)
    }

    /// Makes one key for ciphertexts of up to `limbs` limbs. Keys to and from the sparse secret
    /// need `ephemeral`, the same one for all keys of a set.
    pub fn make(
        &self,
        secret: &SecretKey,
        (id, limbs): (KeyId, usize),
        ephemeral: Option<&EphemeralSecret>,
        seeds: &mut dyn SeedSource,
    ) -> crate::Result<SwitchingKey<PackedPoly>> {
        self.params.check_ring(&self.ring)?;
        let ephemeral = ephemeral.ok_or(Error::LoneSparseKey);
        Ok(match id {
            KeyId::Relinearisation => self.relinearisation(secret, limbs, seeds)?,
            KeyId::Galois(galois) => self.galois(secret, galois, limbs, seeds)?,
            KeyId::ToSparse => self.to_sparse(secret, ephemeral?, seeds)?,
            KeyId::FromSparse(galois) => self.from_sparse(secret, ephemeral?, galois, seeds)?,
            KeyId::Master(galois) => self.master(secret, galois, seeds)?,
        })
    }

    /// The key that follows a product, for ciphertexts of up to `limbs` limbs.
    pub fn relinearisation(
        &self,
        secret: &SecretKey,
        limbs: usize,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        let basis = self.basis(limbs)?;
        let target = secret.lift(&self.ring, basis);
        let square = SecretPoly(self.ring.mul(&target.0, &target.0, basis));
        self.switching(KeyId::Relinearisation, &square, &target, basis, seeds)
    }

    /// The primes of a key for ciphertexts of up to `limbs` limbs.
    fn basis(&self, limbs: usize) -> Result<Basis> {
        let has = self.params.chain().len();
        if (1..=has).contains(&limbs) {
            return Ok(self.params.key_basis(limbs));
        }
        Err(hetal_ckks::Error::OutOfLimbs { operation: "a switching key", needs: limbs, has })
    }

    /// The key that follows `X -> X^galois`, for ciphertexts of up to `limbs` limbs.
    pub fn galois(
        &self,
        secret: &SecretKey,
        galois: u64,
        limbs: usize,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        let basis = self.basis(limbs)?;
        let target = self.inverse_automorphism(secret, galois, basis)?;
        self.switching(KeyId::Galois(galois), &secret.lift(&self.ring, basis), &target, basis, seeds)
    }

    /// The key to an ephemeral secret, for ciphertexts modulo `q0` alone.
    pub fn to_sparse(
        &self,
        secret: &SecretKey,
        ephemeral: &EphemeralSecret,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        let id = KeyId::ToSparse;
        let basis = id.basis(&self.params, 1);
        let lift = |key: &SecretKey| key.lift(&self.ring, basis);
        self.switching(id, &lift(secret), &lift(&ephemeral.0), basis, seeds)
    }

    /// The key from an ephemeral secret, after `X -> X^galois`, for raised ciphertexts of any
    /// number of limbs.
    pub fn from_sparse(
        &self,
        secret: &SecretKey,
        ephemeral: &EphemeralSecret,
        galois: u64,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        let id = KeyId::FromSparse(galois);
        let basis = id.basis(&self.params, self.params.chain().len());
        let (source, target) = (ephemeral.0.lift(&self.ring, basis), self.inverse_automorphism(secret, galois, basis)?);
        self.switching(id, &source, &target, basis, seeds)
    }

    /// The key with which a server derives the key from the sparse secret for `X -> X^(galois g)`
    /// from that for `X -> X^g`.
    pub fn master(
        &self,
        secret: &SecretKey,
        galois: u64,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        if self.params.master_digit_starts().is_empty() {
            return Err(hetal_ckks::Error::NoMasterKeys { set: self.params.name().to_owned() });
        }
        let id = KeyId::Master(galois);
        let basis = id.basis(&self.params, self.params.chain().len());
        let target = self.inverse_automorphism(secret, galois, basis)?;
        self.switching(id, &secret.lift(&self.ring, basis), &target, basis, seeds)
    }

    /// `s(X^(1/galois))`.
    fn inverse_automorphism(&self, secret: &SecretKey, galois: u64, basis: Basis) -> Result<SecretPoly> {
        if galois.is_multiple_of(2) {
            return Err(hetal_ckks::Error::NotGalois { element: galois });
        }
        let inverse = automorphism::inverse(self.params.log_n(), galois);
        let mut turned = automorphism::on_coefficients(secret.coefficients(), inverse);
        let target = SecretPoly::new(&self.ring, basis, &turned);
        turned.zeroize();
        Ok(target)
    }

    /// The key from the secret `source` (`s`) to the secret `target` (`t`): for each digit a pair
    /// `(b, a)` with `b = -a t + e + P s` on the primes of the digit and `b = -a t + e` on the
    /// others, where `P` is the product of the primes behind those of all digits. Fails for a key
    /// of less than 128 bits.
    fn switching(
        &self,
        id: KeyId,
        source: &SecretPoly,
        target: &SecretPoly,
        basis: Basis,
        seeds: &mut dyn SeedSource,
    ) -> Result<SwitchingKey<PackedPoly>> {
        id.require_security(&self.params, basis.q)?;
        let (public, private) = (seeds.next_seed(), seeds.next_seed());
        let starts = id.digit_starts(&self.params, basis.q);
        let digit_limbs = id.digit_limbs(&self.params, basis.q);
        let special = &self.params.special()[digit_limbs - basis.q..basis.p];
        let ends = starts.iter().skip(1).copied().chain([digit_limbs]);
        let digits = starts
            .iter()
            .zip(ends)
            .enumerate()
            .map(|(j, (&start, end))| {
                let digit = j as u32;
                let a = self.ring.uniform(&public, digit, basis);
                let b = self.masked_error(&private, digit, &a, target, |q, i, limb| {
                    if (start..end).contains(&i) {
                        let p = special.iter().fold(1, |product, p| q.mul(product, p % q.value()));
                        kernels::mul_scalar_add_assign(self.ring.isa(), q, limb, &source.0.limbs()[i], p);
                    }
                });
                (self.ring.pack(&b), self.ring.pack(&a))
            })
            .collect();
        Ok(SwitchingKey { id, basis, seed: Some(public), digits })
    }

    /// `e - a t`, plus what `finish(modulus, i, limb)` adds to limb `i`.
    pub(crate) fn masked_error(
        &self,
        private: &Seed,
        index: u32,
        a: &Poly,
        target: &SecretPoly,
        finish: impl Fn(&Modulus, usize, &mut [u64]) + Sync + Send,
    ) -> Poly {
        let mut b = self.error(private, index, a.basis());
        let isa = self.ring.isa();
        self.ring.for_each_limb(&mut b, |table, i, limb| {
            let q = table.modulus();
            let mut mask = a.limbs()[i].clone();
            kernels::mul_assign(isa, q, &mut mask, &target.0.limbs()[i]);
            kernels::sub_assign(isa, q, limb, &mask);
            // This product and the public half reveal the secret. The error alone never stays in
            // the pool.
            mask.zeroize();
            finish(q, i, limb);
        });
        b
    }

    /// An error polynomial in the NTT domain.
    pub(crate) fn error(&self, seed: &Seed, index: u32, basis: Basis) -> Poly {
        let mut e = vec![0; self.params.degree()];
        self.gaussian.sample_into(seed, Domain::Error { index }, &mut e);
        let poly = self.ring.lift_secret(basis, &e);
        e.zeroize();
        poly
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
