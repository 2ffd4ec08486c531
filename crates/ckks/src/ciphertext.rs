//! Ciphertexts, plaintexts and the public key.

use crate::{Backend, Params};
use hetal_ring::Basis;
use hetal_ring::rns::uniform_limb_into;
use hetal_ring::sampler::Seed;
use std::convert::Infallible;

/// `(c0, c1)` with `c0 + c1 s = scale * message + noise` modulo the first `limbs` primes of the
/// chain.
#[derive(Clone)]
pub struct Ciphertext<P> {
    /// The polynomial that is not multiplied by the secret.
    pub c0: P,
    /// The polynomial that is multiplied by the secret.
    pub c1: P,
    /// The number of its primes.
    pub limbs: usize,
    /// The factor on the message.
    pub scale: f64,
    /// The parameter set it belongs to.
    pub set: SetTag,
}

/// Identifies the parameter set of an object: see [`Params::tag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetTag(pub(crate) u64);

/// An encoded vector: `scale * message` modulo some primes.
#[derive(Clone)]
pub struct Plaintext<P> {
    /// The polynomial.
    pub poly: P,
    /// The factor on the message.
    pub scale: f64,
}

/// A fresh ciphertext whose uniform half is given by a seed. It takes half the bytes.
#[derive(Clone)]
pub struct SeededCiphertext<P> {
    /// `-a s + e + m`.
    pub c0: P,
    /// The seed of the uniform half `a`.
    pub seed: Seed,
    /// The factor on the message.
    pub scale: f64,
}

impl<P: Clone + Send + Sync> SeededCiphertext<P> {
    /// The ciphertext, with the uniform half computed from its seed.
    pub fn expand<B: Backend<Poly = P>>(self, params: &Params, backend: &B) -> Ciphertext<P> {
        let basis = B::basis(&self.c0);
        let c1 = expand_seed(params, backend, &self.seed, 0, basis);
        Ciphertext { c0: self.c0, c1, limbs: basis.q, scale: self.scale, set: params.tag() }
    }
}

/// An encryption of zero, with which anyone can encrypt.
#[derive(Clone)]
pub struct PublicKey<P> {
    /// `-a s + e`.
    pub b: P,
    /// Uniform.
    pub a: P,
    /// The seed of the uniform half `a`.
    pub seed: Seed,
}

/// The uniform polynomial of a public seed: [`hetal_ring::RnsRing::uniform`] on any backend,
/// computed on the calling thread.
pub(crate) fn expand_seed<B: Backend>(params: &Params, backend: &B, seed: &Seed, digit: u32, basis: Basis) -> B::Poly {
    let filled = backend.try_from_limbs(params.degree(), basis, |i, limb| -> Result<(), Infallible> {
        uniform_limb_into(seed, digit, basis, i, params.modulus(basis, i), limb);
        Ok(())
    });
    match filled {
        Ok(poly) => poly,
        Err(never) => match never {},
    }
}
