//! The worker: the process that reads data sets and networks, within limits.

use crate::error::{Error, Result};
use crate::events::{Assignment, EncodeTask, ExtractTask, ResolvedNetwork, Task, WorkerEvent};
use crate::{Program, parent};
use clap::Parser;
use hetal_extract_api::arguments::{
    BadArgument, DatasetFormatArgument, DeviceArgument, ExtractArguments, HeaderArgument, OutputArgument,
};
use hetal_extract_api::protocol::PROGRAM;
use hetal_features::columnar::hand_over;
use hetal_features::dataset::{Dataset, DatasetFormat, SampleColumns};
use hetal_features::device::DeviceChoice;
use hetal_features::extraction::{Extraction, Observer, OutputFormat, Policy};
use hetal_features::picture::Picture;
use hetal_features::sentence::TextCoverage;
use hetal_features::{Extractor, Manifest, write_rows};
use hetal_tables::{Encoding, Options};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The argument under which the program is a worker.
pub const WORKER: &str = "worker";

/// Pictures or texts between two steps of the progress bar.
const CHUNK: usize = 8;

/// Carries out the task on standard input and reports events on standard output.
pub fn run() -> ExitCode {
    let supervisor = Supervisor;
    match assigned().and_then(|task| work(task, &supervisor)) {
        Ok(()) => supervisor.send(&WorkerEvent::Finished),
        Err(error) => supervisor.send(&WorkerEvent::Failed(error.to_string())),
    }
    ExitCode::SUCCESS
}

/// Reads the task and applies its limits, before anything else is read.
fn assigned() -> Result<Task> {
    let bad = |error: &dyn std::fmt::Display| Error::Arguments(format!("assignment: {error}"));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| bad(&error))?;
    let Assignment { task, limits } = serde_json::from_str(&line).map_err(|error| bad(&error))?;
    parent::end_with_parent();
    limits.apply()?;
    Ok(task)
}

fn work(task: Task, supervisor: &Supervisor) -> Result<()> {
    match task {
        Task::Extract(task) => extract(task, supervisor),
        Task::Encode(task) => encode(&task, supervisor),
        Task::ReadTable(request) => {
            supervisor.set_activity("reading the table");
            Ok(hand_over(&request, || supervisor.alive())?)
        }
    }
}

/// The supervisor, which reads the events.
struct Supervisor;

impl Supervisor {
    fn send(&self, event: &WorkerEvent) {
        let line = event.to_line();
        let mut out = std::io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            // The supervisor has ended.
            std::process::exit(1);
        }
    }

    fn set_activity(&self, what: impl Into<String>) {
        self.send(&WorkerEvent::Activity(what.into()));
    }

    fn send_note(&self, extractor: &Extractor) {
        if let Some(note) = extractor.note() {
            self.send(&WorkerEvent::Note(note.to_owned()));
        }
    }
}

impl Observer for Supervisor {
    fn begin(&self, index: usize, name: &str) {
        self.send(&WorkerEvent::Begin(index, name.to_owned()));
    }

    fn end(&self, index: usize) {
        self.send(&WorkerEvent::End(index));
    }

    fn network(&self, first: &str, last: &str) {
        self.set_activity(format!("running the network on the samples from {first} to {last}"));
    }

    fn alive(&self) {
        self.send(&WorkerEvent::Alive);
    }
}

/// The three arguments that every extraction has.
pub fn needed(arguments: &ExtractArguments) -> Result<[&Path; 3]> {
    match (&arguments.model, &arguments.data, &arguments.out) {
        (Some(model), Some(data), Some(out)) => Ok([Path::new(model), data, out]),
        _ => Err(Error::Arguments("--model, --data and --out are needed".to_owned())),
    }
}

fn extract(task: ExtractTask, supervisor: &Supervisor) -> Result<()> {
    let line = std::iter::once(OsString::from(PROGRAM)).chain(task.arguments);
    let arguments = Program::try_parse_from(line).map_err(|error| Error::Arguments(error.to_string()))?.arguments;
    let [_, data, out] = needed(&arguments)?;
    supervisor.set_activity(format!("reading the data set {}", data.display()));
    let mut dataset = Dataset::open(data, &format(&arguments, data)?, arguments.seed)?;
    if let Some(most) = task.at_most {
        dataset.subsample(most, arguments.seed);
    }
    let extractor = open(&task.model, device_choice(arguments.device), supervisor)?;
    supervisor.send(&WorkerEvent::Total(dataset.samples().count() as u64));
    supervisor.set_activity(format!("comparing with what is in {}", out.display()));
    let extraction = Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: arguments.seed,
        folder: out,
        policy: match arguments.bad {
            BadArgument::Refuse => Policy::Refuse,
            BadArgument::Skip => Policy::Skip,
        },
        output: match arguments.output {
            OutputArgument::Npy => OutputFormat::Npy,
            OutputArgument::Safetensors => OutputFormat::Safetensors,
        },
    };
    let done = |samples: usize| supervisor.send(&WorkerEvent::Done(samples as u64));
    match extraction.run_observed(done, supervisor) {
        Ok(_) => Ok(()),
        Err(hetal_features::Error::Item { item, reason }) => Err(Error::BadSample { item, reason }),
        Err(error) => Err(error.into()),
    }
}

fn open(model: &ResolvedNetwork, device: DeviceChoice, supervisor: &Supervisor) -> Result<Extractor> {
    let path = Path::new(&model.path);
    supervisor.set_activity(format!("loading the model {}", path.display()));
    let extractor = match &model.pin {
        Some(pin) => Extractor::pinned(path, pin, device)?,
        None => Extractor::open_on(path, device)?,
    };
    supervisor.send_note(&extractor);
    Ok(extractor)
}

