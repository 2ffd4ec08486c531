//! Trainings with fewer keys: the bytes of one process, and no key set that does not follow the
//! plan that its job names.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Owner, TOKEN, address, config, follow, names};
use hetal_client::rpc::{ClassificationRequest, Error, JobId, Output, Remote, TrainingRequest};
use hetal_learn::{KeyPlan, LevelPlan, packing, reference};
use hetal_testkit::TempDir;
use std::path::Path;

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

        assert_classifies(&remote, &owner, &training, (job.id, &outputs[1]), dir.path());
    }
    assert!(sizes.windows(2).all(|two| two[1] < two[0]), "{sizes:?}");
}

/// The server classifies the validation rows of a training with weights that it returned.
fn assert_classifies(
    remote: &Remote,
    owner: &Owner,
    training: &TrainingRequest,
    (job, output): (JobId, &Output),
    folder: &Path,
) {
    let path = folder.join("weights");
    remote.download(job, output, owner.weights_len(), &path, &mut |_, _| {}).unwrap();
    let weights = owner.client.codec().decode(&std::fs::read(&path).unwrap()).unwrap();
    let weights = packing::unpack_weights(owner.circuit.geometry(), &[owner.client.decrypt(&weights)]).unwrap();
    let (queries, form) = (training.validation.clone(), training.form);
    let asked = ClassificationRequest { job, weights: output.blob, queries, form };
    let request = std::array::from_fn(|k| 255 - job.0[k]);
    let asked = remote.classify(request, "", &asked).unwrap();
    let logits = follow(remote, asked.id, |_| {});
    let path = folder.join("logits");
    remote.download(asked.id, &logits[0], owner.logits_len(), &path, &mut |_, _| {}).unwrap();
    let found = owner.open_logits(&path, common::VALIDATION, 32.0);
    let error = found.max_difference(&reference::logits(&owner.validation, &weights).unwrap());
    assert!(error < 1e-3, "{:?}: {error:e}", training.key_plan);
    ["weights", "logits"].into_iter().for_each(|name| std::fs::remove_file(folder.join(name)).unwrap());
}

/// A set with all keys, as earlier versions made it, serves its plan like one with a master key.
#[test]
fn key_sets_of_earlier_versions_are_used() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let owner = owner(33, KeyPlan::Balanced);
    let size = || std::fs::metadata(owner.path("keys")).unwrap().len();
    let derivable = size();
    owner.write_whole_keys();
    assert_ne!(size(), derivable);
    let job = remote.train([8; 16], "", &owner.upload(&remote)).unwrap();
    assert_eq!(names(&follow(&remote, job.id, |_| {})), owner.reference());
}

/// Lifts need the derived keys too, in a training and in a classification of its model.
#[test]
fn lifts_use_derived_keys() {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, TOKEN)).unwrap();
    let owner = Owner::in_coefficients(34, LevelPlan::lowest().with_keys(KeyPlan::Small));
    let training = owner.upload(&remote);
    let job = remote.train([7; 16], "", &training).unwrap();
    let outputs = follow(&remote, job.id, |_| {});
    assert_eq!(names(&outputs), owner.reference());
    assert_classifies(&remote, &owner, &training, (job.id, &outputs[1]), dir.path());
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
