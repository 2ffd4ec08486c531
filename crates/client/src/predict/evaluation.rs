//! The quality of predictions.

use crate::Result;
use hetal_extract_api::sanitize_terminal;
use hetal_learn::{Matrix, judge};
use serde::Serialize;

/// Predictions compared with the true labels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Share of correct rows.
    pub accuracy: f64,
    /// The quality for each class.
    pub classes: Vec<ClassEvaluation>,
    /// The confusion matrix: `confusion[i][j]` counts rows of class `i` predicted as class `j`.
    pub confusion: Vec<Vec<usize>>,
}

/// The quality of predictions for one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassEvaluation {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: usize,
    /// Share of the rows predicted as this class that belong to it; `None` if there are none.
    pub precision: Option<f64>,
    /// Share of its rows that were predicted as this class; `None` if it has no rows.
    pub recall: Option<f64>,
}

impl Evaluation {
    /// Compares the largest logit of each row with its label.
    pub fn new(logits: &Matrix, labels: &[usize], names: &[String]) -> Result<Self> {
        let accuracy = judge::accuracy(logits, labels)?;
        let mut confusion = vec![vec![0; names.len()]; names.len()];
        for (i, &label) in labels.iter().enumerate() {
            confusion[label][judge::predicted(logits.row(i))] += 1;
        }
        let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
        let class = |(k, name): (usize, &String)| {
            let rows = confusion[k].iter().sum();
            let predicted = confusion.iter().map(|row| row[k]).sum();
            let right = confusion[k][k];
            ClassEvaluation { name: name.clone(), rows, precision: share(right, predicted), recall: share(right, rows) }
        };
        let classes = names.iter().enumerate().map(class).collect();
        Ok(Self { accuracy, classes, confusion })
    }

    /// The evaluation as text.
    pub fn text(&self) -> String {
        let width = self.classes.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).clamp(5, 32);
        let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        let mut text = format!(
            "accuracy {:.2} %\n\n{:width$}  {:>6} {:>10} {:>8}\n",
            100.0 * self.accuracy,
            "class",
            "rows",
            "precision",
            "recall"
        );
        for class in &self.classes {
            let (precision, recall) = (percent(class.precision), percent(class.recall));
            let name = sanitize_terminal(&class.name);
            text += &format!("{name:width$}  {:>6} {precision:>10} {recall:>8}\n", class.rows);
        }
        text += &format!("\n{:width$}  predicted as (columns in the same order)\n", "class");
        for (class, row) in self.classes.iter().zip(&self.confusion) {
            let counts: String = row.iter().map(|n| format!("{n:>6}")).collect();
            text += &format!("{:width$}  {counts}\n", sanitize_terminal(&class.name));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_right_wholes() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let logits = Matrix::new(4, 3, vec![2., 1., 0., 2., 1., 0., 0., 1., 0., 0., 3., 1.]).unwrap();
        let evaluation = Evaluation::new(&logits, &[0, 1, 1, 1], &names).unwrap();
        assert_eq!(evaluation.accuracy, 0.75);
        assert_eq!(evaluation.confusion, [[1, 0, 0], [1, 2, 0], [0, 0, 0]]);
        let shares: Vec<_> = evaluation.classes.iter().map(|c| (c.precision, c.recall)).collect();
        assert_eq!(shares, [(Some(0.5), Some(1.0)), (Some(1.0), Some(2.0 / 3.0)), (None, None)]);
        assert!(evaluation.text().contains("accuracy 75.00 %"));
    }
}
