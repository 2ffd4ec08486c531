//! A PostgreSQL server of the tests, in a folder of its own.
//!
//! PostgreSQL does not run as root: tests of root run it as the user `postgres`, whom Debian's
//! package creates. A shell supervises it. It stops the server and removes the folder when the test
//! process ends, however that ends.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The password of the databases' owner. Tests look for it where it must not be.
pub const PASSWORD: &str = "correct-horse-battery";

/// Makes a cluster, starts it, and runs commands from standard input until that ends. The first
/// line that it prints is the folder.
const SUPERVISOR: &str = r#"
set -eu
umask 077
bin=$1 port=$2 standby_port=$4
home=$(mktemp -d /tmp/hetal-postgres-XXXXXX)
end() {
    for data in "$home/data" "$home/standby"; do
        [ ! -f "$data/postmaster.pid" ] || "$bin/pg_ctl" -D "$data" -m immediate -s -W stop >&2
    done
    sleep 0.2
    rm -rf "$home"
}
trap end EXIT
cd "$home"
printf %s "$3" > password
"$bin/initdb" -D data -U hetal --pwfile=password --auth-local=trust --auth-host=scram-sha-256 \
    -E UTF8 --locale=C --no-sync >log 2>&1 || { cat log >&2; exit 1; }
rm password
cat >> data/postgresql.conf <<END
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$home'
max_connections = 200
shared_buffers = 32MB
wal_level = replica
END
start() { "$bin/pg_ctl" -D data -l log -s -w start </dev/null >&2; }
add_standby() {
    "$bin/pg_basebackup" -h "$home" -p "$port" -U hetal -D standby -R -X stream -c fast --no-sync </dev/null >&2
    echo "port = $standby_port" >> standby/postgresql.conf
    "$bin/pg_ctl" -D standby -l standby.log -s -w start </dev/null >&2
    psql="$bin/psql -X -q -h $home -p $port -U hetal -d postgres"
    $psql -c "ALTER SYSTEM SET synchronous_standby_names = '*'" -c 'SELECT pg_reload_conf()' </dev/null >/dev/null
    while [ "$($psql -A -t -c 'SELECT sync_state FROM pg_stat_replication' </dev/null)" != sync ]; do sleep 0.1; done
}
fail_over() {
    "$bin/pg_ctl" -D data -m immediate -s -w stop </dev/null >&2
    "$bin/pg_ctl" -D standby -s -w promote </dev/null >&2
}
start || { cat log >&2; exit 1; }
echo "$home"
while read -r command; do
    case $command in
    start) start || true; echo done ;;
    stop) "$bin/pg_ctl" -D data -m immediate -s -w stop </dev/null >&2 || true; echo done ;;
    standby) add_standby; echo done ;;
    fail-over) fail_over; echo done ;;
    esac
done
"#;

/// A running server.
pub struct Postgres {
    bin: PathBuf,
    home: PathBuf,
    port: u16,
    standby_port: u16,
    /// Whether the standby has become the primary.
    failed_over: bool,
    supervisor: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<std::process::ChildStdout>,
}

/// The programs of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).filter(|f| f.join("bin/initdb").exists());
    Some(newest.max_by_key(version)?.join("bin"))
}

impl Postgres {
    /// Starts a server. Returns `None`, with a sentence, where PostgreSQL is not installed.
    ///
    /// # Panics
    ///
    /// If the server does not start, or if it is not installed and `HETAL_REQUIRE_POSTGRES` is set.
    pub fn start() -> Option<Self> {
        let Some(bin) = programs() else {
            assert!(std::env::var_os("HETAL_REQUIRE_POSTGRES").is_none(), "PostgreSQL is not installed");
            eprintln!("skipped: PostgreSQL is not installed (Debian's package postgresql)");
            return None;
        };
        // Another process may take the port meanwhile.
        (0..5).find_map(|_| Self::try_start(&bin)).or_else(|| panic!("PostgreSQL does not start"))
    }

    fn try_start(bin: &Path) -> Option<Self> {
        let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let [port, standby_port] = [free(), free()].map(|listener| listener.local_addr().unwrap().port());
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        let mut command = Command::new(if is_root { "runuser" } else { "bash" });
        if is_root {
            command.args(["-u", "postgres", "--", "bash"]);
        }
        command.args(["-c", SUPERVISOR, "supervisor"]).arg(bin).args([
            &port.to_string(),
            PASSWORD,
            &standby_port.to_string(),
        ]);
        let started = command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut supervisor = started.unwrap();
        let commands = supervisor.stdin.take();
        let mut answers = BufReader::new(supervisor.stdout.take().unwrap());
        let mut home = String::new();
        answers.read_line(&mut home).unwrap();
        if home.is_empty() {
            supervisor.wait().unwrap();
            return None;
        }
        let home = PathBuf::from(home.trim_end());
        let bin = bin.to_owned();
        Some(Self { bin, home, port, standby_port, failed_over: false, supervisor, commands, answers })
    }

    /// The server that all tests of this process share.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// A new database, and its URL through the socket.
    pub fn database(&self) -> String {
        let name = self.new_database();
        format!("postgres://hetal@/{name}?host={}&port={}", self.home.display(), self.port)
    }

    /// A new database, and its URL through the network, with and without the password.
    pub fn network_database(&self) -> [String; 2] {
        let name = self.new_database();
        [format!(":{PASSWORD}"), String::new()]
            .map(|password| format!("postgres://hetal{password}@127.0.0.1:{}/{name}", self.port))
    }

    /// As [`Postgres::database`], on the server or on its standby, whichever can be written.
    pub fn replicated_database(&self) -> String {
        let (name, home) = (self.new_database(), self.home.display().to_string().replace('/', "%2F"));
        let (first, second) = (self.port, self.standby_port);
        format!("postgres://hetal@{home}:{first},{home}:{second}/{name}?target_session_attrs=read-write")
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn new_database(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.query("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs SQL in a database that [`Postgres::database`] made, and returns what `psql` prints.
    pub fn query(&self, database: &str, sql: &str) -> String {
        let name = database.split("?").next().unwrap_or(database);
        let name = name.rsplit("/").next().unwrap_or(name);
        let port = if self.failed_over { self.standby_port } else { self.port };
        let mut psql = Command::new(self.bin.join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "hetal", "-d", name, "-c", sql]);
        psql.arg("-h").arg(&self.home).args(["-p", &port.to_string()]).current_dir("/");
        let output = psql.output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Every command must succeed.
    fn command(&mut self, command: &str) {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{command}");
    }

    /// Stops the server as a power cut does: without a checkpoint, and without a farewell.
    pub fn cut(&mut self) {
        self.command("stop");
    }

    /// Adds a standby, which has every change before it is acknowledged.
    pub fn add_standby(&mut self) {
        self.command("standby");
    }

    /// Stops the server as a power cut does, and makes the standby the primary.
    pub fn fail_over(&mut self) {
        self.command("fail-over");
        self.failed_over = true;
    }

    /// Starts the server again.
    pub fn restart(&mut self) {
        self.command("start");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.supervisor.wait();
    }
}
