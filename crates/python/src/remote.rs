//! `predict_remote`: encrypted classification on the server that trained a model.

use crate::background;
use crate::errors::Result;
use crate::events::{self, Event};
use crate::model;
use crate::settings::EstimatorSettings;
use hetal_client::layout::LayoutShape;
use hetal_client::model::probabilities;
use hetal_client::rpc::Remote;
use hetal_client::{Cancellation, Layout, Model, Project, RowFormWish, keys, layout, predict};
use hetal_keys::ZeroingAllocator;
use hetal_learn::{KeyPlan, Matrix};
use hetal_local::Needs;
use numpy::{PyArray2, PyReadonlyArray2};
use pyo3::prelude::*;
use std::sync::mpsc::Sender;

/// The probability of each class for each row, computed on ciphertexts by the server.
#[pyfunction]
pub fn predict_remote<'py>(
    py: Python<'py>,
    settings: EstimatorSettings,
    rows: PyReadonlyArray2<'py, f64>,
    on_event: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let rows = model::matrix(&rows);
    let mut pass_on = |py: Python<'_>, event: Event| match events::to_dict(py, &event)? {
        Some(dict) => on_event.call1((dict,)).map(drop),
        None => Ok(()),
    };
    let logits = background::run(py, &mut pass_on, Event::Stopping, move |events, cancellation| {
        ask(&settings, &rows, &events, &cancellation)
    });
    ZeroingAllocator::return_free_memory();
    model::array(py, probabilities(&logits?))
}

fn ask(
    settings: &EstimatorSettings,
    rows: &Matrix,
    events: &Sender<Event>,
    cancellation: &Cancellation,
) -> Result<Matrix> {
    let mut project = settings.read_project()?;
    let model = model::open(settings, &project, &model::named(settings)?)?;
    if let Some(named) = settings.named_server(&project)? {
        let remote = EstimatorSettings::connect(named, &mut project, events, cancellation)?;
        return logits(&mut project, &remote, &model, rows, RowFormWish::default(), events);
    }
    // A server on this machine needs the project for itself.
    drop(project);
    let mut project = settings.open_project(events, cancellation)?;
    let prepared_gib = check_memory(&project, &model)?;
    let (server, remote) = EstimatorSettings::start_server(&project, prepared_gib, cancellation)?;
    let logits = logits(&mut project, &remote, &model, rows, RowFormWish::LOCAL, events);
    drop(remote);
    server.stop();
    logits
}

fn check_memory(project: &Project, model: &Model) -> Result<f64> {
    let (params, training) = (keys::params(project)?, &model.training);
    let shape = LayoutShape {
        batch: training.batch,
        features: model.features(),
        classes: model.classes.len(),
        range: training.range,
        weighted: training.weighted,
        key_plan: KeyPlan::Fast,
    };
    let layout = Layout::new(params, shape)?;
    let bytes = layout::server_bytes(&layout.params, &layout.working_keys()?);
    let needs = Needs { memory_gib: bytes as f64 / (1u64 << 30) as f64, disk_bytes: 0 };
    Ok(needs.check_memory(Needs::available_gib())?)
}

fn logits(
    project: &mut Project,
    remote: &Remote,
    model: &Model,
    rows: &Matrix,
    wish: RowFormWish,
    events: &Sender<Event>,
) -> Result<Matrix> {
    let mut report = |event| {
        events.send(Event::Progress(event)).ok();
    };
    Ok(predict::remote::logits(project, remote, model, rows, wish, &mut report)?)
}
