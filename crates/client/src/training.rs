//! A training from its first key to the decrypted classifier. Everything that was done is on disk before the next thing begins,
//! so a training that was killed goes on where it stopped.

use crate::model::Provenance;
use crate::project::{KeySet, io, remove_if_there};
use crate::remote::{Batch, BlobKind, BlobName, Event, Happening, Job, JobId, Output, Progress, Remote, Validation};
use crate::uploads::{self, Upload};
use crate::{Error, Layout, Model, Owner, Project, Result, Task, project, reference, remote};
use hetal_ckks::{Ciphertext, Params};
use hetal_keys::durable::NewFile;
use hetal_learn::judge::{cross_entropy, wider};
use hetal_learn::{Judge, Matrix, Verdict, Wishes, packing, twin};
use hetal_ring::Poly;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An epoch is asked for again (with a lower rate, a wider range) at most so often in all.
const REPEATS: usize = 3;
/// Logits beyond this multiple of their range come from no training.
const ABSURD: f64 = 1000.0;
/// The loss of the returned weights may differ from the one that was validated by this.
const LOSS_TOLERANCE: f64 = 0.01;

/// How to train.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the training and of its model.
    pub name: String,
    /// What to ask the server for.
    pub wishes: Wishes,
    /// Whether to compare with exact training on this machine.
    pub check: bool,
    /// Whether a model of this name may be replaced.
    pub replace: bool,
    /// How long after the logits a verdict leaves.
    pub verdict_delay: Duration,
}

impl Options {
    /// The usual, for a name.
    pub fn new(name: &str) -> Self {
        let (wishes, verdict_delay) = (Wishes::default(), remote::VERDICT_DELAY);
        Self { name: name.to_owned(), wishes, check: true, replace: false, verdict_delay }
    }
}

/// Something that is being done, for progress bars.
#[derive(Clone, Debug)]
pub enum Step {
    /// Keys are made: how many of how many.
    Keys(usize, usize),
    /// Batches are encrypted: how many of how many.
    Encrypting(usize, usize),
    /// Keys are sent: bytes the server has, of all.
    SendingKeys(u64, u64),
    /// Encrypted rows are sent: bytes the server has, of all.
    SendingRows(u64, u64),
    /// The server has put the job in its queue.
    Queued,
    /// The server computes, on this engine.
    Started(String),
    /// The server's work is so far.
    Working(Progress),
    /// An epoch was judged.
    Judged(Round),
    /// Exact training on this machine, to compare with.
    Checking,
}

/// An epoch that was judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// What the server was told.
    pub verdict: Verdict,
    /// Mean cross-entropy on the validation rows.
    pub loss: f64,
    /// Share of the validation rows that were right.
    pub accuracy: f64,
    /// The largest magnitude of a logit.
    pub largest: f64,
}

/// Where the time went, in seconds, summed over all runs of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encrypting rows.
    pub encrypting: f64,
    /// Sending keys and rows.
    pub sending: f64,
    /// Waiting for the server, verdicts included.
    pub training: f64,
    /// Of it, iterations whose beginning and end were seen, and how many these were.
    pub iterations: (f64, u64),
    /// Everything.
    pub all: f64,
}

/// A training as it is on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The rows it is about.
    fingerprint: String,
    layout: String,
    keys: String,
    wishes: Wishes,
    batches: Vec<Upload>,
    validation: Vec<Upload>,
    /// The job on a server, once it was asked for.
    job: Option<JobRecord>,
    /// Payload bytes that really left: keys and rows.
    sent: (u64, u64),
    seconds: Seconds,
    finished: bool,
}

const VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct JobRecord {
    server: String,
    /// Names the wish for a job, so that asking twice makes one.
    request: String,
    id: Option<String>,
    judge: Option<Judge>,
    range: f64,
    rounds: Vec<Round>,
    iterations: u64,
}

