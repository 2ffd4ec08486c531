//! `hetal extract`: raw pictures or sentences to files of features.

use crate::{Error, Result, commands, progress};
use hetal_client::rpc::sanitize_terminal;
use hetal_features::dataset::{Columns, Dataset, Format};
use hetal_features::device::Place;
use hetal_features::hub::{ADDRESS, Hub, PATIENCE, Pin, Step, WEIGHTS};
use hetal_features::job::{Job, Output, Policy};
use hetal_features::{Extractor, Manifest};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What `hetal extract` is told.
#[derive(clap::Args)]
pub struct Arguments {
    /// The network: a folder with config.json and model.safetensors, an .onnx file, or a name on the hub (owner/name).
    #[arg(long)]
    pub model: String,
    /// The data set: a folder, a table or an archive.
    #[arg(long)]
    pub data: PathBuf,
    /// The folder the features go to; an interrupted extraction goes on where it was.
    #[arg(long)]
    pub out: PathBuf,
    /// The form of the data set.
    #[arg(long, value_enum, default_value = "auto")]
    pub format: FormatArgument,
    /// The column of texts of a table.
    #[arg(long, default_value = "text")]
    pub text_column: String,
    /// The column of pictures' files of a table, instead of texts.
    #[arg(long)]
    pub path_column: Option<String>,
    /// The column of class names of a table.
    #[arg(long, default_value = "label")]
    pub label_column: String,
    /// Decides the split where the data set has none.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What to do with a damaged picture or an empty text.
    #[arg(long, value_enum, default_value = "refuse")]
    pub bad: BadArgument,
    /// The form of the features.
    #[arg(long, value_enum, default_value = "npy")]
    pub output: OutputArgument,
    /// With a name on the hub: the commit of the model.
    #[arg(long)]
    pub revision: Option<String>,
    /// With a name on the hub: the SHA-256 of its model.safetensors.
    #[arg(long)]
    pub sha256: Option<String>,
    /// Where downloaded models are kept.
    #[arg(long, env = "HETAL_MODELS")]
    pub models: Option<PathBuf>,
    /// Where the network runs.
    #[arg(long, value_enum, default_value = "auto")]
    pub device: DeviceArgument,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Where networks run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum DeviceArgument {
    /// On the CPU.
    Cpu,
    /// On an NVIDIA card, in a program built with the feature features-cuda.
    Cuda,
    /// On a card where the program and the machine have one, else on the CPU.
    Auto,
}

impl From<DeviceArgument> for Place {
    fn from(argument: DeviceArgument) -> Self {
        match argument {
            DeviceArgument::Cpu => Self::Cpu,
            DeviceArgument::Cuda => Self::Cuda,
            DeviceArgument::Auto => Self::Auto,
        }
    }
}

/// The forms of data sets.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum FormatArgument {
    /// Found out from the files.
    Auto,
    /// A folder for each class.
    Folders,
    /// CSV, TSV, JSON lines or Parquet.
    Table,
    /// MNIST's idx files.
    Mnist,
    /// CIFAR-10's binary batches.
    Cifar10,
    /// Face Mask Detection with its boxes.
    Facemask,
    /// An .npz file of MedMNIST, DermaMNIST for example.
    Medmnist,
    /// SNIPS' intents.
    Snips,
}

/// What happens to samples that cannot be used.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum BadArgument {
    /// Stop and name it.
    Refuse,
    /// Leave it out and list it.
    Skip,
}

/// The forms of features.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum OutputArgument {
    /// features_*.npy and labels_*.npy.
    Npy,
    /// train.safetensors, val.safetensors, test.safetensors.
    Safetensors,
}

