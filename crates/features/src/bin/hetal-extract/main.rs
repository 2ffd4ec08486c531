//! The `hetal-extract` program: pictures and sentences to features by a public pretrained network.
//!
//! It runs as two processes. The supervisor reads the arguments, downloads networks, draws the bar
//! and prints results. The worker, which is this program again, reads the files of others, with
//! limits on memory and open files. When the worker dies or stalls, the supervisor names the sample
//! that was being read.

mod bars;
mod error;
mod events;
mod limits;
mod model;
mod parent;
mod report;
mod request;
mod supervisor;
mod worker;

use clap::Parser;
use error::Result;
use events::{ExtractTask, Task};
use hetal_extract_api::arguments::{Command, ExtractArguments};
use hetal_extract_api::{Manifest, catalogue, protocol};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Turn pictures or sentences into features by a public pretrained network.
#[derive(Parser)]
#[command(name = protocol::PROGRAM, version = protocol::VERSION_TEXT)]
struct Program {
    #[command(flatten)]
    arguments: ExtractArguments,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // These two are no commands for people: `hetal` and the supervisor use them.
    match arguments.first().and_then(|first| first.to_str()) {
        Some(worker::WORKER) => return worker::run(),
        Some(protocol::REQUEST) => return request::run(),
        _ => {}
    }
    match run(&Program::parse().arguments, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", protocol::PROGRAM);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &ExtractArguments, given: Vec<OsString>) -> Result<()> {
    if let Some(Command::Models { json }) = &arguments.command {
        return print(*json, &catalogue::json(), &catalogue::text());
    }
    let manifest = extract(arguments, given, None)?;
    print(arguments.json, &report::json(&manifest, arguments), &report::text(&manifest, arguments))
}

/// Runs an extraction and returns its manifest. `given` are the arguments as they came, which the
/// worker reads again.
fn extract(arguments: &ExtractArguments, given: Vec<OsString>, at_most: Option<[usize; 3]>) -> Result<Manifest> {
    let [model, data, out] = worker::needed(arguments)?;
    // Before a network is downloaded for it.
    worker::sample_columns(arguments)?;
    if !data.exists() {
        return Err(error::Error::file(data, "no such file or folder"));
    }
    let model = model::resolve(&model.to_string_lossy(), arguments)?;
    let task = Task::Extract(ExtractTask { arguments: given, at_most, model });
    let limits = limits::Limits::new(arguments.memory_gib);
    supervisor::supervise(task, limits, Duration::from_secs(arguments.stall_seconds))?;
    Ok(Manifest::read(Path::new(out))?)
}

/// Prints a result: one line of JSON, or the text for people. A reader that stops early (`| head`)
/// is no error.
fn print(json: bool, value: &serde_json::Value, text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let printed = if json { writeln!(out, "{value}") } else { writeln!(out, "{}", text.trim_end()) };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error::Error::Output(error)),
        _ => Ok(()),
    }
}
