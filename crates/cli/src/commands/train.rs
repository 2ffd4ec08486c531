//! `hetal train`: trains a classifier on a server that cannot read the rows.

use crate::args::PROJECT_FOLDER;
use crate::args::connection::ConnectionArguments;
use crate::args::data::{DataArguments, ReadRows, data_value};
use crate::args::hyper_parameters::HyperParameterArguments;
use crate::args::key_plan::KeyPlanArguments;
use crate::args::passphrase::LockArguments;
use crate::args::row_form::RowFormArguments;
use crate::terminal::format::{bytes, ordinal, seconds, security, warn_if_insecure};
use crate::terminal::interrupt::explain_interrupt;
use crate::terminal::output::print;
use crate::terminal::progress::TrainingProgress;
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_client::model::Provenance;
use hetal_client::training::{self, Defaults, Trained, TrainingOptions, TrainingRun, shown_loss, wishes_text};
use hetal_client::{Model, Project, keys};
use hetal_extract_api::Manifest;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `hetal train`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder: secret key, key sets, encrypted rows, models. Run the same command again
    /// to continue after an interruption.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// The server.
    #[command(flatten)]
    pub connection: ConnectionArguments,
    /// The rows.
    #[command(flatten)]
    pub data: DataArguments,
    /// Hyper-parameters to request.
    #[command(flatten)]
    pub wishes: HyperParameterArguments,
    /// The form of the encrypted rows.
    #[command(flatten)]
    pub row_form: RowFormArguments,
    /// The keys that are sent.
    #[command(flatten)]
    pub key_plan: KeyPlanArguments,
    /// The name of the training and its model. The server sees it as the label of the job.
    #[arg(long, default_value = "model")]
    pub name: String,
    /// Replace a model or an interrupted training of this name.
    #[arg(long)]
    pub replace: bool,
    /// Make a new secret key and key set; the old secret key moves to the folder `old`.
    #[arg(long)]
    pub fresh_keys: bool,
    /// The passphrase of a new secret key.
    #[command(flatten)]
    pub lock: LockArguments,
    /// Subtract this share of the logarithm of each class's share of the rows from its bias after
    /// the training, from 0 to 1: rare classes are predicted more often. 0.5 does nearly what
    /// balanced weights do. Figures of the validation are those before.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub prior: f64,
    /// Repeat the training without encryption on this machine and compare: a server that computed
    /// something else is found. The machine does the work that the server did, on plain numbers.
    #[arg(long)]
    pub verify: bool,
    /// Deprecated: this is the default.
    #[arg(long, conflicts_with = "verify")]
    pub no_check: bool,
    /// The parameter set of a new project: full, unless you test. Sets whose names begin with
    /// insecure- give NO SECURITY.
    #[arg(long, value_name = "NAME")]
    pub set: Option<String>,
    /// Milliseconds between logits and verdict.
    #[arg(long, hide = true)]
    pub verdict_delay_ms: Option<u64>,
    /// Print one JSON object. Unless standard error is a terminal, progress is written there as
    /// lines of JSON (docs/reports.md).
    #[arg(long)]
    pub json: bool,
}

const INTERRUPTED: &str = "interrupted: run the same command again to continue. Keys, encrypted rows and verdicts are \
                           kept; the server waits for the next verdict (`hetal jobs` shows the job)";

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let ReadRows { task, manifest, report: data, weights } = arguments.data.read()?;
    let mut progress = TrainingProgress::of_json(arguments.json);
    progress.preface(&format!("{}{}{}", data.text(), task.preparation.text(), weights.text()));
    let mut project = Project::open(&arguments.dir, arguments.set.as_deref())?;
    let params = keys::params(&project)?;
    warn_if_insecure(&params);
    let relock = arguments.lock.passphrase;
    let replaced = arguments.fresh_keys && training::replaces_keys(&project, &arguments.name, relock)?;
    arguments.lock.prepare(&mut project, replaced)?;
    explain_interrupt(INTERRUPTED);
    let remote = arguments.connection.connect(&mut project)?;
    let mut options = TrainingOptions::new(&arguments.name);
    let defaults = Defaults::new(&task);
    options.wishes = defaults.fill(&arguments.wishes.wishes(), task.training.rows(), Some(remote.offer()));
    progress.preface(&format!("{}\n", wishes_text(&options.wishes)));
    options.verify = arguments.verify;
    if arguments.no_check {
        progress.preface("note: --no-check is deprecated: without --verify nothing is compared\n");
    }
    options.row_form = arguments.row_form.wish();
    options.key_plan = arguments.key_plan.wish(arguments.row_form.uplink);
    options.replace = arguments.replace;
    options.fresh_keys = arguments.fresh_keys;
    options.relock = relock && replaced;
    options.prior = arguments.prior;
    options.command = Some(command_line());
    options.extraction = manifest.as_ref().map(manifest_value).transpose()?;
    if let Some(ms) = arguments.verdict_delay_ms {
        options.verdict_delay = std::time::Duration::from_millis(ms);
    }
    let mut show = |step| progress.show(step);
    let training = TrainingRun::open(&mut project, &remote, &task, &options, &mut show)?;
    let trained = training.run(&mut show)?;
    drop(progress);
    let mut value = to_json(&trained, &params);
    value["data"] = data_value(&data, &task.preparation);
    value["weights"] = weights.value();
    print(arguments.json, &value, &text(&trained, &params, &arguments.dir));
    Ok(())
}

/// The manifest of the features, in the form that a model file stores.
pub fn manifest_value(manifest: &Manifest) -> Result<Value> {
    let bad = |e: serde_json::Error| Error::File { path: Manifest::FILE.to_owned(), reason: e.to_string() };
    serde_json::to_value(manifest).map_err(bad)
}

