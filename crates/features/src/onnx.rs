//! Networks in the ONNX format, run by tract. A network reads pictures, or the tokens of sentences.

use crate::model::Preprocessing;
use crate::picture::{Picture, PicturePreprocessing};
use crate::sentence::{SentenceReader, Tokens};
use crate::{Error, Result, config, untrusted};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;

/// Larger files are refused, and so are more bytes of weights in other files. A Protocol Buffers
/// message has at most 2 GiB.
const MAX_BYTES: u64 = 2 << 30;

/// The side of pictures if neither the model nor a configuration names one.
const USUAL_SIDE: usize = 224;
/// The tokens of a sentence if no configuration names a limit.
const USUAL_TOKENS: usize = 512;
/// The input that only networks for sentences have.
const IDS: &str = "input_ids";

/// An ONNX model that reads one picture (1 x 3 x side x side) or the tokens of one sentence
/// (1 x length) at a time.
pub(crate) struct OnnxModel {
    plan: Arc<TypedRunnableModel>,
    kind: Kind,
    width: usize,
    path: PathBuf,
    external: BTreeSet<PathBuf>,
}

enum Kind {
    Pictures(PicturePreprocessing),
    Sentences(Box<SentenceReader>, Vec<TokenInput>),
}

/// The value that an input of a network for sentences gets for each token.
#[derive(Clone, Copy)]
enum TokenInput {
    Id,
    /// Whether the token counts: always 1, because nothing is padded.
    Mask,
    /// The sentence that the token belongs to: always the first.
    Segment,
}

impl OnnxModel {
    pub fn open(path: &Path) -> Result<Self> {
        untrusted::catch_panics(path, || Self::load(path))
    }

    fn load(path: &Path) -> Result<Self> {
        let bad = |e: TractError| {
            Error::file(path, format!("is no ONNX model that this program can run: {e:#}; export the model again"))
        };
        let files = Arc::new(ExternalFiles::beside(path));
        let model = parse(path, files.clone())?;
        let names: Vec<String> = model.inputs.iter().map(|input| model.node(input.node).name.clone()).collect();
        let (kind, model) = match names.iter().any(|name| name == IDS) {
            true => Self::of_sentences(path, model, &names),
            false => Self::of_pictures(path, model),
        }?;
        let plan = model.into_optimized().and_then(|model| model.into_runnable()).map_err(bad)?;
        let external = files.seen().read.clone();
        let mut model = Self { plan, kind, width: 0, path: path.to_owned(), external };
        model.width = match &model.kind {
            Kind::Pictures(preprocessing) => model.picture(vec![0.0; 3 * preprocessing.side.pow(2)])?.len(),
            Kind::Sentences(reader, inputs) => model.sentence(&[0], reader, inputs)?.len(),
        };
        Ok(model)
    }

    fn of_pictures(path: &Path, model: InferenceModel) -> Result<(Kind, InferenceModel)> {
        let usual = PicturePreprocessing::imagenet(side(&model).unwrap_or(USUAL_SIDE));
        let preprocessing = usual.adjusted_by(&path.with_file_name("preprocessor_config.json"))?;
        let side = preprocessing.side;
        config::check_sizes(path, &[("the side of its pictures", side, config::SIDES)])?;
        let model = model.with_input_fact(0, f32::fact([1, 3, side, side]).into());
        let bad = |e: TractError| {
            Error::file(
                path,
                format!(
                    "its input is not a picture of 1 x 3 x {side} x {side}: {e:#}; export the model with that input"
                ),
            )
        };
        Ok((Kind::Pictures(preprocessing), model.map_err(bad)?))
    }

