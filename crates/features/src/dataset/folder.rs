//! A folder for each class.

use super::{Found, Source, entries, file_name, first_there, number_classes};
use crate::{Error, Result};
use std::path::Path;

/// Files that are pictures; those that cannot be read are reported when their turn comes.
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"];

/// Folders within the folder of a class are its own, to this depth.
const DEPTH: usize = 32;

type Named = (String, String, Source);

/// What a folder of classes holds.
#[derive(Default)]
struct Classes {
    samples: Vec<Named>,
    /// Files that are no samples.
    others: Vec<String>,
}

pub(crate) fn read(folder: &Path) -> Result<Found> {
    // A part holds classes; a folder `train` with pictures in it is a class of that name.
    let holds_folders = |path: &Path| entries(path).is_ok_and(|inside| inside.iter().any(|path| path.is_dir()));
    let part = |names: &[&str]| first_there(folder, names).filter(|path| holds_folders(path));
    let read = |path: &Path| Classes::of(folder, path);
    let parts = match part(&["train"]) {
        None => [Some(read(folder)?), None, None],
        Some(train) => {
            let val = part(&["val", "valid", "validation"]).map(|path| read(&path)).transpose()?;
            [Some(read(&train)?), val, part(&["test"]).map(|path| read(&path)).transpose()?]
        }
    };
    let others: Vec<&String> = parts.iter().flatten().flat_map(|part| &part.others).collect();
    let note = others.split_first().map(|(first, more)| {
        format!("left alone, as neither pictures nor .txt files: {first} and {} more", more.len())
    });
    let found = number_classes(parts.map(|part| part.map(|part| part.samples)));
    Ok(Found { notes: note.into_iter().collect(), ..found })
}

impl Classes {
    /// The samples of each class, named by their place under `root`.
    fn of(root: &Path, folder: &Path) -> Result<Self> {
        let mut found = Self::default();
        for class in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
            found.add(root, &file_name(&class), &class, DEPTH)?;
        }
        Ok(found)
    }

    /// The files of a class and of the folders in it.
    fn add(&mut self, root: &Path, class: &str, folder: &Path, depth: usize) -> Result<()> {
        for path in entries(folder)? {
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
            let source = match extension.as_str() {
                _ if path.is_dir() && depth == 0 => return Err(Error::dataset(folder, "holds folders in folders")),
                _ if path.is_dir() => {
                    self.add(root, class, &path, depth - 1)?;
                    continue;
                }
                "txt" => Source::TextFile(path),
                other if PICTURES.contains(&other) => Source::File(path),
                _ => {
                    self.others.push(place);
                    continue;
                }
            };
            self.samples.push((place, class.to_owned(), source));
        }
        Ok(())
    }
}
