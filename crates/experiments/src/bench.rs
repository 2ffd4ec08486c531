//! Benchmarks that reproduce the paper's tables.

pub mod accuracy;
pub mod matmul;
pub mod ops;
pub mod softmax;
pub mod train;

use crate::report::output;
use crate::report::table::Table;
use serde_json::Value;

/// Prints the objects of a report: as JSON, or as the table made of them.
fn show(objects: &[Value], json: bool, table: impl Fn(&[Value]) -> Table) {
    let text = if json { String::new() } else { table(objects).to_string() };
    output::print(json, &Value::from(objects), &text);
}
