//! Data sets: named samples with labels, in a training, a validation and a test part, read from the
//! forms in which data sets are published.

mod archive;
mod binary;
mod folder;
mod snips;
mod table;
mod voc;

use crate::picture::Picture;
use crate::{Error, Result, split, untrusted};
use std::collections::BTreeSet;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use table::SampleColumns;

/// Longer first lines of a table are not compared with names of columns.
const MAX_HEADING: usize = 1 << 20;

/// Larger text files are refused.
const MAX_TEXT: u64 = 16 << 20;

/// The three parts, in the order of `Dataset::parts`.
pub const PARTS: [&str; 3] = ["train", "val", "test"];

/// The names of the parts, in the order of `PARTS`.
const PART_NAMES: [&[&str]; 3] = [&["train", "training"], &["val", "valid", "validation"], &["test", "testing"]];

/// The part that a folder or table is named after, in any case. `training_set` and `test_data`
/// count too.
pub(crate) fn part_named(name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    let name = ["set", "data"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    PART_NAMES.iter().position(|names| names.contains(&name.trim_end_matches(['_', '-', ' '])))
}

/// The forms of data sets.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetFormat {
    /// A folder for each class, with pictures or `.txt` files; or `train`, `val` and `test` with
    /// such folders in them.
    Folders,
    /// A CSV, TSV, JSON-lines, Parquet or Arrow file; or a folder with `train`, `val` and `test`
    /// files.
    Table(SampleColumns),
    /// MNIST's four idx files.
    Mnist,
    /// CIFAR-10's binary batches.
    Cifar10,
    /// Face Mask Detection: `images` and Pascal-VOC `annotations`, one sample for each box.
    FaceMask,
    /// DermaMNIST (or another MedMNIST set): the `.npz` file.
    MedMnist,
    /// SNIPS intents: `train.tsv` and others, `train/seq.in` and `label` and others, or the
    /// original `train_*.json` files.
    Snips,
}

impl DatasetFormat {
    /// Detects the form of the files at `path`. Any other folder counts as a folder of classes.
    pub fn detect(path: &Path, columns: SampleColumns) -> Self {
        let has = |names: &[&str]| first_there(path, names).is_some();
        let original = || snips::originals(path, "train_").is_ok_and(|files| !files.is_empty());
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => Self::MedMnist,
            _ if path.is_file() => Self::Table(columns),
            _ if binary::is_mnist(path) => Self::Mnist,
            _ if has(&["data_batch_1.bin"]) => Self::Cifar10,
            _ if has(&["annotations"]) && has(&["images"]) => Self::FaceMask,
            // The tables of SNIPS have no heading.
            _ if has(&["train.tsv"]) && !heading_has(&path.join("train.tsv"), &columns.label) => Self::Snips,
            _ if has(&["train/seq.in"]) || original() => Self::Snips,
            _ if table::detected(path, &columns) => Self::Table(columns),
            _ => Self::Folders,
        }
    }
}

fn heading_has(path: &Path, column: &str) -> bool {
    let first = untrusted::open(path).and_then(|file| untrusted::read_line(&mut BufReader::new(file), MAX_HEADING));
    let line = first.ok().flatten().unwrap_or_default();
    line.split(|&byte| byte == b'\t').any(|name| name.trim_ascii() == column.as_bytes())
}

/// Where a sample's content is.
#[derive(Debug, Clone)]
pub enum SampleSource {
    /// A text.
    Text(String),
    /// A file with a text in it.
    TextFile(PathBuf),
    /// A picture's file.
    File(PathBuf),
    /// A part of a picture's file: left, top, right, bottom.
    Region(PathBuf, [usize; 4]),
    /// One of many small pictures.
    Stored(Arc<Pictures>, usize),
}

/// Small pictures of one size, one after the other.
#[derive(Debug)]
pub struct Pictures {
    /// Columns of each.
    pub width: usize,
    /// Rows of each.
    pub height: usize,
    /// 1 (grey) or 3.
    pub channels: usize,
    /// Whether a picture is stored channel by channel (CIFAR-10) and not pixel by pixel.
    pub planar: bool,
    /// Their values.
    pub bytes: Vec<u8>,
}

