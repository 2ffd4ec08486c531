//! Training data: labelled rows, split, shuffled and normalised.

use super::labels::class_numbers;
use super::preparation::{Preparation, PreparationReport, spread_warning};
use super::weights;
use crate::{Error, Result};
use hetal_learn::scaling::filled;
use hetal_learn::split_mix::SplitMix64;
use hetal_learn::{Judge, LabelledMatrix, Matrix, Normalisation, Scaling};
use hetal_tables::{LabelType, Labels, Table};

/// Tables of fewer rows are trained on whole, and validated on the same rows.
const FEWEST_ROWS_TO_SPLIT: usize = 512;
/// One in this many rows of each class is used for validation if no validation rows are given.
const VALIDATION_SHARE: usize = 16;
/// Makes splits and shuffles the same in every run and on every machine.
const SEED: u64 = 0x6865_7461_6c20_3031;
/// The odd constant of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// How rows are shuffled, and how many are set aside for validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The share of the rows of each class that is set aside; `None` for [`validation_rows`].
    share: Option<f64>,
    seed: u64,
}

impl Default for Split {
    fn default() -> Self {
        Self { share: None, seed: SEED }
    }
}

impl Split {
    /// The split of a seed, which sets aside a share of the rows of each class: above 0, below 1.
    pub fn new(share: Option<f64>, seed: Option<u64>) -> Result<Self> {
        if let Some(share) = share.filter(|share| !(*share > 0.0 && *share < 1.0)) {
            return Err(Error::ValidationShare { share });
        }
        Ok(Self { share, seed: seed.map_or(SEED, |seed| SEED ^ seed.wrapping_add(1).wrapping_mul(GOLDEN)) })
    }
}

/// The rows of a class that are set aside, of `count`: one at least, and not all.
fn validation_rows_of_class(count: usize, share: f64) -> usize {
    // A share that is a fraction of whole numbers is not rounded below them.
    let rows = (count as f64 * share + 1e-9) as usize;
    rows.max(usize::from(count > 1)).min(count.saturating_sub(1))
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
    /// One weight per row, or `None` if all rows count the same.
    pub weights: Option<Vec<f64>>,
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
        let weights = table.weights.clone();
        Ok(Self { features: matrix(table)?, labels, file: String::new(), columns, weights })
    }

    /// Adds the name of the file to an error about these rows.
    pub fn fault(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        if self.file.is_empty() { error } else { Error::Rows { file: self.file.clone(), error: Box::new(error) } }
    }

    /// Chosen rows with class indices, in the given order. Nothing may be wrong with the others
    /// either.
    fn chosen(&self, classes: &[String], rows: &[usize]) -> Result<LabelledMatrix> {
        let labels = class_numbers(&self.labels, classes).map_err(|e| self.fault(e))?;
        LabelledMatrix::check(&self.features, &labels, classes.len()).map_err(|e| self.fault(e))?;
        let labels = rows.iter().map(|&row| labels[row]).collect();
        Ok(LabelledMatrix::new(selected(&self.features, rows), labels, classes.len())?)
    }

    /// The same rows with missing values replaced, one a column.
    fn filled(&self, fill: &[f64]) -> Self {
        Self { features: filled(&self.features, fill).into_owned(), ..self.clone() }
    }

    /// How many values are missing.
    fn missing(&self) -> usize {
        self.features.values().iter().filter(|x| x.is_nan()).count()
    }

    /// The name of a column, or its number.
    fn column_name(&self, column: usize) -> String {
        let name = self.columns.as_ref().and_then(|names| names.get(column)).cloned();
        name.unwrap_or_else(|| (column + 1).to_string())
    }

    /// These rows, in this order.
    pub fn selected(&self, rows: &[usize]) -> Self {
        let weights = self.weights.as_ref().map(|weights| rows.iter().map(|&row| weights[row]).collect());
        Self { features: selected(&self.features, rows), labels: self.labels.selected(rows), weights, ..self.clone() }
    }

    /// The first `rows` rows and `columns` features.
    pub fn first(&self, rows: usize, columns: usize) -> Self {
        let (rows, columns) = (rows.min(self.features.rows()), columns.min(self.features.columns()));
        let features = Matrix::from_fn(rows, columns, |i, h| self.features[(i, h)]);
        let names = self.columns.as_ref().map(|names| names.iter().take(columns).cloned().collect());
        let weights = self.weights.as_ref().map(|weights| weights.iter().take(rows).copied().collect());
        Self { features, labels: self.labels.first(rows), file: self.file.clone(), columns: names, weights }
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
    /// What was chosen and done.
    pub preparation: PreparationReport,
    /// The weights of the training rows, of mean 1, or `None` if all are the same.
    pub row_weights: Option<Vec<f64>>,
    /// The weights of the validation rows in the loss, or `None` if all are the same.
    pub validation_weights: Option<Vec<f64>>,
}

