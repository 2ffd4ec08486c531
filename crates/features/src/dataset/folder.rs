//! Data sets with a folder for each class.

use super::{FoundSamples, SampleSource, entries, file_name, number_classes, part_named};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Extensions of pictures. A picture of a form that cannot be decoded is reported when it is read.
const PICTURES: [&str; 8] = ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"];

/// Folders in the folder of a class belong to the class, to this depth.
const DEPTH: usize = 32;

type Named = (String, String, SampleSource);

/// The content of a folder of classes.
#[derive(Default)]
struct Classes {
    samples: Vec<Named>,
    /// Files that are not samples, and folders without samples.
    others: Vec<String>,
}

pub(crate) fn read(folder: &Path) -> Result<FoundSamples> {
    let inside = entries(folder)?;
    let parts = match inside.iter().any(|path| part(path) == Some(0)) {
        true => parts(folder, &inside)?,
        false => [Some(unparted(folder)?), None, None],
    };
    let others: Vec<&String> = parts.iter().flatten().flat_map(|part| &part.others).collect();
    let note = others.split_first().map(|(first, more)| {
        let count = more.len();
        format!("ignored, because neither pictures nor .txt files in the folder of a class: {first} and {count} more")
    });
    let found = number_classes(parts.map(|part| part.map(|part| part.samples)));
    Ok(FoundSamples { notes: note.into_iter().collect(), ..found })
}

/// Whether a folder holds the folder of a part, or two folders with samples.
pub(super) fn holds_classes(folder: &Path) -> bool {
    let holds_samples = |path: &PathBuf| {
        let mut found = Classes::default();
        path.is_dir() && found.add_class(folder, "", path).is_ok() && !found.samples.is_empty()
    };
    let inside = entries(folder).unwrap_or_default();
    inside.iter().any(|path| path.is_dir() && part(path).is_some())
        || inside.iter().filter(|path| holds_samples(path)).count() > 1
}

/// The part that a folder is, by its name. A part holds folders of classes; a folder `train` that
/// holds pictures is a class of that name.
fn part(path: &Path) -> Option<usize> {
    let holds_folders = || entries(path).is_ok_and(|inside| inside.iter().any(|path| path.is_dir()));
    part_named(&file_name(path)).filter(|_| holds_folders())
}

/// The classes of each part. A folder with samples beside the parts is an error, because its
/// samples would be lost.
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
            beside.add_class(root, &name, path)?;
            // Test samples may come without their classes.
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

/// The classes of a data set without parts.
fn unparted(folder: &Path) -> Result<Classes> {
    let classes = Classes::of(folder, folder)?;
    match classes.shared_subfolder() {
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
    /// The samples of each class, named by their path under `root`.
    fn of(root: &Path, folder: &Path) -> Result<Self> {
        let mut found = Self::default();
        for path in entries(folder)? {
            match path.is_dir() {
                true => found.add_class(root, &file_name(&path), &path)?,
                false => found.others.push(shown_path(root, &path)),
            }
        }
        Ok(found)
    }

    /// Adds the files of a class.
    fn add_class(&mut self, root: &Path, class: &str, folder: &Path) -> Result<()> {
        self.add(root, class, folder, DEPTH, &mut BTreeSet::new())
    }

    /// Adds the files of a folder and of the folders in it. A folder that links reach a second time
    /// is an error: links that lead round would make millions of samples out of a few.
    fn add(
        &mut self,
        root: &Path,
        class: &str,
        folder: &Path,
        depth: usize,
        visited: &mut BTreeSet<FolderId>,
    ) -> Result<()> {
        if !visited.insert(folder_id(folder)?) {
            let reason = "is a link to a folder that the class holds already; remove the link";
            return Err(Error::dataset(folder, reason));
        }
        for path in entries(folder)? {
            let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
            let source = match extension.as_str() {
                _ if path.is_dir() && depth == 0 => {
                    let reason = format!("holds folders more than {DEPTH} deep; move its files up");
                    return Err(Error::dataset(folder, reason));
                }
                _ if path.is_dir() => {
                    self.add(root, class, &path, depth - 1, visited)?;
                    continue;
                }
                "txt" => SampleSource::TextFile(path.clone()),
                other if PICTURES.contains(&other) => SampleSource::File(path.clone()),
                _ => {
                    self.others.push(shown_path(root, &path));
                    continue;
                }
            };
            self.samples.push((shown_path(root, &path), class.to_owned(), source));
        }
        Ok(())
    }

    /// Two classes that hold all their samples in subfolders, and the name of a subfolder that both
    /// have. Such classes may be parts with unknown names, and the subfolders the classes.
    fn shared_subfolder(&self) -> Option<[&str; 3]> {
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

/// The folders between a file and the folder of its class, by its path in the data set.
fn folders(place: &str) -> Vec<&str> {
    let mut between: Vec<&str> = place.split(std::path::MAIN_SEPARATOR).skip(1).collect();
    between.pop();
    between
}

/// Identifies a folder, whatever path leads to it.
#[cfg(unix)]
type FolderId = (u64, u64);

#[cfg(unix)]
fn folder_id(folder: &Path) -> Result<FolderId> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(folder).map_err(Error::io(folder))?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type FolderId = PathBuf;

#[cfg(not(unix))]
fn folder_id(folder: &Path) -> Result<FolderId> {
    folder.canonicalize().map_err(Error::io(folder))
}

/// The name of a file in messages: its path under `root`.
fn shown_path(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}