/// A named sample.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its name in messages: its file or row.
    pub name: String,
    /// Its class, an index into `Dataset::classes`.
    pub label: usize,
    /// Its content.
    pub source: SampleSource,
}

/// The content of a sample that has been read.
pub enum Content {
    /// A sentence.
    Text(String),
    /// A picture.
    Picture(Picture),
}

/// A data set in three parts.
#[derive(Debug)]
pub struct Dataset {
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Training, validation and test samples.
    pub parts: [Vec<Sample>; 3],
    /// Notes for the user, for example about classes with too few samples.
    pub notes: Vec<String>,
}

/// The samples that the files hold (training, validation, test), before missing parts are split
/// off.
pub(crate) struct FoundSamples {
    pub classes: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    pub parts: [Option<Vec<Sample>>; 3],
}

impl Dataset {
    /// Reads the data set at `path` and splits off missing parts: 7:1:2 without any part, 7:1 if
    /// only the validation part is missing.
    pub fn open(path: &Path, format: &DatasetFormat, seed: u64) -> Result<Self> {
        if !path.exists() {
            return Err(Error::dataset(path, "no such file or folder; check --data"));
        }
        let found = match format {
            DatasetFormat::Folders => folder::read(path)?,
            DatasetFormat::Table(columns) => table::read(path, columns)?,
            DatasetFormat::Mnist => binary::mnist(path)?,
            DatasetFormat::Cifar10 => binary::cifar10(path)?,
            DatasetFormat::FaceMask => voc::read(path)?,
            DatasetFormat::MedMnist => archive::read(path)?,
            DatasetFormat::Snips => snips::read(path)?,
        };
        if found.parts.iter().flatten().all(Vec::is_empty) {
            return Err(Error::dataset(
                path,
                "holds no samples; a class is a folder with pictures or .txt files in it, a table is named itself",
            ));
        }
        if found.classes.len() < 2 {
            let reason = format!("holds one class only ({}); a classifier needs two or more", found.classes.join(""));
            return Err(Error::dataset(path, reason));
        }
        let [train, val, test] = found.parts;
        let Some(train) = train else {
            return Err(Error::dataset(
                path,
                "has validation or test samples but none for training; add a part named train",
            ));
        };
        let (parts, notes) = split::complete(&found.classes, train, val, test, seed);
        Ok(Self { classes: found.classes, parts, notes: [found.notes, notes].concat() })
    }

    /// Keeps at most so many samples of each part: of each class its share, and at least one.
    pub fn subsample(&mut self, most: [usize; 3], seed: u64) {
        for (part, most) in self.parts.iter_mut().zip(most) {
            if part.len() > most {
                let all = std::mem::take(part);
                let count = all.len();
                *part = split::split_off(all, self.classes.len(), count - most, count, seed).0;
            }
        }
    }

    /// Whether most of its samples are texts. A data set holds one kind; a sample of the other kind
    /// is reported when it is read.
    pub fn is_text(&self) -> bool {
        let texts =
            self.samples().filter(|sample| matches!(sample.source, SampleSource::Text(_) | SampleSource::TextFile(_)));
        2 * texts.count() > self.samples().count()
    }

    /// All samples, part after part.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.parts.iter().flatten()
    }
}

impl Sample {
    /// Reads and decodes the sample; the error names it.
    pub fn read(&self) -> Result<Content> {
        let no = |reason: &str| Error::item(&self.name, reason);
        match &self.source {
            SampleSource::Text(text) => self.text(text),
            SampleSource::TextFile(path) => {
                let bytes = text_file(path).map_err(|e| no(&e.to_string()))?;
                self.text(std::str::from_utf8(&bytes).map_err(|_| no("is not text in UTF-8; save it as UTF-8"))?)
            }
            SampleSource::File(path) => Picture::open(path).map(Content::Picture),
            SampleSource::Region(path, region) => self.cropped(&Picture::open(path)?, *region),
            SampleSource::Stored(pictures, index) => {
                pictures.get(*index).map(Content::Picture).ok_or_else(|| no("is not stored"))
            }
        }
    }

