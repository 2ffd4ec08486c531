//! Rows for training and test: random ones, or those of a folder.

use crate::Result;
use crate::feature_folder::{self, TrainingAndOther};
use hetal_learn::agreement::Preset;
use hetal_learn::{LabelledMatrix, Matrix};
use std::path::Path;

/// Features with their labels.
pub(super) struct BenchRows {
    pub(super) features: Matrix,
    pub(super) labels: Vec<usize>,
}

impl BenchRows {
    /// A range of the rows of a data set.
    pub(super) fn of(set: &LabelledMatrix, range: std::ops::Range<usize>) -> Self {
        Self { features: set.features().slice(range.clone()), labels: set.labels()[range].to_vec() }
    }

    /// The rows in pieces of at most `rows` rows.
    pub(super) fn pieces(&self, rows: usize) -> impl Iterator<Item = BenchRows> {
        let count = self.features.rows();
        (0..count).step_by(rows.max(1)).map(move |start| {
            let range = start..count.min(start + rows);
            BenchRows { features: self.features.slice(range.clone()), labels: self.labels[range].to_vec() }
        })
    }
}

/// Reads the first `rows` training rows of a folder, in batches, and its test rows.
pub(super) fn load(path: &Path, rows: usize, preset: &Preset) -> Result<(Vec<BenchRows>, Option<BenchRows>)> {
    let TrainingAndOther { training: train, other: test } = feature_folder::training_and(path, "test", preset.classes)?;
    let rows = rows.min(train.rows());
    if rows == 0 {
        return Err(hetal_learn::Error::NoRows.into());
    }
    let batch = |start: usize| BenchRows::of(&train, start..rows.min(start + preset.batch));
    let batches = (0..rows).step_by(preset.batch).map(batch).collect();
    Ok((batches, Some(BenchRows::of(&test, 0..test.rows()))))
}

/// A batch of random rows of norm about 1 around one centre for each class.
///
/// The centres are the same for every `salt`.
pub(super) fn clusters(preset: &Preset, salt: u64) -> BenchRows {
    let generator = |mut state: u64| {
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    };
    let size = 1.0 / (preset.features as f64).sqrt();
    let (mut of_centre, mut of_row) = (generator(5), generator(7 + salt));
    let centres = Matrix::from_fn(preset.classes, preset.features, |_, _| size * of_centre());
    let labels: Vec<usize> = (0..preset.batch).map(|i| (i * 7 + i / 3) % preset.classes).collect();
    let features = Matrix::from_fn(preset.batch, preset.features, |i, h| centres[(labels[i], h)] + size * of_row());
    BenchRows { features, labels }
}
