//! Canary test: secrets of the owner are searched in everything that leaves him, in everything the
//! server stores and says, and in the memory of his program.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Process, TOKEN, tap::Tap};
use hetal_ckks::Params;
use hetal_client::data::tables;
use hetal_client::rpc::{Address, Credentials, Remote};
use hetal_client::training::{TrainingOptions, TrainingRun};
use hetal_client::{Labelled, Owner, Project, TrainingData, data, keys};
use hetal_learn::Matrix;
use hetal_learn::Wishes;
use hetal_ring::Basis;
use hetal_server::authority_path;
use hetal_testkit::{Canaries, Random, TempDir, Watchdog};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// As the data owner's program has it.
#[global_allocator]
static MEMORY: hetal_keys::ZeroingAllocator = hetal_keys::ZeroingAllocator;

const SET: &str = "insecure-toy11";
const FOLDER: &str = "HETAL_CANARY_FOLDER";
const ROWS: usize = 70;
const FEATURES: usize = 6;
/// Bytes of the secret key file, each of four coefficients, that are searched as one piece.
const STRETCH: usize = 32;

/// The owner's program. Its inputs come from its folder, so that the program itself contains no
/// canary.
#[test]
#[ignore = "a part of the test below, in a process of its own"]
fn the_owner() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let address = Address {
        server: read("address"),
        authorities: read("authority.pem").into_bytes(),
        credentials: Credentials::Token(read("token").into()),
        retry_timeout: Duration::from_secs(20),
    };
    let remote = Remote::connect(&address).unwrap();
    let mut project = Project::open(&folder.join("project"), Some(SET)).unwrap();
    let task = learned_from(&folder.join("rows.csv"));
    let mut options = TrainingOptions::new("bird");
    options.wishes = Wishes { batch: Some(64), max_epochs: Some(2), patience: Some(2), ..Wishes::default() };
    options.verdict_delay = Duration::ZERO;
    let trained =
        TrainingRun::open(&mut project, &remote, &task, &options, &mut |_| ()).unwrap().run(&mut |_| ()).unwrap();
    let owner = keys::existing_owner(&mut project).unwrap();
    pause("held");
    drop((owner, trained, task, project, remote, address, options));
    pause("dropped");
}

