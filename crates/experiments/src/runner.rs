//! Runs an experiment on the engine that the user chooses.
//!
//! An [`Experiment`] says which keys it needs and what it does with a [`Harness`]. A [`Runner`]
//! makes the keys, builds the engine and runs the experiment on it.

pub mod engine;
pub mod harness;
pub mod key_plan;
pub mod local_owner;

use crate::Result;
use engine::{EngineKind, open_gpu};
use harness::{ClearHarness, EncryptedHarness, Harness};
use hetal_circuits::KeyPlan;
use hetal_circuits::clear::{Clear, KeyRequirements};
use hetal_ckks::Params;
use hetal_cuda::CudaBackend;
use local_owner::LocalOwner;
use std::sync::Arc;
use std::time::Instant;

/// An experiment that runs on any engine.
pub trait Experiment {
    /// The result.
    type Output;

    /// The keys and bootstraps that the experiment uses.
    fn required_keys(&self) -> Result<KeyRequirements>;

    /// Runs the experiment.
    fn run<H: Harness>(&self, harness: &H) -> Result<Self::Output>;
}

/// Which GPU is used, and the keys of any engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuOptions {
    /// The number of the GPU.
    pub device: usize,
    /// How many keys bootstraps use.
    pub key_plan: KeyPlan,
}

/// The output of an experiment, and the time before it started.
pub struct TimedRun<T> {
    /// The output.
    pub output: T,
    /// Seconds to make the keys and to encode the bootstrapping matrices; 0 on plain numbers.
    pub setup_seconds: f64,
}

/// An engine of one kind for one parameter set, with a fresh secret key where it needs one.
pub enum Runner {
    /// Plain numbers, with the slots and levels of a parameter set.
    Clear(Params),
    /// Ciphertexts on the CPU.
    Cpu(LocalOwner, KeyPlan),
    /// Ciphertexts on a GPU.
    Cuda(LocalOwner, Arc<CudaBackend>, KeyPlan),
}

impl Runner {
    /// Opens an engine for a parameter set.
    pub fn new(kind: EngineKind, set: &str, gpu: GpuOptions) -> Result<Self> {
        Ok(match kind {
            EngineKind::Clear => Self::Clear(Params::named(set)?),
            EngineKind::Cpu => Self::Cpu(LocalOwner::new(set)?, gpu.key_plan),
            EngineKind::Cuda => {
                let owner = LocalOwner::new(set)?;
                let backend = open_gpu(&owner.params, gpu.device)?;
                Self::Cuda(owner, backend, gpu.key_plan)
            }
        })
    }

    /// The GPU, if this runner uses one.
    pub fn gpu(&self) -> Option<&CudaBackend> {
        match self {
            Self::Cuda(_, gpu, _) => Some(gpu),
            _ => None,
        }
    }

    /// Makes the keys of an experiment and runs it.
    pub fn run<E: Experiment>(&self, experiment: &E) -> Result<E::Output> {
        Ok(self.run_timed(experiment)?.output)
    }

    /// Makes the keys of an experiment, runs it, and reports how long the keys took.
    pub fn run_timed<E: Experiment>(&self, experiment: &E) -> Result<TimedRun<E::Output>> {
        let start = Instant::now();
        match self {
            Self::Clear(params) => {
                let harness = ClearHarness::new(Clear::new(params.slots(), params.top_level()));
                Ok(TimedRun { output: experiment.run(&harness)?, setup_seconds: 0.0 })
            }
            Self::Cpu(owner, key_plan) => {
                let engine = owner.engine_on(Arc::clone(&owner.ring), &experiment.required_keys()?, *key_plan)?;
                let setup_seconds = start.elapsed().as_secs_f64();
                Ok(TimedRun { output: experiment.run(&EncryptedHarness::new(owner, &engine))?, setup_seconds })
            }
            Self::Cuda(owner, gpu, key_plan) => {
                let engine = owner.engine_on(Arc::clone(gpu), &experiment.required_keys()?, *key_plan)?;
                let setup_seconds = start.elapsed().as_secs_f64();
                Ok(TimedRun { output: experiment.run(&EncryptedHarness::new(owner, &engine))?, setup_seconds })
            }
        }
    }
}

/// Runs one experiment with a runner of its own.
pub fn run<E: Experiment>(experiment: &E, kind: EngineKind, set: &str, gpu: GpuOptions) -> Result<E::Output> {
    Runner::new(kind, set, gpu)?.run(experiment)
}
