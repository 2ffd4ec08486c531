//! Training data: labelled rows, split, shuffled and normalised.

use super::labels::class_numbers;
use crate::{Error, Result};
use hetal_learn::{LabelledMatrix, Matrix, Normalisation};
use hetal_tables::{LabelType, Labels, Table};

/// The norm of the longest training row after normalisation. It was chosen by validation loss on
/// SNIPS (MPNet features) and face masks (EfficientNet features). With rate 1 and Nesterov's
/// momentum both reach their best loss within 50 iterations, and no logit exceeds 25.
pub const ROW_NORM: f64 = 10.0;
/// One in this many rows of each class is used for validation if no validation rows are given.
pub const VALIDATION_SHARE: usize = 8;
/// Makes splits and shuffles the same in every run and on every machine.
const SEED: u64 = 0x6865_7461_6c20_3031;
/// The odd constant of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// How rows are shuffled, and how many are set aside for validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The share of the rows of each class that is set aside.
    share: f64,
    seed: u64,
}

impl Default for Split {
    fn default() -> Self {
        Self { share: 1.0 / VALIDATION_SHARE as f64, seed: SEED }
    }
}

impl Split {
    /// The split of a seed, which sets aside a share of the rows of each class: above 0, below 1.
    pub fn new(share: Option<f64>, seed: Option<u64>) -> Result<Self> {
        let usual = Self::default();
        let share = share.unwrap_or(usual.share);
        if !(share > 0.0 && share < 1.0) {
            return Err(Error::ValidationShare { share });
        }
        Ok(Self { share, seed: seed.map_or(usual.seed, |seed| SEED ^ seed.wrapping_add(1).wrapping_mul(GOLDEN)) })
    }

    /// The rows of a class that are set aside, of `count`: one at least, and not all.
    fn validation_rows(&self, count: usize) -> usize {
        let share = (count as f64 * self.share) as usize;
        share.max(usize::from(count > 1)).min(count.saturating_sub(1))
    }
}

/// Rows with their labels.
#[derive(Clone, Debug)]
pub struct Labelled {
    /// One row per sample.
    pub features: Matrix,
    /// One label per row.
    pub labels: Labels,
    /// The name of their file for error messages, or an empty string.
    pub file: String,
    /// The names of the columns, if their file has names.
    pub columns: Option<Vec<String>>,
}

/// The values of a table as a matrix.
pub fn matrix(table: Table) -> Result<Matrix> {
    Ok(Matrix::new(table.rows, table.columns.len(), table.values)?)
}

impl Labelled {
    /// Combines features with labels: those of another file, or those of the same file.
    pub fn new(table: Table, labels: Option<Labels>) -> Result<Self> {
        let labels = labels.or_else(|| table.labels.clone()).ok_or(Error::NoLabels)?;
        if labels.len() != table.rows {
            let (rows, labels) = (table.rows, labels.len());
            return Err(hetal_learn::Error::LabelCount { rows, labels }.into());
        }
        let columns = table.names();
        Ok(Self { features: matrix(table)?, labels, file: String::new(), columns })
    }

    /// Adds the name of the file to an error about these rows.
    pub fn fault(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        if self.file.is_empty() { error } else { Error::Rows { file: self.file.clone(), error: Box::new(error) } }
    }

    /// The rows with class indices.
    fn dataset(&self, classes: &[String]) -> Result<LabelledMatrix> {
        let labels = class_numbers(&self.labels, classes).map_err(|e| self.fault(e))?;
        LabelledMatrix::new(self.features.clone(), labels, classes.len()).map_err(|e| self.fault(e))
    }

    /// The first `rows` rows and `columns` features.
    pub fn first(&self, rows: usize, columns: usize) -> Self {
        let (rows, columns) = (rows.min(self.features.rows()), columns.min(self.features.columns()));
        let features = Matrix::from_fn(rows, columns, |i, h| self.features[(i, h)]);
        let names = self.columns.as_ref().map(|names| names.iter().take(columns).cloned().collect());
        Self { features, labels: self.labels.first(rows), file: self.file.clone(), columns: names }
    }
}

/// Rows to train on and rows to validate on, normalised.
#[derive(Clone, Debug)]
pub struct TrainingData {
    /// The names of the classes.
    pub classes: Vec<String>,
    /// Training rows, shuffled.
    pub training: LabelledMatrix,
    /// Validation rows.
    pub validation: LabelledMatrix,
    /// The normalisation of the features.
    pub normalisation: Normalisation,
    /// The names of the columns, if their file has names.
    pub columns: Option<Vec<String>>,
    /// The type of the classes.
    pub class_type: LabelType,
}

impl TrainingData {
    /// Prepares rows. Without validation rows, one in [`VALIDATION_SHARE`] rows of each class is
    /// set aside.
    pub fn new(training: &Labelled, validation: Option<&Labelled>, row_norm: f64) -> Result<Self> {
        Self::with_split(training, validation, row_norm, &Split::default())
    }

