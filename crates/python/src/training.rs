//! `fit`: a training, from arrays to a decrypted classifier.

use crate::background;
use crate::errors::{Error, Result, in_python};
use crate::events::{self, Event};
use crate::model::Classifier;
use crate::settings::EstimatorSettings;
use hetal_client::data::tables::{Column, LabelType, Labels, MAX_CLASSES, Table};
use hetal_client::data::{Labelled, Split};
use hetal_client::layout::LayoutShape;
use hetal_client::rpc::{Offer, Remote};
use hetal_client::training::{self, Defaults, ProgressEvent, Trained, TrainingOptions, TrainingRun, wishes_text};
use hetal_client::{Cancellation, KeyPlanWish, Layout, Project, RowFormWish, TrainingData, keys};
use hetal_keys::ZeroingAllocator;
use hetal_learn::{AgreementLimits, KeyPlan, Wishes};
use hetal_local::{LocalServer, Needs};
use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::BTreeMap;
use std::mem::discriminant;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The names of trainings that were given none begin with this.
const PREFIX: &str = "fit-";

/// The rows of a training: a copy, so that nothing here keeps the arrays.
#[pyclass(frozen, module = "hetal._native")]
pub struct FitRows(Mutex<Option<Table>>);

#[pymethods]
impl FitRows {
    /// `labels` are integers (an array of int64), truth values or texts (lists), `weights` those of
    /// rows.
    #[new]
    #[pyo3(signature = (features, labels, weights, columns))]
    fn new(
        features: PyReadonlyArray2<'_, f64>,
        labels: &Bound<'_, PyAny>,
        weights: Option<PyReadonlyArray1<'_, f64>>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let mut table = table(&features, labels_of(labels)?, columns);
        table.weights = weights.map(|weights| weights.as_array().iter().copied().collect());
        Ok(Self(Mutex::new(Some(table))))
    }
}

impl FitRows {
    /// The rows, which only one training gets: it drops them as soon as it has prepared its own.
    fn take(&self) -> Result<Table> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        table.ok_or_else(|| Error::Defect("rows of another training".to_owned()))
    }
}

/// Trains a classifier. Returns it, and what else is known about the training.
///
/// `on_event` is called with a dictionary for each progress event.
#[pyfunction]
pub fn fit<'py>(
    py: Python<'py>,
    settings: EstimatorSettings,
    rows: &Bound<'py, FitRows>,
    on_event: &Bound<'py, PyAny>,
) -> PyResult<(Classifier, Bound<'py, PyDict>)> {
    let table = rows.get().take().map_err(|error| error.to_py(py))?;
    let mut seconds = BTreeMap::new();
    let mut pass_on = |py: Python<'_>, event: Event| -> PyResult<()> {
        if let Event::Judged { number, seconds: of_round, .. } = &event {
            seconds.insert(*number, *of_round);
        }
        match events::to_dict(py, &event)? {
            Some(dict) => on_event.call1((dict,)).map(drop),
            None => Ok(()),
        }
    };
    let result = background::run(py, &mut pass_on, Event::Stopping, move |events, cancellation| {
        train(settings, table, &events, &cancellation)
    });
    ZeroingAllocator::return_free_memory();
    let (trained, server) = result?;
    let about = about(py, &trained, &server, &seconds)?;
    Ok((Classifier(trained.model), about))
}

/// The name of a type of labels.
pub fn type_name(labels: LabelType) -> &'static str {
    match labels {
        LabelType::Integer => "integer",
        LabelType::Boolean => "boolean",
        LabelType::Text => "text",
    }
}

fn labels_of(labels: &Bound<'_, PyAny>) -> PyResult<Labels> {
    if let Ok(numbers) = labels.extract::<PyReadonlyArray1<'_, i64>>() {
        return Ok(Labels::Integers(numbers.as_array().iter().copied().collect()));
    }
    match labels.extract::<Vec<bool>>() {
        Ok(values) => Ok(Labels::Booleans(values)),
        Err(_) => Ok(Labels::Texts(labels.extract()?)),
    }
}

