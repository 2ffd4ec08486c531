//! `hetal bench train`: encrypted training beside exact training, on random features of a benchmark's shape or on real ones.

mod data;
mod paper;
mod session;

pub use session::with_noise;

use crate::process::{cpu_time, peak_rss_gib};
use crate::report::table::cell;
use crate::report::{output, progress};
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness, HarnessCiphertext};
use crate::runner::{Experiment, GpuOptions, Runner, TimedRun};
use crate::tuning::preset;
use crate::{Error, Result};
use data::Rows;
use hetal_circuits::Engine;
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_circuits::clear::{Clear, KeyRequirements, OpKind};
use hetal_circuits::encrypted;
use hetal_ckks::{Params, bytes};
use hetal_cuda::{CudaBackend, KernelTime};
use hetal_learn::agreement::{self, Preset};
use hetal_learn::circuit::LOG_MOMENTUM_BOUND;
use hetal_learn::nesterov::Momentum;
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, Model, Stage, Trainer};
use hetal_learn::{CachedBatch, Geometry, LevelPlan, Matrix, RowBlob, batches, judge, packing};
use hetal_server::memory_estimate::{DryRun, MemoryEstimate};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Whether the row-shifted versions of all batches stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VersionsKept {
    /// As many as fit.
    Auto,
    /// All of them.
    Resident,
    /// None: they are made again each time a batch's turn comes.
    Remade,
}

/// Whose circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Circuit {
    /// The classifier in one ciphertext, normalise-and-sharpen.
    Ours,
    /// DiagABT, ASoftmax, DiagATB, weights tiled over many ciphertexts.
    Paper,
}

impl Circuit {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Circuit::Ours => "ours",
            Circuit::Paper => "paper",
        }
    }
}

/// Arguments of `hetal bench train`.
#[derive(Clone, clap::Args)]
pub struct Arguments {
    /// The benchmark: mnist, cifar10, facemask, dermamnist, snips, or one of them with -large.
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// Rows of a batch, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub batch: Option<usize>,
    /// Features of a row, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub features: Option<usize>,
    /// Classes, instead of the benchmark's.
    #[arg(long, conflicts_with_all = ["data", "patience"])]
    pub classes: Option<usize>,
    /// Where iterations run.
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// Whose circuit runs there; the other one runs in the clear beside it.
    #[arg(long, value_enum, default_value = "ours")]
    pub circuit: Circuit,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// A folder with features_{train,test}.npy and labels_{train,test}.npy, instead of random features.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Training rows of it that are used (without --patience).
    #[arg(long, default_value_t = 2048)]
    pub rows: usize,
    /// Batches of random features.
    #[arg(long, default_value_t = 1)]
    pub batches: usize,
    /// How many iterations.
    #[arg(long, default_value_t = 1)]
    pub iterations: usize,
    /// Train on all rows of --data until so many epochs brought nothing, judged on features_val.npy.
    #[arg(long, requires = "data")]
    pub patience: Option<usize>,
    /// Length that the longest row is brought to (with --patience; by default the best on the validation rows).
    #[arg(long)]
    pub row_norm: Option<f64>,
    /// The learning rate (by default the paper's; with --patience the best on the validation rows).
    #[arg(long)]
    pub rate: Option<f64>,
    /// Which row-shifted versions of the features stay in memory.
    #[arg(long, value_enum, default_value = "auto")]
    pub versions: VersionsKept,
    /// Bootstraps with a third more keys, and faster (on the GPU).
    #[arg(long)]
    pub more_keys: bool,
    /// Which GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Only say what device memory the training would take: needs no GPU.
    #[arg(long)]
    pub plan: bool,
    /// Time the kernels of one more iteration on the GPU.
    #[arg(long)]
    pub profile: bool,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// Whether the shape is none of the paper's.
    fn is_custom(&self) -> bool {
        self.batch.or(self.features).or(self.classes).is_some()
    }

