//! The program `hetal-server`.

use clap::{CommandFactory, Parser, Subcommand};
use hetal_server::config::{EngineChoice, Role};
use hetal_server::tenants::{Fingerprint, Tenant};
use hetal_server::{Config, Error, Result, Server, ShutdownReason, Supervisor};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Trains classifiers on encrypted data.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file in TOML (docs/operations/configure.md).
    #[arg(long, env = "HETAL_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// What this process does: all, gateway or worker (docs/operations/scale.md).
    #[arg(long, env = "HETAL_ROLE")]
    role: Option<Role>,
    /// The folder for all data of the server.
    #[arg(long, env = "HETAL_FOLDER")]
    folder: Option<PathBuf>,
    /// The folder of blobs (default: `blobs` in the folder).
    #[arg(long, env = "HETAL_BLOBS")]
    blobs: Option<PathBuf>,
    /// The address on which clients connect.
    #[arg(long, env = "HETAL_ADDRESS")]
    address: Option<SocketAddr>,
    /// Address of health checks and metrics, in plain HTTP.
    #[arg(long, env = "HETAL_METRICS")]
    metrics: Option<SocketAddr>,
    /// Device to compute on: auto, cpu or cuda.
    #[arg(long, env = "HETAL_ENGINE")]
    engine: Option<EngineChoice>,
    /// Numbers of the GPUs to use, in the driver's order (default: all that work).
    #[arg(long, env = "HETAL_CARDS", value_delimiter = ',')]
    cards: Option<Vec<usize>>,
    /// Jobs computed at the same time (default: one for each GPU, or one on the CPU).
    #[arg(long, env = "HETAL_WORKERS")]
    workers: Option<usize>,
    /// Accepted parameter sets.
    #[arg(long, env = "HETAL_SETS", value_delimiter = ',')]
    sets: Option<Vec<String>>,
    /// Accept insecure parameter sets, for tests only.
    #[arg(long)]
    allow_insecure: bool,
    /// Take over blobs that another copy of the database used last, after restoring a backup or
    /// moving the server. No other server may run on these blobs (docs/operations/backup.md).
    #[arg(long)]
    take_over: bool,
    /// Write each log entry as a JSON object.
    #[arg(long, env = "HETAL_LOG_JSON")]
    log_json: bool,
    /// Log level: error, warn, info, debug or trace.
    #[arg(long, env = "HETAL_LOG", default_value = "info")]
    log: tracing::Level,
}

#[derive(Subcommand)]
enum Command {
    /// Create a bearer token and print the configuration lines for its tenant.
    Token {
        /// The tenant's name.
        tenant: String,
    },
    /// Check the configuration and report what is wrong.
    Check,
    /// Delete all data of a tenant from a stopped server, verify the deletion, and print a report
    /// in JSON.
    Forget {
        /// The tenant's name.
        tenant: String,
        /// Delete the data of a tenant who is still in the configuration.
        #[arg(long)]
        even_if_configured: bool,
    },
    /// Move a stopped server from its folder into the PostgreSQL database and the blobs that the
    /// configuration names, and print a report in JSON. Repeat it if it is interrupted.
    Migrate {
        /// The folder of the stopped server (default: the configured folder).
        #[arg(long)]
        from: Option<PathBuf>,
        /// The blobs are where the configuration says already, for example in the same bucket.
        #[arg(long)]
        blobs_stay: bool,
    },
    /// Print the manual page of this program.
    Man,
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
        Some(Command::Check) => check(&configuration(arguments)?),
        Some(Command::Forget { tenant, even_if_configured }) => {
            forget(&configuration(arguments)?, tenant, *even_if_configured)
        }
        Some(Command::Migrate { from, blobs_stay }) => {
            move_server(&configuration(arguments)?, from.as_deref(), *blobs_stay)
        }
        Some(Command::Man) => print_manual(),
        None => serve(arguments),
    }
}

/// The configuration file, overridden by flags and environment variables.
fn configuration(arguments: &Arguments) -> Result<Config> {
    let mut config = match &arguments.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    config.role = arguments.role.unwrap_or(config.role);
    if let Some(folder) = &arguments.folder {
        config.folder.clone_from(folder);
    }
    if let Some(blobs) = &arguments.blobs {
        config.blobs = Some(blobs.clone());
    }
    if let Some(sets) = &arguments.sets {
        config.sets.clone_from(sets);
    }
    // Not a flag: the command line is public.
    if let Ok(url) = std::env::var("HETAL_DATABASE_URL") {
        config.state.url = Some(url);
    }
    config.address = arguments.address.unwrap_or(config.address);
    config.metrics = arguments.metrics.or(config.metrics);
    config.engine = arguments.engine.unwrap_or(config.engine);
    config.workers = arguments.workers.or(config.workers);
    if let Some(cards) = &arguments.cards {
        config.cards.clone_from(cards);
    }
    config.allow_insecure |= arguments.allow_insecure;
    config.take_over = arguments.take_over;
    Ok(config)
}

