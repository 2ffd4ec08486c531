//! `hetal model`: lists, shows and exports models.

use crate::Result;
use crate::args::PROJECT_FOLDER;
use crate::args::passphrase::PassphraseSource;
use crate::commands::train::about_training;
use crate::terminal::format::ordinal;
use crate::terminal::output::{print, write_public};
use hetal_client::model::export::{
    ExportEvent, ExportOptions, Format, Published, ReleaseLimits, ReleaseTable, RowPreparation, publish,
};
use hetal_client::training::shown_loss;
use hetal_client::{Model, Project};
use hetal_extract_api::sanitize_terminal;
use hetal_learn::Scaling;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Commands about models.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// List the models of a project.
    List(ListArguments),
    /// Show a model: classes, training, accuracy.
    Show(ShowArguments),
    /// Write a model that may be published. Added noise hides what exact weights reveal about the
    /// secret key.
    Export(ExportArguments),
}

/// Arguments of `hetal model list`.
#[derive(clap::Args, Debug)]
pub struct ListArguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `hetal model show`.
#[derive(clap::Args, Debug)]
pub struct ShowArguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// The name of the model.
    #[arg(long, default_value = "model")]
    pub model: String,
    /// The source of the passphrase of a locked model.
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl ShowArguments {
    /// Reads the model.
    fn model(&self, project: &Project) -> Result<Model> {
        let path = project.model(&self.model)?;
        Ok(Model::open(&path, self.passphrase.for_model(&path)?.as_ref())?)
    }

    /// Reads the model, and unlocks the secret key of its project.
    fn unlocked(&self, project: &mut Project) -> Result<Model> {
        let path = project.model(&self.model)?;
        let passphrase = self.passphrase.for_model(&path)?;
        let model = Model::open(&path, passphrase.as_ref())?;
        // A model has the passphrase of its secret key.
        match passphrase {
            Some(passphrase) => project.set_passphrase(Some(passphrase)),
            None => self.passphrase.unlock(project)?,
        }
        Ok(model)
    }
}

/// Arguments of `hetal model export`.
#[derive(clap::Args, Debug)]
pub struct ExportArguments {
    /// The model.
    #[command(flatten)]
    pub show: ShowArguments,
    /// The format.
    #[arg(long, value_enum)]
    pub format: ExportFormatArgument,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The number of models of this size that may ever be published under this secret key (fixed by
    /// the first export).
    #[arg(long, requires = "security", value_name = "COUNT")]
    pub models: Option<u64>,
    /// Published values reveal nothing about the secret key, except with probability 2^-BITS (fixed
    /// by the first export).
    #[arg(long, requires = "models", value_name = "BITS")]
    pub security: Option<u32>,
    /// Publish the model although its noise costs more than half a point of accuracy.
    #[arg(long)]
    pub accept_loss: bool,
    /// The project folder was moved here from another disk or machine: its old place is gone, and
    /// no copy of it publishes.
    #[arg(long)]
    pub moved: bool,
}

/// A format of an exported model.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ExportFormatArgument {
    /// `weights`, `bias`, class names in the metadata.
    Safetensors,
    /// NumPy arrays `coef`, `intercept`, `classes`.
    Npz,
    /// A graph from features to probabilities and classes.
    Onnx,
    /// JSON with the fields of scikit-learn's LogisticRegression.
    Sklearn,
}

impl From<ExportFormatArgument> for Format {
    fn from(format: ExportFormatArgument) -> Self {
        match format {
            ExportFormatArgument::Safetensors => Self::Safetensors,
            ExportFormatArgument::Npz => Self::Npz,
            ExportFormatArgument::Onnx => Self::Onnx,
            ExportFormatArgument::Sklearn => Self::Sklearn,
        }
    }
}

/// Runs a command.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::List(arguments) => list(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Export(arguments) => export(arguments),
    }
}

/// Lists models. A locked one is named only, because a list asks for no passphrase.
fn list(arguments: &ListArguments) -> Result<()> {
    let project = Project::open_without_lock(&arguments.dir)?;
    let (mut values, mut text) = (Vec::new(), String::new());
    for name in project.models()? {
        match Model::open(&project.model(&name)?, None) {
            Ok(model) => {
                let (training, classes) = (&model.training, model.classes.len());
                let accuracy = 100.0 * training.validation_accuracy;
                let of = if training.validated_on_training_rows { "accuracy on them" } else { "validation accuracy" };
                text += &format!(
                    "{name:20} {} features, {classes} classes, {} rows, {of} {accuracy:.2} %\n",
                    model.features(),
                    training.rows
                );
                values.push(json!({
                    "name": name, "features": model.features(), "classes": model.classes, "rows": training.rows,
                    "validation_accuracy": training.validation_accuracy, "job": training.job,
                }));
            }
            Err(error) => {
                text += &format!("{name:20} {error}\n");
                values.push(json!({ "name": name, "error": error.to_string() }));
            }
        }
    }
    if text.is_empty() {
        text = "no models".to_owned();
    }
    print(arguments.json, &values.into(), &text);
    Ok(())
}

