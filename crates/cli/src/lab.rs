//! Engines to measure on, behind one face: plain numbers, this machine's CPU, its GPU.

use crate::owner::Owner;
use crate::{Result, progress};
use hetal_circuits::clear::{self, Clear, Keys};
use hetal_circuits::{Bootstrapper, Complex64, Encrypted, Engine, Sealed, encrypted};
use hetal_ckks::{Backend, Ciphertext, Evaluator, Params};
use hetal_cuda::{CudaBackend, CudaPoly};
use hetal_ring::{Poly, RnsRing};
use std::sync::Arc;

/// Where circuits run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// Plain numbers, with exact books.
    Clear,
    /// Ciphertexts, on the CPU.
    Cpu,
    /// Ciphertexts, on an NVIDIA GPU.
    Cuda,
}

impl EngineKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Clear => "clear",
            EngineKind::Cpu => "cpu",
            EngineKind::Cuda => "cuda",
        }
    }
}

/// An engine together with its data owner.
pub trait Lab {
    /// The engine.
    type Engine: Engine;
    /// The engine.
    fn engine(&self) -> &Self::Engine;
    /// Encrypts at a level.
    fn seal(&self, values: &[Complex64], level: usize) -> Result<<Self::Engine as Engine>::Ciphertext>;
    /// Decrypts.
    fn open(&self, ct: &<Self::Engine as Engine>::Ciphertext) -> Result<Vec<Complex64>>;
    /// Waits for work that is still queued.
    fn settle(&self) -> Result<()>;
}

/// Something to do on any engine.
pub trait Work {
    /// What comes of it.
    type Output;
    /// The keys and bootstraps it needs.
    fn needs(&self) -> Result<Keys>;
    /// Does it.
    fn run<L: Lab>(&self, lab: &L) -> Result<Self::Output>;
}

/// Makes the keys some work needs, on an engine of a set, and does the work.
pub fn run<W: Work>(work: &W, kind: EngineKind, set: &str) -> Result<W::Output> {
    match kind {
        EngineKind::Clear => {
            let params = Params::named(set)?;
            work.run(&ClearLab(Clear::new(params.slots(), params.top_level())))
        }
        EngineKind::Cpu => {
            let owner = Owner::new(set)?;
            let engine = owner.engine(&work.needs()?)?;
            work.run(&CpuLab { owner, engine })
        }
        EngineKind::Cuda => work.run(&GpuLab::new(set, &work.needs()?)?),
    }
}

/// Plain numbers.
pub struct ClearLab(pub Clear);

impl Lab for ClearLab {
    type Engine = Clear;

    fn engine(&self) -> &Clear {
        &self.0
    }

    fn seal(&self, values: &[Complex64], level: usize) -> Result<clear::Ciphertext> {
        Ok(self.0.fresh(values, level)?)
    }

    fn open(&self, ct: &clear::Ciphertext) -> Result<Vec<Complex64>> {
        Ok(self.0.values(ct).to_vec())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

struct CpuLab {
    owner: Owner,
    engine: Encrypted<RnsRing>,
}

impl Lab for CpuLab {
    type Engine = Encrypted<RnsRing>;

    fn engine(&self) -> &Self::Engine {
        &self.engine
    }

    fn seal(&self, values: &[Complex64], level: usize) -> Result<Sealed<Poly>> {
        self.owner.seal(&self.engine, values, level)
    }

    fn open(&self, ct: &Sealed<Poly>) -> Result<Vec<Complex64>> {
        self.owner.open(ct.inner())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

struct GpuLab {
    owner: Owner,
    encoder: Evaluator<RnsRing>,
    gpu: Arc<CudaBackend>,
    engine: Encrypted<CudaBackend>,
}

impl GpuLab {
    fn new(set: &str, needs: &Keys) -> Result<Self> {
        let owner = Owner::new(set)?;
        let params = &owner.params;
        let gpu = Arc::new(CudaBackend::open(0, params.log_n(), params.chain(), params.special())?);
        let keys = gpu.upload_keys(&owner.keys(&encrypted::keys(params, needs))?);
        let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
        let spinner = progress::spinner("bootstrapping matrices");
        let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds)?;
        spinner.finish_and_clear();
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        Ok(Self { encoder: owner.evaluator(), owner, gpu, engine })
    }
}

impl Lab for GpuLab {
    type Engine = Encrypted<CudaBackend>;

    fn engine(&self) -> &Self::Engine {
        &self.engine
    }

    fn seal(&self, values: &[Complex64], level: usize) -> Result<Sealed<CudaPoly>> {
        let params = &self.owner.params;
        let ct = self.owner.encrypt(&self.encoder, values, params.limbs(level), params.scale(level))?;
        Ok(self.engine.admit(self.gpu.upload_ciphertext(&ct))?)
    }

    fn open(&self, ct: &Sealed<CudaPoly>) -> Result<Vec<Complex64>> {
        self.settle()?;
        let bring = |poly: &CudaPoly| {
            let limbs = self.gpu.download(poly);
            let limbs: Vec<_> = limbs.iter().map(Vec::as_slice).collect();
            Backend::upload(&*self.owner.ring, CudaBackend::basis(poly), &limbs)
        };
        let ct = ct.inner();
        self.owner.open(&Ciphertext { c0: bring(&ct.c0), c1: bring(&ct.c1), limbs: ct.limbs, scale: ct.scale })
    }

    fn settle(&self) -> Result<()> {
        self.gpu.synchronize()?;
        Ok(self.gpu.health()?)
    }
}
