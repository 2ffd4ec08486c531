//! Hostile servers. The client detects every lie, sends at most one `stop`, and explains what
//! happened. The tests also count everything that the client sends.
#![allow(clippy::unwrap_used, clippy::panic)]

mod liar;

use hetal_client::data::{Labels, Preparation};
use hetal_client::layout::LayoutShape;
use hetal_client::project::OpenJob;
use hetal_client::rpc::Remote;
use hetal_client::training::{ProgressEvent, Trained, TrainingOptions, TrainingRun};
use hetal_client::{Error, Labelled, Layout, Model, Owner, Project, Result, RowFormWish, TrainingData, keys, predict};
use hetal_keys::{Passphrase, locked_file};
use hetal_learn::{KeyPlan, Matrix, Scaling, Verdict, Wishes};
use hetal_testkit::TempDir;
use hetal_wire::v1;
use liar::{BATCH, EPOCHS, Liar, Lie};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const SET: &str = "insecure-toy11";
const CLASSES: [&str; 3] = ["canary-yellow", "canary-red", "canary-blue"];
const FEATURES: usize = 6;
/// The retry timeout: longer than an honest answer takes on a busy machine.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// Rows of three clusters.
fn labelled() -> Labelled {
    let mut state = 11u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let class = |row: usize| (row * 7 + row / 5) % 3;
    let features =
        Matrix::from_fn(70, FEATURES, |i, h| f64::from(u8::from(h % 3 == class(i))) * 1.5 + next() + 0.123_456_789);
    Labelled {
        features,
        labels: Labels::Texts((0..70).map(|i| CLASSES[class(i)].to_owned()).collect()),
        file: String::new(),
        columns: None,
        weights: None,
    }
}

/// A project with keys, and a server that knows the secret key.
struct Stage {
    folder: TempDir,
    task: TrainingData,
    liar: Liar,
    /// Locks the decrypted values of the project.
    passphrase: Option<Passphrase>,
    retry_timeout: Duration,
}

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new();
        let rows = |range: std::ops::Range<usize>| labelled().selected(&range.collect::<Vec<_>>());
        let (training, validation) = (rows(0..62), rows(62..70));
        let task = TrainingData::new(&training, Some(&validation), &Preparation::scaled(Scaling::None)).unwrap();
        let mut project = Project::open(&folder.path().join("p"), Some(SET)).unwrap();
        let shape = LayoutShape {
            batch: BATCH,
            features: FEATURES,
            classes: 3,
            range: 128.0,
            weighted: false,
            key_plan: KeyPlan::Fast,
        };
        let layout = Layout::new(keys::params(&project).unwrap(), shape).unwrap();
        let owner = keys::owner(&mut project).unwrap();
        keys::ensure_set(&mut project, &owner, &layout, &mut |_| ()).unwrap();
        let stolen = Owner::load(keys::params(&project).unwrap(), &project.secret(), None).unwrap();
        let liar = Liar::start(stolen, layout, task.clone());
        Self { folder, task, liar, passphrase: None, retry_timeout: RETRY_TIMEOUT }
    }

    /// With a retry timeout that no silence of this server reaches. A shorter one asks for the
    /// state of the job when it passes, which would depend on the speed of the machine.
    fn patient() -> Self {
        Self { retry_timeout: Duration::from_secs(60), ..Self::new() }
    }

    fn locked() -> Self {
        let passphrase = Passphrase::new("a b c".to_owned().into()).unwrap();
        Self { passphrase: Some(passphrase), ..Self::new() }
    }

    fn project(&self) -> Project {
        let mut project = Project::existing(&self.folder.path().join("p")).unwrap();
        project.set_passphrase(self.passphrase.clone());
        project
    }

    fn remote(&self) -> Remote {
        Remote::connect(&self.liar.address(self.retry_timeout)).unwrap()
    }

    /// Trains on a server that tells a lie.
    fn train(&self, lie: Lie, name: &str) -> Result<Trained> {
        self.liar.lie(lie);
        self.train_again(name)
    }

    fn train_again(&self, name: &str) -> Result<Trained> {
        self.train_with(&options(name))
    }

    fn train_with(&self, options: &TrainingOptions) -> Result<Trained> {
        self.train_and_report(options, &mut |_| ())
    }

    fn train_and_report(
        &self,
        options: &TrainingOptions,
        report: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Result<Trained> {
        let (mut project, remote) = (self.project(), self.remote());
        TrainingRun::open(&mut project, &remote, &self.task, options, report)?.run(report)
    }

    /// The file of a training.
    fn file(&self, name: &str, file: &str) -> std::path::PathBuf {
        self.folder.path().join("p/jobs").join(name).join(file)
    }

    /// Changes a JSON file of a training.
    fn edit(&self, name: &str, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.file(name, file);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(&path, value.to_string()).unwrap();
    }

    /// Interrupts a training on an honest server after its first verdict. The server keeps the job.
    fn interrupt(&self, name: &str) {
        self.liar.lie(Lie::None);
        let stalled = self.train_and_report(&options(name), &mut |event| {
            if matches!(event, ProgressEvent::Judged { .. }) {
                self.liar.seen().lie = Some(Lie::StalledDownload);
            }
        });
        assert!(message(stalled).contains("does not answer"));
        self.liar.seen().lie = Some(Lie::None);
    }

    /// What the server sees of a training that starts with no connection open and ends so.
    fn calls(
        &self,
        lie: Lie,
        options: &TrainingOptions,
        report: &mut (dyn FnMut(ProgressEvent) + Send),
    ) -> Vec<String> {
        self.liar.wait_until_left();
        self.liar.lie(lie);
        let result = self.train_and_report(options, report);
        assert_eq!(result.is_ok(), !matches!(lie, Lie::AbsurdLater), "{lie:?}: {:?}", result.err());
        self.liar.wait_until_left();
        std::mem::take(&mut self.liar.seen().calls)
    }

    fn verdicts(&self) -> Vec<v1::Verdict> {
        self.liar.seen().verdicts.iter().map(|(_, verdict, _)| *verdict).collect()
    }
}