/// Prints a word and waits for an answer.
fn pause(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// The owner's process.
struct OwnersProcess(Child);

impl OwnersProcess {
    fn start(folder: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program);
        child.args(["--exact", "the_owner", "--ignored", "--nocapture"]).env(FOLDER, folder);
        Self(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until it prints a word.
    fn until(&mut self, word: &str) {
        let mut lines = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == word), "the owner ended before {word:?}");
    }

    fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for OwnersProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Unique rows, of classes with unique names.
fn write_rows(path: &Path, random: &mut Random) -> Vec<String> {
    let names: Vec<String> = (0..3).map(|class| format!("bird{class}-{:016x}", random.next())).collect();
    let mut text = format!("{}kind\n", (0..FEATURES).map(|j| format!("column{j},")).collect::<String>());
    for row in 0..ROWS {
        let class = (row * 7 + row / 5) % 3;
        for j in 0..FEATURES {
            let own = random.below(1_000_000_000) as f64 / 1e9;
            text += &format!("{:.9},", own + if j % 3 == class { 1.5 } else { 0.0 });
        }
        text += &format!("{}\n", names[class]);
    }
    std::fs::write(path, text).unwrap();
    names
}

fn learned_from(rows: &Path) -> TrainingData {
    let table = tables::read(rows, &tables::Options::labelled("kind")).unwrap();
    TrainingData::new(&Labelled::new(table, None).unwrap(), None, &data::Preparation::default()).unwrap()
}

/// Feature values as in the file and as encrypted.
fn add_rows(canaries: &mut Canaries, rows: &Path) {
    let table = tables::read(rows, &tables::Options::labelled("kind")).unwrap();
    let task = learned_from(rows);
    let features = Matrix::new(table.rows, table.columns.len(), table.values).unwrap();
    for (what, matrix) in [
        ("a feature", &features),
        ("a training row", task.training.features()),
        ("a validation row", task.validation.features()),
    ] {
        for row in [0, matrix.rows() / 2, matrix.rows() - 1] {
            canaries.add_numbers(what, [matrix[(row, 1)], matrix[(row, 2)]]);
        }
    }
}

/// The secret as in its file, as small and as whole numbers, and modulo the first and the last
/// prime, transformed or not.
fn add_secret(canaries: &mut Canaries, project: &Path) {
    let path = project.join("secret.key");
    let owner = Owner::load(Arc::new(Params::named(SET).unwrap()), &path, None).unwrap();
    let file = std::fs::read(path).unwrap();
    let packed = &file[56..56 + owner.params.degree() / 4];
    let coefficient = |k: usize| (packed[k / 4] >> (2 * (k % 4)) << 6).cast_signed() >> 6;
    let coefficients: Vec<i8> = (0..owner.params.degree()).map(coefficient).collect();
    // The most distinctive stretch.
    let weight = |at: &usize| packed[*at..at + STRETCH].iter().filter(|&&byte| byte != 0).count();
    let at = (0..packed.len() - STRETCH).max_by_key(weight).unwrap();
    canaries.add("the secret key's file", &packed[at..at + STRETCH]);
    let places = 4 * at..4 * (at + STRETCH);
    let stretch = &coefficients[places.clone()];
    assert!(stretch.iter().filter(|&&c| c != 0).count() >= 16, "too little to be recognised by");
    canaries.add("the secret key", &stretch.iter().map(|&c| c.cast_unsigned()).collect::<Vec<_>>());
    let wide: Vec<i64> = coefficients.iter().map(|&c| c.into()).collect();
    canaries.add("the secret key's whole numbers", &bytes_of(wide[places.clone()].iter().copied()));
    let params = &owner.params;
    let transformed = owner.ring.lift(Basis { q: params.chain().len(), p: params.special().len() }, &wide);
    let primes = params.chain().iter().chain(params.special());
    for (limb, &prime) in transformed.limbs().iter().zip(primes) {
        let residues = wide[places.clone()].iter().map(|&c| c.rem_euclid(prime.cast_signed()));
        canaries.add("the secret key's residues", &bytes_of(residues));
        canaries.add("the secret key's transform", &bytes_of(limb[..8].iter().map(|&x| x.cast_signed())));
    }
}

fn bytes_of(numbers: impl Iterator<Item = i64>) -> Vec<u8> {
    numbers.flat_map(i64::to_le_bytes).collect()
}

#[test]
fn a_canary_is_nowhere_but_with_its_owner() {
    let _watched = Watchdog::new(Duration::from_secs(900));
    let (here, there) = (TempDir::new(), TempDir::new());
    let log = there.path().join("log");
    let mut process = Process::talking(there.path(), &log);
    let authority = std::fs::read(authority_path(&there.path().join("server"))).unwrap();
    let tap = Tap::start(process.address.parse().unwrap(), &authority);
    let rows = here.path().join("rows.csv");
    let mut random = Random(0xCA_17_A5);
    let names = write_rows(&rows, &mut random);
    for (name, text) in
        [("address", &tap.address.to_string()), ("authority.pem", &tap.authority), ("token", &TOKEN.to_owned())]
    {
        std::fs::write(here.path().join(name), text).unwrap();
    }
    let mut owner = OwnersProcess::start(here.path());
    owner.until("held");

    let mut canaries = Canaries::default();
    add_secret(&mut canaries, &here.path().join("project"));
    add_rows(&mut canaries, &rows);
    names.iter().for_each(|name| canaries.add("a class's name", name.as_bytes()));

    // The canaries are where they belong, so the search can find them.
    let (in_memory, _) = canaries.found_in_process(owner.0.id());
    for what in ["the secret key", "a training row as a double", "a class's name"] {
        assert!(in_memory.contains(what), "{what}: {in_memory:?}");
    }
    let at_home: Vec<_> = canaries.found_below(here.path()).0.into_iter().flat_map(|(_, found)| found).collect();
    for what in ["the secret key's file", "a feature as text", "a class's name"] {
        assert!(at_home.contains(&what), "{what}: {at_home:?}");
    }
    // Nothing is left after the owner is done.
    owner.go_on();
    owner.until("dropped");
    let (left, bytes) = canaries.found_in_process(owner.0.id());
    println!("{bytes} bytes of the owner's memory");
    assert!(left.is_empty() && bytes > 1 << 20, "{left:?} in {bytes} bytes of memory after the drop");
    owner.go_on();
    assert!(owner.0.wait().unwrap().success());

    // The network traffic, as sent and decrypted, is complete and contains no canary.
    let (wire, inside) = (tap.wire(), tap.inside());
    let project = Project::existing(&here.path().join("project")).unwrap();
    let uploaded = std::fs::metadata(project.key_file(&project.settings().keys[0])).unwrap().len() as usize;
    for (recording, what) in [(&wire, "sent"), (&inside, "said")] {
        let bytes: usize = recording.iter().map(Vec::len).sum();
        println!("{bytes} bytes {what}");
        assert!(bytes > uploaded, "{bytes} bytes {what}");
        for stream in recording {
            assert!(canaries.found(stream).is_empty(), "{:?} was {what}", canaries.found(stream));
        }
    }
    // Everything the server stores and says, including its memory. It knows only the hash of the
    // token.
    let (found, _) = canaries.found_in_process(process.child.id());
    assert!(found.is_empty(), "{found:?} in the server's memory");
    canaries.add("the token", TOKEN.as_bytes());
    let running = canaries.found_below(there.path());
    process.kill();
    let stopped = canaries.found_below(there.path());
    println!("{} bytes of the server's, {} of them in its log", stopped.1, std::fs::metadata(&log).unwrap().len());
    assert!(running.0.is_empty() && stopped.0.is_empty() && stopped.1 > uploaded, "{running:?} {stopped:?}");
    // The search covers the database and the log, which are not empty.
    let mut known = Canaries::default();
    known.add("the tenant's job", b"\"set\":\"insecure-toy11\"");
    known.add("a request", b"CreateJob");
    let found = known.found_below(there.path()).0;
    let named = |name: &str| found.iter().any(|(path, _)| path.to_string_lossy().contains(name));
    assert!(named("state.sqlite") && named("audit.log") && std::fs::metadata(&log).unwrap().len() > 1000, "{found:?}");
}