    /// The benchmark, with what was asked for instead.
    fn preset(&self) -> Result<Preset> {
        let paper = *preset(&self.shape)?;
        if [self.batch, self.features, self.classes].contains(&Some(0)) {
            return Err(Error::NoShape);
        }
        Ok(Preset {
            batch: self.batch.unwrap_or(paper.batch),
            features: self.features.unwrap_or(paper.features),
            classes: self.classes.unwrap_or(paper.classes),
            ..paper
        })
    }

    fn steps(&self) -> BsgsSplit {
        BsgsSplit::allowing(self.more_keys)
    }

    /// Whether bootstraps are recorded as graphs: not where memory matters more than their hundredth of the time.
    fn graphs(&self) -> bool {
        self.versions != VersionsKept::Remade
    }

    fn card(&self) -> GpuOptions {
        GpuOptions { device: self.device, steps: self.steps() }
    }
}

/// Logits are bounded by this in both directions.
const RANGE: f64 = 128.0;

/// The paper's runs on an A40: iterations and seconds.
const PAPER: [(&str, usize, f64); 5] = [
    ("mnist", 364, 3442.0),
    ("cifar10", 198, 3114.0),
    ("facemask", 132, 567.0),
    ("dermamnist", 161, 1137.0),
    ("snips", 182, 1264.0),
];

/// The circuit of one shape and its batches, which iterations take in turn.
struct Job {
    preset: Preset,
    geometry: Geometry,
    level_plan: LevelPlan,
    constants: Constants,
    rate: f64,
    batches: Vec<Rows>,
    test: Option<Rows>,
}

impl Job {
    fn new(arguments: &Arguments, slots: usize) -> Result<Self> {
        let preset = arguments.preset()?;
        let (batches, test) = match &arguments.data {
            None => ((0..arguments.batches.max(1)).map(|k| data::clusters(&preset, k as u64)).collect(), None),
            Some(path) => data::load(path, arguments.rows, &preset)?,
        };
        let features = batches.first().map_or(preset.features, |b: &Rows| b.features.columns());
        Ok(Self {
            preset,
            geometry: Geometry::new(slots, preset.batch, features, preset.classes)?,
            level_plan: LevelPlan::lowest(),
            constants: Constants::built_in(preset.classes, RANGE)?,
            rate: arguments.rate.unwrap_or(preset.rate),
            batches,
            test,
        })
    }

    /// Pieces of all batches.
    fn pieces(&self) -> usize {
        self.batches.iter().map(|rows| self.geometry.pieces(rows.features.rows())).sum()
    }

    /// What the circuit needs prepared.
    fn needs(&self, params: &Params) -> Result<KeyRequirements> {
        let constants = self.constants.clone();
        Ok(trainer::keys(self.geometry, self.level_plan, constants, LOG_MOMENTUM_BOUND, params.top_level())?)
    }

    fn trainer<E: Engine>(&self, engine: &E) -> Result<Trainer<E>> {
        Ok(Trainer::new(engine, self.geometry, self.level_plan, self.constants.clone(), LOG_MOMENTUM_BOUND)?)
    }

    /// What it will hold on a card.
    fn footprint(&self, arguments: &Arguments, params: &Arc<Params>) -> Result<MemoryEstimate> {
        let (needs, steps, graphs) = (self.needs(params)?, arguments.steps(), arguments.graphs());
        let keys = encrypted::keys_with_split(params, &needs, steps);
        let pieces = self.geometry.pieces(self.preset.batch);
        let dry_run = DryRun { params, keys: &keys, bounds: &needs.bounds, steps, graphs, pieces };
        let found = MemoryEstimate::dry_run(&dry_run, |engine| Ok(self.trainer(engine)?));
        found.map_err(|problem| Error::Rehearsal { reason: problem.to_string() })
    }

