//! The commands of the `hetal` program and their arguments.

use crate::{Result, commands};
use clap::{CommandFactory, Parser, Subcommand};
use hetal_experiments::{reproduce, selftest};
use hetal_extract_api::sanitize_lines;
use hetal_local::machine;
use std::ffi::OsString;

/// The exit status of a command that succeeds, that fails, and of wrong arguments.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const WRONG_ARGUMENTS: u8 = 2;

/// Train classifiers on encrypted data.
#[derive(Parser)]
#[command(name = "hetal", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train on encrypted sentences with a server on this machine, at full security (some minutes,
    /// 13 GiB of memory).
    Demo(commands::demo::Arguments),
    /// Estimate what a training takes: bytes, memory, time, security.
    Plan(commands::plan::Arguments),
    /// Make the secret key and the key set of a project in advance (`hetal train` makes missing
    /// ones).
    Keygen(commands::keygen::Arguments),
    /// Back up, restore or replace the secret key.
    #[command(subcommand)]
    Keys(commands::keys::Command),
    /// Train a classifier on a server that cannot read the rows.
    Train(commands::train::Arguments),
    /// Classify rows, on this machine or encrypted on the server.
    Predict(commands::predict::Arguments),
    /// List, show and export models.
    #[command(subcommand)]
    Model(commands::model::Command),
    /// Write the report on a training as an HTML page: curves, measures, what the server saw.
    Report(commands::report::Arguments),
    /// Show trainings and models in a browser on this machine, while trainings go on.
    Ui(commands::ui::Arguments),
    /// List your jobs on the server.
    Jobs(commands::jobs::Arguments),
    /// Show one job.
    Status(commands::jobs::JobArguments),
    /// Cancel one job.
    Cancel(commands::jobs::JobArguments),
    /// Delete one finished job from the server, with its results and the uploads that only it uses.
    Delete(commands::jobs::JobArguments),
    /// List your encrypted rows and key sets on the server, with the quota, or delete unused ones.
    Uploads(commands::uploads::UploadArguments),
    /// Report what this machine can do: CPU, GPU, memory, disk, parameter sets that fit.
    Doctor(commands::doctor::Arguments),
    /// Show the parameter sets: degree, modulus, security, levels, key sizes, precision.
    Params(commands::params::Arguments),
    /// Compare an engine with a reference, byte for byte: every operation, bootstraps, training
    /// iterations.
    Selftest(selftest::Arguments),
    /// Compute features of pictures or sentences with a public pretrained network.
    Extract(hetal_extract_api::arguments::ExtractArguments),
    /// Run benchmarks on this machine.
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Reproduce the tables and figures of the paper, with its numbers next to ours.
    Reproduce(reproduce::Arguments),
    /// Print the completion script of a shell: bash, zsh or fish.
    Completions(commands::shell::CompletionsArguments),
    /// Write the manual pages of this program into a folder.
    Man(commands::shell::ManArguments),
}

/// Runs the program with its arguments, the first of which is the name it was called by. Returns
/// the exit status.
pub fn main(arguments: Vec<OsString>) -> u8 {
    let parsed = Arguments::try_parse_from(&arguments);
    match parsed.map_err(failed_to_parse).map(|parsed| run(parsed, arguments)) {
        Ok(Ok(code)) | Err(code) => code,
        Ok(Err(error)) => {
            // Errors may quote files and servers.
            eprintln!("hetal: {}", sanitize_lines(&error.to_string()));
            FAILURE
        }
    }
}

/// Prints why arguments were not parsed: they are wrong, or ask for help.
fn failed_to_parse(error: clap::Error) -> u8 {
    // A reader that closes the pipe early is no error.
    error.print().ok();
    if error.use_stderr() { WRONG_ARGUMENTS } else { SUCCESS }
}

/// Whether a command holds the secret key, decrypted values or a token in memory.
fn holds_secrets(command: &Command) -> bool {
    matches!(
        command,
        Command::Demo(_)
            | Command::Keygen(_)
            | Command::Keys(_)
            | Command::Train(_)
            | Command::Predict(_)
            | Command::Model(_)
            | Command::Report(_)
            | Command::Ui(_)
            | Command::Jobs(_)
            | Command::Status(_)
            | Command::Cancel(_)
            | Command::Delete(_)
            | Command::Uploads(_)
    )
}

