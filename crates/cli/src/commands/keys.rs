//! `hetal keys`: the secret key backed up, brought back, replaced.

use crate::Result;
use crate::args::FOLDER;
use crate::args::passphrase::PassphraseSource;
use crate::ui::output::print;
use crate::ui::progress::Steps;
use hetal_client::training::ProgressEvent;
use hetal_client::{Project, keys};
use serde_json::json;
use std::path::PathBuf;

/// Commands about the secret key.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Write a copy of the secret key to a new file.
    Backup(FileArguments),
    /// Put a secret key from a backup in its place.
    Restore(FileArguments),
    /// Make a new secret key and key sets; the old secret key is kept in the folder `old`. Interrupted, the same command goes on.
    Rotate(Arguments),
}

/// What all of them need.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = FOLDER)]
    pub dir: PathBuf,
    /// Lock the key that is written with a passphrase.
    #[arg(long)]
    pub passphrase: bool,
    /// Where passphrases are.
    #[command(flatten)]
    pub source: PassphraseSource,
    /// The parameter set of a new project.
    #[arg(long, hide = true)]
    pub set: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A file besides.
#[derive(clap::Args, Debug)]
pub struct FileArguments {
    /// The backup.
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
    // A locked key is not laid open by a backup.
    let passphrase = match project.passphrase().cloned() {
        None if common.passphrase => Some(common.source.new_one()?),
        known => known,
    };
    let key_id = keys::back_up(&mut project, &arguments.file, passphrase.as_ref())?;
    let locked = passphrase.is_some();
    let text = format!(
        "secret key {key_id}: a copy is in {} ({})\nkeep it elsewhere: whoever has it{} reads what was encrypted; who loses both loses the encrypted models",
        arguments.file.display(),
        if locked { "locked with the passphrase" } else { "mode 0600, not locked" },
        if locked { " and the passphrase" } else { "" },
    );
    print(common.json, &json!({ "key_id": key_id, "file": arguments.file, "locked": locked }), &text);
    Ok(())
}

fn restore(arguments: &FileArguments) -> Result<()> {
    let common = &arguments.common;
    let mut project = Project::open(&common.dir, common.set.as_deref())?;
    let passphrase = common.source.of_file(&arguments.file)?;
    let locked = match (&passphrase, common.passphrase) {
        (None, true) => Some(common.source.new_one()?),
        _ => passphrase.clone(),
    };
    project.set_passphrase(locked);
    let key_id = keys::restore(&mut project, &arguments.file, passphrase.as_ref())?;
    let publishes = project.settings().released.is_none_or(|released| released.left > 0);
    let text = format!(
        "secret key {key_id} is in its place: {}{}",
        project.secret().display(),
        if publishes {
            ""
        } else {
            "\nwhat was published under it elsewhere is not known here, so nothing more is: `hetal model export` needs a model of a new key"
        }
    );
    print(common.json, &json!({ "key_id": key_id, "secret_key": project.secret(), "may_publish": publishes }), &text);
    Ok(())
}

fn rotate(arguments: &Arguments) -> Result<()> {
    let mut project = Project::existing(&arguments.dir)?;
    arguments.source.unlock(&mut project)?;
    if arguments.passphrase && project.passphrase().is_none() {
        project.set_passphrase(Some(arguments.source.new_one()?));
    }
    let mut steps = Steps::new();
    let mut names = Vec::new();
    let (before, owner) = keys::rotate(&mut project, &mut |step| {
        if let ProgressEvent::Stranded(stranded) = &step {
            names.clone_from(stranded);
        }
        steps.show(step);
    })?;
    drop(steps);
    let (key_id, sets) = (owner.key_id(), project.settings().keys.len());
    let text = format!(
        "secret key {key_id} in place of {before}, which is kept in {}\nmodels of the old key are used on this machine as before, but no more of them is published, and \
         the server classifies with them no more",
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
