//! `hetal predict`: classifies rows, on this machine or encrypted on the server.

use crate::Result;
use crate::args::PROJECT_FOLDER;
use crate::args::connection::ConnectionArguments;
use crate::args::data::labels;
use crate::args::inputs::{self, ColumnsBeside, InputArguments};
use crate::args::passphrase::PassphraseSource;
use crate::args::row_form::RowFormArguments;
use crate::terminal::output::{print, write_private};
use crate::terminal::progress::TrainingProgress;
use hetal_client::data::class_numbers;
use hetal_client::training::shown_loss;
use hetal_client::{Evaluation, Model, Project, model, predict};
use hetal_extract_api::sanitize_terminal;
use hetal_learn::{Matrix, judge};
use serde_json::{Value, json};
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
    pub inputs: InputArguments,
    /// True labels in a file of their own, to evaluate the predictions (FILE#NAME selects an array
    /// or column).
    #[arg(long, value_name = "FILE")]
    pub labels: Option<String>,
    /// The column (by name, or by number; the first is 1) or the array (.npz, .safetensors) of the
    /// feature file that contains the true labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME")]
    pub label_column: Option<String>,
    /// The column that names the rows (by name, or by number; the first is 1). It stands in the
    /// output instead of the number of the row.
    #[arg(long, requires = "features", value_name = "NAME")]
    pub id_column: Option<String>,
    /// Classify on the server that trained the model; it sees neither the rows nor the model.
    #[arg(long)]
    pub remote: bool,
    /// The server.
    #[command(flatten)]
    pub connection: ConnectionArguments,
    /// The form of the rows that are sent.
    #[command(flatten)]
    pub row_form: RowFormArguments,
    /// The source of the passphrase of a locked model and of its secret key.
    #[command(flatten)]
    pub passphrase: PassphraseSource,
    /// Write the predictions to a CSV file instead of the terminal, with the probabilities of all
    /// classes. Only its owner can read it.
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
    let asked = ColumnsBeside {
        label: arguments.label_column.as_deref(),
        id: arguments.id_column.as_deref(),
        labels_elsewhere: arguments.labels.is_some(),
    };
    let rows = arguments.inputs.rows(&model, &path, &asked)?;
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
        let wish = arguments.row_form.wish();
        predict::remote::logits(&mut project, &remote, &model, &rows.features, wish, &mut |step| progress.show(step))?
    } else {
        model.logits(&rows.features)?
    };
    let evaluation = match &truth {
        Some(truth) => {
            let evaluation = Evaluation::new(&logits, &class_numbers(truth, &model.classes)?, &model.classes)?;
            Some(if arguments.exact { evaluation } else { evaluation.rounded(shown_loss) })
        }
        None => None,
    };
    let predictions = Predictions::new(&model.classes, &logits, arguments.exact, rows.names.as_deref());
    let heading = match (&arguments.id_column, &rows.names) {
        (Some(column), _) => column.as_str(),
        (None, Some(_)) => "input",
        (None, None) => "row",
    };
    if let Some(path) = &arguments.out {
        write_private(path, predictions.csv(heading, true, &str::to_owned).as_bytes())?;
    }
    let value = json!({
        "rows": predictions.rows(),
        "inputs": rows.names,
        "classes": model.classes,
        "remote": arguments.remote,
        "predictions": predictions.json(),
        "evaluation": evaluation,
    });
    let text = match (&evaluation, &arguments.out) {
        (Some(evaluation), _) => evaluation.text(),
        (None, Some(path)) => format!("{} rows classified: {}", predictions.rows(), path.display()),
        // File names may contain control characters.
        (None, None) => predictions.csv(heading, false, &sanitize_terminal),
    };
    print(arguments.json, &value, &text);
    Ok(())
}

/// The predictions of rows.
struct Predictions<'a> {
    /// The names of the classes.
    classes: &'a [String],
    /// The likeliest class of each row.
    likeliest: Vec<usize>,
    /// The probabilities of all classes, as they are shown.
    probabilities: Matrix,
    /// The names of the rows.
    names: Option<&'a [String]>,
}

impl<'a> Predictions<'a> {
    /// Probabilities are rounded unless all digits are asked for.
    fn new(classes: &'a [String], logits: &Matrix, exact: bool, names: Option<&'a [String]>) -> Self {
        let all = model::probabilities(logits);
        let likeliest = (0..all.rows()).map(|row| judge::predicted(all.row(row))).collect();
        let shown = |x: f64| if exact { x } else { (DIGITS * x).round() / DIGITS };
        let probabilities = Matrix::from_fn(all.rows(), all.columns(), |row, class| shown(all[(row, class)]));
        Self { classes, likeliest, probabilities, names }
    }

    fn rows(&self) -> usize {
        self.probabilities.rows()
    }

    /// The likeliest class of a row and its probability.
    fn likeliest(&self, row: usize) -> (&str, f64) {
        let class = self.likeliest[row];
        (&self.classes[class], self.probabilities[(row, class)])
    }

    fn json(&self) -> Value {
        let one = |row| {
            let (class, probability) = self.likeliest(row);
            json!({ "class": class, "probability": probability, "probabilities": self.probabilities.row(row) })
        };
        (0..self.rows()).map(one).collect()
    }

    /// A table with a line for each row; with `all`, it has the probabilities of all classes.
    fn csv(&self, heading: &str, all: bool, shown: &dyn Fn(&str) -> String) -> String {
        let mut text = format!("{},class,probability", quoted(&shown(heading)));
        let classes = if all { self.classes } else { &[] };
        classes.iter().for_each(|class| text += &format!(",{}", quoted(&shown(&format!("probability {class}")))));
        text.push('\n');
        for row in 0..self.rows() {
            let (class, probability) = self.likeliest(row);
            let name = self.names.map_or_else(|| (row + 1).to_string(), |names| quoted(&shown(&names[row])));
            text += &format!("{name},{},{probability}", quoted(&shown(class)));
            let others = if all { self.probabilities.row(row) } else { &[] };
            others.iter().for_each(|probability| text += &format!(",{probability}"));
            text.push('\n');
        }
        text
    }
}

/// A text as a field of CSV.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_probabilities_of_all_classes_and_the_names_of_rows() {
        let logits = Matrix::new(2, 3, vec![2.0, 0.0, 0.0, 0.0, 0.0, 3.0]).unwrap();
        let classes = ["a".to_owned(), "b,c".to_owned(), "d".to_owned()];
        let names = ["first".to_owned(), "second".to_owned()];
        let mut predictions = Predictions::new(&classes, &logits, false, Some(&names));
        let file = predictions.csv("customer", true, &str::to_owned);
        assert_eq!(
            file,
            "customer,class,probability,probability a,\"probability b,c\",probability d\n\
             first,a,0.79,0.79,0.11,0.11\nsecond,d,0.91,0.05,0.05,0.91\n"
        );
        assert_eq!(predictions.json()[0]["probabilities"], json!([0.79, 0.11, 0.11]));
        predictions.names = None;
        assert_eq!(predictions.csv("row", false, &str::to_owned), "row,class,probability\n1,a,0.79\n2,d,0.91\n");
    }

    /// Rounding makes equal what is not.
    #[test]
    fn the_class_is_that_of_the_exact_probabilities() {
        let logits = Matrix::new(1, 2, vec![0.0, 0.001]).unwrap();
        let classes = ["a".to_owned(), "b".to_owned()];
        assert_eq!(Predictions::new(&classes, &logits, false, None).likeliest(0), ("b", 0.5));
    }
}