    /// Trains; versions stay for the first `resident` pieces of batches.
    fn run<H: Harness>(&self, harness: &H, arguments: &Arguments, resident: usize) -> Result<Outcome> {
        let iterations = arguments.iterations;
        let engine = harness.engine();
        let (g, level_plan) = (&self.geometry, self.level_plan);
        let bar = progress::bar((iterations + self.pieces() + 1) as u64);
        bar.set_message("circuit");
        let trainer = self.trainer(engine)?;
        bar.inc(1);
        bar.set_message("batches");
        let mut preparing = 0.0;
        let mut hold = |(k, rows): (usize, Rows)| -> Result<CachedBatch<_>> {
            let upload = upload(harness, g, level_plan, &rows)?;
            harness.synchronize()?;
            let start = Instant::now();
            let held = hold(engine, &trainer, upload, k < resident)?;
            harness.synchronize()?;
            preparing += start.elapsed().as_secs_f64();
            bar.inc(1);
            Ok(held)
        };
        let pieces = self.batches.iter().flat_map(|batch| batch.pieces(g.rows()));
        let held: Vec<_> = pieces.enumerate().map(&mut hold).collect::<Result<_>>()?;
        let pieces_of = |k: usize| batches::pieces_of(g, self.preset.batch, k % self.batches.len(), held.len());
        bar.set_message("iterations");
        let initial = agreement::initial_weights(g.classes(), g.features(), 1);
        let first = harness.encrypt_all(&packing::weights(g, &initial)?, level_plan.weights())?;
        let mut model = Model::new(first, Momentum::Nesterov);
        let mut twin = ReferenceModel::new(initial, Momentum::Nesterov);
        harness.synchronize()?;
        let (start, cpu) = (Instant::now(), cpu_time());
        // Experiment on a card is queued: waiting for each stage would slow it down, so its shares are those of the profiled iteration.
        let mut clock = Clock::start();
        let waits = arguments.engine != EngineKind::Cuda;
        let mut refreshes = 0;
        for k in 0..iterations {
            let mut ended = |stage| clock.ended(stage, Ok(()));
            model = batches::step(engine, &trainer, &model, &held[..], pieces_of(k), self.rate, &mut ended)?;
            if model.needs_refresh() {
                model = trainer.refresh(engine, &model)?;
                refreshes += 1;
            }
            bar.inc(1);
        }
        let queued = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        let host_cpu = (cpu_time() - cpu).as_secs_f64() / iterations.max(1) as f64;
        harness.synchronize()?;
        let seconds = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        let share = |(total, matrices): (f64, f64)| matrices / total;
        let mut matrix_share = if waits { Some(share(clock.stop()?)) } else { None };
        bar.finish_and_clear();
        if arguments.profile {
            harness.profile(true);
            let mut clock = Clock::start();
            let mut ended = |stage| clock.ended(stage, harness.synchronize());
            batches::step(engine, &trainer, &model, &held[..], pieces_of(0), self.rate, &mut ended)?;
            matrix_share = Some(share(clock.stop()?));
        }
        let kernels = harness.profile(false);
        for k in 0..iterations {
            let rows = &self.batches[k % self.batches.len()];
            twin.step(&rows.features, &rows.labels, self.rate, softmax::exact)?;
        }
        let weights = packing::unpack_weights(g, &harness.decrypt_all(&model.weights)?)?;
        let difference = weights.max_difference(twin.weights()) / twin.weights().max_magnitude();
        let test = self.test.as_ref().map(|rows| compare(rows, &weights, twin.weights())).transpose()?;
        let preparing = (resident > 0).then(|| preparing / resident.min(held.len()) as f64);
        Ok(Outcome { seconds, queued, host_cpu, matrix_share, preparing, kernels, refreshes, difference, test })
    }
}

/// Encrypts a batch.
fn upload<H: Harness>(
    harness: &H,
    g: &Geometry,
    level_plan: LevelPlan,
    rows: &Rows,
) -> Result<RowBlob<HarnessCiphertext<H>>> {
    let features = harness.encrypt_all(&packing::features(g, &rows.features)?, level_plan.fresh_features())?;
    let labels = harness.encrypt(&packing::labels(g, &rows.labels)?, level_plan.probabilities())?;
    Ok(RowBlob { features, labels, rows: rows.features.rows() })
}

