//! The operations of the networks beside matrix products.
//!
//! On the CPU, each operation is one pass of a kernel over memory, in parallel over rows. On other
//! devices it is composed of the tensor library's operations. The tests compare the two.

use crate::kernels::{self, Heads, Window};
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, D, Device, InplaceOp2, InplaceOp3, Layout, Result, Shape, Tensor, bail,
};
use rayon::prelude::*;

/// Rows a thread takes at a time.
const STRIP: usize = 16;

/// `x W^T + b`.
#[derive(Clone)]
pub(crate) struct Linear {
    /// `W^T`, inputs by outputs: the product reads this order fastest.
    weight: Tensor,
    /// One value an output.
    bias: Tensor,
}

impl Linear {
    /// From the weights of a checkpoint, outputs by inputs.
    pub fn new(weight: &Tensor, bias: Tensor) -> Result<Self> {
        Ok(Self { weight: weight.t()?.contiguous()?, bias })
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.weight.device()
    }

    /// `x W^T`, for an operation that adds the bias itself.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight)
    }

    /// `x W^T + b`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        apply(&self.product(x)?, &self.bias, Activation::None)
    }

    /// `act(x W^T + b)`.
    pub fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        apply(&self.product(x)?, &self.bias, activation)
    }

    /// `x W^T + b + y`.
    pub fn added_to(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        residual(&self.product(x)?, &self.bias, y)
    }
}

/// The activation after a linear layer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Activation {
    /// Nothing.
    None,
    /// `x Phi(x)`, exactly (by the error function).
    Gelu,
    /// `min(max(x, 0), 6)`.
    Relu6,
}

/// The numbers of a contiguous tensor.
fn numbers<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let values = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => bail!("an operand is not contiguous"),
    }
}

fn numbers_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&mut values[start..end]),
        _ => bail!("an operand is not contiguous single precision"),
    }
}

struct Apply(Activation);

impl InplaceOp2 for Apply {
    fn name(&self) -> &'static str {
        "bias and activation"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, x_layout: &Layout, bias: &CpuStorage, bias_layout: &Layout) -> Result<()> {
        let (x, bias) = (numbers_mut(x, x_layout)?, numbers(bias, bias_layout)?);
        let kernel = match self.0 {
            Activation::None => kernels::bias_rows,
            Activation::Gelu => kernels::gelu_rows,
            Activation::Relu6 => kernels::relu6_rows,
        };
        x.par_chunks_mut(STRIP * bias.len()).for_each(|strip| kernel(strip, bias));
        Ok(())
    }
}

/// `act(x + b)`, row by row; overwrites `x` on the CPU.
fn apply(x: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return composed_apply(x, bias, activation);
    }
    x.inplace_op2(bias, &Apply(activation))?;
    Ok(x.clone())
}

fn composed_apply(x: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    let sum = x.broadcast_add(bias)?;
    match activation {
        Activation::None => Ok(sum),
        Activation::Gelu => sum.gelu_erf(),
        Activation::Relu6 => sum.clamp(0f32, 6f32),
    }
}

struct Residual;

impl InplaceOp3 for Residual {
    fn name(&self) -> &'static str {
        "bias and residual"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
        other: &CpuStorage,
        other_layout: &Layout,
    ) -> Result<()> {
        let (x, bias, other) = (numbers_mut(x, x_layout)?, numbers(bias, bias_layout)?, numbers(other, other_layout)?);
        let strip = STRIP * bias.len();
        x.par_chunks_mut(strip).zip(other.par_chunks(strip)).for_each(|(x, y)| kernels::residual_rows(x, bias, y));
        Ok(())
    }
}

/// `x + b + y`, row by row; overwrites `x` on the CPU.
fn residual(x: &Tensor, bias: &Tensor, y: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_add(bias)? + y;
    }
    x.inplace_op3(bias, y, &Residual)?;
    Ok(x.clone())
}