    fn of_sentences(path: &Path, mut model: InferenceModel, names: &[String]) -> Result<(Kind, InferenceModel)> {
        let bad = |e: TractError| {
            Error::file(path, format!("its inputs are not 1 x length tokens: {e:#}; export the model with such inputs"))
        };
        let length = model.sym("length");
        let mut inputs = Vec::new();
        for (place, name) in names.iter().enumerate() {
            inputs.push(match name.as_str() {
                IDS => TokenInput::Id,
                "attention_mask" => TokenInput::Mask,
                "token_type_ids" => TokenInput::Segment,
                other => {
                    return Err(Error::file(
                        path,
                        format!(
                            "has the unknown input {other}; input_ids, attention_mask and token_type_ids are supported"
                        ),
                    ));
                }
            });
            let fact = i64::fact([1.to_dim(), length.to_dim()]);
            model.set_input_fact(place, fact.into()).map_err(bad)?;
        }
        let reader = SentenceReader::open(path.parent().unwrap_or(Path::new("")), USUAL_TOKENS)?;
        Ok((Kind::Sentences(Box::new(reader), inputs), model))
    }

    /// Files beside the model that hold some of its weights.
    pub fn external_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.external.iter()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn preprocessing(&self) -> Preprocessing {
        match &self.kind {
            Kind::Pictures(preprocessing) => Preprocessing::Picture(preprocessing.clone()),
            Kind::Sentences(reader, _) => Preprocessing::Sentence(reader.preprocessing.clone()),
        }
    }

    pub fn embed_pictures(&self, pictures: &[Picture], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        let Kind::Pictures(preprocessing) = &self.kind else {
            return Err(Error::Kind { reads: "texts", holds: "pictures" });
        };
        let forward = |picture: &Picture| {
            let pixels = preprocessing.apply(picture);
            let plane = |channel: usize| pixels.iter().copied().skip(channel).step_by(3);
            self.picture((0..3).flat_map(plane).collect())
        };
        one_by_one(pictures, forward, progress)
    }

    pub fn embed_tokens(&self, texts: &[&[u32]], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        let (reader, inputs) = self.reader()?;
        one_by_one(texts, |ids| self.sentence(ids, reader, inputs), progress)
    }

    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        self.reader()?.0.tokens(text)
    }

    fn reader(&self) -> Result<(&SentenceReader, &[TokenInput])> {
        match &self.kind {
            Kind::Sentences(reader, inputs) => Ok((reader, inputs)),
            Kind::Pictures(_) => Err(Error::Kind { reads: "pictures", holds: "texts" }),
        }
    }

    /// The features of one picture, given as three planes: the first output, its mean over all
    /// positions if it is a feature map, its first row if it is a sequence.
    fn picture(&self, planes: Vec<f32>) -> Result<Vec<f32>> {
        let bad = |e: TractError| self.cannot_run(e);
        let side = (planes.len() / 3).isqrt();
        let (shape, numbers) = self.run(tvec!(Tensor::from_shape(&[1, 3, side, side], &planes).map_err(bad)?))?;
        match shape[..] {
            [1, _] => Ok(numbers),
            [1, _, rows, columns] => {
                let places = rows * columns;
                Ok(numbers.chunks_exact(places.max(1)).map(|map| map.iter().sum::<f32>() / places as f32).collect())
            }
            [1, _, width] => Ok(numbers[..width.min(numbers.len())].to_vec()),
            _ => Err(self.no_features(&shape)),
        }
    }

    /// The features of one sentence: the first output, pooled if it has a row for each token.
    fn sentence(&self, ids: &[u32], reader: &SentenceReader, inputs: &[TokenInput]) -> Result<Vec<f32>> {
        let tensor = |input: &TokenInput| {
            let value = |&id: &u32| match input {
                TokenInput::Id => i64::from(id),
                TokenInput::Mask => 1,
                TokenInput::Segment => 0,
            };
            let values: Vec<i64> = ids.iter().map(value).collect();
            Tensor::from_shape(&[1, ids.len()], &values).map_err(|e| self.cannot_run(e))
        };
        let (shape, numbers) = self.run(inputs.iter().map(tensor).collect::<Result<_>>()?)?;
        match shape[..] {
            [1, width] if width > 0 => Ok(reader.preprocessing.finish(numbers)),
            [1, length, width] if length == ids.len() && width > 0 => Ok(reader.preprocessing.pool(&numbers, width)),
            _ => Err(self.no_features(&shape)),
        }
    }

    /// Runs the network and returns the shape and the numbers of its first output.
    fn run(&self, inputs: TVec<Tensor>) -> Result<(Vec<usize>, Vec<f32>)> {
        untrusted::catch_panics(&self.path, || self.run_unguarded(inputs))
    }

    fn run_unguarded(&self, inputs: TVec<Tensor>) -> Result<(Vec<usize>, Vec<f32>)> {
        let bad = |e: TractError| self.cannot_run(e);
        let outputs = self.plan.run(inputs.into_iter().map(Into::into).collect()).map_err(bad)?;
        let output = outputs.first().ok_or_else(|| {
            Error::file(&self.path, "has no output; export the model with its features as the first output")
        })?;
        let numbers = output.cast_to::<f32>().map_err(bad)?;
        let numbers = numbers.try_as_plain_ram().and_then(|plain| plain.as_slice::<f32>()).map_err(bad)?;
        Ok((output.shape().to_vec(), numbers.to_vec()))
    }

    fn cannot_run(&self, error: TractError) -> Error {
        Error::file(&self.path, format!("cannot be run: {error:#}; export the model again"))
    }

    fn no_features(&self, shape: &[usize]) -> Error {
        Error::file(
            &self.path,
            format!("its first output has the shape {shape:?}; export the model with its features as the first output"),
        )
    }
}