fn table(features: &PyReadonlyArray2<'_, f64>, labels: Labels, names: Option<Vec<String>>) -> Table {
    let array = features.as_array();
    let values = match array.as_slice() {
        Some(values) => values.to_vec(),
        None => array.iter().copied().collect(),
    };
    let mut table = Table::new(array.ncols(), values, Some(labels));
    if let Some(names) = names {
        let column = |(k, name)| Column { number: k + 1, name: Some(name) };
        table.columns = names.into_iter().enumerate().map(column).collect();
    }
    table
}

/// Refuses what no classifier can be trained on, as the program does with files.
fn training_data(settings: &EstimatorSettings, table: Table) -> Result<TrainingData> {
    let split = Split::new(settings.validation_fraction, settings.random_state)?;
    let preparation = settings.preparation()?;
    table.require_trainable().map_err(Error::Data)?;
    let mut rows = Labelled::new(table, None)?;
    let classes = rows.labels.classes().len();
    if classes > MAX_CLASSES {
        return Err(Error::Parameter(format!(
            "y has {classes} different labels, and hetal trains at most {MAX_CLASSES} classes: is y a class at all?"
        )));
    }
    settings.weigh_classes(&mut rows)?;
    Ok(TrainingData::with_split(&rows, None, &preparation, &split)?)
}

/// The options of a training whose name is found later if none was given.
fn options(settings: &EstimatorSettings) -> TrainingOptions {
    let mut options = TrainingOptions::new(settings.name.as_deref().unwrap_or(PREFIX));
    options.verify = settings.verify;
    options.prior = settings.prior;
    options
}

fn train(
    settings: EstimatorSettings,
    table: Table,
    events: &Sender<Event>,
    cancellation: &Cancellation,
) -> Result<(Trained, String)> {
    let data = training_data(&settings, table)?;
    let defaults = Defaults::new(&data);
    let fill = |offer: Option<&Offer>| defaults.fill(&settings.wishes(), data.training.rows(), offer);
    let mut project = settings.open_project(events, cancellation)?;
    let mut options = options(&settings);
    match settings.named_server(&project)? {
        Some(named) => {
            let remote = EstimatorSettings::connect(named, &mut project, events, cancellation)?;
            let server = remote.server().to_owned();
            options.wishes = fill(Some(remote.offer()));
            let trained = train_on(&settings, &mut project, &remote, &data, &mut options, events, &server)?;
            Ok((trained, server))
        }
        None => {
            let prepared_gib = check_machine(&project, &data, &fill(None))?;
            let (server, remote) = EstimatorSettings::start_server(&project, prepared_gib, cancellation)?;
            options.wishes = fill(Some(remote.offer()));
            // Both parties are this process: nobody learns anything from the time of a verdict.
            options.verdict_delay = Duration::ZERO;
            options.leave_resting = true;
            options.row_form = RowFormWish::LOCAL;
            options.key_plan = KeyPlanWish::LOCAL;
            let trained = train_on(&settings, &mut project, &remote, &data, &mut options, events, LOCAL);
            drop(remote);
            let trained = trained.map_err(|error| with_device_fault(error, &server));
            server.stop();
            Ok((trained?, LOCAL.to_owned()))
        }
    }
}

/// Where a server of this process is.
pub const LOCAL: &str = "this machine";

/// Checks memory and disk before a server starts on this machine. Returns the GiB of prepared
/// batches that it may keep.
fn check_machine(project: &Project, data: &TrainingData, wishes: &Wishes) -> Result<f64> {
    let defaults = AgreementLimits::default().defaults;
    let batch = wishes.batch.unwrap_or(defaults.batch).min(data.training.rows());
    let params = keys::params(project)?;
    let (features, classes, weighted) = (data.features(), data.classes.len(), data.is_weighted());
    let range = defaults.range;
    let layout =
        Layout::new(params, LayoutShape { batch, features, classes, range, weighted, key_plan: KeyPlan::Fast })?;
    let needs = Needs::new(&layout, data)?;
    needs.check_disk(project.root())?;
    Ok(needs.check_memory(Needs::available_gib())?)
}