/// A batch whose versions are made now and stay, or not.
fn hold<E: Engine>(
    engine: &E,
    trainer: &Trainer<E>,
    upload: RowBlob<E::Ciphertext>,
    stays: bool,
) -> Result<CachedBatch<E::Ciphertext>> {
    if !stays {
        return Ok(CachedBatch::Raw(upload));
    }
    Ok(CachedBatch::Prepared(trainer.batch(engine, &upload.features, upload.labels, upload.rows)?))
}

struct Outcome {
    seconds: f64,
    /// Seconds of an iteration until all of its work is queued.
    queued: f64,
    /// Seconds of the host's CPU until then.
    host_cpu: f64,
    /// Seconds of matrix products over all seconds of the steps, where stages were waited for.
    matrix_share: Option<f64>,
    kernels: Vec<KernelTime>,
    /// Seconds of making the versions of a batch, where some were made before the first step.
    preparing: Option<f64>,
    refreshes: usize,
    difference: f64,
    test: Option<Comparison>,
}

/// Predictions of the trained classifier beside its twin's.
struct Comparison {
    accuracy: f64,
    twin_accuracy: f64,
    /// Share of rows that the two classify differently.
    disagreement: f64,
}

fn compare(rows: &Rows, weights: &Matrix, twin: &Matrix) -> Result<Comparison> {
    let (ours, theirs) = (reference::logits(&rows.features, weights)?, reference::logits(&rows.features, twin)?);
    let count = rows.features.rows();
    let different = (0..count).filter(|&i| judge::predicted(ours.row(i)) != judge::predicted(theirs.row(i))).count();
    Ok(Comparison {
        accuracy: judge::accuracy(&ours, &rows.labels)?,
        twin_accuracy: judge::accuracy(&theirs, &rows.labels)?,
        disagreement: different as f64 / count.max(1) as f64,
    })
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let on = |circuit| if circuit == arguments.circuit { arguments.engine } else { EngineKind::Clear };
    let reports = match arguments.patience {
        _ if arguments.plan => vec![plan(arguments)?],
        Some(patience) => vec![session::report(arguments, patience)?],
        None if arguments.is_custom() && arguments.circuit == Circuit::Ours => {
            vec![report(arguments, Circuit::Ours, arguments.engine)?]
        }
        None => vec![
            report(arguments, Circuit::Ours, on(Circuit::Ours))?,
            report(arguments, Circuit::Paper, on(Circuit::Paper))?,
        ],
    };
    output::print(arguments.json, &Value::from(&reports[..]), &beside(&reports));
    Ok(())
}

/// Objects side by side, the first one's fields first.
fn beside(objects: &[Value]) -> String {
    let Some(first) = objects.first().and_then(Value::as_object) else { return String::new() };
    let line = |name: &String| {
        let values: String = objects.iter().map(|object| format!("{:26}", cell(&object[name]))).collect();
        format!("{name:36} {}\n", values.trim_end())
    };
    first.keys().map(line).collect()
}

/// Seconds of steps, and of their matrix products.
struct Clock {
    start: Instant,
    last: Instant,
    matrices: f64,
    failed: Option<Error>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), last: Instant::now(), matrices: 0.0, failed: None }
    }

    /// A stage ended, and whether its queued work could be waited for.
    fn ended(&mut self, stage: Stage, settled: Result<()>) {
        self.failed = self.failed.take().or(settled.err());
        if stage.is_matrix_product() {
            self.matrices += self.last.elapsed().as_secs_f64();
        }
        self.last = Instant::now();
    }

    /// All seconds and those of matrix products.
    fn stop(self) -> Result<(f64, f64)> {
        self.failed.map_or(Ok((self.start.elapsed().as_secs_f64(), self.matrices)), Err)
    }
}

/// Bytes of an epoch's encrypted validation logits, for the paper's number of rows.
fn validation_bytes(job: &Job, params: &Params) -> u64 {
    let ciphertexts = job.preset.validation_rows.div_ceil(job.geometry.rows()) as u64;
    ciphertexts * bytes::ciphertext_len(params, params.limbs(0))
}

/// Runs iterations of a circuit on an engine and describes them as a flat object.
pub fn report(arguments: &Arguments, circuit: Circuit, engine: EngineKind) -> Result<Value> {
    match circuit {
        Circuit::Ours => ours(&Arguments { engine, ..arguments.clone() }),
        Circuit::Paper => paper::report(arguments, engine),
    }
}

