//! Folders that programs of an earlier version made are opened and used by those of today:
//! `folders/README.md` says what is in them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, error, json, text};
use hetal_testkit::TempDir;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Copies of the folders that the programs of one commit made.
struct Earlier {
    copies: TempDir,
}

impl Earlier {
    fn of(commit: &str) -> Self {
        let copies = TempDir::new();
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folders").join(commit), copies.path());
        let folders = Self { copies };
        ["finished", "in-progress"].iter().for_each(|project| folders.restore_blobs(project));
        folders
    }

    fn path(&self, name: &str) -> PathBuf {
        self.copies.path().join(name)
    }

    fn job(&self, project: &str) -> String {
        let record = read_json(&self.path(project).join("jobs/model/job.json"));
        record["job"]["id"].as_str().unwrap().to_owned()
    }

    /// Puts back what the repository leaves out: the key set and the row blobs of a project, here
    /// and on the server. What is not in the repository becomes a file of the recorded length.
    fn restore_blobs(&self, project: &str) {
        let folder = self.path(project);
        let uploads = self.path("server/blobs/tenants/test/uploads");
        fs::create_dir_all(&uploads).unwrap();
        let restore = |blob: &Value, file: PathBuf| {
            if !file.exists() {
                File::create(&file).unwrap().set_len(blob["bytes"].as_u64().unwrap()).unwrap();
            }
            fs::copy(&file, uploads.join(blob["blob"].as_str().unwrap())).unwrap();
        };
        let file = |folder: &Path, blob: &Value| folder.join(blob["file"].as_str().unwrap());
        for keys in list(&read_json(&folder.join("project.json"))["keys"]) {
            restore(&keys, file(&folder, &keys));
        }
        let training = folder.join("jobs/model");
        let record = read_json(&training.join("job.json"));
        for rows in [list(&record["batches"]), list(&record["validation"])].concat() {
            restore(&rows, file(&training, &rows));
        }
    }

    /// The version of the server's database. It is in the header of the file when no server runs.
    fn database_version(&self) -> u32 {
        let header = fs::read(self.path("server/state.sqlite")).unwrap();
        u32::from_be_bytes(header[60..64].try_into().unwrap())
    }
}

/// Copies a folder for its owner alone, as the programs make it.
fn copy(from: &Path, to: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

/// The names of the files in a folder.
fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// Lines of a table without its heading, each with its class and probability. Later versions write
/// more columns.
fn predictions(path: &Path) -> Vec<(String, f64)> {
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields[1].to_owned(), fields[2].parse().unwrap())
    };
    text.lines().skip(1).map(line).collect()
}

/// The states of all jobs, by their ids.
fn states(dir: &str, server: &[String]) -> Vec<(String, String)> {
    let mut arguments = vec!["jobs", "--json", "--dir", dir];
    arguments.extend(server.iter().map(String::as_str));
    let field = |job: &Value, name: &str| job[name].as_str().unwrap().to_owned();
    list(&json(&arguments)).iter().map(|job| (field(job, "job"), field(job, "state"))).collect()
}