/// Extracts, with a bar, and prints what came out.
pub fn run(arguments: &Arguments) -> Result<()> {
    let dataset = Dataset::open(&arguments.data, &format(arguments), arguments.seed)?;
    let extractor = open(arguments)?;
    let manifest = with_bar(&Job {
        extractor: &extractor,
        dataset: &dataset,
        seed: arguments.seed,
        folder: &arguments.out,
        policy: match arguments.bad {
            BadArgument::Refuse => Policy::Refuse,
            BadArgument::Skip => Policy::Skip,
        },
        output: match arguments.output {
            OutputArgument::Npy => Output::Npy,
            OutputArgument::Safetensors => Output::Safetensors,
        },
    })?;
    commands::print(arguments.json, &summary(&manifest, &arguments.out), &text(&manifest, arguments));
    Ok(())
}

/// Where the network ran, which may have been before this run; an older manifest does not say.
fn device(manifest: &Manifest) -> Option<String> {
    let devices: Vec<&str> = manifest.devices.iter().map(String::as_str).collect();
    (!devices.is_empty()).then(|| sanitize_terminal(&devices.join(" and ")))
}

/// What came out, and what can be done with it. Names of files are anybody's: they must not act on a terminal.
fn text(manifest: &Manifest, arguments: &Arguments) -> String {
    let (rows, model) = (manifest.rows.values().sum::<usize>(), &manifest.model);
    let part = |name: &str| manifest.rows.get(name).copied().unwrap_or_default();
    let mut text = format!(
        "{rows} samples of {} classes as rows of {} numbers, by {}{}: {} to train, {} to validate, {} to test\n\
         in {}",
        manifest.classes.len(),
        model.columns,
        sanitize_terminal(&model.architecture),
        device(manifest).map(|device| format!(" on the {device}")).unwrap_or_default(),
        part("train"),
        part("val"),
        part("test"),
        arguments.out.display(),
    );
    for skipped in &manifest.skipped {
        text += &format!("\nskipped: {}: {}", sanitize_terminal(&skipped.item), sanitize_terminal(&skipped.reason));
    }
    for note in &manifest.notes {
        text += &format!("\nnote: {}", sanitize_terminal(note));
    }
    let file = |name: &str| arguments.out.join(name).display().to_string();
    text + &match arguments.output {
        OutputArgument::Npy => format!(
            "\nnext: hetal train --features {} --labels {} --validation {} --validation-labels {} --server ...",
            file("features_train.npy"),
            file("labels_train.npy"),
            file("features_val.npy"),
            file("labels_val.npy"),
        ),
        OutputArgument::Safetensors => format!(
            "\nnext: hetal train --features {} --label-column labels --validation {} --server ...",
            file("train.safetensors"),
            file("val.safetensors"),
        ),
    }
}

