//! Networks that read pictures: the vision transformer and EfficientNet-Lite0.

use crate::encoder::{Layer, NormOrder, TransformerEncoder};
use crate::ops::{Activation, Depthwise, Linear, Norm};
use crate::picture::{Filter, Picture, PicturePreprocessing};
use crate::weights::Weights;
use crate::{Error, Result, config};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use serde::Deserialize;
use std::path::Path;

/// Pictures of a batch on the CPU.
const BATCH: usize = 8;

/// Pictures of a batch on a GPU.
const GPU_BATCH: usize = 64;

/// A network that reads pictures.
pub struct VisionModel {
    network: Network,
    preprocessing: PicturePreprocessing,
    width: usize,
}

enum Network {
    Transformer(Transformer),
    Convolutional(EfficientNet),
}

impl Network {
    fn device(&self) -> &Device {
        match self {
            Self::Transformer(network) => network.positions.device(),
            Self::Convolutional(network) => network.stem.device(),
        }
    }
}

impl VisionModel {
    /// Loads a vision transformer from a folder with `config.json`, `model.safetensors` and, if it
    /// exists, `preprocessor_config.json`.
    pub(crate) fn open_vit(folder: &Path, device: &Device) -> Result<Self> {
        let path = folder.join("config.json");
        let c: VitConfig = config::read(&path)?;
        c.check(&path)?;
        let weights = Weights::open(&folder.join("model.safetensors"), "ViT", device)?;
        let weights = weights.with_prefix(&["", "vit."], "embeddings.patch_embeddings.projection.weight")?;
        let preprocessing = c.preprocessing(folder)?;
        let width = c.hidden_size;
        Ok(Self { network: Network::Transformer(Transformer::load(&weights, &c)?), preprocessing, width })
    }

    /// Loads EfficientNet-Lite0 from a safetensors file with the tensor names of
    /// `efficientnet_lite_pytorch`.
    pub(crate) fn open_lite0(path: &Path, device: &Device) -> Result<Self> {
        let network = EfficientNet::load(&Weights::open(path, "EfficientNet-Lite0", device)?)?;
        let preprocessing = PicturePreprocessing { filter: Filter::Bicubic, ..PicturePreprocessing::imagenet(224) };
        Ok(Self { network: Network::Convolutional(network), preprocessing, width: LITE0_FEATURES })
    }

    /// Columns of a feature vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How pictures are resized and scaled.
    pub fn preprocessing(&self) -> &PicturePreprocessing {
        &self.preprocessing
    }

    /// Computes a feature vector for each picture. `progress` is called with the number of finished
    /// pictures.
    pub(crate) fn embed(&self, pictures: &[Picture], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        let together = if self.network.device().is_cpu() { BATCH } else { GPU_BATCH };
        let mut vectors = Vec::with_capacity(pictures.len());
        for batch in pictures.chunks(together) {
            let inputs: Vec<f32> =
                batch.par_iter().flat_map_iter(|picture| self.preprocessing.apply(picture)).collect();
            vectors.extend(self.forward(&inputs)?);
            progress(vectors.len());
        }
        Ok(vectors)
    }

    /// The feature vectors of pictures, which are given as numbers by row, column and channel.
    fn forward(&self, inputs: &[f32]) -> Result<Vec<Vec<f32>>> {
        let side = self.preprocessing.side;
        let features = match &self.network {
            Network::Transformer(network) => network.forward(inputs, side)?,
            Network::Convolutional(network) => network.forward(inputs, side)?,
        };
        Ok(features.to_vec2()?)
    }
}

/// Cuts pictures into square windows. Each window becomes a row of a matrix, with zeros outside the
/// picture.
struct Windows {
    size: usize,
    stride: usize,
    padding: usize,
    /// Windows along a side.
    count: usize,
}

