//! A data owner and the engine of a server in one process.

use super::engine::DeviceBackend;
use crate::Result;
use crate::report::progress;
use hetal_circuits::KeyPlan;
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Bootstrapper, Encrypted, LeveledCiphertext, encrypted};
use hetal_ckks::{
    Backend, Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, LiftForm, Params, RoundedCiphertext, SwitchingKey,
};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Isa, PackedPoly, Poly, RnsRing};
use std::sync::Arc;

/// A secret key, and engines that compute with its evaluation keys.
pub struct LocalOwner {
    /// The parameter set.
    pub params: Arc<Params>,
    /// The ring of the set.
    pub ring: Arc<RnsRing>,
    inner: hetal_client::Owner,
}

impl LocalOwner {
    /// A fresh secret key of a built-in parameter set.
    pub fn new(set: &str) -> Result<Self> {
        Self::with_seeds(set, Isa::detect(), Box::new(OsSeeds))
    }

    /// A secret key from given seeds and with given kernels. The self-test compares bytes with it.
    pub(crate) fn with_seeds(set: &str, isa: Isa, seeds: Box<dyn SeedSource + Send>) -> Result<Self> {
        let params = Arc::new(Params::named(set)?);
        let ring = hetal_client::ring_with(&params, isa)?;
        let inner = hetal_client::Owner::with_seeds(Arc::clone(&params), Arc::clone(&ring), seeds);
        Ok(Self { params, ring, inner })
    }

    /// An evaluator of the parameter set.
    pub fn evaluator(&self) -> Evaluator<RnsRing> {
        self.inner.evaluator()
    }

    /// Makes evaluation keys, with a progress bar.
    pub fn keys(&self, wanted: &[(KeyId, usize)]) -> Result<EvaluationKeys<PackedPoly>> {
        self.keys_on(&*self.ring, wanted)
    }

    /// Makes evaluation keys on a backend, with a progress bar.
    ///
    /// Each key moves to the backend before the next one is made, so the CPU's memory holds one.
    pub fn keys_on<B: DeviceBackend>(
        &self,
        backend: &B,
        wanted: &[(KeyId, usize)],
    ) -> Result<EvaluationKeys<B::Packed>> {
        let bar = progress::bar(wanted.len() as u64);
        bar.set_message("keys");
        let mut keys = EvaluationKeys::default();
        let maker = self.inner.key_maker(wanted)?;
        for &wanted in wanted {
            let SwitchingKey { id, basis, seed, digits } = maker.make(wanted)?;
            let move_pair = |(b, a)| (backend.to_device_packed(b), backend.to_device_packed(a));
            let digits = digits.into_iter().map(move_pair).collect();
            keys.insert(SwitchingKey { id, basis, seed, digits });
            bar.inc(1);
        }
        backend.synchronize()?;
        bar.finish_and_clear();
        Ok(keys)
    }

    /// An engine on the CPU with the keys that a circuit needs.
    pub fn engine(&self, needs: &KeyRequirements) -> Result<Encrypted<RnsRing>> {
        self.engine_on(Arc::clone(&self.ring), needs, KeyPlan::Fast)
    }

    /// An engine on a backend with the keys and bootstrapping matrices that a circuit needs.
    pub fn engine_on<B: DeviceBackend>(
        &self,
        backend: Arc<B>,
        needs: &KeyRequirements,
        key_plan: KeyPlan,
    ) -> Result<Encrypted<B>> {
        let keys = self.keys_on(&*backend, &encrypted::keys_with_plan(&self.params, needs, key_plan))?;
        let evaluator = Evaluator::new(Arc::clone(&self.params), backend);
        let spinner = progress::spinner("bootstrapping matrices");
        let bootstrapper = Bootstrapper::with_plan(&evaluator, &needs.bounds, key_plan)?;
        spinner.finish_and_clear();
        Ok(Encrypted::new(evaluator, keys, bootstrapper))
    }

    /// Encrypts one value for each slot, with a number of limbs and a scale.
    pub fn encrypt(
        &self,
        evaluator: &Evaluator<RnsRing>,
        values: &[Complex64],
        limbs: usize,
        scale: f64,
    ) -> Result<Ciphertext<Poly>> {
        Ok(self.inner.encrypt(evaluator, values, limbs, scale)?)
    }

    /// Encrypts one value for each slot at a level of an engine.
    pub fn encrypt_for<B: DeviceBackend>(
        &self,
        engine: &Encrypted<B>,
        encoder: &Evaluator<RnsRing>,
        values: &[Complex64],
        level: usize,
    ) -> Result<LeveledCiphertext<B::Poly>> {
        let ct = self.encrypt(encoder, values, self.params.limbs(level), self.params.scale(level))?;
        Ok(engine.import(to_device(&**engine.evaluator().backend(), ct))?)
    }

    /// Encrypts one value for each slot in coefficient form.
    pub fn encrypt_rounded(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<RoundedCiphertext> {
        Ok(self.inner.encrypt_rounded(values, log_bound, form)?)
    }

    /// Decrypts a ciphertext.
    pub fn decrypt(&self, ct: &Ciphertext<Poly>) -> Result<Vec<Complex64>> {
        Ok(self.inner.decrypt(ct)?.expose())
    }

    /// Decrypts a ciphertext of a backend.
    pub fn decrypt_from<B: Backend>(&self, backend: &B, ct: &Ciphertext<B::Poly>) -> Result<Vec<Complex64>> {
        let fetch = |poly: &B::Poly| -> Result<Poly> {
            let limbs = backend.download(poly).map_err(hetal_ckks::Error::from)?;
            let limbs: Vec<&[u64]> = limbs.iter().map(Vec::as_slice).collect();
            Ok(Backend::upload(&*self.ring, B::basis(poly), &limbs))
        };
        let (c0, c1) = (fetch(&ct.c0)?, fetch(&ct.c1)?);
        self.decrypt(&Ciphertext { c0, c1, limbs: ct.limbs, scale: ct.scale, set: ct.set })
    }
}

/// Moves a ciphertext from the CPU to a backend.
pub fn to_device<B: DeviceBackend>(backend: &B, ct: Ciphertext<Poly>) -> Ciphertext<B::Poly> {
    let Ciphertext { c0, c1, limbs, scale, set } = ct;
    Ciphertext { c0: backend.to_device(c0), c1: backend.to_device(c1), limbs, scale, set }
}
