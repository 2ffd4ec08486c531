//! Classification jobs.

use crate::Result;
use crate::compute::executor::Executor;
use crate::jobs::spec::ClassificationSpec;
use crate::store::blobs::Namespace;
use crate::worker::attempt::Attempt;
use crate::worker::retry::AttemptOutcome;
use hetal_wire::v1;

/// Computes the logits of queries with the weights of a training.
pub fn classify<W: Executor>(attempt: &Attempt<'_>, executor: &W, work: &ClassificationSpec) -> Result<AttemptOutcome> {
    let circuit = executor.circuit(work.training.agreement.range)?;
    let weights = executor.load(Namespace::Job(work.job), work.weights, executor.parts())?;
    let weights = executor.expand(&circuit, &weights)?;
    let mut outputs = Vec::new();
    for (index, row_blob) in work.queries.iter().enumerate() {
        if let Some(outcome) = attempt.interruption()? {
            return Ok(outcome);
        }
        let (done, total) = (index as u64, work.queries.len() as u64);
        let phase = v1::Phase::Classifying.into();
        attempt.report(v1::Progress { phase, done, total, ..v1::Progress::default() });
        let rows = executor.rows(&circuit, row_blob, false)?;
        let (blob, size) = executor.put_logits(&executor.logits(&circuit, &rows, &weights)?)?;
        outputs.push(v1::Output { blob: blob.to_vec().into(), size, check: 0, rows: row_blob.rows as u32 });
    }
    attempt.finish(outputs)?;
    Ok(AttemptOutcome::Ended)
}
