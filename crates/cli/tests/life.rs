//! The command line of `hetal` from key generation to prediction, at toy parameter sets.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, error, hetal, json, text};
use hetal_client::Model;
use hetal_client::data::Labels;
use hetal_client::data::tables::{npy, npz};
use hetal_client::model::export;
use hetal_learn::Matrix;
use hetal_testkit::TempDir;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEMO: [&str; 13] = [
    "demo",
    "--json",
    "--set",
    SET,
    "--columns",
    "32",
    "--rows",
    "128",
    "--batch",
    "64",
    "--verdict-delay-ms",
    "0",
    "--dir",
];

#[test]
fn the_demo_trains_and_its_sizes_are_those_planned() {
    let folder = TempDir::new();
    let dir = text(folder.path());
    let report = json(&[&DEMO[..], &[dir]].concat());
    let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{name} is missing: {report}"));
    for name in ["wall_s", "training_s", "peak_rss_gib", "security_bits"] {
        assert!(number(name) >= 0.0);
    }
    // Progress comes once a second: on a quick machine no iteration is observed from start to end.
    let observed = &report["seconds_per_iteration"];
    assert!(observed.is_null() || observed.as_f64().is_some_and(|seconds| seconds > 0.0), "{report}");
    assert_eq!((number("iterations"), number("epochs")), (4.0, 2.0));
    assert!((number("test_accuracy") - number("twin_accuracy")).abs() <= 0.003, "{report}");
    assert!(number("test_accuracy") > 0.5, "{report}");
    assert!(number("weights_relative_difference") < 1e-3, "{report}");
    let model = PathBuf::from(report["model_path"].as_str().unwrap());
    assert!(Model::load(&model).is_ok());

    // The plan predicts every byte.
    let plan = json(&[
        "plan",
        "--json",
        "--set",
        SET,
        "--rows",
        "128",
        "--validation-rows",
        "511",
        "--columns",
        "32",
        "--classes",
        "7",
        "--batch",
        "64",
    ]);
    assert_eq!((&plan["key_bytes"], &plan["upload_bytes"]), (&report["key_bytes"], &report["upload_bytes"]));
    let halved = plan["upload_bytes"].as_f64().unwrap() / plan["upload_bytes_unseeded"].as_f64().unwrap();
    assert!((halved - 0.5).abs() < 0.01, "{halved}");
    let job: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("owner/jobs/demo/job.json")).unwrap()).unwrap();
    assert_eq!(
        (&job["sent"][0], &job["sent"][1]),
        (&plan["key_bytes"], &plan["upload_bytes"]),
        "bytes that really left"
    );

    // A second run trains again with the keys and rows that the server already has.
    let again = json(&[&DEMO[..], &[dir]].concat());
    assert_eq!(again["test_accuracy"], report["test_accuracy"]);
    let job: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("owner/jobs/demo/job.json")).unwrap()).unwrap();
    assert_eq!((job["sent"][0].as_u64(), job["sent"][1].as_u64()), (Some(0), Some(0)));
    // No file of the server contains the secret key.
    let secret = std::fs::read(folder.path().join("owner/secret.key")).unwrap();
    let body = &secret[56..secret.len() - 32];
    let mut looked_at = 0;
    for file in files(&folder.path().join("server")) {
        let bytes = std::fs::read(&file).unwrap();
        looked_at += bytes.len();
        assert!(!bytes.windows(body.len()).any(|window| window == body), "{}", file.display());
    }
    assert!(looked_at > 1 << 20);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A demo that is killed several times at arbitrary points still finishes.
#[test]
fn a_demo_that_is_killed_goes_on() {
    let folder = TempDir::new();
    let arguments = [&DEMO[..], &[text(folder.path())]].concat();
    for pause in [300, 1500, 4000] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
            .args(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        let _ = child.kill();
        child.wait().unwrap();
    }
    let report = json(&arguments);
    assert!(report["weights_relative_difference"].as_f64().unwrap() < 1e-3, "{report}");
}

/// A CSV table of three clusters with class names.
fn table(rows: usize) -> String {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
    };
    let mut lines = String::from("a,b,c,d,e,f,kind\n");
    for row in 0..rows {
        let class = (row * 7 + row / 5) % 3;
        let numbers: String =
            (0..6).map(|j| format!("{:.4},", f64::from(u8::from(j % 3 == class)) * 1.5 + next())).collect();
        lines += &format!("{numbers}{}\n", ["ant", "bee", "cat, big"][class].replace(", ", "-"));
    }
    lines
}

fn train_arguments<'a>(dir: &'a str, features: &'a str, server: &'a [String]) -> Vec<&'a str> {
    let mut arguments = vec![
        "train",
        "--json",
        "--verify",
        "--set",
        SET,
        "--dir",
        dir,
        "--features",
        features,
        "--label-column",
        "kind",
        "--batch",
        "64",
        "--epochs",
        "2",
        "--check-every",
        "2",
        "--rate",
        "2",
        "--verdict-delay-ms",
        "0",
    ];
    arguments.extend(server.iter().map(String::as_str));
    arguments
}

