//! `hetal bench train`: iterations of encrypted training beside exact training, on random features of a benchmark's shape or
//! on real ones, by our circuit and by the paper's.

use crate::lab::{ClearLab, EngineKind, Lab, Work, run as run_on};
use crate::table::cell;
use crate::{Error, Result, machine, npy, progress};
use hetal_circuits::clear::{Books, Clear, Keys, Kind};
use hetal_ckks::{Params, bytes};
use hetal_learn::agreement::{self, PRESETS, Preset};
use hetal_learn::nesterov::Momentum;
use hetal_learn::paper::trainer::{self as paper_trainer, PaperBatch};
use hetal_learn::paper::{Blocks, PaperTrainer};
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{self, Model, Stage, Trainer};
use hetal_learn::twin::{self, Twin};
use hetal_learn::{Geometry, Ledger, Matrix, judge, packing};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What `hetal bench train` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The benchmark: mnist, cifar10, facemask, dermamnist, snips, or one of them with -large.
    #[arg(long, default_value = "snips")]
    pub shape: String,
    /// Where iterations run.
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// Whose circuit runs there; the other one is counted in the clear.
    #[arg(long, value_enum, default_value = "ours")]
    pub circuit: Circuit,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// A folder with features_{train,test}.npy and labels_{train,test}.npy, instead of random features.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Training rows of it that are used.
    #[arg(long, default_value_t = 2048)]
    pub rows: usize,
    /// How many iterations.
    #[arg(long, default_value_t = 1)]
    pub iterations: usize,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
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

/// Runs the command: the chosen circuit on the chosen engine, the other one in the clear.
pub fn run(arguments: &Arguments) -> Result<()> {
    let data = match &arguments.data {
        Some(path) => Data::Folder { path: path.clone(), rows: arguments.rows },
        None => Data::Random,
    };
    let on = |circuit| if circuit == arguments.circuit { arguments.engine } else { EngineKind::Clear };
    let report = |circuit| report(&arguments.shape, &data, on(circuit), circuit, &arguments.set, arguments.iterations);
    let objects = vec![report(Circuit::Ours)?, report(Circuit::Paper)?];
    if arguments.json {
        println!("{}", Value::from(objects));
    } else {
        print_beside(&objects);
    }
    Ok(())
}

/// Prints objects with the same fields as columns.
fn print_beside(objects: &[Value]) {
    let Some(first) = objects.first().and_then(Value::as_object) else { return };
    for name in first.keys() {
        let values: String = objects.iter().map(|object| format!("{:24}", cell(&object[name]))).collect();
        println!("{name:36} {}", values.trim_end());
    }
}

/// Logits are bounded by this in both directions.
const RANGE: f64 = 128.0;
/// The momentum is bounded by 1 where it is refreshed.
const LOG_MOMENTUM_BOUND: u32 = 0;
/// Weights are bounded by 8 where the paper's circuit bootstraps them.
const LOG_WEIGHT_BOUND: u32 = 3;

/// Where rows come from.
pub enum Data {
    /// One batch around random centres.
    Random,
    /// `features_{train,test}.npy` and `labels_{train,test}.npy` of a folder, the first `rows` of the former.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Training rows used.
        rows: usize,
    },
}

/// Features and their labels.
struct Rows {
    features: Matrix,
    labels: Vec<usize>,
}

/// The data of one shape: batches, which iterations take in turn.
struct Job {
    preset: &'static Preset,
    circuit: Circuit,
    batches: Vec<Rows>,
    test: Option<Rows>,
    features: usize,
    slots: usize,
    top_level: usize,
    iterations: usize,
}

impl Job {
    fn new(shape: &str, data: &Data, circuit: Circuit, params: &Params, iterations: usize) -> Result<Self> {
        let preset = Preset::named(shape)
            .ok_or_else(|| Error::Shape { name: shape.to_owned(), known: PRESETS.map(|p| p.name).join(", ") })?;
        let (batches, test) = match data {
            Data::Random => (vec![clusters(preset)], None),
            Data::Folder { path, rows } => load(path, *rows, preset)?,
        };
        let features = batches.first().map_or(preset.features, |b| b.features.columns());
        let (slots, top_level) = (params.slots(), params.top_level());
        Ok(Self { preset, circuit, batches, test, features, slots, top_level, iterations })
    }