/// Runs iterations of our circuit and describes them as a flat object.
fn ours(arguments: &Arguments) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let job = Job::new(arguments, params.slots())?;
    let mut report = json!({
        "shape": if arguments.is_custom() { "custom" } else { &arguments.shape },
        "engine": arguments.engine.name(),
        "circuit": "ours",
        "set": arguments.set,
        "rows": job.preset.batch,
        "features": job.geometry.features(),
        "classes": job.preset.classes,
        "batches": job.batches.len(),
        "pieces_of_a_batch": job.geometry.pieces(job.preset.batch),
        "classifier_ciphertexts": job.geometry.parts(),
        "iterations": arguments.iterations,
    });
    let work = |kept| Iterations { job: &job, params: &params, arguments, kept };
    let outcome = on_engine(arguments, &params, &job, 0, work, &mut report)?;
    count_operations(&job, &params, &mut report)?;
    report["refreshes"] = outcome.refreshes.into();
    report["seconds_per_iteration"] = outcome.seconds.into();
    report["levels_per_iteration"] = (job.constants.depth() + LevelPlan::DEPTH).into();
    report["matrix_products_share"] = outcome.matrix_share.into();
    report["validation_bytes_per_epoch"] = validation_bytes(&job, &params).into();
    report["queued_s_per_iteration"] = outcome.queued.into();
    report["host_cpu_s_per_iteration"] = outcome.host_cpu.into();
    for (name, seconds) in by_kernel(&outcome.kernels) {
        report[format!("kernel_{name}_s")] = seconds.into();
    }
    report["versions_s_per_piece"] = outcome.preparing.into();
    report["weights_relative_difference"] = outcome.difference.into();
    report["peak_rss_gib"] = peak_rss_gib().into();
    if let Some((_, iterations, seconds)) = PAPER.iter().find(|(name, ..)| report["shape"] == *name) {
        report["paper_iterations"] = (*iterations).into();
        report["paper_total_s"] = (*seconds).into();
        report["total_s"] = (*iterations as f64 * outcome.seconds).into();
    }
    if let Some(test) = outcome.test {
        report["test_accuracy"] = test.accuracy.into();
        report["twin_accuracy"] = test.twin_accuracy.into();
        report["prediction_disagreement"] = test.disagreement.into();
    }
    Ok(report)
}

/// The operations of an iteration after the first, counted in the clear.
fn count_operations(job: &Job, params: &Params, report: &mut Value) -> Result<()> {
    let harness = ClearHarness::new(Clear::new(params.slots(), params.top_level()));
    let engine = harness.engine();
    let trainer = job.trainer(engine)?;
    let hold = |rows: Rows| hold(engine, &trainer, upload(&harness, &job.geometry, job.level_plan, &rows)?, true);
    let held: Vec<_> = job.batches[0].pieces(job.geometry.rows()).map(hold).collect::<Result<_>>()?;
    let step =
        |model: &Model<_>| batches::step(engine, &trainer, model, &held[..], 0..held.len(), job.rate, &mut |_| {});
    let first = packing::weights(
        &job.geometry,
        &agreement::initial_weights(job.geometry.classes(), job.geometry.features(), 1),
    )?;
    let model = Model::new(harness.encrypt_all(&first, job.level_plan.weights())?, Momentum::Nesterov);
    let model = step(&model)?;
    engine.take_op_counts();
    step(&model)?;
    let counts = engine.take_op_counts();
    report["bootstraps_per_iteration"] = counts.count(OpKind::Bootstrap).into();
    report["key_switches_per_iteration"] = counts.key_switches().into();
    report["relinearisations_per_iteration"] = counts.count(OpKind::Relinearisation).into();
    report["products_per_iteration"] = counts.count(OpKind::Product).into();
    Ok(())
}

/// Seconds of each kernel, over all sizes of its launches.
fn by_kernel(times: &[KernelTime]) -> BTreeMap<&'static str, f64> {
    let mut sums = BTreeMap::new();
    times.iter().for_each(|time| *sums.entry(time.name).or_default() += time.seconds);
    sums
}

