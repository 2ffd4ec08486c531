//! Measures of predicted probabilities against true classes.
//!
//! They are those of scikit-learn, under its names and with its conventions: a precision or recall
//! without rows is 0, macro means are over the classes that occur in the labels or the predictions,
//! and scores of a ranking are those of each class against the rest. With two classes the
//! ranking scores and the Brier score are those of the second class, as in scikit-learn.

use crate::{Error, Matrix, Result, judge};
use serde::Serialize;

/// Bins of the calibration table.
const BINS: usize = 10;
/// The numbers of likeliest classes for which the accuracy is given, as far as there are more
/// classes.
const TOP: [usize; 3] = [2, 3, 5];

/// A score of each class and its means.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassScores {
    /// One for each class.
    pub per_class: Vec<f64>,
    /// The mean over the classes that occur in the labels or the predictions.
    pub macro_mean: f64,
    /// The mean weighted by the rows of each class.
    pub weighted_mean: f64,
}

/// How well a ranking finds each class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankingScores {
    /// One for each class, or `None` for a class that no row or every row has.
    pub per_class: Vec<Option<f64>>,
    /// The mean over all classes; with two classes the score of the second; `None` if the score of
    /// a class is undefined.
    pub score: Option<f64>,
}

/// Probabilities and how often they were right, in bins of the probability of the predicted class.
/// Empty bins are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// The share of right predictions in each bin.
    pub prob_true: Vec<f64>,
    /// The mean probability in each bin.
    pub prob_pred: Vec<f64>,
    /// The rows of each bin.
    pub rows: Vec<usize>,
}

/// The share of rows whose class is among the `k` likeliest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopAccuracy {
    /// The number of classes.
    pub k: usize,
    /// The share.
    pub score: f64,
}

/// All measures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measures {
    /// The share of right predictions.
    pub accuracy_score: f64,
    /// The mean recall of the classes that have rows.
    pub balanced_accuracy_score: f64,
    /// Of the rows predicted as a class, the share that have it.
    pub precision_score: ClassScores,
    /// Of the rows of a class, the share predicted as it.
    pub recall_score: ClassScores,
    /// The harmonic mean of precision and recall.
    pub f1_score: ClassScores,
    /// The mean negative logarithm of the probability of the true class.
    pub log_loss: f64,
    /// The area under the receiver operating characteristic.
    pub roc_auc_score: RankingScores,
    /// The mean precision over the recall.
    pub average_precision_score: RankingScores,
    /// The mean squared error of the probabilities.
    pub brier_score_loss: f64,
    /// Accuracies of several likeliest classes.
    pub top_k_accuracy_score: Vec<TopAccuracy>,
    /// Probabilities and how often they were right.
    pub calibration_curve: Calibration,
    /// `confusion_matrix[i][j]` counts rows of class `i` predicted as class `j`.
    pub confusion_matrix: Vec<Vec<usize>>,
}

impl Measures {
    /// Compares probabilities (rows x classes) with the true classes.
    pub fn new(probabilities: &Matrix, labels: &[usize]) -> Result<Self> {
        let classes = probabilities.columns();
        if probabilities.rows() == 0 {
            return Err(Error::NoRows);
        }
        if labels.len() != probabilities.rows() {
            return Err(Error::LabelCount { rows: probabilities.rows(), labels: labels.len() });
        }
        if let Some(row) = labels.iter().position(|&label| label >= classes) {
            return Err(Error::Label { row, label: labels[row], classes });
        }
        let predicted: Vec<usize> = (0..labels.len()).map(|i| judge::predicted(probabilities.row(i))).collect();
        let confusion = confusion(&predicted, labels, classes);
        let right = (0..classes).map(|k| confusion[k][k]).sum::<usize>();
        let [precision_score, recall_score, f1_score] = class_scores(&confusion);
        let ranking = |score: fn(&[(f64, bool)]) -> Option<f64>| ranking_scores(probabilities, labels, score);
        Ok(Self {
            accuracy_score: right as f64 / labels.len() as f64,
            balanced_accuracy_score: balanced_accuracy(&confusion),
            precision_score,
            recall_score,
            f1_score,
            log_loss: log_loss(probabilities, labels),
            roc_auc_score: ranking(roc_auc),
            average_precision_score: ranking(average_precision),
            brier_score_loss: brier(probabilities, labels),
            top_k_accuracy_score: top_accuracies(probabilities, labels),
            calibration_curve: calibration(probabilities, &predicted, labels),
            confusion_matrix: confusion,
        })
    }