/// Computes a vector for each input. `progress` is called with the number of finished inputs.
fn one_by_one<T>(
    inputs: &[T],
    forward: impl Fn(&T) -> Result<Vec<f32>>,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    let reported = |(index, input)| forward(input).inspect(|_| progress(index + 1));
    inputs.iter().enumerate().map(reported).collect()
}

/// Parses a file. Its bytes are read here: the parser would map the file into memory, and the
/// process would be killed if another program cut the file meanwhile.
fn parse(path: &Path, files: Arc<ExternalFiles>) -> Result<InferenceModel> {
    let bytes = untrusted::read(path, MAX_BYTES).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NoWeights { path: path.to_owned() },
        _ => Error::Io { path: path.to_owned(), source },
    })?;
    let bad = |e: TractError| Error::file(path, format!("is no ONNX model: {e:#}; export the model again"));
    let mut onnx = tract_onnx::onnx();
    onnx.provider = files;
    let proto = onnx.proto_model_for_read(&mut bytes.as_slice()).map_err(bad)?;
    let parsed = onnx.parse(&proto, path.parent().and_then(Path::to_str)).map_err(bad)?;
    match &parsed.unresolved_inputs[..] {
        [] => Ok(parsed.model),
        [name, ..] => Err(Error::file(path, format!("uses {name}, which it does not define; export the model again"))),
    }
}

/// Reads weights that lie in files beside the model, and remembers which files those are. A model
/// comes from others: it must not name files outside its folder.
struct ExternalFiles {
    folder: PathBuf,
    seen: Mutex<SeenFiles>,
}

#[derive(Default)]
struct SeenFiles {
    read: BTreeSet<PathBuf>,
    bytes: u64,
}

