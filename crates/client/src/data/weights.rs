//! Weights of rows and classes, with scikit-learn's meaning: the loss of a row counts as often as
//! its weight says.
//!
//! ```text
//! weights of rows ──┐
//! weights of classes ──> Labelled::weights ──> RowWeights: mean 1 over the training rows
//! ```

use super::{Labelled, Labels};
use hetal_learn::packing::MAX_ROW_WEIGHT;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;

/// What is wrong with weights.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// A weight is negative or not a number.
    #[error("row {row}: its weight is {value}, but a weight is a number that is 0 or more: correct it")]
    Row {
        /// The row, counted from 1.
        row: usize,
        /// The weight.
        value: f64,
    },
    /// There are more or fewer weights than rows.
    #[error("there are {weights} weights for {rows} rows: give one weight for each row")]
    Count {
        /// Weights.
        weights: usize,
        /// Rows.
        rows: usize,
    },
    /// All rows have weight 0.
    #[error("all {rows} rows have weight 0, so none of them counts: give some of them a weight")]
    AllZero {
        /// What the rows are for: training or validation.
        rows: &'static str,
    },
    /// A weight is too large beside the others.
    #[error(
        "row {row}: its weight is {ratio:.0} times the mean of the training rows, and at most {MAX_ROW_WEIGHT:.0} times \
         is possible: give it less weight"
    )]
    TooLarge {
        /// The row, counted from 1.
        row: usize,
        /// The weight, relative to the mean.
        ratio: f64,
    },
    /// The weight of a class is negative or not a number.
    #[error("class {class:?}: its weight is {value}, but a weight is a number that is 0 or more: correct it")]
    Class {
        /// The class.
        class: String,
        /// The weight.
        value: f64,
    },
    /// A weight is given for a class that no training row has.
    #[error("class {class:?} has a weight, but no training row has this label; the labels are {known}: correct it")]
    UnknownClass {
        /// The class.
        class: String,
        /// The classes.
        known: String,
    },
    /// A class has two weights.
    #[error("class {class:?} has two weights: leave one of them out")]
    Twice {
        /// The class.
        class: String,
    },
    /// A text is not the weights of classes.
    #[error("{reason}: weights of classes are a JSON object like {{\"cat\": 2.5, \"dog\": 1}}")]
    Json {
        /// What is wrong with it.
        reason: String,
    },
    /// A prior cannot be subtracted.
    #[error("a share of {share} of the prior cannot be subtracted: give a number from 0 to 1")]
    PriorShare {
        /// The share.
        share: f64,
    },
    /// A class has no prior.
    #[error("class {class:?} has no prior, because all its training rows have weight 0: leave out --prior")]
    NoPrior {
        /// The class.
        class: String,
    },
    /// A class cannot be balanced.
    #[error("class {class:?} cannot be balanced, because all its rows have weight 0: leave it out, or give it weight")]
    EmptyClass {
        /// The class.
        class: String,
    },
}

/// The weights of classes.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeight {
    /// Every class counts the same in all: a class of few rows gets a large weight, as with
    /// scikit-learn's `balanced`.
    Balanced,
    /// A weight by class. Classes that are not named have weight 1.
    ByClass(BTreeMap<String, f64>),
}

impl ClassWeight {
    /// Parses a JSON object of class names and weights.
    ///
    /// # Errors
    ///
    /// Fails if it is something else, and for a class that is named twice.
    pub fn from_json(bytes: &[u8]) -> Result<Self, WeightError> {
        let Pairs(pairs) = serde_json::from_slice(bytes).map_err(|e| WeightError::Json { reason: e.to_string() })?;
        let mut weights = BTreeMap::new();
        for (class, weight) in pairs {
            if weights.insert(class.clone(), weight).is_some() {
                return Err(WeightError::Twice { class });
            }
        }
        Ok(Self::ByClass(weights))
    }

    /// The weight of each class of the training rows, in the order of the classes.
    ///
    /// # Errors
    ///
    /// Fails for a weight that is not a number of at least 0, for a class that no row has, and for
    /// a class to be balanced whose rows have no weight.
    pub fn by_class(&self, training: &Labelled) -> Result<Vec<(String, f64)>, WeightError> {
        let classes = training.labels.classes();
        match self {
            Self::Balanced => balanced(training, classes),
            Self::ByClass(weights) => given(weights, classes),
        }
    }

