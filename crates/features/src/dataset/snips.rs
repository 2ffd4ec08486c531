//! The SNIPS intents, in the three forms in which they are published.

use super::{FoundSamples, SampleSource, entries, file_name, first_there, number_classes};
use crate::{Error, Result, untrusted};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Larger files are refused; all of SNIPS has 2 MiB.
const MAX_BYTES: u64 = 1 << 30;

type Named = (String, String, SampleSource);

pub(crate) fn read(folder: &Path) -> Result<FoundSamples> {
    let json = |start: &str| -> Result<Option<Vec<Named>>> {
        let files = originals(folder, start)?;
        let samples = files.iter().map(|path| intents(path)).collect::<Result<Vec<_>>>()?.concat();
        Ok((!samples.is_empty()).then_some(samples))
    };
    let part = |names: &[&str]| -> Result<Option<Vec<Named>>> {
        let tables: Vec<String> = names.iter().map(|name| format!("{name}.tsv")).collect();
        let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
        match (first_there(folder, &tables), first_there(folder, names)) {
            (Some(path), _) => lines(&path).map(Some),
            (None, Some(path)) => paired(&path).map(Some),
            (None, None) => Ok(None),
        }
    };
    let parts = match part(&["train"])? {
        Some(train) => [Some(train), part(&["val", "valid"])?, part(&["test"])?],
        // The original files keep the test sentences under "validate".
        None => [json("train_")?, None, json("validate_")?],
    };
    if parts[0].is_none() {
        return Err(Error::dataset(folder, "has neither train.tsv nor train/seq.in nor train_*.json in it"));
    }
    Ok(number_classes(parts))
}

/// The original files whose names begin with `start`, in the folder or in a folder for each intent.
/// Most intents have two, of which `train_X.json` is a part of `train_X_full.json`.
pub(super) fn originals(folder: &Path, start: &str) -> Result<Vec<PathBuf>> {
    let mut files = if folder.is_dir() { entries(folder)? } else { vec![] };
    for inside in files.clone().iter().filter(|path| path.is_dir()) {
        files.extend(entries(inside)?);
    }
    files.retain(|path| file_name(path).starts_with(start) && file_name(path).ends_with(".json") && path.is_file());
    let all = files.clone();
    files.retain(|path| !all.contains(&path.with_file_name(file_name(path).replace(".json", "_full.json"))));
    Ok(files)
}

/// Reads a table with a line for each sentence: intent, tab, text.
fn lines(path: &Path) -> Result<Vec<Named>> {
    let text = untrusted::read_text(path, MAX_BYTES).map_err(Error::io(path))?;
    let sample = |(row, line): (usize, &str)| {
        let name = format!("{} row {}", file_name(path), row + 1);
        let (intent, text) = line.split_once('\t').ok_or_else(|| {
            Error::dataset(path, format!("row {}: no tab between intent and text; correct the row", row + 1))
        })?;
        Ok((name, intent.trim().to_owned(), SampleSource::Text(text.to_owned())))
    };
    text.lines().enumerate().map(sample).collect()
}

/// Reads `seq.in`, with a sentence in each line, and `label`, with its intent.
fn paired(folder: &Path) -> Result<Vec<Named>> {
    let text = |name: &str| untrusted::read_text(&folder.join(name), MAX_BYTES).map_err(Error::io(&folder.join(name)));
    let (sentences, intents) = (text("seq.in")?, text("label")?);
    if sentences.lines().count() != intents.lines().count() {
        return Err(Error::dataset(folder, "seq.in and label differ in their number of lines; get both files again"));
    }
    let sample = |(row, (text, intent)): (usize, (&str, &str))| {
        (
            format!("{}/seq.in row {}", file_name(folder), row + 1),
            intent.trim().to_owned(),
            SampleSource::Text(text.to_owned()),
        )
    };
    Ok(sentences.lines().zip(intents.lines()).enumerate().map(sample).collect())
}

/// Reads an original file: `{"Intent": [{"data": [{"text": ...}, ...]}, ...]}`. Some are in
/// Latin-1.
fn intents(path: &Path) -> Result<Vec<Named>> {
    #[derive(serde::Deserialize)]
    struct Piece {
        text: String,
    }
    #[derive(serde::Deserialize)]
    struct Sentence {
        data: Vec<Piece>,
    }
    let bytes = untrusted::read(path, MAX_BYTES).map_err(Error::io(path))?;
    let text = String::from_utf8(bytes).unwrap_or_else(|e| e.into_bytes().iter().map(|&b| char::from(b)).collect());
    let by_intent: BTreeMap<String, Vec<Sentence>> = serde_json::from_str(&text)
        .map_err(|e| Error::dataset(path, format!("is no file of intents: {e}; get it again")))?;
    let mut samples = Vec::new();
    for (intent, sentences) in by_intent {
        for (index, sentence) in sentences.into_iter().enumerate() {
            let text: String = sentence.data.into_iter().map(|piece| piece.text).collect();
            samples.push((
                format!("{} sentence {}", file_name(path), index + 1),
                intent.clone(),
                SampleSource::Text(text),
            ));
        }
    }
    Ok(samples)
}
