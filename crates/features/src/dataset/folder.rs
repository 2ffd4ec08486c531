//! A folder for each class.

use super::{Found, Source, entries, file_name, first_there, number_classes};
use crate::Result;
use std::path::Path;

/// Files that are pictures; those that cannot be read are reported when their turn comes.
const PICTURES: [&str; 7] = ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif"];

type Named = (String, String, Source);

pub(crate) fn read(folder: &Path) -> Result<Found> {
    let part = |names: &[&str]| first_there(folder, names).filter(|path| path.is_dir());
    let Some(train) = part(&["train"]) else {
        return Ok(number_classes([Some(classes(folder)?), None, None]));
    };
    let val = part(&["val", "valid", "validation"]).map(|path| classes(&path)).transpose()?;
    let test = part(&["test"]).map(|path| classes(&path)).transpose()?;
    Ok(number_classes([Some(classes(&train)?), val, test]))
}

/// The samples of each class: files of other kinds are left alone.
fn classes(folder: &Path) -> Result<Vec<Named>> {
    let mut samples = Vec::new();
    for class in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        let name = file_name(&class);
        for path in entries(&class)? {
            let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
            let source = match extension.as_str() {
                "txt" => Source::TextFile(path.clone()),
                other if PICTURES.contains(&other) => Source::File(path.clone()),
                _ => continue,
            };
            samples.push((path.display().to_string(), name.clone(), source));
        }
    }
    Ok(samples)
}
