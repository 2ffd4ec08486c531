//! One process for each GPU. After a fault of a GPU, its process can use no GPU any more
//! (docs/adr/018-restart-after-gpu-fault.md): the jobs of other GPUs must not share it.

use crate::Result;
use crate::compute::device;
use crate::config::{Config, EngineChoice, Role};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The environment variable by which a process knows that it has a supervisor: its process id.
pub const SUPERVISED: &str = "HETAL_SUPERVISOR";
/// The pause before a process that ended is started again. It doubles while processes end soon.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a process is looked at.
const TICK: Duration = Duration::from_millis(100);

/// The GPUs that get a process each. Empty if this process computes by itself: it has another role,
/// keeps its state in its folder, or has fewer than two GPUs.
pub fn supervised_cards(config: &Config) -> Vec<usize> {
    if config.role != Role::All || config.state.url.is_none() || config.engine == EngineChoice::Cpu {
        return Vec::new();
    }
    let cards = match config.cards.is_empty() {
        true => device::count_cards(config.stall_seconds).map_or_else(|_| Vec::new(), |count| (0..count).collect()),
        false => config.cards.clone(),
    };
    if cards.len() < 2 { Vec::new() } else { cards }
}

/// Makes this process the gateway before the processes of the GPUs.
pub fn become_gateway(config: &mut Config) {
    config.role = Role::Gateway;
    config.blobs = shared_blobs(config);
    // It looks for no GPU itself.
    config.lift_seconds.get_or_insert(device::GPU_LIFT_SECONDS);
}

/// The folder of blobs that all processes share; `None` if they are in a bucket.
fn shared_blobs(config: &Config) -> Option<PathBuf> {
    #[cfg(feature = "s3")]
    if config.s3.is_some() {
        return None;
    }
    Some(config.blobs.clone().unwrap_or_else(|| config.folder.join("blobs")))
}

/// The arguments that worker processes share with this one. A list of GPUs would be added to their
/// own.
fn inherited(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut is_list) = (Vec::new(), false);
    for argument in arguments {
        let text = argument.to_string_lossy();
        let was_list = std::mem::replace(&mut is_list, text == "--cards");
        if !was_list && !is_list && !text.starts_with("--cards=") && text != "--take-over" {
            kept.push(argument);
        }
    }
    kept
}

/// Worker processes, which are started again when they end.
pub struct Supervisor {
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// How a worker process is started.
struct Worker {
    card: usize,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Supervisor {
    /// Starts a process for each GPU, with the arguments of this process and a folder of its own.
    pub fn start(config: &Config, cards: &[usize]) -> Result<Self> {
        let failed =
            |e: std::io::Error| crate::Error::System { what: "this program".to_owned(), reason: e.to_string() };
        let program = std::env::current_exe().map_err(failed)?;
        let share = config.workers.map(|workers| workers.div_ceil(cards.len()));
        let (stopping, mut threads) = (Arc::new(AtomicBool::new(false)), Vec::new());
        for &card in cards {
            let folder = config.folder.join("cards").join(card.to_string());
            let mut arguments = inherited(std::env::args_os().skip(1));
            let own = ["--role", "worker", "--engine", "cuda", "--cards", &card.to_string(), "--folder"];
            arguments.extend(own.map(OsString::from));
            arguments.push(folder.into());
            if let Some(blobs) = config.blobs.clone() {
                arguments.extend(["--blobs".into(), blobs.into()]);
            }
            if let Some(share) = share {
                arguments.extend(["--workers".into(), share.to_string().into()]);
            }
            let (worker, stopping) = (Worker { card, program: program.clone(), arguments }, Arc::clone(&stopping));
            let thread = std::thread::Builder::new().name(format!("supervisor {card}"));
            threads.push(thread.spawn(move || worker.keep_running(&stopping)).map_err(failed)?);
        }
        Ok(Self { stopping, threads })
    }

    /// Stops all workers. Their jobs write checkpoints first.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Worker {
    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.env(SUPERVISED, std::process::id().to_string()).spawn()
    }

    /// Starts the process again whenever it ends. The processes of other GPUs do not notice.
    fn keep_running(&self, stopping: &AtomicBool) {
        let mut pause = FIRST_PAUSE;
        while !stopping.load(Ordering::SeqCst) {
            let begun = Instant::now();
            match self.spawn() {
                Ok(child) => self.watch(child, stopping),
                Err(error) => tracing::error!(card = self.card, %error, "could not start the worker of a GPU"),
            }
            pause = if begun.elapsed() > LONGEST_PAUSE { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            let until = Instant::now() + pause;
            while Instant::now() < until && !stopping.load(Ordering::SeqCst) {
                std::thread::sleep(TICK);
            }
        }
    }

    fn watch(&self, mut child: Child, stopping: &AtomicBool) {
        let mut asked = false;
        loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if asked => return tracing::info!(card = self.card, %status, "a worker has stopped"),
                Ok(Some(status)) => {
                    return tracing::error!(card = self.card, %status, "the worker of a GPU has ended: starting it again");
                }
                Err(error) => return tracing::error!(card = self.card, %error, "lost the worker of a GPU"),
            }
            if stopping.load(Ordering::SeqCst) && !asked {
                asked = true;
                end(&child);
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Asks a process to stop.
fn end(child: &Child) {
    if let Some(id) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
}

/// Lets this process stop when its supervisor ends, however that ends. Returns whether it has one.
pub fn follow_supervisor() -> bool {
    let Some(supervisor) = std::env::var(SUPERVISED).ok().and_then(|id| id.parse::<i32>().ok()) else {
        return false;
    };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    // It may have ended before.
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != supervisor) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_all_arguments_but_those_of_this_process() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let kept = inherited(words("--config a.toml --cards 0,1 --take-over --cards=2 --log info").into_iter());
        assert_eq!(kept, words("--config a.toml --log info"));
    }

    /// Clients of a gateway before GPUs are told how long a lift takes on a GPU.
    #[test]
    fn a_gateway_before_gpus_tells_clients_of_them() {
        for (configured, told) in [(None, 0.0125), (Some(1.0), 1.0)] {
            let mut config = Config { lift_seconds: configured, ..Config::default() };
            become_gateway(&mut config);
            assert_eq!((config.role, config.lift_seconds), (Role::Gateway, Some(told)));
            assert_eq!(config.blobs, Some(config.folder.join("blobs")));
        }
    }

    /// A process of its own for each GPU needs a database that several processes share.
    #[test]
    fn one_gpu_or_a_database_of_its_own_needs_no_supervisor() {
        let cards = |cards: &[usize], url: Option<&str>, engine, role| {
            let mut config = Config { cards: cards.to_vec(), engine, role, ..Config::default() };
            config.state.url = url.map(str::to_owned);
            supervised_cards(&config)
        };
        let url = Some("postgres://hetal@localhost/hetal");
        assert_eq!(cards(&[0, 3], url, EngineChoice::Cuda, Role::All), [0, 3]);
        for (list, url, engine, role) in [
            (&[0, 3][..], None, EngineChoice::Cuda, Role::All),
            (&[3][..], url, EngineChoice::Cuda, Role::All),
            (&[0, 3][..], url, EngineChoice::Cpu, Role::All),
            (&[0, 3][..], url, EngineChoice::Cuda, Role::Worker),
            (&[0, 3][..], url, EngineChoice::Cuda, Role::Gateway),
        ] {
            assert!(cards(list, url, engine, role).is_empty());
        }
    }
}
