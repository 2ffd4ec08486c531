//! An engine together with the key owner who encrypts its inputs and decrypts its outputs.

use super::engine::DeviceBackend;
use super::local_owner::LocalOwner;
use crate::Result;
use hetal_circuits::{Clear, Complex64, Encrypted, Engine, LiftForm};
use hetal_ckks::Evaluator;
use hetal_cuda::KernelTime;
use hetal_ring::RnsRing;
use rayon::prelude::*;

/// The ciphertext type of a harness.
pub type HarnessCiphertext<H> = <<H as Harness>::Engine as Engine>::Ciphertext;

/// The type of vectors in coefficient form of a harness.
pub type HarnessUnlifted<H> = <<H as Harness>::Engine as Engine>::Unlifted;

/// Client and server of an experiment in one process.
pub trait Harness: Sync {
    /// The engine that computes.
    type Engine: Engine;

    /// The engine that computes.
    fn engine(&self) -> &Self::Engine;

    /// Encrypts a vector at a level.
    fn encrypt(&self, values: &[Complex64], level: usize) -> Result<HarnessCiphertext<Self>>;

    /// Encrypts a vector in coefficient form.
    fn encrypt_unlifted(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<HarnessUnlifted<Self>>;

    /// Decrypts a ciphertext.
    fn decrypt(&self, ct: &HarnessCiphertext<Self>) -> Result<Vec<Complex64>>;

    /// Encrypts several vectors at a level, in parallel.
    fn encrypt_all(&self, vectors: &[Vec<Complex64>], level: usize) -> Result<Vec<HarnessCiphertext<Self>>> {
        vectors.par_iter().map(|values| self.encrypt(values, level)).collect()
    }

    /// Decrypts several ciphertexts, in parallel.
    fn decrypt_all(&self, cts: &[HarnessCiphertext<Self>]) -> Result<Vec<Vec<Complex64>>> {
        cts.par_iter().map(|ct| self.decrypt(ct)).collect()
    }

    /// Waits until all queued work is done.
    fn synchronize(&self) -> Result<()>;

    /// Starts or stops timing kernels, and returns the times recorded so far.
    fn profile(&self, on: bool) -> Vec<KernelTime>;
}

/// A harness on plain numbers: encryption and decryption change nothing.
pub struct ClearHarness {
    engine: Clear,
}

impl ClearHarness {
    /// A harness around an engine on plain numbers.
    pub fn new(engine: Clear) -> Self {
        Self { engine }
    }
}

impl Harness for ClearHarness {
    type Engine = Clear;

    fn engine(&self) -> &Clear {
        &self.engine
    }

    fn encrypt(&self, values: &[Complex64], level: usize) -> Result<HarnessCiphertext<Self>> {
        Ok(self.engine.fresh(values, level)?)
    }

    fn encrypt_unlifted(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<HarnessUnlifted<Self>> {
        Ok(self.engine.fresh_unlifted(values, log_bound, form)?)
    }

    fn decrypt(&self, ct: &HarnessCiphertext<Self>) -> Result<Vec<Complex64>> {
        Ok(self.engine.values(ct).to_vec())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// A harness on ciphertexts of a backend.
pub struct EncryptedHarness<'a, B: DeviceBackend> {
    owner: &'a LocalOwner,
    engine: &'a Encrypted<B>,
    encoder: Evaluator<RnsRing>,
}

impl<'a, B: DeviceBackend> EncryptedHarness<'a, B> {
    /// A harness of an engine and the owner of its keys.
    pub fn new(owner: &'a LocalOwner, engine: &'a Encrypted<B>) -> Self {
        Self { owner, engine, encoder: owner.evaluator() }
    }
}

impl<B: DeviceBackend> Harness for EncryptedHarness<'_, B> {
    type Engine = Encrypted<B>;

    fn engine(&self) -> &Encrypted<B> {
        self.engine
    }

    fn encrypt(&self, values: &[Complex64], level: usize) -> Result<HarnessCiphertext<Self>> {
        self.owner.encrypt_for(self.engine, &self.encoder, values, level)
    }

    fn encrypt_unlifted(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<HarnessUnlifted<Self>> {
        Ok(self.engine.import_unlifted(&self.owner.encrypt_rounded(values, log_bound, form)?)?)
    }

    fn decrypt(&self, ct: &HarnessCiphertext<Self>) -> Result<Vec<Complex64>> {
        self.owner.decrypt_from(&**self.engine.evaluator().backend(), ct.inner())
    }

    fn synchronize(&self) -> Result<()> {
        self.engine.evaluator().backend().synchronize()
    }

    fn profile(&self, on: bool) -> Vec<KernelTime> {
        self.engine.evaluator().backend().profile(on)
    }
}
