//! The server program.

use clap::{Parser, Subcommand};
use hetal_server::config::Engine;
use hetal_server::tenants::Fingerprint;
use hetal_server::{Config, Error, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Trains classifiers on data it cannot read.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration, in TOML (docs/operations.md).
    #[arg(long, env = "HETAL_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Where everything is kept.
    #[arg(long, env = "HETAL_FOLDER")]
    folder: Option<PathBuf>,
    /// Where clients are served.
    #[arg(long, env = "HETAL_ADDRESS")]
    address: Option<SocketAddr>,
    /// Where health and metrics are served, in plain HTTP.
    #[arg(long, env = "HETAL_METRICS")]
    metrics: Option<SocketAddr>,
    /// What computes: auto, cpu or cuda.
    #[arg(long, env = "HETAL_ENGINE")]
    engine: Option<Engine>,
    /// Jobs that are computed at the same time.
    #[arg(long, env = "HETAL_WORKERS")]
    workers: Option<usize>,
    /// Parameter sets that are accepted.
    #[arg(long, env = "HETAL_SETS", value_delimiter = ',')]
    sets: Option<Vec<String>>,
    /// Accepts sets that protect nothing: for tests.
    #[arg(long)]
    allow_insecure: bool,
    /// Logs one JSON object a line.
    #[arg(long, env = "HETAL_LOG_JSON")]
    log_json: bool,
    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, env = "HETAL_LOG", default_value = "info")]
    log: tracing::Level,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a bearer token, and the lines that let a tenant in by it.
    Token {
        /// The tenant's name.
        tenant: String,
    },
    /// Reads the configuration and says what is wrong with it.
    Check,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hetal-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Some(Command::Token { tenant }) => print_token(tenant),
        Some(Command::Check) => configuration(arguments)?.check(),
        None => serve(arguments),
    }
}

/// The file's words, then those of flags and environment.
fn configuration(arguments: &Arguments) -> Result<Config> {
    let mut config = match &arguments.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    if let Some(folder) = &arguments.folder {
        config.folder.clone_from(folder);
    }
    if let Some(sets) = &arguments.sets {
        config.sets.clone_from(sets);
    }
    config.address = arguments.address.unwrap_or(config.address);
    config.metrics = arguments.metrics.or(config.metrics);
    config.engine = arguments.engine.unwrap_or(config.engine);
    config.workers = arguments.workers.unwrap_or(config.workers);
    config.allow_insecure |= arguments.allow_insecure;
    Ok(config)
}

fn serve(arguments: &Arguments) -> Result<()> {
    let logs = tracing_subscriber::fmt().with_max_level(arguments.log).with_writer(std::io::stderr).with_ansi(false);
    if arguments.log_json {
        logs.json().init();
    } else {
        logs.init();
    }
    let running = hetal_server::start(configuration(arguments)?)?;
    // For scripts that let the system choose a port.
    println!("{}", running.address());
    wait_for_signal()?;
    tracing::info!("stopping: jobs go to their next checkpoint");
    running.stop();
    Ok(())
}

/// Returns at SIGTERM or SIGINT.
fn wait_for_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |e: std::io::Error| Error::System { what: "signals".to_owned(), reason: e.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

fn print_token(tenant: &str) -> Result<()> {
    hetal_server::tenants::Tenant::try_from(tenant.to_owned())?;
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
    let token: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let fingerprint = Fingerprint::of(token.as_bytes());
    eprintln!("For the tenant, to be kept secret (it is not stored):");
    println!("{token}");
    eprintln!("For the configuration:");
    println!("[[tenants]]\nname = \"{tenant}\"\ntoken = \"{fingerprint}\"");
    Ok(())
}
