//! `hetal keygen`: makes the secret key and the key set of a project in advance.

use crate::Result;
use crate::args::PROJECT_FOLDER;
use crate::args::key_plan::KeyPlanArguments;
use crate::args::passphrase::LockArguments;
use crate::terminal::format::{bytes, seconds, security, warn_if_insecure};
use crate::terminal::output::{print, warn_if_others_enter};
use crate::terminal::progress;
use crate::terminal::progress::{TrainingProgress, stranded};
use hetal_client::layout::LayoutShape;
use hetal_client::{Layout, Project, keys, training};
use hetal_learn::AgreementLimits;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `hetal keygen`. A key set fits one shape of batches.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// Features of a row.
    #[arg(long, alias = "features", value_name = "COUNT")]
    pub columns: usize,
    /// Classes.
    #[arg(long, value_name = "COUNT")]
    pub classes: usize,
    /// Rows of a batch; the number of training rows if that is smaller.
    #[arg(long, default_value_t = 512, value_name = "ROWS")]
    pub batch: usize,
    /// For trainings whose rows have weights (--class-weight, --weight-column, --sample-weight).
    #[arg(long)]
    pub weighted: bool,
    /// The plan of the keys.
    #[command(flatten)]
    pub key_plan: KeyPlanArguments,
    /// Replace existing keys; the old secret key moves to the folder `old`.
    #[arg(long)]
    pub fresh_keys: bool,
    /// The passphrase of a new secret key.
    #[command(flatten)]
    pub lock: LockArguments,
    /// The parameter set of a new project: full, unless you test. Sets whose names begin with
    /// insecure- give NO SECURITY.
    #[arg(long, value_name = "NAME")]
    pub set: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut project = Project::open(&arguments.dir, arguments.set.as_deref())?;
    warn_if_others_enter(project.root());
    // All checks come before an old key is removed.
    let params = keys::params(&project)?;
    warn_if_insecure(&params);
    let range = AgreementLimits::default().defaults.range;
    let shape = LayoutShape {
        batch: arguments.batch,
        features: arguments.columns,
        classes: arguments.classes,
        range,
        weighted: arguments.weighted,
        key_plan: arguments.key_plan.plan().unwrap_or_default(),
    };
    let layout = Layout::new(params, shape)?;
    // Unused keys are as good as new ones, unless a passphrase is requested.
    let retire = arguments.fresh_keys && (keys::are_used(&project) || arguments.lock.passphrase);
    arguments.lock.prepare(&mut project, retire)?;
    let sets = project.settings().keys.clone();
    if retire {
        keys::retire(&mut project)?;
    }
    let owner = keys::owner(&mut project)?;
    let mut progress = TrainingProgress::new();
    let before = project.settings().keys.iter().find(|keys| keys.layout == layout.key()).cloned();
    let spinner = progress::spinner("checking the key set");
    keys::check_set(&mut project, &layout)?;
    spinner.finish_and_clear();
    let set = keys::ensure_set(&mut project, &owner, &layout, &mut |step| progress.show(step))?;
    drop(progress);
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
        "secret key: {} ({}; keep it secret and back it up with `hetal keys backup`)\n\
         key set for the server: {} ({}, made in {})\nfor {}; {}",
        project.secret().display(),
        if project.passphrase().is_some() { "protected by the passphrase" } else { "mode 0600" },
        project.key_file(&set).display(),
        bytes(set.bytes),
        seconds(set.seconds),
        set.layout,
        security(&layout.params)
    );
    if replaced.is_some() {
        text += "\nThe previous key set was damaged, missing or of an earlier version. This one replaces it.";
    }
    if arguments.fresh_keys && !retire {
        text += "\nThe existing keys were never used, so they were kept.";
    }
    for name in &names {
        text += &format!("\n{}", stranded(name));
    }
    print(arguments.json, &value, &text);
    Ok(())
}
