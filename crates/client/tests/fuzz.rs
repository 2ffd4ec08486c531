//! Hostile bytes for everything that the data owner's program reads: feature and label files, the
//! project folder, and messages of a server. `HETAL_FUZZ_RUNS` sets the number of inputs per
//! target.
#![allow(clippy::unwrap_used)]

use hetal_client::data::files::{npy, npz, safetensors};
use hetal_client::layout::LayoutShape;
use hetal_client::project::{KeySet, ReleaseBudget, Rotation, ServerSettings};
use hetal_client::{Project, fuzz_targets};
use hetal_testkit::TempDir;
use hetal_testkit::allocation::{Counting, peak_of};
use hetal_testkit::fuzz::{feed, runs};
use hetal_wire::v1::{self, event::What};
use prost::Message;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that does not grow with the input: buffers of the CSV reader and the inflater, error
/// texts.
const MEMORY: usize = 256 << 10;

fn names() -> Vec<String> {
    ["jazz", "été", "a longer name"].map(str::to_owned).into()
}

fn arrays() -> Vec<Vec<u8>> {
    let bytes: Vec<u8> = npy::write_integers(&[3], &[0, -1, 2]);
    vec![npy::write_doubles(&[2, 3], &[1.0, -2.5, 1e300, 0.0, 0.25, f64::MIN_POSITIVE]), bytes]
}

fn texts() -> Vec<Vec<u8>> {
    vec![npy::write_texts(&names()), npy::write_texts(&vec!["x".to_owned(); 40])]
}

/// An archive with one deflated array: method, size and checksum are set in both headers.
fn deflated() -> Vec<u8> {
    let array = npy::write_doubles(&[4, 3], &[0.0; 12]);
    let mut bytes = npz::write(&[("x", miniz_oxide::deflate::compress_to_vec(&array, 6))]);
    let directory = bytes.len() - 22 - 46 - 5;
    for (method, checksum, size) in [(8, 14, 22), (directory + 10, directory + 16, directory + 24)] {
        bytes[method] = 8;
        bytes[size..size + 4].copy_from_slice(&(array.len() as u32).to_le_bytes());
        bytes[checksum..checksum + 4].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
    }
    bytes
}

fn archives() -> Vec<Vec<u8>> {
    let [features, labels] = [npy::write_doubles(&[2, 2], &[1.0; 4]), npy::write_texts(&names()[..2])];
    vec![npz::write(&[("features", features), ("labels", labels)]), deflated()]
}

/// Wraps bytes into an archive with a valid checksum, so that mutations reach the array parser.
fn packed(bytes: &[u8]) -> bool {
    fuzz_targets::npz(&npz::write(&[("x", bytes.to_vec())]))
}

fn tensors() -> Vec<Vec<u8>> {
    let metadata = [("classes".to_owned(), "a,b".to_owned())].into();
    vec![safetensors::write(&[("features", &[2, 2], &[0.5; 4]), ("y", &[2], &[0.0, 1.0])], &metadata)]
}

fn tables() -> Vec<Vec<u8>> {
    let all = ["a,b,kind\n1,2.5,cat\n-3,4e-1,\"dog, big\"\n", "1,2,7\n3,4,8\n", "cat\ndog\n", "kind\n1\n0\n"];
    all.map(|text| text.as_bytes().to_vec()).into()
}

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
    let shape = LayoutShape { batch: 32, features: 6, classes: 3, range: 128.0 };
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
            s.rotation = Some(Rotation { from: "11".repeat(16), shapes: vec![shape] });
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
    }
}

fn offers() -> Vec<Vec<u8>> {
    let set = v1::ParameterSet { id: vec![7; 32].into(), name: "full".to_owned() };
    let (defaults, bounds) = (Some(terms()), Some(v1::Bounds { rate_least: Some(0.5), ..v1::Bounds::default() }));
    let (version, program) = (hetal_wire::VERSION, "hetal-server".to_owned());
    vec![v1::Offer { version, program, sets: vec![set; 2], defaults, bounds }.encode_to_vec()]
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
    let output = v1::Output { blob: vec![9; 32].into(), size: 1000, epoch: 2, rows: 64 };
    let validation = v1::Validation { round: 1, epoch: 1, range: 128.0, logits: vec![output.clone(); 3] };
    let all = [
        What::Validation(validation),
        What::Finished(v1::Finished { outputs: vec![output] }),
        What::Progress(progress()),
        What::Started(v1::Started { attempt: 1, engine: "cpu".to_owned() }),
    ];
    all.map(|what| v1::Event { sequence: 7, what: Some(what) }.encode_to_vec()).into()
}

/// An array of zeros that is compressed a thousandfold: it is refused before it is inflated.
fn bomb() -> Vec<u8> {
    let shape = 16 << 20;
    let mut array = npy::write_integers(&[0], &[]);
    let header = array.len();
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape},), }}");
    array[10..10 + text.len()].copy_from_slice(text.as_bytes());
    array.resize(header + shape, 0);
    let mut bytes = npz::write(&[("x", miniz_oxide::deflate::compress_to_vec(&array, 1))]);
    let directory = bytes.len() - 22 - 46 - 5;
    for (method, checksum, size) in [(8, 14, 22), (directory + 10, directory + 16, directory + 24)] {
        bytes[method] = 8;
        bytes[size..size + 4].copy_from_slice(&(array.len() as u32).to_le_bytes());
        bytes[checksum..checksum + 4].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
    }
    bytes
}

type Target = (&'static str, Vec<Vec<u8>>, fn(&[u8]) -> bool);

/// One test for all targets, because concurrent tests would count each other's memory.
#[test]
fn hostile_bytes_are_refused_or_understood() {
    let bomb = bomb();
    let peak = peak_of(|| assert!(!fuzz_targets::npz(&bomb)));
    assert!(peak < 64 * bomb.len() + MEMORY, "{peak} bytes of memory for a file of {} bytes", bomb.len());
    let targets: [Target; 14] = [
        (".npy", arrays(), fuzz_targets::npy),
        (".npy of texts", texts(), fuzz_targets::texts),
        (".npz", archives(), fuzz_targets::npz),
        (".npy in .npz", arrays(), packed),
        (".safetensors", tensors(), fuzz_targets::safetensors),
        ("CSV", tables(), fuzz_targets::csv),
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