    /// Rounds what follows from the digits of probabilities, not only from their order.
    pub fn rounded(mut self, round: impl Fn(f64) -> f64) -> Self {
        self.log_loss = round(self.log_loss);
        self.brier_score_loss = round(self.brier_score_loss);
        self.calibration_curve.prob_pred.iter_mut().for_each(|p| *p = round(*p));
        self
    }
}

fn confusion(predicted: &[usize], labels: &[usize], classes: usize) -> Vec<Vec<usize>> {
    let mut confusion = vec![vec![0; classes]; classes];
    predicted.iter().zip(labels).for_each(|(&predicted, &label)| confusion[label][predicted] += 1);
    confusion
}

/// A share, or 0 of nothing.
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Precision, recall and F1.
fn class_scores(confusion: &[Vec<usize>]) -> [ClassScores; 3] {
    let rows: Vec<usize> = confusion.iter().map(|row| row.iter().sum()).collect();
    let predicted: Vec<usize> = (0..rows.len()).map(|k| confusion.iter().map(|row| row[k]).sum()).collect();
    let scores = |score: &dyn Fn(usize) -> f64| {
        let per_class: Vec<f64> = (0..rows.len()).map(score).collect();
        let occurring = (0..rows.len()).filter(|&k| rows[k] + predicted[k] > 0);
        let (sum, count) = occurring.fold((0.0, 0), |(sum, count), k| (sum + per_class[k], count + 1));
        let weighted: f64 = per_class.iter().zip(&rows).map(|(score, &rows)| score * rows as f64).sum();
        let all: usize = rows.iter().sum();
        let (macro_mean, weighted_mean) = (sum / f64::from(count.max(1)), weighted / all.max(1) as f64);
        ClassScores { per_class, macro_mean, weighted_mean }
    };
    [
        scores(&|k| share(confusion[k][k], predicted[k])),
        scores(&|k| share(confusion[k][k], rows[k])),
        scores(&|k| share(2 * confusion[k][k], rows[k] + predicted[k])),
    ]
}

fn balanced_accuracy(confusion: &[Vec<usize>]) -> f64 {
    let rows = confusion.iter().map(|row| row.iter().sum::<usize>()).enumerate().filter(|(_, rows)| *rows > 0);
    let recalls: Vec<f64> = rows.map(|(k, rows)| share(confusion[k][k], rows)).collect();
    recalls.iter().sum::<f64>() / recalls.len().max(1) as f64
}

fn log_loss(probabilities: &Matrix, labels: &[usize]) -> f64 {
    let loss =
        |(i, &label): (usize, &usize)| -libm::log(probabilities[(i, label)].clamp(f64::EPSILON, 1.0 - f64::EPSILON));
    labels.iter().enumerate().map(loss).sum::<f64>() / labels.len() as f64
}

fn brier(probabilities: &Matrix, labels: &[usize]) -> f64 {
    let error = |(i, &label): (usize, &usize)| {
        let square = |(k, p): (usize, &f64)| (p - f64::from(u8::from(k == label))).powi(2);
        probabilities.row(i).iter().enumerate().map(square).sum::<f64>()
    };
    let mean = labels.iter().enumerate().map(error).sum::<f64>() / labels.len() as f64;
    // Of two classes, both have the same error.
    if probabilities.columns() == 2 { mean / 2.0 } else { mean }
}

/// The scores of each class against the rest.
fn ranking_scores(probabilities: &Matrix, labels: &[usize], score: fn(&[(f64, bool)]) -> Option<f64>) -> RankingScores {
    let of_class = |class: usize| score(&ranked(probabilities, labels, class));
    let per_class: Vec<Option<f64>> = (0..probabilities.columns()).map(of_class).collect();
    let score = match &per_class[..] {
        [_, second] => *second,
        all => all.iter().copied().sum::<Option<f64>>().map(|sum| sum / all.len() as f64),
    };
    RankingScores { per_class, score }
}

/// The probabilities of a class and whether rows have it, the likeliest first.
fn ranked(probabilities: &Matrix, labels: &[usize], class: usize) -> Vec<(f64, bool)> {
    let mut rows: Vec<(f64, bool)> =
        labels.iter().enumerate().map(|(i, &label)| (probabilities[(i, class)], label == class)).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows
}

