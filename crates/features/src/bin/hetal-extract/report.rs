//! The report at the end of an extraction.

use hetal_extract_api::arguments::{ExtractArguments, OutputArgument};
use hetal_extract_api::{Manifest, sanitize_terminal};
use serde_json::{Value, json};
use std::path::Path;

fn out(arguments: &ExtractArguments) -> &Path {
    arguments.out.as_deref().unwrap_or(Path::new(""))
}

/// Where the network ran, which may have been in an earlier run; an older manifest does not say.
fn device(manifest: &Manifest) -> Option<String> {
    let devices: Vec<&str> = manifest.devices.iter().map(String::as_str).collect();
    (!devices.is_empty()).then(|| sanitize_terminal(&devices.join(" and ")))
}

/// The report as JSON.
pub fn json(manifest: &Manifest, arguments: &ExtractArguments) -> Value {
    json!({
        "model": manifest.model.source,
        "device": device(manifest),
        "columns": manifest.model.columns,
        "classes": manifest.classes,
        "rows": manifest.rows,
        "skipped": manifest.skipped,
        "notes": manifest.notes,
        "out": out(arguments).display().to_string(),
    })
}

/// The report as text: the result, and the command that trains on it. Names of files may come from
/// anyone, so characters that act on a terminal are replaced.
pub fn text(manifest: &Manifest, arguments: &ExtractArguments) -> String {
    let (rows, model) = (manifest.rows.values().sum::<usize>(), &manifest.model);
    let part = |name: &str| manifest.rows.get(name).copied().unwrap_or_default();
    let mut text = format!(
        "{rows} samples of {} classes as rows of {} numbers, by {}{}: {} to train, {} to validate, {} to test\nin {}",
        manifest.classes.len(),
        model.columns,
        sanitize_terminal(&model.architecture),
        device(manifest).map(|device| format!(" on the {device}")).unwrap_or_default(),
        part("train"),
        part("val"),
        part("test"),
        out(arguments).display(),
    );
    for skipped in &manifest.skipped {
        text += &format!("\nskipped: {}: {}", sanitize_terminal(&skipped.item), sanitize_terminal(&skipped.reason));
    }
    for note in &manifest.notes {
        text += &format!("\nnote: {}", sanitize_terminal(note));
    }
    text + "\nnext: " + &next(arguments)
}

/// The command that trains on the features.
fn next(arguments: &ExtractArguments) -> String {
    let file = |name: &str| out(arguments).join(name).display().to_string();
    match arguments.output {
        OutputArgument::Npy => format!(
            "hetal train --features {} --labels {} --validation {} --validation-labels {} --server ...",
            file("features_train.npy"),
            file("labels_train.npy"),
            file("features_val.npy"),
            file("labels_val.npy"),
        ),
        OutputArgument::Safetensors => format!(
            "hetal train --features {} --label-column labels --validation {} --server ...",
            file("train.safetensors"),
            file("val.safetensors"),
        ),
    }
}
