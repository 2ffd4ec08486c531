//! The process that reads the files of others.

use crate::error::{Error, Result};
use crate::events::{Assignment, EncodeTask, Event, ExtractTask, Model, Task};
use crate::{Program, parent};
use clap::Parser;
use hetal_extract_api::arguments::{Arguments, BadArgument, DeviceArgument, FormatArgument, OutputArgument};
use hetal_extract_api::protocol::PROGRAM;
use hetal_features::dataset::{Columns, Dataset, Format};
use hetal_features::device::Place;
use hetal_features::job::{Job, Output, Policy, Watch};
use hetal_features::picture::Picture;
use hetal_features::sentence::Reading;
use hetal_features::{Extractor, Manifest, write_rows};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The argument under which the program is a worker.
pub const WORKER: &str = "worker";

/// Pictures or texts that go through the network between two steps of the bar.
const CHUNK: usize = 8;

/// Does what standard input says, and tells how it goes on standard output.
pub fn run() -> ExitCode {
    let supervisor = Supervisor;
    match assigned().and_then(|task| work(task, &supervisor)) {
        Ok(()) => supervisor.tell(&Event::Finished),
        Err(error) => supervisor.tell(&Event::Failed(error.to_string())),
    }
    ExitCode::SUCCESS
}

/// The task, with its limits in force: nothing of others has been read before.
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
    }
}

/// Who hears how it goes.
struct Supervisor;

impl Supervisor {
    fn tell(&self, event: &Event) {
        let line = serde_json::to_string(event).unwrap_or_default() + "\n";
        let mut out = std::io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            // Nobody hears it any more.
            std::process::exit(1);
        }
    }

    fn doing(&self, what: impl Into<String>) {
        self.tell(&Event::Doing(what.into()));
    }

    fn say_note(&self, extractor: &Extractor) {
        if let Some(note) = extractor.note() {
            self.tell(&Event::Note(note.to_owned()));
        }
    }
}

impl Watch for Supervisor {
    fn begin(&self, index: usize, name: &str) {
        self.tell(&Event::Begin(index, name.to_owned()));
    }

    fn end(&self, index: usize) {
        self.tell(&Event::End(index));
    }

    fn network(&self, first: &str, last: &str) {
        self.doing(format!("running the network on the samples from {first} to {last}"));
    }

    fn alive(&self) {
        self.tell(&Event::Alive);
    }
}

/// The three arguments that every extraction has.
pub fn needed(arguments: &Arguments) -> Result<[&Path; 3]> {
    match (&arguments.model, &arguments.data, &arguments.out) {
        (Some(model), Some(data), Some(out)) => Ok([Path::new(model), data, out]),
        _ => Err(Error::Arguments("--model, --data and --out are needed".to_owned())),
    }
}

fn extract(task: ExtractTask, supervisor: &Supervisor) -> Result<()> {
    let line = std::iter::once(OsString::from(PROGRAM)).chain(task.arguments);
    let arguments = Program::try_parse_from(line).map_err(|error| Error::Arguments(error.to_string()))?.arguments;
    let [_, data, out] = needed(&arguments)?;
    supervisor.doing(format!("reading the data set {}", data.display()));
    let mut dataset = Dataset::open(data, &format(&arguments, data), arguments.seed)?;
    if let Some(most) = task.at_most {
        dataset.thin(most, arguments.seed);
    }
    let extractor = open(&task.model, place(arguments.device), supervisor)?;
    supervisor.tell(&Event::Total(dataset.samples().count() as u64));
    supervisor.doing(format!("comparing with what is in {}", out.display()));
    let job = Job {
        extractor: &extractor,
        dataset: &dataset,
        seed: arguments.seed,
        folder: out,
        policy: match arguments.bad {
            BadArgument::Refuse => Policy::Refuse,
            BadArgument::Skip => Policy::Skip,
        },
        output: match arguments.output {
            OutputArgument::Npy => Output::Npy,
            OutputArgument::Safetensors => Output::Safetensors,
        },
    };
    let done = |samples: usize| supervisor.tell(&Event::Done(samples as u64));
    match job.run_watched(done, supervisor) {
        Ok(_) => Ok(()),
        Err(hetal_features::Error::Item { item, reason }) => Err(Error::BadSample { item, reason }),
        Err(error) => Err(error.into()),
    }
}

fn open(model: &Model, place: Place, supervisor: &Supervisor) -> Result<Extractor> {
    let path = Path::new(&model.path);
    supervisor.doing(format!("loading the model {}", path.display()));
    let extractor = match &model.pin {
        Some(pin) => Extractor::pinned(path, pin, place)?,
        None => Extractor::open_on(path, place)?,
    };
    supervisor.say_note(&extractor);
    Ok(extractor)
}