impl ExternalFiles {
    fn beside(model: &Path) -> Self {
        let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self { folder: folder.to_owned(), seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, SeenFiles> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file of weights: a regular file in the folder of the model, links followed, of at
    /// most [`MAX_BYTES`].
    fn open(&self, path: &Path) -> std::io::Result<File> {
        let other = |reason: String| Err(std::io::Error::other(reason));
        if !path.canonicalize()?.starts_with(self.folder.canonicalize()?) {
            return other("is outside the model's folder; put the weights beside the model".to_owned());
        }
        let file = untrusted::open(path)?;
        match file.metadata()?.len() {
            length if length > MAX_BYTES => {
                other(format!("has {length} bytes, more than the {MAX_BYTES} that are read"))
            }
            _ => Ok(file),
        }
    }
}

impl ModelDataResolver for ExternalFiles {
    fn read_bytes_from_path(
        &self,
        buffer: &mut Vec<u8>,
        path: &Path,
        offset: usize,
        length: Option<usize>,
    ) -> TractResult<()> {
        let bad = |reason: String| std::io::Error::other(format!("{}: {reason}", path.display()));
        let mut file = self.open(path).map_err(|e| bad(e.to_string()))?;
        let left = file.metadata()?.len().saturating_sub(offset as u64);
        let length = length.map_or(left, |length| length as u64);
        if length > left {
            return Err(bad(format!("has {left} bytes from {offset} on, {length} are needed")).into());
        }
        let mut seen = self.seen();
        // Many tensors can name the same bytes.
        seen.bytes = seen.bytes.saturating_add(length);
        if seen.bytes > MAX_BYTES {
            return Err(
                bad(format!("the model names more than {MAX_BYTES} bytes of weights, the most that is read")).into()
            );
        }
        file.seek(SeekFrom::Start(offset as u64))?;
        file.take(length).read_to_end(buffer)?;
        seen.read.insert(path.to_owned());
        Ok(())
    }
}

/// The side of pictures that the model itself names.
fn side(model: &InferenceModel) -> Option<usize> {
    let fact = model.input_fact(0).ok()?;
    let dimensions: Vec<_> = fact.shape.dims().collect();
    usize::try_from(dimensions.get(2)?.concretize()?.to_i64().ok()?).ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Weights are regular files in the model's folder. Those that a model names elsewhere, by a
    /// path or by a link, are refused by name, and so are files that are too large.
    #[test]
    fn weights_lie_beside_the_model() {
        let all = tempfile::tempdir().unwrap();
        let folder = all.path().join("model");
        std::fs::create_dir(&folder).unwrap();
        let (inside, outside) = (folder.join("inside.bin"), all.path().join("outside.bin"));
        std::fs::write(&inside, b"inside").unwrap();
        std::fs::write(&outside, b"outside").unwrap();
        symlink("inside.bin", folder.join("link.bin")).unwrap();
        symlink("../outside.bin", folder.join("away.bin")).unwrap();
        let read = |path: &Path, length| {
            let (files, mut bytes) = (ExternalFiles::beside(&folder.join("model.onnx")), Vec::new());
            let read = files.read_bytes_from_path(&mut bytes, path, 2, length);
            read.map(|()| bytes).map_err(|e| e.to_string())
        };
        assert_eq!(read(&inside, None), Ok(b"side".to_vec()));
        assert_eq!(read(&folder.join("link.bin"), Some(3)), Ok(b"sid".to_vec()));
        for path in [outside, folder.join("../outside.bin"), folder.join("away.bin"), PathBuf::from("/etc/hostname")] {
            let said = read(&path, Some(1)).unwrap_err();
            let named = said.contains(&*path.to_string_lossy());
            assert!(named && (said.contains("outside the model's folder") || !path.exists()), "{said}");
        }
        let large = folder.join("large.bin");
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let said = read(&large, Some(1)).unwrap_err();
        assert!(said.contains("large.bin: has 2147483649 bytes"), "{said}");
    }

    /// A small file that many tensors name is counted each time.
    #[test]
    fn weights_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("weights.bin");
        std::fs::write(&weights, b"12345678").unwrap();
        let files = ExternalFiles::beside(&folder.path().join("model.onnx"));
        files.seen().bytes = MAX_BYTES - 9;
        let read = || files.read_bytes_from_path(&mut Vec::new(), &weights, 0, None).map_err(|e| e.to_string());
        assert_eq!(read(), Ok(()));
        assert!(read().unwrap_err().contains("more than 2147483648 bytes of weights"));
    }
}
