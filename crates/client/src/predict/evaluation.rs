//! The quality of predictions.

use crate::Result;
use crate::model::probabilities;
use hetal_extract_api::sanitize_terminal;
use hetal_learn::{Matrix, Measures};
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
    /// All measures, under the names that scikit-learn gives them.
    pub measures: Measures,
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
    /// The harmonic mean of both; `None` if it has no rows and none were predicted as it.
    pub f1: Option<f64>,
}

impl Evaluation {
    /// Compares the probabilities of each row with its label.
    pub fn new(logits: &Matrix, labels: &[usize], names: &[String]) -> Result<Self> {
        let measures = Measures::new(&probabilities(logits), labels)?;
        let confusion = measures.confusion_matrix.clone();
        let class = |(k, name): (usize, &String)| {
            let rows: usize = confusion[k].iter().sum();
            let predicted: usize = confusion.iter().map(|row| row[k]).sum();
            let defined = |scores: &[f64], count: usize| (count > 0).then(|| scores[k]);
            ClassEvaluation {
                name: name.clone(),
                rows,
                precision: defined(&measures.precision_score.per_class, predicted),
                recall: defined(&measures.recall_score.per_class, rows),
                f1: defined(&measures.f1_score.per_class, rows + predicted),
            }
        };
        let classes = names.iter().enumerate().map(class).collect();
        Ok(Self { accuracy: measures.accuracy_score, classes, confusion, measures })
    }

    /// Rounds what follows from the digits of probabilities, which would show the noise of a
    /// decryption.
    pub fn rounded(mut self, round: impl Fn(f64) -> f64) -> Self {
        self.measures = self.measures.rounded(round);
        self
    }

    /// The evaluation as text.
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.summary(), self.class_table(), self.confusion_table(), self.calibration_table())
    }

    /// The measures of all rows.
    fn summary(&self) -> String {
        let measures = &self.measures;
        let score = |score: Option<f64>| score.map_or_else(|| "-".to_owned(), |s| format!("{s:.4}"));
        let mut text = format!(
            "accuracy {:.2} %, balanced accuracy {:.2} %\n",
            100.0 * measures.accuracy_score,
            100.0 * measures.balanced_accuracy_score
        );
        if !measures.top_k_accuracy_score.is_empty() {
            let top =
                measures.top_k_accuracy_score.iter().map(|top| format!("top {} {:.2} %", top.k, 100.0 * top.score));
            text += &format!("class among the likeliest: {}\n", top.collect::<Vec<_>>().join(", "));
        }
        text + &format!(
            "F1 {:.4} (macro), {:.4} (weighted); log loss {:.3}, Brier score {:.3}\n\
             area under ROC {}, average precision {} (one class against the rest)\n",
            measures.f1_score.macro_mean,
            measures.f1_score.weighted_mean,
            measures.log_loss,
            measures.brier_score_loss,
            score(measures.roc_auc_score.score),
            score(measures.average_precision_score.score)
        )
    }

    /// The width of the column of class names.
    fn width(&self) -> usize {
        self.classes.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).clamp(13, 32)
    }

    fn class_table(&self) -> String {
        let width = self.width();
        let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        let line = |name: &str, rows: usize, shares: [Option<f64>; 3]| {
            let [precision, recall, f1] = shares.map(percent);
            format!("{name:width$}  {rows:>6} {precision:>10} {recall:>8} {f1:>8}\n")
        };
        let mut text = format!("{:width$}  {:>6} {:>10} {:>8} {:>8}\n", "class", "rows", "precision", "recall", "F1");
        for class in &self.classes {
            text += &line(&sanitize_terminal(&class.name), class.rows, [class.precision, class.recall, class.f1]);
        }
        let rows = self.classes.iter().map(|class| class.rows).sum();
        let scores = [&self.measures.precision_score, &self.measures.recall_score, &self.measures.f1_score];
        text += &line("macro mean", rows, scores.map(|scores| Some(scores.macro_mean)));
        text + &line("weighted mean", rows, scores.map(|scores| Some(scores.weighted_mean)))
    }

    fn confusion_table(&self) -> String {
        let width = self.width();
        let mut text = format!("{:width$}  predicted as (columns in the same order)\n", "class");
        for (class, row) in self.classes.iter().zip(&self.confusion) {
            let counts: String = row.iter().map(|n| format!("{n:>6}")).collect();
            text += &format!("{:width$}  {counts}\n", sanitize_terminal(&class.name));
        }
        text
    }

    fn calibration_table(&self) -> String {
        let width = self.width();
        let curve = &self.measures.calibration_curve;
        let mut text = format!("{:width$}  {:>6} {:>10}\n", "probability", "rows", "right");
        for ((predicted, rows), right) in curve.prob_pred.iter().zip(&curve.rows).zip(&curve.prob_true) {
            text += &format!("{predicted:<width$.2}  {rows:>6} {:>8.1} %\n", 100.0 * right);
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
        assert_eq!(evaluation.classes[2].f1, None);
        let text = evaluation.text();
        for words in ["accuracy 75.00 %, balanced accuracy 83.33 %", "top 2 100.00 %", "macro mean", "area under ROC -"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let json = serde_json::to_value(&evaluation).unwrap();
        assert_eq!(json["measures"]["accuracy_score"], 0.75);
        assert!(json["measures"]["roc_auc_score"]["score"].is_null(), "a class has no rows");
    }
}