fn options(name: &str) -> TrainingOptions {
    let mut options = TrainingOptions::new(name);
    options.verify = true;
    options.wishes = Wishes { batch: Some(BATCH), max_epochs: Some(EPOCHS), patience: Some(2), ..Wishes::default() };
    options.verdict_delay = Duration::ZERO;
    options
}

/// If the server's GPU fails, the client waits or returns an error, as its options say.
#[test]
fn a_server_that_rests_is_waited_for_or_left() {
    let stage = Stage::new();
    stage.liar.lie(Lie::Rests);
    let mut options = options("model");
    options.leave_resting = true;
    assert!(matches!(stage.train_with(&options), Err(Error::Resting)));
    assert_eq!(stage.verdicts(), []);
    options.leave_resting = false;
    stage.train_with(&options).unwrap();
    assert_eq!(stage.liar.seen().jobs, 1, "it went on with the job that it had left");
}

/// An interrupted connection is reported once.
#[test]
fn a_broken_connection_is_told_of_once() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let Stage { liar, .. } = Stage::new();
    let mut remote = Remote::connect(&liar.address(Duration::from_secs(4))).unwrap();
    let told = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&told);
    remote.on_break(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(remote.jobs().is_ok());
    drop(liar);
    assert!(remote.jobs().is_err());
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

/// The downloads after the last verdict: those of the weights.
fn weight_downloads(calls: &[String]) -> Vec<&str> {
    let last = calls.iter().rposition(|call| call.starts_with("Judge")).unwrap();
    calls[last + 1..].iter().map(String::as_str).filter(|call| call.starts_with("Download")).collect()
}

/// Whichever check is the best, the client downloads the weights of all of them, in order.
#[test]
fn every_returned_check_is_downloaded_in_order() {
    let stage = Stage::patient();
    let mut wished = options("rising");
    let rising = stage.calls(Lie::None, &wished, &mut |_| ());
    // One ciphertext of logits a round, and then the weights of three epochs.
    assert_eq!(weight_downloads(&rising), ["Download Some(3) 0", "Download Some(4) 0", "Download Some(5) 0"]);
    wished.name = "falling".to_owned();
    let falling = stage.calls(Lie::WorseLater, &wished, &mut |_| ());
    assert_eq!(weight_downloads(&falling), weight_downloads(&rising));
    let best = |name: &str| Model::load(&stage.folder.path().join(format!("p/models/{name}.json"))).unwrap().training;
    assert_eq!(best("falling").best_epoch, 1);
    assert!(best("rising").best_epoch > 1, "another check is taken");
    assert!(!stage.file("falling", "weights-0000.ct").exists(), "downloads are removed at the end");
}

/// A stop because of what logits decrypted to looks like any other stop, from the verdict to the
/// end of the connection. The connection ends before the client computes the plaintext reference.
#[test]
fn a_server_cannot_tell_why_the_client_stops() {
    let stage = Stage::patient();
    let named = |name: &str| {
        let mut options = options(name);
        options.wishes.patience = Some(1);
        options
    };
    // The first training also sends the key set.
    stage.calls(Lie::None, &named("first"), &mut |_| ());
    let mut closed = false;
    let honest = stage.calls(Lie::WorseLater, &named("honest"), &mut |event| {
        if matches!(event, ProgressEvent::Checking) {
            stage.liar.wait_until_left();
            closed = true;
        }
    });
    assert!(closed, "the reference is computed");
    let caught = stage.calls(Lie::AbsurdLater, &named("caught"), &mut |_| ());
    assert!(honest.iter().any(|call| call.starts_with("Judge 2 Stop")), "{honest:?}");
    assert_eq!(honest.last().map(String::as_str), Some("Close"));
    assert_eq!(caught, honest);
    // The same command asks for nothing more, with or without misbehaviour.
    let again = |name: &str| {
        stage.liar.wait_until_left();
        stage.liar.lie(Lie::None);
        assert!(stage.train_with(&named(name)).is_err());
        stage.liar.wait_until_left();
        std::mem::take(&mut stage.liar.seen().calls)
    };
    assert_eq!(again("caught"), again("honest"));
    // Nor is a server that was caught told that its training is replaced.
    let replaced = |name: &str| {
        let mut options = named(name);
        (options.replace, options.wishes.max_epochs) = (true, Some(1));
        stage.calls(Lie::None, &options, &mut |_| ())
    };
    assert_eq!(replaced("caught"), replaced("honest"));
}

/// A client that is interrupted after it caught a server follows the job to its end first.
#[test]
fn an_interrupted_client_leaves_like_any_other() {
    let stage = Stage::new();
    stage.liar.lie(Lie::AbsurdLater);
    let mut wished = options("cut");
    wished.wishes.patience = Some(1);
    message(stage.train_with(&wished));
    stage.edit("cut", "job.json", |record| {
        assert_eq!(record["job"]["left"], true);
        record["job"]["left"] = false.into();
    });
    for file in ["weights-0000.ct", "weights-0001.ct"] {
        std::fs::remove_file(stage.file("cut", file)).unwrap();
    }
    stage.liar.wait_until_left();
    stage.liar.seen().calls.clear();
    let said = message(stage.train_with(&wished));
    assert!(said.contains("far beyond their range"), "{said}");
    stage.liar.wait_until_left();
    let calls = std::mem::take(&mut stage.liar.seen().calls);
    assert_eq!(calls.iter().filter(|call| call.starts_with("Download")).count(), 2, "{calls:?}");
    assert!(matches!(stage.train_with(&wished), Err(Error::KnownHostile { .. })));
}

/// After a verdict that the server refused, a client that found a fault does what any other does.
#[test]
fn a_refused_verdict_tells_nothing() {
    let stage = Stage::patient();
    stage.train(Lie::None, "first").unwrap();
    let calls = |lie, name: &str| {
        let mut wished = options(name);
        wished.wishes.patience = Some(1);
        stage.liar.wait_until_left();
        stage.liar.lie(lie);
        let twice = [(); 2].map(|()| {
            assert!(stage.train_with(&wished).is_err());
            stage.liar.wait_until_left();
            std::mem::take(&mut stage.liar.seen().calls)
        });
        // In the end the server accepts the verdict.
        stage.liar.seen().lie = Some(Lie::None);
        (twice, stage.train_with(&wished).err())
    };
    let (honest, end) = calls(Lie::WorseRefused, "honest");
    assert!(end.is_none(), "{end:?}");
    let (caught, end) = calls(Lie::AbsurdRefused, "caught");
    assert!(matches!(end, Some(Error::Hostile { .. })), "{end:?}");
    assert_eq!(honest, caught);
    assert!(honest[1].iter().any(|call| call.starts_with("Judge 2 Stop")), "{honest:?}");
}

/// A passing fault of the server, such as a full disk, is waited out during uploads and verdicts.
#[test]
fn passing_faults_are_waited_out() {
    let stage = Stage::new();
    stage.liar.lie(Lie::PassingFaults);
    let (mut project, options) = (stage.project(), options("patient"));
    let remote = Remote::connect(&stage.liar.address(Duration::from_secs(60))).unwrap();
    let training = TrainingRun::open(&mut project, &remote, &stage.task, &options, &mut |_| ()).unwrap();
    let trained = training.run(&mut |_| ()).unwrap();
    assert!(trained.difference.unwrap() < 1e-4);
    let calls = std::mem::take(&mut stage.liar.seen().calls);
    let count = |prefix: &str| calls.iter().filter(|call| call.starts_with(prefix)).count();
    assert_eq!(count("Judge 1"), 3, "{calls:?}");
    assert!(count("Upload") > 2 && count("BeginUpload") > 4, "{calls:?}");
}

/// Everything that was uploaded has the hash that it was announced with.
fn assert_uploads_are_whole(stage: &Stage) {
    for (name, bytes) in &stage.liar.seen().uploads {
        assert_eq!(blake3::hash(bytes).as_bytes()[..], name[..]);
    }
}

/// The blobs of the batches of a training.
fn batch_blobs(stage: &Stage, name: &str) -> Vec<String> {
    let record = std::fs::read(stage.file(name, "job.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    record["batches"].as_array().unwrap().iter().map(|batch| batch["blob"].as_str().unwrap().to_owned()).collect()
}

/// A batch that the server lost is sent again by the next command: from its file, or encrypted
/// again under new seeds if the file is lost too.
#[test]
fn what_the_server_lost_is_sent_again() {
    let stage = Stage::new();
    let has = |blob: &str| {
        let name: hetal_client::rpc::BlobName = blob.parse().unwrap();
        stage.liar.seen().uploads.contains_key(&name.0[..])
    };
    let said = message(stage.train(Lie::LosesBatch, "first"));
    assert!(said.contains("a batch is damaged") && said.contains("sends what the server has lost"), "{said}");
    let before = batch_blobs(&stage, "first");
    assert!(!has(&before[0]) && has(&before[1]));
    stage.train(Lie::None, "first").unwrap();
    assert_eq!(batch_blobs(&stage, "first"), before, "the same bytes");
    assert!(has(&before[0]));

    // The job was requested, so the client believes that the server has everything.
    message(stage.train(Lie::StalledDownload, "second"));
    let before = batch_blobs(&stage, "second");
    let name: hetal_client::rpc::BlobName = before[0].parse().unwrap();
    stage.liar.seen().uploads.remove(&name.0[..]);
    let file = stage.file("second", "batch-0000.ct");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    stage.train(Lie::None, "second").unwrap();
    let after = batch_blobs(&stage, "second");
    assert!(after[0] != before[0] && after[1..] == before[1..], "one batch is another blob");
    assert!(has(&after[0]) && !has(&before[0]));
    assert!(stage.liar.seen().cancelled > 0, "its old job is cancelled");
    assert_uploads_are_whole(&stage);
}

/// A job that failed while nobody followed it is replaced by a new one, and the owner is told.
#[test]
fn a_job_that_failed_meanwhile_is_replaced() {
    let stage = Stage::new();
    message(stage.train(Lie::StalledDownload, "away"));
    stage.liar.lie(Lie::FailedMeanwhile);
    let mut reasons = Vec::new();
    let trained = stage.train_and_report(&options("away"), &mut |event| {
        if let ProgressEvent::Restarted { reason } = event {
            reasons.push(reason);
        }
    });
    assert!(trained.is_ok(), "{:?}", trained.err());
    assert_eq!(reasons, ["a batch is damaged"]);
}

/// If the record of a training is lost, its job is cancelled: the next one would wait behind it.
#[test]
fn the_job_of_a_lost_record_is_cancelled() {
    let stage = Stage::new();
    message(stage.train(Lie::StalledDownload, "lost"));
    assert_eq!(stage.project().settings().jobs.len(), 1);
    std::fs::remove_file(stage.file("lost", "job.json")).unwrap();
    stage.liar.lie(Lie::None);
    let mut cancelled = Vec::new();
    let trained = stage.train_and_report(&options("lost"), &mut |event| {
        if let ProgressEvent::Abandoned { cancelled: own, .. } = event {
            cancelled.push(own);
        }
    });
    assert!(trained.is_ok(), "{:?}", trained.err());
    assert_eq!((cancelled, stage.liar.seen().cancelled), (vec![true], 1));
    assert!(stage.project().settings().jobs.is_empty(), "it has ended");
}

/// Without the rounds that were judged, neither the next round nor the weights can be judged. The
/// next command starts a new job.
#[test]
fn lost_logits_lead_to_a_new_job() {
    for stage in [Stage::new(), Stage::locked()] {
        let counts = || {
            let seen = stage.liar.seen();
            (seen.jobs, seen.cancelled)
        };
        for (k, is_gone) in [true, false].into_iter().enumerate() {
            let name = format!("judged-{k}");
            stage.interrupt(&name);
            let best = stage.file(&name, "best.json");
            let mut bytes = std::fs::read(&best).unwrap();
            assert_eq!(locked_file::is_locked(&bytes), stage.passphrase.is_some());
            std::fs::remove_file(&best).unwrap();
            if !is_gone {
                let middle = bytes.len() / 2;
                bytes[middle] = b'!';
                bytes.truncate(bytes.len() - 1);
                std::fs::write(&best, bytes).unwrap();
            }
            let (jobs, _) = counts();
            let said = message(stage.train_again(&name));
            assert!(said.contains("best.json") && said.contains("Run the command again"), "{said}");
            assert_eq!(counts(), (jobs, 1));
            stage.train_again(&name).unwrap();
            assert_eq!(counts(), (jobs + 1, 1));
        }
    }
}

/// Every round writes the private file anew, with a key that was derived before the first round:
/// the time of a verdict does not tell whether a check was the best, or what its logits were.
#[test]
fn every_round_does_the_same_work() {
    let stage = Stage::locked();
    let mut lengths = Vec::new();
    for (lie, rounds) in [(Lie::WorseLater, 3), (Lie::AbsurdLater, 2), (Lie::AbsurdLogits, 1)] {
        let (name, mut files) = (format!("{lie:?}"), Vec::new());
        stage.liar.lie(lie);
        let result = stage.train_and_report(&options(&name), &mut |event| {
            if matches!(event, ProgressEvent::Judged { .. }) {
                files.push(std::fs::read(stage.file(&name, "best.json")).unwrap_or_default());
            }
        });
        assert_eq!((result.is_ok(), files.len()), (lie == Lie::WorseLater, rounds), "{lie:?}");
        assert!(files.iter().all(|file| locked_file::is_locked(file)), "{lie:?}");
        // Header, costs, salt and nonce: one salt means one derived key.
        assert!(files.iter().all(|file| file[36..52] == files[0][36..52]), "{lie:?}: a key was derived anew");
        let nonces: std::collections::BTreeSet<&[u8]> = files.iter().map(|file| &file[52..64]).collect();
        assert_eq!(nonces.len(), rounds, "{lie:?}: a round wrote nothing, or reused a nonce");
        lengths.push(files[0].len());
    }
    let (most, least) = (lengths.iter().max().unwrap(), lengths.iter().min().unwrap());
    assert!(most - least < 256, "{lengths:?}");
}

/// What was decrypted is in the private file only, which the passphrase locks. An interrupted
/// training continues with it, also if an earlier version wrote the files.
#[test]
fn decrypted_values_are_locked_and_a_training_goes_on() {
    let stage = Stage::locked();
    stage.interrupt("locked");
    let record = std::fs::read_to_string(stage.file("locked", "job.json")).unwrap();
    assert!(["loss", "largest", "accuracy", "best"].iter().all(|word| !record.contains(word)), "{record}");
    assert!(locked_file::is_locked(&std::fs::read(stage.file("locked", "best.json")).unwrap()));
    assert!(stage.train_again("locked").is_ok());
    assert_eq!(stage.liar.seen().jobs, 1, "the same job");

    let stage = Stage { passphrase: None, ..stage };
    stage.interrupt("earlier");
    let mut judged = Value::Null;
    stage.edit("earlier", "best.json", |best| {
        judged = best.clone();
        *best = serde_json::json!({ "epoch": best["epoch"], "logits": best["logits"] });
    });
    stage.edit("earlier", "job.json", |record| {
        let job = record["job"].as_object_mut().unwrap();
        job.remove("judged");
        job.extend(["judge", "rounds"].map(|field| (field.to_owned(), judged[field].clone())));
    });
    let (mut project, remote, wished) = (stage.project(), stage.remote(), options("earlier"));
    drop(TrainingRun::open(&mut project, &remote, &stage.task, &wished, &mut |_| ()).unwrap());
    drop(project);
    let trained = stage.train_again("earlier").unwrap();
    assert_eq!((trained.rounds.len(), stage.liar.seen().jobs), (EPOCHS, 2), "the same job");
}

/// A client that is killed between its two files knows the verdict that it has written.
#[test]
fn a_round_has_one_verdict_wherever_the_client_is_killed() {
    let stage = Stage::new();
    stage.interrupt("killed");
    stage.edit("killed", "job.json", |record| {
        assert_eq!(record["job"]["judged"], 1);
        record["job"]["judged"] = 0.into();
    });
    stage.edit("killed", "best.json", |judged| {
        judged["rounds"][0]["verdict"] = "Stop".into();
        judged["fault"] = "a fault".into();
    });
    stage.liar.seen().verdicts.clear();
    let said = message(stage.train_again("killed"));
    assert!(said.contains("a fault"), "{said}");
    // The server has said that it took a verdict on this round. After a stop there is no other.
    assert_eq!(stage.verdicts(), []);
}

fn message(result: Result<Trained>) -> String {
    match result {
        Ok(_) => panic!("the lie was believed"),
        Err(error) => error.to_string(),
    }
}

/// The client sends two bits per check, and nothing of the rows or the key.
#[test]
fn an_honest_training_tells_two_bits_a_check_and_nothing_of_the_rows() {
    let stage = Stage::new();
    let trained = stage.train(Lie::None, "honest").unwrap();
    let (difference, shown) = (trained.difference.unwrap(), trained.difference_bound().unwrap());
    assert!(difference < 1e-4, "{difference}");
    // What is shown of the difference follows from the noise bound, a power of two.
    let noise = shown * 4.0 * trained.reference.as_ref().unwrap().max_magnitude();
    assert!(difference <= shown && shown <= 2.0 * difference, "{difference} {shown}");
    assert!((noise.log2() - noise.log2().round()).abs() < 1e-9, "{noise}");
    let seen = stage.liar.seen();
    assert!(!seen.verdicts.is_empty() && seen.verdicts.len() <= EPOCHS, "{:?}", seen.verdicts);
    let rounds: Vec<u32> = seen.verdicts.iter().map(|(round, _, _)| *round).collect();
    assert_eq!(rounds, (1..=rounds.len() as u32).collect::<Vec<_>>(), "one verdict a round");
    assert!(seen.verdicts.iter().all(|(_, _, size)| *size == seen.verdicts[0].2), "of one size");
    // Four verdicts are two bits. Nothing else that the client sends depends on decrypted values.
    let all = labelled();
    let secret = std::fs::read(stage.folder.path().join("p/secret.key")).unwrap();
    let mut canaries: Vec<Vec<u8>> = vec![secret[56..88].to_vec()];
    canaries.extend(CLASSES.iter().map(|class| class.as_bytes().to_vec()));
    for row in [0, 7, 69] {
        for matrix in [&all.features, stage.task.validation.features(), stage.task.training.features()] {
            let value = matrix.row(row % matrix.rows())[2];
            canaries.push(value.to_le_bytes().to_vec());
            canaries.push(value.to_string().into_bytes());
        }
    }
    let everything: Vec<&Vec<u8>> = seen.uploads.values().chain(&seen.requests).collect();
    assert!(everything.iter().map(|bytes| bytes.len()).sum::<usize>() > 1 << 20);
    for canary in &canaries {
        let found = |bytes: &&Vec<u8>| bytes.windows(canary.len()).any(|window| window == canary);
        assert!(!everything.iter().any(found), "{canary:?} left the client");
    }
}

/// A lie about logits ends the training with one `stop`. The next run reports the same error
/// without contacting the server for a job.
#[test]
fn lies_about_logits_are_stopped() {
    let stage = Stage::new();
    let lies = [
        (Lie::FewerLogits, "0 ciphertexts of logits instead of 1"),
        (Lie::MoreLogits, "2 ciphertexts of logits instead of 1"),
        (Lie::OtherLevel, "announces"),
        (Lie::OtherScale, "primes instead of"),
        (Lie::OtherSet, "no honest server"),
        (Lie::FlippedBit, "no honest server"),
        (Lie::OtherBytes, "damaged or replaced"),
        (Lie::EndlessDownload, "announces"),
        (Lie::AbsurdLogits, "far beyond their range"),
        (Lie::OtherKey, "far beyond their range"),
        (Lie::OtherRange, "range 512"),
        (Lie::SkippedRound, "round 2 after 0"),
    ];
    for (k, (lie, sentence)) in lies.into_iter().enumerate() {
        let name = format!("lie-{k}");
        let said = message(stage.train(lie, &name));
        assert!(said.contains(sentence), "{lie:?}: {said}");
        assert_eq!(stage.verdicts(), [v1::Verdict::Stop], "{lie:?}");
        assert!(!stage.folder.path().join(format!("p/models/{name}.json")).exists(), "{lie:?}");
        let requests = stage.liar.seen().requests.len();
        let again = stage.train_again(&name).err().unwrap();
        assert!(matches!(again, Error::KnownHostile { .. }) && again.to_string().contains(sentence), "{again}");
        assert_eq!(again.to_string().matches("no honest server").count(), 1, "{again}");
        // Only `Hello` was sent.
        assert_eq!(stage.liar.seen().requests.len(), requests + 1, "{lie:?}");
    }
    // The server is not trusted again, honest or not, until the owner replaces the training.
    stage.liar.lie(Lie::None);
    assert!(matches!(stage.train_again("lie-0"), Err(Error::KnownHostile { .. })));
    let trained = stage.train_with(&TrainingOptions { replace: true, ..options("lie-0") }).unwrap();
    assert!(trained.difference.unwrap() < 1e-4, "{:?}", trained.difference);
    assert_eq!(stage.verdicts().first(), Some(&v1::Verdict::Continue));
}

/// A replaced training leaves no files: neither row blobs nor downloads.
#[test]
fn a_training_that_is_replaced_is_gone() {
    let stage = Stage::new();
    message(stage.train(Lie::OtherWeights, "gone"));
    let folder = stage.folder.path().join("p/jobs/gone");
    let files = || -> Vec<String> {
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    };
    assert!(files().iter().any(|name| name == "weights-0000.ct") && files().iter().any(|name| name == "best.json"));
    std::fs::write(folder.join("logits.ct.part"), b"half").unwrap();
    stage.liar.lie(Lie::StalledDownload);
    let mut other = options("gone");
    other.wishes.max_epochs = Some(1);
    // A training with other wishes does not replace this one and does not take its keys.
    let key = stage.project().settings().key_id.clone();
    for fresh_keys in [false, true] {
        let refused = stage.train_with(&TrainingOptions { fresh_keys, ..other.clone() });
        assert!(matches!(refused, Err(Error::OtherTraining { .. })));
        assert_eq!(stage.project().settings().key_id, key);
    }
    let said = message(stage.train_with(&TrainingOptions { replace: true, ..other }));
    assert!(said.contains("does not answer"), "{said}");
    let left: Vec<String> = files().into_iter().filter(|name| !name.starts_with("batch-")).collect();
    assert!(
        left.iter().all(|name| {
            ["job.json", "progress.json"].contains(&&**name) || name.starts_with("valid") || name.starts_with("logits-")
        }),
        "{left:?}"
    );
    let part = std::fs::read(folder.join("logits.ct.part"));
    assert!(part.is_err() || part.is_ok_and(|bytes| bytes.is_empty()), "old bytes are still there");
}

#[test]
fn a_server_that_does_not_end_is_left() {
    let stage = Stage::new();
    let said = message(stage.train(Lie::OneRoundMore, "more"));
    assert!(said.contains("round 4 after 3 of at most 3"), "{said}");
    let verdicts = stage.verdicts();
    assert_eq!((verdicts.len(), verdicts.last()), (EPOCHS + 1, Some(&v1::Verdict::Stop)), "{verdicts:?}");
    // After the verdict stop, the client sends no other verdict.
    stage.edit("more", "job.json", |record| record["job"]["fault"] = Value::Null);
    stage.edit("more", "best.json", |judged| judged["fault"] = Value::Null);
    let (jobs, before) = (stage.liar.seen().jobs, verdicts.len());
    let said = message(stage.train_again("more"));
    assert!(said.contains("after the verdict stop"), "{said}");
    // The server has said that it took the last verdict, so the client does not repeat it.
    let seen = stage.liar.seen();
    assert_eq!((seen.jobs, seen.verdicts.len()), (jobs, before));
}

/// An honest server announces rounds before their verdicts, each once, and goes back only when it
/// was told to.
#[test]
fn a_server_runs_ahead_of_verdicts_in_order() {
    let stage = Stage::new();
    let trained = stage.train(Lie::Ahead, "ahead").unwrap();
    assert!(trained.difference.unwrap() < 1e-4, "{:?}", trained.difference);
    let rounds: Vec<u32> = stage.liar.seen().verdicts.iter().map(|(round, _, _)| *round).collect();
    assert_eq!(rounds, (1..=EPOCHS as u32).collect::<Vec<_>>(), "one verdict a round, in order");
    for (lie, sentence) in [
        (Lie::RepeatedRound, "round 1 after 0 repeats follows round 1 after 0"),
        (Lie::UnaskedRepeat, "round 2 after 1 repeats follows round 1 after 0"),
    ] {
        let said = message(stage.train(lie, &format!("{lie:?}")));
        assert!(said.contains(sentence), "{lie:?}: {said}");
        assert_eq!(stage.verdicts(), [v1::Verdict::Continue, v1::Verdict::Stop], "{lie:?}");
    }
}

#[test]
fn weights_must_be_those_validated() {
    let stage = Stage::new();
    for (lie, sentence) in [
        (Lie::OtherWeights, "other than those that were validated"),
        (Lie::MoreWeights, "instead of at most 3"),
        (Lie::WeightsOfAnotherEpoch, "other than those that were validated"),
        (Lie::FilledSlot, "values in slots that hold none"),
        (Lie::NoWeights, "not among those returned"),
    ] {
        let name = format!("{lie:?}");
        let said = message(stage.train(lie, &name));
        assert!(said.contains(sentence), "{lie:?}: {said}");
        assert!(stage.verdicts().len() <= EPOCHS, "{lie:?}");
        assert!(!stage.folder.path().join(format!("p/models/{name}.json")).exists(), "{lie:?}");
        assert!(matches!(stage.train_again(&name), Err(Error::KnownHostile { .. })), "{lie:?}");
    }
}

/// The hyper-parameters must be those of the offer and the wishes. Otherwise the client cancels the
/// job before the first verdict.
#[test]
fn other_terms_are_refused() {
    let stage = Stage::new();
    for lie in [Lie::MoreEpochs, Lie::LessPatience, Lie::OtherRate, Lie::OtherMomentum, Lie::OtherSeed, Lie::NoTerms] {
        let said = message(stage.train(lie, "terms"));
        assert!(said.contains("hyper-parameters other than those agreed on"), "{lie:?}: {said}");
        let seen = stage.liar.seen();
        assert_eq!((seen.verdicts.len(), seen.cancelled), (0, 1), "{lie:?}");
    }
    // An honest server gets the same row blobs.
    assert!(stage.train(Lie::None, "terms").is_ok());
}

#[test]
fn silence_is_not_waited_for_for_ever() {
    let stage = Stage::new();
    let said = message(stage.train(Lie::StalledEvents, "silent"));
    assert!(said.contains("sends no progress"), "{said}");
    // A request about the job times out too.
    let said = message(stage.train(Lie::StalledJob, "mute"));
    assert!(said.contains("does not answer: nothing received for 1s"), "{said}");
    let said = message(stage.train(Lie::StalledDownload, "stalled"));
    assert!(said.contains("does not answer: nothing received for 1s"), "{said}");
    // A timeout that the server reports is a broken stream: it is retried and then reported.
    let said = message(stage.train(Lie::LateEvents, "late"));
    assert!(said.contains("does not answer: too slow today"), "{said}");
    assert!(stage.verdicts().is_empty());
    // Silence is not a lie: the training continues, here with a new job for the same request.
    let first = stage.liar.seen().jobs;
    assert!(stage.train(Lie::None, "silent").is_ok());
    assert!(stage.liar.seen().jobs > first);
    assert_eq!(stage.verdicts().first(), Some(&v1::Verdict::Continue), "judged from the first round");
}

/// A server that lost the job creates another one for the same request. Its rounds are judged from
/// the first.
#[test]
fn another_job_is_judged_from_its_first_round() {
    let stage = Stage::new();
    let said = message(stage.train(Lie::OneRoundMore, "lost"));
    assert!(said.contains("round 4"), "{said}");
    // As after an interruption in round three of an honest server.
    stage.edit("lost", "job.json", |record| {
        record["job"]["fault"] = Value::Null;
        record["job"]["judged"] = EPOCHS.into();
    });
    stage.edit("lost", "best.json", |judged| {
        judged["fault"] = Value::Null;
        judged["rounds"].as_array_mut().unwrap().pop();
    });
    assert!(stage.train(Lie::None, "lost").is_ok());
    assert_eq!(stage.liar.seen().verdicts.first().map(|(round, _, _)| *round), Some(1));
}

fn rows(stage: &Stage, model: &Model) -> Matrix {
    // The original rows of the normalised validation rows.
    let normalised = stage.task.validation.features();
    let all = labelled().features;
    let of = |row: usize| {
        (0..all.rows())
            .map(|i| all.slice(i..i + 1))
            .find(|one| model.normalisation.apply(one).unwrap().values() == normalised.row(row))
            .unwrap()
    };
    let found: Vec<Matrix> = (0..4).map(of).collect();
    Matrix::from_fn(4, FEATURES, |i, h| found[i][(0, h)])
}

#[test]
fn queries_leave_nothing_behind_and_lies_about_them_are_found() {
    let stage = Stage::new();
    let model = stage.train(Lie::None, "asked").unwrap().model;
    let rows = rows(&stage, &model);
    let ask = |lie| {
        stage.liar.lie(lie);
        let remote = stage.remote();
        predict::remote::logits(&mut stage.project(), &remote, &model, &rows, RowFormWish::default(), &mut |_| ())
    };
    let uploads = stage.liar.seen().uploads.len();
    assert_eq!(ask(Lie::None).unwrap().rows(), 4);
    {
        let seen = stage.liar.seen();
        assert_eq!((seen.deleted_jobs, seen.deleted_uploads, seen.uploads.len()), (1, 1, uploads));
    }
    assert_eq!(ask(Lie::KeepsQueries).unwrap().rows(), 4, "an answer is not lost because a query is kept");
    for lie in [Lie::FewerAnswers, Lie::OtherScale, Lie::OtherKey, Lie::AbsurdLogits] {
        let result = ask(lie);
        assert!(matches!(result, Err(Error::Hostile { .. })), "{lie:?}: {result:?}");
    }
    // The client remembers what the server kept until it is deleted.
    assert_eq!(queries(stage.folder.path()).len(), 1, "{:?}", queries(stage.folder.path()));
    stage.liar.lie(Lie::None);
    predict::remote::delete_leftovers(&stage.project(), &stage.remote());
    assert!(queries(stage.folder.path()).is_empty(), "{:?}", queries(stage.folder.path()));
    // A model of another key is refused: its logits would be noise.
    let mut project = stage.project();
    keys::retire(&mut project).unwrap();
    keys::owner(&mut project).unwrap();
    drop(project);
    let requests = stage.liar.seen().uploads.len();
    let other = ask(Lie::None);
    assert!(matches!(other, Err(Error::OtherKeyModel { .. })), "{other:?}");
    assert_eq!(stage.liar.seen().uploads.len(), requests);
}

/// A damaged key set does not matter if the server has it. Otherwise it is never sent: it is made
/// again, unless another interrupted training needs it.
#[test]
fn a_damaged_key_set_is_needed_only_where_it_is_sent() {
    let stage = Stage::new();
    let interrupt = |name: &str| message(stage.train(Lie::StalledDownload, name));
    interrupt("first");
    let project = stage.project();
    let set = project.settings().keys[0].clone();
    let (path, name) = (project.key_file(&set), set.blob.parse::<hetal_client::rpc::BlobName>().unwrap());
    drop(project);
    // The trainings that would be stranded without the key set.
    let stranded = || {
        let mut project = stage.project();
        let before = project.settings().keys.clone();
        assert!(hetal_client::training::stranded(&project, &before).is_empty());
        project.update(|s| s.keys.clear()).unwrap();
        let names = hetal_client::training::stranded(&project, &before);
        assert!(hetal_client::training::stranded(&project, &[]).is_empty());
        project.update(|s| s.keys = before).unwrap();
        names
    };
    assert_eq!(stranded(), ["first"]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    stage.train(Lie::None, "first").unwrap();
    assert!(stranded().is_empty(), "it is finished");
    interrupt("second");
    stage.liar.seen().uploads.remove(&name.0[..]);
    interrupt_without_keys(&stage, "third");
    let said = message(stage.train(Lie::None, "second"));
    assert!(said.contains("--replace") && said.contains("interrupted training(s) third use it too"), "{said}");
    assert!(!stage.liar.seen().uploads.contains_key(&name.0[..]));
    assert_eq!(stranded(), ["second", "third"]);
    std::fs::remove_dir_all(stage.folder.path().join("p/jobs/third")).unwrap();
    stage.train(Lie::None, "second").unwrap();
    assert!(!stage.liar.seen().uploads.contains_key(&name.0[..]), "the damaged key set is never sent");
    assert_uploads_are_whole(&stage);
}

/// A client that is killed while it makes a lost key set again starts a new job with the new one.
#[test]
fn a_killed_repair_of_a_key_set_strands_nothing() {
    let stage = Stage::new();
    stage.interrupt("model");
    let (project, record) = (stage.project(), stage.file("model", "job.json"));
    let set = project.settings().keys[0].clone();
    std::fs::write(project.key_file(&set), b"damaged").unwrap();
    drop(project);
    stage.liar.seen().uploads.remove(&set.blob.parse::<hetal_client::rpc::BlobName>().unwrap().0[..]);
    let mut killed = None;
    let repaired = stage.train_and_report(&options("model"), &mut |event| {
        if matches!(event, ProgressEvent::Keys { .. }) {
            killed.get_or_insert_with(|| std::fs::read(&record).unwrap());
        }
    });
    assert!(repaired.is_ok(), "{:?}", repaired.err());
    let killed = killed.unwrap();
    let value: Value = serde_json::from_slice(&killed).unwrap();
    assert_eq!((&value["job"], value["keys"].as_str()), (&Value::Null, Some(set.blob.as_str())));
    // The project has the new key set, the record names the old one.
    std::fs::write(&record, killed).unwrap();
    stage.train_again("model").unwrap();
    assert_uploads_are_whole(&stage);
}

/// A training whose server was caught writes nothing anew for it.
#[test]
fn rows_are_not_encrypted_again_for_a_hostile_server() {
    let stage = Stage::new();
    message(stage.train(Lie::AbsurdLater, "caught"));
    stage.edit("caught", "job.json", |record| record["job"]["left"] = false.into());
    let name: hetal_client::rpc::BlobName = batch_blobs(&stage, "caught")[0].parse().unwrap();
    stage.liar.seen().uploads.remove(&name.0[..]);
    let file = stage.file("caught", "batch-0000.ct");
    std::fs::write(&file, b"damaged").unwrap();
    assert!(matches!(stage.train_again("caught"), Err(Error::KnownHostile { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), b"damaged");
}

/// Jobs of a replaced training are cancelled once. Those that cannot be cancelled now, or are on
/// another server, stay in the list.
#[test]
fn abandoned_jobs_are_remembered_until_they_end() {
    let stage = Stage::new();
    let elsewhere = OpenJob { training: "model".to_owned(), server: "elsewhere:1".to_owned(), id: "ab".repeat(16) };
    stage.project().update(|s| s.jobs.push(elsewhere.clone())).unwrap();
    stage.interrupt("model");
    let open = || -> Vec<String> { stage.project().settings().jobs.iter().map(|job| job.id.clone()).collect() };
    let first = "01".repeat(16);
    assert_eq!(open(), [elsewhere.id.clone(), first.clone()]);
    let mut wished = options("model");
    wished.replace = true;
    let mut replace = |lie, epochs| {
        wished.wishes.max_epochs = Some(epochs);
        stage.liar.lie(lie);
        stage.train_with(&wished).unwrap();
        stage.liar.seen().cancelled
    };
    assert_eq!(replace(Lie::KeepsJobs, 1), 0);
    assert_eq!(open(), [elsewhere.id.clone(), first]);
    assert_eq!(replace(Lie::None, 2), 1, "the next command cancels it, once");
    assert_eq!(open(), std::slice::from_ref(&elsewhere.id));
    // A record of an unfinished job, in the list or not, is cancelled once.
    for (name, is_listed) in [("listed", true), ("unlisted", false)] {
        stage.interrupt(name);
        if !is_listed {
            stage.project().update(|s| s.jobs.retain(|job| job.training == "model")).unwrap();
        }
        let mut other = options(name);
        (other.replace, other.wishes.max_epochs) = (true, Some(1));
        stage.train_with(&other).unwrap();
        assert_eq!((stage.liar.seen().cancelled, open()), (1, vec![elsewhere.id.clone()]));
    }
    // A job that its server does not know is forgotten.
    stage.interrupt("unknown");
    assert_eq!(open().len(), 2);
    stage.liar.lie(Lie::UnknownJob);
    let mut other = options("unknown");
    (other.replace, other.wishes.max_epochs) = (true, Some(1));
    stage.train_with(&other).unwrap();
    assert_eq!((stage.liar.seen().cancelled, open()), (0, vec![elsewhere.id]));
}

/// A server that does not know the job of a model gets neither keys nor rows.
#[test]
fn a_server_without_the_job_gets_nothing() {
    let stage = Stage::new();
    let model = stage.train(Lie::None, "asked").unwrap().model;
    let rows = rows(&stage, &model);
    stage.liar.lie(Lie::UnknownJob);
    stage.liar.seen().uploads.clear();
    let asked = predict::remote::logits(
        &mut stage.project(),
        &stage.remote(),
        &model,
        &rows,
        RowFormWish::default(),
        &mut |_| (),
    );
    let said = asked.unwrap_err().to_string();
    assert!(said.contains("does not know the job of model asked") && said.contains("--server 127.0.0.1"), "{said}");
    let calls = std::mem::take(&mut stage.liar.seen().calls);
    assert!(calls.iter().all(|call| ["Hello", "GetJob", "Close"].contains(&call.as_str())), "{calls:?}");
    assert!(stage.liar.seen().uploads.is_empty() && queries(stage.folder.path()).is_empty());
}

/// Leaves a record of an interrupted training with the key set of the others.
fn interrupt_without_keys(stage: &Stage, name: &str) {
    std::fs::create_dir(stage.folder.path().join("p/jobs").join(name)).unwrap();
    std::fs::copy(stage.file("second", "job.json"), stage.file(name, "job.json")).unwrap();
}

fn queries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("p/jobs")).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.starts_with("query")).collect()
}

/// New keys are created once, however often the command is repeated until it finishes.
#[test]
fn fresh_keys_are_made_once() {
    let stage = Stage::new();
    let mut wished = options("fresh");
    (wished.fresh_keys, wished.replace, wished.wishes.max_epochs) = (true, true, Some(1));
    let train = |lie| {
        stage.liar.lie(lie);
        let result = stage.train_with(&wished).map(|trained| trained.rounds);
        (result, stage.project().settings().key_id.clone())
    };
    let old = stage.project().settings().key_id.clone();
    // The current keys were never sent: they are as good as new.
    let (result, key) = train(Lie::StalledDownload);
    assert!(result.is_err());
    assert_eq!(key, old);
    // The interrupted training continues with them.
    let (rounds, key) = train(Lie::None);
    assert_eq!(rounds.unwrap()[0].verdict, Verdict::Continue);
    assert_eq!(key, old);
    // After a finished training new keys are created; after an interrupted one they are kept.
    let (_, second) = train(Lie::StalledDownload);
    assert_ne!(second, old);
    let (_, third) = train(Lie::StalledDownload);
    assert_eq!(third, second);
    // The use of a key without an id is unknown.
    let mut project = stage.project();
    let unsent = |s: &mut hetal_client::project::Settings| {
        s.key_id = None;
        s.keys.iter_mut().for_each(|keys| keys.sent = false);
    };
    project.update(unsent).unwrap();
    drop(project);
    std::fs::remove_file(stage.folder.path().join("p/jobs/fresh/job.json")).unwrap();
    let (_, fourth) = train(Lie::StalledDownload);
    assert_ne!(fourth, second);
}
