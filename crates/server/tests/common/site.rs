//! Gateways and workers of one site, each a process: one database, one folder of blobs.

use super::{TOKEN, names, owner};
use hetal_client::rpc::{Address, BlobName, Credentials, EventKind, JobId, Phase, Remote};
use hetal_server::authority_path;
use hetal_server::tenants::Fingerprint;
use hetal_testkit::postgres::Postgres;
use hetal_testkit::{Random, TempDir};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A site, whose members are processes.
pub struct Site {
    pub dir: TempDir,
    pub postgres: &'static Postgres,
    pub url: String,
    /// The shared folder of blobs, in `dir`.
    pub blobs: &'static str,
    /// Settings of all members.
    pub settings: String,
    /// Tables of their configuration.
    pub tables: String,
    /// What comes before the program of a worker, for example `nice`.
    pub prefix: Vec<&'static str>,
    /// Variables of the environment of all members.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// A server of the version before, which knows no roles.
pub const BEFORE: &str = "before";

/// A process of a site.
pub struct Member {
    child: Child,
    pub role: &'static str,
    folder: PathBuf,
    /// Where clients reach a gateway.
    pub address: String,
    /// The URL of the database, which may lead through a proxy.
    url: String,
    config: String,
    /// The program and what comes before it.
    program: Vec<OsString>,
    environment: Vec<(&'static str, &'static str)>,
}

impl Site {
    /// A site without members; `None` where PostgreSQL is not installed.
    pub fn new() -> Option<Self> {
        let postgres = Postgres::shared()?;
        Some(Self::on(postgres, postgres.database()))
    }

    /// A site on a database.
    pub fn on(postgres: &'static Postgres, url: String) -> Self {
        let (settings, token) = ("checkpoint_every = 2\nlease_seconds = 3\n", Fingerprint::of(TOKEN.as_bytes()));
        // A process that is killed often makes many attempts.
        let tables = format!("[bounds]\nattempts = 10000\n[[tenants]]\nname = \"ann\"\ntoken = \"{token}\"\n");
        let (prefix, environment) = (Vec::new(), Vec::new());
        Self {
            dir: TempDir::new(),
            postgres,
            url,
            blobs: "blobs",
            settings: settings.into(),
            tables,
            prefix,
            environment,
        }
    }

    /// Starts a member with its own folder. Gateways share their certificate.
    pub fn start(&self, name: &str, role: &'static str, url: &str) -> Member {
        let blobs = match role {
            BEFORE => String::new(),
            _ => format!("blobs = {:?}\n", self.dir.path().join(self.blobs)),
        };
        self.start_with(name, role, url, format!("{blobs}{}{}", self.settings, self.tables))
    }

    /// Starts a member with a configuration of its own.
    pub fn start_with(&self, name: &str, role: &'static str, url: &str, config: String) -> Member {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(folder.join("server")).unwrap();
        let shared = self.dir.path().join("tls");
        if role != "worker" && shared.exists() {
            let own = folder.join("server/tls");
            std::fs::create_dir_all(&own).unwrap();
            for entry in std::fs::read_dir(&shared).unwrap() {
                let path = entry.unwrap().path();
                std::fs::copy(&path, own.join(path.file_name().unwrap())).unwrap();
            }
        }
        let program = match role {
            BEFORE => std::env::var_os("HETAL_SERVER_BEFORE").unwrap(),
            // Another build, for comparisons.
            _ => std::env::var_os("HETAL_SERVER_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_hetal-server").into()),
        };
        let prefix = if role == "worker" { &self.prefix[..] } else { &[] };
        let program = prefix.iter().map(OsString::from).chain([program]).collect();
        let mut member = Member {
            child: spawn_nothing(),
            role,
            folder,
            address: "127.0.0.1:0".to_owned(),
            url: url.to_owned(),
            config,
            program,
            environment: self.environment.clone(),
        };
        member.run();
        if role != "worker" && !shared.exists() {
            std::fs::create_dir(&shared).unwrap();
            for entry in std::fs::read_dir(member.folder.join("server/tls")).unwrap() {
                let path = entry.unwrap().path();
                std::fs::copy(&path, shared.join(path.file_name().unwrap())).unwrap();
            }
        }
        member
    }