fn device_choice(device: DeviceArgument) -> DeviceChoice {
    match device {
        DeviceArgument::Cpu => DeviceChoice::Cpu,
        DeviceArgument::Cuda => DeviceChoice::Cuda,
        DeviceArgument::Auto => DeviceChoice::Auto,
    }
}

/// The columns of a table, and how it is read.
pub fn sample_columns(arguments: &ExtractArguments) -> Result<SampleColumns> {
    let wrong = |problem: hetal_tables::FileProblem| Error::Arguments(problem.to_string());
    let delimiter = arguments.delimiter.as_deref().map(Options::delimiter_named).transpose().map_err(wrong)?;
    Ok(SampleColumns {
        content: arguments.path_column.as_ref().unwrap_or(&arguments.text_column).clone(),
        files: arguments.path_column.is_some(),
        label: arguments.label_column.clone(),
        encoding: Encoding::named(&arguments.encoding).unwrap_or_default(),
        header: arguments.header == HeaderArgument::Yes,
        delimiter,
    })
}

fn format(arguments: &ExtractArguments, data: &Path) -> Result<DatasetFormat> {
    let columns = sample_columns(arguments)?;
    Ok(match arguments.format {
        DatasetFormatArgument::Auto => DatasetFormat::detect(data, columns),
        DatasetFormatArgument::Folders => DatasetFormat::Folders,
        DatasetFormatArgument::Table => DatasetFormat::Table(columns),
        DatasetFormatArgument::Mnist => DatasetFormat::Mnist,
        DatasetFormatArgument::Cifar10 => DatasetFormat::Cifar10,
        DatasetFormatArgument::Facemask => DatasetFormat::FaceMask,
        DatasetFormatArgument::Medmnist => DatasetFormat::MedMnist,
        DatasetFormatArgument::Snips => DatasetFormat::Snips,
    })
}

/// Computes the features of a few pictures or texts, by the network that the manifest describes.
fn encode(task: &EncodeTask, supervisor: &Supervisor) -> Result<()> {
    let request = &task.request;
    let extractor = reopen(task, supervisor)?;
    supervisor.send_note(&extractor);
    supervisor.send(&WorkerEvent::Total((request.pictures.len() + request.texts.len()) as u64));
    let rows = if request.texts.is_empty() {
        in_chunks(&request.pictures, supervisor, |index, paths| pictures(&extractor, index, paths, supervisor))?
    } else {
        in_chunks(&request.texts, supervisor, |index, texts| sentences(&extractor, index, texts, supervisor))?
    };
    supervisor.set_activity("writing the features");
    Ok(write_rows(Path::new(&request.out), extractor.identity().columns, &rows)?)
}

/// Opens the network that the manifest describes.
fn reopen(task: &EncodeTask, supervisor: &Supervisor) -> Result<Extractor> {
    let EncodeTask { request, folder } = task;
    let source = Path::new(&request.manifest.model.source);
    let again = |manifest| serde_json::to_value(manifest).and_then(serde_json::from_value::<Manifest>);
    let manifest = again(&request.manifest).map_err(|error| {
        Error::file(source, format!("its preprocessing is not known to this version of {PROGRAM}: {error}"))
    })?;
    let folder = folder.as_deref().map(Path::new);
    supervisor.set_activity(format!("loading the model {}", folder.unwrap_or(source).display()));
    Extractor::from_manifest(&manifest, folder, device_choice(request.device)).map_err(|error| match error {
        hetal_features::Error::NoWeights { path } if request.network.is_none() => {
            Error::NoNetwork { path: path.display().to_string() }
        }
        other => other.into(),
    })
}

/// Computes the rows of all inputs in chunks; `rows` gets the index of the first input of a chunk.
fn in_chunks<T>(
    inputs: &[T],
    supervisor: &Supervisor,
    rows: impl Fn(usize, &[T]) -> Result<Vec<Vec<f32>>>,
) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::with_capacity(inputs.len());
    for chunk in inputs.chunks(CHUNK) {
        all.extend(rows(all.len(), chunk)?);
        supervisor.send(&WorkerEvent::Done(all.len() as u64));
    }
    Ok(all)
}

fn pictures(extractor: &Extractor, first: usize, paths: &[OsString], supervisor: &Supervisor) -> Result<Vec<Vec<f32>>> {
    let mut fitted = Vec::with_capacity(paths.len());
    for (index, path) in paths.iter().enumerate() {
        supervisor.begin(first + index, &path.to_string_lossy());
        fitted.push(extractor.fitted(&Picture::open(Path::new(path))?));
        supervisor.end(first + index);
    }
    supervisor.set_activity(format!("running the network on pictures {} to {}", first + 1, first + paths.len()));
    Ok(extractor.extract_pictures(&fitted)?)
}

/// Texts are private: messages name their number only, a note the beginning of one that is too
/// long.
fn sentences(extractor: &Extractor, first: usize, texts: &[String], supervisor: &Supervisor) -> Result<Vec<Vec<f32>>> {
    for (index, text) in texts.iter().enumerate() {
        supervisor.begin(first + index, &format!("text {}", first + index + 1));
        if text.trim().is_empty() {
            return Err(Error::file(Path::new("--text"), "the text is empty"));
        }
        if extractor.tokens(text)?.reading == TextCoverage::Beginning {
            let beginning: String = text.chars().take(40).collect();
            let note = format!("a text is longer than the network reads, its end does not count: {beginning}...");
            supervisor.send(&WorkerEvent::Note(note));
        }
        supervisor.end(first + index);
    }
    supervisor.set_activity(format!("running the network on texts {} to {}", first + 1, first + texts.len()));
    Ok(extractor.extract_texts(&texts.iter().map(|text| text.trim()).collect::<Vec<_>>())?)
}
