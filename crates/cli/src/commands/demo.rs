//! `hetal demo`: both parties on one machine, at full security, on real sentences.

use super::steps::Steps;
use super::train::{carried, per_iteration};
use super::{bytes, data, print, seconds, security};
use crate::machine::{self, peak_rss_gib};
use crate::{Error, Result, extract};
use clap::ValueEnum;
use hetal_client::files::{Format, parse_table};
use hetal_client::layout::server_bytes;
use hetal_client::remote::{Address, Credentials, Remote};
use hetal_client::task::ROW_NORM;
use hetal_client::training::{Options, Trained, Training};
use hetal_client::{Labelled, Layout, Project, Task, keys, task};
use hetal_extract_api::Manifest;
use hetal_extract_api::arguments::DeviceArgument;
use hetal_extract_api::protocol::{Extract, Request};
use hetal_learn::{Limits, Matrix, Wishes, judge, twin};
use hetal_server::tenants::{Fingerprint, Tenant, TenantConfig};
use hetal_server::{Config, Running};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The bundled rows: SNIPS through MPNet, see data/README.md.
const TRAIN: &[u8] = include_bytes!("../../../../data/snips-mpnet/train.npz");
const VALIDATION: &[u8] = include_bytes!("../../../../data/snips-mpnet/validation.npz");
const TEST: &[u8] = include_bytes!("../../../../data/snips-mpnet/test.npz");

/// Where the last of them are, seen from the repository.
const TEST_FILE: &str = "data/snips-mpnet/test.npz";

/// Sentences of each part, as many as are bundled.
const ROWS: [usize; 3] = [2048, 511, 700];

/// Chosen by validation accuracy among rates 0.5 to 8 and batches of 256 to 2048 (docs/benchmarks.md).
const BATCH: usize = 512;
const RATE: f64 = 2.0;
const EPOCHS: usize = 2;
const NAME: &str = "demo";
/// The most that the demo should take.
const MEMORY_GIB: f64 = 13.0;
const GIB: f64 = (1u64 << 30) as f64;

/// Arguments of `hetal demo`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Where both parties keep their files. The same command goes on where it was interrupted.
    #[arg(long, default_value = "hetal-demo")]
    pub dir: PathBuf,
    /// What the server computes on: auto takes a GPU if there is one.
    #[arg(long, default_value = "auto")]
    pub engine: hetal_server::config::Engine,
    /// The parameter set; another than the default protects nothing.
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
    /// Milliseconds from logits to verdict.
    #[arg(long, hide = true)]
    pub verdict_delay_ms: Option<u64>,
    /// Start from sentences instead of the bundled features: a folder with SNIPS, or any table or folder of texts with labels.
    #[arg(long, value_name = "DIR", requires = "network")]
    pub from_text: Option<PathBuf>,
    /// With --from-text: the network that reads them (a folder with config.json and model.safetensors, see docs/features.md).
    #[arg(long, value_name = "DIR", requires = "from_text")]
    pub network: Option<PathBuf>,
    /// With --from-text: where the network runs.
    #[arg(long, value_enum, default_value = "auto", requires = "from_text")]
    pub device: DeviceArgument,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The rows of the demo.
struct Bundle {
    task: Task,
    test: Labelled,
    /// How they were made, where that was here.
    manifest: Option<Manifest>,
}

impl Bundle {
    fn open(arguments: &Arguments) -> Result<Self> {
        match (&arguments.from_text, &arguments.network) {
            (Some(texts), Some(network)) => Self::from_text(arguments, texts, network),
            _ => Self::new(arguments.rows, arguments.columns),
        }
    }