    fn geometry(&self) -> Result<Geometry> {
        Ok(Geometry::new(self.slots, self.preset.batch, self.features, self.preset.classes)?)
    }

    fn constants(&self) -> Result<Constants> {
        Ok(Constants::built_in(self.preset.classes, RANGE)?)
    }

    fn paper(&self) -> Result<PaperTrainer> {
        Ok(PaperTrainer::new(self.slots, self.preset.batch, self.preset.classes, LOG_WEIGHT_BOUND)?)
    }

    fn initial(&self) -> Matrix {
        agreement::initial_weights(self.preset.classes, self.features, 1)
    }

    /// Levels an iteration takes, one after the other.
    fn levels(&self) -> Result<usize> {
        Ok(match self.circuit {
            Circuit::Ours => self.constants()?.depth() + Ledger::DEPTH,
            Circuit::Paper => self.paper()?.levels(),
        })
    }

    /// Our iterations; the weights and refreshes.
    fn ours<L: Lab>(&self, lab: &L, clock: &mut Clock<'_>) -> Result<(Matrix, usize)> {
        let (engine, g, ledger) = (lab.engine(), self.geometry()?, Ledger::lowest());
        let trainer = Trainer::new(engine, g, ledger, self.constants()?, LOG_MOMENTUM_BOUND)?;
        let seal_batch = |rows: &Rows| -> Result<_> {
            let blocks = packing::features(&g, &rows.features)?;
            let blocks: Vec<_> =
                blocks.iter().map(|block| lab.seal(block, ledger.fresh_features())).collect::<Result<_>>()?;
            let labels = lab.seal(&packing::labels(&g, &rows.labels)?, ledger.probabilities())?;
            Ok(trainer.batch(engine, &blocks, labels, rows.features.rows())?)
        };
        let batches: Vec<_> = self.batches.iter().map(seal_batch).collect::<Result<_>>()?;
        let first = lab.seal(&packing::weights(&g, &self.initial())?, ledger.weights())?;
        let mut model = Model::new(first, Momentum::Nesterov);
        let mut refreshes = 0;
        lab.settle()?;
        clock.start();
        for k in 0..self.iterations {
            let mut ended = |stage| clock.ended(stage, lab.settle());
            model = trainer.step_observed(engine, &model, &batches[k % batches.len()], self.preset.rate, &mut ended)?;
            clock.iterated();
            if trainer.needs_refresh(&model) {
                model = trainer.refresh(engine, &model)?;
                refreshes += 1;
            }
        }
        lab.settle()?;
        clock.stop()?;
        Ok((packing::unpack_weights(&g, &lab.open(&model.weights)?)?, refreshes))
    }

    /// The paper's iterations; the weights.
    fn paper_s<L: Lab>(&self, lab: &L, clock: &mut Clock<'_>) -> Result<Matrix> {
        let (engine, trainer) = (lab.engine(), self.paper()?);
        let seal = |blocks: &Blocks<Vec<_>>| -> Result<_> {
            let row = |row: &Vec<Vec<_>>| row.iter().map(|block| lab.seal(block, self.top_level)).collect();
            Ok(Blocks::new(trainer.unit(), blocks.rows().iter().map(row).collect::<Result<_>>()?)?)
        };
        let seal_batch = |rows: &Rows| -> Result<_> {
            let (blocks, labels) = trainer.pack(&rows.features, &rows.labels)?;
            let labels = lab.seal(&labels, self.top_level)?;
            Ok(PaperBatch { features: seal(&blocks)?, labels, rows: rows.features.rows() })
        };
        let batches: Vec<_> = self.batches.iter().map(seal_batch).collect::<Result<_>>()?;
        let mut model = trainer.model(seal(&trainer.pack_weights(&self.initial())?)?, Momentum::Nesterov);
        lab.settle()?;
        clock.start();
        for k in 0..self.iterations {
            let mut ended = |stage| clock.ended(stage, lab.settle());
            model = trainer.step_observed(engine, &model, &batches[k % batches.len()], self.preset.rate, &mut ended)?;
            clock.iterated();
        }
        clock.stop()?;
        let row = |row: &Vec<_>| row.iter().map(|block| lab.open(block)).collect::<Result<_>>();
        let opened: Vec<Vec<_>> = model.weights.rows().iter().map(row).collect::<Result<_>>()?;
        Ok(Blocks::new(trainer.unit(), opened)?.unpack(self.preset.classes, self.features + 1))
    }
}

