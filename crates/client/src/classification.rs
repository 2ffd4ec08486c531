//! Classes of rows that the server never sees, under weights that it cannot read.

use crate::model::require_finite;
use crate::outputs::Outputs;
use crate::owner::{hex, random_name};
use crate::remote::{BlobKind, Classification, Event, Happening, Job, Output, Remote};
use crate::training::Step;
use crate::uploads::{blob, to_batch};
use crate::{Error, Layout, Model, Owner, Project, Result, keys, remote, uploads};
use hetal_learn::{Dataset, Matrix};
use hetal_wire::{BlobName, JobId};
use std::path::PathBuf;

/// Logits of rows under the encrypted weights of a model that a training left on the server.
pub fn logits(
    project: &mut Project,
    remote: &Remote,
    model: &Model,
    features: &Matrix,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<Matrix> {
    if features.columns() != model.features() {
        return Err(Error::FeatureCount { found: features.columns(), expected: model.features() });
    }
    require_finite(features)?;
    let owner = keys::existing_owner(project)?;
    if model.training.key_id != Some(owner.key_id()) {
        let help = "classify without --remote, or in the project it was trained in, or train it again";
        return Err(Error::OtherKeyModel { model: model.name.clone(), help });
    }
    let training = &model.training;
    // The server's circuit for queries is the one the training began with.
    let layout =
        Layout::new(keys::params(project)?, training.batch, model.features(), model.classes.len(), training.range)?;
    let request = random_name()?;
    let folder = project.job(&format!("query-{}", hex(&request[..6])))?;
    let mut query = Query { remote, owner, layout, model, request, folder, sent: Vec::new(), job: None };
    let logits = query.ask(features, report);
    query.forget(&logits);
    logits
}

/// Rows on their way to a server and back. What they leave there is deleted at the end, what they leave here in any case.
struct Query<'a> {
    remote: &'a Remote,
    owner: Owner,
    layout: Layout,
    model: &'a Model,
    request: [u8; 16],
    folder: PathBuf,
    /// What the server holds because of them.
    sent: Vec<BlobName>,
    job: Option<JobId>,
}

impl Query<'_> {
    fn ask(&mut self, features: &Matrix, report: &mut (dyn FnMut(Step) + Send)) -> Result<Matrix> {
        let normalised = self.model.normalisation.apply(features)?;
        // Labels are not sent; the packing of features wants a whole set.
        let rows = normalised.rows();
        let set = Dataset::new(normalised, vec![0; rows], self.model.classes.len())?;
        let ranges = uploads::ranges(rows, self.layout.geometry().rows());
        let mut queries = Vec::new();
        for (k, range) in ranges.iter().enumerate() {
            report(Step::Encrypting(k, ranges.len()));
            let file = format!("query-{k:04}.ct");
            let upload = uploads::encrypt(&self.owner, &self.layout, &set, range.clone(), false, &self.folder, file)?;
            let query = to_batch(&upload)?;
            self.sent.push(query.blob);
            let mut progress = |held, all| report(Step::SendingRows(held, all));
            let path = self.folder.join(&upload.file);
            self.remote.upload_exactly(BlobKind::Features, &path, (query.blob, upload.bytes), &mut progress)?;
            queries.push(query);
        }
        let training = &self.model.training;
        let id =
            training.job.parse().map_err(|_| Error::Protocol { what: "the model's job has no name".to_owned() })?;
        let wish = Classification { job: id, weights: blob(&training.weights)?, queries };
        let job = self.remote.classify(self.request, &hex(&self.request[..6]), &wish)?;
        self.job = Some(job.id);
        let outputs = self.wait(&job, report)?;
        let rows: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
        let Self { remote, owner, layout, folder, .. } = &*self;
        Outputs { remote, job: job.id, owner, layout, folder }.logits(&outputs, &rows, training.range)
    }

    fn wait(&self, job: &Job, report: &mut (dyn FnMut(Step) + Send)) -> Result<Vec<Output>> {
        let mut watch = self.remote.watch(job.id, 0);
        while let Some(Event { what, .. }) = watch.next_event()? {
            match what {
                Happening::Finished(outputs) => return Ok(outputs),
                Happening::Progress(progress) => report(Step::Working(progress)),
                Happening::Failed { reason } => return Err(Error::JobFailed { reason }),
                Happening::Cancelled => return Err(Error::JobCancelled),
                _ => {}
            }
        }
        Err(remote::Error::Cut { job: job.id }.into())
    }

    /// Everything the job made is ours to forget. A server that does not let us keeps ciphertexts it has seen anyway: that is no reason to
    /// lose the answer, and one that cannot be reached is not tried again.
    fn forget(&self, outcome: &Result<Matrix>) {
        if matches!(outcome, Err(Error::Remote(remote::Error::Unreachable { .. } | remote::Error::Late { .. }))) {
            return;
        }
        if let Some(job) = self.job {
            if outcome.is_err() {
                let _ = self.remote.cancel(job);
            }
            let _ = self.remote.delete(job);
        }
        self.sent.iter().for_each(|&name| {
            let _ = self.remote.delete_upload(name);
        });
    }
}

impl Drop for Query<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
