//! Encryption with the secret key, which takes half the bytes, or with the public key.

use crate::secret::SecretPoly;
use crate::{Error, KeyGenerator, Result, SecretKey};
use hetal_ckks::{
    Ciphertext, LiftForm, Params, Plaintext, PublicKey, ROUNDED_BITS, RoundedCiphertext, SeededCiphertext, SetTag,
    security,
};
use hetal_ring::sampler::{self, Seed, SeedSource};
use hetal_ring::{Basis, Poly, RnsRing};
use std::sync::Arc;
use zeroize::Zeroize;

/// Encrypts plaintexts.
pub struct Encryptor {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    generator: KeyGenerator,
    degree: usize,
    set: SetTag,
}

impl Encryptor {
    /// An encryptor for a parameter set.
    pub fn new(params: Arc<Params>, ring: Arc<RnsRing>) -> Self {
        let (degree, set) = (params.degree(), params.tag());
        Self { generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)), params, ring, degree, set }
    }

    /// Encrypts with the secret key. The uniform half stays a seed. Every call uses two fresh
    /// seeds.
    pub fn encrypt_seeded(
        &self,
        secret: &SecretKey,
        message: &Plaintext<Poly>,
        seeds: &mut dyn SeedSource,
    ) -> SeededCiphertext<Poly> {
        let basis = message.poly.basis();
        let (public, private) = (seeds.next_seed(), seeds.next_seed());
        let c0 = self.zero_under(secret, &public, &private, basis, Some(&message.poly));
        SeededCiphertext { c0, seed: public, scale: message.scale }
    }

    /// Encrypts with the secret key.
    pub fn encrypt(
        &self,
        secret: &SecretKey,
        message: &Plaintext<Poly>,
        seeds: &mut dyn SeedSource,
    ) -> Ciphertext<Poly> {
        let SeededCiphertext { c0, seed, scale } = self.encrypt_seeded(secret, message, seeds);
        let basis = c0.basis();
        Ciphertext { c0, c1: self.ring.uniform(&seed, 0, basis), limbs: basis.q, scale, set: self.set }
    }

    /// Encrypts coefficients modulo `q0` with the secret key, and rounds the first half of the
    /// ciphertext. Only the ciphertext is rounded, which is public.
    pub fn encrypt_rounded(
        &self,
        secret: &SecretKey,
        coefficients: &[i64],
        (log_bound, form): (u32, LiftForm),
        seeds: &mut dyn SeedSource,
    ) -> Result<RoundedCiphertext> {
        let basis = Basis { q: 1, p: 0 };
        if coefficients.len() != self.degree {
            let (got, slots) = (coefficients.len(), self.degree);
            return Err(hetal_ckks::Error::SlotCount { got, slots }.into());
        }
        self.params.check_ring(&self.ring)?;
        self.require_secure(basis)?;
        let (public, private) = (seeds.next_seed(), seeds.next_seed());
        let message = self.ring.lift(basis, coefficients);
        let mut c0 = self.zero_under(secret, &public, &private, basis, Some(&message));
        self.ring.inverse(&mut c0);
        Ok(RoundedCiphertext::round(&self.params, &c0.limbs()[0], public, ROUNDED_BITS, log_bound, form))
    }

    /// Fails if a modulus of these primes has less than 128 bits of security and the set does not
    /// say so.
    fn require_secure(&self, basis: Basis) -> hetal_ckks::Result<()> {
        if self.params.is_insecure_by_name() {
            return Ok(());
        }
        let (log_n, weight) = (self.params.log_n(), self.params.literal().secret_weight);
        security::require("a rounded ciphertext", log_n, weight, self.params.log_qp(basis))
    }

    /// A public key for plaintexts of up to `limbs` limbs.
    pub fn public_key(&self, secret: &SecretKey, limbs: usize, seeds: &mut dyn SeedSource) -> PublicKey<Poly> {
        let basis = Basis { q: limbs, p: 0 };
        let (public, private) = (seeds.next_seed(), seeds.next_seed());
        let b = self.zero_under(secret, &public, &private, basis, None);
        PublicKey { b, a: self.ring.uniform(&public, 0, basis), seed: public }
    }

    /// Encrypts with the public key: `(v b + e0 + m, v a + e1)` for a fresh ternary `v`. The key
    /// must have the message's primes.
    pub fn encrypt_public(
        &self,
        key: &PublicKey<Poly>,
        message: &Plaintext<Poly>,
        seeds: &mut dyn SeedSource,
    ) -> Result<Ciphertext<Poly>> {
        let basis = message.poly.basis();
        if basis.p > 0 || key.b.basis().q < basis.q {
            return Err(Error::PublicKey { needs: basis.limbs(), has: key.b.basis().q });
        }
        let (ephemeral, errors) = (seeds.next_seed(), seeds.next_seed());
        let mut v = sampler::ternary_uniform(&ephemeral, self.degree);
        let lifted = SecretPoly::new(&self.ring, basis, &v);
        v.zeroize();
        let mut c0 = self.generator.error(&errors, 0, basis);
        self.ring.mul_add_assign(&mut c0, &lifted.0, &key.b);
        self.ring.add_assign(&mut c0, &message.poly);
        let mut c1 = self.generator.error(&errors, 1, basis);
        self.ring.mul_add_assign(&mut c1, &lifted.0, &key.a);
        Ok(Ciphertext { c0, c1, limbs: basis.q, scale: message.scale, set: self.set })
    }

    /// An encryption of zero under the secret, `-a s + e`, plus the message if there is one. The
    /// seed `public` determines `a`, and `private` determines `e`.
    fn zero_under(
        &self,
        secret: &SecretKey,
        public: &Seed,
        private: &Seed,
        basis: Basis,
        message: Option<&Poly>,
    ) -> Poly {
        let a = self.ring.uniform(public, 0, basis);
        let mut c0 = self.generator.masked_error(private, 0, &a, &secret.lift(&self.ring, basis), |_, _, _| {});
        if let Some(m) = message {
            self.ring.add_assign(&mut c0, m);
        }
        c0
    }
}
