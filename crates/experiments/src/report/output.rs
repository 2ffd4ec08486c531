//! Results on standard output.

use serde_json::{Map, Value};
use std::io::Write;

/// Prints a result: one line of JSON, or the text for people. Who reads only the beginning (`| head`) has seen what he wanted.
pub fn print(json: bool, value: &Value, text: &str) {
    let mut out = std::io::stdout().lock();
    let printed = if json { writeln!(out, "{value}") } else { writeln!(out, "{}", text.trim_end()) };
    if let Err(error) = printed.and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("hetal: standard output: {error}");
    }
}

/// Prints a flat object for people, a line for each name.
pub fn print_object(object: &Map<String, Value>) {
    let lines: String = object.iter().map(|(name, value)| format!("{name:36} {value}\n")).collect();
    print(false, &Value::Null, &lines);
}
