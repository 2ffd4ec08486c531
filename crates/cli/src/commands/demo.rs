//! `hetal demo`: data owner and server on one machine, at full security, on real sentences.

use super::train::{command_line, manifest_value, per_iteration};
use crate::args::data::LabelledTable;
use crate::terminal::format::{bytes, seconds, security};
use crate::terminal::output::print;
use crate::terminal::progress::TrainingProgress;
use crate::{Error, Result};
use clap::ValueEnum;
use hetal_client::data::tables::{self, FileFormat};
use hetal_client::data::{Preparation, class_numbers};
use hetal_client::layout::LayoutShape;
use hetal_client::rpc::Remote;
use hetal_client::training::{Trained, TrainingOptions, TrainingRun};
use hetal_client::{KeyPlanWish, Labelled, Layout, Project, RowFormWish, TrainingData, keys};
use hetal_experiments::process::peak_rss_gib;
use hetal_extract_api::Manifest;
use hetal_extract_api::arguments::DeviceArgument;
use hetal_extract_api::extractor;
use hetal_extract_api::protocol::{Extract, Request};
use hetal_learn::{AgreementLimits, KeyPlan, Matrix, Wishes, judge, reference};
use hetal_local::{LocalServer, Needs};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The bundled features: SNIPS sentences encoded by MPNet (data/README.md).
const TRAIN: &[u8] = include_bytes!("../../../../data/snips-mpnet/train.npz");
const VALIDATION: &[u8] = include_bytes!("../../../../data/snips-mpnet/validation.npz");
const TEST: &[u8] = include_bytes!("../../../../data/snips-mpnet/test.npz");

/// The bundled test rows, relative to the repository.
const TEST_FILE: &str = "data/snips-mpnet/test.npz";

/// The number of bundled training, validation and test sentences.
const ROWS: [usize; 3] = [2048, 511, 700];

/// Rows of a batch. Batch and rate have the best validation accuracy among rates 0.5 to 8 and
/// batches of 256 to 2048 (docs/benchmarks.md).
const BATCH: usize = 512;
const RATE: f64 = 2.0;
const EPOCHS: usize = 2;
const NAME: &str = "demo";

/// Arguments of `hetal demo`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The folder for the files of both parties. Run the same command again to continue after an
    /// interruption.
    #[arg(long, default_value = "hetal-demo")]
    pub dir: PathBuf,
    /// What the server computes on; auto uses a GPU if there is one.
    #[arg(long, default_value = "auto")]
    pub engine: hetal_server::config::EngineChoice,
    /// The parameter set; only the default is secure.
    #[arg(long, default_value = "full", hide = true)]
    pub set: String,
    /// Training rows.
    #[arg(long, hide = true)]
    pub rows: Option<usize>,
    /// Features of a row.
    #[arg(long, hide = true)]
    pub columns: Option<usize>,
    /// Rows of a batch.
    #[arg(long, default_value_t = BATCH, hide = true)]
    pub batch: usize,
    /// Epochs to train for.
    #[arg(long, default_value_t = EPOCHS)]
    pub epochs: usize,
    /// Milliseconds between logits and verdict.
    #[arg(long, hide = true)]
    pub verdict_delay_ms: Option<u64>,
    /// Use sentences instead of the bundled features: a folder with SNIPS, or any table or folder
    /// of texts with labels.
    #[arg(long, value_name = "DIR", requires = "network")]
    pub from_text: Option<PathBuf>,
    /// With --from-text: the network that encodes the sentences (a folder with config.json and
    /// model.safetensors, see docs/features.md).
    #[arg(long, value_name = "DIR", requires = "from_text")]
    pub network: Option<PathBuf>,
    /// With --from-text: where the network runs.
    #[arg(long, value_enum, default_value = "auto", requires = "from_text")]
    pub device: DeviceArgument,
    /// Print one JSON object. Unless standard error is a terminal, progress is written there as
    /// lines of JSON (docs/reports.md).
    #[arg(long)]
    pub json: bool,
}

