//! This project's side of `reference/compare.sh`: loads a model, then answers requests on standard
//! input.
//!
//! A request is a line `ITEMS <tab> ROWS`: a JSON array of texts or files of pictures, and the file
//! for the rows of `f32`. The answer is a line of JSON. The model `pixels` returns the pixels of a
//! picture.

use hetal_features::{Extractor, picture::Picture};
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: compare MODEL < REQUESTS")?;
    let extractor = if model == "pixels" { None } else { Some(Extractor::open(Path::new(&model))?) };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (items, out) = line.split_once('\t').ok_or("a request is ITEMS <tab> ROWS")?;
        let items: Vec<String> = serde_json::from_slice(&std::fs::read(items)?)?;
        let start = Instant::now();
        let rows = rows(extractor.as_ref(), &items)?;
        let seconds = start.elapsed().as_secs_f64();
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(out, bytes)?;
        let columns = rows.first().map_or(0, Vec::len);
        println!("{}", serde_json::json!({ "rows": rows.len(), "columns": columns, "seconds": seconds }));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn rows(extractor: Option<&Extractor>, items: &[String]) -> hetal_features::Result<Vec<Vec<f32>>> {
    let picture = |item: &String| Picture::open(Path::new(item));
    match extractor {
        None => items.iter().map(|item| Ok(picture(item)?.pixels().iter().map(|&p| p.into()).collect())).collect(),
        Some(extractor) if extractor.reads_text() => {
            extractor.extract_texts(&items.iter().map(String::as_str).collect::<Vec<_>>())
        }
        Some(extractor) => {
            extractor.extract_pictures(&items.iter().map(picture).collect::<hetal_features::Result<Vec<_>>>()?)
        }
    }
}