/// Layer normalisation: scales rows to mean 0 and variance 1, then each column.
#[derive(Clone)]
pub(crate) struct Norm {
    /// One factor a column.
    pub scale: Tensor,
    /// One summand a column.
    pub shift: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
}

impl CustomOp3 for &Norm {
    fn name(&self) -> &'static str {
        "layer norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        scale: &CpuStorage,
        scale_layout: &Layout,
        shift: &CpuStorage,
        shift_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, scale, shift) = (numbers(x, x_layout)?, numbers(scale, scale_layout)?, numbers(shift, shift_layout)?);
        let mut out = vec![0.0; x.len()];
        let strip = STRIP * scale.len();
        out.par_chunks_mut(strip)
            .zip(x.par_chunks(strip))
            .for_each(|(out, x)| kernels::norm_rows(out, x, scale, shift, self.epsilon as f32));
        Ok((CpuStorage::F32(out), x_layout.shape().clone()))
    }
}

impl Norm {
    /// The normalised rows of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !x.device().is_cpu() {
            return self.composed(x);
        }
        x.apply_op3_no_bwd(&self.scale, &self.shift, &self)
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let unit = centred.broadcast_div(&(variance + self.epsilon)?.sqrt()?)?;
        unit.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }
}

/// Self-attention over several sequences, whose rows follow each other in one matrix without
/// padding.
pub(crate) struct Attention<'a> {
    /// The number of rows of each sequence.
    lengths: &'a [usize],
    /// The number of heads.
    heads: usize,
    /// Scores of each head by the distance of the key from the query.
    distance: Option<&'a Tensor>,
    /// For composed operations: neighbouring sequences of equal length.
    runs: Vec<Run>,
}

/// Neighbouring sequences of equal length, which are processed together.
struct Run {
    count: usize,
    length: usize,
    /// The scores of each head by query and key, the same for all layers.
    scores: Option<Tensor>,
}

impl Run {
    fn of(lengths: &[usize], distance: Option<&Tensor>) -> Result<Vec<Self>> {
        let run = |run: &[usize]| {
            let length = run[0];
            let scores = distance.map(|distance| by_place(distance, length)).transpose()?;
            Ok(Self { count: run.len(), length, scores })
        };
        lengths.chunk_by(|a, b| a == b).map(run).collect()
    }
}

/// Expands scores by distance (heads, `2 reach + 1`) to scores by query and key (heads, length,
/// length).
fn by_place(distance: &Tensor, length: usize) -> Result<Tensor> {
    let (heads, distances) = distance.dims2()?;
    let reach = distances / 2;
    let places: Vec<u32> = (0..length).flat_map(|i| (0..length).map(move |j| (reach + j - i) as u32)).collect();
    let places = Tensor::from_vec(places, length * length, distance.device())?;
    distance.index_select(&places, 1)?.reshape((heads, length, length))
}

impl<'a> Attention<'a> {
    /// The attention of sequences of these lengths, on a device.
    pub fn new(lengths: &'a [usize], heads: usize, distance: Option<&'a Tensor>, device: &Device) -> Result<Self> {
        let runs = if device.is_cpu() { Vec::new() } else { Run::of(lengths, distance)? };
        Ok(Self { lengths, heads, distance, runs })
    }

    fn on_cpu(&self, qkv: &[f32], columns: usize, distance: &[f32]) -> Vec<f32> {
        let width = columns / 3;
        let mut out = vec![0.0; qkv.len() / 3];
        let (mut rows, mut from) = (out.as_mut_slice(), qkv);
        let mut tasks = Vec::with_capacity(self.lengths.len());
        for &length in self.lengths {
            let (out, out_rest) = rows.split_at_mut(length * width);
            let (qkv, qkv_rest) = from.split_at(length * columns);
            tasks.push((out, Heads { qkv, width, count: self.heads, distance }));
            (rows, from) = (out_rest, qkv_rest);
        }
        tasks.into_par_iter().for_each(|(out, heads)| kernels::attend(out, heads));
        out
    }

