//! The `hetal` program.

use clap::{CommandFactory, Parser, Subcommand};
use hetal_cli::{Result, commands, machine};
use hetal_experiments::{reproduce, selftest};
use std::process::ExitCode;

/// What was read, decrypted or typed is not left behind in memory.
#[global_allocator]
static MEMORY: hetal_keys::ZeroingAllocator = hetal_keys::ZeroingAllocator;

/// Train classifiers on encrypted data.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See it work: a server on this machine trains on encrypted sentences, at full security (some minutes, 13 GiB of memory).
    Demo(commands::demo::Arguments),
    /// What a training will take: bytes, memory, time, security.
    Plan(commands::plan::Arguments),
    /// Make a project's secret key and key set before there are rows (`hetal train` makes them where they are missing).
    Keygen(commands::keygen::Arguments),
    /// The secret key: back it up, bring it back, replace it.
    #[command(subcommand)]
    Keys(commands::keys::Command),
    /// Train a classifier on a server that cannot read the rows.
    Train(commands::train::Arguments),
    /// Classify rows, on this machine or encrypted on the server.
    Predict(commands::predict::Arguments),
    /// Look at models, export them.
    #[command(subcommand)]
    Model(commands::model::Command),
    /// List our jobs on the server.
    Jobs(commands::jobs::Arguments),
    /// Show one job.
    Status(commands::jobs::OneArguments),
    /// End one job.
    Cancel(commands::jobs::OneArguments),
    /// Delete one job that has ended from the server, with what it made and what was sent for it alone.
    Delete(commands::jobs::OneArguments),
    /// What this machine can do: CPU, GPU, memory, disk, the sets that fit.
    Doctor(commands::doctor::Arguments),
    /// Show the parameter sets: degree, modulus, security, levels, key sizes, precision.
    Params(commands::params::Arguments),
    /// Compare an engine with a reference, byte for byte: every operation, a bootstrap, a training iteration.
    Selftest(selftest::Arguments),
    /// Turn pictures or sentences into features by a public pretrained network.
    Extract(hetal_extract_api::arguments::Arguments),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Write the paper's tables and figures again, with its numbers beside ours.
    Reproduce(reproduce::Arguments),
    /// Print the completion script of a shell: bash, zsh or fish.
    Completions(commands::shell::CompletionsArguments),
    /// Write the manual pages of this program into a folder.
    Man(commands::shell::ManArguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hetal: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a command has the secret key, decrypted values or a token in memory.
fn holds_secrets(command: &Command) -> bool {
    matches!(
        command,
        Command::Demo(_)
            | Command::Keygen(_)
            | Command::Keys(_)
            | Command::Train(_)
            | Command::Predict(_)
            | Command::Model(_)
            | Command::Jobs(_)
            | Command::Status(_)
            | Command::Cancel(_)
            | Command::Delete(_)
    )
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    if holds_secrets(&arguments.command) {
        machine::forbid_core_dumps();
    }
    match arguments.command {
        Command::Demo(arguments) => commands::demo::run(&arguments)?,
        Command::Plan(arguments) => commands::plan::run(&arguments)?,
        Command::Keygen(arguments) => commands::keygen::run(&arguments)?,
        Command::Keys(command) => commands::keys::run(&command)?,
        Command::Train(arguments) => commands::train::run(&arguments)?,
        Command::Predict(arguments) => commands::predict::run(&arguments)?,
        Command::Model(command) => commands::model::run(&command)?,
        Command::Jobs(arguments) => commands::jobs::list(&arguments)?,
        Command::Status(arguments) => commands::jobs::status(&arguments)?,
        Command::Cancel(arguments) => commands::jobs::cancel(&arguments)?,
        Command::Delete(arguments) => commands::jobs::delete(&arguments)?,
        Command::Doctor(arguments) => commands::doctor::run(&arguments)?,
        Command::Params(arguments) => commands::params::run(&arguments)?,
        Command::Selftest(arguments) => selftest::run(&arguments)?,
        Command::Bench(command) => commands::bench::run(&command)?,
        Command::Extract(arguments) => {
            // Without the names of the program and of the command.
            return commands::extract::run(&arguments, std::env::args_os().skip(2).collect());
        }
        Command::Reproduce(arguments) => reproduce::run(&arguments)?,
        Command::Completions(arguments) => commands::shell::completions(Arguments::command(), &arguments)?,
        Command::Man(arguments) => commands::shell::man(Arguments::command(), &arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