/// The rows of the demo.
struct DemoRows {
    training: TrainingData,
    test: Labelled,
    /// The manifest of features that this command computed.
    manifest: Option<Manifest>,
}

impl DemoRows {
    fn open(arguments: &Arguments) -> Result<Self> {
        match (&arguments.from_text, &arguments.network) {
            (Some(texts), Some(network)) => Self::from_text(arguments, texts, network),
            _ => Self::bundled(arguments.rows, arguments.columns),
        }
    }

    /// Encodes as many sentences as are bundled, with a network on this machine.
    fn from_text(arguments: &Arguments, texts: &Path, network: &Path) -> Result<Self> {
        let folder = arguments.dir.join("features");
        let device = arguments.device.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let options: [(&str, &OsStr); 5] = [
            ("model", network.as_os_str()),
            ("data", texts.as_os_str()),
            ("out", folder.as_os_str()),
            ("device", device.as_ref()),
            ("bad", "skip".as_ref()),
        ];
        // In one word: a path may begin like an option.
        let option = |(name, value): (&str, &OsStr)| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            word
        };
        extractor::send_request(&Request::Extract(Extract {
            arguments: options.map(option).to_vec(),
            at_most: Some([arguments.rows.unwrap_or(ROWS[0]), ROWS[1], ROWS[2]]),
        }))?;
        let manifest = Manifest::read(&folder)?;
        let part = |name: &str| -> Result<Labelled> {
            let labels = folder.join(format!("labels_{name}.npy")).display().to_string();
            let (features, options) = (folder.join(format!("features_{name}.npy")), tables::Options::default());
            let rows = LabelledTable::read(&features, Some(&labels), &options, &options)?;
            Ok(rows.named(Some(&manifest))?.into_labelled()?.first(usize::MAX, arguments.columns.unwrap_or(usize::MAX)))
        };
        let training = TrainingData::new(&part("train")?, Some(&part("val")?), &prepared())?;
        Ok(Self { training, test: part("test")?, manifest: Some(manifest) })
    }

    /// The bundled rows.
    fn bundled(rows: Option<usize>, columns: Option<usize>) -> Result<Self> {
        let part = |bytes: &[u8], rows: Option<usize>| -> Result<Labelled> {
            let bundled = |problem| tables::Error { path: "the bundled data".into(), problem };
            let table = tables::parse(FileFormat::Npz, bytes, &tables::Options::default()).map_err(bundled);
            let table = table.map_err(hetal_client::Error::from)?;
            let all = Labelled::new(table, None)?;
            Ok(all.first(rows.unwrap_or(usize::MAX), columns.unwrap_or(usize::MAX)))
        };
        let (train, validation) = (part(TRAIN, rows)?, part(VALIDATION, None)?);
        Ok(Self {
            training: TrainingData::new(&train, Some(&validation), &prepared())?,
            test: part(TEST, None)?,
            manifest: None,
        })
    }
}

