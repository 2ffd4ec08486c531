//! Work that can be done on any engine.

use crate::Result;
use crate::engine::{EngineKind, gpu};
use crate::owner::Owner;
use crate::setting::{Plain, Sealing, Setting};
use hetal_circuits::Engine;
use hetal_circuits::bootstrap::Steps;
use hetal_circuits::clear::{Clear, Keys};
use hetal_ckks::Params;
use hetal_cuda::CudaBackend;
use std::sync::Arc;

/// Something to do in any setting.
pub trait Work {
    /// What comes of it.
    type Output;
    /// The keys and bootstraps it needs.
    fn needs(&self) -> Result<Keys>;
    /// Does it.
    fn run<S: Setting>(&self, setting: &S) -> Result<Self::Output>;
}

/// Ciphertexts of a setting.
pub type Ct<S> = <<S as Setting>::Engine as Engine>::Ciphertext;

/// A place to work: plain numbers, or a fresh secret with this machine's CPU or its first GPU.
pub enum Lab {
    /// Plain numbers on the slots and levels of a set.
    Clear(Params),
    /// On the CPU.
    Cpu(Owner),
    /// On a GPU.
    Cuda(Owner, Arc<CudaBackend>),
}

impl Lab {
    /// A place for a set.
    pub fn open(kind: EngineKind, set: &str) -> Result<Self> {
        Ok(match kind {
            EngineKind::Clear => Self::Clear(Params::named(set)?),
            EngineKind::Cpu => Self::Cpu(Owner::new(set)?),
            EngineKind::Cuda => {
                let owner = Owner::new(set)?;
                let gpu = gpu(&owner.params, 0)?;
                Self::Cuda(owner, gpu)
            }
        })
    }

    /// Makes the keys some work needs and does the work.
    pub fn run<W: Work>(&self, work: &W) -> Result<W::Output> {
        match self {
            Self::Clear(params) => work.run(&Plain(Clear::new(params.slots(), params.top_level()))),
            Self::Cpu(owner) => {
                let engine = owner.engine(&work.needs()?)?;
                work.run(&Sealing::new(owner, &engine))
            }
            Self::Cuda(owner, gpu) => {
                let engine = owner.engine_on(Arc::clone(gpu), &work.needs()?, Steps::default())?;
                work.run(&Sealing::new(owner, &engine))
            }
        }
    }
}

/// Does some work in a place of its own.
pub fn run<W: Work>(work: &W, kind: EngineKind, set: &str) -> Result<W::Output> {
    Lab::open(kind, set)?.run(work)
}