impl Work for Job {
    type Output = Outcome;

    fn needs(&self) -> Result<Keys> {
        Ok(match self.circuit {
            Circuit::Ours => trainer::keys(
                self.geometry()?,
                Ledger::lowest(),
                self.constants()?,
                LOG_MOMENTUM_BOUND,
                self.top_level,
            )?,
            Circuit::Paper => paper_trainer::keys(&self.paper()?, self.features, self.top_level, self.iterations)?,
        })
    }

    fn run<L: Lab>(&self, lab: &L) -> Result<Outcome> {
        let bar = progress::bar(self.iterations as u64);
        bar.set_message(format!("iterations ({})", self.circuit.name()));
        let mut clock = Clock::new(&bar);
        let (weights, refreshes) = match self.circuit {
            Circuit::Ours => self.ours(lab, &mut clock)?,
            Circuit::Paper => (self.paper_s(lab, &mut clock)?, 0),
        };
        let (seconds, matrix_share) = (clock.total / self.iterations.max(1) as f64, clock.matrices / clock.total);
        bar.finish_and_clear();
        let mut twin = Twin::new(self.initial(), Momentum::Nesterov);
        for k in 0..self.iterations {
            let rows = &self.batches[k % self.batches.len()];
            twin.step(&rows.features, &rows.labels, self.preset.rate, softmax::exact)?;
        }
        let difference = weights.max_difference(twin.weights()) / twin.weights().max_magnitude();
        let test = self.test.as_ref().map(|rows| compare(rows, &weights, twin.weights())).transpose()?;
        Ok(Outcome { seconds, matrix_share, refreshes, difference, test })
    }
}

struct Outcome {
    seconds: f64,
    matrix_share: f64,
    refreshes: usize,
    difference: f64,
    test: Option<Comparison>,
}

/// Seconds of iterations, and of their matrix products.
struct Clock<'a> {
    bar: &'a indicatif::ProgressBar,
    start: Instant,
    last: Instant,
    total: f64,
    matrices: f64,
    failed: Option<Error>,
}

impl<'a> Clock<'a> {
    fn new(bar: &'a indicatif::ProgressBar) -> Self {
        let now = Instant::now();
        Self { bar, start: now, last: now, total: 0.0, matrices: 0.0, failed: None }
    }

    fn start(&mut self) {
        (self.start, self.last) = (Instant::now(), Instant::now());
    }

    /// A stage ended and its queued work was waited for.
    fn ended(&mut self, stage: Stage, settled: Result<()>) {
        self.failed = self.failed.take().or(settled.err());
        if stage.is_matrix_product() {
            self.matrices += self.last.elapsed().as_secs_f64();
        }
        self.last = Instant::now();
    }

    fn iterated(&self) {
        self.bar.inc(1);
    }

