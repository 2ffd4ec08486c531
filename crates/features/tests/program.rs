//! The program itself: its worker dies, starves or stalls, and a second run goes on.
#![cfg(all(target_os = "linux", feature = "hub"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_testkit::TempDir;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pictures of the training part; a chunk on the CPU has 32.
const PICTURES: usize = 48;
/// The one that is a pipe: of the second chunk.
const STUCK: usize = 40;

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
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// The end of a pipe that is written to, as soon as somebody reads it.
fn pipe_of_reader(path: &Path) -> File {
    let open = || File::options().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).ok();
    wait_until("a reader of the pipe", open)
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

/// A data set of pictures, one of which is a pipe.
struct Stuck {
    folder: TempDir,
}

impl Stuck {
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
                STUCK => make_pipe(&this.picture(i)),
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

    /// What the error calls the picture that is a pipe.
    fn stuck_name(&self) -> String {
        format!("train.csv row {}", STUCK + 1)
    }

    fn done(&self) -> u64 {
        let state = std::fs::read(self.path("out/unfinished/state.json")).unwrap();
        serde_json::from_slice::<Value>(&state).unwrap()["done"].as_u64().unwrap()
    }

    /// The same command again, with a picture in the pipe. The pictures that were finished before
    /// are no pictures any more, in as many bytes: they cannot be extracted again.
    fn goes_on(&self) {
        let done = self.done() as usize;
        assert_eq!(done, 32, "the first chunk was finished");
        for i in 0..done {
            let size = std::fs::metadata(self.picture(i)).unwrap().len() as usize;
            std::fs::write(self.picture(i), vec![b'x'; size]).unwrap();
        }
        // Both other parts are read after the pipe.
        common::write_pattern(&self.picture(0), 20, 18);
        common::write_pattern(&self.picture(1), 21, 18);
        let good = self.path("good.png");
        common::write_pattern(&good, 30, 30);
        let again = self.start(&[]);
        pipe_of_reader(&self.picture(STUCK)).write_all(&std::fs::read(&good).unwrap()).unwrap();
        let report = finished(again.wait_with_output().unwrap());
        assert_eq!(report["rows"], json!({ "train": PICTURES, "val": 2, "test": 2 }));
    }
}

/// What a program says that must end by itself.
fn ended(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
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
fn a_killed_worker_names_the_sample_and_a_second_run_goes_on() {
    let stuck = Stuck::new();
    let supervisor = stuck.start(&[]);
    let pipe = pipe_of_reader(&stuck.picture(STUCK));
    kill(child_of(supervisor.id()));
    let error = error(supervisor.wait_with_output().unwrap());
    drop(pipe);
    assert!(error.contains(&stuck.stuck_name()) && error.contains("SIGKILL"), "{error}");
    assert!(error.contains("the same command goes on"), "{error}");
    stuck.goes_on();
}

#[test]
fn a_worker_without_progress_is_ended_and_a_second_run_goes_on() {
    let stuck = Stuck::new();
    let error = error(ended(stuck.start(&["--stall-seconds", "3"])));
    assert!(error.contains(&format!("reading {}", stuck.stuck_name())), "{error}");
    assert!(error.contains("no progress for 3 seconds"), "{error}");
    stuck.goes_on();
}

#[test]
fn a_worker_that_wants_too_much_memory_names_the_sample() {
    let stuck = Stuck::new();
    // 144 MB of pixels in a file of some hundred kB.
    let large = stuck.picture(STUCK);
    std::fs::remove_file(&large).unwrap();
    common::write_png(&large, 8000, 6000, &vec![0; 3 * 8000 * 6000]);
    let error = error(stuck.extract(&["--memory-gib", "0.1"]).output().unwrap());
    assert!(error.contains(&stuck.stuck_name()), "{error}");
    assert!(error.contains("needed more than 0.10 GiB of memory (--memory-gib)"), "{error}");
    assert_eq!(stuck.done(), 32);
    let report = finished(stuck.extract(&["--memory-gib", "4"]).output().unwrap());
    assert_eq!(report["rows"]["train"], PICTURES);
}

#[test]
fn a_worker_ends_with_its_supervisor() {
    let stuck = Stuck::new();
    let mut supervisor = stuck.start(&[]);
    let _pipe = pipe_of_reader(&stuck.picture(STUCK));
    let worker = child_of(supervisor.id());
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
    let stuck = Stuck::new();
    let secrets = ["HETAL_TOKEN", "HETAL_PASSPHRASE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    let mut command = stuck.extract(&["--memory-gib", "1.5"]);
    secrets.iter().for_each(|name| {
        command.env(name, "a secret");
    });
    let supervisor = command.env("SHOWN", "no secret").spawn().unwrap();
    let pipe = pipe_of_reader(&stuck.picture(STUCK));
    let worker = child_of(supervisor.id());
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
    drop(pipe);
    supervisor.wait_with_output().unwrap();
}

/// Other users can see command lines and, with the same user, environments: a text is in neither.
#[test]
fn texts_are_on_no_command_line() {
    let folder = TempDir::new();
    make_pipe(&folder.path().join("config.json"));
    let model = json!({
        "source": folder.path(), "architecture": "bert", "columns": 24, "files": {},
        "preprocessing": { "sentence": { "pooling": "mean", "normalise": false, "max_tokens": 16 } },
    });
    let manifest = json!({ "version": 1, "model": model, "classes": [], "rows": {}, "seed": 0, "samples": "" });
    let out = folder.path().join("features.npy");
    let request = json!({ "Encode": {
        "manifest": manifest, "pictures": [], "texts": ["a private text"], "network": null, "models": null,
        "device": "Cpu", "out": { "Unix": out.to_str().unwrap().as_bytes() },
    } });
    let mut supervisor =
        program().arg("request").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = supervisor.stdin.take().unwrap();
    writeln!(input, "{request}").unwrap();
    let pipe = pipe_of_reader(&folder.path().join("config.json"));
    let worker = child_of(supervisor.id());
    for id in [supervisor.id(), worker] {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{id}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains("private"), "{file} of {id}");
        }
    }
    kill(worker);
    let output = supervisor.wait_with_output().unwrap();
    drop((pipe, input));
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reason = reply["Failed"].as_str().unwrap();
    assert!(reason.contains("SIGKILL") && reason.contains("loading the model"), "{reason}");
    assert!(!reason.contains("same command goes on"), "a prediction starts again: {reason}");
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
fn a_whole_copy_of_hugging_face_s_programs_is_used() {
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
fn files_that_were_brought_by_hand_are_used() {
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
