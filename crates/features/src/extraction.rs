//! An extraction: the features of a data set, computed by a network and written to files. It works
//! in chunks and records its progress, so that an interrupted extraction continues.

use crate::dataset::{self, Content, Dataset, PARTS, Sample, SampleSource};
use crate::manifest::{Manifest, Skipped};
use crate::npy::NpyArray;
use crate::picture::Picture;
use crate::sentence::{NOTHING, TextCoverage, Tokens};
use crate::weights::hexadecimal;
use crate::{Error, Extractor, Result, config, disk};
use rayon::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Texts of a chunk: enough to find texts of equal length, which go through the network together.
const TEXTS: usize = 512;
/// Pictures of a chunk on the CPU, where they take longer than texts.
const PICTURES: usize = 32;
/// Pictures of a chunk on a GPU.
const GPU_PICTURES: usize = 512;

/// Samples that are hashed between two signs of progress.
const HASHED: usize = 1000;

/// The treatment of a sample that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// The extraction stops with an error that names it.
    Refuse,
    /// It is left out and named in the manifest.
    Skip,
}

/// The files that are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OutputFormat {
    /// `features_{train,val,test}.npy` and `labels_{train,val,test}.npy`.
    Npy,
    /// `{train,val,test}.safetensors` with the arrays `features` and `labels`.
    Safetensors,
}

/// An extraction.
pub struct Extraction<'a> {
    /// The network.
    pub extractor: &'a Extractor,
    /// The data set.
    pub dataset: &'a Dataset,
    /// The seed it was split with.
    pub seed: u64,
    /// The folder of the results.
    pub folder: &'a Path,
    /// The treatment of samples that cannot be used.
    pub policy: Policy,
    /// The files to write.
    pub output: OutputFormat,
}

/// Observes which samples an extraction is working on, so that its supervisor can say where it
/// died.
pub trait Observer: Sync {
    /// A sample is being read; samples are read in parallel.
    fn begin(&self, _index: usize, _name: &str) {}
    /// It has been read, or could not be.
    fn end(&self, _index: usize) {}
    /// All samples of a chunk have been read and go through the network.
    fn network(&self, _first: &str, _last: &str) {}
    /// The extraction makes progress that is not counted in samples.
    fn alive(&self) {}
}

/// Observes nothing.
impl Observer for () {}

/// A sample in the form that the network reads.
enum Ready {
    Text(Tokens),
    Picture(Picture),
}

/// The recorded progress of an extraction, kept beside the rows.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    fingerprint: String,
    done: usize,
    rows: usize,
    skipped: BTreeMap<usize, String>,
    too_long: usize,
    #[serde(default)]
    devices: BTreeSet<String>,
}

