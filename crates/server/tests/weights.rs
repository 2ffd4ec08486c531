//! Trainings with weights of rows and L2: the same bytes as in one process, and no job whose row
//! blobs are of another kind.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Owner, address, config, follow, names, owner};
use hetal_client::rpc::{BlobKind, Error, EventKind, Remote, RowBlob, TrainingRequest};
use hetal_learn::{LevelPlan, Wishes};
use hetal_testkit::TempDir;

/// The bytes of an alpha of 0 are those of none.
#[test]
fn an_alpha_of_zero_changes_nothing() {
    let (owner, dir) = (owner(), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let asked = TrainingRequest { wishes: Wishes { alpha: Some(0.0), ..training.wishes.clone() }, ..training };
    let job = remote.train([1; 16], "zero", &asked).unwrap();
    assert_eq!(job.terms.as_ref().unwrap().alpha, Some(0.0));
    assert_eq!(names(&follow(&remote, job.id, |_| ())), owner.reference());
}

/// A weighted training with L2, on a server that is stopped after the first round and in the middle
/// of an epoch, gives the bytes of one that runs through in one process.
#[test]
fn a_weighted_training_with_l2_survives_restarts() {
    let (owner, dir) = (Owner::with(8, LevelPlan::weighted(), Some(0.05)), TempDir::new());
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let training = owner.upload(&remote);
    let job = remote.train([1; 16], "weighted", &training).unwrap();
    assert_eq!(job.terms.as_ref().unwrap().alpha, Some(0.05));
    let mut watch = remote.watch(job.id, 0);
    let mut running = Some(running);
    while let Some(event) = watch.next_event().unwrap() {
        match event.kind {
            EventKind::Validation(validation) if validation.round == 1 => {
                common::judge(&remote, job.id, &validation);
            }
            // The second epoch has begun.
            EventKind::Progress(progress) if progress.iterations >= 3 => break,
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
    drop(watch);
    running.take().unwrap().stop();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let outputs = follow_rest(&remote, job.id);
    assert_eq!(outputs, owner.reference());
    let plain = owner.reference();
    assert_ne!(plain, common::owner().reference(), "weights and L2 have an effect");
}

/// Follows a job whose first round is judged.
fn follow_rest(remote: &Remote, job: hetal_client::rpc::JobId) -> Vec<(usize, hetal_client::rpc::BlobName)> {
    let mut watch = remote.watch(job, 0);
    while let Some(event) = watch.next_event().unwrap() {
        match event.kind {
            EventKind::Validation(validation) if validation.round > 1 => common::judge(remote, job, &validation),
            EventKind::Finished(outputs) => return names(&outputs),
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
    panic!("the job was cancelled");
}

/// Jobs and row blobs with and without weights are not mixed.
#[test]
fn weighted_jobs_take_weighted_rows_only() {
    let (plain, dir) = (owner(), TempDir::new());
    let weighted = Owner::with(9, LevelPlan::weighted(), None);
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let (without, with) = (plain.upload(&remote), weighted.upload(&remote));
    let refusal = |training: &TrainingRequest| match remote.train([3; 16], "", training) {
        Err(Error::Refused { sentence, .. }) => sentence,
        other => panic!("{other:?}"),
    };
    let said = refusal(&TrainingRequest { weighted: true, ..without.clone() });
    assert!(said.contains("is Batch of") && said.contains("needs WeightedBatch"), "{said}");
    let said = refusal(&TrainingRequest { weighted: false, ..with.clone() });
    assert!(said.contains("is WeightedBatch of") && said.contains("needs Batch"), "{said}");
    // One batch of the other kind among others.
    let mixed = TrainingRequest { batches: vec![with.batches[0], without.batches[1]], ..with.clone() };
    assert!(refusal(&mixed).contains("needs WeightedBatch"));
    // Rows that claim a kind which their size is not of.
    let sent = |kind, of: &Owner| remote.upload(kind, &of.path("batch0"), &mut |_, _| {});
    let other = common::Owner::new(10);
    let blob = sent(BlobKind::WeightedBatch, &other).unwrap().name;
    let claimed = TrainingRequest { batches: vec![RowBlob { blob, rows: 64 }], ..with.clone() };
    assert!(refusal(&claimed).contains("bytes"));
    // An alpha that the server does not allow.
    for alpha in [-1.0, f64::NAN, 2.0, 0.7] {
        let wishes = Wishes { alpha: Some(alpha), ..with.wishes.clone() };
        let said = refusal(&TrainingRequest { wishes, ..with.clone() });
        assert!(said.contains("alpha"), "{said}");
    }
    // The same rows are accepted as what they are.
    assert!(remote.train([4; 16], "", &with).is_ok());
}
