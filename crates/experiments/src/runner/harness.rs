//! An engine with someone who encrypts for it and opens its results.

use crate::Result;
use crate::runner::engine::Place;
use crate::runner::local_owner::LocalOwner;
use hetal_circuits::{Clear, Complex64, Encrypted, Engine};
use hetal_ckks::Evaluator;
use hetal_cuda::KernelTime;
use hetal_ring::RnsRing;
use rayon::prelude::*;

/// Both sides of a training in one process.
pub trait Setting: Sync {
    /// The engine.
    type Engine: Engine;

    /// The engine.
    fn engine(&self) -> &Self::Engine;
    /// Encrypts at a level.
    fn seal(&self, values: &[Complex64], level: usize) -> Result<<Self::Engine as Engine>::Ciphertext>;
    /// Decrypts.
    fn open(&self, ct: &<Self::Engine as Engine>::Ciphertext) -> Result<Vec<Complex64>>;
    /// Encrypts some vectors at a level.
    fn seal_all(&self, vectors: &[Vec<Complex64>], level: usize) -> Result<Vec<<Self::Engine as Engine>::Ciphertext>> {
        vectors.par_iter().map(|values| self.seal(values, level)).collect()
    }
    /// Decrypts some ciphertexts.
    fn open_all(&self, cts: &[<Self::Engine as Engine>::Ciphertext]) -> Result<Vec<Vec<Complex64>>> {
        cts.par_iter().map(|ct| self.open(ct)).collect()
    }
    /// Waits for work that is still queued.
    fn settle(&self) -> Result<()>;
    /// Begins to time kernels (or stops), and tells what was timed before.
    fn profile(&self, on: bool) -> Vec<KernelTime>;
}

/// Plain numbers.
pub struct Plain(
    /// The engine.
    pub Clear,
);

impl Setting for Plain {
    type Engine = Clear;

    fn engine(&self) -> &Clear {
        &self.0
    }

    fn seal(&self, values: &[Complex64], level: usize) -> Result<<Clear as Engine>::Ciphertext> {
        Ok(self.0.fresh(values, level)?)
    }

    fn open(&self, ct: &<Clear as Engine>::Ciphertext) -> Result<Vec<Complex64>> {
        Ok(self.0.values(ct).to_vec())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// Ciphertexts on a backend.
pub struct Sealing<'a, B: Place> {
    owner: &'a LocalOwner,
    engine: &'a Encrypted<B>,
    encoder: Evaluator<RnsRing>,
}

impl<'a, B: Place> Sealing<'a, B> {
    /// An engine with the owner of its keys.
    pub fn new(owner: &'a LocalOwner, engine: &'a Encrypted<B>) -> Self {
        Self { owner, engine, encoder: owner.evaluator() }
    }
}

impl<B: Place> Setting for Sealing<'_, B> {
    type Engine = Encrypted<B>;

    fn engine(&self) -> &Encrypted<B> {
        self.engine
    }

    fn seal(&self, values: &[Complex64], level: usize) -> Result<<Encrypted<B> as Engine>::Ciphertext> {
        self.owner.seal(self.engine, &self.encoder, values, level)
    }

    fn open(&self, ct: &<Encrypted<B> as Engine>::Ciphertext) -> Result<Vec<Complex64>> {
        self.owner.open_from(&**self.engine.evaluator().backend(), ct.inner())
    }

    fn settle(&self) -> Result<()> {
        self.engine.evaluator().backend().settle()
    }

    fn profile(&self, on: bool) -> Vec<KernelTime> {
        self.engine.evaluator().backend().profile(on)
    }
}