/// A training that has ended well.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The classifier.
    pub model: Model,
    /// Where it was saved.
    pub path: PathBuf,
    /// Every epoch that was judged.
    pub rounds: Vec<Round>,
    /// Exact training: its weights for normalised features, where the server told enough.
    pub twin: Option<Matrix>,
    /// The largest difference to the twin's weights over their largest magnitude.
    pub difference: Option<f64>,
    /// Bytes of the key set.
    pub key_bytes: u64,
    /// Bytes of all encrypted rows.
    pub row_bytes: u64,
    /// Payload bytes that really left, of keys and of rows: fewer where the server had them.
    pub sent: (u64, u64),
    /// Where the time went.
    pub seconds: Seconds,
    /// Seconds the keys took when they were made.
    pub key_seconds: f64,
}

/// A training in progress.
pub struct Training<'a> {
    project: &'a mut Project,
    remote: &'a Remote,
    task: &'a Task,
    options: &'a Options,
    layout: Layout,
    owner: Owner,
    folder: PathBuf,
    record: Record,
    began: Instant,
}

/// The parameter set of a project.
pub fn params(project: &Project) -> Result<Arc<Params>> {
    Ok(Arc::new(Params::named(&project.settings().set)?))
}

/// Makes sure that a project has a secret key, and loads it.
pub fn owner(project: &Project) -> Result<Owner> {
    let (params, path) = (params(project)?, project.secret());
    // A file without a byte is what is left of a program that was killed while it took the name.
    if path.metadata().is_ok_and(|m| m.len() == 0) {
        remove_if_there(&path)?;
    }
    if path.exists() {
        return Owner::load(params, &path);
    }
    let owner = Owner::fresh(params)?;
    owner.save(&path)?;
    Ok(owner)
}

