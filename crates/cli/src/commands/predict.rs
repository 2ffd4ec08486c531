//! `hetal predict`: classes of rows, on this machine or encrypted on the server.

use super::train::likeliest;
use crate::Result;
use crate::args::FOLDER;
use crate::args::connection::Connection;
use crate::args::data::labels;
use crate::args::inputs::{self, Inputs};
use crate::args::passphrase::PassphraseSource;
use crate::ui::output::{print, write_private};
use crate::ui::progress::Steps;
use hetal_client::data::class_numbers;
use hetal_client::rpc::sanitize_terminal;
use hetal_client::{Evaluation, Model, Project, predict};
use serde_json::json;
use std::path::PathBuf;

/// Probabilities are shown in hundredths: their last digits are those of a decryption.
const DIGITS: f64 = 100.0;

/// Arguments of `hetal predict`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = FOLDER)]
    pub dir: PathBuf,
    /// The name of the model.
    #[arg(long, default_value = "model")]
    pub model: String,
    /// What is to be classified.
    #[command(flatten)]
    pub inputs: Inputs,
    /// True labels, to see how good the predictions are: a file of them (FILE#NAME for one array or column of several).
    #[arg(long, value_name = "FILE")]
    pub labels: Option<String>,
    /// The column (CSV, by name or number) or the array (.npz, .safetensors) of the feature file that holds the true labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME")]
    pub label_column: Option<String>,
    /// Classify on the server that trained the model; it sees neither the rows nor the model.
    #[arg(long)]
    pub remote: bool,
    /// Where the server is.
    #[command(flatten)]
    pub connection: Connection,
    /// Where the passphrase of the secret key is, if it has one (with --remote).
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Write the predictions here (CSV) instead of to the terminal. The file is its owner's alone.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// All digits of the probabilities. They are PRIVATE: with the server's ciphertexts they give the secret key away.
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
    let model = Model::load(&path)?;
    let rows = arguments.inputs.rows(&model, &path, arguments.label_column.as_deref(), arguments.labels.is_some())?;
    let truth = match &arguments.labels {
        Some(text) => Some(labels(text)?),
        None => rows.labels,
    };
    let truth = truth.map(|labels| inputs::truth(labels, &model, &path)).transpose()?;
    let logits = if arguments.remote {
        arguments.passphrase.unlock(&mut project)?;
        let remote = arguments.connection.connect(&mut project)?;
        let mut steps = Steps::new();
        predict::remote::logits(&mut project, &remote, &model, &rows.features, &mut |step| steps.show(step))?
    } else {
        model.logits(&rows.features)?
    };
    let mut predictions = likeliest(&logits);
    if !arguments.exact {
        predictions.iter_mut().for_each(|(_, probability)| *probability = (DIGITS * *probability).round() / DIGITS);
    }
    let evaluation = match &truth {
        Some(truth) => Some(Evaluation::new(&logits, &class_numbers(truth, &model.classes)?, &model.classes)?),
        None => None,
    };
    let lines = |shown: &dyn Fn(&str) -> String| -> String {
        let first = if rows.names.is_some() { "input" } else { "row" };
        let line = |(row, (class, probability)): (usize, &(usize, f64))| {
            let name = rows.names.as_ref().map_or_else(|| (row + 1).to_string(), |names| quoted(&shown(&names[row])));
            format!("{name},{},{probability}\n", quoted(&shown(&model.classes[*class])))
        };
        format!("{first},class,probability\n") + &predictions.iter().enumerate().map(line).collect::<String>()
    };
    if let Some(path) = &arguments.out {
        write_private(path, lines(&str::to_owned).as_bytes())?;
    }
    let one =
        |(class, probability): &(usize, f64)| json!({ "class": model.classes[*class], "probability": probability });
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
        // Names of files may come from anyone, and a terminal does what they say.
        (None, None) => lines(&sanitize_terminal),
    };
    print(arguments.json, &value, &text);
    Ok(())
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
