//! Follows a job: events as they arrive, and a verdict for every round.

use super::judged::BestCheck;
use super::pipeline::{Arrival, DecidedVerdicts, Dispatch, EventReceiver, due, goes_back, send_verdicts};
use super::{IterationTime, ProgressEvent, REPEATS, Round, TrainingRun};
use crate::ciphertexts::Outputs;
use crate::rpc::{EventKind, JobInfo, JobProgress, Output, Phase, Validation};
use crate::{Cancellation, Error, Result, rpc};
use hetal_learn::Verdict;
use hetal_learn::session::MOST_OPEN;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A verdict of an earlier run is not sent again before this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Logits that were announced, and how many more may be after a stop.
struct Rounds<'a> {
    decided: &'a DecidedVerdicts,
    dispatches: Sender<Dispatch>,
    after_stop: usize,
}

impl TrainingRun<'_> {
    /// Follows the job to its end and judges every round. A server that misbehaves is followed to
    /// the end like an honest one after `stop`: otherwise it could tell from what the client does
    /// next what its logits decrypted to.
    pub(super) fn follow(
        &mut self,
        job: &JobInfo,
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Vec<Output>> {
        let decided = DecidedVerdicts::new(self.job_record()?.rounds.iter().map(|round| round.verdict).collect());
        let (remote, layout, folder) = (self.remote, self.layout.clone(), self.folder.clone());
        let (blobs, stop) = (self.saved.validation.len(), Cancellation::default());
        let (arrived, arrivals) = channel();
        let (dispatches, dispatched) = channel();
        std::thread::scope(|scope| {
            let receive = EventReceiver {
                remote,
                job: job.id,
                layout: &layout,
                folder: &folder,
                blobs,
                decided: &decided,
                stop: &stop,
            };
            let (failed, decided) = (arrived.clone(), &decided);
            scope.spawn(move || receive.run(&arrived));
            scope.spawn(move || send_verdicts(remote, job.id, decided, &dispatched, &failed));
            let mut rounds = Rounds { decided, dispatches, after_stop: 0 };
            let outcome = self.judge_arrivals(job, &arrivals, &mut rounds, on_progress);
            // The sender ends with its queue, and the receiver with the next event.
            stop.cancel();
            outcome
        })
    }

    fn judge_arrivals(
        &mut self,
        job: &JobInfo,
        arrivals: &Receiver<Arrival>,
        rounds: &mut Rounds<'_>,
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Vec<Output>> {
        let mut clock = IterationClock::default();
        while let Ok(arrival) = arrivals.recv() {
            let kind = match arrival {
                Arrival::Failed(error) => return Err(error),
                Arrival::Logits(validation, files) => {
                    self.answer(job, validation, files, rounds, on_progress)?;
                    continue;
                }
                Arrival::Event(kind) => kind,
            };
            match kind {
                EventKind::Queued => on_progress(ProgressEvent::Queued),
                EventKind::Started { engine, .. } => on_progress(ProgressEvent::Started(engine)),
                EventKind::Progress(JobProgress { resting: true, .. }) if self.options.leave_resting => {
                    return Err(Error::Resting);
                }
                EventKind::Progress(progress) => {
                    clock.tick(&progress, &mut self.saved.seconds.iterations);
                    on_progress(ProgressEvent::Working(progress));
                }
                EventKind::Validation(_) => {}
                EventKind::Judged { round } => {
                    let _ = rounds.dispatches.send(Dispatch::Taken(round as usize));
                    let record = self.job_record()?;
                    let is_stop = record.rounds.last().is_some_and(|round| round.verdict == Verdict::Stop);
                    if is_stop && round as usize >= record.rounds.len() {
                        // It knows that it has to stop.
                        rounds.after_stop = MOST_OPEN;
                    }
                }
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

    /// Decides the verdict on a round: the recorded one, or a new one. The verdict on what no
    /// honest server sends is `stop`, and after a stop no other verdict is sent.
    fn answer(
        &mut self,
        job: &JobInfo,
        validation: Validation,
        files: Result<Vec<PathBuf>>,
        rounds: &mut Rounds<'_>,
        on_progress: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<()> {
        if validation.round as usize <= rounds.decided.known && files.is_ok() {
            return self.repeat_verdict(validation, rounds);
        }
        let record = self.job_record()?;
        let is_stopped = record.rounds.last().is_some_and(|round| round.verdict == Verdict::Stop);
        // A verdict threw these logits away while they were computed.
        let gone = is_stopped || files.is_ok() && validation.repeats < repeats(&record.rounds);
        if is_stopped {
            rounds.after_stop += 1;
            if rounds.after_stop >= MOST_OPEN {
                return Err(Error::hostile(format!("round {} after the verdict stop", validation.round)));
            }
        }
        let judged = files.and_then(|files| self.judge_in_order(job, &validation, &files, gone));
        let (round, fault) = stop_after_fault(judged)?;
        if gone {
            // Nothing is sent. The work is the same.
            self.save_judged()?;
            return self.save();
        }
        let record = self.job_record()?;
        record.add_round(round);
        record.fault = fault;
        let number = record.rounds.len();
        // The verdict is on disk before it leaves: a round has only one verdict. The work is
        // the same in every round, also after a fault.
        self.save_judged()?;
        self.save()?;
        rounds.decided.decide(round.verdict);
        on_progress(ProgressEvent::Judged { number, round });
        let _ = rounds.dispatches.send(Dispatch::Verdict(due(validation, round.verdict, self.options.verdict_delay)));
        Ok(())
    }

    /// Sends the verdict that an earlier run decided, and may not have sent. If the server has it,
    /// the next event says so.
    fn repeat_verdict(&mut self, validation: Validation, rounds: &Rounds<'_>) -> Result<()> {
        let before = validation.round as usize - 1;
        let record = self.job_record()?;
        if validation.repeats == repeats(&record.rounds[..before]) {
            let (verdict, delay) = (record.rounds[before].verdict, self.options.verdict_delay.max(AGAIN));
            let _ = rounds.dispatches.send(Dispatch::Verdict(due(validation, verdict, delay)));
        }
        Ok(())
    }

    /// Judges logits, unless an honest server would not send them now.
    fn judge_in_order(
        &mut self,
        job: &JobInfo,
        validation: &Validation,
        files: &[PathBuf],
        gone: bool,
    ) -> Result<Round> {
        let batches = self.layout.batches(self.saved.batches.len());
        let record = self.job_record()?;
        let (number, known) = (validation.round as usize, record.rounds.len());
        let most = record.terms.checks(batches) + repeats(&record.rounds).min(REPEATS);
        if !gone && (number != known + 1 || number > most) {
            return Err(Error::hostile(format!("round {number} after {known} of at most {most}")));
        }
        self.judge(job, validation, files, gone)
    }

    /// Decrypts the validation logits and judges them. Of logits that are `gone` nothing is kept.
    fn judge(&mut self, job: &JobInfo, validation: &Validation, files: &[PathBuf], gone: bool) -> Result<Round> {
        let range = self.job_record()?.range;
        if validation.range != range && !gone {
            return Err(Error::hostile(format!("logits of range {} instead of {range}", validation.range)));
        }
        let rows: Vec<usize> = self.saved.validation.iter().map(|row_blob| row_blob.rows).collect();
        let logits = self.outputs(job).validation_logits(files, &rows, range)?;
        let (labels, weights) = (self.data.validation.labels(), self.data.validation_weights.as_deref());
        // A copy, because the round counts only when it is on disk.
        let mut judge = self.job_record()?.judge.clone().ok_or(Error::Interrupted)?;
        let before = judge.best_check();
        let checks = judge.checks();
        let judgement = judge.judge_weighted(&logits, labels, weights)?;
        let accepted = judge.checks() > checks;
        if !gone {
            let best = judge.best_check();
            if let Some(check) = best.filter(|_| best != before) {
                self.best = BestCheck::new(check, &logits);
            }
            self.job_record()?.judge = Some(judge);
        }
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

/// The judged round, or `stop` with the misbehaviour of the server. Other errors stay errors.
fn stop_after_fault(judged: Result<Round>) -> Result<(Round, Option<String>)> {
    judged.map(|round| (round, None)).or_else(|error| {
        let fault = error.misbehaviour().ok_or(error)?;
        let (loss, largest) = (f64::MAX, f64::MAX);
        Ok((Round { verdict: Verdict::Stop, accepted: false, loss, accuracy: 0.0, largest }, Some(fault)))
    })
}

/// How often these rounds went back to an accepted check.
fn repeats(rounds: &[Round]) -> usize {
    rounds.iter().filter(|round| goes_back(round.verdict)).count()
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
