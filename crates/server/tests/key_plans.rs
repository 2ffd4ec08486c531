//! Trainings with fewer keys: the bytes of one process, and no key set that does not follow the
//! plan that its job names.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Owner, TOKEN, address, config, follow, names};
use hetal_client::rpc::{ClassificationRequest, Error, Remote, TrainingRequest};
use hetal_learn::{KeyPlan, LevelPlan, RowForm, packing, reference};
use hetal_testkit::TempDir;

/// An owner who sends the keys of a plan, and rows in slot form.
fn owner(label: u64, plan: KeyPlan) -> Owner {
    Owner::with(label, LevelPlan::lowest().with_keys(plan), None)
}

/// The weights are those of one process, and the server classifies with the same keys.
#[test]
fn every_plan_gives_the_bytes_of_one_process() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    assert_eq!(remote.offer().key_plans, KeyPlan::OFFERED);
    let mut sizes = Vec::new();
    for (number, plan) in KeyPlan::OFFERED.into_iter().enumerate() {
        let owner = owner(31, plan);
        let training = owner.upload(&remote);
        sizes.push(std::fs::metadata(owner.path("keys")).unwrap().len());
        let job = remote.train([number as u8; 16], plan.name(), &training).unwrap();
        let outputs = follow(&remote, job.id, |_| {});
        assert_eq!(names(&outputs), owner.reference(), "{plan:?}");

        let weights = dir.path().join(format!("weights-{}", plan.name()));
        remote.download(job.id, &outputs[1], owner.weights_len(), &weights, &mut |_, _| {}).unwrap();
        let weights = owner.client.codec().decode(&std::fs::read(&weights).unwrap()).unwrap();
        let weights = packing::unpack_weights(owner.circuit.geometry(), &[owner.client.decrypt(&weights)]).unwrap();
        let (job, weights_blob, queries) = (job.id, outputs[1].blob, training.validation);
        let asked = ClassificationRequest { job, weights: weights_blob, queries, form: RowForm::Slots };
        let asked = remote.classify([100 + number as u8; 16], "", &asked).unwrap();
        let logits = follow(&remote, asked.id, |_| {});
        let path = dir.path().join(format!("logits-{}", plan.name()));
        remote.download(asked.id, &logits[0], owner.logits_len(), &path, &mut |_, _| {}).unwrap();
        let found = owner.open_logits(&path, common::VALIDATION, 32.0);
        let error = found.max_difference(&reference::logits(&owner.validation, &weights).unwrap());
        assert!(error < 1e-3, "{plan:?}: {error:e}");
    }
    assert!(sizes.windows(2).all(|two| two[1] < two[0]), "{sizes:?}");
}

/// A key set of another plan than the request names has another size, or other keys.
#[test]
fn keys_of_another_plan_are_refused() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let training = owner(32, KeyPlan::Balanced).upload(&remote);
    for key_plan in [KeyPlan::Fast, KeyPlan::Small] {
        let asked = TrainingRequest { key_plan, ..training.clone() };
        let Err(Error::Refused { sentence, .. }) = remote.train([9; 16], "", &asked) else { panic!("accepted") };
        assert!(sentence.contains("this shape needs Keys of"), "{sentence}");
    }
    let asked = TrainingRequest { key_plan: KeyPlan::Most, ..training };
    let Err(Error::Refused { sentence, .. }) = remote.train([9; 16], "", &asked) else { panic!("accepted") };
    assert!(sentence.contains("this server knows fast, balanced and small"), "{sentence}");
}
