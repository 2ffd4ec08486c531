//! A folder for each class.

use super::{Found, Source, entries, file_name, number_classes, part_named};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files that are pictures; those that cannot be read are reported when their turn comes.
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"];

/// Folders within the folder of a class are its own, to this depth.
const DEPTH: usize = 32;

type Named = (String, String, Source);

/// What a folder of classes holds.
#[derive(Default)]
struct Classes {
    samples: Vec<Named>,
    /// Files that are no samples, and folders without any.
    others: Vec<String>,
}

pub(crate) fn read(folder: &Path) -> Result<Found> {
    let inside = entries(folder)?;
    let parts = match inside.iter().any(|path| part(path) == Some(0)) {
        true => parts(folder, &inside)?,
        false => [Some(unparted(folder)?), None, None],
    };
    let others: Vec<&String> = parts.iter().flatten().flat_map(|part| &part.others).collect();
    let note = others.split_first().map(|(first, more)| {
        let count = more.len();
        format!("left alone, as neither pictures nor .txt files in the folder of a class: {first} and {count} more")
    });
    let found = number_classes(parts.map(|part| part.map(|part| part.samples)));
    Ok(Found { notes: note.into_iter().collect(), ..found })
}

/// Whether a folder has a part's folder in it, or two folders with samples.
pub(super) fn holds_classes(folder: &Path) -> bool {
    let holds_samples = |path: &PathBuf| {
        let mut found = Classes::default();
        path.is_dir() && found.add(folder, "", path, DEPTH).is_ok() && !found.samples.is_empty()
    };
    let inside = entries(folder).unwrap_or_default();
    inside.iter().any(|path| path.is_dir() && part(path).is_some())
        || inside.iter().filter(|path| holds_samples(path)).count() > 1
}

/// Which part a folder is, by its name. A part holds classes; a folder `train` with pictures in it is a class of that name.
fn part(path: &Path) -> Option<usize> {
    let holds_folders = || entries(path).is_ok_and(|inside| inside.iter().any(|path| path.is_dir()));
    part_named(&file_name(path)).filter(|_| holds_folders())
}

/// The classes of each part. What lies beside them must not look like a class: it would be lost.
fn parts(root: &Path, inside: &[PathBuf]) -> Result<[Option<Classes>; 3]> {
    let mut parts = [None, None, None];
    let mut others = Vec::new();
    for path in inside {
        let name = file_name(path);
        if let Some(slot) = part(path).and_then(|part| parts.get_mut(part)) {
            if slot.replace(Classes::of(root, path)?).is_some() {
                let reason = format!("holds {name} beside another folder of the same part; put them into one");
                return Err(Error::dataset(root, reason));
            }
        } else if path.is_dir() {
            let mut beside = Classes::default();
            beside.add(root, &name, path, DEPTH)?;
            // Samples to be judged may come without their classes.
            if !beside.samples.is_empty() && !matches!(part_named(&name), Some(1 | 2)) {
                let reason = format!(
                    "holds a part to train on, with folders in it, and {name}, which has samples and is no part: if all are \
                     classes, put the samples of each into its folder, not into folders in it; if not, take {name} away"
                );
                return Err(Error::dataset(root, reason));
            }
            others.push(format!("{name}/"));
        } else {
            others.push(name);
        }
    }
    if let [Some(train), ..] = &mut parts {
        train.others.extend(others);
    }
    Ok(parts)
}

/// The classes of a data set that is not in parts.
fn unparted(folder: &Path) -> Result<Classes> {
    let classes = Classes::of(folder, folder)?;
    match classes.alike() {
        None => Ok(classes),
        Some([one, two, name]) => {
            let reason = format!(
                "{one} and {two} hold no samples but folders, of which {name} is in both: if these are the classes, name the \
                 folders above them train, val and test; if not, put the samples of each class into its folder itself, or list \
                 them in a table (--path-column)"
            );
            Err(Error::dataset(folder, reason))
        }
    }
}

impl Classes {
    /// The samples of each class, named by their place under `root`.
    fn of(root: &Path, folder: &Path) -> Result<Self> {
        let mut found = Self::default();
        for path in entries(folder)? {
            match path.is_dir() {
                true => found.add(root, &file_name(&path), &path, DEPTH)?,
                false => found.others.push(place(root, &path)),
            }
        }
        Ok(found)
    }

    /// The files of a class and of the folders in it.
    fn add(&mut self, root: &Path, class: &str, folder: &Path, depth: usize) -> Result<()> {
        for path in entries(folder)? {
            let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
            let source = match extension.as_str() {
                _ if path.is_dir() && depth == 0 => {
                    let reason = format!("is nested more than {DEPTH} deep; does a link in it lead back?");
                    return Err(Error::dataset(folder, reason));
                }
                _ if path.is_dir() => {
                    self.add(root, class, &path, depth - 1)?;
                    continue;
                }
                "txt" => Source::TextFile(path.clone()),
                other if PICTURES.contains(&other) => Source::File(path.clone()),
                _ => {
                    self.others.push(place(root, &path));
                    continue;
                }
            };
            self.samples.push((place(root, &path), class.to_owned(), source));
        }
        Ok(())
    }

    /// Two classes that have all their samples in folders, and the name of a folder that both have: they may be parts under names of
    /// their own, and the folders the classes.
    fn alike(&self) -> Option<[&str; 3]> {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for samples in self.samples.chunk_by(|(_, one, _), (_, two, _)| one == two) {
            if samples.iter().any(|(place, ..)| folders(place).is_empty()) {
                continue;
            }
            for (place, class, _) in samples {
                for folder in folders(place) {
                    if let Some(other) = seen.insert(folder, class).filter(|other| other != class) {
                        return Some([other, class, folder]);
                    }
                }
            }
        }
        None
    }
}

/// The folders between a file and that of its class, by its place in the data set.
fn folders(place: &str) -> Vec<&str> {
    let mut between: Vec<&str> = place.split(std::path::MAIN_SEPARATOR).skip(1).collect();
    between.pop();
    between
}

/// What a report calls a file: its place under `root`.
fn place(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}
