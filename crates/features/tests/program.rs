//! The program itself: its worker is killed, runs out of memory or stalls, and a second run
//! continues.
#![cfg(all(target_os = "linux", feature = "hub"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_testkit::TempDir;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The time that a step may take on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// Pictures of the training part; a chunk on the CPU has 32.
const PICTURES: usize = 48;
/// The large picture, which takes a while to decode: one of the second chunk.
const LARGE: usize = 40;
/// Bytes of memory that a worker holds only while it decodes the large picture.
const LARGE_MEMORY: u64 = 250 << 20;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hetal-extract"));
    // What the user of the machine has set must not decide what is tested.
    for name in ["HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HETAL_MODELS"] {
        command.env_remove(name);
    }
    command
}

fn wait_until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(start.elapsed() < STEP_TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// The memory that a process holds.
fn resident(id: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{id}/statm")).unwrap_or_default();
    pages.split_whitespace().nth(1).map_or(0, |pages| pages.parse::<u64>().unwrap() * 4096)
}

/// Stops a process, so that it neither ends nor makes progress.
fn stop(id: u32) {
    kill_process(Pid::from_raw(id as i32).unwrap(), Signal::STOP).unwrap();
    wait_until("the stop", || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        stat.rsplit_once(')').filter(|(_, rest)| rest.trim().starts_with('T')).map(drop)
    });
}

/// Stops the worker while it decodes the large picture.
fn stop_at_large_picture(supervisor: &Child) -> u32 {
    let worker = child_of(supervisor.id());
    wait_until("the large picture", || (resident(worker) > LARGE_MEMORY).then_some(()));
    stop(worker);
    assert!(resident(worker) > LARGE_MEMORY, "the large picture was finished before the worker was stopped");
    worker
}

/// The process that another one started.
fn child_of(parent: u32) -> u32 {
    let is_child = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // After the name, which may hold anything: state, parent.
        let after = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_owned();
        (after == parent.to_string()).then_some(id)
    };
    wait_until("the worker", || {
        let ids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        ids.filter_map(is_child).next()
    })
}

fn kill(id: u32) {
    kill_process(Pid::from_raw(id as i32).unwrap(), Signal::KILL).unwrap();
}

/// A data set of pictures, one of which is large.
struct Pictures {
    folder: TempDir,
}

