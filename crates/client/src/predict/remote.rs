//! Classification on a server: it sees neither the rows nor the weights.

use crate::ciphertexts::row_blobs::{self, parse_blob_name};
use crate::ciphertexts::{Outputs, RowBlobFile, RowBlobWriter, RowsToEncrypt};
use crate::keys::{hex, random_name};
use crate::layout::LayoutShape;
use crate::model::require_finite;
use crate::rpc::{BlobDigest, BlobKind, ClassificationRequest, Event, EventKind, JobInfo, Output, Remote};
use crate::training::{self, ProgressEvent};
use crate::{Error, Layout, Model, Owner, Project, Result, RowFormWish, keys, project, rpc};
use hetal_learn::{KeyPlan, LabelledMatrix, Matrix, RowForm, normalisation};
use hetal_wire::JobId;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::PathBuf;

/// The most rows that an error names.
const MAX_NAMED_ROWS: usize = 10;

/// Computes logits of rows with the encrypted weights that a training left on the server. The rows
/// are sent in the form that `wish` and the server's offer give.
///
/// Rows that are too long for the circuit are classified on this machine, which is reported. If
/// all are, that is an error.
pub fn logits(
    project: &mut Project,
    remote: &Remote,
    model: &Model,
    features: &Matrix,
    wish: RowFormWish,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<Matrix> {
    if features.columns() != model.features() {
        return Err(Error::FeatureCount { found: features.columns(), expected: model.features() });
    }
    require_finite(&model.normalisation.filled(features))?;
    let outliers = outliers(model, features)?;
    if outliers.is_empty() {
        return sent_logits(project, remote, model, features, wish, on_progress);
    }
    let rows = outliers.iter().take(MAX_NAMED_ROWS).map(|row| row + 1).collect();
    on_progress(ProgressEvent::Outliers { rows, count: outliers.len(), guard: normalisation::GUARD });
    let sent: Vec<usize> = (0..features.rows()).filter(|row| outliers.binary_search(row).is_err()).collect();
    let fitting = Matrix::from_fn(sent.len(), features.columns(), |row, column| features[(sent[row], column)]);
    let answers = sent_logits(project, remote, model, &fitting, wish, on_progress)?;
    let mut logits = model.logits(features)?;
    for (row, &place) in sent.iter().enumerate() {
        (0..answers.columns()).for_each(|class| logits[(place, class)] = answers[(row, class)]);
    }
    Ok(logits)
}

/// Computes logits of rows that all fit.
fn sent_logits(
    project: &mut Project,
    remote: &Remote,
    model: &Model,
    features: &Matrix,
    wish: RowFormWish,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<Matrix> {
    let owner = keys::existing_owner(project)?;
    if model.training.key_id != Some(owner.key_id()) {
        let help = "predict without --remote, use the project it was trained in, or train it again";
        return Err(Error::OtherKeyModel { model: model.name.clone(), help });
    }
    let training = &model.training;
    // Queries use the circuit that the training started with.
    let shape = LayoutShape {
        batch: training.batch,
        features: model.features(),
        classes: model.classes.len(),
        range: training.range,
        weighted: training.weighted,
        // Sizes of rows do not depend on the keys.
        key_plan: KeyPlan::Fast,
    };
    let layout = Layout::new(keys::params(project)?, shape)?;
    let form = wish.choose(remote.offer(), &layout, project.settings().uplink)?;
    let job = parse_job(model)?;
    require_job(remote, model, job)?;
    let keys_are_there = send_keys(project, remote, &training.job, on_progress)?;
    let request = random_name()?;
    let leftovers = QueryLeftovers { server: remote.server().to_owned(), label: hex(&request[..6]), blobs: Vec::new() };
    let (folder, _lock) = locked_folder(project, &leftovers.label)?;
    let mut query = Query { remote, owner, layout, model, request, folder, form, leftovers, job: None };
    let logits = match query.ask(features, on_progress) {
        Err(Error::Remote(rpc::Error::NotFound { server, .. })) if !keys_are_there => {
            Err(Error::KeysOfModelLost { model: model.name.clone(), server })
        }
        answer => answer,
    };
    let is_there = !matches!(
        logits,
        Err(Error::Remote(rpc::Error::Unreachable { .. } | rpc::Error::Late { .. } | rpc::Error::Cancelled))
    );
    if is_there && query.leftovers.delete_from(remote, query.job.as_slice()) {
        let _ = std::fs::remove_dir_all(&query.folder);
    }
    logits
}

fn parse_job(model: &Model) -> Result<JobId> {
    let bad = |_| Error::Protocol { what: "the job id of the model is invalid".to_owned() };
    model.training.job.parse().map_err(bad)
}

/// Asks whether the server has the job of a model, before anything is sent to it.
fn require_job(remote: &Remote, model: &Model, job: JobId) -> Result<()> {
    match remote.job(job) {
        Err(rpc::Error::NotFound { server, .. }) => {
            Err(Error::JobUnknown { server, model: model.name.clone(), trained_on: model.training.server.clone() })
        }
        known => Ok(known.map(drop)?),
    }
}

/// The rows that are too long for the circuit, in order. If all are, the error names them as far
/// as they are few.
fn outliers(model: &Model, features: &Matrix) -> Result<Vec<usize>> {
    let rows = model.normalisation.beyond_guard(features)?;
    if rows.len() < features.rows() || rows.is_empty() {
        return Ok(rows);
    }
    let count = rows.len();
    let rows = rows.iter().take(MAX_NAMED_ROWS).map(|row| row + 1).collect();
    Err(Error::Outliers { rows, count, guard: normalisation::GUARD })
}

/// Sends the key set of a training again if the server has lost it and this project still has it.
/// Returns whether the server has it now, as far as is known.
fn send_keys(
    project: &Project,
    remote: &Remote,
    job: &str,
    on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
) -> Result<bool> {
    let Some(keys) = training::key_set_of_job(project, job) else { return Ok(false) };
    let digest = BlobDigest { name: parse_blob_name(&keys.blob)?, size: keys.bytes };
    let mut progress = |held, all| on_progress(ProgressEvent::SendingKeys { sent: held, total: all });
    match remote.upload_exactly(BlobKind::Keys, &project.key_file(&keys), digest, &mut progress) {
        // The server says what it lacks when it classifies.
        Err(rpc::Error::NotAsWritten { .. }) => Ok(false),
        sent => Ok(sent.map(|_| true)?),
    }
}

/// Creates and locks the folder of a query. It gets its final name after it is locked, so that
/// [`delete_leftovers`] never deletes the folder of a running query.
fn locked_folder(project: &Project, label: &str) -> Result<(PathBuf, File)> {
    let begun = project.job(&format!("{UNLOCKED_PREFIX}{label}"))?;
    let lock = project::lock(&begun)?;
    let folder = begun.with_file_name(format!("{QUERY_PREFIX}{label}"));
    std::fs::rename(&begun, &folder).map_err(|e| project::io_error("moving", &begun, &e))?;
    Ok((folder, lock))
}

/// Deletes what interrupted queries left in this project and on this server. Leftovers on another
/// server, or of a job that is still being cancelled, stay for a later command.
pub fn delete_leftovers(project: &Project, remote: &Remote) {
    for entry in std::fs::read_dir(project.root().join("jobs")).into_iter().flatten().flatten() {
        let folder = entry.path();
        let is_query = entry.file_name().to_string_lossy().starts_with(QUERY_PREFIX) && folder.join("lock").exists();
        // The folder of a running query is locked.
        let Some(_lock) = is_query.then(|| project::lock(&folder).ok()).flatten() else { continue };
        if let Ok(Some(leftovers)) = project::read::<QueryLeftovers>(&folder.join(LEFTOVERS)) {
            let jobs = if leftovers.server == remote.server() { remote.jobs().ok() } else { None };
            let Some(jobs) = jobs else { continue };
            let its: Vec<_> = jobs.iter().filter(|job| job.label == leftovers.label).map(|job| job.id).collect();
            if !leftovers.delete_from(remote, &its) {
                continue;
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// The prefix of the folders of queries.
const QUERY_PREFIX: &str = "query-";
/// The prefix of such a folder before it is locked.
const UNLOCKED_PREFIX: &str = "begun-";
/// The file that lists what a query leaves on the server. It is written before the first upload.
const LEFTOVERS: &str = "query.json";

#[derive(Serialize, Deserialize)]
struct QueryLeftovers {
    server: String,
    /// The label of its job.
    label: String,
    blobs: Vec<String>,
}

impl QueryLeftovers {
    /// Deletes jobs and uploads from the server, and returns whether nothing is left. A running job
    /// is deleted only some time after it was cancelled. A failure is not an error: the server has
    /// seen these ciphertexts anyway.
    fn delete_from(&self, remote: &Remote, jobs: &[JobId]) -> bool {
        let ended = |&job: &JobId| {
            // This fails if the job has ended.
            let _ = remote.cancel(job);
            is_gone(&remote.delete(job))
        };
        // Uploads can be deleted only after the jobs that use them.
        jobs.iter().all(ended)
            && self
                .blobs
                .iter()
                .filter_map(|name| parse_blob_name(name).ok())
                .all(|name| is_gone(&remote.delete_upload(name)))
    }
}

fn is_gone(deleted: &rpc::Result<()>) -> bool {
    matches!(deleted, Ok(()) | Err(rpc::Error::NotFound { .. }))
}

/// A query. What it leaves on the server is deleted at its end, or by the next command that
/// connects.
struct Query<'a> {
    remote: &'a Remote,
    owner: Owner,
    layout: Layout,
    model: &'a Model,
    request: [u8; 16],
    folder: PathBuf,
    form: RowForm,
    leftovers: QueryLeftovers,
    job: Option<JobId>,
}

impl Query<'_> {
    fn ask(&mut self, features: &Matrix, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<Matrix> {
        let normalised = self.model.normalisation.apply(features)?;
        // Labels are not sent, but a data set needs them.
        let rows = normalised.rows();
        let set = LabelledMatrix::new(normalised, vec![0; rows], self.model.classes.len())?;
        let ranges = row_blobs::ranges(rows, self.layout.geometry().rows());
        let row_norm = self.model.normalisation.row_norm();
        let Self { owner, layout, folder, form, .. } = &*self;
        let writer = RowBlobWriter { owner, layout, folder, form: *form, row_norm };
        let mut row_blobs = Vec::new();
        for (k, range) in ranges.iter().enumerate() {
            on_progress(ProgressEvent::Encrypting { done: k, total: ranges.len() });
            let rows = RowsToEncrypt { set: &set, with_labels: false, weights: None };
            row_blobs.push(writer.write(rows, range.clone(), format!("query-{k:04}.ct"))?);
        }
        self.leftovers.blobs = row_blobs.iter().map(|row_blob| row_blob.blob.clone()).collect();
        project::write(&self.folder.join(LEFTOVERS), &self.leftovers)?;
        for row_blob in &row_blobs {
            let mut progress = |held, all| on_progress(ProgressEvent::SendingRows { sent: held, total: all });
            let path = self.folder.join(&row_blob.file);
            self.remote.upload_exactly(BlobKind::Features, &path, row_blob.digest()?, &mut progress)?;
        }
        let queries = row_blobs.iter().map(RowBlobFile::reference).collect::<Result<_>>()?;
        let training = &self.model.training;
        let job = parse_job(self.model)?;
        let wish =
            ClassificationRequest { job, weights: parse_blob_name(&training.weights)?, queries, form: self.form };
        let job = self.remote.classify(self.request, &self.leftovers.label, &wish)?;
        self.job = Some(job.id);
        let outputs = self.wait(&job, on_progress)?;
        let rows: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let Self { remote, owner, layout, folder, .. } = &*self;
        let mut logits =
            Outputs { remote, job: job.id, owner, layout, folder }.logits(&outputs, &rows, training.range)?;
        // The encrypted weights are those before the prior was subtracted.
        if let Some(prior) = &self.model.prior {
            for row in 0..logits.rows() {
                logits.row_mut(row).iter_mut().zip(&prior.shift).for_each(|(logit, shift)| *logit -= shift);
            }
        }
        Ok(logits)
    }

    fn wait(&self, job: &JobInfo, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<Vec<Output>> {
        let mut watch = self.remote.watch(job.id, 0);
        while let Some(Event { kind, .. }) = watch.next_event()? {
            match kind {
                EventKind::Finished(outputs) => return Ok(outputs),
                EventKind::Progress(progress) => on_progress(ProgressEvent::Working(progress)),
                EventKind::Failed { reason } => return Err(Error::JobFailed { reason }),
                EventKind::Cancelled => return Err(Error::JobCancelled),
                _ => {}
            }
        }
        Err(rpc::Error::Cut { job: job.id }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that are too long are found among others. Nothing is left to send if all are.
    #[test]
    fn outliers_are_found() {
        let model = crate::model::tests::model();
        let mut rows = Matrix::from_fn(30, model.features(), |_, j| j as f64);
        assert!(outliers(&model, &rows).unwrap().is_empty());
        rows[(6, 1)] = 1e5;
        (8..25).for_each(|row| rows[(row, 2)] = -1e5);
        let expected: Vec<usize> = std::iter::once(6).chain(8..25).collect();
        assert_eq!(outliers(&model, &rows).unwrap(), expected);
        (0..30).for_each(|row| rows[(row, 2)] = -1e5);
        let said = outliers(&model, &rows).unwrap_err().to_string();
        assert!(said.starts_with("30 rows (the first are 1, 2, 3, 4, 5, 6, 7, 8, 9, 10): more than "), "{said}");
    }
}
