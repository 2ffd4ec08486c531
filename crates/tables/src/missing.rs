//! Missing values, counted and named.

use crate::{Column, MAX_NAMED};
use serde::Serialize;

/// Missing values of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Missing {
    /// All of them.
    pub count: usize,
    /// The columns that have any, each with their number.
    pub columns: Vec<(String, usize)>,
    /// Rows (counted from 1 without the heading) and columns of the first ones.
    pub places: Vec<(usize, String)>,
}

impl Missing {
    /// Counts a missing value.
    pub(crate) fn add(&mut self, row: usize, column: &Column) {
        self.count += 1;
        if self.places.len() < MAX_NAMED {
            self.places.push((row, column.to_string()));
        }
    }

    /// The columns that have any, as `--drop` takes them.
    pub fn names(&self) -> String {
        self.columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",")
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = crate::sanitize::shown;
        let verb = if self.count == 1 { "value is" } else { "values are" };
        write!(f, "{} {verb} missing: ", self.count)?;
        let places: Vec<String> =
            self.places.iter().map(|(row, column)| format!("row {row}, column {}", shown(column))).collect();
        f.write_str(&places.join("; "))?;
        if self.count > self.places.len() {
            let columns = self.columns.iter().take(MAX_NAMED);
            let columns: Vec<String> = columns.map(|(name, count)| format!("{count} in {}", shown(name))).collect();
            let more = if self.columns.len() > MAX_NAMED { ", …" } else { "" };
            write!(f, "; … ({}{more})", columns.join(", "))?;
        }
        Ok(())
    }
}