/// The demo's rows are features of a sentence encoder.
fn prepared() -> Preparation {
    Preparation { from_network: true, ..Preparation::default() }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let rows = DemoRows::open(arguments)?;
    let mut progress = TrainingProgress::of_json(arguments.json);
    progress.line(&format!(
        "hetal demo: {} sentences of {} classes, as vectors of {} numbers. The data owner encrypts them, and the server \
         trains on the ciphertexts.\n\
         You can interrupt the demo: the same command continues it. Files: {}",
        rows.training.training.rows(),
        rows.training.classes.len(),
        rows.training.features(),
        arguments.dir.display()
    ));
    let mut project = Project::open(&arguments.dir.join("owner"), Some(&arguments.set))?;
    let layout = layout(&project, &rows.training, arguments.batch)?;
    let prepared_gib = check_resources(arguments, &layout, &rows.training, &mut progress)?;
    let server = LocalServer::start(hetal_local::LocalServerOptions {
        folder: arguments.dir.join("server"),
        set: &arguments.set,
        engine: arguments.engine,
        prepared_gib,
    })?;
    let remote = Remote::connect(server.address()).map_err(hetal_client::Error::from)?;
    let mut options = TrainingOptions::new(NAME);
    options.replace = true;
    // The GPU belongs to this process, which may not be able to use it again after a failure.
    options.leave_resting = true;
    options.verify = true;
    options.row_form = RowFormWish::LOCAL;
    options.key_plan = KeyPlanWish::LOCAL;
    options.extraction = rows.manifest.as_ref().map(manifest_value).transpose()?;
    options.command = Some(command_line());
    options.wishes = Wishes {
        batch: Some(arguments.batch),
        rate: Some(RATE),
        max_epochs: Some(arguments.epochs),
        ..Wishes::default()
    };
    if let Some(ms) = arguments.verdict_delay_ms {
        options.verdict_delay = Duration::from_millis(ms);
    }
    let mut show = |step| progress.show(step);
    let trained = TrainingRun::open(&mut project, &remote, &rows.training, &options, &mut show)?.run(&mut show);
    drop(progress);
    let trained = trained.map_err(|error| with_device_fault(error, &server))?;
    server.stop();
    let wall = start.elapsed().as_secs_f64().max(trained.seconds.all);
    let accuracies = Accuracies::new(&trained, &rows)?;
    let results = Results { arguments, rows: &rows, layout: &layout, trained: &trained, accuracies, wall };
    print(arguments.json, &results.to_json(), &results.text());
    Ok(())
}

fn layout(project: &Project, rows: &TrainingData, batch: usize) -> Result<Layout> {
    let range = AgreementLimits::default().defaults.range;
    let (features, classes, weighted) = (rows.features(), rows.classes.len(), rows.is_weighted());
    Ok(Layout::new(
        keys::params(project)?,
        LayoutShape { batch, features, classes, range, weighted, key_plan: KeyPlan::Fast },
    )?)
}

/// Checks disk space and memory. Returns the GiB of prepared batches that the server may keep.
fn check_resources(
    arguments: &Arguments,
    layout: &Layout,
    rows: &TrainingData,
    progress: &mut TrainingProgress,
) -> Result<f64> {
    let (needs, available) = (Needs::new(layout, rows)?, Needs::available_gib());
    needs.check_disk(&arguments.dir)?;
    if let Err(error) = needs.check_memory(available) {
        progress.line(&format!("note: the system may kill the demo: {error}"));
    }
    Ok(needs.prepared_gib(available))
}

/// Adds what the server knows about a failed GPU to an error of the client.
fn with_device_fault(error: hetal_client::Error, server: &LocalServer) -> Error {
    match error {
        hetal_client::Error::Resting => Error::GpuFailed { reason: server.device_fault() },
        other => other.into(),
    }
}

/// Accuracies on the test rows.
struct Accuracies {
    encrypted: f64,
    /// The accuracy of the plaintext reference, if it was computed.
    plaintext: Option<f64>,
}

impl Accuracies {
    fn new(trained: &Trained, rows: &DemoRows) -> Result<Self> {
        let DemoRows { training, test, .. } = rows;
        let labels = class_numbers(&test.labels, &training.classes)?;
        let plaintext = |weights: &Matrix| -> Result<f64> {
            let folded = training.normalisation.fold(weights)?;
            Ok(judge::accuracy(&reference::logits(&test.features, &folded)?, &labels)?)
        };
        Ok(Self {
            encrypted: judge::accuracy(&trained.model.logits(&test.features)?, &labels)?,
            plaintext: trained.reference.as_ref().map(plaintext).transpose()?,
        })
    }
}

/// Everything that the demo reports.
struct Results<'a> {
    arguments: &'a Arguments,
    rows: &'a DemoRows,
    layout: &'a Layout,
    trained: &'a Trained,
    accuracies: Accuracies,
    /// Seconds of the whole demo.
    wall: f64,
}