    /// Prepares rows like [`TrainingData::new`], with another split.
    pub fn with_split(
        training: &Labelled,
        validation: Option<&Labelled>,
        row_norm: f64,
        split: &Split,
    ) -> Result<Self> {
        if let Some(given) = validation
            && given.features.columns() != training.features.columns()
        {
            let (found, expected) = (given.features.columns(), training.features.columns());
            return Err(given.fault(Error::ValidationColumns { found, expected }));
        }
        // The classes are those of the training rows, so every class has rows.
        let classes = training.labels.classes();
        let all = training.dataset(&classes)?;
        let (to_train, to_validate) = match validation {
            Some(given) => (shuffled(all.rows(), split.seed), (0..given.features.rows()).collect()),
            None => split_rows(&all, split)?,
        };
        let training_set = select_rows(&all, &to_train)?;
        let validation_set = match validation {
            Some(given) => select_rows(&given.dataset(&classes)?, &to_validate)?,
            None => select_rows(&all, &to_validate)?,
        };
        let normalisation = Normalisation::fit(training_set.features(), row_norm)?;
        // Errors name the row of the file, not of the shuffled set.
        let normalised = |set: &LabelledMatrix, rows: &[usize], of: &Labelled| -> Result<LabelledMatrix> {
            let apply = normalisation.apply(set.features()).and_then(|features| set.with_features(features));
            apply.map_err(|error| of.fault(in_file(error, rows)))
        };
        Ok(Self {
            training: normalised(&training_set, &to_train, training)?,
            validation: normalised(&validation_set, &to_validate, validation.unwrap_or(training))?,
            classes,
            normalisation,
            columns: training.columns.clone(),
            class_type: training.labels.label_type(),
        })
    }

    /// The number of features of a row.
    pub fn features(&self) -> usize {
        self.training.features().columns()
    }