/// The result of a training as JSON. Fields that follow from decrypted values, and that no release
/// covers, are rounded and named in `private`.
pub fn to_json(trained: &Trained, params: &Params) -> Value {
    let training = &trained.model.training;
    json!({
        "security": security(params),
        "security_bits": params.security().bits(),
        "private": ["validation_loss", "reference_difference_bound", "twin_relative_difference"],
        "model": trained.model.name,
        "model_path": trained.path,
        "report_path": trained.report,
        "classes": trained.model.classes,
        "features": trained.model.features(),
        "validation_accuracy": training.validation_accuracy,
        "validation_loss": shown_loss(training.validation_loss),
        "validated_on_training_rows": training.validated_on_training_rows,
        "converged": trained.converged(),
        "epochs": training.epochs,
        "best_epoch": training.best_epoch,
        "checks": training.checks(),
        "best_check": training.best_check(),
        "check_every": training.check_every,
        "iterations": training.iterations,
        "alpha": training.alpha,
        "weighted": training.weighted,
        "prior": trained.model.prior,
        "reference_difference_bound": trained.difference_bound(),
        // The old name of the same number.
        "twin_relative_difference": trained.difference_bound(),
        "key_bytes": trained.key_bytes,
        "upload_bytes": trained.row_bytes,
        "sent_key_bytes": trained.sent.keys,
        "sent_row_bytes": trained.sent.rows,
        "wall_s": trained.seconds.all,
        "seconds_per_iteration": per_iteration(trained),
        "job": training.job,
    })
}

/// Mean seconds of an iteration, as measured by the client.
pub fn per_iteration(trained: &Trained) -> Option<f64> {
    trained.seconds.iterations.mean()
}

/// The result of a training as text.
pub fn text(trained: &Trained, params: &Params, dir: &Path) -> String {
    let training = &trained.model.training;
    let mut text = String::new();
    if params.security().bits() <= 0.0 {
        text += &format!("parameter set {}: {}\n", params.name(), security(params));
    }
    text += &format!(
        "trained: {} iterations with {} checks, the {}{} is the best; {} {:.2} %\n",
        training.iterations,
        training.checks(),
        training.best_check(),
        ordinal(training.best_check()),
        if training.validated_on_training_rows { "accuracy on the training rows" } else { "validation accuracy" },
        100.0 * training.validation_accuracy
    );
    text += &trained.unconverged().map_or_else(String::new, |advice| format!("{advice}\n"));
    text += &about_training(&trained.model);
    // The difference decides, its bound is shown.
    text += &match trained.matches_reference().zip(trained.difference_bound()) {
        Some((true, bound)) => {
            format!("matches the plaintext reference (relative difference at most {bound:.1e})\n")
        }
        Some((false, bound)) => format!(
            "WARNING: differs from the plaintext reference (relative difference up to {bound:.1e}): do not trust this server\n"
        ),
        None if training.rate.is_none() => {
            "not compared with the plaintext reference: the server hides its learning rate, which is needed to compute it. \
             The noise of the model cannot be estimated, so it cannot be exported\n"
                .to_owned()
        }
        None => "not compared with the same training without encryption (--verify does)\n".to_owned(),
    };
    text += &format!(
        "sent: keys {}, rows {}; took {}\n",
        bytes(trained.sent.keys),
        bytes(trained.sent.rows),
        seconds(trained.seconds.all)
    );
    text += &match &trained.report {
        Some(page) => format!("report: {} (private, open it in a browser)\n", page.display()),
        None => format!(
            "report: not written, because a passphrase locks this project: hetal report{} {}\n",
            dir_argument(dir),
            trained.model.name
        ),
    };
    text + &format!(
        "saved: {} (private; `hetal model export` writes a model that may be published)\n\
         next: hetal predict{} {} --model {}\n",
        trained.path.display(),
        dir_argument(dir),
        predict_inputs(trained),
        trained.model.name
    )
}

/// What the loss had beside the cross-entropy of rows that count the same, and what was subtracted
/// afterwards; nothing for a plain training.
pub fn about_training(model: &Model) -> String {
    let Provenance { alpha, weighted, .. } = model.training;
    let alpha = alpha.filter(|alpha| *alpha != 0.0).map(|alpha| format!("L2 with alpha {alpha}"));
    let terms: Vec<String> = alpha.into_iter().chain(weighted.then(|| "rows with weights".to_owned())).collect();
    let mut text = if terms.is_empty() { String::new() } else { format!("loss: {}\n", terms.join(", ")) };
    if let Some(prior) = &model.prior {
        text += &format!("biases: {} of the logarithm of each class's share was subtracted\n", prior.share);
    }
    text
}

/// The argument that names a project folder, unless it is the default.
fn dir_argument(dir: &Path) -> String {
    match dir == Path::new(PROJECT_FOLDER) {
        true => String::new(),
        false => format!(" --dir {}", shell_word(&dir.display().to_string())),
    }
}

/// The command as it was given, for a shell.
pub fn command_line() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| shell_word(&word.to_string_lossy())).collect();
    words.join(" ")
}

/// A word as a shell reads it.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The arguments of `hetal predict` for a model.
fn predict_inputs(trained: &Trained) -> &'static str {
    match trained.model.extraction.as_ref().and_then(|manifest| manifest.pointer("/model/preprocessing")) {
        Some(what) if what.get("sentence").is_some() => "--text TEXT",
        Some(_) => "PICTURE",
        None => "--features FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_names_the_project() {
        assert_eq!(dir_argument(Path::new(PROJECT_FOLDER)), "");
        assert_eq!(dir_argument(Path::new("/tmp/p")), " --dir /tmp/p");
        assert_eq!(dir_argument(Path::new("my project's")), " --dir 'my project'\\''s'");
    }
}