#[test]
fn a_project_from_keys_to_published_models() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (dir, features) = (text(&dir), text(&features));
    let to_server = server.arguments();

    let keys =
        json(&["keygen", "--json", "--set", SET, "--dir", dir, "--columns", "6", "--classes", "3", "--batch", "64"]);
    let trained = json(&train_arguments(dir, features, &to_server));
    assert_eq!(trained["key_bytes"], keys["key_bytes"], "the keys made before are those used");
    assert!(trained["validation_accuracy"].as_f64().unwrap() > 0.9, "{trained}");
    assert!(error(&train_arguments(dir, features, &to_server)).contains("--replace"));

    let local = json(&["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind"]);
    assert!(local["evaluation"]["accuracy"].as_f64().unwrap() > 0.9);
    assert_eq!(local["evaluation"]["confusion"].as_array().unwrap().len(), 3);
    let remote =
        json(&["predict", "--json", "--remote", "--dir", dir, "--features", features, "--label-column", "kind"]);
    let classes = |report: &Value| -> Vec<Value> {
        report["predictions"].as_array().unwrap().iter().map(|p| p["class"].clone()).collect()
    };
    assert_eq!(classes(&remote), classes(&local), "the server's blind predictions are the model's");

    // Predictions have few digits unless --exact is given, and only the owner can read the file.
    let out = folder.path().join("predictions.csv");
    json(&["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind", "--out", text(&out)]);
    let few = |probability: &str| probability.parse::<f64>().is_ok() && probability.len() <= 4;
    let lines = std::fs::read_to_string(&out).unwrap();
    assert!(lines.lines().skip(1).all(|line| few(line.rsplit(',').next().unwrap())), "{lines}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
        for file in files(Path::new(dir)) {
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "{}", file.display());
        }
        // The mode of an existing folder does not change; a warning says that others can read it.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = String::from_utf8_lossy(&hetal(&["jobs", "--dir", dir]).stderr).into_owned();
        assert!(said.contains("chmod 700"), "{said}");
    }
    let exact = json(&["predict", "--json", "--exact", "--dir", dir, "--features", features, "--label-column", "kind"]);
    assert_ne!(exact["predictions"][0]["probability"], local["predictions"][0]["probability"]);

    let jobs = json(&["jobs", "--json", "--dir", dir]);
    let job = jobs.as_array().unwrap().iter().find(|job| job["job"] == trained["job"]).unwrap();
    assert_eq!(job["state"], "finished");
    let status = json(&["status", trained["job"].as_str().unwrap(), "--json", "--dir", dir]);
    assert_eq!(status["state"], "finished");
    assert!(error(&["status", "zz", "--dir", dir]).contains("hetal jobs"));

    // A release that costs too much accuracy is refused before anything is fixed.
    let dear = ["model", "export", "--dir", dir, "--format", "npz", "--out", "m.npz", "--security", "20"];
    let refused = error(&[&dear[..], &["--models", "100000000"]].concat());
    assert!(refused.contains("--accept-loss") && refused.contains("Nothing was published"), "{refused}");
    let settings = || std::fs::read_to_string(Path::new(dir).join("project.json")).unwrap();
    assert!(settings().contains("\"released\":null") || settings().contains("\"released\": null"), "{}", settings());
    let out = folder.path().join("m.txt");
    let export = ["model", "export", "--json", "--dir", dir, "--format", "sklearn", "--out", text(&out)];
    let first = json(&export);
    assert_eq!((first["security"].as_u64(), first["numbers_left"].as_u64()), (Some(15), Some(0)), "{first}");
    let accuracy = |which: &str| first["accuracy"][which].as_f64().unwrap();
    assert!(accuracy("published") > accuracy("private") - 0.05, "{first}");
    assert_eq!(first["table"]["lines"].as_array().unwrap().len(), 11);
    assert_eq!(json(&export)["sigma"], first["sigma"]);

    let exported = |format: &str| {
        let path = folder.path().join(format!("m.{format}"));
        json(&["model", "export", "--json", "--dir", dir, "--format", format, "--out", text(&path)]);
        std::fs::read(path).unwrap()
    };
    let arrays = npz::parse(&exported("npz")).unwrap();
    let coefficients = arrays.iter().find(|(name, _)| name == "coef").unwrap().1.clone().numbers("coef").unwrap();
    let coefficients = Matrix::new(coefficients.0, coefficients.1, coefficients.2).unwrap();
    let (onnx, _, names) = export::read_gemm(&exported("onnx")).unwrap();
    assert_eq!(names, ["ant", "bee", "cat-big"]);
    assert!(onnx.iter().zip(coefficients.values()).all(|(a, b)| *a == *b as f32));
    let json_model: Value = serde_json::from_slice(&exported("sklearn")).unwrap();
    assert_eq!(json_model["coef"][2][5].as_f64().unwrap(), coefficients[(2, 5)]);
    assert!(exported("safetensors").len() > 3 * 6 * 8);
    let exact = Model::load(&Path::new(dir).join("models/model.json")).unwrap();
    assert!(exact.weights.concat().iter().zip(coefficients.values()).all(|(a, b)| a != b), "exact weights left");

    // Another shape gets its own key set of the same secret key. The server is the stored one.
    let wide = folder.path().join("wide.npz");
    let values: Vec<f64> = (0..72).map(|k| f64::from(k % 7 + k / 9 % 2 * 5)).collect();
    let (values, names) = (npy::write_doubles(&[8, 9], &values), Labels::Integers(vec![0, 1, 0, 1, 0, 1, 0, 1]));
    std::fs::write(&wide, npz::write(&[("x", values), ("y", npy::write_texts(&names.texts()))])).unwrap();
    let other =
        ["train", "--json", "--verify", "--dir", dir, "--features", text(&wide), "--name", "other", "--epochs", "1"];
    let other = json(&[&other[..], &["--verdict-delay-ms", "0"]].concat());
    assert!(other["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{other}");
    assert_eq!(key_files(Path::new(dir)).len(), 2);
    let project: Value = serde_json::from_slice(&std::fs::read(Path::new(dir).join("project.json")).unwrap()).unwrap();
    assert_eq!((&project["key_id"], project["keys"].as_array().unwrap().len()), (&keys["key_id"], 2));
    let again =
        json(&["predict", "--json", "--remote", "--dir", dir, "--features", features, "--label-column", "kind"]);
    assert_eq!(classes(&again), classes(&local), "the first model has not lost its keys");
}

