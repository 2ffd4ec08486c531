//! The passphrase of a secret key: from a file, the environment or the terminal.

use crate::ui::output::warn_if_others_read;
use crate::{Error, Result};
use hetal_client::{Project, keys};
use hetal_keys::{Passphrase, secret_file};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The environment variable that may hold it.
const VARIABLE: &str = "HETAL_PASSPHRASE";

/// Where the passphrase is. Without an option: in the environment variable HETAL_PASSPHRASE, or typed.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PassphraseSource {
    /// A file whose first line is the passphrase of the secret key, if it has one (or the environment variable HETAL_PASSPHRASE, or typed).
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

impl PassphraseSource {
    /// Gives a project the passphrase of its secret key, if that has one; of a key that takes the place of a locked one, a new one.
    pub fn unlock(&self, project: &mut Project) -> Result<()> {
        let (path, settings) = (project.secret(), project.settings());
        let succeeds_locked = settings.locked && settings.key_id.is_none() && !project.has_secret();
        let passphrase = if succeeds_locked { Some(self.new_one()?) } else { self.of_file(&path)? };
        project.set_passphrase(passphrase);
        Ok(())
    }

    /// The passphrase of a key file, if it has one.
    pub fn of_file(&self, path: &Path) -> Result<Option<Passphrase>> {
        if !path.exists() || !secret_file::is_locked(path)? {
            return Ok(None);
        }
        match self.given()? {
            Some(passphrase) => Ok(Some(passphrase)),
            None => typed(&format!("passphrase of {}: ", path.display())).map(Some),
        }
    }

    /// A passphrase to lock a new key with; typed twice where it is typed.
    pub fn new_one(&self) -> Result<Passphrase> {
        if let Some(passphrase) = self.given()? {
            return Ok(passphrase);
        }
        let first = typed("passphrase for the secret key: ")?;
        if first == typed("the same again: ")? { Ok(first) } else { Err(Error::PassphrasesDiffer) }
    }

    fn given(&self) -> Result<Option<Passphrase>> {
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
}

/// The lock of a secret key that a command may make.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Lock {
    /// Lock the secret key with a passphrase when it is made.
    #[arg(long)]
    pub passphrase: bool,
    /// Where the passphrase is.
    #[command(flatten)]
    pub source: PassphraseSource,
}

impl Lock {
    /// Gives a project the passphrase of its secret key, which a successor keeps; one that is made gets a new one where that is wished for.
    /// `replaced`: whether the key that is there goes.
    pub fn prepare(&self, project: &mut Project, replaced: bool) -> Result<()> {
        if replaced && self.passphrase {
            project.set_passphrase(Some(self.source.new_one()?));
            return Ok(());
        }
        self.source.unlock(project)?;
        let is_there = project.has_secret();
        match (project.passphrase().is_some(), self.passphrase) {
            // A word that does not open the old key must not lock the new one.
            (true, _) if replaced && is_there => keys::existing_owner(project).map(drop)?,
            (false, true) if is_there => return Err(Error::NotLocked { path: project.secret() }),
            (false, true) => project.set_passphrase(Some(self.source.new_one()?)),
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
