//! CPU kernels for the operations between matrix products, on slices of `f32`.
//!
//! Each kernel is written once and compiled twice: for any machine, and for AVX2 with fused
//! multiply-adds. The program chooses at run time.

/// `a b + c`, with one rounding if `FUSED`.
#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Defines `$name`, which calls `$body::<true>` on machines with AVX2 and FMA, else
/// `$body::<false>`.
macro_rules! compiled_twice {
    ($(#[$doc:meta])* $name:ident = $body:ident($($argument:ident: $kind:ty),*)) => {
        $(#[$doc])*
        pub(crate) fn $name($($argument: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($argument: $kind),*) {
                    $body::<true>($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the check above says that the machine has both features.
                    unsafe { wide($($argument),*) };
                    return;
                }
            }
            $body::<false>($($argument),*);
        }
    };
}

/// `e^x` for `x <= 88`, 0 below -87. With `x = n ln 2 + r` and `|r| <= ln 2 / 2`, seven terms of
/// the series of `e^r` have a relative error of 6e-9.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    // 1.5 * 2^23: adding it leaves the rounded integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let bounded = x.max(-87.0);
    let shifted = multiply_add::<FUSED>(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FUSED>(-n, LN_2_LOW, multiply_add::<FUSED>(-n, LN_2_HIGH, bounded));
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = multiply_add::<FUSED>(sum, r, coefficient);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { sum * power }
}

/// `x Phi(x)`. The normal distribution function `Phi` is computed by formula 7.1.26 of Abramowitz
/// and Stegun, whose error of erf is below 1.5e-7.
#[inline(always)]
fn gelu<const FUSED: bool>(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / multiply_add::<FUSED>(0.327_591_1, z, 1.0);
    let mut sum = 1.061_405_4;
    for coefficient in [-1.453_152_f32, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        sum = multiply_add::<FUSED>(sum, t, coefficient);
    }
    let tail = sum * t * exp::<FUSED>(-z * z);
    let twice = if x < 0.0 { tail } else { 2.0 - tail };
    0.5 * x * twice
}

compiled_twice! {
    /// Adds `bias` to every row of `x`, then takes the Gaussian error linear unit.
    gelu_rows = gelu_rows_body(x: &mut [f32], bias: &[f32])
}
#[inline(always)]
fn gelu_rows_body<const FUSED: bool>(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x = gelu::<FUSED>(*x + b));
    }
}

compiled_twice! {
    /// Adds `bias` to every row of `x`.
    bias_rows = bias_rows_body(x: &mut [f32], bias: &[f32])
}
#[inline(always)]
fn bias_rows_body<const FUSED: bool>(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

compiled_twice! {
    /// Adds `bias` to every row of `x`, then bounds the values to 0..=6.
    relu6_rows = relu6_rows_body(x: &mut [f32], bias: &[f32])
}
#[inline(always)]
fn relu6_rows_body<const FUSED: bool>(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x = (*x + b).clamp(0.0, 6.0));
    }
}

compiled_twice! {
    /// Adds `bias` to every row of `x`, and `other`.
    residual_rows = residual_rows_body(x: &mut [f32], bias: &[f32], other: &[f32])
}
#[inline(always)]
fn residual_rows_body<const FUSED: bool>(x: &mut [f32], bias: &[f32], other: &[f32]) {
    for (row, other) in x.chunks_exact_mut(bias.len()).zip(other.chunks_exact(bias.len())) {
        row.iter_mut().zip(bias).zip(other).for_each(|((x, b), y)| *x += b + y);
    }
}

const LANES: usize = 16;

/// A sum in `LANES` partial sums, which the compiler keeps in vector registers.
#[inline(always)]
fn lane_sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().map(|&x| term(x)).sum();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, &x)| *sum += term(x));
    }
    sums.iter().sum::<f32>() + rest
}

