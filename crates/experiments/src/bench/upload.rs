//! `hetal bench upload`: bytes of key sets by plan and of encrypted rows in both forms, planned and
//! written, lifts a second, and seconds to derive keys.

use crate::report::{output, progress};
use crate::runner::engine::EngineKind;
use crate::runner::harness::Harness;
use crate::runner::key_plan::ExperimentKeys;
use crate::runner::local_owner::LocalOwner;
use crate::runner::{Experiment, GpuOptions, Runner};
use crate::tuning::preset;
use crate::{Error, Result};
use hetal_circuits::bootstrap::{self, BootstrapBounds};
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Complex64, Engine, LiftForm, encrypted};
use hetal_ckks::{KeyId, Params};
use hetal_client::layout::LayoutShape;
use hetal_client::{KeyPlan, Layout, Owner, written_row_bytes};
use hetal_learn::agreement::Preset;
use hetal_learn::judge::first_range;
use hetal_learn::split_mix::SplitMix64;
use hetal_learn::{LabelledMatrix, Matrix, RowForm};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The row norm of the written rows, which is the default of `hetal train`.
const ROW_NORM: f64 = 10.0;
/// The first range of a training.
const RANGE: f64 = 32.0;

/// Arguments of `hetal bench upload`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The benchmarks, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "mnist,cifar10,facemask,dermamnist,snips")]
    pub shapes: Vec<String>,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Encrypt all rows of each benchmark (random numbers) and count the bytes of the files. They
    /// are written below this folder, one at a time, and removed.
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Where lifts are timed (clear: nowhere).
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// Lifts of each kind that are timed, after three that are not.
    #[arg(long, default_value_t = 20)]
    pub lifts: usize,
    /// The keys.
    #[command(flatten)]
    pub keys: ExperimentKeys,
    /// The number of the GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let shapes: Vec<Value> =
        arguments.shapes.iter().map(|name| shape(arguments, &params, name)).collect::<Result<_>>()?;
    let lifts = lifts(arguments, &params)?;
    let derivation = derivation(arguments)?;
    let report = json!({ "set": arguments.set, "shapes": shapes, "lifts": lifts, "derivation": derivation });
    output::print(arguments.json, &report, &text(&report));
    Ok(())
}

fn text(report: &Value) -> String {
    let mut lines = String::new();
    for shape in report["shapes"].as_array().into_iter().flatten() {
        let mb = |name: &str| shape[name].as_f64().map_or("-".to_owned(), |bytes| format!("{:.1}", bytes / 1e6));
        lines += &format!(
            "{:11} keys fast {} MB, balanced {} MB, small {} MB\n\
             {:11} {:4} ciphertexts; slots {} MB (written {}); coefficients {} MB (written {}), {:.3} of float32\n",
            shape["shape"].as_str().unwrap_or_default(),
            mb("key_bytes_fast"),
            mb("key_bytes_balanced"),
            mb("key_bytes_small"),
            "",
            shape["ciphertexts"],
            mb("slots_bytes"),
            mb("slots_written_bytes"),
            mb("coefficients_bytes"),
            mb("coefficients_written_bytes"),
            shape["coefficients_over_float32"].as_f64().unwrap_or(f64::NAN),
        );
    }
    for kind in ["complex", "real"] {
        if let Some(seconds) = report["lifts"][format!("{kind}_s")].as_f64() {
            lines += &format!("a {kind} lift takes {:.2} ms: {:.1} a second\n", 1e3 * seconds, 1.0 / seconds);
        }
    }
    if let Some(seconds) = report["derivation"]["s"].as_f64() {
        let keys = &report["derivation"]["keys"];
        lines += &format!("the CPU derives {keys} keys in {seconds:.2} s\n");
    }
    lines
}

/// The bytes of one benchmark.
fn shape(arguments: &Arguments, params: &Arc<Params>, name: &str) -> Result<Value> {
    let preset = *preset(name)?;
    let Preset { batch, features, classes, training_rows, validation_rows, .. } = preset;
    let range = first_range(RANGE, classes, false);
    let layout_of = |key_plan| {
        let shape = LayoutShape { batch, features, classes, range, weighted: false, key_plan };
        Layout::new(Arc::clone(params), shape)
    };
    let layout = layout_of(KeyPlan::default())?;
    let pieces = layout.pieces(training_rows).len();
    let validation = validation_rows.div_ceil(layout.geometry().rows());
    let planned = |form| {
        let [whole, rows] = [true, false].map(|with_labels| layout.row_bytes(form, with_labels));
        pieces as u64 * whole + validation as u64 * rows
    };
    let float32 = (training_rows + validation_rows) as f64 * features as f64 * 4.0;
    let mut report = json!({
        "shape": name,
        "training_rows": training_rows,
        "validation_rows": validation_rows,
        "features": features,
        "ciphertexts": pieces * layout.row_vectors(true).len() + validation * layout.row_vectors(false).len(),
        "float32_bytes": float32,
    });
    for plan in KeyPlan::OFFERED {
        let layout = layout_of(plan)?;
        let keys = layout.sent_keys()?;
        report[format!("keys_{}", plan.name())] = keys.len().into();
        report[format!("key_bytes_{}", plan.name())] = layout.key_bytes(&keys)?.into();
    }
    for form in [RowForm::Slots, RowForm::Coefficients] {
        let (name, bytes) = (form.name(), planned(form));
        report[format!("{name}_bytes")] = bytes.into();
        report[format!("{name}_over_float32")] = (bytes as f64 / float32).into();
        if let Some(folder) = &arguments.write {
            let start = Instant::now();
            let written = write(&layout, &preset, form, folder)?;
            report[format!("{name}_written_bytes")] = written.into();
            report[format!("{name}_encrypting_s")] = start.elapsed().as_secs_f64().into();
            if written != bytes {
                return Err(Error::UploadSize { form: name, planned: bytes, written });
            }
        }
    }
    Ok(report)
}