    /// Reads samples that are regions of one picture (`shares_picture`). The picture is decoded
    /// once.
    pub(crate) fn read_together(samples: &[&Self]) -> Vec<Result<Content>> {
        let decoded = match samples {
            [first, _, ..] => match &first.source {
                SampleSource::Region(path, _) => Some(Picture::open(path)),
                _ => None,
            },
            _ => None,
        };
        let read = |sample: &&Self| match (&decoded, &sample.source) {
            (Some(Ok(picture)), SampleSource::Region(_, region)) => sample.cropped(picture, *region),
            (Some(Err(error)), _) => Err(Error::item(&sample.name, error.to_string())),
            _ => sample.read(),
        };
        samples.iter().map(read).collect()
    }

    /// Whether both are regions of one picture.
    pub(crate) fn shares_picture(&self, other: &Self) -> bool {
        matches!((&self.source, &other.source), (SampleSource::Region(a, _), SampleSource::Region(b, _)) if a == b)
    }

    fn cropped(&self, picture: &Picture, [left, top, right, bottom]: [usize; 4]) -> Result<Content> {
        let region = picture.crop(left, top, right, bottom).map(Content::Picture);
        region.ok_or_else(|| Error::item(&self.name, "its box lies outside the picture; correct the annotation"))
    }

    fn text(&self, text: &str) -> Result<Content> {
        match text.trim() {
            "" => Err(Error::item(&self.name, "the text is empty")),
            text => Ok(Content::Text(text.to_owned())),
        }
    }
}

/// The bytes of a file with a text in it.
pub(crate) fn text_file(path: &Path) -> std::io::Result<Vec<u8>> {
    untrusted::read(path, MAX_TEXT)
}

impl Pictures {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.width * self.height * self.channels)
    }

    /// The values of one of them.
    pub(crate) fn values(&self, index: usize) -> Option<&[u8]> {
        self.bytes.chunks_exact(self.width * self.height * self.channels).nth(index)
    }

    fn get(&self, index: usize) -> Option<Picture> {
        let plane = self.width * self.height;
        let values = self.values(index)?;
        match (self.channels, self.planar) {
            (1, _) => Picture::from_grey(self.width, self.height, values),
            (3, false) => Picture::from_rgb(self.width, self.height, values.to_vec()),
            (3, true) => {
                let pixel = |i: usize| [values[i], values[plane + i], values[2 * plane + i]];
                Picture::from_rgb(self.width, self.height, (0..plane).flat_map(pixel).collect())
            }
            _ => None,
        }
    }
}

/// Numbers the classes in the order of their names.
pub(crate) fn number_classes(parts: [Option<Vec<(String, String, SampleSource)>>; 3]) -> FoundSamples {
    let names: BTreeSet<&String> = parts.iter().flatten().flatten().map(|(_, class, _)| class).collect();
    let classes: Vec<String> = names.into_iter().cloned().collect();
    let label = |class: &String| classes.binary_search(class).unwrap_or_default();
    let number = |part: Vec<(String, String, SampleSource)>| -> Vec<Sample> {
        part.into_iter().map(|(name, class, source)| Sample { name, label: label(&class), source }).collect()
    };
    FoundSamples { parts: parts.map(|part| part.map(number)), notes: vec![], classes: classes.clone() }
}

/// The entries of a folder, sorted by name.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = std::fs::read_dir(folder).map_err(Error::io(folder))?;
    let mut paths =
        listing.map(|entry| entry.map(|e| e.path()).map_err(Error::io(folder))).collect::<Result<Vec<_>>>()?;
    // Hidden files belong to the system.
    paths.retain(|path| !file_name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

/// The last part of a path, as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The first of `names` that exists in the folder.
pub(crate) fn first_there(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().map(|name| folder.join(name)).find(|path| path.exists())
}