const GIB: f64 = (1u64 << 30) as f64;

/// Device memory of a training, by a rehearsal without a card.
fn plan(arguments: &Arguments) -> Result<Value> {
    let params = Arc::new(Params::named(&arguments.set)?);
    let job = Job::new(&Arguments { batches: 1, data: None, ..arguments.clone() }, params.slots())?;
    let start = Instant::now();
    let footprint = job.footprint(arguments, &params)?;
    let gib = |bytes: usize| bytes as f64 / GIB;
    let pieces = arguments.batches * job.geometry.pieces(job.preset.batch);
    Ok(json!({
        "shape": if arguments.is_custom() { "custom" } else { &arguments.shape },
        "set": arguments.set,
        "batches": arguments.batches,
        "pieces": pieces,
        "fixed_gib": gib(footprint.fixed),
        "upload_gib_per_piece": gib(footprint.upload),
        "versions_gib_per_piece": gib(footprint.versions),
        "device_remade_gib": gib(footprint.bytes(pieces, 0)),
        "device_resident_gib": gib(footprint.bytes(pieces, pieces)),
        "planning_s": start.elapsed().as_secs_f64(),
    }))
}

/// Iterations of a job, with the versions of so many pieces kept.
struct Iterations<'a> {
    job: &'a Job,
    params: &'a Params,
    arguments: &'a Arguments,
    kept: usize,
}

impl Experiment for Iterations<'_> {
    type Output = Outcome;

    fn required_keys(&self) -> Result<KeyRequirements> {
        self.job.needs(self.params)
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Outcome> {
        self.job.run(harness, self.arguments, self.kept)
    }
}

/// Trains on the engine that is asked for. `work` is told for how many pieces of batches versions are kept: on a GPU what fits, with `beside`
/// more pieces.
fn on_engine<W: Experiment>(
    arguments: &Arguments,
    params: &Arc<Params>,
    job: &Job,
    beside: usize,
    work: impl FnOnce(usize) -> W,
    report: &mut Value,
) -> Result<W::Output> {
    let runner = Runner::new(arguments.engine, &arguments.set, arguments.card())?;
    let pieces = job.pieces();
    let kept = match runner.gpu() {
        Some(gpu) => fit(arguments, gpu, params, job, pieces + beside, report)?.min(pieces),
        None if arguments.versions == VersionsKept::Remade => 0,
        None => pieces,
    };
    report["pieces_resident"] = kept.into();
    let TimedRun { output: outcome, setup_seconds: seconds } = runner.run_timed(&work(kept))?;
    if let Some(gpu) = runner.gpu() {
        report["keys_and_matrices_s"] = seconds.into();
        report["device_peak_gib"] = (gpu.peak_bytes() as f64 / GIB).into();
        report["graphs"] = crate::bench::ops::described(&gpu.graphs());
    }
    Ok(outcome)
}

/// How many batches' versions stay on the card; an error where not even the rest fits.
fn fit(
    arguments: &Arguments,
    gpu: &CudaBackend,
    params: &Arc<Params>,
    job: &Job,
    batches: usize,
    report: &mut Value,
) -> Result<usize> {
    let (start, (free, total)) = (Instant::now(), gpu.memory()?);
    if !arguments.graphs() {
        gpu.use_graphs(false);
    }
    let footprint = job.footprint(arguments, params)?;
    let lacks = |needed| Error::DoesNotFit { needed, free };
    let most = footprint.resident(batches, free).ok_or_else(|| lacks(footprint.bytes(batches, 0)))?;
    let resident = match arguments.versions {
        VersionsKept::Auto => most,
        VersionsKept::Remade => 0,
        VersionsKept::Resident if most == batches => batches,
        VersionsKept::Resident => return Err(lacks(footprint.bytes(batches, batches))),
    };
    let bytes = footprint.bytes(batches, resident);
    eprintln!(
        "{}: {:.1} GiB of {:.1} GiB free; versions stay for {resident} of {batches} pieces of batches",
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
