//! What the `hetal` program does, as a library: the program itself only reads its arguments.

pub mod bench;
pub mod commands;
pub mod data_folder;
pub mod engine;
pub mod error;
pub mod extract;
pub mod lab;
pub mod local_owner;
pub mod machine;
pub mod noise;
pub mod ops;
pub mod params;
pub mod plan;
mod private_folder;
pub mod progress;
pub mod reproduce;
pub mod selftest;
pub mod setting;
pub mod study;
pub mod svg;
pub mod table;

pub use error::{Error, Result};

/// Prints a flat object for people, a line for each name.
pub fn print_object(object: &serde_json::Map<String, serde_json::Value>) {
    let lines: String = object.iter().map(|(name, value)| format!("{name:36} {value}\n")).collect();
    commands::print(false, &serde_json::Value::Null, &lines);
}