impl Results<'_> {
    fn to_json(&self) -> Value {
        let Self { layout, trained, accuracies, wall, .. } = self;
        json!({
            "test_accuracy": accuracies.encrypted,
            "twin_accuracy": accuracies.plaintext,
            "validation_accuracy": trained.model.training.validation_accuracy,
            "iterations": trained.model.training.iterations,
            "epochs": trained.model.training.epochs,
            "checks": trained.model.training.checks(),
            "security_bits": layout.params.security().bits(),
            "wall_s": wall,
            "key_s": trained.key_seconds,
            "training_s": trained.seconds.training,
            "seconds_per_iteration": per_iteration(trained),
            "peak_rss_gib": peak_rss_gib(),
            "key_bytes": trained.key_bytes,
            "upload_bytes": trained.row_bytes,
            "weights_relative_difference": trained.difference_bound(),
            "model_path": trained.path,
            "report_path": trained.report,
        })
    }

    fn text(&self) -> String {
        let Self { arguments, rows, trained, accuracies, .. } = self;
        let owner = arguments.dir.join("owner");
        let plaintext = accuracies.plaintext.map_or_else(|| "unknown".to_owned(), |a| format!("{:.2} %", 100.0 * a));
        format!(
            "\n\
             test accuracy      {:.2} %   (plaintext reference {plaintext}; {} test sentences)\n\
             weights            relative difference from the plaintext reference at most {:.1e}\n\
             {}\
             \n\
             {}\
             files of the server: {}\n\
             files of the owner (secret key, model): {}\n\
             model: {} (private; `hetal model export` writes a model that may be published)\n\
             {}\
             next: {} predict --dir {} --model {NAME} {}",
            100.0 * accuracies.encrypted,
            rows.test.features.rows(),
            trained.difference_bound().unwrap_or(f64::NAN),
            self.costs(),
            self.leakage(),
            arguments.dir.join("server").display(),
            owner.display(),
            trained.path.display(),
            trained.report.as_ref().map_or_else(String::new, |page| format!("report: {} (private)\n", page.display())),
            // The name under which this program was called, so that the line can be copied.
            std::env::args().next().filter(|name| name.ends_with("hetal")).unwrap_or_else(|| "hetal".to_owned()),
            owner.display(),
            match (rows.manifest.is_some(), Path::new(TEST_FILE).exists()) {
                (true, _) => "--text \"play some jazz\"".to_owned(),
                (false, true) => format!("--features {TEST_FILE}"),
                (false, false) => "--features FILE".to_owned(),
            },
        )
    }

    /// The lines about time, security, bytes and memory.
    fn costs(&self) -> String {
        let Self { layout, trained, .. } = self;
        format!(
            "training           {} iterations in {} epochs, {} each\n\
             security           {}\n\
             sent               keys {} (made in {}), rows {}\n\
             total              {}, at most {:.1} GiB of memory\n",
            trained.model.training.iterations,
            trained.model.training.epochs,
            per_iteration(trained).map_or_else(|| "unknown time".to_owned(), seconds),
            security(&layout.params),
            bytes(trained.key_bytes),
            seconds(trained.key_seconds),
            bytes(trained.row_bytes),
            seconds(self.wall),
            peak_rss_gib(),
        )
    }

    /// The lines about what the server saw.
    fn leakage(&self) -> String {
        let Self { rows, trained, .. } = self;
        format!(
            "The server saw {} of encrypted batches, their shape ({} rows of {} numbers, {} classes), keys that cannot \
             decrypt,\n\
             {} verdicts of two bits each, and the times of all messages. It never saw a sentence, a vector, a label, a \
             weight or an accuracy.\n",
            bytes(trained.row_bytes),
            rows.training.training.rows(),
            rows.training.features(),
            rows.training.classes.len(),
            trained.rounds.len(),
        )
    }
}