impl Windows {
    fn of(&self, pictures: &[f32], side: usize, device: &Device) -> Result<Tensor> {
        let columns = 3 * self.size * self.size;
        let rows = pictures.len() / (3 * side * side) * self.count * self.count;
        let mut out = vec![0.0; rows * columns];
        out.par_chunks_mut(self.count * self.count * columns).zip(pictures.par_chunks(3 * side * side)).for_each(
            |(out, picture)| {
                for (place, row) in out.chunks_exact_mut(columns).enumerate() {
                    let corner = [place / self.count * self.stride, place % self.count * self.stride];
                    self.copy(row, picture, side, corner);
                }
            },
        );
        Ok(Tensor::from_vec(out, (rows, columns), device)?)
    }

    fn copy(&self, row: &mut [f32], picture: &[f32], side: usize, [top, left]: [usize; 2]) {
        for (dy, line) in row.chunks_exact_mut(3 * self.size).enumerate() {
            let Some(y) = (top + dy).checked_sub(self.padding).filter(|&y| y < side) else { continue };
            for (dx, pixel) in line.chunks_exact_mut(3).enumerate() {
                let Some(x) = (left + dx).checked_sub(self.padding).filter(|&x| x < side) else { continue };
                pixel.copy_from_slice(&picture[3 * (y * side + x)..][..3]);
            }
        }
    }
}

/// Reshapes the weights of a convolution (outputs, channels, rows, columns) into a matrix whose
/// inputs are ordered as in `Windows`.
fn as_matrix(weight: &Tensor) -> Result<Tensor> {
    Ok(weight.permute((0, 2, 3, 1))?.contiguous()?.flatten_from(1)?)
}

#[derive(Debug, Deserialize)]
pub(crate) struct VitConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    image_size: usize,
    patch_size: usize,
    layer_norm_eps: f64,
    hidden_act: String,
    #[serde(default = "three")]
    num_channels: usize,
    #[serde(default = "yes")]
    qkv_bias: bool,
}

fn three() -> usize {
    3
}

fn yes() -> bool {
    true
}

impl VitConfig {
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let no = |reason: String| Err(Error::file(path, reason));
        if self.hidden_act != "gelu" {
            return no(format!(
                "hidden_act is {}, must be gelu; use another network, or an .onnx file",
                self.hidden_act
            ));
        }
        if self.num_channels != 3 || !self.qkv_bias {
            return no("num_channels must be 3 and qkv_bias true; use another network, or an .onnx file".to_owned());
        }
        config::check_sizes(
            path,
            &[
                ("hidden_size", self.hidden_size, config::COLUMNS),
                ("intermediate_size", self.intermediate_size, config::COLUMNS),
                ("num_hidden_layers", self.num_hidden_layers, config::LAYERS),
                ("image_size", self.image_size, config::SIDES),
                ("patch_size", self.patch_size, config::SIDES),
                ("the number of patches", (self.image_size / self.patch_size.max(1)).saturating_pow(2), config::TOKENS),
            ],
        )?;
        config::check_epsilon(path, self.layer_norm_eps)?;
        if self.image_size.checked_rem(self.patch_size) != Some(0) {
            return no(format!(
                "image_size {} is no multiple of patch_size {}; get the network again",
                self.image_size, self.patch_size
            ));
        }
        config::check_heads(path, self.hidden_size, self.num_attention_heads)
    }

    fn preprocessing(&self, folder: &Path) -> Result<PicturePreprocessing> {
        let half = [0.5; 3];
        let usual = PicturePreprocessing { side: self.image_size, filter: Filter::Bilinear, mean: half, std: half };
        let path = folder.join("preprocessor_config.json");
        let found = usual.adjusted_by(&path)?;
        if found.side != self.image_size {
            return Err(Error::file(
                &path,
                format!("size is not the image_size {} of config.json; get both files of one network", self.image_size),
            ));
        }
        Ok(found)
    }
}