compiled_twice! {
    /// Scales the rows of `x` to mean 0 and variance 1, multiplies by `scale` and adds `shift`.
    norm_rows = norm_rows_body(out: &mut [f32], x: &[f32], scale: &[f32], shift: &[f32], epsilon: f32)
}
#[inline(always)]
fn norm_rows_body<const FUSED: bool>(out: &mut [f32], x: &[f32], scale: &[f32], shift: &[f32], epsilon: f32) {
    let width = scale.len();
    for (out, row) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
        let mean = lane_sum(row, |x| x) / width as f32;
        let variance = lane_sum(row, |x| (x - mean) * (x - mean)) / width as f32;
        let factor = 1.0 / (variance + epsilon).sqrt();
        for (((out, x), scale), shift) in out.iter_mut().zip(row).zip(scale).zip(shift) {
            *out = multiply_add::<FUSED>((x - mean) * factor, *scale, *shift);
        }
    }
}

/// The first `LANES` columns of the row vector `a` times the matrix `m`, whose rows are `stride`
/// apart.
#[inline(always)]
fn vector_times<const FUSED: bool>(a: impl Iterator<Item = f32>, m: &[f32], stride: usize) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    for (a, row) in a.zip(m.chunks(stride)) {
        if let Some(row) = row.first_chunk::<LANES>() {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum = multiply_add::<FUSED>(a, x, *sum));
        }
    }
    sums
}

/// The inputs of the attention of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    /// Queries, keys and values side by side: rows of `3 width` columns.
    pub qkv: &'a [f32],
    /// Columns of all heads together.
    pub width: usize,
    /// The number of heads.
    pub count: usize,
    /// For each head, `2 reach + 1` scores, by the distance of the key from the query; or empty.
    pub distance: &'a [f32],
}

compiled_twice! {
    /// The attention of one sequence: for each head, the softmax of `q k^T / sqrt(d)` (plus the
    /// scores by distance) times `v`.
    attend = attend_body(out: &mut [f32], heads: Heads<'_>)
}
#[inline(always)]
fn attend_body<const FUSED: bool>(out: &mut [f32], heads: Heads<'_>) {
    let Heads { qkv, width, count, distance } = heads;
    let (length, d) = (qkv.len() / (3 * width), width / count);
    let padded = length.next_multiple_of(LANES);
    let d_padded = d.next_multiple_of(LANES);
    let factor = 1.0 / (d as f32).sqrt();
    let mut keys = vec![0.0; d * padded];
    let mut values = vec![0.0; length * d_padded];
    let mut scores = vec![0.0; padded];
    for head in 0..count {
        for (j, row) in qkv.chunks_exact(3 * width).enumerate() {
            let start = head * d;
            (0..d).for_each(|t| keys[t * padded + j] = row[width + start + t]);
            values[j * d_padded..][..d].copy_from_slice(&row[2 * width + start..][..d]);
        }
        let reach = distance.len() / count / 2;
        let by_distance = &distance[head * (distance.len() / count)..][..distance.len() / count];
        for i in 0..length {
            let query = &qkv[i * 3 * width + head * d..][..d];
            for block in (0..padded).step_by(LANES) {
                let sums = vector_times::<FUSED>(query.iter().copied(), &keys[block..], padded);
                scores[block..block + LANES].copy_from_slice(&sums);
            }
            scores[..length].iter_mut().for_each(|s| *s *= factor);
            if !by_distance.is_empty() {
                let from = &by_distance[reach - i..];
                scores[..length].iter_mut().zip(from).for_each(|(s, b)| *s += b);
            }
            let total = softmax::<FUSED>(&mut scores[..length]);
            let out = &mut out[i * width + head * d..][..d];
            for (block, out) in out.chunks_mut(LANES).enumerate() {
                let weights = scores[..length].iter().copied();
                let sums = vector_times::<FUSED>(weights, &values[block * LANES..], d_padded);
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / total);
            }
        }
    }
}

/// `e^(x - max)` in place; returns their sum.
#[inline(always)]
fn softmax<const FUSED: bool>(x: &mut [f32]) -> f32 {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = exp::<FUSED>(*x - top));
    lane_sum(x, |x| x)
}