/// A value that has at most three digits after the point.
fn is_rounded(value: &Value) -> bool {
    let thousandths = 1000.0 * value.as_f64().unwrap();
    (thousandths - thousandths.round()).abs() < 1e-9
}

/// What follows from decrypted values is rounded and named as private, and a set without security
/// is named in every output, whoever chose it.
#[test]
fn outputs_say_what_is_private_and_what_is_insecure() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (dir, features, to_server) = (text(&dir), text(&features), server.arguments());
    let output = hetal(&train_arguments(dir, features, &to_server));
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warned.contains("WARNING") && warned.contains("NO SECURITY"), "{warned}");
    let trained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(trained["security"].as_str().unwrap().contains("NO SECURITY"), "{trained}");
    assert_eq!(trained["security_bits"].as_f64(), Some(0.0));
    let private = ["validation_loss", "reference_difference_bound", "twin_relative_difference"];
    assert_eq!(trained["private"], serde_json::json!(private));
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert_eq!(trained["reference_difference_bound"], trained["twin_relative_difference"]);
    assert!(is_rounded(&trained["validation_loss"]), "{trained}");
    let exact = Model::load(&Path::new(dir).join("models/model.json")).unwrap();
    assert!(!is_rounded(&exact.training.validation_loss.into()), "the model file is exact");
    let shown = json(&["model", "show", "--json", "--dir", dir]);
    assert!(is_rounded(&shown["training"]["validation_loss"]), "{shown}");
    assert_eq!(shown["private"], serde_json::json!(["training.validation_loss"]));
    // The set is chosen in the project: nobody names it now.
    let mut arguments = train_arguments(dir, features, &to_server);
    arguments.retain(|argument| !["--json", "--set", SET].contains(argument));
    let output = hetal(&[&arguments[..], &["--replace"]].concat());
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("NO SECURITY") && warned.contains("NO SECURITY"), "{said} {warned}");
    // A server without a secure set is not a reason to use an insecure one.
    let secure = folder.path().join("secure");
    let mut arguments = train_arguments(text(&secure), features, &to_server);
    arguments.retain(|argument| !["--set", SET].contains(argument));
    let refused = error(&arguments);
    assert!(refused.contains("NO SECURITY") && refused.contains("another server"), "{refused}");
    assert!(!refused.contains("--set"), "{refused}");
    for command in ["train", "keygen"] {
        let help = String::from_utf8_lossy(&hetal(&[command, "--help"]).stdout).into_owned();
        assert!(help.contains("--set <NAME>") && help.contains("NO SECURITY"), "{help}");
    }
}

/// With a passphrase the model is locked like the secret key.
#[test]
fn a_passphrase_locks_the_model_too() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features, words) = (folder.path().join("p"), folder.path().join("rows.csv"), folder.path().join("words"));
    std::fs::write(&features, table(150)).unwrap();
    std::fs::write(&words, "correct horse\n").unwrap();
    let (dir, features, words, to_server) = (text(&dir), text(&features), text(&words), server.arguments());
    let passphrase = ["--passphrase-file", words];
    json(&[&train_arguments(dir, features, &to_server)[..], &["--passphrase"], &passphrase].concat());
    let model = std::fs::read(Path::new(dir).join("models/model.json")).unwrap();
    assert!(!String::from_utf8_lossy(&model).contains("weights"));
    let predict = ["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind"];
    let out = folder.path().join("m.onnx");
    let export = ["model", "export", "--json", "--dir", dir, "--format", "onnx", "--out", text(&out)];
    for command in [&["model", "show", "--json", "--dir", dir][..], &predict[..], &export[..]] {
        let refused = error(command);
        assert!(refused.contains("HETAL_PASSPHRASE"), "{command:?}: {refused}");
        json(&[command, &passphrase].concat());
    }
    let remote = json(&[&predict[..], &["--remote"], &passphrase].concat());
    assert_eq!(remote["predictions"], json(&[&predict[..], &passphrase].concat())["predictions"]);
}

