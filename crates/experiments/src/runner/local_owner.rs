//! A data owner and a server's engine in one process: what benchmarks and the self-test run on.

use crate::Result;
use crate::report::progress;
use crate::runner::engine::Place;
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Bootstrapper, Encrypted, LeveledCiphertext, encrypted};
use hetal_ckks::{Backend, Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, Params, SwitchingKey};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Isa, PackedPoly, Poly, RnsRing};
use std::sync::Arc;

/// The secret and what works with it.
pub struct LocalOwner {
    /// The parameter set.
    pub params: Arc<Params>,
    /// Its ring.
    pub ring: Arc<RnsRing>,
    inner: hetal_client::Owner,
}

impl LocalOwner {
    /// A fresh secret of a built-in set.
    pub fn new(set: &str) -> Result<Self> {
        Self::with_seeds(set, Isa::detect(), Box::new(OsSeeds))
    }

    /// A secret from given seeds, with given kernels: for the self-test, which compares bytes.
    pub(crate) fn with_seeds(set: &str, isa: Isa, seeds: Box<dyn SeedSource + Send>) -> Result<Self> {
        let params = Arc::new(Params::named(set)?);
        let ring = hetal_client::ring_with(&params, isa)?;
        let inner = hetal_client::Owner::with_seeds(Arc::clone(&params), Arc::clone(&ring), seeds);
        Ok(Self { params, ring, inner })
    }

    /// An evaluator of the set.
    pub fn evaluator(&self) -> Evaluator<RnsRing> {
        self.inner.evaluator()
    }

    /// Makes keys, with a bar.
    pub fn keys(&self, wanted: &[(KeyId, usize)]) -> Result<EvaluationKeys<PackedPoly>> {
        self.keys_on(&*self.ring, wanted)
    }

    /// Makes keys and brings each to a backend, with a bar: no more than one is here at a time.
    pub fn keys_on<B: Place>(&self, backend: &B, wanted: &[(KeyId, usize)]) -> Result<EvaluationKeys<B::Packed>> {
        let bar = progress::bar(wanted.len() as u64);
        bar.set_message("keys");
        let mut keys = EvaluationKeys::default();
        let maker = self.inner.key_maker(wanted)?;
        for &wanted in wanted {
            let SwitchingKey { id, basis, seed, digits } = maker.make(wanted)?;
            let digits = digits.into_iter().map(|(b, a)| (backend.bring_packed(b), backend.bring_packed(a))).collect();
            keys.insert(SwitchingKey { id, basis, seed, digits });
            bar.inc(1);
        }
        backend.settle()?;
        bar.finish_and_clear();
        Ok(keys)
    }

    /// The engine of a circuit that needs what its run in the clear used, on the CPU.
    pub fn engine(&self, needs: &KeyRequirements) -> Result<Encrypted<RnsRing>> {
        self.engine_on(Arc::clone(&self.ring), needs, BsgsSplit::FewKeys)
    }

    /// The engine of a circuit that needs what its run in the clear used, keys and matrices on a backend.
    pub fn engine_on<B: Place>(
        &self,
        backend: Arc<B>,
        needs: &KeyRequirements,
        steps: BsgsSplit,
    ) -> Result<Encrypted<B>> {
        let keys = self.keys_on(&*backend, &encrypted::keys_with_split(&self.params, needs, steps))?;
        let evaluator = Evaluator::new(Arc::clone(&self.params), backend);
        let spinner = progress::spinner("bootstrapping matrices");
        let bootstrapper = Bootstrapper::with_split(&evaluator, &needs.bounds, steps)?;
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
    ) -> Result<Ciphertext<Poly>> {
        Ok(self.inner.encrypt(evaluator, values, limbs, scale)?)
    }

    /// Encrypts a full vector for an engine, at a usable level.
    pub fn seal<B: Place>(
        &self,
        engine: &Encrypted<B>,
        encoder: &Evaluator<RnsRing>,
        values: &[Complex64],
        level: usize,
    ) -> Result<LeveledCiphertext<B::Poly>> {
        let ct = self.encrypt(encoder, values, self.params.limbs(level), self.params.scale(level))?;
        Ok(engine.admit(carried(&**engine.evaluator().backend(), ct))?)
    }

    /// Opens a ciphertext.
    pub fn open(&self, ct: &Ciphertext<Poly>) -> Result<Vec<Complex64>> {
        Ok(self.inner.open(ct)?.expose())
    }

    /// Opens a ciphertext that is on a backend.
    pub fn open_from<B: Backend>(&self, backend: &B, ct: &Ciphertext<B::Poly>) -> Result<Vec<Complex64>> {
        let fetch = |poly: &B::Poly| -> Result<Poly> {
            let limbs = backend.download(poly).map_err(hetal_ckks::Error::from)?;
            let limbs: Vec<&[u64]> = limbs.iter().map(Vec::as_slice).collect();
            Ok(Backend::upload(&*self.ring, B::basis(poly), &limbs))
        };
        self.open(&Ciphertext { c0: fetch(&ct.c0)?, c1: fetch(&ct.c1)?, limbs: ct.limbs, scale: ct.scale, set: ct.set })
    }
}

/// A ciphertext on another backend.
pub fn carried<B: Place>(backend: &B, ct: Ciphertext<Poly>) -> Ciphertext<B::Poly> {
    Ciphertext { c0: backend.bring(ct.c0), c1: backend.bring(ct.c1), limbs: ct.limbs, scale: ct.scale, set: ct.set }
}
