//! Hostile bytes for what the data owner's program reads: the project folder, and messages of a
//! server. (`hetal-tables` has such a test for feature and label files.) `HETAL_FUZZ_RUNS` sets the
//! number of inputs per target.
#![allow(clippy::unwrap_used)]

use hetal_client::layout::LayoutShape;
use hetal_client::project::{KeySet, ReleaseBudget, Rotation, ServerSettings};
use hetal_client::{KeyPlan, Project, fuzz_targets};
use hetal_testkit::TempDir;
use hetal_testkit::allocation::CountingAllocator;
use hetal_testkit::fuzz::{feed, runs};
use hetal_wire::v1::{self, event::What};
use prost::Message;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Memory that does not grow with the input: error texts.
const MEMORY: usize = 256 << 10;

/// A file that the program wrote.
fn sample(bytes: &[u8]) -> Vec<Vec<u8>> {
    vec![bytes.to_vec()]
}

fn released() -> ReleaseBudget {
    ReleaseBudget { noise: 1e-6, numbers: 10, security: 10, left: 3 }
}

fn settings() -> Vec<Vec<u8>> {
    let folder = TempDir::new();
    let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
    let fresh = std::fs::read(folder.path().join("project.json")).unwrap();
    let shape =
        LayoutShape { batch: 32, features: 6, classes: 3, range: 128.0, weighted: false, key_plan: KeyPlan::Fast };
    let weighted = LayoutShape { weighted: true, ..shape };
    let keys = KeySet {
        blob: "00".repeat(32),
        bytes: 1000,
        layout: "32 rows".to_owned(),
        shape: Some(shape),
        file: "keys.hetal".to_owned(),
        seconds: 1.5,
        sent: true,
    };
    let server =
        ServerSettings { address: "host:1".to_owned(), authority: "ca.pem".into(), ..ServerSettings::default() };
    project
        .update(|s| {
            (s.keys, s.released, s.server) = (vec![keys], Some(released()), Some(server));
            s.rotation = Some(Rotation { from: "11".repeat(16), shapes: vec![shape, weighted] });
        })
        .unwrap();
    vec![fresh, std::fs::read(folder.path().join("project.json")).unwrap()]
}

fn retired() -> Vec<Vec<u8>> {
    vec![json!({ "key_id": "11".repeat(16), "released": released() }).to_string().into_bytes()]
}

fn published() -> Vec<Vec<u8>> {
    let published = json!({ "classes": ["a", "b"], "weights": [[0.5, 1.0], [2.0, 3.0]], "bias": [0.0, 1.0], "sigma": 1e-3,
        "security": 10, "source": "66".repeat(32) });
    vec![published.to_string().into_bytes()]
}

fn terms() -> v1::Terms {
    v1::Terms {
        batch: 1024,
        patience: 3,
        max_epochs: 50,
        range: 128.0,
        rate: Some(1.0),
        lowering: Some(0.5),
        momentum: v1::Momentum::Nesterov.into(),
        seed: Some(0),
        alpha: Some(0.01),
        check_every: 4,
    }
}

fn offers() -> Vec<Vec<u8>> {
    let set = v1::ParameterSet { id: vec![7; 32].into(), name: "full".to_owned() };
    let (defaults, bounds) = (Some(terms()), Some(v1::Bounds { rate_least: Some(0.5), ..v1::Bounds::default() }));
    let (version, program) = (hetal_wire::VERSION, "hetal-server".to_owned());
    let (row_forms, lift_seconds) = (vec![1, 2, 7], 0.0125);
    let (sets, key_plans) = (vec![set; 2], vec![1, 2, 3, 9]);
    let offer = v1::Offer { version, program, sets, defaults, bounds, row_forms, lift_seconds, key_plans };
    vec![offer.encode_to_vec()]
}

fn progress() -> v1::Progress {
    v1::Progress { phase: v1::Phase::Training.into(), done: 3, total: 9, epoch: 1, iterations: 3, resting: false }
}

fn jobs() -> Vec<Vec<u8>> {
    let job = v1::Job {
        id: vec![9; 16].into(),
        label: "model".to_owned(),
        state: v1::JobState::Running.into(),
        terms: Some(terms()),
        progress: Some(progress()),
        ..v1::Job::default()
    };
    vec![job.encode_to_vec()]
}

fn events() -> Vec<Vec<u8>> {
    let output = v1::Output { blob: vec![9; 32].into(), size: 1000, check: 2, rows: 64 };
    let validation = v1::Validation { round: 1, check: 1, range: 128.0, logits: vec![output.clone(); 3], repeats: 0 };
    let all = [
        What::Validation(validation),
        What::Finished(v1::Finished { outputs: vec![output] }),
        What::Progress(progress()),
        What::Started(v1::Started { attempt: 1, engine: "cpu".to_owned() }),
    ];
    all.map(|what| v1::Event { sequence: 7, what: Some(what) }.encode_to_vec()).into()
}

type Target = (&'static str, Vec<Vec<u8>>, fn(&[u8]) -> bool);

/// One test for all targets, because concurrent tests would count each other's memory.
#[test]
fn hostile_bytes_are_refused_or_understood() {
    let targets: [Target; 8] = [
        ("project", settings(), fuzz_targets::settings),
        ("retired key", retired(), fuzz_targets::retired),
        ("training", sample(include_bytes!("samples/training.json")), fuzz_targets::training),
        ("model", sample(include_bytes!("samples/model.json")), fuzz_targets::model),
        ("published model", published(), fuzz_targets::published),
        ("offer", offers(), fuzz_targets::offer),
        ("job", jobs(), fuzz_targets::job),
        ("event", events(), fuzz_targets::event),
    ];
    for (name, samples, parser) in targets {
        for (k, sample) in samples.iter().enumerate() {
            assert!(parser(sample), "{name} {k} is valid but was refused");
        }
        let runs = runs(10_000);
        let understood = feed(name, &samples, 12, runs, MEMORY, parser);
        println!("{name}: {runs} mutations, {understood} understood");
        // Mutations must produce valid and invalid inputs.
        assert!(understood > 0 && understood < runs, "{name}: {understood} of {runs}");
    }
}
