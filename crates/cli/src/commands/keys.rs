//! `hetal keys`: backs up, restores and replaces the secret key.

use crate::Result;
use crate::args::PROJECT_FOLDER;
use crate::args::passphrase::PassphraseSource;
use crate::terminal::output::print;
use crate::terminal::progress::TrainingProgress;
use hetal_client::training::ProgressEvent;
use hetal_client::{Project, keys};
use serde_json::json;
use std::path::PathBuf;

/// Commands about the secret key.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Write a copy of the secret key to a new file.
    Backup(FileArguments),
    /// Restore the secret key from a backup.
    Restore(FileArguments),
    /// Make a new secret key and new key sets; the old secret key moves to the folder `old`. Run
    /// the same command again to continue after an interruption.
    Rotate(Arguments),
}

/// Arguments of all these commands.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// Protect the key that is written with a passphrase.
    #[arg(long)]
    pub passphrase: bool,
    /// The source of passphrases.
    #[command(flatten)]
    pub source: PassphraseSource,
    /// The parameter set of a new project, if it is not full (with `hetal keys restore`).
    #[arg(long, value_name = "NAME")]
    pub set: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `hetal keys backup` and `hetal keys restore`.
#[derive(clap::Args, Debug)]
pub struct FileArguments {
    /// The backup file.
    pub file: PathBuf,
    /// The project.
    #[command(flatten)]
    pub common: Arguments,
}

/// Runs a command.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Backup(arguments) => backup(arguments),
        Command::Restore(arguments) => restore(arguments),
        Command::Rotate(arguments) => rotate(arguments),
    }
}

fn backup(arguments: &FileArguments) -> Result<()> {
    let common = &arguments.common;
    let mut project = Project::existing(&common.dir)?;
    common.source.unlock(&mut project)?;
    // The backup of a locked key is locked too.
    let passphrase = match project.passphrase().cloned() {
        None if common.passphrase => Some(common.source.ask_new()?),
        known => known,
    };
    let key_id = keys::back_up(&mut project, &arguments.file, passphrase.as_ref())?;
    let locked = passphrase.is_some();
    let text = format!(
        "secret key {key_id}: copied to {} ({})\n\
         Store the copy elsewhere. Anyone who has it{} can decrypt your data. Without the key and the \
         copy, encrypted models are lost.",
        arguments.file.display(),
        if locked { "protected by the passphrase" } else { "mode 0600, no passphrase" },
        if locked { " and the passphrase" } else { "" },
    );
    print(common.json, &json!({ "key_id": key_id, "file": arguments.file, "locked": locked }), &text);
    Ok(())
}

fn restore(arguments: &FileArguments) -> Result<()> {
    let common = &arguments.common;
    let mut project = Project::open(&common.dir, common.set.as_deref())?;
    let passphrase = common.source.for_key_file(&arguments.file)?;
    let locked = match (&passphrase, common.passphrase) {
        (None, true) => Some(common.source.ask_new()?),
        _ => passphrase.clone(),
    };
    project.set_passphrase(locked);
    let key_id = keys::restore(&mut project, &arguments.file, passphrase.as_ref())?;
    let publishes = project.settings().released.is_none_or(|released| released.left > 0);
    let text = format!(
        "secret key {key_id} restored: {}{}",
        project.secret().display(),
        if publishes {
            ""
        } else {
            "\nThis project does not know what was published under this key elsewhere, so it publishes nothing \
             more under it: `hetal model export` needs a model of a new key."
        }
    );
    print(common.json, &json!({ "key_id": key_id, "secret_key": project.secret(), "may_publish": publishes }), &text);
    Ok(())
}

fn rotate(arguments: &Arguments) -> Result<()> {
    let mut project = Project::existing(&arguments.dir)?;
    arguments.source.unlock(&mut project)?;
    if arguments.passphrase && project.passphrase().is_none() {
        project.set_passphrase(Some(arguments.source.ask_new()?));
    }
    let mut progress = TrainingProgress::new();
    let mut names = Vec::new();
    let (before, owner) = keys::rotate(&mut project, &mut |step| {
        if let ProgressEvent::Stranded(stranded) = &step {
            names.clone_from(stranded);
        }
        progress.show(step);
    })?;
    drop(progress);
    let (key_id, sets) = (owner.key_id(), project.settings().keys.len());
    let text = format!(
        "secret key {key_id} replaces {before}, which is now in {}\n\
         Models of the old key still classify on this machine. They cannot be exported again or used with --remote.",
        project.root().join("old").display()
    );
    let value = json!({
        "key_id": key_id,
        "old_key_id": before,
        "secret_key": project.secret(),
        "key_sets": sets,
        "interrupted_trainings": names,
    });
    print(arguments.json, &value, &text);
    Ok(())
}