/// The vision transformer. Its feature vector is the class token after the last normalisation.
struct Transformer {
    patches: Linear,
    patch_size: usize,
    class_token: Tensor,
    positions: Tensor,
    encoder: TransformerEncoder,
    norm: Norm,
}

impl Transformer {
    fn load(weights: &Weights, c: &VitConfig) -> Result<Self> {
        let (hidden, patch) = (c.hidden_size, c.patch_size);
        let projection = "embeddings.patch_embeddings.projection";
        let kernel = weights.tensor(&format!("{projection}.weight"), &[hidden, 3, patch, patch])?;
        let patches = Linear::new(&as_matrix(&kernel)?, weights.tensor(&format!("{projection}.bias"), &[hidden])?)?;
        let places = (c.image_size / patch).pow(2) + 1;
        let positions = weights.tensor("embeddings.position_embeddings", &[1, places, hidden])?.squeeze(0)?;
        let class_token = weights.tensor("embeddings.cls_token", &[1, 1, hidden])?.squeeze(0)?;
        let layers = (0..c.num_hidden_layers).map(|index| vit_layer(weights, c, index)).collect::<Result<_>>()?;
        let encoder =
            TransformerEncoder { layers, heads: c.num_attention_heads, order: NormOrder::Before, distance: None };
        let norm = weights.norm("layernorm", hidden, c.layer_norm_eps)?;
        Ok(Self { patches, patch_size: patch, class_token, positions, encoder, norm })
    }

    fn forward(&self, pictures: &[f32], side: usize) -> Result<Tensor> {
        let count = side / self.patch_size;
        let windows = Windows { size: self.patch_size, stride: self.patch_size, padding: 0, count };
        let patches = self.patches.forward(&windows.of(pictures, side, self.positions.device())?)?;
        let (places, hidden) = self.positions.dims2()?;
        let patches = patches.reshape(((), count * count, hidden))?;
        let batch = patches.dim(0)?;
        let class_tokens = self.class_token.broadcast_as((batch, 1, hidden))?.contiguous()?;
        let x = Tensor::cat(&[&class_tokens, &patches], 1)?.broadcast_add(&self.positions)?;
        let x = self.encoder.forward(x.reshape((batch * places, hidden))?, &vec![places; batch])?;
        let first = x.reshape((batch, places, hidden))?.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?;
        Ok(self.norm.forward(&first)?)
    }
}

fn vit_layer(weights: &Weights, c: &VitConfig, index: usize) -> Result<Layer> {
    let name = |part: &str| format!("encoder.layer.{index}.{part}");
    let (hidden, inner) = (c.hidden_size, c.intermediate_size);
    let qkv = ["query", "key", "value"].map(|part| name(&format!("attention.attention.{part}")));
    Ok(Layer {
        qkv: weights.stacked(qkv, hidden, hidden)?,
        out: weights.linear(&name("attention.output.dense"), hidden, hidden)?,
        attention_norm: weights.norm(&name("layernorm_before"), hidden, c.layer_norm_eps)?,
        up: weights.linear(&name("intermediate.dense"), inner, hidden)?,
        down: weights.linear(&name("output.dense"), hidden, inner)?,
        network_norm: weights.norm(&name("layernorm_after"), hidden, c.layer_norm_eps)?,
    })
}

const LITE0_FEATURES: usize = 1280;

/// The stages of EfficientNet-Lite0: blocks, window, stride of the first block, expansion,
/// channels.
const LITE0: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
];