fn run(parsed: Arguments, given: Vec<OsString>) -> Result<u8> {
    if holds_secrets(&parsed.command) {
        machine::forbid_core_dumps();
    }
    match parsed.command {
        Command::Demo(arguments) => commands::demo::run(&arguments)?,
        Command::Plan(arguments) => commands::plan::run(&arguments)?,
        Command::Keygen(arguments) => commands::keygen::run(&arguments)?,
        Command::Keys(command) => commands::keys::run(&command)?,
        Command::Train(arguments) => commands::train::run(&arguments)?,
        Command::Predict(arguments) => commands::predict::run(&arguments)?,
        Command::Model(command) => commands::model::run(&command)?,
        Command::Report(arguments) => commands::report::run(&arguments)?,
        Command::Ui(arguments) => commands::ui::run(&arguments)?,
        Command::Jobs(arguments) => commands::jobs::list(&arguments)?,
        Command::Status(arguments) => commands::jobs::status(&arguments)?,
        Command::Cancel(arguments) => commands::jobs::cancel(&arguments)?,
        Command::Delete(arguments) => commands::jobs::delete(&arguments)?,
        Command::Uploads(arguments) => commands::uploads::run(&arguments)?,
        Command::Doctor(arguments) => commands::doctor::run(&arguments)?,
        Command::Params(arguments) => commands::params::run(&arguments)?,
        Command::Selftest(arguments) => selftest::run(&arguments)?,
        Command::Bench(command) => commands::bench::run(&command)?,
        Command::Extract(arguments) => {
            // Skip the names of the program and of the command.
            return commands::extract::run(&arguments, given.into_iter().skip(2).collect());
        }
        Command::Reproduce(arguments) => reproduce::run(&arguments)?,
        Command::Completions(arguments) => commands::shell::completions(Arguments::command(), &arguments)?,
        Command::Man(arguments) => commands::shell::man(Arguments::command(), &arguments)?,
    }
    Ok(SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The sources of messages and help.
    const CRATES: [&str; 4] = ["cli", "client", "tables", "local"];

    /// All long options of a command, hidden ones and other names included.
    fn options(command: &clap::Command) -> BTreeSet<String> {
        let long = |argument: &clap::Arg| {
            let others = argument.get_all_aliases().unwrap_or_default().into_iter();
            argument.get_long().into_iter().chain(others).map(|name| format!("--{name}")).collect::<Vec<_>>()
        };
        let own = command.get_arguments().flat_map(long).chain(["--help", "--version"].map(str::to_owned));
        own.chain(command.get_subcommands().flat_map(options)).collect()
    }

    /// The options that a text names.
    fn named(text: &str) -> impl Iterator<Item = &str> {
        let starts = text.match_indices("--").map(|(at, _)| at);
        starts.filter_map(|at| {
            let rest = &text[at..];
            let end = rest[2..].find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            let is_start = text[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '-');
            let option = &rest[..end.map_or(rest.len(), |end| end + 2)];
            (is_start && option[2..].starts_with(|c: char| c.is_ascii_lowercase())).then_some(option)
        })
    }

    /// The lines of all sources of a folder as one text each: without the marks of comments and
    /// those of strings that go on in the next line.
    fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let line = |line: &str| line.trim().trim_start_matches('/').trim_end_matches('\\').trim().to_owned();
                found.push((path.display().to_string(), text.lines().map(line).collect::<Vec<_>>().join(" ")));
            }
        }
    }

    /// The command that words name, such as `hetal keys rotate --passphrase`.
    fn command<'a>(root: &'a clap::Command, quoted: &str) -> Option<&'a clap::Command> {
        let mut words = quoted.split_whitespace();
        let root = words.next().filter(|&name| name == "hetal").map(|_| root)?;
        Some(
            words
                .map_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()).then_some(word))
                .fold(root, |command, word| command.find_subcommand(word).unwrap_or(command)),
        )
    }

    /// A message that names an option that is not there sends its reader nowhere.
    #[test]
    fn options_in_messages_exist() {
        let root = Arguments::command();
        let (all, mut found) = (options(&root), Vec::new());
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        CRATES.iter().for_each(|name| sources(&crates.join(name).join("src"), &mut found));
        let mut count = 0;
        for (path, text) in &found {
            for option in named(text) {
                count += 1;
                assert!(all.contains(option), "{path} names {option}");
            }
            for quoted in text.split("`").filter(|quoted| quoted.starts_with("hetal ")) {
                let Some(command) = command(&root, quoted) else { continue };
                let own = options(command);
                let other = named(quoted).find(|option| !own.contains(*option));
                assert!(other.is_none(), "{path}: {quoted}: {other:?} is an option of another command");
            }
        }
        assert!(count > 100, "only {count} options are named: the sources were not read");
    }
}