/// Predictions are written into a pipe, and the pipe is not replaced by a file.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_written_to() {
    use std::os::unix::fs::FileTypeExt;
    let folder = TempDir::new();
    let (pipe, link, target) = (folder.path().join("pipe"), folder.path().join("link"), folder.path().join("target"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    hetal_cli::terminal::output::write_private(&pipe, b"a,b\n").unwrap();
    assert_eq!(reader.join().unwrap(), b"a,b\n");
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    std::fs::write(&target, b"old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    hetal_cli::terminal::output::write_public(&link, b"new").unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
}

/// Without the learning rate there is no plaintext reference. The output says why,
/// and the model, whose noise is unknown, is not published.
#[test]
fn hidden_rates_leave_no_reference_and_no_export() {
    let folder = TempDir::new();
    let server = Server::start_with(folder.path(), |config| config.hide_hyperparameters = true);
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (dir, to_server) = (text(&dir), server.arguments());
    let mut arguments = train_arguments(dir, text(&features), &to_server);
    arguments.retain(|argument| *argument != "--json");
    let output = hetal(&arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("hides its learning rate"), "{said}");
    let out = folder.path().join("m.onnx");
    let refused = error(&["model", "export", "--dir", dir, "--format", "onnx", "--out", text(&out)]);
    assert!(refused.contains("hides its learning rate"), "{refused}");
}

/// A server may choose every rate. It then tells no limits, and clients ask for none.
#[test]
fn a_server_that_chooses_the_rate_trains() {
    let folder = TempDir::new();
    let server = Server::start_with(folder.path(), |config| config.hyperparameters.hide_rate = true);
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (other, to_server) = (folder.path().join("q"), server.arguments());
    let refused = error(&train_arguments(text(&other), text(&features), &to_server));
    assert!(refused.contains("the server chooses the learning rate: ask for none"), "{refused}");
    let mut arguments = train_arguments(text(&dir), text(&features), &to_server);
    let rate = arguments.iter().position(|argument| *argument == "--rate").unwrap();
    arguments.drain(rate..rate + 2);
    let trained = json(&arguments);
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
}

/// Trains a classifier of two ciphertexts on batches of two pieces and classifies with it remotely.
#[test]
fn wide_rows_and_large_batches_take_several_ciphertexts() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, rows) = (folder.path().join("p"), folder.path().join("wide.npz"));
    let (count, columns) = (400, 600);
    let labels: Vec<i64> = (0..count).map(|i| (i * 7 + i / 5) % 3).collect();
    let value = |i: i64, j: i64| {
        f64::from((i * 37 + j * 101) as u32 % 64) / 64.0 + f64::from(u8::from(j % 3 == labels[i as usize]))
    };
    let values: Vec<f64> =
        (0..count).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| value(i, j)).collect();
    let arrays = [
        ("x", npy::write_doubles(&[count as usize, columns as usize], &values)),
        ("y", npy::write_texts(&Labels::Integers(labels.clone()).texts())),
    ];
    std::fs::write(&rows, npz::write(&arrays)).unwrap();
    let (dir, rows, to_server) = (text(&dir), text(&rows), server.arguments());
    let wishes = ["--set", SET, "--batch", "300", "--epochs", "2"];
    let plan = json(&[&["plan", "--json", "--features", rows], &wishes[..]].concat());
    assert_eq!(
        (plan["classifier_ciphertexts"].as_u64(), plan["batches"].as_u64(), plan["pieces"].as_u64()),
        (Some(2), Some(2), Some(3))
    );
    let mut train =
        [&["train", "--json", "--verify", "--dir", dir, "--features", rows, "--verdict-delay-ms", "0"], &wishes[..]]
            .concat();
    train.extend(to_server.iter().map(String::as_str));
    let trained = json(&train);
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert_eq!(trained["upload_bytes"], plan["upload_bytes"], "{trained}");
    let predicted = |more: &[&str]| {
        let report = json(&[&["predict", "--json", "--dir", dir, "--features", rows], more].concat());
        report["predictions"].as_array().unwrap().iter().map(|p| p["class"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(predicted(&["--remote"]), predicted(&[]));
}

/// Waits until `ready` returns true. The child must not exit before.
fn wait_until(child: &mut Child, what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(child.try_wait().unwrap().is_none(), "ended before: {what}");
        assert!(start.elapsed() < Duration::from_secs(300), "{what} never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client that is killed at every stage of a training resumes. Rows are encrypted once, and there
/// is one job.
#[test]
fn a_training_whose_client_is_killed_at_every_stage_ends_once() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let to_server = server.arguments();
    let arguments = train_arguments(text(&dir), text(&features), &to_server);
    let record =
        || -> Option<Value> { serde_json::from_slice(&std::fs::read(dir.join("jobs/model/job.json")).ok()?).ok() };
    let judged =
        |count: u64| record().is_some_and(|r| r["job"]["judged"].as_u64().is_some_and(|judged| judged >= count));
    type Stage<'a> = (&'a str, Box<dyn Fn() -> bool + 'a>);
    let stages: Vec<Stage<'_>> = vec![
        ("a secret key", Box::new(|| dir.join("secret.key").exists())),
        ("a key set begun", Box::new(|| !key_files(&dir).is_empty())),
        ("a key set", Box::new(|| key_files(&dir).iter().any(|name| name.ends_with(".hetal")))),
        ("a batch", Box::new(|| dir.join("jobs/model/batch-0000.ct").exists())),
        ("all rows", Box::new(|| record().is_some())),
        ("a job asked for", Box::new(|| record().is_some_and(|r| r["job"]["request"].is_string()))),
        ("a job", Box::new(|| record().is_some_and(|r| r["job"]["id"].is_string()))),
        ("a round", Box::new(|| judged(1))),
        ("another round", Box::new(|| judged(2))),
    ];
    let mut blobs = None;
    for (what, ready) in stages {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
            .args(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(&mut child, what, &ready);
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(record) = record() {
            let now = (record["batches"].clone(), record["validation"].clone());
            assert_eq!(*blobs.get_or_insert(now.clone()), now, "rows were encrypted twice, killed at: {what}");
        }
    }
    let trained = json(&arguments);
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert_eq!(json(&["jobs", "--json", "--dir", text(&dir)]).as_array().unwrap().len(), 1);
}

/// An interrupted training keeps its key set. If the server has the key set, its file is not
/// needed. A key set of an earlier version is not replaced silently.
#[test]
fn an_interrupted_training_keeps_its_key_set() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let to_server = server.arguments();
    let named = |name| [&train_arguments(text(&dir), text(&features), &to_server)[..], &["--name", name]].concat();
    let record = |name: &str| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(dir.join("jobs").join(name).join("job.json")).ok()?).ok()
    };
    let interrupt = |name: &'static str, ready: &dyn Fn(Value) -> bool| {
        let command = named(name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
            .args(&command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(&mut child, name, || record(name).is_some_and(ready));
        child.kill().unwrap();
        child.wait().unwrap();
    };
    interrupt("first", &|record| record["job"]["id"].is_string());
    let keys = key_files(&dir);
    assert_eq!(keys.len(), 1);
    std::fs::remove_file(dir.join(&keys[0])).unwrap();
    json(&named("first"));
    assert!(key_files(&dir).is_empty(), "nothing was made in its place");

    // Keys of an earlier version are an error, and nothing is made.
    let settings = dir.join("project.json");
    let change = |name: &str, value: Value| {
        let mut read: Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
        read["keys"][0][name] = value;
        std::fs::write(&settings, read.to_string()).unwrap();
    };
    interrupt("second", &|record| record["job"]["id"].is_string());
    let keys = key_files(&dir);
    change("bytes", 3.into());
    let said = error(&named("second"));
    assert!(said.contains("keys of an earlier version") && said.contains("--replace"), "{said}");
    assert_eq!(key_files(&dir), keys);
    // A training of another name makes new keys and names the training that used the old ones.
    let output = hetal(&named("third"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("--name second --replace"), "{said}");
    assert!(error(&named("second")).contains("keys that were replaced since"));
    // So does a new secret key.
    interrupt("fourth", &|_| true);
    let rotated = json(&["keys", "rotate", "--json", "--dir", text(&dir)]);
    assert_eq!(rotated["interrupted_trainings"], serde_json::json!(["fourth"]), "{rotated}");
}

/// Deleting a job deletes its uploads that no other job uses. The next command deletes what a
/// killed query left behind.
#[test]
fn what_is_on_the_server_can_be_deleted() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let to_server = server.arguments();
    let (project, rows) = (text(&dir), text(&features));
    let train = |name| json(&[&train_arguments(project, rows, &to_server)[..], &["--name", name]].concat());
    let (first, second) = (train("first"), train("second"));
    let delete = |report: &Value| json(&["delete", report["job"].as_str().unwrap(), "--json", "--dir", project]);
    let deleted = delete(&first);
    // Three pieces of rows and one of validation rows; the second job uses the key set too.
    assert_eq!((&deleted["training"], &deleted["uploads_kept"]), (&"first".into(), &1.into()), "{deleted}");
    let jobs = || json(&["jobs", "--json", "--dir", project]).as_array().unwrap().len();
    assert_eq!((jobs(), delete(&second)["uploads_kept"].clone(), jobs()), (1, 0.into(), 0));
    // An interrupted deletion continues. An unknown job cannot be deleted.
    assert_eq!(delete(&second)["uploads_deleted"], 0);
    assert!(error(&["delete", &"0".repeat(32), "--dir", project]).contains("not found on"));
    // The remaining files name the owner of the folder.
    let left: Vec<_> = files(&folder.path().join("server/blobs"));
    assert!(left.iter().all(|path| path.ends_with("owner")), "{left:?}");

    // A query is killed while the server works on it. It has many rows, so that it does not finish
    // before.
    train("third");
    std::fs::write(&features, table(6000)).unwrap();
    let query = ["predict", "--json", "--remote", "--dir", project, "--features", rows, "--label-column", "kind"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(query)
        .args(["--model", "third"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let queries = || -> Vec<PathBuf> {
        let folders = std::fs::read_dir(dir.join("jobs")).unwrap().map(|entry| entry.unwrap().path());
        folders.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("query-")).collect()
    };
    let runs = || {
        let jobs = json(&["jobs", "--json", "--dir", project]);
        jobs.as_array().unwrap().iter().any(|job| job["state"] == "running")
    };
    wait_until(&mut child, "a query that runs", runs);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(queries().len(), 1);
    // It ends some time after its cancellation. Until then the project remembers it.
    let start = Instant::now();
    while jobs() > 1 {
        assert_eq!(queries().len(), 1, "forgotten while it is on the server");
        assert!(start.elapsed() < Duration::from_secs(60), "the query is never deleted");
    }
    assert_eq!((queries().len(), jobs()), (0, 1));
}

/// A project can be read while it trains. A wrong address or authority fails at once.
#[test]
fn a_project_is_looked_at_while_it_trains() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (dir, features, to_server) = (text(&dir), text(&features), server.arguments());
    json(&train_arguments(dir, features, &to_server));
    let held = hetal_client::Project::existing(Path::new(dir)).unwrap();
    let jobs = json(&["jobs", "--json", "--dir", dir]);
    let job = jobs[0]["job"].as_str().unwrap();
    json(&["status", job, "--json", "--dir", dir]);
    json(&["model", "show", "--json", "--dir", dir]);
    json(&["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind"]);
    json(&["predict", "--json", "--remote", "--dir", dir, "--features", features, "--label-column", "kind"]);
    assert!(error(&["keys", "rotate", "--dir", dir]).contains("another hetal process is using"));
    drop(held);

    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let stranger = Server::start(&other);
    let mut wrong = stranger.arguments();
    wrong[1].clone_from(&to_server[1]);
    let started = Instant::now();
    let said = error(&[&["jobs", "--dir", dir], &wrong.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    assert!(said.contains("certificate") && started.elapsed() < Duration::from_secs(5), "{said}");
    wrong[1] = "127.0.0.1:1".to_owned();
    let said = error(&[&["jobs", "--dir", dir], &wrong.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    assert!(said.contains("cannot reach") && started.elapsed() < Duration::from_secs(30), "{said}");
}

/// `--replace` repairs damaged or missing rows and an unreadable record, and cancels the old job.
#[test]
fn what_is_damaged_is_replaced() {
    let folder = TempDir::new();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    [&here, &there].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let (first, second) = (Server::start(&here), Server::start(&there));
    let (dir, features) = (folder.path().join("p"), folder.path().join("rows.csv"));
    std::fs::write(&features, table(150)).unwrap();
    let (to_first, to_second) = (first.arguments(), second.arguments());
    let train = |server| [&train_arguments(text(&dir), text(&features), server)[..], &["--replace"]].concat();
    json(&train(&to_first));
    let batch = dir.join("jobs/model/batch-0000.ct");
    let whole = std::fs::read(&batch).unwrap();
    let mut other = whole.clone();
    other[1000] ^= 1;
    // The first server has the rows; the second one does not.
    std::fs::write(&batch, &other).unwrap();
    json(&train(&to_second));
    let again = std::fs::read(&batch).unwrap();
    assert!(again.len() == whole.len() && again != whole && again != other, "encrypted again");
    std::fs::remove_file(&batch).unwrap();
    json(&train(&to_first));
    assert!(batch.exists());

    let record = dir.join("jobs/model/job.json");
    std::fs::write(&record, b"{\"version\"").unwrap();
    let unreplaced = train_arguments(text(&dir), text(&features), &to_first);
    let said = error(&unreplaced);
    assert!(said.contains("job.json") && said.contains("--replace"), "{said}");
    json(&train(&to_first));

    // The server changes its address after an interruption: the replaced job is still cancelled.
    let mut named = train(&to_first);
    named.extend(["--name", "other"]);
    let record = dir.join("jobs/other/job.json");
    let read = || -> Value {
        let bytes = std::fs::read(&record).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(&named)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(&mut child, "a job", || read()["job"]["id"].is_string());
    child.kill().unwrap();
    child.wait().unwrap();
    let mut moved = read();
    let job = moved["job"]["id"].clone();
    moved["job"]["server"] = "127.0.0.1:1".into();
    std::fs::write(&record, moved.to_string()).unwrap();
    named.extend(["--patience", "1"]);
    json(&named);
    let status = json(&["status", job.as_str().unwrap(), "--json", "--dir", text(&dir)]);
    assert_eq!(status["state"], "cancelled", "{status}");
}

/// Complete and incomplete key sets of a project folder.
fn key_files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("keys-")).collect()
}

/// A variable that was to hold a passphrase must not leave a key without one.
#[test]
fn an_empty_variable_is_refused() {
    let folder = TempDir::new();
    let (dir, words) = (folder.path().join("p"), folder.path().join("words"));
    std::fs::write(&words, "correct horse\n").unwrap();
    let shape = ["--columns", "6", "--classes", "3", "--batch", "64", "--set", SET];
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hetal")).args(arguments).env("HETAL_PASSPHRASE", "").output().unwrap()
    };
    let refused = |arguments: &[&str]| {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("HETAL_PASSPHRASE is set, but empty"), "{said}");
    };
    let keygen = [&["keygen", "--dir", text(&dir)], &shape[..]].concat();
    refused(&keygen);
    refused(&[&keygen[..], &["--passphrase"]].concat());
    assert!(!dir.join("secret.key").exists());
    let made = run(&[&keygen[..], &["--passphrase", "--passphrase-file", text(&words)]].concat());
    assert!(made.status.success(), "a file is used instead: {}", String::from_utf8_lossy(&made.stderr));
    refused(&["keys", "backup", text(&folder.path().join("backup")), "--dir", text(&dir)]);
}

/// A key with a passphrase, its backup and its replacement.
#[test]
fn keys_are_locked_backed_up_restored_and_replaced() {
    let folder = TempDir::new();
    let path = |name: &str| text(&folder.path().join(name)).to_owned();
    let (dir, elsewhere, backup, words, wrong) = (path("p"), path("q"), path("backup"), path("words"), path("wrong"));
    std::fs::write(&words, "correct horse\n").unwrap();
    std::fs::write(&wrong, "incorrect horse\n").unwrap();
    let shape = ["--columns", "6", "--classes", "3", "--batch", "64", "--json", "--set", SET];
    let keygen = |words: &str, more: &[&str]| {
        hetal(&[&["keygen", "--dir", &dir, "--passphrase-file", words], &shape[..], more].concat())
    };
    let output = keygen(&words, &["--passphrase"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("others can read the passphrase"));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["locked"], true);
    let refused = keygen(&wrong, &[]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("not the passphrase") && !said.contains("horse"), "{said}");
    // Without a terminal there is no prompt.
    assert!(error(&["keys", "backup", &backup, "--dir", &dir]).contains("HETAL_PASSPHRASE"));
    let saved = json(&["keys", "backup", &backup, "--dir", &dir, "--passphrase-file", &words, "--json"]);
    assert_eq!((&saved["key_id"], &saved["locked"]), (&made["key_id"], &Value::from(true)));
    assert!(error(&["keys", "backup", &backup, "--dir", &dir, "--passphrase-file", &words]).contains("exists"));

    std::fs::remove_file(folder.path().join("p/secret.key")).unwrap();
    let lost = String::from_utf8_lossy(&keygen(&words, &[]).stderr).into_owned();
    assert!(lost.contains("keys restore"), "{lost}");
    let restored = json(&["keys", "restore", &backup, "--dir", &dir, "--passphrase-file", &words, "--json"]);
    assert_eq!((&restored["key_id"], &restored["may_publish"]), (&made["key_id"], &Value::from(true)));
    // A damaged key set is made again, and the output says so.
    let replaced = || serde_json::from_slice::<Value>(&keygen(&words, &[]).stdout).unwrap()["replaced"].clone();
    assert_eq!(replaced(), false);
    let set = Path::new(made["key_set"].as_str().unwrap());
    let mut bytes = std::fs::read(set).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(set, bytes).unwrap();
    assert_eq!((replaced(), replaced()), (Value::from(true), Value::from(false)));
    let other =
        json(&["keys", "restore", &backup, "--dir", &elsewhere, "--set", SET, "--passphrase-file", &words, "--json"]);
    assert_eq!((&other["key_id"], &other["may_publish"]), (&made["key_id"], &Value::from(false)));

    let rotated = json(&["keys", "rotate", "--dir", &dir, "--passphrase-file", &words, "--json"]);
    assert_eq!((&rotated["old_key_id"], &rotated["key_sets"]), (&made["key_id"], &Value::from(1)));
    assert_ne!(rotated["key_id"], made["key_id"]);
    assert!(folder.path().join("p/old/secret-1.key").exists() && folder.path().join("p/old/secret-1.json").exists());
    assert!(
        error(&["keys", "restore", &backup, "--dir", &dir, "--passphrase-file", &words]).contains("another secret key")
    );

    // An invalid shape leaves the key in place. The replacement of a locked key is locked.
    let secret = || std::fs::read(folder.path().join("p/secret.key")).unwrap();
    let before = secret();
    let wide = ["keygen", "--dir", &dir, "--passphrase-file", &words, "--fresh-keys", "--columns", "6", "--classes"];
    assert!(!hetal(&[&wide[..], &["1000", "--batch", "64"]].concat()).status.success());
    assert_eq!(secret(), before);
    // Keys that no server has seen are kept.
    let fresh = || serde_json::from_slice::<Value>(&keygen(&words, &["--fresh-keys"]).stdout).unwrap();
    assert!(fresh()["retired"] == false && secret() == before);
    let settings = folder.path().join("p/project.json");
    let mut read: Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
    read["keys"][0]["sent"] = true.into();
    std::fs::write(&settings, read.to_string()).unwrap();
    // A wrong passphrase does not lock a new key.
    let refused = keygen(&wrong, &["--fresh-keys"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not the passphrase"), "{said}");
    assert_eq!(secret(), before);
    let made = fresh();
    assert!(made["locked"] == true && made["retired"] == true && secret() != before);
    // --passphrase on a key without one is an error.
    let unlocked = path("open");
    let open = [&["keygen", "--dir", &unlocked], &shape[..]].concat();
    assert!(hetal(&open).status.success());
    assert!(error(&[&open[..], &["--passphrase", "--passphrase-file", &words]].concat()).contains("keys rotate"));
}

/// Whoever asks for fresh keys and a passphrase gets keys with this passphrase, also where there
/// were unused ones with another.
#[test]
fn fresh_keys_have_the_passphrase_that_is_asked_for() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let path = |name: &str| text(&folder.path().join(name)).to_owned();
    let (dir, rows, old, new) = (path("p"), path("rows.csv"), path("old"), path("new"));
    std::fs::write(&rows, table(150)).unwrap();
    std::fs::write(&old, "correct horse\n").unwrap();
    std::fs::write(&new, "battery staple\n").unwrap();
    let shape = ["--set", SET, "--columns", "6", "--classes", "3", "--batch", "64"];
    let lock = |words| ["--passphrase", "--passphrase-file", words];
    json(&[&["keygen", "--json", "--dir", &dir], &shape[..], &lock(&old)].concat());
    let connection = server.arguments();
    let train = train_arguments(&dir, &rows, &connection);
    let fresh = [&["--fresh-keys"], &lock(&new)[..]].concat();
    json(&[&train[..], &fresh].concat());
    let backup = |name: &str, words: &str| {
        hetal(&["keys", "backup", &path(name), "--dir", &dir, "--passphrase-file", words]).status.success()
    };
    assert!(!backup("first", &old) && backup("second", &new), "the keys are not those that were asked for");
    // Without --passphrase the fresh keys keep the passphrase of those that they replace.
    let again = |words| [&train[..], &["--fresh-keys", "--replace", "--passphrase-file", words]].concat();
    let refused = error(&again(&old));
    assert!(refused.contains("not the passphrase"), "{refused}");
    json(&again(&new));
    assert!(backup("third", &new));
}

#[test]
fn errors_say_what_to_do() {
    let folder = TempDir::new();
    let dir = folder.path().join("p");
    assert!(error(&["predict", "--dir", text(&dir), "--features", "x.npy"]).contains("run `hetal train` first"));
    assert!(error(&["plan"]).contains("--rows"));
    let rows = folder.path().join("rows.csv");
    std::fs::write(&rows, "a,b,kind\n1,2,x\n3,oops,y\n").unwrap();
    let wrong = error(&["plan", "--features", text(&rows), "--label-column", "kind"]);
    assert!(wrong.contains("rows.csv") && wrong.contains("row 2") && wrong.contains("column b"), "{wrong}");
    assert!(wrong.contains("oops"), "{wrong}");
    let unnamed = error(&["plan", "--features", text(&rows)]);
    assert!(unnamed.contains("--label-column kind"), "{unnamed}");
    // Validation rows need labels. Errors name the file and the problem.
    let labels = folder.path().join("labels.csv");
    std::fs::write(&rows, "1,2\n3,4\n5,6\n7,8\n").unwrap();
    std::fs::write(&labels, "x\ny\nx\ny\n").unwrap();
    let plan = ["plan", "--features", text(&rows), "--labels", text(&labels)];
    let unlabelled = error(&[&plan[..], &["--validation", text(&rows)]].concat());
    assert!(unlabelled.contains("--validation-labels"), "{unlabelled}");
    std::fs::write(&rows, "1,2\n3,4\n5,inf\n7,8\n").unwrap();
    let infinite = error(&plan);
    assert!(infinite.contains("rows.csv: row 3, column 2"), "{infinite}");
    // A closed pipe (`| head`) is no error.
    for command in ["doctor", "params"] {
        let run = Command::new(env!("CARGO_BIN_EXE_hetal"))
            .arg(command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(|mut child| (child.stdout.take(), child));
        let (stdout, child) = run.unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let report = json(&["doctor", "--json"]);
    assert!(report["threads"].as_u64().unwrap() >= 1 && report["sets"].as_array().unwrap().len() >= 4);
}
