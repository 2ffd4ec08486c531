//! `hetal extract`, and every other use of the program that reads the files of others.
//!
//! Pictures, sentences, networks and data sets are read by `hetal-extract`, a process of its own:
//! this one may hold the secret key.

use crate::{Error, Result, commands};
use hetal_extract_api::arguments::{Arguments, Command as Listing};
use hetal_extract_api::catalogue;
use hetal_extract_api::protocol::{self, PROGRAM, REQUEST, Reply, Request, SECRETS};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Runs `hetal extract`: `given` are its arguments as they came.
pub fn run(arguments: &Arguments, given: Vec<OsString>) -> Result<ExitCode> {
    if let Some(Listing::Models { json }) = &arguments.command {
        commands::print(*json, &catalogue::json(), &catalogue::text());
        return Ok(ExitCode::SUCCESS);
    }
    let program = program()?;
    let mut command = command(&program);
    command.args(given);
    replace(command).map_err(|error| failed(&program, error))
}

/// Goes on as the other program, so that signals and the exit status are its own.
#[cfg(unix)]
fn replace(mut command: Command) -> std::io::Result<ExitCode> {
    Err(std::os::unix::process::CommandExt::exec(&mut command))
}

/// Runs the other program and ends as it does.
#[cfg(not(unix))]
fn replace(mut command: Command) -> std::io::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Has the extractor carry out a request. Its bar and its notes appear on standard error, its error
/// is returned. The request goes through a pipe: command lines can be seen by everyone on the
/// machine.
pub fn carry_out(request: &Request) -> Result<()> {
    let program = program()?;
    let other = |reason: String| Error::Extractor { path: program.clone(), reason };
    let line = serde_json::to_string(request).map_err(|error| other(error.to_string()))?;
    let mut child = command(&program)
        .arg(REQUEST)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&program, error))?;
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(other("has no pipes".to_owned()));
    };
    // One that is dead already is noticed below.
    input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).ok();
    let mut answer = String::new();
    let read = output.read_to_string(&mut answer);
    let status = child.wait().map_err(|error| failed(&program, error))?;
    // Open until here: it ends when this process does.
    drop(input);
    match read.ok().and_then(|_| serde_json::from_str(&answer).ok()) {
        Some(Reply::Done) => Ok(()),
        Some(Reply::Failed(message)) => Err(Error::Extraction(message)),
        None => Err(other(format!("ended without an answer ({status})"))),
    }
}

/// The program, without anything secret in its environment.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    SECRETS.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

fn failed(program: &Path, error: std::io::Error) -> Error {
    Error::Extractor { path: program.to_owned(), reason: format!("cannot be run: {error}") }
}

/// The extractor: where `HETAL_EXTRACT` says, beside this program, or on the path; of this version.
fn program() -> Result<PathBuf> {
    let program = found()?;
    let output = command(&program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&program, error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = format!("cannot be run: {}", said.lines().next().unwrap_or("it says nothing"));
        return Err(Error::Extractor { path: program, reason });
    }
    match protocol::version_difference(&String::from_utf8_lossy(&output.stdout)) {
        None => Ok(program),
        Some(reason) => Err(Error::OtherExtractor { path: program, reason }),
    }
}

fn found() -> Result<PathBuf> {
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    if let Some(named) = std::env::var_os("HETAL_EXTRACT").filter(|path| !path.is_empty()) {
        // Without a folder in it, a name would be looked for on the path.
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        let looked = || format!("at {} (HETAL_EXTRACT)", path.display());
        return if path.is_file() { Ok(path) } else { Err(Error::NoExtractor { looked: looked() }) };
    }
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(&file));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A folder that depends on where this program was started is not trusted.
    let on_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(&file));
    let places = beside.iter().cloned().chain(on_path);
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let beside = beside.map(|path| path.display().to_string()).unwrap_or_default();
        Error::NoExtractor { looked: format!("beside this program ({beside}) or on the PATH") }
    })
}
