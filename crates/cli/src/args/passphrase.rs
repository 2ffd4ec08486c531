//! The passphrase of a secret key: from a file, the environment or the terminal.

use crate::terminal::output::warn_if_others_read;
use crate::{Error, Result};
use hetal_client::{Model, Project, keys};
use hetal_keys::{Passphrase, secret_file};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The environment variable for the passphrase.
const VARIABLE: &str = "HETAL_PASSPHRASE";

/// The source of a passphrase. The default is the environment variable, then the terminal.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PassphraseSource {
    /// A file whose first line is the passphrase of the secret key and its models (or set the
    /// environment variable HETAL_PASSPHRASE, or type it).
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

impl PassphraseSource {
    /// Sets the passphrase of a project whose secret key has one.
    ///
    /// If a new key is to replace a locked one, asks for a new passphrase.
    pub fn unlock(&self, project: &mut Project) -> Result<()> {
        let (path, settings) = (project.secret(), project.settings());
        let replaces_locked = settings.locked && settings.key_id.is_none() && !project.has_secret();
        let passphrase = if replaces_locked { Some(self.ask_new()?) } else { self.for_key_file(&path)? };
        project.set_passphrase(passphrase);
        Ok(())
    }

    /// The passphrase of a key file; `None` if the file has none.
    pub fn for_key_file(&self, path: &Path) -> Result<Option<Passphrase>> {
        self.require_no_empty_variable()?;
        if !path.exists() || !secret_file::is_locked(path)? {
            return Ok(None);
        }
        match self.given()? {
            Some(passphrase) => Ok(Some(passphrase)),
            None => typed(&format!("passphrase of {}: ", path.display())).map(Some),
        }
    }

    /// The passphrase of a model file; `None` if the file has none.
    pub fn for_model(&self, path: &Path) -> Result<Option<Passphrase>> {
        self.require_no_empty_variable()?;
        if !Model::is_locked(path) {
            return Ok(None);
        }
        match self.given()? {
            Some(passphrase) => Ok(Some(passphrase)),
            None => typed(&format!("passphrase of {}: ", path.display())).map(Some),
        }
    }

    /// A passphrase for a new key. In a terminal it is typed twice.
    pub fn ask_new(&self) -> Result<Passphrase> {
        if let Some(passphrase) = self.given()? {
            return Ok(passphrase);
        }
        let first = typed("passphrase for the secret key: ")?;
        if first == typed("repeat the passphrase: ")? { Ok(first) } else { Err(Error::PassphrasesDiffer) }
    }

    /// The passphrase of a file or of the environment.
    pub fn given(&self) -> Result<Option<Passphrase>> {
        self.require_no_empty_variable()?;
        let text = match &self.passphrase_file {
            Some(path) => {
                warn_if_others_read("passphrase", path);
                let text = Zeroizing::new(
                    std::fs::read_to_string(path)
                        .map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?,
                );
                Some(Zeroizing::new(text.lines().next().unwrap_or_default().to_owned()))
            }
            None => std::env::var(VARIABLE).ok().map(Zeroizing::new),
        };
        Ok(text.map(Passphrase::new).transpose()?)
    }

    /// A variable that was to hold a passphrase, and is empty, must not leave a key without one,
    /// also where no passphrase is needed. A file that is given is used instead of the variable.
    fn require_no_empty_variable(&self) -> Result<()> {
        let is_empty = self.passphrase_file.is_none() && std::env::var_os(VARIABLE).is_some_and(|text| text.is_empty());
        if is_empty { Err(Error::EmptyVariable) } else { Ok(()) }
    }
}

/// Whether a new secret key gets a passphrase, and its source.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct LockArguments {
    /// Protect a new secret key, and the models trained under it, with a passphrase.
    #[arg(long)]
    pub passphrase: bool,
    /// The source of the passphrase.
    #[command(flatten)]
    pub source: PassphraseSource,
}

impl LockArguments {
    /// Sets the passphrase of a project. A new key keeps the passphrase of the key it replaces, or
    /// gets a new one if `--passphrase` is given.
    ///
    /// `replaced` tells whether the command replaces the existing key.
    pub fn prepare(&self, project: &mut Project, replaced: bool) -> Result<()> {
        if replaced && self.passphrase {
            project.set_passphrase(Some(self.source.ask_new()?));
            return Ok(());
        }
        self.source.unlock(project)?;
        let exists = project.has_secret();
        match (project.passphrase().is_some(), self.passphrase) {
            // A passphrase that does not open the old key must not lock the new one.
            (true, _) if replaced && exists => keys::existing_owner(project).map(drop)?,
            (false, true) if exists => return Err(Error::NotLocked { path: project.secret() }),
            (false, true) => project.set_passphrase(Some(self.source.ask_new()?)),
            _ => {}
        }
        Ok(())
    }
}

fn typed(prompt: &str) -> Result<Passphrase> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::NoPassphrase);
    }
    let text = rpassword::prompt_password(prompt).map_err(|_| Error::NoPassphrase)?;
    Ok(Passphrase::new(Zeroizing::new(text))?)
}
