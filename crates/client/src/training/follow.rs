//! Follows a job: events as they arrive, and a verdict for every round.

use super::judged::BestEpoch;
use super::{IterationTime, ProgressEvent, REPEATS, Round, TrainingRun};
use crate::ciphertexts::Outputs;
use crate::rpc::{Event, EventKind, JobInfo, JobProgress, Output, Phase, Validation};
use crate::{Error, Result, rpc};
use hetal_learn::Verdict;
use hetal_learn::judge::NEAR_THE_END;
use std::time::Instant;

impl TrainingRun<'_> {
    /// Follows the job to its end and judges every round. A server that misbehaves is followed to
    /// the end like an honest one after `stop`: otherwise it could tell from what the client does
    /// next what its logits decrypted to.
    pub(super) fn follow(
        &mut self,
        job: &JobInfo,
        report: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Vec<Output>> {
        let remote = self.remote;
        let mut watch = remote.watch(job.id, 0);
        let mut clock = IterationClock::default();
        while let Some(Event { kind, .. }) = watch.next_event()? {
            match kind {
                EventKind::Queued => report(ProgressEvent::Queued),
                EventKind::Started { engine, .. } => report(ProgressEvent::Started(engine)),
                EventKind::Progress(JobProgress { resting: true, .. }) if self.options.leave_resting => {
                    return Err(Error::Resting);
                }
                EventKind::Progress(progress) => {
                    clock.tick(&progress, &mut self.record.seconds.iterations);
                    report(ProgressEvent::Working(progress));
                }
                EventKind::Validation(validation) => self.answer(job, &validation, report)?,
                EventKind::Judged { .. } => {}
                EventKind::Finished(outputs) => return Ok(outputs),
                EventKind::Failed { reason } => {
                    self.forget_job()?;
                    return Err(Error::JobFailed { reason });
                }
                EventKind::Cancelled => {
                    self.forget_job()?;
                    return Err(Error::JobCancelled);
                }
            }
        }
        Err(rpc::Error::Cut { job: job.id }.into())
    }

    /// Sends the verdict on a round: the recorded one, or a new one. The verdict on what no honest
    /// server sends is `stop`, and after a stop no other verdict is sent.
    fn answer(
        &mut self,
        job: &JobInfo,
        validation: &Validation,
        report: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<()> {
        let number = validation.round as usize;
        let record = self.job_record()?;
        let repeated = record.rounds.iter().filter(|round| !round.accepted).count().min(REPEATS);
        let (known, most) = (record.rounds.len(), record.terms.max_epochs + repeated);
        if number < known {
            return Ok(());
        }
        if number > known {
            if record.rounds.last().is_some_and(|round| round.verdict == Verdict::Stop) {
                return Err(Error::hostile(format!("round {number} after the verdict stop")));
            }
            let judged = if number == known + 1 && number <= most {
                self.judge(job, validation)
            } else {
                Err(Error::hostile(format!("round {number} after {known} of at most {most}")))
            };
            let mut fault = None;
            let round: Result<Round> = judged.or_else(|error| {
                fault = Some(error.misbehaviour().ok_or(error)?);
                Ok(Round { verdict: Verdict::Stop, accepted: false, loss: f64::MAX, accuracy: 0.0, largest: f64::MAX })
            });
            let round = round?;
            let record = self.job_record()?;
            record.add_round(round);
            record.fault = fault;
            // The verdict is on disk before it leaves: a round has only one verdict. The work is
            // the same in every round, also after a fault.
            self.save_judged()?;
            self.save()?;
            report(ProgressEvent::Judged { number, round });
        }
        let verdict = self.job_record()?.rounds.last().map_or(Verdict::Stop, |round| round.verdict);
        Ok(self.remote.judge_after(job.id, validation, verdict, self.options.verdict_delay)?)
    }

    /// Decrypts the validation logits and judges them.
    fn judge(&mut self, job: &JobInfo, validation: &Validation) -> Result<Round> {
        let range = self.job_record()?.range;
        if validation.range != range {
            return Err(Error::hostile(format!("logits of range {} instead of {range}", validation.range)));
        }
        let rows: Vec<usize> = self.record.validation.iter().map(|row_blob| row_blob.rows).collect();
        let logits = self.outputs(job).validation_logits(&validation.logits, &rows, range)?;
        let (labels, weights) = (self.data.validation.labels(), self.data.validation_weights.as_deref());
        // A copy, because the round counts only when it is on disk.
        let mut judge = self.job_record()?.judge.clone().ok_or(Error::Interrupted)?;
        let before = judge.best_epoch();
        let judgement = judge.judge_weighted(&logits, labels, weights)?;
        let best = judge.best_epoch();
        if let Some(epoch) = best.filter(|_| best != before) {
            self.best = BestEpoch::new(epoch, &logits);
        }
        self.job_record()?.judge = Some(judge);
        // With larger logits the judge changes the range or the rate and accepts no epoch.
        let accepted = judgement.largest <= NEAR_THE_END * range;
        Ok(Round {
            verdict: judgement.verdict,
            accepted,
            loss: judgement.loss,
            accuracy: judgement.accuracy,
            largest: judgement.largest,
        })
    }

    pub(super) fn outputs(&self, job: &JobInfo) -> Outputs<'_> {
        let Self { remote, owner, layout, folder, .. } = self;
        Outputs { remote, job: job.id, owner, layout, folder }
    }
}

/// Measures the time of iterations between two progress reports of the same epoch.
#[derive(Default)]
struct IterationClock {
    last: Option<(JobProgress, Instant)>,
}

impl IterationClock {
    fn tick(&mut self, progress: &JobProgress, sum: &mut IterationTime) {
        let now = Instant::now();
        if let Some((last, then)) = &self.last {
            let more = progress.iterations.saturating_sub(last.iterations);
            if more > 0 && last.epoch == progress.epoch && last.phase == Phase::Training {
                sum.seconds += (now - *then).as_secs_f64();
                sum.count += more;
            }
        }
        self.last = Some((*progress, now));
    }
}
