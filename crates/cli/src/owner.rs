//! A data owner and a server's engine in one process: what benchmarks run on.

use crate::{Result, progress};
use hetal_circuits::clear::Keys;
use hetal_circuits::{Bootstrapper, Encrypted, Sealed, encrypted};
use hetal_ckks::{Complex64, EvaluationKeys, Evaluator, KeyId, Params};
use hetal_keys::{Decryptor, Encryptor, KeyGenerator, SecretKey};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Basis, Isa, Poly, RnsRing};
use std::sync::Arc;

/// The secret and what works with it.
pub struct Owner {
    /// The parameter set.
    pub params: Arc<Params>,
    /// Its ring.
    pub ring: Arc<RnsRing>,
    secret: SecretKey,
    generator: KeyGenerator,
    encryptor: Encryptor,
    decryptor: Decryptor,
}

impl Owner {
    /// A fresh secret of a built-in set.
    pub fn new(set: &str) -> Result<Self> {
        let params = Arc::new(Params::named(set)?);
        let ring = RnsRing::new(params.log_n(), params.chain(), params.special(), Isa::detect());
        let ring = Arc::new(ring.map_err(|q| hetal_ckks::Error::Params {
            name: set.to_owned(),
            reason: format!("{q} is no prime for its ring"),
        })?);
        Ok(Self {
            secret: SecretKey::generate(&params, &mut OsSeeds),
            generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)),
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            params,
            ring,
        })
    }

    /// An evaluator of the set.
    pub fn evaluator(&self) -> Evaluator<RnsRing> {
        Evaluator::new(Arc::clone(&self.params), Arc::clone(&self.ring))
    }

    /// Makes keys, with a bar.
    pub fn keys(&self, wanted: &[(KeyId, usize)]) -> Result<EvaluationKeys<Poly>> {
        let bar = progress::bar(wanted.len() as u64);
        bar.set_message("keys");
        let mut keys = EvaluationKeys::default();
        for &(id, limbs) in wanted {
            self.add_key(&mut keys, id, limbs, &mut OsSeeds)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(keys)
    }

    fn add_key(
        &self,
        keys: &mut EvaluationKeys<Poly>,
        id: KeyId,
        limbs: usize,
        seeds: &mut dyn SeedSource,
    ) -> Result<()> {
        let (generator, secret) = (&self.generator, &self.secret);
        match id {
            KeyId::Relinearisation => keys.insert(generator.relinearisation(secret, limbs, seeds)?),
            KeyId::Galois(galois) => keys.insert(generator.galois(secret, galois, limbs, seeds)?),
            KeyId::ToSparse => generator.encapsulation(secret, seeds)?.into_iter().for_each(|key| keys.insert(key)),
            // Made together with the key to the sparse secret, which is then forgotten.
            KeyId::FromSparse => {}
        }
        Ok(())
    }

    /// The engine of a circuit that needs what its run in the clear used.
    pub fn engine(&self, needs: &Keys) -> Result<Encrypted<RnsRing>> {
        let evaluator = self.evaluator();
        let keys = self.keys(&encrypted::keys(&self.params, needs))?;
        let spinner = progress::spinner("bootstrapping matrices");
        let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds)?;
        spinner.finish_and_clear();
        Ok(Encrypted::new(evaluator, keys, bootstrapper))
    }

    /// Encrypts a full vector with some limbs and scale.
    pub fn encrypt(
        &self,
        evaluator: &Evaluator<RnsRing>,
        values: &[Complex64],
        limbs: usize,
        scale: f64,
    ) -> Result<hetal_ckks::Ciphertext<Poly>> {
        let plain = evaluator.encode(values, scale, Basis { q: limbs, p: 0 })?;
        Ok(self.encryptor.encrypt(&self.secret, &plain, &mut OsSeeds))
    }

    /// Encrypts a full vector for an engine, at a usable level.
    pub fn seal(&self, engine: &Encrypted<RnsRing>, values: &[Complex64], level: usize) -> Result<Sealed<Poly>> {
        let (limbs, scale) = (self.params.limbs(level), self.params.scale(level));
        Ok(engine.admit(self.encrypt(engine.evaluator(), values, limbs, scale)?)?)
    }

    /// Opens a ciphertext.
    pub fn open(&self, ct: &hetal_ckks::Ciphertext<Poly>) -> Result<Vec<Complex64>> {
        Ok(self.decryptor.decrypt(&self.secret, ct)?.expose())
    }
}