/// EfficientNet-Lite0. Its feature vector is the mean over all positions of the last convolution.
/// Batch normalisations are folded into the convolutions before them.
struct EfficientNet {
    stem: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

/// An inverted residual block: expand, depthwise convolution, project; with a residual connection
/// if the shapes allow it.
struct Block {
    expand: Option<Linear>,
    depthwise: Depthwise,
    project: Linear,
    residual: bool,
}

impl EfficientNet {
    fn load(weights: &Weights) -> Result<Self> {
        let (kernel, bias) = folded(weights, "_conv_stem", "_bn0", &[32, 3, 3, 3])?;
        let stem = Linear::new(&as_matrix(&kernel)?, bias)?;
        let (mut blocks, mut channels) = (Vec::new(), 32);
        for (repeats, size, stride, expansion, out) in LITE0 {
            for repeat in 0..repeats {
                let stride = if repeat == 0 { stride } else { 1 };
                let index = blocks.len();
                blocks.push(Block::load(weights, index, [channels, expansion, out], size, stride)?);
                channels = out;
            }
        }
        let head = pointwise(weights, "_conv_head", "_bn1", LITE0_FEATURES, channels)?;
        Ok(Self { stem, blocks, head })
    }

    fn forward(&self, pictures: &[f32], side: usize) -> Result<Tensor> {
        let mut side_now = side.div_ceil(2);
        // "Same" padding of a window of 3 with stride 2: none before an even side, one before an
        // odd side.
        let windows = Windows { size: 3, stride: 2, padding: side % 2, count: side_now };
        let mut x = self.stem.activated(&windows.of(pictures, side, self.stem.device())?, Activation::Relu6)?;
        for block in &self.blocks {
            x = block.forward(&x, side_now)?;
            side_now = side_now.div_ceil(block.depthwise.stride);
        }
        let x = self.head.activated(&x, Activation::Relu6)?;
        Ok(x.reshape(((), side_now * side_now, LITE0_FEATURES))?.mean(1)?)
    }
}

impl Block {
    fn load(
        weights: &Weights,
        index: usize,
        [channels, expansion, out]: [usize; 3],
        size: usize,
        stride: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("_blocks.{index}.{part}");
        let inner = channels * expansion;
        let expand = match expansion {
            1 => None,
            _ => Some(pointwise(weights, &name("_expand_conv"), &name("_bn0"), inner, channels)?),
        };
        let (kernel, bias) = folded(weights, &name("_depthwise_conv"), &name("_bn1"), &[inner, 1, size, size])?;
        let weight = kernel.reshape((inner, size * size))?.t()?.contiguous()?;
        let depthwise = Depthwise { weight, bias, size, stride };
        let project = pointwise(weights, &name("_project_conv"), &name("_bn2"), out, inner)?;
        Ok(Self { expand, depthwise, project, residual: stride == 1 && channels == out })
    }

    fn forward(&self, x: &Tensor, side: usize) -> Result<Tensor> {
        let wide = match &self.expand {
            Some(expand) => expand.activated(x, Activation::Relu6)?,
            None => x.clone(),
        };
        let wide = self.depthwise.forward(&wide, side)?;
        Ok(if self.residual { self.project.added_to(&wide, x)? } else { self.project.forward(&wide)? })
    }
}

fn pointwise(weights: &Weights, conv: &str, norm: &str, outputs: usize, inputs: usize) -> Result<Linear> {
    let (weight, bias) = folded(weights, conv, norm, &[outputs, inputs, 1, 1])?;
    Ok(Linear::new(&weight.reshape((outputs, inputs))?, bias)?)
}

/// Folds a batch normalisation into the convolution before it: weights and bias of the result.
fn folded(weights: &Weights, conv: &str, norm: &str, shape: &[usize]) -> Result<(Tensor, Tensor)> {
    const EPSILON: f64 = 1e-3;
    let outputs = shape[0];
    let part = |name: &str| weights.tensor(&format!("{norm}.{name}"), &[outputs]);
    let factor = (part("weight")? / (part("running_var")? + EPSILON)?.sqrt()?)?;
    let bias = (part("bias")? - (part("running_mean")? * &factor)?)?;
    let weight = weights.tensor(&format!("{conv}.weight"), shape)?;
    Ok((weight.broadcast_mul(&factor.reshape((outputs, 1, 1, 1))?)?, bias))
}