impl TrainingData {
    /// Prepares rows. Without validation rows, some rows of each class are set aside
    /// ([`validation_rows`]). All statistics are those of the training rows.
    pub fn new(training: &Labelled, validation: Option<&Labelled>, preparation: &Preparation) -> Result<Self> {
        Self::with_split(training, validation, preparation, &Split::default())
    }

    /// Prepares rows like [`TrainingData::new`], with another split.
    pub fn with_split(
        training: &Labelled,
        validation: Option<&Labelled>,
        preparation: &Preparation,
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
        let labels = class_numbers(&training.labels, &classes).map_err(|e| training.fault(e))?;
        let (to_train, to_validate) = match validation {
            Some(given) => (shuffled(labels.len(), split.seed), (0..given.features.rows()).collect()),
            None => split_rows(&labels, classes.len(), split)?,
        };
        let imputed = Imputed::new(training, validation, preparation, &to_train)?;
        let training = imputed.training.as_ref().unwrap_or(training);
        let given = imputed.validation.as_ref().or(validation);
        let of_validation = given.unwrap_or(training);
        let training_set = training.chosen(&classes, &to_train)?;
        let validation_set = of_validation.chosen(&classes, &to_validate)?;
        let row_weights = weights::of_training(training, &to_train).map_err(|e| training.fault(e))?;
        let validation_weights = weights::of_validation(of_validation, &to_validate, "validation");
        let validation_weights = validation_weights.map_err(|e| of_validation.fault(e))?;
        let (scaling, reason) = preparation.scaling_of(training_set.features(), training.columns.is_some());
        let normalisation = Normalisation::fit_scaled(training_set.features(), scaling, preparation.row_norm)?;
        let warns = preparation.scaling == Some(Scaling::None) && !preparation.from_network;
        let warning = warns.then(|| spread_warning(training_set.features())).flatten();
        let (to_train_on, shortened_rows) = normalised(&normalisation, training_set, &to_train, training)?;
        let (to_validate_on, _) = normalised(&normalisation, validation_set, &to_validate, of_validation)?;
        let report = PreparationReport {
            scaling,
            reason: reason.to_owned(),
            imputation: preparation.imputation,
            imputed_values: imputed.values,
            outlier_columns: normalisation.outliers().iter().map(|&column| training.column_name(column)).collect(),
            shortened_rows,
            training_rows: to_train_on.rows(),
            validation_rows: to_validate_on.rows(),
            validates_on_training_rows: given.is_none() && to_train == to_validate,
            warnings: warning.into_iter().collect(),
        };
        Ok(Self {
            training: to_train_on,
            validation: to_validate_on,
            columns: training.columns.clone(),
            class_type: training.labels.label_type(),
            normalisation: imputed.fill.into_iter().fold(normalisation, Normalisation::with_fill),
            classes,
            preparation: report,
            row_weights,
            validation_weights,
        })
    }

    /// The judge of a training on these rows, before its first epoch.
    pub fn judge(&self, patience: usize, range: f64, repeats: usize) -> Judge {
        let judge = Judge::new(patience, range, repeats);
        if self.preparation.validates_on_training_rows { judge.until_settled() } else { judge }
    }

