//! `hetal predict`: classifies rows, on this machine or encrypted on the server.

use crate::Result;
use crate::args::PROJECT_FOLDER;
use crate::args::connection::Connection;
use crate::args::data::labels;
use crate::args::inputs::{self, Inputs};
use crate::args::passphrase::PassphraseSource;
use crate::ui::output::{print, write_private};
use crate::ui::progress::TrainingProgress;
use hetal_client::data::class_numbers;
use hetal_client::training::shown_loss;
use hetal_client::{Evaluation, Model, Project, model, predict};
use hetal_extract_api::sanitize_terminal;
use hetal_learn::{Matrix, judge};
use serde_json::json;
use std::path::PathBuf;

/// Probabilities are rounded to hundredths, because further digits reveal the noise of a
/// decryption.
const DIGITS: f64 = 100.0;

/// Arguments of `hetal predict`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// The name of the model.
    #[arg(long, default_value = "model")]
    pub model: String,
    /// The rows to classify.
    #[command(flatten)]
    pub inputs: Inputs,
    /// True labels in a file of their own, to evaluate the predictions (FILE#NAME selects an array
    /// or column).
    #[arg(long, value_name = "FILE")]
    pub labels: Option<String>,
    /// The column (by name, or by number; the first is 1) or the array (.npz, .safetensors) of the
    /// feature file that contains the true labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME")]
    pub label_column: Option<String>,
    /// Classify on the server that trained the model; it sees neither the rows nor the model.
    #[arg(long)]
    pub remote: bool,
    /// The server.
    #[command(flatten)]
    pub connection: Connection,
    /// The source of the passphrase of a locked model and of its secret key.
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Write the predictions to a CSV file instead of the terminal. Only its owner can read it.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print all digits of the probabilities and losses. They are PRIVATE: together with the
    /// server's ciphertexts they reveal the secret key.
    #[arg(long)]
    pub exact: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut project = Project::open_without_lock(&arguments.dir)?;
    let path = project.model(&arguments.model)?;
    let passphrase = arguments.passphrase.for_model(&path)?;
    let model = Model::open(&path, passphrase.as_ref())?;
    let rows = arguments.inputs.rows(&model, &path, arguments.label_column.as_deref(), arguments.labels.is_some())?;
    let truth = match &arguments.labels {
        Some(text) => Some(labels(text, rows.features.rows(), &arguments.inputs.table.label_options())?),
        None => rows.labels,
    };
    let truth = truth.map(|labels| inputs::true_labels(labels, &model, &path)).transpose()?;
    let logits = if arguments.remote {
        // A model has the passphrase of its secret key.
        match passphrase {
            Some(passphrase) => project.set_passphrase(Some(passphrase)),
            None => arguments.passphrase.unlock(&mut project)?,
        }
        let remote = arguments.connection.connect(&mut project)?;
        let mut progress = TrainingProgress::new();
        predict::remote::logits(&mut project, &remote, &model, &rows.features, &mut |step| progress.show(step))?
    } else {
        model.logits(&rows.features)?
    };
    let mut predictions = likeliest(&logits);
    if !arguments.exact {
        let round = |x: f64| (DIGITS * x).round() / DIGITS;
        predictions.iter_mut().for_each(|prediction| prediction.probability = round(prediction.probability));
    }
    let evaluation = match &truth {
        Some(truth) => {
            let evaluation = Evaluation::new(&logits, &class_numbers(truth, &model.classes)?, &model.classes)?;
            Some(if arguments.exact { evaluation } else { evaluation.rounded(shown_loss) })
        }
        None => None,
    };
    let lines = |shown: &dyn Fn(&str) -> String| -> String {
        let first = if rows.names.is_some() { "input" } else { "row" };
        let line = |(row, prediction): (usize, &Prediction)| {
            let Prediction { class, probability } = prediction;
            let name = rows.names.as_ref().map_or_else(|| (row + 1).to_string(), |names| quoted(&shown(&names[row])));
            format!("{name},{},{probability}\n", quoted(&shown(&model.classes[*class])))
        };
        format!("{first},class,probability\n") + &predictions.iter().enumerate().map(line).collect::<String>()
    };
    if let Some(path) = &arguments.out {
        write_private(path, lines(&str::to_owned).as_bytes())?;
    }
    let one = |prediction: &Prediction| json!({ "class": model.classes[prediction.class], "probability": prediction.probability });
    let value = json!({
        "rows": predictions.len(),
        "inputs": rows.names,
        "remote": arguments.remote,
        "predictions": predictions.iter().map(one).collect::<Vec<_>>(),
        "evaluation": evaluation,
    });
    let text = match (&evaluation, &arguments.out) {
        (Some(evaluation), _) => evaluation.text(),
        (None, Some(path)) => format!("{} rows classified: {}", predictions.len(), path.display()),
        // File names may contain control characters.
        (None, None) => lines(&sanitize_terminal),
    };
    print(arguments.json, &value, &text);
    Ok(())
}

/// The predicted class of a row.
struct Prediction {
    class: usize,
    probability: f64,
}

/// The most likely class of each row.
fn likeliest(logits: &Matrix) -> Vec<Prediction> {
    let probabilities = model::probabilities(logits);
    let predict = |row| {
        let class = judge::predicted(probabilities.row(row));
        Prediction { class, probability: probabilities[(row, class)] }
    };
    (0..probabilities.rows()).map(predict).collect()
}

/// A text as a field of CSV.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