    /// As many sentences as are bundled, through a network on this machine.
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
        extract::carry_out(&Request::Extract(Extract {
            arguments: options.map(option).to_vec(),
            at_most: Some([arguments.rows.unwrap_or(ROWS[0]), ROWS[1], ROWS[2]]),
        }))?;
        let manifest = Manifest::read(&folder)?;
        let part = |name: &str| -> Result<Labelled> {
            let labels = folder.join(format!("labels_{name}.npy")).display().to_string();
            let rows = data::labelled(&folder.join(format!("features_{name}.npy")), Some(&labels), None)?;
            Ok(data::named(rows, Some(&manifest))?.first(usize::MAX, arguments.columns.unwrap_or(usize::MAX)))
        };
        let task = Task::new(&part("train")?, Some(&part("val")?), ROW_NORM)?;
        Ok(Self { task, test: part("test")?, manifest: Some(manifest) })
    }

    fn new(rows: Option<usize>, columns: Option<usize>) -> Result<Self> {
        let part = |bytes: &[u8], rows: Option<usize>| -> Result<Labelled> {
            let table = parse_table(Format::Npz, bytes, None)
                .map_err(|problem| hetal_client::Error::File { path: "the bundled data".into(), problem })?;
            let all = Labelled::new(table, None)?;
            Ok(all.first(rows.unwrap_or(usize::MAX), columns.unwrap_or(usize::MAX)))
        };
        let (train, validation) = (part(TRAIN, rows)?, part(VALIDATION, None)?);
        Ok(Self { task: Task::new(&train, Some(&validation), ROW_NORM)?, test: part(TEST, None)?, manifest: None })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let bundle = Bundle::open(arguments)?;
    let (rows, classes) = (bundle.task.training.rows(), bundle.task.classes.len());
    let mut steps = Steps::new();
    steps.line(&format!(
        "hetal demo: {rows} sentences of {classes} kinds as vectors of {} numbers. Their owner encrypts them, a server trains on them blindly.\n\
         Interrupt it as you like: the same command goes on. Files: {}",
        bundle.task.features(),
        arguments.dir.display()
    ));
    let mut project = Project::open(&arguments.dir.join("owner"), Some(&arguments.set))?;
    let layout = layout(&project, &bundle.task, arguments.batch)?;
    let prepared_gib = room(arguments, &project, &layout, &bundle.task, &mut steps)?;
    let (server, address) = embedded(arguments, prepared_gib)?;
    let remote = Remote::connect(&address).map_err(hetal_client::Error::from)?;
    let mut options = Options::new(NAME);
    options.replace = true;
    // This very process has the card, and may not be able to use it again.
    options.leave_resting = true;
    options.extraction = bundle.manifest.as_ref().map(carried).transpose()?;
    options.wishes = Wishes {
        batch: Some(arguments.batch),
        rate: Some(RATE),
        max_epochs: Some(arguments.epochs),
        ..Wishes::default()
    };
    if let Some(ms) = arguments.verdict_delay_ms {
        options.verdict_delay = Duration::from_millis(ms);
    }
    let mut show = |step| steps.show(step);
    let trained = Training::open(&mut project, &remote, &bundle.task, &options, &mut show)?.run(&mut show);
    drop(steps);
    let trained = trained.map_err(|error| told(error, &server))?;
    server.stop();
    let wall = start.elapsed().as_secs_f64().max(trained.seconds.all);
    let (ours, theirs) = accuracies(&trained, &bundle)?;
    let bits = layout.params.security().bits();
    print(
        arguments.json,
        &report(&trained, ours, theirs, bits, wall),
        &text(&trained, &bundle, ours, theirs, &layout, wall, arguments),
    );
    Ok(())
}

fn layout(project: &Project, task: &Task, batch: usize) -> Result<Layout> {
    let range = Limits::default().defaults.range;
    Ok(Layout::new(keys::params(project)?, batch, task.features(), task.classes.len(), range)?)
}

/// Checks that there is room on the disk, and says how many GiB of prepared batches the server may keep.
fn room(arguments: &Arguments, project: &Project, layout: &Layout, task: &Task, steps: &mut Steps) -> Result<f64> {
    let keys = layout.keys()?;
    let batches = layout.pieces(task.training.rows()).len() as u64;
    let validation = task.validation.rows().div_ceil(layout.geometry().rows()) as u64;
    let rows = batches * layout.batch_bytes() + validation * layout.feature_bytes();
    // Each of the two parties has its own, and there is some work on the way.
    let needs = 2 * (layout.key_bytes(&keys)? + rows) + (1 << 30);
    let there = folder_bytes(&arguments.dir);
    let free = machine::free_disk_bytes(project.root()).unwrap_or(u64::MAX);
    if needs.saturating_sub(there) > free {
        return Err(Error::Disk { folder: arguments.dir.clone(), needs: bytes(needs - there), free: bytes(free) });
    }
    let base = server_bytes(&layout.params, &keys) as f64 / GIB;
    let available = machine::available_memory_bytes().map_or(MEMORY_GIB, |bytes| bytes as f64 / GIB);
    if available < base {
        steps.line(&format!(
            "note: this takes some {base:.0} GiB of memory, {available:.1} GiB are free: close other programs, or expect the system to end it"
        ));
    }
    Ok((available.min(MEMORY_GIB) - base).max(0.0))
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A server in this process, with a certificate of its own and one tenant whose token no one else ever sees.
fn embedded(arguments: &Arguments, prepared_gib: f64) -> Result<(Running, Address)> {
    let mut token = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *token).map_err(|e| Error::Randomness { reason: e.to_string() })?;
    let token = Zeroizing::new(token.iter().map(|b| format!("{b:02x}")).collect::<String>());
    let tenant = TenantConfig {
        name: Tenant::try_from("demo".to_owned())?,
        token: Some(Fingerprint::of(token.as_bytes())),
        certificate: None,
        expires: None,
    };
    let running = hetal_server::start(Config {
        folder: arguments.dir.join("server"),
        address: ([127, 0, 0, 1], 0).into(),
        tenants: vec![tenant],
        sets: vec![arguments.set.clone()],
        allow_insecure: arguments.set.starts_with("insecure-"),
        engine: arguments.engine,
        prepared_gib,
        ..Config::default()
    })?;
    let authority = running.authority().map(Path::to_owned).unwrap_or_default();
    let authorities = std::fs::read(&authority)
        .map_err(|e| Error::File { path: authority.display().to_string(), reason: e.to_string() })?;
    let server = format!("127.0.0.1:{}", running.address().port());
    let persistence = Duration::from_secs(30);
    Ok((running, Address { server, authorities, credentials: Credentials::Token(token), persistence }))
}