/// Waits until a job that waited for a verdict of an earlier version has failed. Its owner is told
/// by the next command, and nothing waits in silence.
fn wait_until_failed(dir: &str, server: &[String], job: &str) {
    let end = Instant::now() + Duration::from_secs(120);
    while !states(dir, server).contains(&(job.to_owned(), "failed".to_owned())) {
        assert!(Instant::now() < end, "{:?}", states(dir, server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn train_arguments<'a>(dir: &'a str, rows: &'a str, server: &'a [String]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--json", "--verify", "--set", SET, "--dir", dir, "--features", rows];
    arguments.extend(["--label-column", "kind", "--batch", "32", "--epochs", "2", "--rate", "2"]);
    arguments.extend(["--verdict-delay-ms", "0"]);
    arguments.extend(server.iter().map(String::as_str));
    arguments
}

#[test]
fn a_model_of_an_earlier_version_predicts_the_same_classes() {
    let earlier = Earlier::of("1915e71");
    let (dir, rows, out) = (earlier.path("finished"), earlier.path("rows.csv"), earlier.path("out.csv"));
    let secret = fs::read(dir.join("secret.key")).unwrap();
    let shown = json(&["model", "show", "--json", "--dir", text(&dir)]);
    assert_eq!(shown["classes"], serde_json::json!(["ant", "bee", "cat"]), "{shown}");
    let predict = ["predict", "--json", "--dir", text(&dir), "--features", text(&rows), "--label-column", "kind"];
    json(&[&predict[..], &["--out", text(&out)]].concat());
    let expected = predictions(&earlier.path("predictions.csv"));
    assert_eq!(expected.len(), 32);
    assert!(expected.iter().any(|(_, probability)| *probability < 0.9), "some rows are close to a border");
    assert_eq!(predictions(&out), expected);

    // Nobody can know whether a key of that version was copied: its owner says so first.
    let export = ["model", "export", "--dir", text(&dir), "--format", "npz", "--out", "model.npz"];
    assert!(error(&export).contains("--moved"));
    assert_eq!(fs::read(dir.join("secret.key")).unwrap(), secret);
}

#[test]
fn a_server_folder_of_an_earlier_version_is_migrated_with_its_jobs() {
    let earlier = Earlier::of("1915e71");
    let before = earlier.database_version();
    let finished = earlier.path("finished");
    let (dir, rows) = (text(&finished), earlier.path("rows.csv"));
    let (done, waiting) = (earlier.job("finished"), earlier.job("in-progress"));
    let server = Server::start(earlier.copies.path());
    let to_server = server.arguments();
    wait_until_failed(dir, &to_server, &waiting);
    let mut found = states(dir, &to_server);
    found.sort();
    let mut expected = [(done.clone(), "finished".to_owned()), (waiting.clone(), "failed".to_owned())];
    expected.sort();
    assert_eq!(found, expected);

    // The weights on the server are those of another circuit: no wrong prediction, and no new one.
    let mut remote = vec!["predict", "--remote", "--dir", dir, "--features", text(&rows), "--label-column", "kind"];
    remote.extend(to_server.iter().map(String::as_str));
    let refused = error(&remote);
    assert!(refused.contains("earlier version") && refused.contains("without --remote"), "{refused}");
    assert!(!file_names(&finished.join("jobs")).iter().any(|name| name != "model"), "no folder of a query is left");

    // A new training with the same key, which replaces the model. The job of the old one can go.
    assert!(error(&train_arguments(dir, text(&rows), &to_server)).contains("--replace"));
    let secret = fs::read(finished.join("secret.key")).unwrap();
    let trained = json(&[&train_arguments(dir, text(&rows), &to_server)[..], &["--replace"]].concat());
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert_eq!(fs::read(finished.join("secret.key")).unwrap(), secret);
    let mut delete = vec!["delete", done.as_str(), "--dir", dir];
    delete.extend(to_server.iter().map(String::as_str));
    assert!(common::hetal(&delete).status.success());
    assert!(!states(dir, &to_server).iter().any(|(job, _)| *job == done));
    drop(server);
    assert!(before < earlier.database_version(), "{before} is the version of {}", earlier.database_version());
}

#[test]
fn a_training_of_an_earlier_version_is_made_anew() {
    let earlier = Earlier::of("1915e71");
    let project = earlier.path("in-progress");
    let (dir, rows, training) = (text(&project), earlier.path("rows.csv"), project.join("jobs/model"));
    let waiting = earlier.job("in-progress");
    let server = Server::start(earlier.copies.path());
    let to_server = server.arguments();
    let arguments = train_arguments(dir, text(&rows), &to_server);
    let (secret, files) = (fs::read(project.join("secret.key")).unwrap(), file_names(&training));
    let refused = error(&arguments);
    assert!(refused.contains("another version") && refused.contains("--replace"), "{refused}");
    assert_eq!(file_names(&training), files, "a refusal changes nothing");
    wait_until_failed(dir, &to_server, &waiting);

    let trained = json(&[&arguments[..], &["--replace"]].concat());
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
    assert!(states(dir, &to_server).contains(&(waiting, "failed".to_owned())));
    assert_eq!(fs::read(project.join("secret.key")).unwrap(), secret);
    // Only files that the new record and the project name are left.
    let record = read_json(&training.join("job.json"));
    let rows = [list(&record["batches"]), list(&record["validation"])].concat();
    let named: Vec<_> = rows.iter().map(|blob| blob["file"].as_str().unwrap().to_owned()).collect();
    let of_rows = file_names(&training).into_iter().filter(|name| name.ends_with(".ct"));
    assert!(of_rows.clone().all(|name| named.contains(&name)), "{:?}", of_rows.collect::<Vec<_>>());
    let keys = list(&read_json(&project.join("project.json"))["keys"]);
    let named: Vec<_> = keys.iter().map(|set| set["file"].as_str().unwrap().to_owned()).collect();
    let of_keys = file_names(&project).into_iter().filter(|name| name.ends_with(".hetal"));
    assert!(of_keys.clone().all(|name| named.contains(&name)), "{:?}", of_keys.collect::<Vec<_>>());
}
