//! Device memory of a training: the estimate, and the choice of versions that stay in memory.

use super::arguments::{Arguments, VersionsKept};
use super::setup::TrainingSetup;
use crate::bench::ops::graph_report;
use crate::runner::{Experiment, Runner, TimedRun};
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_cuda::CudaBackend;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

const GIB: f64 = (1u64 << 30) as f64;

/// Estimates the device memory of a training by a dry run without a GPU.
pub(super) fn plan(arguments: &Arguments) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let setup = TrainingSetup::new(&Arguments { batches: 1, data: None, ..arguments.clone() }, params.slots())?;
    let start = Instant::now();
    let estimate = setup.memory_estimate(arguments, &params)?;
    let gib = |bytes: usize| bytes as f64 / GIB;
    let pieces = arguments.batches * setup.geometry.pieces(setup.preset.batch);
    Ok(json!({
        "shape": arguments.shape_name(),
        "set": arguments.set,
        "batches": arguments.batches,
        "pieces": pieces,
        "fixed_gib": gib(estimate.fixed),
        "upload_gib_per_piece": gib(estimate.upload),
        "versions_gib_per_piece": gib(estimate.versions),
        "device_remade_gib": gib(estimate.bytes(pieces, 0)),
        "device_resident_gib": gib(estimate.bytes(pieces, pieces)),
        "planning_s": start.elapsed().as_secs_f64(),
    }))
}

/// A training that is to run on an engine.
pub(super) struct EngineRun<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) params: &'a Arc<Params>,
    pub(super) setup: &'a TrainingSetup,
    /// Pieces on the device besides those of the training batches.
    pub(super) validation_pieces: usize,
}

impl EngineRun<'_> {
    /// Runs an experiment on the chosen engine and adds the use of the device to `report`.
    ///
    /// `experiment` is called with the number of pieces whose versions stay in memory. On a GPU
    /// these are as many as fit.
    pub(super) fn run<E: Experiment>(
        &self,
        experiment: impl FnOnce(usize) -> E,
        report: &mut Value,
    ) -> Result<E::Output> {
        let arguments = self.arguments;
        let runner = Runner::new(arguments.engine, &arguments.set, arguments.gpu_options())?;
        let pieces = self.setup.pieces();
        let resident = match runner.gpu() {
            Some(gpu) => self.resident_on_gpu(gpu, report)?.min(pieces),
            None if arguments.versions == VersionsKept::Remade => 0,
            None => pieces,
        };
        report["pieces_resident"] = resident.into();
        let TimedRun { output, setup_seconds } = runner.run_timed(&experiment(resident))?;
        if let Some(gpu) = runner.gpu() {
            report["keys_and_matrices_s"] = setup_seconds.into();
            report["device_peak_gib"] = (gpu.peak_bytes() as f64 / GIB).into();
            report["graphs"] = graph_report(&gpu.graphs());
        }
        Ok(output)
    }

    /// The number of pieces whose versions stay on the GPU.
    ///
    /// # Errors
    ///
    /// [`Error::DoesNotFit`] if the GPU has too little free memory for the choice of versions.
    fn resident_on_gpu(&self, gpu: &CudaBackend, report: &mut Value) -> Result<usize> {
        let (start, (free, total)) = (Instant::now(), gpu.memory()?);
        if !self.arguments.graphs() {
            gpu.use_graphs(false);
        }
        let pieces = self.setup.pieces() + self.validation_pieces;
        let estimate = self.setup.memory_estimate(self.arguments, self.params)?;
        let does_not_fit = |needed| Error::DoesNotFit { needed, free };
        let most = estimate.resident(pieces, free).ok_or_else(|| does_not_fit(estimate.bytes(pieces, 0)))?;
        let resident = match self.arguments.versions {
            VersionsKept::Auto => most,
            VersionsKept::Remade => 0,
            VersionsKept::Resident if most == pieces => pieces,
            VersionsKept::Resident => return Err(does_not_fit(estimate.bytes(pieces, pieces))),
        };
        let bytes = estimate.bytes(pieces, resident);
        eprintln!(
            "{}: {:.1} GiB of {:.1} GiB free; versions of {resident} of {pieces} pieces stay on the device",
            gpu.describe(),
            bytes as f64 / GIB,
            free as f64 / GIB
        );
        report["device"] = gpu.describe().into();
        report["device_total_gib"] = (total as f64 / GIB).into();
        report["device_planned_gib"] = (bytes as f64 / GIB).into();
        report["planning_s"] = start.elapsed().as_secs_f64().into();
        Ok(resident)
    }
}