    /// Multiplies the weights of training and validation rows by those of their classes, which it
    /// returns. Balanced weights follow from all training rows, before validation rows are set
    /// aside.
    ///
    /// # Errors
    ///
    /// Fails as [`ClassWeight::by_class`] does.
    pub fn apply(
        &self,
        training: &mut Labelled,
        validation: Option<&mut Labelled>,
    ) -> Result<Vec<(String, f64)>, WeightError> {
        let weights = self.by_class(training)?;
        for rows in std::iter::once(training).chain(validation) {
            multiply(rows, &weights);
        }
        Ok(weights)
    }
}

/// The entries of a JSON object, repeated names included.
struct Pairs(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Pairs;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of class names and weights")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// `all / (classes * of the class)`, counted by the weights of rows.
fn balanced(training: &Labelled, classes: Vec<String>) -> Result<Vec<(String, f64)>, WeightError> {
    let rows = raw_weights(training)?;
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    // Relative to the largest weight, so that sums stay finite.
    let largest = rows.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    for (label, weight) in training.labels.texts().into_iter().zip(&rows) {
        *sums.entry(label).or_default() += weight / largest;
    }
    let share = sums.values().sum::<f64>() / classes.len().max(1) as f64;
    let weight = |class: String| match sums.get(&class) {
        Some(&sum) if sum > 0.0 => Ok((class, share / sum)),
        _ => Err(WeightError::EmptyClass { class }),
    };
    classes.into_iter().map(weight).collect()
}

fn given(weights: &BTreeMap<String, f64>, classes: Vec<String>) -> Result<Vec<(String, f64)>, WeightError> {
    if let Some((class, &value)) = weights.iter().find(|(_, weight)| !is_weight(**weight)) {
        return Err(WeightError::Class { class: class.clone(), value });
    }
    if let Some(class) = weights.keys().find(|class| !classes.contains(class)) {
        return Err(WeightError::UnknownClass { class: class.clone(), known: classes.join(", ") });
    }
    Ok(classes.into_iter().map(|class| (class.clone(), weights.get(&class).copied().unwrap_or(1.0))).collect())
}

/// Multiplies the weights of rows by those of their classes. Rows of unknown classes are refused
/// later.
fn multiply(rows: &mut Labelled, classes: &[(String, f64)]) {
    let of_class: BTreeMap<&str, f64> = classes.iter().map(|(class, weight)| (class.as_str(), *weight)).collect();
    let texts = Labels::texts(&rows.labels);
    let mut weights = rows.weights.take().unwrap_or_else(|| vec![1.0; texts.len()]);
    for (weight, label) in weights.iter_mut().zip(&texts) {
        *weight *= of_class.get(label.as_str()).copied().unwrap_or(1.0);
    }
    rows.weights = Some(weights);
}

fn is_weight(value: f64) -> bool {
    value >= 0.0 && value.is_finite()
}

/// The weights of rows as they were given, or 1.
fn raw_weights(rows: &Labelled) -> Result<Vec<f64>, WeightError> {
    let count = rows.labels.len();
    let Some(weights) = &rows.weights else { return Ok(vec![1.0; count]) };
    if weights.len() != count {
        return Err(WeightError::Count { weights: weights.len(), rows: count });
    }
    match weights.iter().position(|&weight| !is_weight(weight)) {
        Some(row) => Err(WeightError::Row { row: row + 1, value: weights[row] }),
        None => Ok(weights.clone()),
    }
}

/// The weights of training rows: scaled to the mean 1, or `None` if all are the same.
pub(super) fn of_training(rows: &Labelled, chosen: &[usize]) -> Result<Option<Vec<f64>>, WeightError> {
    let weights = of_validation(rows, chosen, "training")?;
    let Some(weights) = weights else { return Ok(None) };
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let scaled: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    match scaled.iter().position(|&weight| weight > MAX_ROW_WEIGHT) {
        Some(k) => Err(WeightError::TooLarge { row: chosen[k] + 1, ratio: scaled[k] }),
        None => Ok(Some(scaled)),
    }
}

/// The weights of some rows, relative to the largest, or `None` if all are the same.
pub(super) fn of_validation(
    rows: &Labelled,
    chosen: &[usize],
    what: &'static str,
) -> Result<Option<Vec<f64>>, WeightError> {
    let all = raw_weights(rows)?;
    let weights: Vec<f64> = chosen.iter().map(|&row| all[row]).collect();
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return Err(WeightError::AllZero { rows: what });
    }
    // A share of the largest is finite, however large or small the weights are.
    Ok((!weights.iter().all(|&weight| weight == largest)).then(|| weights.iter().map(|w| w / largest).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainingData;
    use crate::data::Preparation;
    use hetal_learn::Matrix;

    fn rows(labels: &[i64], weights: Option<Vec<f64>>) -> Labelled {
        let features = Matrix::from_fn(labels.len(), 3, |i, j| ((i * i) % 9973 + j) as f64);
        let labels = Labels::Integers(labels.to_vec());
        Labelled { features, labels, file: String::new(), columns: None, weights }
    }

    /// The weights of scikit-learn 1.7: `compute_class_weight("balanced", classes=[0, 1, 2], y=y,
    /// sample_weight=s)` for these rows.
    #[test]
    fn balanced_weights_are_those_of_scikit_learn() {
        let labels = [0, 0, 0, 0, 0, 1, 1, 2, 2, 2];
        let weights = |given: Option<Vec<f64>>| {
            let weights = ClassWeight::Balanced.by_class(&rows(&labels, given)).unwrap();
            weights.into_iter().map(|(_, weight)| weight).collect::<Vec<_>>()
        };
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        let plain = weights(None);
        assert!(near(&plain, &[10.0 / 15.0, 10.0 / 6.0, 10.0 / 9.0]), "{plain:?}");
        // A row of weight 2 counts like two rows.
        let weighted = weights(Some(vec![1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0, 0.0]));
        assert!(near(&weighted, &[12.0 / 15.0, 12.0 / 15.0, 12.0 / 6.0]), "{weighted:?}");
        let lost = ClassWeight::Balanced.by_class(&rows(&[0, 1, 1], Some(vec![0.0, 1.0, 1.0]))).unwrap_err();
        assert_eq!(lost, WeightError::EmptyClass { class: "0".to_owned() });
    }

    #[test]
    fn weights_of_classes_are_read() {
        let expected = [("cat".to_owned(), 2.5), ("dog".to_owned(), 1.0)].into();
        assert_eq!(ClassWeight::from_json(br#"{"cat": 2.5, "dog": 1}"#), Ok(ClassWeight::ByClass(expected)));
        for (text, said) in [
            (r#"{"cat": 1, "cat": 2}"#, "two weights"),
            (r#"{"cat": "1"}"#, "JSON object"),
            ("[1, 2]", "an object of class names"),
            ("", "JSON object"),
        ] {
            let refused = ClassWeight::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }

    #[test]
    fn given_weights_of_classes_are_checked() {
        let given = |pairs: &[(&str, f64)]| {
            ClassWeight::ByClass(pairs.iter().map(|&(class, weight)| (class.to_owned(), weight)).collect())
        };
        let training = rows(&[0, 1, 2], None);
        let weights = given(&[("0", 2.5), ("2", 0.0)]).by_class(&training).unwrap();
        assert_eq!(weights, [("0", 2.5), ("1", 1.0), ("2", 0.0)].map(|(class, w)| (class.to_owned(), w)));
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            let refused = given(&[("1", bad)]).by_class(&training).unwrap_err();
            assert!(refused.to_string().starts_with("class \"1\": its weight is"), "{refused}");
        }
        let refused = given(&[("7", 1.0)]).by_class(&training).unwrap_err().to_string();
        assert!(refused.contains("\"7\"") && refused.contains("0, 1, 2"), "{refused}");
    }

    /// Weights of classes and rows are multiplied, follow their rows through split and shuffle, and
    /// have the mean 1 over the training rows.
    #[test]
    fn weights_follow_their_rows() {
        let labels: Vec<i64> = (0..40).map(|k| i64::from(k % 4 == 0)).collect();
        let own: Vec<f64> = (0..40).map(|k| 1.0 + f64::from(k)).collect();
        let mut training = rows(&labels, Some(own.clone()));
        let doubled = ClassWeight::ByClass([("1".to_owned(), 2.0)].into());
        doubled.apply(&mut training, None).unwrap();
        // Standardised rows may be shortened, and then look alike.
        let unscaled = Preparation { scaling: Some(hetal_learn::Scaling::None), ..Preparation::default() };
        let data = TrainingData::new(&training, None, &unscaled).unwrap();
        let (weights, validation) = (data.row_weights.clone().unwrap(), data.validation_weights.clone().unwrap());
        assert_eq!((weights.len(), validation.len()), (data.training.rows(), data.validation.rows()));
        assert!((weights.iter().sum::<f64>() / weights.len() as f64 - 1.0).abs() < 1e-12);
        // Every row is found among those of the file, however they were shuffled and split.
        let all = data.normalisation.training_rows(training.features.clone()).unwrap().features;
        let number = |set: &hetal_learn::LabelledMatrix, i: usize| {
            (0..all.rows()).find(|&row| all.row(row) == set.features().row(i)).unwrap()
        };
        let expected = |row: usize| own[row] * if row.is_multiple_of(4) { 2.0 } else { 1.0 };
        for (set, weights) in [(&data.training, &weights), (&data.validation, &validation)] {
            let (first, scale) = (number(set, 0), weights[0]);
            for (i, weight) in weights.iter().enumerate() {
                let ratio = expected(number(set, i)) / expected(first);
                assert!((weight / scale - ratio).abs() < 1e-9, "row {}", number(set, i));
            }
        }
        let plain = TrainingData::new(&rows(&labels, None), None, &unscaled).unwrap();
        assert_ne!(data.fingerprint(), plain.fingerprint());
    }

    /// Equal weights are no weights: nothing is sent that would not be sent without them.
    #[test]
    fn equal_weights_are_none() {
        let labels: Vec<i64> = (0..24).map(|k| k % 2).collect();
        let plain = TrainingData::new(&rows(&labels, None), None, &Preparation::default()).unwrap();
        let mut balanced = rows(&labels, Some(vec![0.3; 24]));
        ClassWeight::Balanced.apply(&mut balanced, None).unwrap();
        let equal = TrainingData::new(&balanced, None, &Preparation::default()).unwrap();
        assert!(!equal.is_weighted() && equal.validation_weights.is_none());
        assert_eq!(equal.fingerprint(), plain.fingerprint());
    }

    #[test]
    fn wrong_weights_are_refused() {
        let labels: Vec<i64> = (0..24).map(|k| k % 2).collect();
        let refused = |weights: Vec<f64>| {
            TrainingData::new(
                &Labelled { file: "rows.csv".to_owned(), ..rows(&labels, Some(weights)) },
                None,
                &Preparation::default(),
            )
            .unwrap_err()
            .to_string()
        };
        let changed = |row: usize, value: f64| {
            let mut weights = vec![1.0; 24];
            weights[row] = value;
            weights
        };
        assert!(refused(changed(4, -0.5)).starts_with("rows.csv: row 5: its weight is -0.5"));
        assert!(refused(changed(4, f64::NAN)).starts_with("rows.csv: row 5: its weight is NaN"));
        assert!(refused(changed(4, f64::INFINITY)).starts_with("rows.csv: row 5: its weight is inf"));
        assert!(refused(vec![1.0; 23]).contains("23 weights for 24 rows"));
        assert!(refused(vec![0.0; 24]).contains("all training rows have weight 0"));
        // Tiny and huge weights are as good as others.
        for scale in [1e-300, 1e300] {
            let weights = (0..24).map(|k| scale * f64::from(1 + k % 3)).collect();
            assert!(
                TrainingData::new(&rows(&labels, Some(weights)), None, &Preparation::default()).unwrap().is_weighted()
            );
        }
        let many: Vec<i64> = (0..4000).map(|k| k % 2).collect();
        let mut weights = vec![1e-6; 4000];
        weights[0] = 1.0;
        weights[1] = 1.0;
        let refused =
            TrainingData::new(&rows(&many, Some(weights)), None, &Preparation::default()).unwrap_err().to_string();
        assert!(refused.contains("times the mean"), "{refused}");
    }
}
