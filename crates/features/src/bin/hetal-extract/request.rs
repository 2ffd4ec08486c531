//! Carries out one request of `hetal`, read from standard input and answered on standard output.

use crate::error::{Error, Result};
use crate::events::{EncodeTask, Task};
use crate::limits::Limits;
use crate::{Program, extract, model, parent, supervisor};
use clap::Parser;
use hetal_extract_api::arguments::STALL_SECONDS;
use hetal_extract_api::protocol::{Encode, Extract, PROGRAM, Reply, Request};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long reading a table may make no progress.
const TABLE_STALL: Duration = Duration::from_secs(120);

/// Executes the request and prints the reply.
pub fn run() -> ExitCode {
    let reply = match read().and_then(execute) {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Failed(error.to_string()),
    };
    let line = serde_json::to_string(&reply).unwrap_or_default();
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        // The caller has ended.
        Err(_) => ExitCode::FAILURE,
    }
}

fn read() -> Result<Request> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).map_err(|error| Error::Arguments(format!("request: {error}")));
    read?;
    let request = serde_json::from_str(&line).map_err(|error| Error::Arguments(format!("request: {error}")))?;
    parent::end_with_parent();
    Ok(request)
}

fn execute(request: Request) -> Result<()> {
    match request {
        Request::Encode(request) => encode(request),
        Request::ReadTable(request) => {
            supervisor::supervise(Task::ReadTable(request), Limits::of_tables(), TABLE_STALL)
        }
        Request::Extract(Extract { arguments, at_most }) => {
            let line = std::iter::once(OsString::from(PROGRAM)).chain(arguments.iter().cloned());
            let program = Program::try_parse_from(line).map_err(|error| Error::Arguments(error.to_string()))?;
            extract(&program.arguments, arguments, at_most).map(drop)
        }
    }
}

fn encode(request: Box<Encode>) -> Result<()> {
    let folder = model::folder_again(&request)?;
    let task = Task::Encode(EncodeTask { request, folder });
    supervisor::supervise(task, Limits::new(None), Duration::from_secs(STALL_SECONDS))
}
