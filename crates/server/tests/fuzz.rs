//! Hostile bytes for everything a server parses, except ciphertexts and keys, which `hetal-ckks`
//! tests. Runs for a few seconds, or `HETAL_FUZZ_RUNS` times for each target.
#![allow(clippy::unwrap_used)]

use hetal_learn::session::Action;
use hetal_learn::{Agreement, AgreementLimits, KeyPlan, RowForm, Session};
use hetal_server::job_spec::{ClassificationSpec, JobSpec, RowBlob, TrainingSpec};
use hetal_server::testing::fuzz_targets;
use hetal_testkit::allocation::CountingAllocator;
use hetal_testkit::fuzz::{feed, runs};
use hetal_wire::{BlobName, JobId, v1};
use prost::Message;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Memory beyond what grows with the input: tables of a parser, text of an error.
const MEMORY: usize = 64 << 10;

fn configurations() -> Vec<Vec<u8>> {
    let tenant = format!("[[tenants]]\nname = \"ann\"\ntoken = \"{}\"\nexpires = 99\n", "ab".repeat(32));
    let whole = format!(
        "folder = \"x\"\naddress = \"0.0.0.0:443\"\nmetrics = \"[::1]:9\"\nsets = [\"full\"]\nengine = \"cpu\"\n\
         workers = 2\nprepared_gib = 1.5\nhide_hyperparameters = true\n[bounds]\njobs = 3\nblob_bytes = 1000000\n\
         [hyperparameters]\nalpha = [0.0, 0.1]\n{tenant}"
    );
    [tenant, whole].map(String::into_bytes).into()
}

fn checkpoints() -> Vec<Vec<u8>> {
    let written = |session: &Session<()>| {
        let (record, ciphertexts) = session.checkpoint();
        let ciphertexts: Vec<_> = ciphertexts.iter().map(|()| BlobName([7; 32]).to_string()).collect();
        let checkpoint = serde_json::json!({
            "format": 2, "session": record, "ciphertexts": ciphertexts, "iterations": 5,
        });
        serde_json::to_vec(&checkpoint).unwrap()
    };
    let mut session = Session::new(AgreementLimits::default().defaults, 3, vec![()]).unwrap();
    let first = written(&session);
    while session.open() == 0 {
        match session.next_action() {
            Action::Validate(_) => session.opened().unwrap(),
            _ => session.stepped(session.model().clone()).unwrap(),
        }
    }
    vec![first, written(&session)]
}

fn job_requests() -> Vec<Vec<u8>> {
    let rows = v1::Rows { blob: vec![5; 32].into(), rows: 64 };
    let training = v1::Training {
        set: vec![1; 32].into(),
        features: 768,
        classes: 7,
        keys: vec![2; 32].into(),
        batches: vec![rows.clone(); 3],
        validation: vec![rows.clone()],
        wishes: Some(v1::Wishes { batch: Some(1024), rate: Some(0.5), alpha: Some(0.01), ..v1::Wishes::default() }),
        weighted: true,
        form: v1::RowForm::Coefficients.into(),
        key_plan: v1::KeyPlan::Balanced.into(),
    };
    let form = v1::RowForm::Slots.into();
    let queries = vec![rows; 3];
    let classification = v1::Classification { job: vec![4; 16].into(), weights: vec![6; 32].into(), queries, form };
    let all = [
        v1::create_job_request::Work::Training(training),
        v1::create_job_request::Work::Classification(classification),
    ];
    let request =
        |work| v1::CreateJobRequest { request_id: vec![3; 16].into(), label: "x".to_owned(), work: Some(work) };
    all.map(|work| request(work).encode_to_vec()).into()
}

fn works() -> Vec<Vec<u8>> {
    let part = RowBlob { blob: BlobName([5; 32]), rows: 64 };
    let training = TrainingSpec {
        set: "full".to_owned(),
        features: 768,
        classes: 7,
        keys: BlobName([2; 32]),
        batches: vec![part; 3],
        validation: vec![part],
        agreement: Agreement { alpha: 0.01, weighted: true, ..AgreementLimits::default().defaults },
        form: RowForm::Coefficients,
        key_plan: KeyPlan::Small,
    };
    let (job, weights) = (JobId([4; 16]), BlobName([6; 32]));
    let classification =
        ClassificationSpec { job, training: training.clone(), weights, queries: vec![part], form: RowForm::Slots };
    [JobSpec::Training(training), JobSpec::Classification(classification)]
        .map(|w| serde_json::to_vec(&w).unwrap())
        .into()
}

fn events() -> Vec<Vec<u8>> {
    use v1::event::What;
    let output = v1::Output { blob: vec![9; 32].into(), size: 1000, check: 2, rows: 64 };
    let validation = v1::Validation { round: 1, check: 1, range: 128.0, logits: vec![output.clone(); 3], repeats: 0 };
    let all = [What::Validation(validation), What::Finished(v1::Finished { outputs: vec![output] })];
    all.map(|what| v1::Event { sequence: 7, what: Some(what) }.encode_to_vec()).into()
}

/// One test, because concurrent tests would count each other's memory.
#[test]
fn hostile_bytes_are_refused_or_understood() {
    let targets: [(&str, Vec<Vec<u8>>, fn(&[u8]) -> bool); 5] = [
        ("configuration", configurations(), fuzz_targets::configuration),
        ("checkpoint", checkpoints(), fuzz_targets::checkpoint),
        ("job request", job_requests(), fuzz_targets::job_request),
        ("work", works(), fuzz_targets::job_spec),
        ("event", events(), fuzz_targets::event),
    ];
    for (name, samples, parser) in targets {
        assert!(samples.iter().all(|sample| parser(sample)), "a {name} that is right is not understood");
        let runs = runs(20_000);
        let understood = feed(name, &samples, 11, runs, MEMORY, parser);
        println!("{name}: {runs} mutations, {understood} understood");
        // Inputs are both accepted and refused, or the mutations are useless.
        assert!(understood > 0 && understood < runs, "{name}: {understood} of {runs}");
    }
}
