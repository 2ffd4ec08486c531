//! The quality of a classifier on its validation rows, as reports show it.

use crate::Result;
use crate::model::probabilities;
use crate::training::shown_loss;
use hetal_learn::measures::roc_curve;
use hetal_learn::{Matrix, Measures};
use hetal_report as report;

/// A page has at most this many ROC curves, those with the smallest area: more are not told apart.
const MOST_CURVES: usize = 12;
/// A curve has at most this many points.
const MOST_POINTS: usize = 100;

/// Measures of logits against the true classes. What follows from digits, and not only from their
/// order, is rounded.
pub fn of(logits: &Matrix, labels: &[usize]) -> Result<report::MeasureRecord> {
    let probabilities = probabilities(logits);
    let measures = Measures::new(&probabilities, labels)?.rounded(shown_loss);
    let matrix = &measures.confusion_matrix;
    let rows: Vec<usize> = matrix.iter().map(|row| row.iter().sum()).collect();
    let predicted = |k: usize| matrix.iter().map(|row| row[k]).sum::<usize>();
    let class = |k: usize| report::ClassMeasures {
        rows: rows[k],
        precision: (predicted(k) > 0).then(|| measures.precision_score.per_class[k]),
        recall: (rows[k] > 0).then(|| measures.recall_score.per_class[k]),
        f1: (rows[k] + predicted(k) > 0).then(|| measures.f1_score.per_class[k]),
        roc_auc: measures.roc_auc_score.per_class[k],
    };
    let curve = &measures.calibration_curve;
    let bin = |k: usize| report::CalibrationBin {
        predicted: curve.prob_pred[k],
        right: curve.prob_true[k],
        rows: curve.rows[k],
    };
    let largest = rows.iter().copied().max().unwrap_or(0);
    Ok(report::MeasureRecord {
        accuracy_score: measures.accuracy_score,
        balanced_accuracy_score: measures.balanced_accuracy_score,
        f1_macro: measures.f1_score.macro_mean,
        f1_weighted: measures.f1_score.weighted_mean,
        log_loss: measures.log_loss,
        brier_score_loss: measures.brier_score_loss,
        roc_auc_score: measures.roc_auc_score.score,
        average_precision_score: measures.average_precision_score.score,
        largest_class_share: largest as f64 / labels.len() as f64,
        per_class: (0..rows.len()).map(class).collect(),
        roc_curves: curves(&probabilities, labels, &measures.roc_auc_score.per_class),
        calibration_curve: (0..curve.rows.len()).map(bin).collect(),
        confusion_matrix: measures.confusion_matrix,
    })
}

/// The curves of the classes that are hardest to find. Two classes have one curve, that of the
/// second.
fn curves(probabilities: &Matrix, labels: &[usize], areas: &[Option<f64>]) -> Vec<report::RocCurve> {
    let mut classes: Vec<(usize, f64)> = areas.iter().enumerate().filter_map(|(k, area)| Some((k, (*area)?))).collect();
    if areas.len() == 2 {
        classes.retain(|(class, _)| *class == 1);
    }
    classes.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    classes.truncate(MOST_CURVES);
    classes.sort_by_key(|(class, _)| *class);
    let curve = |(class, _): (usize, f64)| {
        let points = thinned(&roc_curve(probabilities, labels, class)?);
        Some(report::RocCurve { class, points })
    };
    classes.into_iter().filter_map(curve).collect()
}

/// Some points of a curve, its ends among them.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let last = points.len() - 1;
    (0..MOST_POINTS).map(|k| points[k * last / (MOST_POINTS - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_short_and_complete() {
        let rows = 5000;
        let value = |i: usize| libm::sin(i as f64 * 1.7) * 2.0;
        let logits = Matrix::from_fn(rows, 3, |i, k| [value(i), value(i + 7), value(i + 13)][k]);
        let labels: Vec<usize> = (0..rows).map(|i| (i * 7 + i / 3) % 3).collect();
        let measures = of(&logits, &labels).unwrap();
        assert_eq!(measures.roc_curves.len(), 3);
        for curve in &measures.roc_curves {
            assert!(curve.points.len() <= MOST_POINTS);
            assert_eq!((curve.points[0], curve.points[curve.points.len() - 1]), ((0.0, 0.0), (1.0, 1.0)));
            assert!(curve.points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        }
        assert_eq!(measures.confusion_matrix.iter().flatten().sum::<usize>(), rows);
        let in_thousandths = |x: f64| (x * 1000.0 - (x * 1000.0).round()).abs() < 1e-9;
        assert!(in_thousandths(measures.log_loss) && in_thousandths(measures.brier_score_loss));
        assert!(measures.calibration_curve.iter().all(|bin| in_thousandths(bin.predicted)));
    }

    #[test]
    fn two_classes_have_one_curve() {
        let logits = Matrix::new(4, 2, vec![2., -2., 1., -1., -1., 1., 0.5, -0.5]).unwrap();
        let measures = of(&logits, &[0, 0, 1, 1]).unwrap();
        assert_eq!(measures.roc_curves.iter().map(|curve| curve.class).collect::<Vec<_>>(), [1]);
        assert_eq!(measures.roc_curves[0].points, [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]);
        assert_eq!(measures.largest_class_share, 0.5);
    }
}
