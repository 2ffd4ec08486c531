//! Markdown tables whose columns are aligned, so that they also read well on a terminal.

use serde_json::Value;
use std::fmt;

/// A header and rows with the same number of cells.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new() }
    }

    /// A table of flat objects: one row for each object, one column for each `(field, title)`.
    pub fn from_objects(objects: &[Value], fields: &[(&str, &str)]) -> Self {
        let mut table = Self::new(&fields.iter().map(|&(_, title)| title).collect::<Vec<_>>());
        for object in objects {
            table.push(fields.iter().map(|&(field, _)| cell(&object[field])).collect());
        }
        table
    }

    /// Adds a row. Missing cells stay empty.
    pub fn push(&mut self, mut row: Vec<String>) {
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }
}

/// Formats a JSON value for a table: numbers with four digits, null as a dash.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(number) if number.is_f64() => number.as_f64().map_or_else(String::new, digits),
        other => other.to_string(),
    }
}

/// Formats a number with four significant digits.
pub fn digits(x: f64) -> String {
    match x.abs() {
        m if m == 0.0 || (m == m.round() && m < 1e6) => format!("{x}"),
        m if !(1e-4..1e6).contains(&m) => format!("{x:.1e}"),
        m => format!("{x:.*}", (3 - m.log10().floor() as i32).clamp(0, 6) as usize),
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        for (n, row) in all().enumerate() {
            for (cell, &width) in row.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if n == 0 {
                writeln!(f, "|{}", widths.iter().map(|w| "-".repeat(w + 2) + "|").collect::<String>())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_line_up() {
        let rows = [json!({"a": 1, "b": 0.00123456}), json!({"a": "long", "b": null})];
        let table = TextTable::from_objects(&rows, &[("a", "A"), ("b", "wide title")]);
        let expected = "| A    | wide title |\n|------|------------|\n| 1    | 0.001235   |\n| long | -          |\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_keep_four_digits() {
        for (x, text) in [(0.0, "0"), (12.0, "12"), (12.3456, "12.35"), (0.12345, "0.1235"), (3.7e-7, "3.7e-7")] {
            assert_eq!(digits(x), text);
        }
    }
}