fn serve(arguments: &Arguments) -> Result<()> {
    let logs = tracing_subscriber::fmt().with_max_level(arguments.log).with_writer(std::io::stderr).with_ansi(false);
    if arguments.log_json {
        logs.json().init();
    } else {
        logs.init();
    }
    let mut config = configuration(arguments)?;
    if hetal_server::follow_supervisor() {
        // The supervisor's own.
        (config.metrics, config.take_over) = (None, false);
    }
    #[cfg(feature = "emulator")]
    emulate_card(&config);
    let cards = hetal_server::supervised_cards(&config);
    if !cards.is_empty() {
        tracing::info!(?cards, "starting a process for each GPU");
        hetal_server::become_gateway(&mut config);
    }
    let running = hetal_server::start(config.clone())?;
    let workers = if cards.is_empty() { None } else { Some(Supervisor::start(&config, &cards)?) };
    // Scripts read the port from here if the system chose it.
    match config.role.serves() {
        true => println!("{}", running.address()),
        false => println!("worker {}", running.name()),
    }
    let end = wait_for_shutdown(arguments, &running)?;
    if let Some(workers) = workers {
        workers.stop();
    }
    let advice = "restart the server, and jobs resume from their checkpoints";
    match end {
        // Exit without a clean stop: the blobs belong to another server, so not even a checkpoint
        // may be written.
        Some(ShutdownReason::BlobsTaken) => {
            std::mem::forget(running);
            Err(Error::Config { reason: "another server has taken over the blobs".to_owned() })
        }
        // Abort: the worker that waits for the GPU cannot be stopped, and the driver's exit
        // handlers may hang too.
        Some(ShutdownReason::GpuHung { seconds }) => {
            eprintln!("hetal-server: GPU: no response for {seconds} seconds: {advice}");
            std::process::abort()
        }
        Some(ShutdownReason::GpuLost { reason }) => {
            stop(running);
            let reason = format!("{reason}; this process cannot use the GPU again: {advice}");
            Err(Error::Device { reason, is_full: false })
        }
        None => {
            stop(running);
            Ok(())
        }
    }
}

/// Gives this process an emulated GPU. It is lost as soon as there is a file of the GPU's number in
/// the folder that `HETAL_EMULATED_CARDS` names; the file is then deleted.
#[cfg(feature = "emulator")]
fn emulate_card(config: &Config) {
    let (Some(folder), &[card]) = (std::env::var_os("HETAL_EMULATED_CARDS"), &config.cards[..]) else { return };
    let launches = hetal_cuda::emulated::install(usize::MAX);
    let fault = PathBuf::from(folder).join(card.to_string());
    std::thread::spawn(move || {
        while std::fs::remove_file(&fault).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        launches.store(0, std::sync::atomic::Ordering::Relaxed);
    });
}

fn stop(running: Server) {
    tracing::info!("stopping: jobs write their checkpoints");
    if !running.stop() {
        // Abort for the same reason: exit handlers of the driver may hang.
        eprintln!("hetal-server: GPU: no response; restart the server, and jobs resume from their checkpoints");
        std::process::abort()
    }
}

/// Waits for SIGTERM, SIGINT, or a fatal condition. SIGHUP reloads the tenants.
fn wait_for_shutdown(arguments: &Arguments, running: &Server) -> Result<Option<ShutdownReason>> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |e: std::io::Error| Error::System { what: "signals".to_owned(), reason: e.to_string() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(None),
                _ = interrupt.recv() => return Ok(None),
                end = running.fatal_condition() => return Ok(Some(end)),
                _ = hang_up.recv() => reload(arguments, running),
            }
        }
    })
}

/// Reloads the tenants from the configuration. An invalid configuration changes nothing.
fn reload(arguments: &Arguments, running: &Server) {
    let reloaded = configuration(arguments).and_then(|config| {
        config.check()?;
        running.reload(&config.tenants)?;
        Ok(config.tenants.len())
    });
    match reloaded {
        Ok(tenants) => tracing::info!(tenants, "reloaded the tenants"),
        Err(error) => tracing::error!(%error, "could not reload the tenants: they are unchanged"),
    }
}

fn check(config: &Config) -> Result<()> {
    config.check()?;
    let tenants: Vec<_> = config.tenants.iter().map(|tenant| tenant.name.to_string()).collect();
    println!(
        "the configuration is valid: tenants {}; sets {}; address {}; folder {}",
        tenants.join(", "),
        config.sets.join(", "),
        config.address,
        config.folder.display()
    );
    if let Some(database) = hetal_server::state::describe_shared(config)? {
        println!("state: {database}");
    }
    for warning in hetal_server::certificate_warnings(config)? {
        println!("warning: {warning}");
    }
    Ok(())
}

fn forget(config: &Config, tenant: &str, even_if_configured: bool) -> Result<()> {
    let report = hetal_server::forget_tenant(config, &Tenant::try_from(tenant.to_owned())?, even_if_configured)?;
    println!("{}", serde_json::to_string(&report).map_err(Error::failed)?);
    if !report.not_searched.is_empty() {
        eprintln!(
            "hetal-server: not searched: {}. Stop all processes of the site, and repeat the command with --folder for \
             each of their folders",
            report.not_searched.join(", ")
        );
    }
    if report.found_in.is_empty() {
        return Ok(());
    }
    Err(Error::State { reason: format!("data of {tenant} remains in {}", report.found_in.join(", ")) })
}

fn move_server(config: &Config, from: Option<&Path>, blobs_stay: bool) -> Result<()> {
    let report = hetal_server::move_to_postgres(config, from.unwrap_or(&config.folder), blobs_stay)?;
    println!("{}", serde_json::to_string(&report).map_err(Error::failed)?);
    Ok(())
}

fn print_token(tenant: &str) -> Result<()> {
    Tenant::try_from(tenant.to_owned())?;
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
    let token: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let fingerprint = Fingerprint::of(token.as_bytes());
    eprintln!("Give this token to the tenant. It is secret and not stored:");
    println!("{token}");
    eprintln!("Add these lines to the configuration:");
    println!("[[tenants]]\nname = \"{tenant}\"\ntoken = \"{fingerprint}\"");
    Ok(())
}

fn print_manual() -> Result<()> {
    let page = clap_mangen::Man::new(Arguments::command());
    let failed = |e: std::io::Error| Error::System { what: "standard output".to_owned(), reason: e.to_string() };
    page.render(&mut std::io::stdout().lock()).map_err(failed)
}