    /// A hash of all rows and classes. A training resumes only with the same rows.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for class in &self.classes {
            hasher.update(&(class.len() as u64).to_le_bytes()).update(class.as_bytes());
        }
        for set in [&self.training, &self.validation] {
            hasher.update(&(set.rows() as u64).to_le_bytes());
            for x in set.features().values() {
                hasher.update(&x.to_le_bytes());
            }
            for &label in set.labels() {
                hasher.update(&(label as u64).to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Replaces the row of a subset in an error by the row of the file.
fn in_file(error: hetal_learn::Error, rows: &[usize]) -> hetal_learn::Error {
    match error {
        hetal_learn::Error::BeyondGuard { row, column, norm, guard } => {
            hetal_learn::Error::BeyondGuard { row: rows.get(row).copied().unwrap_or(row), column, norm, guard }
        }
        other => other,
    }
}

/// Selects rows of a set, in the given order.
fn select_rows(set: &LabelledMatrix, rows: &[usize]) -> Result<LabelledMatrix> {
    let columns = set.features().columns();
    let features = Matrix::from_fn(rows.len(), columns, |i, h| set.features()[(rows[i], h)]);
    let labels = rows.iter().map(|&row| set.labels()[row]).collect();
    Ok(LabelledMatrix::new(features, labels, set.classes())?)
}

/// Splits rows into training and validation rows. Validation gets a share of the rows of each
/// class, and at least one of a class of two rows.
fn split_rows(set: &LabelledMatrix, split: &Split) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut seen = vec![0; set.classes()];
    let mut counts = vec![0; set.classes()];
    set.labels().iter().for_each(|&label| counts[label] += 1);
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    for row in shuffled(set.rows(), split.seed) {
        let class = set.labels()[row];
        seen[class] += 1;
        if seen[class] <= split.validation_rows(counts[class]) { validation.push(row) } else { training.push(row) }
    }
    if validation.is_empty() {
        return Err(Error::TooFewRows);
    }
    Ok((training, validation))
}

/// A fixed permutation of the numbers below `count`. Files are often sorted by class, and batches
/// must not be.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(GOLDEN);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let mut order: Vec<usize> = (0..count).collect();
    for k in (1..count).rev() {
        order.swap(k, (next() % (k as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(labels: Vec<i64>) -> Labelled {
        let features = Matrix::from_fn(labels.len(), 3, |i, j| (i * i + j) as f64);
        Labelled { features, labels: Labels::Integers(labels), file: String::new(), columns: None }
    }

    #[test]
    fn every_class_is_split_and_no_row_is_lost() {
        let data = TrainingData::new(&labelled((0..80).map(|k| [4, 4, 7][k % 3]).collect()), None, 10.0).unwrap();
        assert_eq!(data.classes, ["4", "7"]);
        assert_eq!((data.training.rows(), data.validation.rows()), (71, 9));
        let of_class = |set: &LabelledMatrix, class| set.labels().iter().filter(|&&l| l == class).count();
        assert_eq!((of_class(&data.validation, 0), of_class(&data.validation, 1)), (6, 3));
        let firsts: Vec<usize> = data.training.labels()[..20].to_vec();
        assert!(firsts.contains(&0) && firsts.contains(&1));
        assert_eq!(data.fingerprint(), data.clone().fingerprint());
    }

    /// Another seed takes other rows, another share takes more; what is usual stays as it was.
    #[test]
    fn splits_follow_seed_and_share() {
        let mut rows = labelled((0..80).map(|k| k % 2).collect());
        rows.features = Matrix::from_fn(80, 3, |i, j| ((7 * i + 3 * j + i * i) % 23) as f64);
        let with = |share, seed| {
            let split = Split::new(share, seed).unwrap();
            TrainingData::with_split(&rows, None, 10.0, &split).unwrap()
        };
        let usual = TrainingData::new(&rows, None, 10.0).unwrap().fingerprint();
        assert_eq!(with(None, None).fingerprint(), usual);
        assert_eq!(with(Some(0.125), None).fingerprint(), usual);
        assert_ne!(with(None, Some(0)).fingerprint(), usual);
        assert_ne!(with(None, Some(0)).fingerprint(), with(None, Some(1)).fingerprint());
        assert_eq!(with(Some(0.5), None).validation.rows(), 40);
        assert_eq!((with(Some(0.999), None).training.rows(), with(Some(1e-6), None).validation.rows()), (2, 2));
        for share in [0.0, 1.0, -0.5, f64::NAN] {
            assert!(matches!(Split::new(Some(share), None), Err(Error::ValidationShare { .. })), "{share}");
        }
    }

    #[test]
    fn other_rows_have_another_fingerprint() {
        let labels: Vec<i64> = (0..20).map(|k| k % 2).collect();
        let mut rows = labelled(labels.clone());
        let before = TrainingData::new(&rows, None, 10.0).unwrap().fingerprint();
        rows.features[(3, 1)] += 1e-9;
        assert_ne!(TrainingData::new(&rows, None, 10.0).unwrap().fingerprint(), before);
        assert_ne!(TrainingData::new(&labelled(labels), None, 9.0).unwrap().fingerprint(), before);
    }

    /// Rows are counted from 1 as in their file, however they were shuffled and split.
    #[test]
    fn what_is_wrong_is_said_of_the_file_s_row() {
        let fault = |training: &Labelled, validation: Option<&Labelled>| {
            TrainingData::new(training, validation, 10.0).unwrap_err().to_string()
        };
        let mut rows = labelled((0..24).map(|k| k % 2).collect());
        rows.file = "rows.csv".to_owned();
        let mut bad = rows.clone();
        bad.features[(0, 2)] = f64::NAN;
        assert!(fault(&bad, None).starts_with("rows.csv: row 1, column 3:"), "{}", fault(&bad, None));
        // A row that is far longer than the others is an error if it is set aside for validation.
        let mut found = 0;
        for row in 0..24 {
            let mut far = rows.clone();
            far.features[(row, 1)] = 1e5;
            if let Err(error) = TrainingData::new(&far, None, 10.0) {
                let said = error.to_string();
                assert!(said.starts_with(&format!("rows.csv: row {}: length", row + 1)), "{row}: {said}");
                found += 1;
            }
        }
        assert_eq!(found, 2, "one row of each class is set aside");
        let mut other = rows.clone();
        other.file = "validation.csv".to_owned();
        other.features[(7, 1)] = 1e5;
        assert!(fault(&rows, Some(&other)).starts_with("validation.csv: row 8: length"));
        other.labels = Labels::Integers(vec![5; 24]);
        assert!(fault(&rows, Some(&other)).starts_with("validation.csv: row 1: no training row"));
    }

    /// A wrong width is said in numbers that mean something.
    #[test]
    fn validation_rows_have_the_columns_of_the_training_rows() {
        let rows = labelled((0..24).map(|k| k % 2).collect());
        let mut narrow = rows.first(24, 2);
        narrow.file = "validation.csv".to_owned();
        let said = TrainingData::new(&rows, Some(&narrow), 10.0).unwrap_err().to_string();
        let expected = "validation.csv: the validation rows have 2 features, and the training rows have 3";
        assert!(said.starts_with(expected), "{said}");
        let normalisation = Normalisation::fit(&rows.features, 10.0).unwrap();
        let said = normalisation.apply(&narrow.features).unwrap_err().to_string();
        assert_eq!(said, "features to normalise has 2 columns, must have 3");
    }

    #[test]
    fn labels_of_no_class_are_named() {
        let error = TrainingData::new(&labelled(vec![0, 1, 0, 1]), Some(&labelled(vec![1, 5])), 10.0).unwrap_err();
        assert!(matches!(&error, Error::UnknownClass { row: 2, label } if label == "5"), "{error}");
        let lone = TrainingData::new(&labelled(vec![0, 1]), None, 10.0);
        assert!(matches!(lone, Err(Error::TooFewRows)), "{lone:?}");
    }
}
