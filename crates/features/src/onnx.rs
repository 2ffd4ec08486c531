//! Any picture network in the ONNX format, run by tract.

use crate::model::Preprocessing;
use crate::picture::{Picture, PicturePreprocessing};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;

/// The side of pictures where neither the model nor a configuration names one.
const USUAL_SIDE: usize = 224;

/// An ONNX model that reads one picture (1 x 3 x side x side) at a time.
pub(crate) struct OnnxModel {
    plan: Arc<TypedRunnableModel>,
    preprocessing: PicturePreprocessing,
    width: usize,
    path: PathBuf,
}

/// `preprocessor_config.json` beside the model.
pub(crate) fn configuration(path: &Path) -> PathBuf {
    path.with_file_name("preprocessor_config.json")
}

impl OnnxModel {
    pub fn open(path: &Path) -> Result<Self> {
        crate::weights::open(path)?;
        let bad = |e: TractError| Error::file(path, format!("is no ONNX model this program can run: {e:#}"));
        let model = tract_onnx::onnx().model_for_path(path).map_err(bad)?;
        let side = side(&model).unwrap_or(USUAL_SIDE);
        let preprocessing = PicturePreprocessing::imagenet(side).adjusted_by(&configuration(path))?;
        let side = preprocessing.side;
        let plan = model
            .with_input_fact(0, f32::fact([1, 3, side, side]).into())
            .and_then(|model| model.into_optimized())
            .and_then(|model| model.into_runnable())
            .map_err(bad)?;
        let mut model = Self { plan, preprocessing, width: 0, path: path.to_owned() };
        model.width = model.forward(vec![0.0; 3 * side * side])?.len();
        Ok(model)
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn preprocessing(&self) -> Preprocessing {
        Preprocessing::Picture(self.preprocessing.clone())
    }

    pub fn embed(&self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>> {
        let forward = |picture: &Picture| {
            let pixels = self.preprocessing.apply(picture);
            let plane = |channel: usize| pixels.iter().copied().skip(channel).step_by(3);
            self.forward((0..3).flat_map(plane).collect())
        };
        pictures.iter().map(forward).collect()
    }

    /// The first output for the planes of one picture: its numbers, the mean over places of a map, the first of many tokens.
    fn forward(&self, planes: Vec<f32>) -> Result<Vec<f32>> {
        let bad = |e: TractError| Error::file(&self.path, format!("cannot be run: {e:#}"));
        let side = self.preprocessing.side;
        let input = Tensor::from_shape(&[1, 3, side, side], &planes).map_err(bad)?;
        let outputs = self.plan.run(tvec!(input.into())).map_err(bad)?;
        let output = outputs.first().ok_or_else(|| Error::file(&self.path, "has no output"))?;
        let numbers = output.cast_to::<f32>().map_err(bad)?;
        let numbers = numbers.try_as_plain_ram().and_then(|plain| plain.as_slice::<f32>()).map_err(bad)?;
        match *output.shape() {
            [1, _] => Ok(numbers.to_vec()),
            [1, _, rows, columns] => {
                let places = rows * columns;
                Ok(numbers.chunks_exact(places.max(1)).map(|map| map.iter().sum::<f32>() / places as f32).collect())
            }
            [1, _, width] => Ok(numbers.iter().copied().take(width).collect()),
            ref shape => Err(Error::file(&self.path, format!("its first output has shape {shape:?}, no features"))),
        }
    }
}

/// The side the model itself asks for.
fn side(model: &InferenceModel) -> Option<usize> {
    let fact = model.input_fact(0).ok()?;
    let dimensions: Vec<_> = fact.shape.dims().collect();
    usize::try_from(dimensions.get(2)?.concretize()?.to_i64().ok()?).ok()
}
