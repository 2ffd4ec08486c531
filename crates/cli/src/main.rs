//! The `hetal` program.

use clap::{Parser, Subcommand};
use hetal_cli::{Result, extract, ops, params, train};
use std::process::ExitCode;

/// Train classifiers on encrypted data.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the parameter sets: degree, modulus, security, levels, key sizes, precision.
    Params {
        /// Print an array of JSON objects.
        #[arg(long)]
        json: bool,
    },
    /// Turn pictures or sentences into features by a public pretrained network.
    Extract(extract::Arguments),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Time and precision of the operations of one parameter set, bootstrapping included.
    Ops {
        /// The parameter set.
        #[arg(long, default_value = "full")]
        set: String,
        /// Threads for the figure `bootstrap_wall_s`.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Iterations of encrypted training on random features of a benchmark's shape, beside exact training.
    Train {
        /// The benchmark: mnist, cifar10, facemask, dermamnist, snips, or one of them with -large.
        #[arg(long, default_value = "snips")]
        shape: String,
        /// Where iterations run.
        #[arg(long, value_enum, default_value = "clear")]
        engine: EngineArgument,
        /// The parameter set.
        #[arg(long, default_value = "full")]
        set: String,
        /// A folder with features_{train,test}.npy and labels_{train,test}.npy, instead of random features.
        #[arg(long)]
        data: Option<std::path::PathBuf>,
        /// Training rows of it that are used.
        #[arg(long, default_value_t = 2048)]
        rows: usize,
        /// How many iterations.
        #[arg(long, default_value_t = 1)]
        iterations: usize,
        /// Print an array of JSON objects.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum EngineArgument {
    /// Plain numbers, with exact books.
    Clear,
    /// Ciphertexts, on the CPU.
    Cpu,
    /// Ciphertexts, on an NVIDIA GPU.
    Cuda,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hetal: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Params { json } => {
            let table = params::table()?;
            if json {
                println!("{}", serde_json::Value::from(table));
            } else {
                params::print(&table);
            }
        }
        Command::Extract(arguments) => {
            let report = extract::run(&arguments)?;
            if arguments.json {
                println!("{}", serde_json::Value::from(report));
            } else {
                print_object(&report);
            }
        }
        Command::Bench(BenchCommand::Ops { set, threads, json }) => {
            let report = ops::report(&set, threads, &["bench", "ops", "--set", "small", "--json"])?;
            if json {
                println!("{}", serde_json::Value::from(report));
            } else {
                print_object(&report);
            }
        }
        Command::Bench(BenchCommand::Train { shape, engine, set, data, rows, iterations, json }) => {
            let kind = match engine {
                EngineArgument::Clear => train::EngineKind::Clear,
                EngineArgument::Cpu => train::EngineKind::Cpu,
                EngineArgument::Cuda => train::EngineKind::Cuda,
            };
            let data = data.map_or(train::Data::Random, |path| train::Data::Folder { path, rows });
            let report = train::report(&shape, &data, kind, &set, iterations)?;
            match report.as_object() {
                Some(object) if !json => print_object(object),
                _ => println!("{}", serde_json::Value::from(vec![report])),
            }
        }
    }
    Ok(())
}

fn print_object(object: &serde_json::Map<String, serde_json::Value>) {
    object.iter().for_each(|(name, value)| println!("{name:36} {value}"));
}
