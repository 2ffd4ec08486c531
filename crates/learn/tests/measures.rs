//! Measures are those of scikit-learn. `crates/experiments/scripts/measures.py` makes the values.
#![allow(clippy::unwrap_used)]

use hetal_learn::{Error, Matrix, Measures};
use serde_json::Value;

/// Every number that scikit-learn gives is among the measures, to 1e-9.
fn same(path: &str, expected: &Value, found: &Value) {
    match expected {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| same(&format!("{path}.{name}"), value, &found[name]))
        }
        Value::Array(values) => {
            assert_eq!(values.len(), found.as_array().map_or(0, Vec::len), "{path}: {found}");
            values.iter().enumerate().for_each(|(k, value)| same(&format!("{path}[{k}]"), value, &found[k]));
        }
        Value::Number(number) => {
            let (expected, found) = (number.as_f64().unwrap(), found.as_f64().unwrap_or(f64::NAN));
            assert!((expected - found).abs() <= 1e-9, "{path}: {found} instead of {expected}");
        }
        other => assert_eq!(other, found, "{path}"),
    }
}

#[test]
fn measures_are_those_of_scikit_learn() {
    let stored: Value = serde_json::from_str(include_str!("measures/cases.json")).unwrap();
    let cases = stored["cases"].as_array().unwrap();
    assert!(cases.len() >= 6);
    for (k, case) in cases.iter().enumerate() {
        let rows: Vec<Vec<f64>> = serde_json::from_value(case["probabilities"].clone()).unwrap();
        let labels: Vec<usize> = serde_json::from_value(case["labels"].clone()).unwrap();
        let probabilities = Matrix::new(rows.len(), rows[0].len(), rows.concat()).unwrap();
        let measures = Measures::new(&probabilities, &labels).unwrap();
        same(&format!("case {k}"), &case["measures"], &serde_json::to_value(&measures).unwrap());
        assert_eq!(measures.calibration_curve.rows.iter().sum::<usize>(), labels.len());
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let rows = Matrix::new(2, 2, vec![0.5; 4]).unwrap();
    assert_eq!(Measures::new(&rows, &[0]), Err(Error::LabelCount { rows: 2, labels: 1 }));
    assert_eq!(Measures::new(&rows, &[0, 2]), Err(Error::Label { row: 1, label: 2, classes: 2 }));
    assert_eq!(Measures::new(&Matrix::zeros(0, 2), &[]), Err(Error::NoRows));
}

/// What follows from the digits of probabilities is rounded; what follows from their order is not.
#[test]
fn digits_of_probabilities_are_rounded() {
    let rows = Matrix::new(3, 2, vec![0.123_456, 0.876_544, 0.7, 0.3, 0.4, 0.6]).unwrap();
    let exact = Measures::new(&rows, &[1, 0, 0]).unwrap();
    let rounded = exact.clone().rounded(|x| (1000.0 * x).round() / 1000.0);
    assert_ne!(exact.log_loss, rounded.log_loss);
    for value in [rounded.log_loss, rounded.brier_score_loss].iter().chain(&rounded.calibration_curve.prob_pred) {
        assert!((1000.0 * value - (1000.0 * value).round()).abs() < 1e-9, "{value}");
    }
    assert_eq!(exact.accuracy_score, rounded.accuracy_score);
    assert_eq!(exact.roc_auc_score, rounded.roc_auc_score);
}
