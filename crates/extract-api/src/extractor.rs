//! Runs the program `hetal-extract`, which reads pictures, sentences, networks,
//! data sets, Parquet and Arrow files.
//!
//! These files may come from anyone, and this process may hold the secret key. A separate process
//! reads them.

use crate::protocol::{self, PROGRAM, REQUEST, Reply, Request, SECRETS};
use crate::{BUILD_COMMAND, sanitize_terminal};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A request that was not carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The program is missing.
    #[error(
        "{PROGRAM} reads pictures, sentences, data sets, Parquet and Arrow, and was not found {looked}: build it with \
         `{BUILD_COMMAND}`, or set HETAL_EXTRACT to its path"
    )]
    NotFound {
        /// The places where it was looked for.
        looked: String,
    },
    /// The program is not `hetal-extract`, or has another version.
    #[error("{} {reason} (`{BUILD_COMMAND}` builds hetal-extract)", .path.display())]
    OtherProgram {
        /// The program.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
    /// The program cannot be run.
    #[error("{}: {}", .path.display(), sanitize_terminal(.reason))]
    Start {
        /// The program.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The request failed. The message may contain file names from anyone.
    #[error("{}", sanitize_terminal(.0))]
    Failed(String),
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// Sends a request to the extractor and waits for the result.
///
/// The extractor shows its progress on standard error. The request goes through a pipe, because
/// every user of the machine can read command lines.
pub fn send_request(request: &Request) -> Result<()> {
    let program = program()?;
    let other = |reason: String| Error::Start { path: program.clone(), reason };
    let line = serde_json::to_string(request).map_err(|error| other(error.to_string()))?;
    let mut child = command(&program)
        .arg(REQUEST)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&program, error))?;
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(other("started without pipes".to_owned()));
    };
    // If the extractor has died, the missing answer below reports it.
    input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).ok();
    let mut answer = String::new();
    let read = output.read_to_string(&mut answer);
    let status = child.wait().map_err(|error| failed(&program, error))?;
    // The extractor ends when this pipe closes, so it ends with this process.
    drop(input);
    match read.ok().and_then(|_| serde_json::from_str(&answer).ok()) {
        Some(Reply::Done) => Ok(()),
        Some(Reply::Failed(message)) => Err(Error::Failed(message)),
        None => Err(other(format!("ended without an answer ({status})"))),
    }
}

/// A command that runs the program without secrets in its environment.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    SECRETS.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// The error of a program that cannot be run.
pub fn failed(program: &Path, error: std::io::Error) -> Error {
    Error::Start { path: program.to_owned(), reason: format!("cannot be run: {error}") }
}

/// The path of an extractor of the same version as this program.
pub fn program() -> Result<PathBuf> {
    let program = find()?;
    let output = command(&program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&program, error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = format!("cannot be run: {}", said.lines().next().unwrap_or("it printed no reason"));
        return Err(Error::Start { path: program, reason });
    }
    match protocol::version_difference(&String::from_utf8_lossy(&output.stdout)) {
        None => Ok(program),
        Some(reason) => Err(Error::OtherProgram { path: program, reason }),
    }
}

/// Looks for the extractor: in `HETAL_EXTRACT`, next to this program, then in `PATH`.
fn find() -> Result<PathBuf> {
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    if let Some(named) = std::env::var_os("HETAL_EXTRACT").filter(|path| !path.is_empty()) {
        // Without a folder in it, a name would be looked for on the path.
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        let looked = || format!("at {} (HETAL_EXTRACT)", path.display());
        return if path.is_file() { Ok(path) } else { Err(Error::NotFound { looked: looked() }) };
    }
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(&file));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A relative folder depends on the current folder, so it is not trusted.
    let on_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(&file));
    let places = beside.iter().cloned().chain(on_path);
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let beside = beside.map(|path| path.display().to_string()).unwrap_or_default();
        Error::NotFound { looked: format!("beside this program ({beside}) or on the PATH") }
    })
}