    /// `softmax(q k^T / sqrt(d) + s) v` of rows `q | k | v`, with the scores `s` by distance.
    pub fn forward(&self, qkv: &Tensor) -> Result<Tensor> {
        match self.distance {
            _ if !qkv.device().is_cpu() => self.composed(qkv),
            Some(distance) => qkv.apply_op2_no_bwd(distance, self),
            None => qkv.apply_op1_no_bwd(self),
        }
    }

    /// Processes each run of sequences of equal length on its own, so that nothing is padded.
    fn composed(&self, qkv: &Tensor) -> Result<Tensor> {
        let (mut row, mut parts) = (0, Vec::with_capacity(self.runs.len()));
        for run in &self.runs {
            let rows = run.count * run.length;
            parts.push(self.composed_run(&qkv.narrow(0, row, rows)?, run)?);
            row += rows;
        }
        Tensor::cat(&parts, 0)
    }

    fn composed_run(&self, rows: &Tensor, run: &Run) -> Result<Tensor> {
        let width = rows.dim(1)? / 3;
        let d = width / self.heads;
        // Queries, keys and values, by sequence and head.
        let parts = rows.reshape((run.count, run.length, 3, self.heads, d))?.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (q, k, v) = (parts.get(0)?, parts.get(1)?, parts.get(2)?);
        let mut scores = (q.matmul(&k.t()?)? / (d as f64).sqrt())?;
        if let Some(more) = &run.scores {
            scores = scores.broadcast_add(more)?;
        }
        let powers = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let shares = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        shares.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((run.count * run.length, width))
    }
}

impl CustomOp1 for Attention<'_> {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, qkv: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        let out = self.on_cpu(numbers(qkv, layout)?, columns, &[]);
        Ok((CpuStorage::F32(out), (rows, columns / 3).into()))
    }
}

impl CustomOp2 for Attention<'_> {
    fn name(&self) -> &'static str {
        "attention by distance"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        layout: &Layout,
        distance: &CpuStorage,
        distance_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        let out = self.on_cpu(numbers(qkv, layout)?, columns, numbers(distance, distance_layout)?);
        Ok((CpuStorage::F32(out), (rows, columns / 3).into()))
    }
}

/// A depthwise convolution over channels-last images, with values bounded to 0..=6.
pub(crate) struct Depthwise {
    /// `size * size` rows, a column for each channel.
    pub weight: Tensor,
    /// One value a channel.
    pub bias: Tensor,
    /// Rows and columns of the window.
    pub size: usize,
    /// Rows and columns from one window to the next.
    pub stride: usize,
}

impl Depthwise {
    /// Convolves images. `x` and the result hold a row of channels for each pixel of each image.
    pub fn forward(&self, x: &Tensor, side: usize) -> Result<Tensor> {
        let window = Window { size: self.size, stride: self.stride, side };
        if !x.device().is_cpu() {
            return self.composed(x, window);
        }
        x.apply_op3_no_bwd(&self.weight, &self.bias, &window)
    }

    /// The composed operation: for each position of the window, the padded image is shifted,
    /// subsampled by the stride and multiplied by the weights of the position; the results are
    /// added.
    fn composed(&self, x: &Tensor, window: Window) -> Result<Tensor> {
        let Window { size, stride, side } = window;
        let channels = x.dim(1)?;
        let (before, out) = (window.padding(), window.output());
        // Room for the last window, and a multiple of the stride from every first position.
        let after = (out * stride + size).saturating_sub(side + before);
        let images = x.reshape(((), side, side, channels))?;
        let padded = images.pad_with_zeros(1, before, after)?.pad_with_zeros(2, before, after)?;
        let every = |x: Tensor, dimension: usize| -> Result<Tensor> {
            let mut shape = x.dims().to_vec();
            shape[dimension] = out;
            shape.insert(dimension + 1, stride);
            x.contiguous()?.reshape(shape)?.narrow(dimension + 1, 0, 1)?.squeeze(dimension + 1)
        };
        let mut sum: Option<Tensor> = None;
        for place in 0..size * size {
            let moved = padded.narrow(1, place / size, out * stride)?.narrow(2, place % size, out * stride)?;
            let term = every(every(moved, 1)?, 2)?.broadcast_mul(&self.weight.get(place)?)?;
            sum = Some(match sum {
                Some(sum) => (sum + term)?,
                None => term,
            });
        }
        let Some(sum) = sum else { bail!("a window of size 0") };
        sum.broadcast_add(&self.bias)?.clamp(0f32, 6f32)?.reshape(((), channels))
    }
}

