//! Labels, and the classes they stand for.

use crate::{Error, Result};
use std::collections::BTreeMap;

/// Labels as they were found: numbers or names.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Whole numbers.
    Numbers(Vec<i64>),
    /// Names.
    Names(Vec<String>),
}

impl Labels {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Names(names) => names.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As texts.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(i64::to_string).collect(),
            Self::Names(names) => names.clone(),
        }
    }

    /// The distinct labels in order: numbers by value, names by letters.
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

/// The numbers of labels among the classes; a label of none is named with its row.
pub fn class_numbers(labels: &Labels, classes: &[String]) -> Result<Vec<usize>> {
    let places: BTreeMap<&str, usize> = classes.iter().enumerate().map(|(k, class)| (class.as_str(), k)).collect();
    let place = |(row, label): (usize, &String)| {
        places.get(label.as_str()).copied().ok_or_else(|| Error::UnknownClass { row: row + 1, label: label.clone() })
    };
    labels.texts().iter().enumerate().map(place).collect()
}