    fn stop(&mut self) -> Result<()> {
        self.total = self.start.elapsed().as_secs_f64();
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Predictions of the trained classifier beside its twin's.
struct Comparison {
    accuracy: f64,
    twin_accuracy: f64,
    /// Share of rows that the two classify differently.
    disagreement: f64,
}

fn compare(rows: &Rows, weights: &Matrix, twin: &Matrix) -> Result<Comparison> {
    let (ours, theirs) = (twin::logits(&rows.features, weights)?, twin::logits(&rows.features, twin)?);
    let count = rows.features.rows();
    let different = (0..count).filter(|&i| judge::predicted(ours.row(i)) != judge::predicted(theirs.row(i))).count();
    Ok(Comparison {
        accuracy: judge::accuracy(&ours, &rows.labels)?,
        twin_accuracy: judge::accuracy(&theirs, &rows.labels)?,
        disagreement: different as f64 / count.max(1) as f64,
    })
}

/// The first `rows` training rows in batches, and the test rows.
fn load(path: &Path, rows: usize, preset: &Preset) -> Result<(Vec<Rows>, Option<Rows>)> {
    let set = |name: &str| npy::dataset(path, name, preset.classes);
    let (train, test) = (set("train")?, set("test")?);
    let rows = rows.min(train.rows());
    let part = |start: usize| {
        let range = start..rows.min(start + preset.batch);
        Rows { features: train.features().slice(range.clone()), labels: train.labels()[range].to_vec() }
    };
    let batches = (0..rows).step_by(preset.batch).map(part).collect();
    Ok((batches, Some(Rows { features: test.features().clone(), labels: test.labels().to_vec() })))
}

/// Runs iterations of one circuit and describes them as a flat object. They are counted in the clear in any case.
pub fn report(
    shape: &str,
    data: &Data,
    kind: EngineKind,
    circuit: Circuit,
    set: &str,
    iterations: usize,
) -> Result<Value> {
    let params = Params::named(set)?;
    let job = Job::new(shape, data, circuit, &params, iterations)?;
    let lab = ClearLab(Clear::new(params.slots(), params.top_level()));
    let clear = job.run(&lab)?;
    let outcome = if kind == EngineKind::Clear { clear } else { run_on(&job, kind, set)? };
    describe(&job, &outcome, &lab.0.books(), kind, &params)
}

fn describe(job: &Job, outcome: &Outcome, books: &Books, kind: EngineKind, params: &Params) -> Result<Value> {
    let preset = job.preset;
    // The row-shifted versions of each batch are made once, outside the iterations: counted apart.
    let versions = match job.circuit {
        Circuit::Ours => {
            let g = job.geometry()?;
            2 * job.batches.len() * g.blocks() * (g.padded_classes() - 1)
        }
        Circuit::Paper => 0,
    };
    let per_iteration = |count: u64| count as f64 / job.iterations.max(1) as f64;
    let validation = preset.validation_rows.div_ceil(preset.batch) as u64;
    let mut report = json!({
        "shape": preset.name,
        "engine": kind.name(),
        "circuit": job.circuit.name(),
        "set": params.name(),
        "rows": preset.batch,
        "features": job.features,
        "classes": preset.classes,
        "iterations": job.iterations,
        "bootstraps_per_iteration": per_iteration(books.count(Kind::Bootstrap) - outcome.refreshes as u64),
        "refreshes": outcome.refreshes,
        "key_switches_per_iteration": per_iteration(books.key_switches() - versions as u64),
        "relinearisations_per_iteration": per_iteration(books.count(Kind::Relinearisation)),
        "products_per_iteration": per_iteration(books.count(Kind::Product)),
        "levels_per_iteration": job.levels()?,
        "seconds_per_iteration": outcome.seconds,
        "matrix_products_share": outcome.matrix_share,
        "validation_bytes_per_epoch": validation * bytes::ciphertext_len(params, params.limbs(0)),
        "weights_relative_difference": outcome.difference,
        "peak_rss_gib": machine::peak_rss_gib(),
    });
    if let Some(test) = &outcome.test {
        report["test_accuracy"] = test.accuracy.into();
        report["twin_accuracy"] = test.twin_accuracy.into();
        report["prediction_disagreement"] = test.disagreement.into();
    }
    Ok(report)
}

/// Rows of norm about 1 around one centre per class.
fn clusters(preset: &Preset) -> Rows {
    let mut state = 5u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 11
    };
    let size = 1.0 / (preset.features as f64).sqrt();
    let mut signed = || next() as f64 / (1u64 << 52) as f64 - 1.0;
    let centres = Matrix::from_fn(preset.classes, preset.features, |_, _| size * signed());
    let labels: Vec<usize> = (0..preset.batch).map(|i| (i * 7 + i / 3) % preset.classes).collect();
    let x = Matrix::from_fn(preset.batch, preset.features, |i, h| centres[(labels[i], h)] + size * signed());
    Rows { features: x, labels }
}
