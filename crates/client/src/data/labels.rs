//! Labels and the classes that they name.

use crate::{Error, Result};
use std::collections::BTreeMap;

/// The labels of rows: numbers or names.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Integers.
    Numbers(Vec<i64>),
    /// Names.
    Names(Vec<String>),
}

impl Labels {
    /// The number of labels.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Names(names) => names.len(),
        }
    }

    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The labels as text.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(i64::to_string).collect(),
            Self::Names(names) => names.clone(),
        }
    }

    /// The distinct labels in order: numbers by value, names alphabetically.
    pub fn classes(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => distinct(numbers).iter().map(i64::to_string).collect(),
            Self::Names(names) => distinct(names),
        }
    }
}

fn distinct<T: Ord + Clone>(values: &[T]) -> Vec<T> {
    values.iter().cloned().collect::<std::collections::BTreeSet<T>>().into_iter().collect()
}

/// The index of each label in `classes`. An unknown label is an error that names its row.
pub fn class_numbers(labels: &Labels, classes: &[String]) -> Result<Vec<usize>> {
    let indices: BTreeMap<&str, usize> = classes.iter().enumerate().map(|(k, class)| (class.as_str(), k)).collect();
    let index = |(row, label): (usize, &String)| {
        indices.get(label.as_str()).copied().ok_or_else(|| Error::UnknownClass { row: row + 1, label: label.clone() })
    };
    labels.texts().iter().enumerate().map(index).collect()
}
