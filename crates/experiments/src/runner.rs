//! Work that can be done on any engine.

pub mod engine;
pub mod harness;
pub mod local_owner;

use crate::Result;
use crate::runner::engine::{EngineKind, gpu};
use crate::runner::harness::{Plain, Sealing, Setting};
use crate::runner::local_owner::LocalOwner;
use hetal_circuits::Engine;
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_circuits::clear::{Clear, KeyRequirements};
use hetal_ckks::Params;
use hetal_cuda::CudaBackend;
use std::sync::Arc;
use std::time::Instant;

/// Something to do in any setting.
pub trait Work {
    /// What comes of it.
    type Output;
    /// The keys and bootstraps it needs.
    fn needs(&self) -> Result<KeyRequirements>;
    /// Does it.
    fn run<S: Setting>(&self, setting: &S) -> Result<Self::Output>;
}

/// Ciphertexts of a setting.
pub type Ct<S> = <<S as Setting>::Engine as Engine>::Ciphertext;

/// Which GPU, and how it bootstraps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Card {
    /// Its number.
    pub device: usize,
    /// How many keys its bootstraps take.
    pub steps: BsgsSplit,
}

/// A place to work: plain numbers, or a fresh secret with this machine's CPU or a GPU.
pub enum Lab {
    /// Plain numbers on the slots and levels of a set.
    Clear(Params),
    /// On the CPU.
    Cpu(LocalOwner),
    /// On a GPU.
    Cuda(LocalOwner, Arc<CudaBackend>, BsgsSplit),
}

impl Lab {
    /// A place for a set: the only one where an engine is chosen.
    pub fn open(kind: EngineKind, set: &str, card: Card) -> Result<Self> {
        Ok(match kind {
            EngineKind::Clear => Self::Clear(Params::named(set)?),
            EngineKind::Cpu => Self::Cpu(LocalOwner::new(set)?),
            EngineKind::Cuda => {
                let owner = LocalOwner::new(set)?;
                let gpu = gpu(&owner.params, card.device)?;
                Self::Cuda(owner, gpu, card.steps)
            }
        })
    }

    /// The GPU, where that is the place.
    pub fn gpu(&self) -> Option<&CudaBackend> {
        match self {
            Self::Cuda(_, gpu, _) => Some(gpu),
            _ => None,
        }
    }

    /// Makes the keys some work needs and does the work.
    pub fn run<W: Work>(&self, work: &W) -> Result<W::Output> {
        Ok(self.run_timed(work)?.0)
    }

    /// [`Lab::run`], and the seconds that keys and matrices took.
    pub fn run_timed<W: Work>(&self, work: &W) -> Result<(W::Output, f64)> {
        let start = Instant::now();
        match self {
            Self::Clear(params) => Ok((work.run(&Plain(Clear::new(params.slots(), params.top_level())))?, 0.0)),
            Self::Cpu(owner) => {
                let engine = owner.engine(&work.needs()?)?;
                let seconds = start.elapsed().as_secs_f64();
                Ok((work.run(&Sealing::new(owner, &engine))?, seconds))
            }
            Self::Cuda(owner, gpu, steps) => {
                let engine = owner.engine_on(Arc::clone(gpu), &work.needs()?, *steps)?;
                let seconds = start.elapsed().as_secs_f64();
                Ok((work.run(&Sealing::new(owner, &engine))?, seconds))
            }
        }
    }
}

/// Does some work in a place of its own.
pub fn run<W: Work>(work: &W, kind: EngineKind, set: &str, card: Card) -> Result<W::Output> {
    Lab::open(kind, set, card)?.run(work)
}
