//! Trainings and queries whose rows are sent in coefficient form: the bytes of one process, and no
//! row that is not in the form that its job names.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Owner, Process, TOKEN, VALIDATION, address, config, follow, names};
use hetal_client::rpc::TrainingRequest;
use hetal_client::rpc::{BlobKind, ClassificationRequest, Error, EventKind, JobId, Phase, Remote, RowBlob};
use hetal_learn::{LevelPlan, RowForm, packing, reference};
use hetal_testkit::{Random, TempDir, Watchdog};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::Duration;

/// The owner of all tests but one, because keys take a while.
fn owner() -> &'static Owner {
    static OWNER: OnceLock<Owner> = OnceLock::new();
    OWNER.get_or_init(|| Owner::in_coefficients(21, LevelPlan::lowest()))
}

/// Batches that stay prepared, batches whose lifted rows stay in memory, and batches that are
/// lifted each time give the same weights: those of one process.
#[test]
fn rows_in_coefficient_form_give_the_bytes_of_one_process() {
    for (prepared_gib, lifted_gib) in [(2.0, 8.0), (0.0, 8.0), (0.0, 0.0)] {
        let dir = TempDir::new();
        let settings = hetal_server::Config { prepared_gib, lifted_gib, ..config(dir.path()) };
        let running = hetal_server::start(settings).unwrap();
        let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
        let training = owner().upload(&remote);
        let job = remote.train([1; 16], "lifted", &training).unwrap();
        let outputs = follow(&remote, job.id, |_| {});
        assert_eq!(names(&outputs), owner().reference(), "{prepared_gib} and {lifted_gib} GiB");
    }
}

/// Weights of rows, and labels times them, are lifted from a bound of their own.
#[test]
fn weights_of_rows_are_lifted_too() {
    let (owner, dir) = (Owner::in_coefficients(22, LevelPlan::weighted()), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let job = remote.train([1; 16], "weighted", &owner.upload(&remote)).unwrap();
    assert_eq!(names(&follow(&remote, job.id, |_| {})), owner.reference());
}

/// Queries have a form of their own.
#[test]
fn queries_in_coefficient_form_are_classified() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let job = remote.train([1; 16], "lifted", &training).unwrap();
    let outputs = follow(&remote, job.id, |_| {});
    let path = dir.path().join("weights");
    remote.download(job.id, &outputs[1], owner.weights_len(), &path, &mut |_, _| {}).unwrap();
    let weights = owner.client.codec().decode(&std::fs::read(&path).unwrap()).unwrap();
    let weights = packing::unpack_weights(owner.circuit.geometry(), &[owner.client.decrypt(&weights)]).unwrap();
    let query = |form| ClassificationRequest {
        job: job.id,
        weights: outputs[1].blob,
        queries: training.validation.clone(),
        form,
    };
    let refused = remote.classify([3; 16], "", &query(RowForm::Slots)).unwrap_err().to_string();
    assert!(refused.contains("bytes"), "{refused}");
    let asked = remote.classify([2; 16], "", &query(RowForm::Coefficients)).unwrap();
    let logits = follow(&remote, asked.id, |_| {});
    let path = dir.path().join("logits");
    remote.download(asked.id, &logits[0], owner.logits_len(), &path, &mut |_, _| {}).unwrap();
    let found = owner.open_logits(&path, VALIDATION, 32.0);
    let expected = reference::logits(&owner.validation, &weights).unwrap();
    let error = found.max_difference(&expected);
    println!("logits within {error:e}");
    assert!(error < 1e-3, "{error:e}");
}