impl Pictures {
    fn new() -> Self {
        let folder = TempDir::new();
        let this = Self { folder };
        for name in ["model", "data"] {
            std::fs::create_dir(this.path(name)).unwrap();
        }
        common::write_vit(&this.path("model"), "");
        let mut rows = String::from("file,label\n");
        for i in 0..PICTURES {
            match i {
                LARGE => write_large_picture(&this.picture(i)),
                _ => common::write_pattern(&this.picture(i), 20 + i, 18),
            }
            rows += &format!("{i}.png,{}\n", i % 2);
        }
        std::fs::write(this.path("data/train.csv"), &rows).unwrap();
        for part in ["val", "test"] {
            std::fs::write(this.path(&format!("data/{part}.csv")), "file,label\n0.png,0\n1.png,1\n").unwrap();
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn picture(&self, index: usize) -> PathBuf {
        self.path(&format!("data/{index}.png"))
    }

    fn extract(&self, more: &[&str]) -> Command {
        let mut command = program();
        command.arg("--model").arg(self.path("model")).arg("--data").arg(self.path("data"));
        command.arg("--out").arg(self.path("out")).args(["--path-column", "file", "--json"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, more: &[&str]) -> Child {
        self.extract(more).spawn().unwrap()
    }

    /// The name of the large picture in messages.
    fn large_name(&self) -> String {
        format!("train.csv row {}", LARGE + 1)
    }

    fn done(&self) -> u64 {
        let state = std::fs::read(self.path("out/unfinished/state.json")).unwrap();
        serde_json::from_slice::<Value>(&state).unwrap()["done"].as_u64().unwrap()
    }

    /// Runs the same command again. The finished pictures are replaced by as many other bytes, so
    /// that the run fails if it reads them again.
    fn continues(&self) {
        let done = self.done() as usize;
        assert_eq!(done, 32, "the first chunk was finished");
        for i in 0..done {
            let size = std::fs::metadata(self.picture(i)).unwrap().len() as usize;
            std::fs::write(self.picture(i), vec![b'x'; size]).unwrap();
        }
        // The two other parts hold these pictures too.
        common::write_pattern(&self.picture(0), 20, 18);
        common::write_pattern(&self.picture(1), 21, 18);
        let report = finished(ended(self.start(&[])));
        assert_eq!(report["rows"], json!({ "train": PICTURES, "val": 2, "test": 2 }));
    }
}

/// A picture of 10,000 x 10,000 black pixels in a small file.
fn write_large_picture(path: &Path) {
    let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), 10_000, 10_000);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&vec![0; 100_000_000]).unwrap();
}

/// The output of a program that must end by itself.
fn ended(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > STEP_TIMEOUT {
            child.kill().unwrap();
            panic!("the program did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn finished(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_killed_worker_names_the_sample_and_a_second_run_continues() {
    let pictures = Pictures::new();
    let supervisor = pictures.start(&[]);
    kill(stop_at_large_picture(&supervisor));
    let error = error(supervisor.wait_with_output().unwrap());
    assert!(error.contains(&pictures.large_name()) && error.contains("SIGKILL"), "{error}");
    assert!(error.contains("the same command continues"), "{error}");
    pictures.continues();
}

#[test]
fn a_worker_without_progress_is_ended_and_a_second_run_continues() {
    let pictures = Pictures::new();
    let supervisor = pictures.start(&["--stall-seconds", "5"]);
    stop_at_large_picture(&supervisor);
    let error = error(ended(supervisor));
    assert!(error.contains(&format!("reading {}", pictures.large_name())), "{error}");
    assert!(error.contains("no progress for 5 seconds"), "{error}");
    pictures.continues();
}

#[test]
fn a_worker_that_wants_too_much_memory_names_the_sample() {
    let pictures = Pictures::new();
    // 144 MB of pixels in a file of some hundred kB.
    let large = pictures.picture(LARGE);
    std::fs::remove_file(&large).unwrap();
    common::write_png(&large, 8000, 6000, &vec![0; 3 * 8000 * 6000]);
    let error = error(pictures.extract(&["--memory-gib", "0.1"]).output().unwrap());
    assert!(error.contains(&pictures.large_name()), "{error}");
    assert!(error.contains("needed more than 0.10 GiB of memory (--memory-gib)"), "{error}");
    assert_eq!(pictures.done(), 32);
    let report = finished(pictures.extract(&["--memory-gib", "4"]).output().unwrap());
    assert_eq!(report["rows"]["train"], PICTURES);
}

#[test]
fn a_worker_ends_with_its_supervisor() {
    let pictures = Pictures::new();
    let mut supervisor = pictures.start(&[]);
    let worker = stop_at_large_picture(&supervisor);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    wait_until("the worker's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        // Gone, or dead and not yet waited for.
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim().starts_with('Z')).then_some(())
    });
}

#[test]
fn a_worker_has_limits_and_no_secrets() {
    let pictures = Pictures::new();
    let secrets = ["HETAL_TOKEN", "HETAL_PASSPHRASE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    let mut command = pictures.extract(&["--memory-gib", "1.5"]);
    secrets.iter().for_each(|name| {
        command.env(name, "a secret");
    });
    let supervisor = command.env("SHOWN", "no secret").spawn().unwrap();
    let worker = stop_at_large_picture(&supervisor);
    let environment = std::fs::read(format!("/proc/{worker}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("SHOWN=no secret"), "{environment}");
    assert!(!environment.contains("a secret"), "{environment}");
    let limits = std::fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(|number| number.parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(limit("Max data size"), [3 << 29; 2]);
    assert_eq!(limit("Max core file size"), [0; 2]);
    assert!(limit("Max open files")[1] <= 1024);
    kill(worker);
    supervisor.wait_with_output().unwrap();
}

/// Other users can see command lines and, with the same user, environments: a text is in neither.
#[test]
fn texts_are_on_no_command_line() {
    let folder = TempDir::new();
    common::write_sentence_model(folder.path(), "bert");
    let model = json!({
        "source": folder.path(), "architecture": "bert", "columns": 24, "files": {},
        "preprocessing": { "sentence": { "pooling": "mean", "normalise": false, "max_tokens": 20 } },
    });
    let manifest = json!({ "version": 1, "model": model, "classes": [], "rows": {}, "seed": 0, "samples": "" });
    let out = folder.path().join("features.npy");
    let request = json!({ "Encode": {
        "manifest": manifest, "pictures": [], "texts": vec!["play some private jazz"; 200_000], "network": null, "models": null,
        "device": "Cpu", "out": { "Unix": out.to_str().unwrap().as_bytes() },
    } });
    let mut supervisor =
        program().arg("request").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = supervisor.stdin.take().unwrap();
    writeln!(input, "{request}").unwrap();
    let worker = child_of(supervisor.id());
    wait_until("the worker's start", || {
        let line = std::fs::read(format!("/proc/{worker}/cmdline")).unwrap();
        String::from_utf8_lossy(&line).contains("worker").then_some(())
    });
    stop(worker);
    for id in [supervisor.id(), worker] {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{id}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("private"), "{file} of {id}");
        }
    }
    kill(worker);
    let output = supervisor.wait_with_output().unwrap();
    drop(input);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reason = reply["Failed"].as_str().unwrap();
    assert!(reason.contains("SIGKILL") && !reason.contains("private"), "{reason}");
    assert!(!reason.contains("same command continues"), "a prediction starts again: {reason}");
}

/// Opening a pipe waits for a writer, and a device never ends.
#[test]
fn pipes_and_devices_are_refused_by_name() {
    let pictures = Pictures::new();
    let special = pictures.picture(3);
    std::fs::remove_file(&special).unwrap();
    make_pipe(&special);
    let refused = error(ended(pictures.start(&[])));
    assert!(refused.contains("3.png: is a named pipe; only regular files are read"), "{refused}");
    std::fs::remove_file(&special).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &special).unwrap();
    let refused = error(ended(pictures.start(&[])));
    assert!(refused.contains("3.png: is a device; only regular files are read"), "{refused}");
    let configuration = pictures.path("model/config.json");
    std::fs::remove_file(&configuration).unwrap();
    make_pipe(&configuration);
    let refused = error(ended(pictures.start(&[])));
    assert!(refused.contains("config.json: is a named pipe"), "{refused}");
}

const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// An extraction of a few sentences by a model of the hub, with a hub that nobody reaches.
struct Hub {
    folder: TempDir,
    hash: String,
}

impl Hub {
    fn new() -> Self {
        let folder = TempDir::new();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        common::write_sentence_model(&model, "bert");
        let rows: String = (0..20).map(|i| format!("play some {},{}\n", ["jazz", "song"][i % 2], i % 2)).collect();
        std::fs::write(folder.path().join("data.csv"), format!("text,label\n{rows}")).unwrap();
        let hash = hetal_features::sha256(&model.join("model.safetensors")).unwrap();
        Self { folder, hash }
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn snapshot(&self) -> PathBuf {
        self.home().join("hub/models--owner--small/snapshots").join(REVISION)
    }

    fn copy_model(&self, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            std::fs::copy(self.folder.path().join("model").join(file), to.join(file)).unwrap();
        }
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = program();
        command.arg("--data").arg(self.folder.path().join("data.csv")).arg("--out").arg(self.folder.path().join("out"));
        command.env("HF_HOME", self.home()).env("HF_ENDPOINT", "http://127.0.0.1:9/").arg("--json").args(more);
        command.current_dir(self.folder.path());
        command
    }

    fn pinned(&self) -> Command {
        self.command(&["--model", "owner/small", "--revision", REVISION, "--sha256", &self.hash])
    }
}

#[test]
fn a_complete_copy_in_the_hugging_face_cache_is_used() {
    let hub = Hub::new();
    hub.copy_model(&hub.snapshot());
    // Files that decide what features are may be missing here: nothing says that the model has no
    // others.
    let refused = error(hub.pinned().output().unwrap());
    let own = hub.home().join("hetal/owner--small").join(REVISION);
    assert!(refused.contains("without a network: download those of config.json, tokenizer.json"), "{refused}");
    assert!(refused.contains(&format!("http://127.0.0.1:9/owner/small/tree/{REVISION}")), "{refused}");
    assert!(refused.contains(own.to_str().unwrap()), "{refused}");
    // A download of the whole repository, and files that were asked for in vain.
    std::fs::write(hub.snapshot().join(".gitattributes"), "").unwrap();
    assert_eq!(finished(hub.pinned().output().unwrap())["model"], "owner/small");
    std::fs::remove_file(hub.snapshot().join(".gitattributes")).unwrap();
    let absent = hub.home().join("hub/models--owner--small/.no_exist").join(REVISION);
    std::fs::create_dir_all(absent.join("1_Pooling")).unwrap();
    for file in
        ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"]
    {
        std::fs::write(absent.join(file), "").unwrap();
    }
    std::fs::write(absent.join("1_Pooling/config.json"), "").unwrap();
    assert!(error(hub.pinned().output().unwrap()).contains("without a network"));
    std::fs::write(absent.join("preprocessor_config.json"), "").unwrap();
    assert_eq!(finished(hub.pinned().output().unwrap())["model"], "owner/small");
    // Other bytes than pinned are refused, here as everywhere.
    common::write_sentence_model(&hub.snapshot(), "mpnet");
    std::fs::remove_dir_all(hub.folder.path().join("out")).unwrap();
    assert!(error(hub.pinned().output().unwrap()).contains("SHA-256"));
}

#[test]
fn manually_copied_files_are_used() {
    let hub = Hub::new();
    hub.copy_model(&hub.home().join("hetal/owner--small").join(REVISION));
    let output = hub.pinned().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("note: whether the model has a modules.json could not be found out"), "{said}");
    assert_eq!(finished(output)["rows"]["train"], 14);
    // An explicit folder is the only one that counts.
    let elsewhere = hub.folder.path().join("elsewhere");
    let refused = error(hub.pinned().arg("--models").arg(&elsewhere).output().unwrap());
    assert!(refused.contains(elsewhere.to_str().unwrap()), "{refused}");
}

#[test]
fn short_names_are_networks_of_the_hub_unless_a_folder_is_there() {
    let hub = Hub::new();
    let refused = error(hub.command(&["--model", "all-mpnet-base-v2"]).output().unwrap());
    let address =
        "http://127.0.0.1:9/sentence-transformers/all-mpnet-base-v2/resolve/e8c3b32edf5434bc2275fc9bab85f82640a19130/";
    assert!(refused.contains(address), "{refused}");
    assert!(refused.contains("download config.json, tokenizer.json") && !refused.contains("preprocessor"), "{refused}");
    let refused = error(hub.command(&["--model", "vit-large"]).output().unwrap());
    assert!(refused.contains("no revision and SHA-256 of vit-large is known"), "{refused}");
    assert!(
        refused.contains("--revision and --sha256") && refused.contains("google/vit-large-patch32-384"),
        "{refused}"
    );
    let refused = error(hub.command(&["--model", "paraphrase-mpnet-base-v2"]).output().unwrap());
    assert!(refused.contains("no SHA-256 of paraphrase-mpnet-base-v2 is known"), "{refused}");
    let pinned = ["--model", "vit-large", "--revision", REVISION, "--sha256", &hub.hash];
    let refused = error(hub.command(&pinned).output().unwrap());
    assert!(refused.contains("/google/vit-large-patch32-384/resolve/0123"), "{refused}");
    // The catalogue's hash is that of its own revision.
    let refused = error(hub.command(&["--model", "vit-base", "--revision", REVISION]).output().unwrap());
    assert!(refused.contains("no SHA-256 of vit-base is known"), "{refused}");
    assert!(error(hub.command(&["--model", "efficientnet-lite0"]).output().unwrap()).contains("give its file"));
    assert!(error(hub.command(&["--model", "mpnet"]).output().unwrap()).contains("vit-base"));
    assert!(error(hub.command(&["--model", "owner/small"]).output().unwrap()).contains("--revision"));
    // A folder of that name wins, and that is said.
    hub.copy_model(&hub.folder.path().join("vit-base"));
    let output = hub.command(&["--model", "vit-base"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("note: vit-base here is used"));
    assert_eq!(finished(output)["columns"], 24);
}