/// Runs an extraction with a bar.
pub fn with_bar(job: &Job<'_>) -> Result<Manifest> {
    let bar = progress::bar(job.dataset.samples().count() as u64).with_message("extracting features");
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let mut resumed = None;
    let manifest = job.run(|done| {
        // What an earlier run has done says nothing about the time that is left.
        if resumed.replace(done).is_none() {
            bar.reset_eta();
        }
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    manifest.map_err(|error| match error {
        hetal_features::Error::Item { item, reason } => {
            Error::BadSample { item: sanitize_terminal(&item), reason: sanitize_terminal(&reason) }
        }
        other => other.into(),
    })
}

fn summary(manifest: &Manifest, out: &Path) -> Value {
    json!({
        "model": manifest.model.source,
        "device": device(manifest),
        "columns": manifest.model.columns,
        "classes": manifest.classes,
        "rows": manifest.rows,
        "skipped": manifest.skipped,
        "notes": manifest.notes,
        "out": out.display().to_string(),
    })
}

fn format(arguments: &Arguments) -> Format {
    let content = arguments.path_column.as_ref().unwrap_or(&arguments.text_column).clone();
    let files = arguments.path_column.is_some();
    let columns = Columns { content, files, label: arguments.label_column.clone() };
    match arguments.format {
        FormatArgument::Auto => Format::detect(&arguments.data, columns),
        FormatArgument::Folders => Format::Folders,
        FormatArgument::Table => Format::Table(columns),
        FormatArgument::Mnist => Format::Mnist,
        FormatArgument::Cifar10 => Format::Cifar10,
        FormatArgument::Facemask => Format::FaceMask,
        FormatArgument::Medmnist => Format::MedMnist,
        FormatArgument::Snips => Format::Snips,
    }
}

/// A model on disk, or one by name from the hub.
fn open(arguments: &Arguments) -> Result<Extractor> {
    let path = Path::new(&arguments.model);
    let spinner = progress::spinner("loading the model");
    let named = arguments.revision.is_some() || arguments.sha256.is_some();
    if !named && !path.exists() && path.is_relative() && path.components().count() == 2 {
        let reason =
            "no such folder; for the model of that name on the hub give --revision and --sha256, see docs/features.md";
        return Err(Error::File { path: arguments.model.clone(), reason: reason.to_owned() });
    }
    // Who pins a revision or a hash means the hub's, whatever lies here under that name.
    let extractor = if !named {
        Extractor::open_on(path, arguments.device.into())?
    } else {
        let text = |option: &Option<String>| option.clone().unwrap_or_default();
        let pin = Pin::new(&arguments.model, &text(&arguments.revision), &text(&arguments.sha256))?;
        let folder = fetch(&pin, arguments.models.as_deref(), &spinner)?;
        Extractor::pinned(&folder, &pin, arguments.device.into())?
    };
    spinner.finish_and_clear();
    say_note(&extractor);
    Ok(extractor)
}

/// Says what should be known before a network is run.
pub fn say_note(extractor: &Extractor) {
    if let Some(note) = extractor.note() {
        eprintln!("note: {}", sanitize_terminal(note));
    }
}

/// The network a manifest describes, and no other: where it was, at `network`, or from the hub.
pub fn reopen(
    manifest: &Manifest,
    network: Option<&Path>,
    models: Option<&Path>,
    device: DeviceArgument,
) -> Result<Extractor> {
    let spinner = progress::spinner("loading the model");
    let identity = &manifest.model;
    let folder = match (network, &identity.revision, identity.files.get(WEIGHTS)) {
        (None, Some(revision), Some(hash)) => {
            Some(fetch(&Pin::new(&identity.source, revision, hash)?, models, &spinner)?)
        }
        _ => network.map(Path::to_owned),
    };
    let extractor = Extractor::from_manifest(manifest, folder.as_deref(), device.into());
    spinner.finish_and_clear();
    extractor.inspect(say_note).map_err(|error| match error {
        hetal_features::Error::NoWeights { path } if network.is_none() => {
            Error::NoNetwork { path: path.display().to_string() }
        }
        other => other.into(),
    })
}

/// The folder of a model of the hub.
fn fetch(pin: &Pin, models: Option<&Path>, spinner: &indicatif::ProgressBar) -> Result<PathBuf> {
    let hub = Hub { address: ADDRESS.to_owned(), cache: cache(models)?, patience: PATIENCE };
    Ok(hub.fetch(pin, |step| match step {
        Step::Waiting(file) => spinner.set_message(format!("waiting for another program that downloads {file}")),
        Step::Coming { file, done, total } => {
            let mebibytes = |bytes: u64| bytes >> 20;
            let total = total.map(|total| format!(" of {}", mebibytes(total))).unwrap_or_default();
            spinner.set_message(format!("downloading {file}: {}{total} MiB", mebibytes(done)));
        }
        Step::Without { file, reason } => spinner.suspend(|| {
            eprintln!(
                "note: whether the model has a {file} could not be found out ({}): it is used as an earlier version fetched it",
                sanitize_terminal(reason)
            );
        }),
    })?)
}

/// Where models are kept: as told, else the user's cache.
fn cache(models: Option<&Path>) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let usual = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = models.map(Path::to_owned).or_else(|| Some(usual()?.join("hetal/models")));
    folder.ok_or(Error::NoCache)
}
