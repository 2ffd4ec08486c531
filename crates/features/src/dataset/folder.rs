//! A folder for each class.

use super::{Found, Source, entries, file_name, first_there, number_classes};
use crate::Result;
use std::path::Path;

/// Files that are pictures; those that cannot be read are reported when their turn comes.
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"];

type Named = (String, String, Source);

pub(crate) fn read(folder: &Path) -> Result<Found> {
    // A part holds classes; a folder `train` with pictures in it is a class of that name.
    let holds_folders = |path: &Path| entries(path).is_ok_and(|inside| inside.iter().any(|path| path.is_dir()));
    let part = |names: &[&str]| first_there(folder, names).filter(|path| holds_folders(path));
    let read = |path: &Path| classes(folder, path);
    let Some(train) = part(&["train"]) else {
        return Ok(number_classes([Some(read(folder)?), None, None]));
    };
    let val = part(&["val", "valid", "validation"]).map(|path| read(&path)).transpose()?;
    let test = part(&["test"]).map(|path| read(&path)).transpose()?;
    Ok(number_classes([Some(read(&train)?), val, test]))
}

/// The samples of each class, named by their place under `root`: files of other kinds are left alone.
fn classes(root: &Path, folder: &Path) -> Result<Vec<Named>> {
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
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            samples.push((place, name.clone(), source));
        }
    }
    Ok(samples)
}