/// A depthwise convolution over channels-last images: its window, step and sizes.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Rows and columns of the window.
    pub size: usize,
    /// Rows and columns from one window to the next.
    pub stride: usize,
    /// Rows and columns of the image.
    pub side: usize,
}

impl Window {
    /// Rows and columns of the result: `side / stride`, rounded up ("same" padding).
    pub fn output(self) -> usize {
        self.side.div_ceil(self.stride)
    }

    /// Zeros before the first row and column.
    pub fn padding(self) -> usize {
        ((self.output() - 1) * self.stride + self.size).saturating_sub(self.side) / 2
    }

    /// The offsets in the window whose position `start + offset - padding` lies in the image.
    fn inside(self, start: usize) -> std::ops::Range<usize> {
        let padding = self.padding();
        padding.saturating_sub(start).min(self.size)..(self.side + padding).saturating_sub(start).min(self.size)
    }
}

compiled_twice! {
    /// Convolves an image of `side` x `side` pixels, each channel with its own `size` x `size`
    /// weights, adds the bias and bounds the values to 0..=6.
    depthwise = depthwise_body(out: &mut [f32], image: &[f32], weights: &[f32], bias: &[f32], window: Window)
}
#[inline(always)]
fn depthwise_body<const FUSED: bool>(out: &mut [f32], image: &[f32], weights: &[f32], bias: &[f32], window: Window) {
    let (channels, columns) = (bias.len(), window.output());
    for (place, out) in out.chunks_exact_mut(channels).enumerate() {
        let (top, left) = (place / columns * window.stride, place % columns * window.stride);
        out.copy_from_slice(bias);
        for dy in window.inside(top) {
            for dx in window.inside(left) {
                let pixel = (top + dy - window.padding()) * window.side + left + dx - window.padding();
                let weights = &weights[(dy * window.size + dx) * channels..][..channels];
                let image = &image[pixel * channels..][..channels];
                for ((out, x), w) in out.iter_mut().zip(image).zip(weights) {
                    *out = multiply_add::<FUSED>(*x, *w, *out);
                }
            }
        }
        out.iter_mut().for_each(|x| *x = x.clamp(0.0, 6.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_exact_to_single_precision() {
        for step in 0..20_000 {
            let x = -88.0 + step as f32 * 0.005;
            let exact = f64::from(x).exp();
            for value in [exp::<false>(x), exp::<true>(x)] {
                assert!((f64::from(value) - exact).abs() <= 4e-7 * exact + 1e-37, "exp {x} = {value}, not {exact}");
            }
        }
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn gelu_follows_the_error_function() {
        // By the series erf z = 2 / sqrt(pi) sum (-1)^n z^(2n + 1) / (n! (2n + 1)), good for |z| <
        // 4.
        let erf = |z: f64| {
            let (mut sum, mut power) = (0.0, z);
            for n in 0..120 {
                sum += power / f64::from(2 * n + 1);
                power *= -z * z / f64::from(n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        };
        for step in -500..=500 {
            let x = f64::from(step) * 0.01;
            let exact = 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
            for value in [gelu::<false>(x as f32), gelu::<true>(x as f32)] {
                assert!((f64::from(value) - exact).abs() < 1e-6, "gelu {x} = {value}, not {exact}");
            }
        }
        assert_eq!((gelu::<false>(50.0), gelu::<false>(-50.0)), (50.0, 0.0));
    }

    #[test]
    fn windows_pad_as_tensorflow_does() {
        // A window of 3 with step 2 on a side of 224 needs one zero, after the last pixel.
        assert_eq!(
            (Window { size: 3, stride: 2, side: 224 }.output(), Window { size: 3, stride: 2, side: 224 }.padding()),
            (112, 0)
        );
        let odd = Window { size: 5, stride: 1, side: 7 };
        assert_eq!((odd.output(), odd.padding(), odd.inside(0), odd.inside(6)), (7, 2, 2..5, 0..3));
    }
}