fn show(arguments: &ShowArguments) -> Result<()> {
    let project = Project::open_without_lock(&arguments.dir)?;
    let mut model = arguments.model(&project)?;
    model.training.validation_loss = shown_loss(model.training.validation_loss);
    let training = &model.training;
    let value = json!({
        "name": model.name,
        "classes": model.classes,
        "features": model.features(),
        "training": training,
        "scaling": model.normalisation.scaling(),
        "imputes": model.normalisation.fill().is_some(),
        "prior": model.prior,
        "private": ["training.validation_loss"],
    });
    let text = format!(
        "{}: {} features, {} classes ({})\ntrained on {} rows in batches of {}, {} checks, the {}{} is the best\n{}{}: accuracy {:.2} %, loss {:.3} on {} rows\nscaling: {}",
        model.name,
        model.features(),
        model.classes.len(),
        sanitize_terminal(&model.classes.join(", ")),
        training.rows,
        training.batch,
        training.checks(),
        training.best_check(),
        ordinal(training.best_check()),
        about_training(&model),
        if training.validated_on_training_rows { "on the training rows" } else { "validation" },
        100.0 * training.validation_accuracy,
        training.validation_loss,
        training.validation_rows,
        model.normalisation.scaling().name()
    );
    print(arguments.json, &value, &text);
    Ok(())
}

/// What each security costs, as text.
fn table_text(table: &ReleaseTable) -> String {
    let mut text = format!(
        "noise of the decrypted weights: at most {:.1e} in the 2-norm; models under this key: {}; private accuracy on the \
         validation rows {:.2} %\n  security   noise of a weight   accuracy\n",
        table.noise_bound,
        table.models,
        100.0 * table.private_accuracy
    );
    for line in &table.lines {
        text += &format!("  {:8}   {:17.1e}   {:6.2} %\n", line.security, line.sigma, 100.0 * line.accuracy);
    }
    text
}

fn export(arguments: &ExportArguments) -> Result<()> {
    let mut project = Project::existing(&arguments.show.dir)?;
    let model = arguments.show.unlocked(&mut project)?;
    // After everything that can be mistyped: it cannot be taken back.
    if arguments.moved {
        project.declare_moved()?;
    }
    let limits = arguments.models.zip(arguments.security).map(|(models, security)| ReleaseLimits { models, security });
    let options = ExportOptions { limits, accept_loss: arguments.accept_loss };
    let mut spent = None;
    let (published, _) = publish(&mut project, &model, &options, &mut |event| match event {
        ExportEvent::Trial { done, total } => eprintln!("estimating the noise: training {done} of {total} repeated"),
        ExportEvent::Table(table) => {
            eprint!("{}", table_text(table));
            spent = Some(table.clone());
        }
    })?;
    write_public(&arguments.out, &published.bytes(arguments.format.into()))?;
    // A replaced key publishes nothing more, so it has no such number.
    let left = project.settings().released.map(|released| released.left);
    let value = json!({
        "file": arguments.out,
        "sigma": published.sigma,
        "security": published.security,
        "accuracy": published.accuracy,
        "table": spent,
        "numbers_left": left,
        "rows": published.rows,
    });
    if !published.rows.is_empty() {
        eprintln!("{}", preparation_note(&published.rows, arguments.format));
    }
    print(arguments.show.json, &value, &published_text(&arguments.out, &published, left));
    Ok(())
}

/// What is done to rows before the weights apply, and who does it.
fn preparation_note(rows: &RowPreparation, format: ExportFormatArgument) -> String {
    let steps = [
        rows.impute.is_some().then_some("missing values are filled in"),
        rows.scale.map(|scale| match scale {
            Scaling::Sqrt => "square roots are taken (with signs), and rows divided by their length",
            _ => "rows are divided by their length",
        }),
    ];
    let steps: Vec<&str> = steps.into_iter().flatten().collect();
    let carried = match format {
        ExportFormatArgument::Onnx => "the graph does this",
        _ => "the file says this under rows, impute or scale, and its user must do it",
    };
    format!("note: before the weights apply, {}: {carried}", steps.join("; "))
}

/// What was published, and how many numbers may still be.
fn published_text(file: &Path, published: &Published, left: Option<u64>) -> String {
    let accuracy = published.accuracy.map_or_else(String::new, |accuracy| {
        format!(
            "it is right on {:.2} % of the validation rows, the private model on {:.2} %; ",
            100.0 * accuracy.published,
            100.0 * accuracy.private
        )
    });
    let left = match left {
        None => "these numbers were published before".to_owned(),
        Some(left) => format!("{left} more numbers may be published under this key"),
    };
    format!(
        "{}: may be published. Each weight has noise of deviation {:.1e}, which hides the secret key (advantage at \
         most 2^-{}); {accuracy}{left}",
        file.display(),
        published.sigma,
        published.security
    )
}
