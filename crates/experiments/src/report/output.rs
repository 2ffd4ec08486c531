//! Results on standard output, as JSON or as text.

use super::table::TextTable;
use serde_json::{Map, Value};
use std::io::Write;

/// Prints a result: one line of JSON, or the text.
///
/// A reader that closes the pipe early (`| head`) is no error.
pub fn print(json: bool, value: &Value, text: &str) {
    let mut out = std::io::stdout().lock();
    let printed = if json { writeln!(out, "{value}") } else { writeln!(out, "{}", text.trim_end()) };
    if let Err(error) = printed.and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("hetal: standard output: {error}");
    }
}

/// Prints a flat object as text, one line for each field.
pub fn print_object(object: &Map<String, Value>) {
    let lines: String = object.iter().map(|(name, value)| format!("{name:36} {value}\n")).collect();
    print(false, &Value::Null, &lines);
}

/// Prints flat objects as a JSON array, or as the table that `table` makes of them.
pub fn print_table(json: bool, objects: &[Value], table: impl Fn(&[Value]) -> TextTable) {
    let text = if json { String::new() } else { table(objects).to_string() };
    print(json, &Value::from(objects), &text);
}
