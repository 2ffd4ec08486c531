//! `hetal completions` and `hetal man`: shell completions and manual pages, generated from the
//! program's own arguments.

use crate::{Error, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `hetal completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum)]
    pub shell: CompletionShell,
}

/// Shells that have completions.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum CompletionShell {
    /// GNU bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// fish.
    Fish,
}

impl From<CompletionShell> for Shell {
    fn from(shell: CompletionShell) -> Self {
        match shell {
            CompletionShell::Bash => Self::Bash,
            CompletionShell::Zsh => Self::Zsh,
            CompletionShell::Fish => Self::Fish,
        }
    }
}

/// Arguments of `hetal man`.
#[derive(clap::Args, Debug)]
pub struct ManArguments {
    /// The folder for the pages: hetal.1 and one page for each command.
    #[arg(long, value_name = "PROJECT_FOLDER")]
    pub out: PathBuf,
}

/// Prints the completion script of a shell.
pub fn completions(mut command: Command, arguments: &CompletionsArguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(Shell::from(arguments.shell), &mut command, "hetal", &mut script);
    let written = std::io::stdout().lock().write_all(&script);
    written.map_err(|e| Error::File { path: "standard output".to_owned(), reason: e.to_string() })
}

/// Writes the manual pages of a program and of all its commands into a folder.
pub fn man(command: Command, arguments: &ManArguments) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| Error::File { path, reason: e.to_string() }
    };
    std::fs::create_dir_all(&arguments.out).map_err(failed(&arguments.out))?;
    clap_mangen::generate_to(command, &arguments.out).map_err(failed(&arguments.out))
}