/// Killed at random moments, also while rows are lifted: the weights are the same to the last bit.
#[test]
fn a_server_killed_while_lifting_ends_with_the_same_bytes() {
    const KILLS: usize = 8;
    let _watched = Watchdog::new(Duration::from_secs(900));
    let (owner, dir) = (owner(), TempDir::new());
    let start =
        |address: &str| Process::start(dir.path(), address, "prepared_gib = 0.0", "[bounds]\nattempts = 10000\n");
    let process = RefCell::new(start("127.0.0.1:0"));
    let remote = Remote::connect(&process.borrow().reached_by(dir.path(), TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let (mut random, kills) = (Random(4), Cell::new(0));
    let mut kill = |most: usize| {
        if kills.get() < KILLS {
            kills.set(kills.get() + 1);
            // The first batch of an attempt is lifted before its first iteration.
            std::thread::sleep(Duration::from_millis(random.below(most) as u64));
            let mut process = process.borrow_mut();
            process.kill();
            let address = process.address.clone();
            *process = start(&address);
        }
    };
    // A quick machine ends a job before all kills: another one follows.
    for number in 1.. {
        let job = remote.train([number; 16], "", &training).unwrap();
        let outputs = follow(&remote, job.id, |event| match &event.kind {
            EventKind::Started { .. } => kill(2500),
            EventKind::Progress(p) if p.phase == Phase::Training => kill(200),
            _ => {}
        });
        assert_eq!(names(&outputs), owner.reference());
        if kills.get() == KILLS {
            break;
        }
    }
}

/// Rows of another form than the request names, and rounded ciphertexts of other numbers, bits or
/// places, end in a refusal or a failed job, and the server lives.
#[test]
fn rows_in_a_wrong_form_are_refused() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let asked = TrainingRequest { form: RowForm::Slots, ..training.clone() };
    let Err(Error::Refused { sentence, .. }) = remote.train([9; 16], "", &asked) else { panic!("accepted") };
    assert!(sentence.contains("bytes"), "{sentence}");
    // The labels in the place of the features: real numbers where complex ones belong.
    let bytes = std::fs::read(owner.path("batch0")).unwrap();
    let half = bytes.len() / 2;
    let swapped = [&bytes[half..], &bytes[..half]].concat();
    // Random bits with a correct checksum: any of them are a ciphertext.
    let mut noise = bytes[..half].to_vec();
    noise[200..half - 32].iter_mut().enumerate().for_each(|(k, byte)| *byte = (k * k % 251) as u8);
    let end = half - 32;
    let checksum = *blake3::hash(&noise[..end]).as_bytes();
    noise[end..].copy_from_slice(&checksum);
    let noise = [&noise[..], &bytes[half..]].concat();
    let mut damaged = bytes.clone();
    damaged[300] ^= 1;
    for (n, (bytes, word)) in
        [(swapped, Some("Real")), (damaged, Some("checksum")), (noise, None)].into_iter().enumerate()
    {
        let path = dir.path().join(format!("batch{n}"));
        std::fs::write(&path, bytes).unwrap();
        let blob = remote.upload(BlobKind::Batch, &path, &mut |_, _| {}).unwrap().name;
        let batches = vec![RowBlob { blob, ..training.batches[0] }, training.batches[1]];
        let job = remote.train([n as u8; 16], "", &TrainingRequest { batches, ..training.clone() }).unwrap();
        match (ended(&remote, job.id), word) {
            (Some(reason), Some(word)) => assert!(reason.contains(word), "{reason}"),
            (None, None) => {}
            (other, word) => panic!("{other:?} instead of {word:?}"),
        }
    }
    let job = remote.train([7; 16], "", &training).unwrap();
    assert_eq!(names(&follow(&remote, job.id, |_| {})), owner.reference());
}

/// Follows a job to its end; gives the reason of a failure.
fn ended(remote: &Remote, job: JobId) -> Option<String> {
    let mut watch = remote.watch(job, 0);
    while let Some(event) = watch.next_event().unwrap() {
        match event.kind {
            EventKind::Validation(validation) => common::judge(remote, job, &validation),
            EventKind::Failed { reason } => return Some(reason),
            _ => {}
        }
    }
    None
}
