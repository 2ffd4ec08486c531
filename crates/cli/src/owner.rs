//! A data owner and a server's engine in one process: what benchmarks run on.

use crate::{Result, progress};
use hetal_circuits::clear::Keys;
use hetal_circuits::{Bootstrapper, Encrypted, Sealed, encrypted};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, Params};
use hetal_ring::{Poly, RnsRing};
use std::sync::Arc;

/// The secret and what works with it.
pub struct Owner {
    /// The parameter set.
    pub params: Arc<Params>,
    /// Its ring.
    pub ring: Arc<RnsRing>,
    inner: hetal_client::Owner,
}

impl Owner {
    /// A fresh secret of a built-in set.
    pub fn new(set: &str) -> Result<Self> {
        let inner = hetal_client::Owner::fresh(Arc::new(Params::named(set)?))?;
        Ok(Self { params: Arc::clone(&inner.params), ring: Arc::clone(&inner.ring), inner })
    }

    /// An evaluator of the set.
    pub fn evaluator(&self) -> Evaluator<RnsRing> {
        self.inner.evaluator()
    }

    /// Makes keys, with a bar.
    pub fn keys(&self, wanted: &[(KeyId, usize)]) -> Result<EvaluationKeys<Poly>> {
        let bar = progress::bar(wanted.len() as u64);
        bar.set_message("keys");
        let keys = self.inner.keys(wanted, || bar.inc(1))?;
        bar.finish_and_clear();
        Ok(keys)
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
    pub fn encrypt(&self, values: &[Complex64], limbs: usize, scale: f64) -> Result<Ciphertext<Poly>> {
        Ok(self.inner.encrypt(values, limbs, scale)?)
    }

    /// Encrypts a full vector for an engine, at a usable level.
    pub fn seal(&self, engine: &Encrypted<RnsRing>, values: &[Complex64], level: usize) -> Result<Sealed<Poly>> {
        let (limbs, scale) = (self.params.limbs(level), self.params.scale(level));
        Ok(engine.admit(self.encrypt(values, limbs, scale)?)?)
    }

    /// Opens a ciphertext.
    pub fn open(&self, ct: &Ciphertext<Poly>) -> Result<Vec<Complex64>> {
        Ok(self.inner.open(ct)?.expose())
    }
}
