//! `hetal keygen`: the secret key and the key set of a project, before there are rows.

use super::steps::Steps;
use super::{FOLDER, bytes, print, seconds, security};
use crate::Result;
use hetal_client::{Layout, Project, training};
use hetal_learn::Limits;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `hetal keygen`. Keys fit one shape of batches, so the shape must be known.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = FOLDER)]
    pub dir: PathBuf,
    /// Features of a row.
    #[arg(long)]
    pub features: usize,
    /// Classes.
    #[arg(long)]
    pub classes: usize,
    /// Rows of a batch.
    #[arg(long, default_value_t = 1024)]
    pub batch: usize,
    /// Make new ones where there are some; the old secret key is kept in the folder `old`.
    #[arg(long)]
    pub fresh_keys: bool,
    /// The parameter set.
    #[arg(long, hide = true)]
    pub set: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut project = Project::open(&arguments.dir, arguments.set.as_deref())?;
    if arguments.fresh_keys {
        project.retire_keys()?;
    }
    let params = training::params(&project)?;
    let range = Limits::default().defaults.range;
    let layout = Layout::new(params, arguments.batch, arguments.features, arguments.classes, range)?;
    let owner = training::owner(&project)?;
    let mut steps = Steps::new();
    let keys = training::ensure_keys(&mut project, &owner, &layout, &mut |step| steps.show(step))?;
    drop(steps);
    let value = json!({
        "secret_key": project.secret(),
        "key_set": project.key_set(),
        "key_bytes": keys.bytes,
        "layout": keys.layout,
        "seconds": keys.seconds,
        "security": security(&layout.params),
    });
    let text = format!(
        "secret key: {} (mode 0600: keep it, back it up, show it to no one)\nkey set for the server: {} ({}, made in {})\nfor {}; {}",
        project.secret().display(),
        project.key_set().display(),
        bytes(keys.bytes),
        seconds(keys.seconds),
        keys.layout,
        security(&layout.params)
    );
    print(arguments.json, &value, &text);
    Ok(())
}
