//! `hetal bench train`: encrypted training compared with plain training.
//!
//! Rows are random features of a benchmark's shape, or real features. The run is a fixed number of
//! iterations or a full training to early stopping.

mod arguments;
mod data;
mod device_memory;
mod full_training;
mod iterations;
mod paper;
mod setup;
mod stage_clock;

pub use arguments::{Arguments, CircuitChoice, VersionsKept};
pub use full_training::{train_on, train_with_noise};

use crate::Result;
use crate::process::peak_rss_gib;
use crate::report::output;
use crate::report::table::cell;
use crate::runner::engine::EngineKind;
use device_memory::EngineRun;
use hetal_ckks::Params;
use hetal_cuda::KernelTime;
use hetal_learn::LevelPlan;
use iterations::{Iterations, count_operations};
use serde_json::{Value, json};
use setup::TrainingSetup;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A training of the paper on an A40.
struct PaperRun {
    shape: &'static str,
    iterations: usize,
    seconds: f64,
}

const PAPER_RUNS: [PaperRun; 5] = [
    PaperRun { shape: "mnist", iterations: 364, seconds: 3442.0 },
    PaperRun { shape: "cifar10", iterations: 198, seconds: 3114.0 },
    PaperRun { shape: "facemask", iterations: 132, seconds: 567.0 },
    PaperRun { shape: "dermamnist", iterations: 161, seconds: 1137.0 },
    PaperRun { shape: "snips", iterations: 182, seconds: 1264.0 },
];

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let engine_of = |circuit| if circuit == arguments.circuit { arguments.engine } else { EngineKind::Clear };
    let reports = match arguments.patience {
        _ if arguments.plan => vec![device_memory::plan(arguments)?],
        Some(patience) => vec![full_training::measure(arguments, patience)?],
        None if arguments.is_custom() && arguments.circuit == CircuitChoice::Ours => {
            vec![measure(arguments, CircuitChoice::Ours, arguments.engine)?]
        }
        None => vec![
            measure(arguments, CircuitChoice::Ours, engine_of(CircuitChoice::Ours))?,
            measure(arguments, CircuitChoice::Paper, engine_of(CircuitChoice::Paper))?,
        ],
    };
    output::print(arguments.json, &Value::from(&reports[..]), &side_by_side(&reports));
    Ok(())
}

/// Objects as text, with one column for each; the fields are those of the first object.
fn side_by_side(objects: &[Value]) -> String {
    let Some(first) = objects.first().and_then(Value::as_object) else { return String::new() };
    let line = |name: &String| {
        let values: String = objects.iter().map(|object| format!("{:26}", cell(&object[name]))).collect();
        format!("{name:36} {}\n", values.trim_end())
    };
    first.keys().map(line).collect()
}

/// Runs iterations of a circuit on an engine. Returns a flat object.
pub fn measure(arguments: &Arguments, circuit: CircuitChoice, engine: EngineKind) -> Result<Value> {
    match circuit {
        CircuitChoice::Ours => measure_ours(&Arguments { engine, ..arguments.clone() }),
        CircuitChoice::Paper => paper::measure(arguments, engine),
    }
}

/// Runs iterations of our circuit. Returns a flat object.
fn measure_ours(arguments: &Arguments) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let setup = TrainingSetup::new(arguments, params.slots())?;
    let mut report = json!({
        "shape": arguments.shape_name(),
        "engine": arguments.engine.name(),
        "circuit": "ours",
        "set": arguments.set,
        "rows": setup.preset.batch,
        "features": setup.geometry.features(),
        "classes": setup.preset.classes,
        "batches": setup.batches.len(),
        "pieces_of_a_batch": setup.geometry.pieces(setup.preset.batch),
        "classifier_ciphertexts": setup.geometry.parts(),
        "iterations": arguments.iterations,
    });
    let experiment = |resident| Iterations { setup: &setup, params: &params, arguments, resident };
    let engine_run = EngineRun { arguments, params: &params, setup: &setup, validation_pieces: 0 };
    let results = engine_run.run(experiment, &mut report)?;
    setup.rows_sent.add_to(&mut report);
    count_operations(&setup, &params, &mut report)?;
    report["refreshes"] = results.refreshes.into();
    report["seconds_per_iteration"] = results.timing.wall.into();
    report["levels_per_iteration"] = (setup.constants.depth() + LevelPlan::DEPTH).into();
    report["matrix_products_share"] = results.matrix_share.into();
    report["validation_bytes_per_epoch"] = setup.validation_bytes(&params).into();
    report["queued_s_per_iteration"] = results.timing.queued.into();
    report["host_cpu_s_per_iteration"] = results.timing.host_cpu.into();
    for (name, seconds) in seconds_by_kernel(&results.kernels) {
        report[format!("kernel_{name}_s")] = seconds.into();
    }
    report["versions_s_per_piece"] = results.versions_seconds.into();
    report["weights_relative_difference"] = results.difference.into();
    report["peak_rss_gib"] = peak_rss_gib().into();
    if let Some(paper) = PAPER_RUNS.iter().find(|run| report["shape"] == run.shape) {
        report["paper_iterations"] = paper.iterations.into();
        report["paper_total_s"] = paper.seconds.into();
        report["total_s"] = (paper.iterations as f64 * results.timing.wall).into();
    }
    if let Some(test) = results.test {
        report["test_accuracy"] = test.accuracy.into();
        report["twin_accuracy"] = test.plain_accuracy.into();
        report["prediction_disagreement"] = test.disagreement.into();
    }
    Ok(report)
}

/// Seconds of each kernel, summed over all sizes of its launches.
fn seconds_by_kernel(times: &[KernelTime]) -> BTreeMap<&'static str, f64> {
    let mut sums = BTreeMap::new();
    times.iter().for_each(|time| *sums.entry(time.name).or_default() += time.seconds);
    sums
}