/// An error of the owner's, where the server knows more about it.
fn told(error: hetal_client::Error, server: &Running) -> Error {
    match error {
        hetal_client::Error::Resting => Error::CardFailed { reason: server.device_fault() },
        other => other.into(),
    }
}

/// Shares of the test rows that the decrypted model and exact training get right.
fn accuracies(trained: &Trained, bundle: &Bundle) -> Result<(f64, Option<f64>)> {
    let labels = task::numbers(&bundle.test.labels, &bundle.task.classes)?;
    let ours = judge::accuracy(&trained.model.logits(&bundle.test.features)?, &labels)?;
    let theirs = |weights: &Matrix| -> Result<f64> {
        let folded = bundle.task.normalisation.fold(weights)?;
        Ok(judge::accuracy(&twin::logits(&bundle.test.features, &folded)?, &labels)?)
    };
    Ok((ours, trained.twin.as_ref().map(theirs).transpose()?))
}

fn report(trained: &Trained, ours: f64, theirs: Option<f64>, security_bits: f64, wall: f64) -> Value {
    json!({
        "test_accuracy": ours,
        "twin_accuracy": theirs,
        "validation_accuracy": trained.model.training.validation_accuracy,
        "iterations": trained.model.training.iterations,
        "epochs": trained.model.training.epochs,
        "security_bits": security_bits,
        "wall_s": wall,
        "key_s": trained.key_seconds,
        "training_s": trained.seconds.training,
        "seconds_per_iteration": per_iteration(trained),
        "peak_rss_gib": peak_rss_gib(),
        "key_bytes": trained.key_bytes,
        "upload_bytes": trained.row_bytes,
        "weights_relative_difference": trained.difference,
        "model_path": trained.path,
    })
}

fn text(
    trained: &Trained,
    bundle: &Bundle,
    ours: f64,
    theirs: Option<f64>,
    layout: &Layout,
    wall: f64,
    arguments: &Arguments,
) -> String {
    let training = &trained.model.training;
    let theirs = theirs.map_or_else(|| "unknown".to_owned(), |a| format!("{:.2} %", 100.0 * a));
    let verdicts = trained.rounds.len();
    format!(
        "\n\
         test accuracy      {:.2} %   (plaintext twin {theirs}; {} sentences neither saw)\n\
         weights            differ from the twin's by {:.1e} of the largest\n\
         training           {} iterations in {} epochs, {} each\n\
         security           {}\n\
         sent               keys {} (made in {}), rows {}\n\
         took               {}, at most {:.1} GiB of memory\n\
         \n\
         what the server saw: {} of encrypted batches, and that they are {} rows of {} numbers in {} classes; keys that cannot decrypt;\n\
         {verdicts} verdicts of two bits each; when things happened. Never a sentence, a vector, a label, a weight or an accuracy.\n\
         its files: {}   the owner's (secret key, model): {}\n\
         model: {} (private: `hetal model export` writes what may be published)\n\
         next: {} predict --dir {} --model {NAME} {}",
        100.0 * ours,
        bundle.test.features.rows(),
        trained.difference.unwrap_or(f64::NAN),
        training.iterations,
        training.epochs,
        per_iteration(trained).map_or_else(|| "unknown time".to_owned(), seconds),
        security(&layout.params),
        bytes(trained.key_bytes),
        seconds(trained.key_seconds),
        bytes(trained.row_bytes),
        seconds(wall),
        peak_rss_gib(),
        bytes(trained.row_bytes),
        bundle.task.training.rows(),
        bundle.task.features(),
        bundle.task.classes.len(),
        arguments.dir.join("server").display(),
        arguments.dir.join("owner").display(),
        trained.path.display(),
        // As it was called, so that the line can be given as it is.
        std::env::args().next().unwrap_or_else(|| "hetal".to_owned()),
        arguments.dir.join("owner").display(),
        match (bundle.manifest.is_some(), Path::new(TEST_FILE).exists()) {
            (true, _) => "--text \"play some jazz\"".to_owned(),
            (false, true) => format!("--features {TEST_FILE}"),
            (false, false) => "--features FILE".to_owned(),
        },
    )
}