/// Makes sure that a project has the key set of a layout; there is only ever one.
pub fn ensure_keys(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<KeySet> {
    let path = project.key_set();
    if let Some(keys) = project.settings().keys.clone() {
        if keys.layout != layout.key() {
            return Err(Error::OtherKeys { has: keys.layout, needs: layout.key() });
        }
        if path.metadata().is_ok_and(|m| m.len() == keys.bytes) {
            return Ok(keys);
        }
    }
    let start = Instant::now();
    let wanted = layout.keys()?;
    let mut file = HashedFile::create(&path)?;
    let mut made = 0;
    owner.write_keys(&wanted, &mut file, || {
        made += 1;
        report(Step::Keys(made, wanted.len()));
    })?;
    let (blob, bytes) = file.finish(&path)?;
    let keys = KeySet { blob, bytes, layout: layout.key(), seconds: start.elapsed().as_secs_f64() };
    project.update(|settings| settings.keys = Some(keys.clone()))?;
    Ok(keys)
}

/// A file that is hashed while it is written.
struct HashedFile {
    file: std::io::BufWriter<NewFile>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl HashedFile {
    fn create(path: &Path) -> Result<Self> {
        let file = NewFile::create(path).map_err(|e| io("creating", path, &e))?;
        Ok(Self { file: std::io::BufWriter::with_capacity(1 << 20, file), hasher: blake3::Hasher::new(), bytes: 0 })
    }

    fn finish(self, path: &Path) -> Result<(String, u64)> {
        let file = self.file.into_inner().map_err(|e| io("writing", path, e.error()))?;
        file.finish().map_err(|e| io("writing", path, &e))?;
        Ok((self.hasher.finalize().to_hex().to_string(), self.bytes))
    }
}

impl std::io::Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// The rows of a batch: what was wished for, or the server's default, or all rows if there are fewer.
pub fn batch_rows(wishes: &Wishes, offer: &remote::Offer, rows: usize) -> usize {
    wishes.batch.unwrap_or(offer.defaults.batch).min(rows)
}

impl<'a> Training<'a> {
    /// Begins a training, or takes up the one of this name that was interrupted.
    pub fn open(
        project: &'a mut Project,
        remote: &'a Remote,
        task: &'a Task,
        options: &'a Options,
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Self> {
        let began = Instant::now();
        let params = params(project)?;
        if !remote.offer().accepts(params.id()) {
            let offered = remote.offer().sets.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::SetRefused { set: params.name().to_owned(), offered });
        }
        if project.model(&options.name)?.exists() && !options.replace {
            return Err(Error::ModelExists { name: options.name.clone() });
        }
        let batch = batch_rows(&options.wishes, remote.offer(), task.training.rows());
        let wishes = Wishes { batch: Some(batch), ..options.wishes.clone() };
        let classes = task.classes.len();
        let layout = Layout::new(params, batch, task.features(), classes, remote.offer().defaults.range)?;
        let owner = owner(project)?;
        let keys = ensure_keys(project, &owner, &layout, report)?;
        let folder = project.job(&options.name)?;
        let record = match project::read::<Record>(&folder.join("job.json"))? {
            Some(record) if record.fits(task, &layout, &keys, &wishes) => record.again_if_finished(),
            Some(record) if !record.finished && !options.replace => {
                return Err(Error::OtherTraining { name: options.name.clone() });
            }
            _ => Record::begin(&owner, &layout, task, &keys, wishes, &folder, report)?,
        };
        let mut training = Self { project, remote, task, options, layout, owner, folder, record, began };
        training.save()?;
        Ok(training)
    }

    fn save(&mut self) -> Result<()> {
        self.record.seconds.all += self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        project::write(&self.folder.join("job.json"), &self.record)
    }

    /// Sends what the server does not have, waits for it, judges epochs, decrypts.
    pub fn run(mut self, report: &mut (dyn FnMut(Step) + Send)) -> Result<Trained> {
        self.send(report)?;
        let job = self.job()?;
        let start = Instant::now();
        let outcome = self.follow(&job, report);
        self.record.seconds.training += start.elapsed().as_secs_f64();
        self.save()?;
        match outcome {
            Ok(outputs) => self.finish(&job, &outputs, report),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, report: &mut (dyn FnMut(Step) + Send)) -> Result<()> {
        let start = Instant::now();
        let path = self.project.key_set();
        let sent = self.remote.upload(BlobKind::Keys, &path, &mut |held, all| report(Step::SendingKeys(held, all)))?;
        require_blob(&path, &sent.name, &self.record.keys)?;
        self.record.sent.0 += sent.sent;
        let all = self.record.row_bytes();
        let mut before = 0;
        let (batches, validation) = (self.record.batches.clone(), self.record.validation.clone());
        let kinds =
            batches.iter().map(|u| (BlobKind::Batch, u)).chain(validation.iter().map(|u| (BlobKind::Features, u)));
        for (kind, upload) in kinds {
            uploads::check(&self.folder, upload)?;
            let path = self.folder.join(&upload.file);
            let mut progress = |held, _| report(Step::SendingRows(before + held, all));
            let sent = self.remote.upload(kind, &path, &mut progress)?;
            require_blob(&path, &sent.name, &upload.blob)?;
            self.record.sent.1 += sent.sent;
            before += upload.bytes;
        }
        self.record.seconds.sending += start.elapsed().as_secs_f64();
        self.save()
    }

    /// The job on the server: the one that was asked for, or a new one.
    fn job(&mut self) -> Result<Job> {
        if self.record.job.is_none() {
            let mut request = [0; 16];
            getrandom::fill(&mut request).map_err(|_| Error::Interrupted)?;
            let request = request.iter().map(|b| format!("{b:02x}")).collect();
            let range = self.remote.offer().defaults.range;
            let server = self.remote.server().to_owned();
            let rounds = Vec::new();
            let record = JobRecord { server, request, id: None, judge: None, range, rounds, iterations: 0 };
            self.record.job = Some(record);
            // On disk before the server hears of it: asked for twice, it is made once.
            self.save()?;
        }
        let request = self.job_record()?.request.clone();
        let request = request.parse::<JobId>().map_err(|e| Error::Protocol { what: e.to_string() })?.0;
        let training = remote::Training {
            set: *self.layout.params.id(),
            features: self.task.features(),
            classes: self.task.classes.len(),
            keys: blob(&self.record.keys)?,
            batches: self.record.batches.iter().map(to_batch).collect::<Result<_>>()?,
            validation: self.record.validation.iter().map(to_batch).collect::<Result<_>>()?,
            wishes: self.record.wishes.clone(),
        };
        let job = self.remote.train(request, &self.options.name, &training)?;
        let terms = job.terms.clone().ok_or_else(|| Error::hostile("a training without terms"))?;
        if Some(terms.batch) != self.record.wishes.batch || terms.range != self.remote.offer().defaults.range {
            return Err(Error::hostile(format!("terms of {} rows and range {}", terms.batch, terms.range)));
        }
        let record = self.job_record()?;
        record.id = Some(job.id.to_string());
        record.judge.get_or_insert_with(|| Judge::new(terms.patience, terms.range, REPEATS));
        self.save()?;
        Ok(job)
    }

    fn job_record(&mut self) -> Result<&mut JobRecord> {
        self.record.job.as_mut().ok_or(Error::Interrupted)
    }

    /// Follows the job to its end, judging every epoch.
    fn follow(&mut self, job: &Job, report: &mut (dyn FnMut(Step) + Send)) -> Result<Vec<Output>> {
        let remote = self.remote;
        let mut watch = remote.watch(job.id, 0);
        let mut clock = IterationClock::default();
        while let Some(Event { what, .. }) = watch.next_event()? {
            match what {
                Happening::Queued => report(Step::Queued),
                Happening::Started { engine, .. } => report(Step::Started(engine)),
                Happening::Progress(progress) => {
                    clock.tick(&progress, &mut self.record.seconds.iterations);
                    let record = self.job_record()?;
                    record.iterations = record.iterations.max(progress.iterations);
                    report(Step::Working(progress));
                }
                Happening::Validation(validation) => self.answer(job, &validation, report)?,
                Happening::Judged { .. } => {}
                Happening::Finished(outputs) => return Ok(outputs),
                Happening::Failed { reason } => {
                    self.record.job = None;
                    self.save()?;
                    return Err(Error::JobFailed { reason });
                }
                Happening::Cancelled => {
                    self.record.job = None;
                    self.save()?;
                    return Err(Error::JobCancelled);
                }
            }
        }
        Err(remote::Error::Cut { job: job.id }.into())
    }

    /// Gives the verdict on a round: the one that was given before, or a new one. What no honest server sends is a stop, like any other.
    fn answer(&mut self, job: &Job, validation: &Validation, report: &mut (dyn FnMut(Step) + Send)) -> Result<()> {
        let number = validation.round as usize;
        let known = self.job_record()?.rounds.len();
        if number < known {
            return Ok(());
        }
        let most = job.terms.as_ref().map_or(0, |terms| terms.max_epochs);
        let mut fault = None;
        if number > known {
            let judged = if number == known + 1 && number <= most {
                self.judge(job, validation)
            } else {
                Err(Error::hostile(format!("round {number} after {known} of at most {most}")))
            };
            let round = judged.or_else(|error| match error {
                Error::Hostile { .. } | Error::Remote(remote::Error::Size { .. } | remote::Error::Damaged { .. }) => {
                    fault = Some(error);
                    Ok(Round { verdict: Verdict::Stop, loss: f64::MAX, accuracy: 0.0, largest: f64::MAX })
                }
                other => Err(other),
            })?;
            let record = self.job_record()?;
            record.rounds.push(round);
            if round.verdict == Verdict::WidenRange {
                record.range = wider(record.range).unwrap_or(record.range);
            }
            // On disk before it leaves: a round has one verdict.
            self.save()?;
            report(Step::Judged(round));
        }
        let verdict = self.job_record()?.rounds.last().map_or(Verdict::Stop, |round| round.verdict);
        self.remote.judge_after(job.id, validation, verdict, self.options.verdict_delay)?;
        fault.map_or(Ok(()), Err)
    }

    /// Decrypts the logits of the validation rows and judges them.
    fn judge(&mut self, job: &Job, validation: &Validation) -> Result<Round> {
        let (expected, got) = (self.record.validation.len(), validation.logits.len());
        let range = self.job_record()?.range;
        if got != expected || validation.range != range {
            return Err(Error::hostile(format!(
                "{got} ciphertexts of logits at range {}, {expected} at {range} belong there",
                validation.range
            )));
        }
        let scale = self.layout.scale(range)?;
        let mut values = Vec::new();
        for (k, output) in validation.logits.iter().enumerate() {
            let rows = self.record.validation[k].rows;
            let path = self.folder.join(format!("logits-{k}.ct"));
            let ct = self.fetch(job, output, self.layout.logit_bytes(), self.layout.ledger().logits(), &path)?;
            let opened = self.owner.open(&ct)?.expose();
            let logits = packing::unpack_logits(self.layout.geometry(), &opened, rows)?;
            values.extend(logits.values().iter().map(|t| scale * t));
            remove_if_there(&path)?;
        }
        let largest = values.iter().fold(0.0, |m: f64, v| if v.is_nan() { f64::INFINITY } else { m.max(v.abs()) });
        if largest > ABSURD * range {
            return Err(Error::hostile(format!("a logit of {largest:e} where {range} is the range")));
        }
        let logits = Matrix::new(self.task.validation.rows(), self.task.classes.len(), values)?;
        let labels = self.task.validation.labels();
        let judge = self.job_record()?.judge.as_mut().ok_or(Error::Interrupted)?;
        let judgement = judge.judge(&logits, labels)?;
        let (verdict, loss, accuracy) = (judgement.verdict, judgement.loss, judgement.accuracy);
        Ok(Round { verdict, loss, accuracy, largest: judgement.largest })
    }

    /// Downloads a ciphertext and checks that it is of the level it should have.
    fn fetch(&self, job: &Job, output: &Output, size: u64, level: usize, path: &Path) -> Result<Ciphertext<Poly>> {
        fetch(self.remote, job.id, &self.owner, output, size, level, path)
    }

    /// Decrypts the weights of the best epoch and saves the model.
    fn finish(mut self, job: &Job, outputs: &[Output], report: &mut (dyn FnMut(Step) + Send)) -> Result<Trained> {
        let record = self.job_record()?.clone();
        let best = record.judge.as_ref().and_then(Judge::best_epoch).ok_or(Error::NothingLearned)?;
        let output = outputs
            .iter()
            .find(|output| output.epoch == best)
            .ok_or_else(|| Error::hostile(format!("the weights of epoch {best} are not among those returned")))?;
        let path = self.folder.join("weights.ct");
        let (size, level) = (self.layout.weight_bytes(), self.layout.ledger().weights());
        let parts = fetch_all(self.remote, job.id, &self.owner, output, size, level, &path)?;
        let parts: Vec<_> = parts.iter().map(|ct| Ok(self.owner.open(ct)?.expose())).collect::<Result<_>>()?;
        let weights = packing::unpack_weights(self.layout.geometry(), &parts)?;
        let round = self.require_validated(&weights, &record.rounds, best)?;
        let twin = self.twin(job, &record.rounds, best, report)?;
        let difference = twin.as_ref().map(|twin| weights.max_difference(twin));
        let training = self.provenance(job, &record, output, best, round)?;
        let noise = difference.map(|d| 4.0 * d);
        let normalisation = self.task.normalisation.clone();
        let model =
            Model::new(&self.options.name, self.task.classes.clone(), &weights, normalisation, noise, training)?;
        let place = self.project.model(&self.options.name)?;
        model.save(&place)?;
        remove_if_there(&path)?;
        self.record.finished = true;
        self.save()?;
        Ok(Trained {
            difference: difference.zip(twin.as_ref()).map(|(d, twin)| d / twin.max_magnitude()),
            model,
            path: place,
            rounds: record.rounds,
            twin,
            key_bytes: self.project.settings().keys.as_ref().map_or(0, |keys| keys.bytes),
            row_bytes: self.record.row_bytes(),
            sent: self.record.sent,
            seconds: self.record.seconds,
            key_seconds: self.project.settings().keys.as_ref().map_or(0.0, |keys| keys.seconds),
        })
    }

    /// Checks that weights are those whose logits were judged.
    fn require_validated(&self, weights: &Matrix, rounds: &[Round], best: usize) -> Result<Round> {
        let accepted = |round: &&Round| matches!(round.verdict, Verdict::Continue | Verdict::Stop);
        let round = rounds.iter().filter(accepted).nth(best - 1).copied().ok_or(Error::NothingLearned)?;
        let validation = &self.task.validation;
        let loss = cross_entropy(&twin::logits(validation.features(), weights)?, validation.labels())?;
        // Not a number is not close either.
        if (loss - round.loss).abs() <= LOSS_TOLERANCE * (1.0 + round.loss) {
            return Ok(round);
        }
        Err(Error::hostile(format!("the weights returned have loss {loss}, those validated had {}", round.loss)))
    }

    fn twin(
        &self,
        job: &Job,
        rounds: &[Round],
        best: usize,
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Option<Matrix>> {
        let Some(terms) = job.terms.as_ref().filter(|_| self.options.check) else { return Ok(None) };
        let told = (terms.rate, terms.lowering, terms.momentum, terms.seed);
        let (Some(rate), Some(lowering), Some(momentum), Some(seed)) = told else { return Ok(None) };
        report(Step::Checking);
        let terms = reference::Terms { batch: terms.batch, rate, lowering, momentum, seed };
        reference::train(self.task, &terms, rounds, best)
    }

    fn provenance(
        &self,
        job: &Job,
        record: &JobRecord,
        output: &Output,
        best_epoch: usize,
        round: Round,
    ) -> Result<Provenance> {
        let terms = job.terms.clone().unwrap_or_default();
        let accepted = record.rounds.iter().filter(|r| matches!(r.verdict, Verdict::Continue | Verdict::Stop));
        Ok(Provenance {
            set: self.layout.params.name().to_owned(),
            rows: self.task.training.rows(),
            validation_rows: self.task.validation.rows(),
            batch: terms.batch,
            rate: terms.rate,
            patience: terms.patience,
            max_epochs: terms.max_epochs,
            range: terms.range,
            epochs: accepted.count(),
            best_epoch,
            iterations: (record.rounds.len() * self.layout.batches(self.record.batches.len())) as u64,
            validation_loss: round.loss,
            validation_accuracy: round.accuracy,
            server: record.server.clone(),
            job: job.id.to_string(),
            weights: output.blob.to_string(),
        })
    }
}

impl Record {
    /// Encrypts all rows: they are on disk before the first of them leaves.
    fn begin(
        owner: &Owner,
        layout: &Layout,
        task: &Task,
        keys: &KeySet,
        wishes: Wishes,
        folder: &Path,
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Self> {
        let start = Instant::now();
        let training = layout.pieces(task.training.rows());
        let validation = uploads::ranges(task.validation.rows(), layout.geometry().rows());
        let all = training.len() + validation.len();
        let mut done = 0;
        let mut encrypt = |set, rows, with_labels, name: &str| -> Result<Upload> {
            report(Step::Encrypting(done, all));
            let file = format!("{name}-{done:04}.ct");
            done += 1;
            uploads::encrypt(owner, layout, set, rows, with_labels, folder, file)
        };
        let batches = training.into_iter().map(|r| encrypt(&task.training, r, true, "batch")).collect::<Result<_>>()?;
        let validation =
            validation.into_iter().map(|r| encrypt(&task.validation, r, false, "validation")).collect::<Result<_>>()?;
        report(Step::Encrypting(all, all));
        Ok(Self {
            version: VERSION,
            fingerprint: task.fingerprint(),
            layout: layout.key(),
            keys: keys.blob.clone(),
            wishes,
            batches,
            validation,
            job: None,
            sent: (0, 0),
            seconds: Seconds { encrypting: start.elapsed().as_secs_f64(), ..Seconds::default() },
            finished: false,
        })
    }

    /// Whether it is about these rows, keys and wishes.
    fn fits(&self, task: &Task, layout: &Layout, keys: &KeySet, wishes: &Wishes) -> bool {
        self.version == VERSION
            && self.layout == layout.key()
            && self.keys == keys.blob
            && self.wishes == *wishes
            && self.fingerprint == task.fingerprint()
    }

    /// A training that has ended begins again with the rows that are encrypted already.
    fn again_if_finished(self) -> Self {
        if !self.finished {
            return self;
        }
        let seconds = Seconds { encrypting: self.seconds.encrypting, ..Seconds::default() };
        Self { job: None, sent: (0, 0), seconds, finished: false, ..self }
    }

    fn row_bytes(&self) -> u64 {
        self.batches.iter().chain(&self.validation).map(|upload| upload.bytes).sum()
    }
}

/// Sums up the time of iterations between two reports of the same epoch.
#[derive(Default)]
struct IterationClock {
    last: Option<(Progress, Instant)>,
}

impl IterationClock {
    fn tick(&mut self, progress: &Progress, sum: &mut (f64, u64)) {
        let now = Instant::now();
        if let Some((last, then)) = &self.last {
            let more = progress.iterations.saturating_sub(last.iterations);
            if more > 0 && last.epoch == progress.epoch && last.phase == remote::Phase::Training {
                *sum = (sum.0 + (now - *then).as_secs_f64(), sum.1 + more);
            }
        }
        self.last = Some((*progress, now));
    }
}

/// Downloads a ciphertext that a job made and checks that it is of the level it should have.
pub(crate) fn fetch(
    remote: &Remote,
    job: JobId,
    owner: &Owner,
    output: &Output,
    size: u64,
    level: usize,
    path: &Path,
) -> Result<Ciphertext<Poly>> {
    let mut all = fetch_all(remote, job, owner, output, size, level, path)?.into_iter();
    match (all.next(), all.next()) {
        (Some(ct), None) => Ok(ct),
        _ => Err(Error::hostile("a blob of other than one ciphertext")),
    }
}

/// Downloads ciphertexts, one after the other in a blob, that a job made and checks that they are of the level they should have.
fn fetch_all(
    remote: &Remote,
    job: JobId,
    owner: &Owner,
    output: &Output,
    size: u64,
    level: usize,
    path: &Path,
) -> Result<Vec<Ciphertext<Poly>>> {
    remote.download(job, output, size, path, &mut |_, _| ())?;
    let bytes = std::fs::read(path).map_err(|e| io("reading", path, &e))?;
    let (codec, mut rest, mut all) = (owner.codec(), &bytes[..], Vec::new());
    let (limbs, scale) = (owner.params.limbs(level), owner.params.scale(level));
    while !rest.is_empty() {
        let ct: Ciphertext<Poly> = codec.read(&mut rest).map_err(|e| Error::hostile(e.to_string()))?;
        if ct.limbs != limbs || (ct.scale / scale - 1.0).abs() > 1e-9 {
            return Err(Error::hostile(format!("a ciphertext of {} primes where {limbs} belong", ct.limbs)));
        }
        all.push(ct);
    }
    Ok(all)
}

pub(crate) fn blob(text: &str) -> Result<BlobName> {
    text.parse().map_err(|e: hetal_wire::NameError| Error::Protocol { what: e.to_string() })
}

pub(crate) fn to_batch(upload: &Upload) -> Result<Batch> {
    Ok(Batch { blob: blob(&upload.blob)?, rows: upload.rows })
}

fn require_blob(path: &Path, found: &BlobName, expected: &str) -> Result<()> {
    if found.to_string() == expected {
        return Ok(());
    }
    Err(Error::Damaged { path: path.to_owned(), reason: "its bytes are not those that were written".to_owned() })
}
