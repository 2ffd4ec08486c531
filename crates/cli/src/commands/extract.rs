//! `hetal extract`: runs the program `hetal-extract`.

use crate::Result;
use crate::terminal::output::print;
use hetal_extract_api::arguments::{Command as Listing, ExtractArguments};
use hetal_extract_api::catalogue;
use hetal_extract_api::extractor::{command, failed, program};
use std::ffi::OsString;
use std::process::Command;

/// Runs `hetal extract`. `given` are its unparsed arguments. Returns the exit status.
pub fn run(arguments: &ExtractArguments, given: Vec<OsString>) -> Result<u8> {
    if let Some(Listing::Models { json }) = &arguments.command {
        print(*json, &catalogue::json(), &catalogue::text());
        return Ok(0);
    }
    let program = program()?;
    let mut command = command(&program);
    command.args(given);
    Ok(replace(command).map_err(|error| failed(&program, error))?)
}

/// Replaces this process by the other program, which receives signals and sets the exit status.
#[cfg(unix)]
fn replace(mut command: Command) -> std::io::Result<u8> {
    Err(std::os::unix::process::CommandExt::exec(&mut command))
}

/// Runs the other program and returns its exit status.
#[cfg(not(unix))]
fn replace(mut command: Command) -> std::io::Result<u8> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(1))
}
