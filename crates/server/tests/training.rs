//! Trainings over TLS on loopback: the same bytes as in one process, whatever happens to the
//! server.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{VALIDATION, address, config, follow, judge, names, owner};
use hetal_client::rpc::{BlobKind, ClassificationRequest, EventKind, JobState, Phase, Remote};
use hetal_learn::reference;
use hetal_learn::{Matrix, packing};
use hetal_testkit::TempDir;

#[test]
fn a_training_over_the_network_gives_the_bytes_of_one_in_process() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    assert!(remote.offer().accepts(owner.client.params.id()));
    // The upload sends the file's bytes, and a second time nothing.
    let size = std::fs::metadata(owner.path("keys")).unwrap().len();
    let first = remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |_, _| {}).unwrap();
    let second = remote.upload(BlobKind::Keys, &owner.path("keys"), &mut |_, _| {}).unwrap();
    assert_eq!((first.size, first.sent, second.sent), (size, size, 0));
    let training = owner.upload(&remote);
    let job = remote.train([1; 16], "first", &training).unwrap();
    assert_eq!(remote.train([1; 16], "first", &training).unwrap().id, job.id, "asked twice");
    assert!(remote.train([1; 16], "again", &training).is_err(), "an id of another request");
    assert_eq!(job.terms.as_ref().unwrap().max_epochs, 6);
    let mut steps = Vec::new();
    let outputs = follow(&remote, job.id, |event| {
        if let EventKind::Progress(progress) = event.kind
            && progress.phase == Phase::Training
        {
            steps.push((progress.epoch, progress.done));
        }
    });
    assert_eq!(names(&outputs), owner.reference());
    // Rounds 2 and 3 went back: two accepted checks before the last, of which patience + 1 are
    // kept.
    assert_eq!(outputs.iter().map(|o| o.check).collect::<Vec<_>>(), [2, 3]);
    assert!(steps.windows(2).all(|w| w[0] < w[1] || w[1].1 == 1) && steps.len() >= 3, "{steps:?}");
    // Logits of queries with the weights on the server.
    let weights_path = dir.path().join("weights");
    remote.download(job.id, &outputs[1], owner.weights_len(), &weights_path, &mut |_, _| {}).unwrap();
    let weights = owner.client.codec().decode(&std::fs::read(&weights_path).unwrap()).unwrap();
    let weights = packing::unpack_weights(owner.circuit.geometry(), &[owner.client.decrypt(&weights)]).unwrap();
    let queries = training.validation.clone();
    let query = ClassificationRequest { job: job.id, weights: outputs[1].blob, queries, form: training.form };
    let query = remote.classify([2; 16], "queries", &query).unwrap();
    let logits = follow(&remote, query.id, |_| {});
    let path = dir.path().join("logits");
    remote.download(query.id, &logits[0], owner.logits_len(), &path, &mut |_, _| {}).unwrap();
    let found = owner.open_logits(&path, VALIDATION, 32.0);
    let expected = reference::logits(&validation_rows(), &weights).unwrap();
    let error = found.max_difference(&expected);
    assert!(error < 1e-3, "{error}");
    assert!(expected.max_magnitude() > 0.1);
    // Ended jobs can be deleted, with their weights.
    remote.delete(query.id).unwrap();
    remote.delete(job.id).unwrap();
    assert!(remote.jobs().unwrap().is_empty());
    remote.delete_upload(training.keys).unwrap();
    running.stop();
}

/// The validation rows of the shared owner, decrypted from the upload.
fn validation_rows() -> Matrix {
    let owner = owner();
    let (g, codec) = (owner.circuit.geometry(), owner.client.codec());
    let bytes = std::fs::read(owner.path("validation")).unwrap();
    let mut rest = &bytes[..];
    let blocks: Vec<_> = (0..g.blocks())
        .map(|_| {
            let seeded: hetal_ckks::SeededCiphertext<_> = codec.read(&mut rest).unwrap();
            owner.client.decrypt(&seeded.expand(&owner.client.params, &*owner.client.ring))
        })
        .collect();
    Matrix::from_fn(VALIDATION, common::FEATURES, |i, h| {
        let pair = h % g.pairs();
        let value = blocks[pair / g.columns()][pair % g.columns() * g.rows() + i];
        if h < g.pairs() { value.re } else { -value.im }
    })
}

#[test]
fn a_stopped_server_goes_on_where_it_was() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &owner.upload(&remote)).unwrap();
    let mut watch = remote.watch(job.id, 0);
    let mut rounds = 0;
    let last = loop {
        let event = watch.next_event().unwrap().unwrap();
        match event.kind {
            // Stopped during epoch 2.
            EventKind::Progress(p) if p.phase == Phase::Training && p.iterations >= 3 => break event.sequence,
            EventKind::Validation(validation) => {
                rounds += 1;
                judge(&remote, job.id, &validation);
            }
            _ => {}
        }
    };
    drop(watch);
    running.stop();
    assert_eq!(rounds, 1);
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    // No event is repeated, and none is missed (or the watch fails). The first server may have
    // reached the next check before it stopped.
    let mut watch = remote.watch(job.id, last);
    let mut sequence = last;
    while let Some(event) = watch.next_event().unwrap() {
        // Progress has the number of the event before it.
        assert!(event.sequence == sequence || event.sequence == sequence + 1, "{event:?} after {sequence}");
        if event.sequence == sequence + 1 && matches!(event.kind, EventKind::Started { .. }) {
            break;
        }
        sequence = event.sequence;
    }
    drop(watch);
    let mut attempts = 0;
    let outputs = {
        let mut watch = remote.watch(job.id, 0);
        loop {
            let event = watch.next_event().unwrap().unwrap();
            match event.kind {
                EventKind::Started { .. } => attempts += 1,
                // The first round has its verdict; repeating it has no effect.
                EventKind::Validation(validation) => judge(&remote, job.id, &validation),
                EventKind::Finished(outputs) => break outputs,
                _ => {}
            }
        }
    };
    assert_eq!(attempts, 2);
    assert_eq!(names(&outputs), owner.reference());
}

#[test]
fn a_cancelled_job_ends_and_stays_ended() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let job = remote.train([1; 16], "", &training).unwrap();
    let mut watch = remote.watch(job.id, 0);
    loop {
        match watch.next_event().unwrap().unwrap().kind {
            EventKind::Validation(_) => {
                remote.cancel(job.id).unwrap();
            }
            EventKind::Cancelled => break,
            EventKind::Finished(_) | EventKind::Failed { .. } => panic!("not cancelled"),
            _ => {}
        }
    }
    assert!(watch.next_event().unwrap().is_none());
    assert_eq!(remote.job(job.id).unwrap().state, JobState::Cancelled);
    // Uploads can be deleted once the job is gone.
    assert!(remote.delete_upload(training.keys).is_err());
    remote.delete(job.id).unwrap();
    remote.delete_upload(training.keys).unwrap();
}
