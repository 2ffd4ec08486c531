//! `hetal train`: a classifier from features that the server cannot read.

use crate::args::FOLDER;
use crate::args::connection::Connection;
use crate::args::data::Data;
use crate::args::hyper_parameters::WishArguments;
use crate::args::passphrase::Lock;
use crate::ui::format::{bytes, ordinal, seconds};
use crate::ui::output::print;
use crate::ui::progress::Steps;
use crate::{Error, Result};
use hetal_client::training::{IterationTime, Options, Trained, TrainingRun};
use hetal_client::{Project, model};
use hetal_extract_api::Manifest;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `hetal train`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder: secret key, keys, encrypted uploads, models. The same command goes on where it was interrupted.
    #[arg(long, default_value = FOLDER)]
    pub dir: PathBuf,
    /// Where the server is.
    #[command(flatten)]
    pub connection: Connection,
    /// The rows.
    #[command(flatten)]
    pub data: Data,
    /// Hyper-parameters to ask for.
    #[command(flatten)]
    pub wishes: WishArguments,
    /// The name of the training and its model. The server sees it, as the job's label.
    #[arg(long, default_value = "model")]
    pub name: String,
    /// Replace a model or an interrupted training of this name.
    #[arg(long)]
    pub replace: bool,
    /// Make a new secret key and key set; the old secret key is kept in the folder `old`.
    #[arg(long)]
    pub fresh_keys: bool,
    /// Whether and how the secret key is locked.
    #[command(flatten)]
    pub lock: Lock,
    /// Do not repeat the training in the clear on this machine to compare (such a model cannot be exported).
    #[arg(long)]
    pub no_check: bool,
    /// The parameter set.
    #[arg(long, hide = true)]
    pub set: Option<String>,
    /// Milliseconds from logits to verdict.
    #[arg(long, hide = true)]
    pub verdict_delay_ms: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (task, manifest) = arguments.data.read()?;
    let mut project = Project::open(&arguments.dir, arguments.set.as_deref())?;
    arguments.lock.prepare(&mut project, arguments.fresh_keys)?;
    let remote = arguments.connection.connect(&mut project)?;
    let mut options = Options::new(&arguments.name);
    options.wishes = arguments.wishes.wishes();
    options.check = !arguments.no_check;
    options.replace = arguments.replace;
    options.fresh_keys = arguments.fresh_keys;
    options.extraction = manifest.as_ref().map(carried).transpose()?;
    if let Some(ms) = arguments.verdict_delay_ms {
        options.verdict_delay = std::time::Duration::from_millis(ms);
    }
    let mut steps = Steps::new();
    let mut show = |step| steps.show(step);
    let training = TrainingRun::open(&mut project, &remote, &task, &options, &mut show)?;
    let trained = training.run(&mut show)?;
    drop(steps);
    print(arguments.json, &report(&trained), &text(&trained));
    Ok(())
}

/// The manifest of the features as the model file holds it.
pub fn carried(manifest: &Manifest) -> Result<Value> {
    let bad = |e: serde_json::Error| Error::File { path: Manifest::FILE.to_owned(), reason: e.to_string() };
    serde_json::to_value(manifest).map_err(bad)
}

/// What a training came to, for machines.
pub fn report(trained: &Trained) -> Value {
    let training = &trained.model.training;
    json!({
        "model": trained.model.name,
        "model_path": trained.path,
        "classes": trained.model.classes,
        "features": trained.model.features(),
        "validation_accuracy": training.validation_accuracy,
        "validation_loss": training.validation_loss,
        "epochs": training.epochs,
        "best_epoch": training.best_epoch,
        "iterations": training.iterations,
        "twin_relative_difference": trained.difference,
        "key_bytes": trained.key_bytes,
        "upload_bytes": trained.row_bytes,
        "sent_key_bytes": trained.sent.keys,
        "sent_row_bytes": trained.sent.rows,
        "wall_s": trained.seconds.all,
        "seconds_per_iteration": per_iteration(trained),
        "job": training.job,
    })
}

/// Seconds of an iteration as the client saw them.
pub fn per_iteration(trained: &Trained) -> Option<f64> {
    let IterationTime { seconds, count } = trained.seconds.iterations;
    (count > 0).then(|| seconds / count as f64)
}

/// What a training came to, for people.
pub fn text(trained: &Trained) -> String {
    let training = &trained.model.training;
    let mut text = format!(
        "trained: {} epochs, best the {}{}; validation accuracy {:.2} %\n",
        training.epochs,
        training.best_epoch,
        ordinal(training.best_epoch),
        100.0 * training.validation_accuracy
    );
    text += &match trained.difference {
        Some(d) if d < 0.01 => {
            format!("the same training in the clear gives the same weights but for {d:.1e} of the largest\n")
        }
        Some(d) => format!(
            "WARNING: the same training in the clear gives other weights ({d:.1e} of the largest): do not trust this server\n"
        ),
        None if training.rate.is_none() => {
            "not compared with training in the clear: the server hides its learning rate, without which nobody can repeat the training. So nobody \
             knows how noisy the model is, and it cannot be exported\n"
                .to_owned()
        }
        None => "not compared with training in the clear, as you wished (so it cannot be exported)\n".to_owned(),
    };
    text += &format!(
        "sent: keys {}, rows {}; took {}\n",
        bytes(trained.sent.keys),
        bytes(trained.sent.rows),
        seconds(trained.seconds.all)
    );
    text + &format!(
        "saved: {} (private: `hetal model export` writes what may be published)\nnext: hetal predict {} --model {}\n",
        trained.path.display(),
        inputs(trained),
        trained.model.name
    )
}

/// What the model can be asked about.
fn inputs(trained: &Trained) -> &'static str {
    match trained.model.extraction.as_ref().and_then(|manifest| manifest.pointer("/model/preprocessing")) {
        Some(what) if what.get("sentence").is_some() => "--text TEXT",
        Some(_) => "PICTURE",
        None => "--features FILE",
    }
}

/// The likeliest class of each row and its probability.
pub fn likeliest(logits: &hetal_learn::Matrix) -> Vec<(usize, f64)> {
    let probabilities = model::probabilities(logits);
    let row = |i| {
        let class = hetal_learn::judge::predicted(probabilities.row(i));
        (class, probabilities[(i, class)])
    };
    (0..probabilities.rows()).map(row).collect()
}