impl CustomOp3 for Window {
    fn name(&self) -> &'static str {
        "depthwise convolution"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, channels) = x_layout.shape().dims2()?;
        let (x, weights, bias) =
            (numbers(x, x_layout)?, numbers(weights, weights_layout)?, numbers(bias, bias_layout)?);
        let images = rows / (self.side * self.side);
        let out_rows = images * self.output() * self.output();
        let mut out = vec![0.0; out_rows * channels];
        out.par_chunks_mut(self.output() * self.output() * channels)
            .zip(x.par_chunks(self.side * self.side * channels))
            .for_each(|(out, image)| kernels::depthwise(out, image, weights, bias, *self));
        Ok((CpuStorage::F32(out), (out_rows, channels).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(shape: impl Into<Shape>) -> Tensor {
        Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap()
    }

    fn assert_near(a: &Tensor, b: &Tensor) {
        assert_eq!(a.dims(), b.dims());
        let worst = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
        let worst = worst.to_scalar::<f32>().unwrap();
        assert!(worst < 2e-5, "differ by {worst}");
    }

    #[test]
    fn one_pass_equals_the_composed_operation() {
        let (x, bias, y) = (random((37, 40)), random(40), random((37, 40)));
        for activation in [Activation::None, Activation::Gelu, Activation::Relu6] {
            let composed = composed_apply(&x, &bias, activation).unwrap();
            assert_near(&apply(&x.copy().unwrap(), &bias, activation).unwrap(), &composed);
        }
        let composed = (x.broadcast_add(&bias).unwrap() + &y).unwrap();
        assert_near(&residual(&x.copy().unwrap(), &bias, &y).unwrap(), &composed);
        let norm = Norm { scale: random(40), shift: random(40), epsilon: 1e-5 };
        assert_near(&norm.forward(&x).unwrap(), &norm.composed(&x).unwrap());
    }

    #[test]
    fn attention_of_ragged_sequences_equals_the_composed_operation() {
        // 72 columns in 3 heads of 24: no multiple of the kernel's lanes.
        let lengths = [1, 5, 5, 17, 33];
        let qkv = random((lengths.iter().sum::<usize>(), 3 * 72));
        let by_distance = random((3, 2 * 40 + 1));
        for distance in [None, Some(&by_distance)] {
            let fused = Attention::new(&lengths, 3, distance, &Device::Cpu).unwrap();
            let composed = Attention { runs: Run::of(&lengths, distance).unwrap(), ..fused };
            assert_near(&composed.forward(&qkv).unwrap(), &composed.composed(&qkv).unwrap());
        }
    }

    #[test]
    fn depthwise_convolution_equals_the_composed_operation() {
        for (size, stride, side) in [(3, 1, 7), (3, 2, 8), (5, 2, 9), (5, 1, 4), (3, 2, 1)] {
            let layer = Depthwise { weight: random((size * size, 20)), bias: random(20), size, stride };
            let x = random((2 * side * side, 20));
            let composed = layer.composed(&x, Window { size, stride, side }).unwrap();
            assert_near(&layer.forward(&x, side).unwrap(), &composed);
        }
    }
}