    /// A client that knows several gateways.
    pub fn connect(&self, gateways: &[&Member]) -> Remote {
        Remote::connect(&self.address(gateways, TOKEN)).unwrap()
    }

    /// How a client reaches several gateways.
    pub fn address(&self, gateways: &[&Member], token: &str) -> Address {
        let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address.as_str()).collect();
        Address {
            server: addresses.join(","),
            authorities: std::fs::read(authority_path(&gateways[0].folder.join("server"))).unwrap(),
            credentials: Credentials::Token(token.to_owned().into()),
            retry_timeout: Duration::from_secs(120),
        }
    }

    /// A file of the header of a key set, and of bytes that nobody reads.
    pub fn large_file(&self, bytes: u64, seed: u64) -> PathBuf {
        let path = self.dir.path().join(format!("large {seed}"));
        let mut file = BufWriter::new(File::create(&path).unwrap());
        let keys = std::fs::read(owner().path("keys")).unwrap();
        file.write_all(&keys[..4096]).unwrap();
        let mut random = Random(seed);
        for _ in 0..bytes / 8 {
            file.write_all(&random.next().to_le_bytes()).unwrap();
        }
        file.into_inner().unwrap();
        path
    }

    pub fn query(&self, sql: &str) -> String {
        self.postgres.query(&self.url, sql)
    }

    /// Waits until a query answers what is wanted.
    pub fn wait(&self, sql: &str, wanted: &str) {
        let begun = Instant::now();
        while self.query(sql) != wanted {
            assert!(begun.elapsed() < Duration::from_secs(120), "{sql}: {}", self.query(sql));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The name of a blob of a file's bytes.
pub fn name_of(file: &Path) -> BlobName {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(file).unwrap()).unwrap();
    BlobName(*hasher.finalize().as_bytes())
}

/// Follows a training with the fixed verdicts, and returns its results.
pub fn results(remote: &Remote, job: JobId) -> Vec<(usize, BlobName)> {
    names(&super::follow(remote, job, |_| {}))
}

/// Waits until a job of this remote has made progress.
pub fn wait_for_iterations(remote: &Remote, job: JobId, count: u64) {
    let mut watch = remote.watch(job, 0);
    while let Some(event) = watch.next_event().unwrap() {
        match event.kind {
            EventKind::Progress(p) if p.phase == Phase::Training && p.iterations >= count => return,
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
    panic!("the job ended");
}

fn spawn_nothing() -> Child {
    Command::new("true").stdout(Stdio::null()).spawn().unwrap()
}

impl Member {
    /// The name by which the database knows a worker.
    pub fn name(&self) -> String {
        std::fs::read_to_string(self.folder.join("server/worker")).unwrap()
    }

    /// What it has written to its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Loses an emulated GPU.
    pub fn lose_card(&self, card: usize) {
        std::fs::write(self.folder.join(card.to_string()), b"").unwrap();
    }

    /// The name by which the database knows the worker of a GPU.
    pub fn name_of_card(&self, card: usize) -> String {
        std::fs::read_to_string(self.folder.join(format!("server/cards/{card}/worker"))).unwrap()
    }

    /// The most memory that it has had, in MiB.
    pub fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Starts a process in the folder, at the same address.
    pub fn run(&mut self) {
        let _ = self.child.wait();
        let config = self.folder.join("server.toml");
        std::fs::write(&config, &self.config).unwrap();
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).envs(self.environment.iter().copied());
        if self.role != BEFORE {
            command.args(["--role", self.role]);
        }
        command.args(["--sets", "insecure-toy11", "--allow-insecure"]);
        match self.role {
            // Two emulated GPUs.
            "all" => command.args(["--engine", "cuda", "--cards", "0,1"]).env("HETAL_EMULATED_CARDS", &self.folder),
            _ => command.args(["--engine", "cpu"]),
        };
        command.args(["--log", "info", "--address", &self.address]).arg("--config").arg(&config);
        command.env("HETAL_FOLDER", self.folder.join("server")).env("HETAL_DATABASE_URL", &self.url);
        self.child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{} does not start: {}", self.role, self.log());
        if self.role != "worker" {
            self.address = line.trim().to_owned();
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
