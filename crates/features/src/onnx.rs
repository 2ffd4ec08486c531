//! Any network in the ONNX format, run by tract: one that reads pictures, or one that reads tokens.

use crate::model::Preprocessing;
use crate::picture::{Picture, PicturePreprocessing};
use crate::sentence::{Reader, Tokens};
use crate::{Error, Result, config, untrusted};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;

/// The side of pictures where neither the model nor a configuration names one.
const USUAL_SIDE: usize = 224;
/// The tokens of a sentence where no configuration names a limit.
const USUAL_TOKENS: usize = 512;
/// The input by which a network of sentences is known.
const IDS: &str = "input_ids";

/// An ONNX model that reads one picture (1 x 3 x side x side) or the tokens of one sentence (1 x length) at a time.
pub(crate) struct OnnxModel {
    plan: Arc<TypedRunnableModel>,
    kind: Kind,
    width: usize,
    path: PathBuf,
}

enum Kind {
    Pictures(PicturePreprocessing),
    Sentences(Box<Reader>, Vec<TokenInput>),
}

/// What an input of a network of sentences gets for each token.
#[derive(Clone, Copy)]
enum TokenInput {
    Id,
    /// Whether the token counts: always, since nothing is padded.
    Mask,
    /// The sentence it belongs to: the first.
    Segment,
}

impl OnnxModel {
    pub fn open(path: &Path) -> Result<Self> {
        crate::weights::open(path)?;
        untrusted::parsed(path, || Self::load(path))
    }

    fn load(path: &Path) -> Result<Self> {
        let bad = |e: TractError| Error::file(path, format!("is no ONNX model this program can run: {e:#}"));
        let model = tract_onnx::onnx().model_for_path(path).map_err(bad)?;
        let names: Vec<String> = model.inputs.iter().map(|input| model.node(input.node).name.clone()).collect();
        let (kind, model) = match names.iter().any(|name| name == IDS) {
            true => Self::of_sentences(path, model, &names),
            false => Self::of_pictures(path, model),
        }?;
        let plan = model.into_optimized().and_then(|model| model.into_runnable()).map_err(bad)?;
        let mut model = Self { plan, kind, width: 0, path: path.to_owned() };
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
        let bad = |e: TractError| Error::file(path, format!("reads no pictures: {e:#}"));
        Ok((Kind::Pictures(preprocessing), model.map_err(bad)?))
    }

    fn of_sentences(path: &Path, mut model: InferenceModel, names: &[String]) -> Result<(Kind, InferenceModel)> {
        let bad = |e: TractError| Error::file(path, format!("reads no tokens: {e:#}"));
        let length = model.sym("length");
        let mut inputs = Vec::new();
        for (place, name) in names.iter().enumerate() {
            inputs.push(match name.as_str() {
                IDS => TokenInput::Id,
                "attention_mask" => TokenInput::Mask,
                "token_type_ids" => TokenInput::Segment,
                other => return Err(Error::file(path, format!("asks for {other}, which is not known"))),
            });
            let fact = i64::fact([1.to_dim(), length.to_dim()]);
            model.set_input_fact(place, fact.into()).map_err(bad)?;
        }
        let reader = Reader::open(path.parent().unwrap_or(Path::new("")), USUAL_TOKENS)?;
        Ok((Kind::Sentences(Box::new(reader), inputs), model))
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

    fn reader(&self) -> Result<(&Reader, &[TokenInput])> {
        match &self.kind {
            Kind::Sentences(reader, inputs) => Ok((reader, inputs)),
            Kind::Pictures(_) => Err(Error::Kind { reads: "pictures", holds: "texts" }),
        }
    }

    /// The first output for the planes of one picture: its numbers, the mean over places of a map, the first of many tokens.
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

    /// The first output for the tokens of one sentence, pooled where it has a row for each.
    fn sentence(&self, ids: &[u32], reader: &Reader, inputs: &[TokenInput]) -> Result<Vec<f32>> {
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

    /// Shape and numbers of the first output.
    fn run(&self, inputs: TVec<Tensor>) -> Result<(Vec<usize>, Vec<f32>)> {
        let bad = |e: TractError| self.cannot_run(e);
        let outputs = self.plan.run(inputs.into_iter().map(Into::into).collect()).map_err(bad)?;
        let output = outputs.first().ok_or_else(|| Error::file(&self.path, "has no output"))?;
        let numbers = output.cast_to::<f32>().map_err(bad)?;
        let numbers = numbers.try_as_plain_ram().and_then(|plain| plain.as_slice::<f32>()).map_err(bad)?;
        Ok((output.shape().to_vec(), numbers.to_vec()))
    }

    fn cannot_run(&self, error: TractError) -> Error {
        Error::file(&self.path, format!("cannot be run: {error:#}"))
    }

    fn no_features(&self, shape: &[usize]) -> Error {
        Error::file(&self.path, format!("its first output has shape {shape:?}, no features"))
    }
}

/// A vector for each input; `progress` hears how many are done.
fn one_by_one<T>(
    inputs: &[T],
    forward: impl Fn(&T) -> Result<Vec<f32>>,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<f32>>> {
    let heard = |(index, input)| forward(input).inspect(|_| progress(index + 1));
    inputs.iter().enumerate().map(heard).collect()
}

/// The side the model itself asks for.
fn side(model: &InferenceModel) -> Option<usize> {
    let fact = model.input_fact(0).ok()?;
    let dimensions: Vec<_> = fact.shape.dims().collect();
    usize::try_from(dimensions.get(2)?.concretize()?.to_i64().ok()?).ok()
}