impl Extraction<'_> {
    /// Runs or continues the extraction. `progress` is called with the number of finished samples.
    pub fn run(&self, progress: impl FnMut(usize)) -> Result<Manifest> {
        self.run_observed(progress, &())
    }

    /// Runs or continues the extraction. `progress` is called with the number of finished samples,
    /// `observer` with the samples that are being worked on.
    pub fn run_observed(&self, mut progress: impl FnMut(usize), observer: &dyn Observer) -> Result<Manifest> {
        if self.extractor.reads_text() != self.dataset.is_text() {
            let kind = |text: bool| if text { "texts" } else { "pictures" };
            return Err(Error::Kind { reads: kind(self.extractor.reads_text()), holds: kind(self.dataset.is_text()) });
        }
        let samples: Vec<&Sample> = self.dataset.samples().collect();
        let _lock = self.lock()?;
        let hash = self.samples_hash(observer);
        if let Some(manifest) = self.finished(&hash) {
            self.remove_progress(&hash)?;
            progress(samples.len());
            return Ok(manifest);
        }
        let (mut state, mut rows) = self.resume(&hash, samples.len())?;
        progress(state.done);
        let chunk = match (self.extractor.reads_text(), self.extractor.on_gpu()) {
            (true, _) => TEXTS,
            (false, false) => PICTURES,
            (false, true) => GPU_PICTURES,
        };
        while state.done < samples.len() {
            let end = (state.done + chunk).min(samples.len());
            let vectors = self.chunk(&mut state, &samples[..end], &mut progress, observer)?;
            let columns = self.extractor.identity().columns;
            if let Some(odd) = vectors.iter().find(|vector| vector.len() != columns) {
                let reason = format!(
                    "gives {} features for one input and {columns} for another; use another network",
                    odd.len()
                );
                return Err(Error::file(Path::new(&self.extractor.identity().source), reason));
            }
            let bytes: Vec<u8> = vectors.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
            rows.write_all(&bytes).and_then(|()| rows.sync_data()).map_err(Error::io(&self.rows_path()))?;
            state.rows += vectors.len();
            state.done = end;
            state.devices.insert(self.extractor.device().to_owned());
            self.save(&state)?;
            progress(end);
        }
        self.finish(&state, hash)
    }

    /// Locks the folder while the extraction runs: two extractions in one folder would mix their
    /// rows.
    fn lock(&self) -> Result<File> {
        std::fs::create_dir_all(self.folder).map_err(Error::io(self.folder))?;
        let folder = File::open(self.folder).map_err(Error::io(self.folder))?;
        match folder.try_lock() {
            Ok(()) => Ok(folder),
            Err(_) => Err(Error::file(
                self.folder,
                "another extraction runs in this folder; wait for it or choose another folder",
            )),
        }
    }

    fn work_folder(&self) -> PathBuf {
        self.folder.join("unfinished")
    }

    fn rows_path(&self) -> PathBuf {
        self.work_folder().join("rows.f32")
    }

    fn state_path(&self) -> PathBuf {
        self.work_folder().join("state.json")
    }

    /// The manifest of an earlier, finished extraction of the same samples by the same network into
    /// the same files. The manifest is written last: if it exists, everything does.
    fn finished(&self, hash: &str) -> Option<Manifest> {
        let manifest = Manifest::read(self.folder).ok()?;
        let model = self.extractor.identity();
        let same = manifest.samples == hash
            && model.changed(&manifest.model).is_none()
            && manifest.model.preprocessing == model.preprocessing
            && (self.policy == Policy::Skip || manifest.skipped.is_empty());
        let there = PARTS.iter().flat_map(|part| self.part_paths(part)).all(|path| path.is_file());
        (same && there).then_some(manifest)
    }

    /// Removes the recorded progress of this extraction, which may have been stopped after it wrote
    /// the manifest. The progress of another extraction is kept.
    fn remove_progress(&self, hash: &str) -> Result<()> {
        let ours = match config::read_if_there::<State>(&self.state_path()) {
            Ok(Some(state)) => self.is_continued(&state, hash),
            Ok(None) => true,
            Err(_) => false,
        };
        let work = self.work_folder();
        if ours && work.exists() {
            // The rows first: the next run removes a record without rows.
            disk::remove(&self.rows_path())?;
            std::fs::remove_dir_all(&work).map_err(Error::io(&work))?;
        }
        Ok(())
    }

    /// What must be the same for an extraction to continue. Of the files of the model, those count
    /// for which `is_compared` is true.
    fn fingerprint(&self, hash: &str, is_compared: impl Fn(&str) -> bool) -> String {
        let model = self.extractor.identity();
        let files: BTreeMap<_, _> = model.files.iter().filter(|(name, _)| is_compared(name)).collect();
        format!("{hash} {files:?} {:?}", model.preprocessing)
    }

    /// Whether a record belongs to this extraction. As in `Identity::changed`, files that it does
    /// not name are not compared.
    fn is_continued(&self, state: &State, hash: &str) -> bool {
        state.fingerprint == self.fingerprint(hash, |name| state.fingerprint.contains(&format!("{name:?}: ")))
    }

    /// The hash over the part, name, class and content of each sample. The size of a picture's file
    /// stands for its content.
    fn samples_hash(&self, observer: &dyn Observer) -> String {
        let mut hash = Sha256::new();
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len()).to_le_bytes();
        for (part, samples) in PARTS.iter().zip(&self.dataset.parts) {
            for (index, sample) in samples.iter().enumerate() {
                if index % HASHED == 0 {
                    observer.alive();
                }
                hash.update(format!("{part}\0{}\0{}\0", sample.name, self.dataset.classes[sample.label]));
                match &sample.source {
                    SampleSource::Text(text) => hash.update(text),
                    // A file that cannot be read is reported when the sample is read.
                    SampleSource::TextFile(path) => hash.update(dataset::text_file(path).unwrap_or_default()),
                    SampleSource::File(path) => hash.update(size(path)),
                    SampleSource::Region(path, region) => {
                        hash.update(size(path));
                        region.iter().for_each(|x| hash.update(x.to_le_bytes()));
                    }
                    SampleSource::Stored(pictures, index) => hash.update(pictures.values(*index).unwrap_or_default()),
                }
                hash.update("\n");
            }
        }
        hexadecimal(&hash.finalize())
    }

    /// Opens the recorded progress and the file of rows, cut to the recorded rows.
    fn resume(&self, hash: &str, total: usize) -> Result<(State, File)> {
        let work = self.work_folder();
        std::fs::create_dir_all(&work).map_err(Error::io(&work))?;
        let path = self.rows_path();
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(Error::io(&path))?;
        let state = match config::read_if_there::<State>(&self.state_path())? {
            Some(state) if self.is_continued(&state, hash) && state.done <= total => state,
            Some(_) => {
                let reason = "holds an unfinished extraction of other data or by another model; remove it or choose another folder";
                return Err(Error::file(&work, reason));
            }
            None => State { fingerprint: self.fingerprint(hash, |_| true), ..State::default() },
        };
        if let (Policy::Refuse, Some((index, reason))) = (self.policy, state.skipped.first_key_value()) {
            let name = self.dataset.samples().nth(*index).map(|sample| sample.name.clone());
            return Err(Error::item(name.unwrap_or_default(), reason));
        }
        let length = (state.rows * self.extractor.identity().columns * 4) as u64;
        if file.metadata().map_err(Error::io(&path))?.len() < length {
            return Err(Error::file(&path, "is shorter than its record; remove the folder it is in and start again"));
        }
        file.set_len(length).map_err(Error::io(&path))?;
        Ok((state, file))
    }

    fn save(&self, state: &State) -> Result<()> {
        write_json(&self.state_path(), state)
    }

    /// Computes the vectors of the samples from `state.done` on. `progress` is called with the
    /// number of finished samples.
    fn chunk(
        &self,
        state: &mut State,
        samples: &[&Sample],
        progress: &mut dyn FnMut(usize),
        observer: &dyn Observer,
    ) -> Result<Vec<Vec<f32>>> {
        let first = state.done;
        let read = self.read_chunk(samples, first, observer);
        if let (Some(first), Some(last)) = (samples.get(first), samples.last()) {
            observer.network(&first.name, &last.name);
        }
        let (mut texts, mut pictures): (Vec<Tokens>, Vec<Picture>) = (vec![], vec![]);
        for (index, ready) in read.into_iter().enumerate() {
            match ready {
                Ok(Ready::Text(tokens)) => {
                    state.too_long += usize::from(tokens.reading == TextCoverage::Beginning);
                    texts.push(tokens);
                }
                Ok(Ready::Picture(picture)) => pictures.push(picture),
                Err(Error::Item { reason, .. }) if self.policy == Policy::Skip => {
                    state.skipped.insert(first + index, reason);
                }
                Err(error) => return Err(error),
            }
        }
        match self.extractor.reads_text() {
            true => self.extractor.extract_tokens(&texts, &mut |rows| progress(first + rows)),
            false => self.extractor.extract_fitted(&pictures, &mut |rows| progress(first + rows)),
        }
    }

    /// Reads the samples from `first` on, in parallel; the regions of one picture together.
    fn read_chunk(&self, samples: &[&Sample], first: usize, observer: &dyn Observer) -> Vec<Result<Ready>> {
        let numbered: Vec<(usize, &Sample)> = samples.iter().copied().enumerate().skip(first).collect();
        let together: Vec<&[(usize, &Sample)]> = numbered.chunk_by(|(_, a), (_, b)| a.shares_picture(b)).collect();
        let ready = |group: &[(usize, &Sample)]| -> Vec<Result<Ready>> {
            group.iter().for_each(|(index, sample)| observer.begin(*index, &sample.name));
            let samples: Vec<&Sample> = group.iter().map(|(_, sample)| *sample).collect();
            let contents = Sample::read_together(&samples).into_iter();
            let ready = contents.zip(samples).map(|(content, sample)| self.ready(sample, content?)).collect();
            group.iter().for_each(|(index, _)| observer.end(*index));
            ready
        };
        together.into_par_iter().flat_map_iter(ready).collect()
    }

    /// Brings a sample into the form that the network reads. Pictures are resized here, so that
    /// each thread holds at most one large picture in memory.
    fn ready(&self, sample: &Sample, content: Content) -> Result<Ready> {
        let no = |reason: &str| Error::item(&sample.name, reason);
        match (content, self.extractor.reads_text()) {
            (Content::Picture(picture), false) => Ok(Ready::Picture(self.extractor.fitted(&picture))),
            (Content::Text(text), true) => match self.extractor.tokens(&text)? {
                Tokens { reading: TextCoverage::Nothing, .. } => Err(no(NOTHING)),
                tokens => Ok(Ready::Text(tokens)),
            },
            (Content::Picture(_), true) => Err(no("is a picture, but the model reads texts")),
            (Content::Text(_), false) => Err(no("is a text, but the model reads pictures")),
        }
    }

    /// Writes the rows of each part, then the manifest, and removes the recorded progress.
    fn finish(&self, state: &State, hash: String) -> Result<Manifest> {
        // The manifest of an earlier extraction does not describe the new rows.
        disk::remove(&self.folder.join(Manifest::FILE))?;
        let path = self.rows_path();
        let mut rows = std::io::BufReader::new(File::open(&path).map_err(Error::io(&path))?);
        let columns = self.extractor.identity().columns;
        let (mut index, mut counts, mut skipped) = (0, BTreeMap::new(), Vec::new());
        for (part, samples) in PARTS.iter().zip(&self.dataset.parts) {
            let mut labels = Vec::with_capacity(samples.len());
            for sample in samples {
                match state.skipped.get(&index) {
                    None => labels.push(sample.label),
                    Some(reason) => {
                        let (part, item) = ((*part).to_owned(), sample.name.clone());
                        skipped.push(Skipped { part, item, reason: reason.clone() });
                    }
                }
                index += 1;
            }
            let mut bytes = vec![0; labels.len() * columns * 4];
            rows.read_exact(&mut bytes).map_err(Error::io(&path))?;
            self.write_part(part, NpyArray::of_rows(columns, bytes), NpyArray::of_labels(&labels))?;
            counts.insert((*part).to_owned(), labels.len());
        }
        let manifest = self.manifest(state, hash.clone(), counts, skipped);
        write_json(&self.folder.join("classes.json"), &manifest.classes)?;
        write_json(&self.folder.join(Manifest::FILE), &manifest)?;
        self.remove_progress(&hash)?;
        Ok(manifest)
    }

    fn manifest(
        &self,
        state: &State,
        samples: String,
        rows: BTreeMap<String, usize>,
        skipped: Vec<Skipped>,
    ) -> Manifest {
        let mut notes = self.dataset.notes.clone();
        if state.too_long > 0 {
            let count = state.too_long;
            notes.push(format!("{count} texts are longer than the model reads: their end was left out"));
        }
        Manifest {
            version: Manifest::VERSION,
            model: self.extractor.identity().clone(),
            classes: self.dataset.classes.clone(),
            rows,
            seed: self.seed,
            samples,
            devices: state.devices.clone(),
            skipped,
            notes,
        }
    }

    /// The files of a part: features and labels, or both in one.
    fn part_paths(&self, part: &str) -> Vec<PathBuf> {
        let names = match self.output {
            OutputFormat::Npy => vec![format!("features_{part}.npy"), format!("labels_{part}.npy")],
            OutputFormat::Safetensors => vec![format!("{part}.safetensors")],
        };
        names.into_iter().map(|name| self.folder.join(name)).collect()
    }

    fn write_part(&self, part: &str, features: NpyArray, labels: NpyArray) -> Result<()> {
        match &self.part_paths(part)[..] {
            [one, two] => {
                features.write(one)?;
                labels.write(two)
            }
            paths => {
                let path = paths.first().cloned().unwrap_or_default();
                let bad = |e: safetensors::SafeTensorError| Error::file(&path, e.to_string());
                let arrays = [
                    ("features", TensorView::new(Dtype::F32, features.shape.clone(), &features.bytes).map_err(bad)?),
                    ("labels", TensorView::new(Dtype::I64, labels.shape.clone(), &labels.bytes).map_err(bad)?),
                ];
                disk::write(&path, &[&safetensors::serialize(arrays, None).map_err(bad)?])
            }
        }
    }
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::file(path, e.to_string()))?;
    disk::write(path, &[text.as_bytes(), b"\n"])
}