fn with_device_fault(error: Error, server: &LocalServer) -> Error {
    match error {
        Error::Client(hetal_client::Error::Resting) => Error::GpuFailed(server.device_fault()),
        other => other,
    }
}

fn train_on(
    settings: &EstimatorSettings,
    project: &mut Project,
    remote: &Remote,
    data: &TrainingData,
    options: &mut TrainingOptions,
    events: &Sender<Event>,
    server: &str,
) -> Result<Trained> {
    if settings.name.is_none() {
        let same = training::name_of_same(project, remote, data, options, PREFIX)?;
        options.name = match same {
            Some(name) => name,
            None => new_name()?,
        };
    }
    let is_there = training::is_interrupted(project, &options.name)?;
    // An estimator that is fitted again replaces its model. An interrupted training is lost only if
    // the caller says so.
    options.replace = settings.replace || !is_there;
    events
        .send(Event::Begun {
            server: server.to_owned(),
            name: options.name.clone(),
            project: project.root().display().to_string(),
            resumed: is_there && !settings.replace,
        })
        .ok();
    let chosen = format!("{}{}", data.preparation.text(), wishes_text(&options.wishes));
    events.send(Event::Chosen(chosen)).ok();
    let mut last = Instant::now();
    let mut before = None;
    let mut report = |event: ProgressEvent| {
        let phase = event.phase().map(|_| discriminant(&event));
        if phase.is_some() && phase != before {
            // What a phase has freed must not count beside what the next one needs.
            ZeroingAllocator::return_free_memory();
            before = phase;
        }
        let event = match event {
            ProgressEvent::Judged { number, round } => {
                let seconds = std::mem::replace(&mut last, Instant::now()).elapsed().as_secs_f64();
                Event::Judged { number, round, seconds }
            }
            ProgressEvent::Started(engine) => {
                last = Instant::now();
                Event::Progress(ProgressEvent::Started(engine))
            }
            other => Event::Progress(other),
        };
        // Nobody listens any more only if the work is to end.
        events.send(event).ok();
    };
    let run = TrainingRun::open(project, remote, data, options, &mut report)?;
    Ok(run.run(&mut report)?)
}

/// A name that says nothing about the rows: the server sees it.
fn new_name() -> Result<String> {
    let name = training::random_label()?;
    Ok(format!("{PREFIX}{name}"))
}

/// What is known about a training beside the classifier.
fn about<'py>(
    py: Python<'py>,
    trained: &Trained,
    server: &str,
    seconds: &BTreeMap<usize, f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let rounds = trained.rounds.iter().enumerate();
    let rounds = rounds.map(|(k, round)| events::round_dict(py, k + 1, round, seconds.get(&(k + 1)).copied()));
    dict.set_item("history", PyList::new(py, rounds.collect::<PyResult<Vec<_>>>()?)?)?;
    dict.set_item("path", &trained.path)?;
    dict.set_item("server", server)?;
    dict.set_item("difference_bound", trained.difference_bound())?;
    dict.set_item("matches_reference", trained.matches_reference())?;
    dict.set_item("converged", trained.converged())?;
    dict.set_item("advice", trained.unconverged().map(in_python))?;
    dict.set_item("seconds", trained.seconds.all)?;
    dict.set_item("sent_key_bytes", trained.sent.keys)?;
    dict.set_item("sent_row_bytes", trained.sent.rows)?;
    dict.set_item("key_bytes", trained.key_bytes)?;
    dict.set_item("row_bytes", trained.row_bytes)?;
    Ok(dict)
}