    /// The share of each class among the training rows, counted by their weights.
    pub fn class_shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.classes.len()];
        for (row, &label) in self.training.labels().iter().enumerate() {
            shares[label] += self.row_weights.as_ref().map_or(1.0, |weights| weights[row]);
        }
        let all: f64 = shares.iter().sum();
        shares.iter().map(|share| share / all).collect()
    }

    /// Whether training rows have different weights. The server learns this, and nothing else
    /// about them.
    pub fn is_weighted(&self) -> bool {
        self.row_weights.is_some()
    }

    /// The number of features of a row.
    pub fn features(&self) -> usize {
        self.training.features().columns()
    }

    /// A hash of all rows, classes and weights. A training resumes only with the same rows.
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
        for weights in [&self.row_weights, &self.validation_weights].into_iter().flatten() {
            hasher.update(&(weights.len() as u64).to_le_bytes());
            for weight in weights {
                hasher.update(&weight.to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Rows whose missing values were replaced.
struct Imputed {
    /// The value for each column, if values are replaced.
    fill: Option<Vec<f64>>,
    training: Option<Labelled>,
    validation: Option<Labelled>,
    /// How many values were missing.
    values: usize,
}

impl Imputed {
    /// Replaces missing values, if that is asked for. Statistics are those of the rows `to_train`.
    fn new(
        training: &Labelled,
        validation: Option<&Labelled>,
        preparation: &Preparation,
        to_train: &[usize],
    ) -> Result<Self> {
        let values = training.missing() + validation.map_or(0, Labelled::missing);
        let fill = preparation.imputation.map(|imputation| imputation.fit(&selected(&training.features, to_train)));
        let fill = fill.transpose().map_err(|e| training.fault(e))?;
        let complete = |rows: &Labelled| fill.as_ref().map(|fill| rows.filled(fill));
        let (training, validation) = (complete(training), validation.and_then(complete));
        Ok(Self { fill, training, validation, values })
    }
}

/// Normalises chosen rows of a file, and counts those that were shortened. Errors name the row of
/// the file, not of the chosen ones.
fn normalised(
    normalisation: &Normalisation,
    set: LabelledMatrix,
    chosen: &[usize],
    of: &Labelled,
) -> Result<(LabelledMatrix, usize)> {
    let classes = set.classes();
    let (features, labels) = set.into_parts();
    let done = normalisation.training_rows(features);
    let done = done.and_then(|done| Ok((LabelledMatrix::new(done.features, labels, classes)?, done.shortened)));
    done.map_err(|error| of.fault(in_file(error, chosen)))
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

/// Selects rows, in the given order.
fn selected(features: &Matrix, rows: &[usize]) -> Matrix {
    Matrix::from_fn(rows.len(), features.columns(), |i, h| features[(rows[i], h)])
}

/// About how many of `rows` rows are set aside for validation. Of a small table none are: its
/// training rows are validated too, which shows when the training has converged.
pub fn validation_rows(rows: usize) -> usize {
    match rows < FEWEST_ROWS_TO_SPLIT {
        true => 0,
        false => rows / VALIDATION_SHARE,
    }
}

/// Splits rows into training and validation rows. Validation gets an equal share of each class, and
/// at least one row of a class of two. Unless a share is given, the rows of a small table are in
/// both.
fn split_rows(labels: &[usize], classes: usize, split: &Split) -> Result<(Vec<usize>, Vec<usize>)> {
    let (mut seen, mut counts) = (vec![0; classes], vec![0; classes]);
    labels.iter().for_each(|&label| counts[label] += 1);
    if counts.iter().all(|&count| count < 2) {
        return Err(Error::TooFewRows);
    }
    let order = shuffled(labels.len(), split.seed);
    if split.share.is_none() && validation_rows(labels.len()) == 0 {
        return Ok((order.clone(), order));
    }
    let share = split.share.unwrap_or(1.0 / VALIDATION_SHARE as f64);
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    for row in order {
        let class = labels[row];
        let wanted = validation_rows_of_class(counts[class], share);
        seen[class] += 1;
        if seen[class] <= wanted { validation.push(row) } else { training.push(row) }
    }
    Ok((training, validation))
}

/// A fixed permutation of the numbers below `count`. Files are often sorted by class, and batches
/// must not be.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    SplitMix64(seed).permutation(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_learn::Imputation;

    fn labelled(labels: Vec<i64>) -> Labelled {
        let features = Matrix::from_fn(labels.len(), 3, |i, j| (i * i + j) as f64);
        Labelled { features, labels: Labels::Integers(labels), file: String::new(), columns: None, weights: None }
    }

    fn unscaled() -> Preparation {
        Preparation::scaled(Scaling::None)
    }

    #[test]
    fn every_class_is_split_and_no_row_is_lost() {
        let data =
            TrainingData::new(&labelled((0..800).map(|k| [4, 4, 7][k % 3]).collect()), None, &unscaled()).unwrap();
        assert_eq!(data.classes, ["4", "7"]);
        assert_eq!((data.training.rows(), data.validation.rows()), (751, 49));
        assert!(!data.preparation.validates_on_training_rows);
        let of_class = |set: &LabelledMatrix, class| set.labels().iter().filter(|&&l| l == class).count();
        assert_eq!((of_class(&data.validation, 0), of_class(&data.validation, 1)), (33, 16));
        let firsts: Vec<usize> = data.training.labels()[..20].to_vec();
        assert!(firsts.contains(&0) && firsts.contains(&1));
        assert_eq!(data.fingerprint(), data.clone().fingerprint());
    }

    /// Another seed takes other rows, another share takes more; what is usual stays as it was.
    #[test]
    fn splits_follow_seed_and_share() {
        let mut rows = labelled((0..800).map(|k| k % 2).collect());
        rows.features = Matrix::from_fn(800, 3, |i, j| ((7 * i + 3 * j + i * i) % 23) as f64);
        let with = |share, seed| {
            let split = Split::new(share, seed).unwrap();
            TrainingData::with_split(&rows, None, &unscaled(), &split).unwrap()
        };
        let usual = TrainingData::new(&rows, None, &unscaled()).unwrap().fingerprint();
        assert_eq!(with(None, None).fingerprint(), usual);
        assert_eq!(with(Some(0.0625), None).fingerprint(), usual);
        assert_ne!(with(None, Some(0)).fingerprint(), usual);
        assert_ne!(with(None, Some(0)).fingerprint(), with(None, Some(1)).fingerprint());
        assert_eq!(with(Some(0.5), None).validation.rows(), 400);
        assert_eq!((with(Some(0.999), None).training.rows(), with(Some(1e-6), None).validation.rows()), (2, 2));
        for share in [0.0, 1.0, -0.5, f64::NAN] {
            assert!(matches!(Split::new(Some(share), None), Err(Error::ValidationShare { .. })), "{share}");
        }
    }

    /// Small tables are trained on whole, and the report says so.
    #[test]
    fn small_tables_keep_their_rows() {
        let rows = labelled((0..140).map(|k| k % 2).collect());
        let data = TrainingData::new(&rows, None, &unscaled()).unwrap();
        assert_eq!(data.training, data.validation);
        assert!(data.preparation.validates_on_training_rows && data.training.rows() == 140);
        assert!(data.preparation.text().contains("few rows: all 140 are trained on"), "{}", data.preparation.text());
        assert_eq!([0, 140, 511, 512, 800, 5120].map(validation_rows), [0, 0, 0, 32, 50, 320]);
        let given = TrainingData::new(&rows, Some(&rows), &unscaled()).unwrap();
        assert!(!given.preparation.validates_on_training_rows);
    }

    /// Validation rows decide nothing: neither scales nor replacements of missing values.
    #[test]
    fn statistics_come_from_training_rows_only() {
        let rows = labelled((0..600).map(|k| k % 2).collect());
        let standard = Preparation { imputation: Some(Imputation::Mean), ..Preparation::scaled(Scaling::Standard) };
        let before = TrainingData::new(&rows, None, &standard).unwrap();
        let (_, aside) =
            split_rows(&class_numbers(&rows.labels, &before.classes).unwrap(), 2, &Split::default()).unwrap();
        assert_eq!(aside.len(), before.validation.rows());
        let mut changed = rows.clone();
        aside.iter().for_each(|&row| changed.features[(row, 1)] = f64::NAN);
        aside.iter().for_each(|&row| changed.features[(row, 0)] *= 2.0);
        let after = TrainingData::new(&changed, None, &standard).unwrap();
        assert_eq!((&after.normalisation, &after.training), (&before.normalisation, &before.training));
        assert_ne!(after.validation, before.validation);
        assert_eq!(after.preparation.imputed_values, aside.len());
        let all: Vec<usize> = (0..600).filter(|row| !aside.contains(row)).collect();
        let mean = all.iter().map(|&row| rows.features[(row, 1)]).sum::<f64>() / all.len() as f64;
        assert!((after.normalisation.fill().unwrap()[1] - mean).abs() < 1e-9);
        // Without imputation they are refused, with the row of the file.
        assert!(TrainingData::new(&changed, None, &Preparation::default()).is_err());
    }

    /// A column in thousands, a constant one and an outlier change nothing about the others.
    #[test]
    fn tables_are_standardised_by_default() {
        let mut rows = labelled((0..140).map(|k| k % 2).collect());
        rows.columns = Some(["id", "size", "same"].map(str::to_owned).to_vec());
        rows.features =
            Matrix::from_fn(140, 3, |i, j| [9e5 - 1e3 * (i * 37 % 140) as f64, libm::sin(i as f64), 3.0][j]);
        let plain = TrainingData::new(&rows, None, &Preparation::default()).unwrap();
        assert_eq!(plain.preparation.scaling, Scaling::Standard);
        let spread = |data: &TrainingData, j: usize| {
            (0..140).map(|i| data.training.features()[(i, j)].powi(2)).sum::<f64>().sqrt()
        };
        assert!((spread(&plain, 0) / spread(&plain, 1) - 1.0).abs() < 1e-9 && spread(&plain, 2) == 0.0);
        rows.features[(7, 1)] = 1e6;
        let report = TrainingData::new(&rows, None, &Preparation::default()).unwrap().preparation;
        assert_eq!((&report.outlier_columns[..], report.shortened_rows), (&["size".to_owned()][..], 1));
        assert!(report.text().contains("scaling: standard") && report.warnings.is_empty(), "{}", report.text());
        let warned = TrainingData::new(&rows, None, &unscaled()).unwrap().preparation.text();
        assert!(warned.contains("warning: spreads of columns differ"), "{warned}");
    }

    #[test]
    fn other_rows_have_another_fingerprint() {
        let labels: Vec<i64> = (0..20).map(|k| k % 2).collect();
        let mut rows = labelled(labels.clone());
        let before = TrainingData::new(&rows, None, &unscaled()).unwrap().fingerprint();
        rows.features[(3, 1)] += 1e-9;
        assert_ne!(TrainingData::new(&rows, None, &unscaled()).unwrap().fingerprint(), before);
        let shorter = Preparation { row_norm: 9.0, ..unscaled() };
        assert_ne!(TrainingData::new(&labelled(labels), None, &shorter).unwrap().fingerprint(), before);
    }

    /// Rows are counted from 1 as in their file, however they were shuffled and split.
    #[test]
    fn what_is_wrong_is_said_of_the_file_s_row() {
        let fault = |training: &Labelled, validation: Option<&Labelled>| {
            TrainingData::new(training, validation, &unscaled()).unwrap_err().to_string()
        };
        let mut rows = labelled((0..24).map(|k| k % 2).collect());
        rows.file = "rows.csv".to_owned();
        let mut bad = rows.clone();
        bad.features[(0, 2)] = f64::NAN;
        assert!(fault(&bad, None).starts_with("rows.csv: row 1, column 3:"), "{}", fault(&bad, None));
        // A row that is far longer than the others is an error if it is set aside for validation.
        let mut found = 0;
        let mut many = labelled((0..640).map(|k| k % 2).collect());
        many.file = "rows.csv".to_owned();
        for row in 0..640 {
            let mut far = many.clone();
            far.features[(row, 1)] = 9e6;
            if let Err(error) = TrainingData::new(&far, None, &unscaled()) {
                let said = error.to_string();
                assert!(said.starts_with(&format!("rows.csv: row {}: length", row + 1)), "{row}: {said}");
                found += 1;
            }
        }
        assert_eq!(found, 40, "20 rows of each class are set aside");
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
        let said = TrainingData::new(&rows, Some(&narrow), &unscaled()).unwrap_err().to_string();
        let expected = "validation.csv: the validation rows have 2 features, and the training rows have 3";
        assert!(said.starts_with(expected), "{said}");
        let normalisation = Normalisation::fit(&rows.features, 10.0).unwrap();
        let said = normalisation.apply(&narrow.features).unwrap_err().to_string();
        assert_eq!(said, "features to normalise has 2 columns, must have 3");
    }

    #[test]
    fn labels_of_no_class_are_named() {
        let error =
            TrainingData::new(&labelled(vec![0, 1, 0, 1]), Some(&labelled(vec![1, 5])), &unscaled()).unwrap_err();
        assert!(matches!(&error, Error::UnknownClass { row: 2, label } if label == "5"), "{error}");
        let lone = TrainingData::new(&labelled(vec![0, 1]), None, &unscaled());
        assert!(matches!(lone, Err(Error::TooFewRows)), "{lone:?}");
    }
}
