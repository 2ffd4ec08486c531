//! How rows are prepared for a training, and what was chosen.

use hetal_extract_api::sanitize_terminal;
use hetal_learn::scaling::ColumnScale;
use hetal_learn::{Imputation, Matrix, Scaling};
use hetal_tables::Note;
use serde::Serialize;

/// The norm of the longest training row after normalisation. It was chosen by validation loss on
/// SNIPS (MPNet features) and face masks (EfficientNet features). With rate 1 and Nesterov's
/// momentum both reach their best loss within 50 iterations, and no logit exceeds 25.
pub const ROW_NORM: f64 = 10.0;
/// Arrays without names of columns, and with at least this many columns, look like the output of a
/// pretrained network.
const NETWORK_COLUMNS: usize = 256;
/// Columns whose spreads differ by more than this, and that are not standardised, are a warning.
const MOST_SPREAD: f64 = 1000.0;

/// The most columns that a report names.
const MAX_NAMED: usize = 10;

/// How rows are prepared.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// How rows are scaled; `None` to choose by [`choose`].
    pub scaling: Option<Scaling>,
    /// What replaces missing values; `None` refuses them.
    pub imputation: Option<Imputation>,
    /// The norm of the longest training row after normalisation.
    pub row_norm: f64,
    /// Whether a pretrained network made the features.
    pub from_network: bool,
}

impl Default for Preparation {
    fn default() -> Self {
        Self { scaling: None, imputation: None, row_norm: ROW_NORM, from_network: false }
    }
}

impl Preparation {
    /// A preparation with this scaling.
    pub fn scaled(scaling: Scaling) -> Self {
        Self { scaling: Some(scaling), ..Self::default() }
    }

    /// The scaling of these training rows, and why.
    pub(super) fn scaling_of(&self, features: &Matrix, has_names: bool) -> (Scaling, &'static str) {
        match self.scaling {
            Some(scaling) => (scaling, "as asked for"),
            None => choose(features, self.from_network, has_names),
        }
    }
}

/// The scaling that suits training rows, and why. The choice follows what was measured on ordinary
/// tables and on features of two networks (docs/adr/022-scaling-and-defaults.md).
fn choose(features: &Matrix, from_network: bool, has_names: bool) -> (Scaling, &'static str) {
    let looks_like_network = !has_names && features.columns() >= NETWORK_COLUMNS;
    let is_never_negative = features.values().iter().all(|&x| x >= 0.0);
    match (from_network, looks_like_network, is_never_negative) {
        (true, _, true) => (Scaling::Sqrt, "features of a network that are never negative"),
        (true, _, false) => (Scaling::None, "features of a network"),
        (false, true, true) => {
            (Scaling::Sqrt, "many columns without names, never negative: they look like features of a network")
        }
        (false, true, false) => (Scaling::None, "many columns without names: they look like features of a network"),
        (false, false, _) => (Scaling::Standard, "columns of a table"),
    }
}

/// What was done to rows before a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PreparationReport {
    /// How rows are scaled.
    pub scaling: Scaling,
    /// Why.
    pub reason: String,
    /// What replaced missing values.
    pub imputation: Option<Imputation>,
    /// How many values were missing, validation rows included.
    pub imputed_values: usize,
    /// Columns whose outliers do not count for their scale.
    pub outlier_columns: Vec<String>,
    /// Training rows that are much longer than the others, and were shortened.
    pub shortened_rows: usize,
    /// Training rows.
    pub training_rows: usize,
    /// Validation rows.
    pub validation_rows: usize,
    /// Whether the training rows are the validation rows too.
    pub validates_on_training_rows: bool,
    /// What looks wrong, each with the option that answers it.
    pub warnings: Vec<Note>,
}

impl PreparationReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let what = match self.scaling {
            Scaling::None => "columns are centred, all with one factor",
            Scaling::Standard => "every column is centred and divided by its standard deviation",
            Scaling::UnitRow => "rows are divided by their length",
            Scaling::Sqrt => "square roots, then rows are divided by their length",
        };
        let mut text = format!("scaling: {} ({what}): {}; --scale decides\n", self.scaling.name(), self.reason);
        if !self.outlier_columns.is_empty() {
            let names: Vec<String> =
                self.outlier_columns.iter().take(MAX_NAMED).map(|x| sanitize_terminal(x)).collect();
            let more = if self.outlier_columns.len() > MAX_NAMED { ", …" } else { "" };
            text += &format!("outliers do not count for the scale of: {}{more}\n", names.join(", "));
        }
        if self.shortened_rows > 0 {
            text += &format!("rows far from all others, shortened in training: {}\n", self.shortened_rows);
        }
        if let Some(imputation) = self.imputation {
            text += &format!(
                "missing values replaced by the {} of their column: {}\n",
                imputation.name(),
                self.imputed_values
            );
        }
        text += &match self.validates_on_training_rows {
            true => format!(
                "few rows: all {} are trained on, and the accuracy shown is theirs, which flatters; --validation gives others\n",
                self.training_rows
            ),
            false => format!("{} rows to train on, {} to validate\n", self.training_rows, self.validation_rows),
        };
        self.warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
        text
    }
}

/// The warning about columns in different units that are not standardised.
pub(super) fn spread_warning(features: &Matrix) -> Option<Note> {
    let deviations = (0..features.columns()).map(|column| ColumnScale::fit(features, column).deviation);
    let varying = deviations.filter(|&deviation| deviation > 0.0);
    let (least, most) = varying.fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    let text =
        format!("spreads of columns differ by a factor of {:.0e}, so the widest may drown the others", most / least);
    (most > MOST_SPREAD * least).then(|| Note { text, flag: "--scale standard".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scaling_follows_from_signs_and_origin() {
        let narrow = Matrix::from_fn(4, 3, |i, j| (i + j) as f64);
        let wide = Matrix::from_fn(4, 300, |i, j| (i + j) as f64);
        let signed = Matrix::from_fn(4, 300, |i, j| i as f64 - j as f64);
        let chosen = |x: &Matrix, from_network, has_names| {
            Preparation { from_network, ..Preparation::default() }.scaling_of(x, has_names).0
        };
        assert_eq!(chosen(&narrow, false, false), Scaling::Standard);
        assert_eq!(chosen(&wide, false, true), Scaling::Standard);
        assert_eq!((chosen(&wide, false, false), chosen(&signed, false, false)), (Scaling::Sqrt, Scaling::None));
        assert_eq!((chosen(&narrow, true, true), chosen(&signed, true, false)), (Scaling::Sqrt, Scaling::None));
        assert_eq!(Preparation::scaled(Scaling::UnitRow).scaling_of(&wide, false).0, Scaling::UnitRow);
    }
}
