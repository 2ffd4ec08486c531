//! `hetal predict`: classes of rows, on this machine or encrypted on the server.

use super::connection::Connection;
use super::data::labels;
use super::steps::Steps;
use super::train::likeliest;
use super::{FOLDER, print};
use crate::{Error, Result};
use hetal_client::{Evaluation, Model, Project, classification, files, task};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `hetal predict`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = FOLDER)]
    pub dir: PathBuf,
    /// The name of the model.
    #[arg(long, default_value = "model")]
    pub model: String,
    /// Features of the rows: .npy, .npz, .safetensors or .csv.
    #[arg(long)]
    pub features: PathBuf,
    /// True labels, to see how good the predictions are.
    #[arg(long)]
    pub labels: Option<String>,
    /// The column or array of the feature file that holds the true labels.
    #[arg(long, conflicts_with = "labels")]
    pub label_column: Option<String>,
    /// Classify on the server, which sees neither the rows nor the model.
    #[arg(long)]
    pub remote: bool,
    /// Where the server is.
    #[command(flatten)]
    pub connection: Connection,
    /// Write the predictions here (CSV) instead of to the terminal.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut project = Project::existing(&arguments.dir)?;
    let model = Model::load(&project.model(&arguments.model)?)?;
    let table = files::table(&arguments.features, arguments.label_column.as_deref())?;
    let truth = match &arguments.labels {
        Some(text) => Some(labels(text)?),
        None => table.labels,
    };
    let logits = if arguments.remote {
        let remote = arguments.connection.connect(&mut project)?;
        let mut steps = Steps::new();
        classification::logits(&project, &remote, &model, &table.features, &mut |step| steps.show(step))?
    } else {
        model.logits(&table.features)?
    };
    let predictions = likeliest(&logits);
    let evaluation = match &truth {
        Some(truth) => Some(Evaluation::new(&logits, &task::numbers(truth, &model.classes)?, &model.classes)?),
        None => None,
    };
    let mut lines = String::from("row,class,probability\n");
    for (row, (class, probability)) in predictions.iter().enumerate() {
        lines += &format!("{},{},{probability:.6}\n", row + 1, quoted(&model.classes[*class]));
    }
    if let Some(path) = &arguments.out {
        std::fs::write(path, &lines)
            .map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?;
    }
    let one =
        |(class, probability): &(usize, f64)| json!({ "class": model.classes[*class], "probability": probability });
    let value = json!({
        "rows": predictions.len(),
        "remote": arguments.remote,
        "predictions": predictions.iter().map(one).collect::<Vec<_>>(),
        "evaluation": evaluation,
    });
    let text = match (&evaluation, &arguments.out) {
        (Some(evaluation), _) => evaluation.text(),
        (None, Some(path)) => format!("{} rows classified: {}", predictions.len(), path.display()),
        (None, None) => lines,
    };
    print(arguments.json, &value, &text);
    Ok(())
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
