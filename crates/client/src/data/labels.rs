//! The classes that labels name.

use crate::{Error, Result};
use hetal_tables::Labels;
use std::collections::BTreeMap;

/// The index of each label in `classes`. An unknown label is an error that names its row.
pub fn class_numbers(labels: &Labels, classes: &[String]) -> Result<Vec<usize>> {
    let indices: BTreeMap<&str, usize> = classes.iter().enumerate().map(|(k, class)| (class.as_str(), k)).collect();
    let index = |(row, label): (usize, &String)| {
        indices.get(label.as_str()).copied().ok_or_else(|| Error::UnknownClass { row: row + 1, label: label.clone() })
    };
    labels.texts().iter().enumerate().map(index).collect()
}
