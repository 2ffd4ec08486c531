//! `hetal keygen`: the secret key and the key set of a project, before there are rows.

use crate::Result;
use crate::args::FOLDER;
use crate::args::passphrase::Lock;
use crate::ui::format::{bytes, seconds, security};
use crate::ui::output::{print, warn_if_others_enter};
use crate::ui::progress;
use crate::ui::progress::{Steps, stranded};
use hetal_client::{Layout, Project, keys, training};
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
    #[arg(long, alias = "features", value_name = "COUNT")]
    pub columns: usize,
    /// Classes.
    #[arg(long, value_name = "COUNT")]
    pub classes: usize,
    /// Rows of a batch: all training rows where they are fewer.
    #[arg(long, default_value_t = 1024, value_name = "ROWS")]
    pub batch: usize,
    /// Make new ones where there are some; the old secret key is kept in the folder `old`.
    #[arg(long)]
    pub fresh_keys: bool,
    /// Whether and how the secret key is locked.
    #[command(flatten)]
    pub lock: Lock,
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
    warn_if_others_enter(project.root());
    // Everything that can be refused comes before an old key goes.
    let params = keys::params(&project)?;
    let range = Limits::default().defaults.range;
    let layout = Layout::new(params, arguments.batch, arguments.columns, arguments.classes, range)?;
    // Keys that nobody has seen are as good as new ones, unless they are to be locked.
    let retire = arguments.fresh_keys && (keys::are_used(&project) || arguments.lock.passphrase);
    arguments.lock.prepare(&mut project, retire)?;
    let sets = project.settings().keys.clone();
    if retire {
        keys::retire(&mut project)?;
    }
    let owner = keys::owner(&mut project)?;
    let mut steps = Steps::new();
    let before = project.settings().keys.iter().find(|keys| keys.layout == layout.key()).cloned();
    let spinner = progress::spinner("comparing the key set with its name");
    keys::check_set(&mut project, &layout)?;
    spinner.finish_and_clear();
    let set = keys::ensure_set(&mut project, &owner, &layout, &mut |step| steps.show(step))?;
    drop(steps);
    let replaced = before.filter(|before| before.blob != set.blob);
    let names = training::stranded(&project, &sets);
    let value = json!({
        "secret_key": project.secret(),
        "key_id": owner.key_id(),
        "locked": project.passphrase().is_some(),
        "key_set": project.key_file(&set),
        "key_bytes": set.bytes,
        "layout": set.layout,
        "seconds": set.seconds,
        "security": security(&layout.params),
        "replaced": replaced.is_some(),
        "retired": retire,
        "interrupted_trainings": names,
    });
    let mut text = format!(
        "secret key: {} ({}: keep it, `hetal keys backup` it, show it to no one)\nkey set for the server: {} ({}, made in {})\nfor {}; {}",
        project.secret().display(),
        if project.passphrase().is_some() { "locked with the passphrase" } else { "mode 0600" },
        project.key_file(&set).display(),
        bytes(set.bytes),
        seconds(set.seconds),
        set.layout,
        security(&layout.params)
    );
    if replaced.is_some() {
        text += "\nthe key set that was there was damaged, gone or of an earlier version, and this one was made in its place";
    }
    if arguments.fresh_keys && !retire {
        text += "\nthe keys that were there had never been used, so they are as good as new ones and were kept";
    }
    for name in &names {
        text += &format!("\n{}", stranded(name));
    }
    print(arguments.json, &value, &text);
    Ok(())
}