/// Bytes of the files of all rows of a benchmark, encrypted by a fresh key.
fn write(layout: &Layout, preset: &Preset, form: RowForm, folder: &std::path::Path) -> Result<u64> {
    let spinner = progress::spinner(format!("{} in {}", preset.name, form.name()));
    let owner = Owner::fresh(Arc::clone(&layout.params))?;
    let mut random = SplitMix64(1);
    let size = ROW_NORM / (preset.features as f64).sqrt();
    let mut rows = |count: usize| {
        let features = Matrix::from_fn(count, preset.features, |_, _| size * random.next_signed());
        LabelledMatrix::new(features, (0..count).map(|i| i % preset.classes).collect(), preset.classes)
    };
    let (training, validation) = (rows(preset.training_rows)?, rows(preset.validation_rows)?);
    let bytes = written_row_bytes(&owner, layout, (form, ROW_NORM), (&training, &validation), folder)?;
    spinner.finish_and_clear();
    Ok(bytes)
}

/// Times lifts on the chosen engine.
fn lifts(arguments: &Arguments, params: &Params) -> Result<Value> {
    if arguments.engine == EngineKind::Clear {
        return Ok(Value::Null);
    }
    let gpu = GpuOptions { device: arguments.device, key_plan: arguments.keys.plan() };
    let runner = Runner::new(arguments.engine, &arguments.set, gpu)?;
    runner.run(&Lifts { params, count: arguments.lifts.max(1) })
}

/// Times the derivation of the keys that the plan leaves to the server. The CPU derives them for
/// every engine.
fn derivation(arguments: &Arguments) -> Result<Value> {
    let plan = arguments.keys.plan();
    if arguments.engine == EngineKind::Clear || !plan.derives() {
        return Ok(Value::Null);
    }
    let owner = LocalOwner::new(&arguments.set)?;
    let wanted = bootstrap::keys_with_plan(&owner.params, plan);
    let mut sent = encrypted::sent_keys(&owner.params, &wanted, plan);
    sent.retain(|(id, _)| id.is_sparse() || matches!(id, KeyId::Master(_)));
    let mut keys = owner.keys(&sent)?;
    let (start, mut derived) = (Instant::now(), 0);
    hetal_ckks::derivation::derive(&owner.params, (&*owner.ring, owner.ring.isa()), &mut keys, &wanted, |_, all| {
        derived = all;
        Ok::<_, Error>(())
    })?;
    Ok(json!({ "keys": derived, "s": start.elapsed().as_secs_f64() }))
}

/// Lifts of random vectors.
struct Lifts<'a> {
    params: &'a Params,
    count: usize,
}

impl Experiment for Lifts<'_> {
    type Output = Value;

    /// Lifts need the keys and matrices of any bootstrap.
    fn required_keys(&self) -> Result<KeyRequirements> {
        Ok(KeyRequirements { bounds: BootstrapBounds::from(&[0]), ..KeyRequirements::default() })
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Value> {
        let mut random = SplitMix64(2);
        let values: Vec<Complex64> =
            (0..self.params.slots()).map(|_| Complex64::new(random.next_signed(), random.next_signed())).collect();
        let mut report = json!({});
        for (name, form) in [("complex", LiftForm::Complex), ("real", LiftForm::Real)] {
            let unlifted = harness.encrypt_unlifted(&values, 0, form)?;
            let lift = || Ok::<_, Error>(harness.engine().lift(&unlifted)?);
            // The first lift of a GPU has no graph, and the second is recorded.
            for _ in 0..3 {
                lift()?;
            }
            harness.synchronize()?;
            let start = Instant::now();
            for _ in 1..self.count {
                lift()?;
            }
            let lifted = lift()?;
            harness.synchronize()?;
            let seconds = start.elapsed().as_secs_f64() / self.count as f64;
            let errors = harness.decrypt(&lifted)?.into_iter().zip(&values).map(|(found, z)| match form {
                LiftForm::Complex => (found - z).norm(),
                LiftForm::Real => (found - z.re).norm(),
            });
            let (mut sum, mut most) = (0.0, 0.0f64);
            errors.for_each(|error| (sum, most) = (sum + error, most.max(error)));
            report[format!("{name}_s")] = seconds.into();
            report[format!("{name}_per_s")] = (1.0 / seconds).into();
            report[format!("{name}_log2_mean_error")] = (sum / values.len() as f64).log2().into();
            report[format!("{name}_log2_largest_error")] = most.log2().into();
        }
        Ok(report)
    }
}
