//! Classes of rows that the server never sees, under weights that it cannot read.

use crate::project::remove_if_there;
use crate::remote::{BlobKind, Classification, Event, Happening, Remote};
use crate::training::{Step, blob, fetch, owner, params, to_batch};
use crate::{Error, Layout, Model, Project, Result, remote, uploads};
use hetal_learn::{Dataset, Matrix, packing};

/// Logits of rows under the encrypted weights of a model that a training left on the server.
pub fn logits(
    project: &Project,
    remote: &Remote,
    model: &Model,
    features: &Matrix,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<Matrix> {
    if features.columns() != model.features() {
        return Err(Error::FeatureCount { found: features.columns(), expected: model.features() });
    }
    let (classes, training) = (model.classes.len(), &model.training);
    // The server's circuit for queries is the one the training began with.
    let range = training.range;
    let layout = Layout::new(params(project)?, training.batch, model.features(), classes, range)?;
    let owner = owner(project)?;
    let normalised = model.normalisation.apply(features)?;
    // Labels are not sent; the packing of features wants a whole set.
    let rows = normalised.rows();
    let set = Dataset::new(normalised, vec![0; rows], classes)?;
    let mut request = [0; 16];
    getrandom::fill(&mut request).map_err(|_| Error::Interrupted)?;
    let name: String = request[..6].iter().map(|b| format!("{b:02x}")).collect();
    let folder = project.job(&format!("query-{name}"))?;
    let ranges = uploads::ranges(rows, layout.geometry().rows());
    let mut queries = Vec::new();
    for (k, range) in ranges.iter().enumerate() {
        report(Step::Encrypting(k, ranges.len()));
        let file = format!("query-{k:04}.ct");
        let upload = uploads::encrypt(&owner, &layout, &set, range.clone(), false, &folder, file)?;
        let path = folder.join(&upload.file);
        remote.upload(BlobKind::Features, &path, &mut |held, all| report(Step::SendingRows(held, all)))?;
        queries.push(to_batch(&upload)?);
        remove_if_there(&path)?;
    }
    let id = training.job.parse().map_err(|_| Error::hostile("the model's job has no name"))?;
    let wish = Classification { job: id, weights: blob(&training.weights)?, queries };
    let job = remote.classify(request, &name, &wish)?;
    let mut watch = remote.watch(job.id, 0);
    let outputs = loop {
        match watch.next_event()? {
            Some(Event { what: Happening::Finished(outputs), .. }) => break outputs,
            Some(Event { what: Happening::Progress(progress), .. }) => report(Step::Working(progress)),
            Some(Event { what: Happening::Failed { reason }, .. }) => return Err(Error::JobFailed { reason }),
            Some(Event { what: Happening::Cancelled, .. }) => return Err(Error::JobCancelled),
            Some(_) => {}
            None => return Err(remote::Error::Cut { job: job.id }.into()),
        }
    };
    if outputs.len() != ranges.len() {
        return Err(Error::hostile(format!("{} ciphertexts of logits for {} queries", outputs.len(), ranges.len())));
    }
    let scale = layout.scale(range)?;
    let mut values = Vec::with_capacity(rows * classes);
    for (output, range) in outputs.iter().zip(&ranges) {
        let path = folder.join("logits.ct");
        let ct = fetch(remote, job.id, &owner, output, layout.logit_bytes(), layout.ledger().logits(), &path)?;
        let opened = packing::unpack_logits(layout.geometry(), &owner.open(&ct)?.expose(), range.len())?;
        values.extend(opened.values().iter().map(|t| scale * t));
        remove_if_there(&path)?;
    }
    // Everything the job made is ours to forget, here and there.
    remote.delete(job.id)?;
    let _ = std::fs::remove_dir_all(&folder);
    Ok(Matrix::new(rows, classes, values)?)
}