/// Groups of equal probabilities, the likeliest first: positives and negatives so far.
fn thresholds(rows: &[(f64, bool)]) -> Vec<(usize, usize)> {
    let mut counts = Vec::new();
    let (mut positives, mut negatives) = (0, 0);
    for (k, &(score, is_positive)) in rows.iter().enumerate() {
        if is_positive {
            positives += 1
        } else {
            negatives += 1
        }
        if rows.get(k + 1).is_none_or(|next| next.0 != score) {
            counts.push((positives, negatives));
        }
    }
    counts
}

/// The receiver operating characteristic of a class against the rest, from (0, 0) to (1, 1): false
/// positive rates and true positive rates. Points on a line between their neighbours are left out.
/// `None` if no row or every row has the class.
pub fn roc_curve(probabilities: &Matrix, labels: &[usize], class: usize) -> Option<Vec<(f64, f64)>> {
    let counts = thresholds(&ranked(probabilities, labels, class));
    let &(positives, negatives) = counts.last()?;
    if positives == 0 || negatives == 0 {
        return None;
    }
    let mut corners = vec![(0usize, 0usize)];
    for (k, &(up, right)) in counts.iter().enumerate() {
        let (from, next) = (corners[corners.len() - 1], counts.get(k + 1));
        let turns = next.is_none_or(|next| (up - from.0) * (next.1 - right) != (right - from.1) * (next.0 - up));
        if turns {
            corners.push((up, right));
        }
    }
    Some(corners.into_iter().map(|(up, right)| (share(right, negatives), share(up, positives))).collect())
}

/// The area under the receiver operating characteristic, by trapezoids.
fn roc_auc(rows: &[(f64, bool)]) -> Option<f64> {
    let counts = thresholds(rows);
    let &(positives, negatives) = counts.last()?;
    if positives == 0 || negatives == 0 {
        return None;
    }
    let (mut area, mut before) = (0.0, (0, 0));
    for &(up, right) in &counts {
        area += (right - before.1) as f64 * (up + before.0) as f64 / 2.0;
        before = (up, right);
    }
    Some(area / (positives as f64 * negatives as f64))
}

/// The sum over thresholds of the precision times the gain of recall.
fn average_precision(rows: &[(f64, bool)]) -> Option<f64> {
    let counts = thresholds(rows);
    let &(positives, negatives) = counts.last()?;
    if positives == 0 || negatives == 0 {
        return None;
    }
    let (mut sum, mut before) = (0.0, 0);
    for &(up, right) in &counts {
        sum += (up - before) as f64 / positives as f64 * share(up, up + right);
        before = up;
    }
    Some(sum)
}

fn top_accuracies(probabilities: &Matrix, labels: &[usize]) -> Vec<TopAccuracy> {
    let rank = |i: usize| {
        let (row, label) = (probabilities.row(i), labels[i]);
        row.iter().enumerate().filter(|&(k, &p)| p > row[label] || p == row[label] && k > label).count()
    };
    let ranks: Vec<usize> = (0..labels.len()).map(rank).collect();
    let accuracy = |k: usize| TopAccuracy { k, score: share(ranks.iter().filter(|&&r| r < k).count(), labels.len()) };
    TOP.into_iter().filter(|&k| k < probabilities.columns()).map(accuracy).collect()
}

fn calibration(probabilities: &Matrix, predicted: &[usize], labels: &[usize]) -> Calibration {
    let mut bins = [(0usize, 0usize, 0.0f64); BINS];
    for (i, (&class, &label)) in predicted.iter().zip(labels).enumerate() {
        let p = probabilities[(i, class)];
        // A probability on an edge belongs to the bin below.
        let bin = (1..BINS).filter(|&edge| edge as f64 * 0.1 < p).count();
        let (rows, right, sum) = &mut bins[bin];
        *rows += 1;
        *right += usize::from(class == label);
        *sum += p;
    }
    let filled = || bins.iter().filter(|(rows, ..)| *rows > 0);
    Calibration {
        prob_true: filled().map(|&(rows, right, _)| share(right, rows)).collect(),
        prob_pred: filled().map(|&(rows, _, sum)| sum / rows as f64).collect(),
        rows: filled().map(|&(rows, ..)| rows).collect(),
    }
}
