//! Weights of rows and classes.

use super::data::print_note;
use super::table::TableArguments;
use crate::{Error, Result};
use hetal_client::data::{ClassWeight, tables};
use hetal_client::{Labelled, TrainingData};
use hetal_extract_api::sanitize_terminal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const HEADING: &str = "Weights (default: all rows count the same)";
/// A file of class weights is small.
const MOST_BYTES: u64 = 1 << 20;
/// The most weights of classes that are shown.
const MOST_SHOWN: usize = 16;

/// Weights of rows and classes, as in scikit-learn. The server learns whether rows have different
/// weights, and nothing else about them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WeightArguments {
    /// Weights of classes: the word balanced, for weights that make all classes count the same, or
    /// a JSON file like {"cat": 2.5, "dog": 1}. Classes that the file does not name have weight 1.
    #[arg(long, value_name = "balanced|FILE", help_heading = HEADING)]
    pub class_weight: Option<String>,
    /// The column (by name, or by number; the first is 1) or the array (.npz, .safetensors) of the
    /// feature file that contains the weights of rows. It is not a feature.
    #[arg(long, value_name = "NAME", conflicts_with = "sample_weight", help_heading = HEADING)]
    pub weight_column: Option<String>,
    /// Weights of the training rows in a file of their own, one number for each row (FILE#NAME
    /// selects an array or column).
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub sample_weight: Option<String>,
    /// Weights of the validation rows in a file of their own.
    #[arg(long, value_name = "FILE", requires = "validation", help_heading = HEADING)]
    pub validation_sample_weight: Option<String>,
}

/// What was chosen, for the report on the rows.
#[derive(Clone, Debug, Default)]
pub struct ChosenWeights {
    /// Where the weights of training rows come from.
    rows: Option<String>,
    /// How the weights of classes were chosen, and the weights.
    classes: Option<(String, Vec<(String, f64)>)>,
    /// Whether training rows have different weights.
    weighted: bool,
}

impl WeightArguments {
    /// Adds the weights to the rows.
    pub fn apply(
        &self,
        training: &mut Labelled,
        mut validation: Option<&mut Labelled>,
        table: &TableArguments,
    ) -> Result<ChosenWeights> {
        let read = |text: &str| -> Result<Vec<f64>> {
            let (path, name) = tables::split_name(text);
            let read = tables::read_weights(&path, name.as_deref(), &table.label_options());
            let (weights, notes) = read.map_err(hetal_client::Error::from)?;
            notes.iter().for_each(|note| print_note(&path.display().to_string(), note));
            Ok(weights)
        };
        if let Some(file) = &self.sample_weight {
            training.weights = Some(read(file)?);
        }
        if let (Some(file), Some(rows)) = (&self.validation_sample_weight, &mut validation) {
            rows.weights = Some(read(file)?);
        }
        let column = self.weight_column.as_ref().map(|name| format!("column {name}"));
        let rows = column.or_else(|| self.sample_weight.clone());
        let classes = self.class_weight.as_deref().map(|text| {
            let weights = class_weight(text)?.apply(training, validation);
            Ok::<_, Error>((text.to_owned(), weights.map_err(|e| training.fault(e))?))
        });
        Ok(ChosenWeights { rows, classes: classes.transpose()?, weighted: false })
    }
}

impl ChosenWeights {
    /// The choice for these rows.
    pub fn of(self, data: &TrainingData) -> Self {
        Self { weighted: data.is_weighted(), ..self }
    }

    /// The choice as text: nothing if nothing was chosen.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(rows) = &self.rows {
            text += &format!("weights of rows: {}\n", sanitize_terminal(rows));
        }
        if let Some((how, classes)) = &self.classes {
            let shown: Vec<String> =
                classes.iter().take(MOST_SHOWN).map(|(class, weight)| format!("{class} {weight:.4}")).collect();
            let more = match classes.len().saturating_sub(MOST_SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            text += &format!("weights of classes ({}): {}{more}\n", sanitize_terminal(how), {
                sanitize_terminal(&shown.join(", "))
            });
        }
        if !text.is_empty() && !self.weighted {
            text += "all training rows have the same weight: the training is that without weights\n";
        }
        text
    }

    /// The choice as JSON.
    pub fn value(&self) -> Value {
        let classes = self.classes.as_ref().map(|(_, classes)| classes.iter().cloned().collect::<BTreeMap<_, _>>());
        json!({
            "rows": self.rows,
            "class_weight": self.classes.as_ref().map(|(how, _)| how),
            "classes": classes,
            "weighted": self.weighted,
        })
    }
}

/// The weights of classes that an argument names.
fn class_weight(text: &str) -> Result<ClassWeight> {
    match text {
        "balanced" => Ok(ClassWeight::Balanced),
        file => read_class_weights(Path::new(file)),
    }
}

fn read_class_weights(path: &Path) -> Result<ClassWeight> {
    let bad = |reason: String| Error::File { path: path.display().to_string(), reason };
    let metadata = std::fs::metadata(path)
        .map_err(|e| bad(format!("{e}: give the word balanced, or a JSON file with the weights of classes")))?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(bad("not a small file: weights of classes are a JSON object like {\"cat\": 2.5}".to_owned()));
    }
    let bytes = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
    ClassWeight::from_json(&bytes).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn class_weights_are_the_word_or_a_file() {
        assert_eq!(class_weight("balanced").unwrap(), ClassWeight::Balanced);
        let folder = TempDir::new();
        let path = folder.path().join("weights.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            class_weight(path.to_str().unwrap()).map_err(|e| e.to_string())
        };
        let expected = [("cat".to_owned(), 2.5), ("dog".to_owned(), 1.0)].into();
        assert_eq!(read(r#"{"cat": 2.5, "dog": 1}"#).unwrap(), ClassWeight::ByClass(expected));
        let refused = read("[1, 2]").unwrap_err();
        assert!(refused.contains("weights.json") && refused.contains("JSON object"), "{refused}");
        let refused = class_weight("Balanced").unwrap_err().to_string();
        assert!(refused.contains("give the word balanced"), "{refused}");
    }
}