fn place(device: DeviceArgument) -> Place {
    match device {
        DeviceArgument::Cpu => Place::Cpu,
        DeviceArgument::Cuda => Place::Cuda,
        DeviceArgument::Auto => Place::Auto,
    }
}

fn format(arguments: &Arguments, data: &Path) -> Format {
    let content = arguments.path_column.as_ref().unwrap_or(&arguments.text_column).clone();
    let files = arguments.path_column.is_some();
    let columns = Columns { content, files, label: arguments.label_column.clone() };
    match arguments.format {
        FormatArgument::Auto => Format::detect(data, columns),
        FormatArgument::Folders => Format::Folders,
        FormatArgument::Table => Format::Table(columns),
        FormatArgument::Mnist => Format::Mnist,
        FormatArgument::Cifar10 => Format::Cifar10,
        FormatArgument::Facemask => Format::FaceMask,
        FormatArgument::Medmnist => Format::MedMnist,
        FormatArgument::Snips => Format::Snips,
    }
}

/// Features of a few pictures or texts, by the network that a manifest describes and no other.
fn encode(task: &EncodeTask, supervisor: &Supervisor) -> Result<()> {
    let request = &task.request;
    let extractor = reopen(task, supervisor)?;
    supervisor.say_note(&extractor);
    supervisor.tell(&Event::Total((request.pictures.len() + request.texts.len()) as u64));
    let rows = if request.texts.is_empty() {
        in_chunks(&request.pictures, supervisor, |index, paths| pictures(&extractor, index, paths, supervisor))?
    } else {
        in_chunks(&request.texts, supervisor, |index, texts| sentences(&extractor, index, texts, supervisor))?
    };
    supervisor.doing("writing the features");
    Ok(write_rows(Path::new(&request.out), extractor.identity().columns, &rows)?)
}

/// The network that a manifest describes.
fn reopen(task: &EncodeTask, supervisor: &Supervisor) -> Result<Extractor> {
    let EncodeTask { request, folder } = task;
    let source = Path::new(&request.manifest.model.source);
    let again = |manifest| serde_json::to_value(manifest).and_then(serde_json::from_value::<Manifest>);
    let manifest = again(&request.manifest).map_err(|error| {
        Error::file(source, format!("its preprocessing is not known to this version of {PROGRAM}: {error}"))
    })?;
    let folder = folder.as_deref().map(Path::new);
    supervisor.doing(format!("loading the model {}", folder.unwrap_or(source).display()));
    Extractor::from_manifest(&manifest, folder, place(request.device)).map_err(|error| match error {
        hetal_features::Error::NoWeights { path } if request.network.is_none() => {
            Error::NoNetwork { path: path.display().to_string() }
        }
        other => other.into(),
    })
}

/// Rows of all inputs, some at a time; `rows` hears the number of the first.
fn in_chunks<T>(
    inputs: &[T],
    supervisor: &Supervisor,
    rows: impl Fn(usize, &[T]) -> Result<Vec<Vec<f32>>>,
) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::with_capacity(inputs.len());
    for chunk in inputs.chunks(CHUNK) {
        all.extend(rows(all.len(), chunk)?);
        supervisor.tell(&Event::Done(all.len() as u64));
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
    supervisor.doing(format!("running the network on pictures {} to {}", first + 1, first + paths.len()));
    Ok(extractor.extract_pictures(&fitted)?)
}

/// Texts are private: messages say their number, and a note the beginning of one that is too long.
fn sentences(extractor: &Extractor, first: usize, texts: &[String], supervisor: &Supervisor) -> Result<Vec<Vec<f32>>> {
    for (index, text) in texts.iter().enumerate() {
        supervisor.begin(first + index, &format!("text {}", first + index + 1));
        if text.trim().is_empty() {
            return Err(Error::file(Path::new("--text"), "the text is empty"));
        }
        if extractor.tokens(text)?.reading == Reading::Beginning {
            let beginning: String = text.chars().take(40).collect();
            let note = format!("a text is longer than the network reads, its end does not count: {beginning}...");
            supervisor.tell(&Event::Note(note));
        }
        supervisor.end(first + index);
    }
    supervisor.doing(format!("running the network on texts {} to {}", first + 1, first + texts.len()));
    Ok(extractor.extract_texts(&texts.iter().map(|text| text.trim()).collect::<Vec<_>>())?)
}
