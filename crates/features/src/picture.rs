//! Pictures: decoding, resizing and scaling as the reference pipelines (Pillow, transformers, torchvision) do it.

use crate::{Error, Result, config};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Pictures with more pixels are refused before they are decoded.
const MAX_PIXELS: usize = 1 << 28;

/// The longest side a JPEG header can name.
const MAX_SIDE: usize = 1 << 16;

/// An RGB picture of 8 bits a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// How new pixels are weighed from old ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// A triangle of radius 1.
    Bilinear,
    /// Keys' cubic of radius 2 with parameter -1/2.
    Bicubic,
}

/// What happens to a picture before the network sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PicturePreprocessing {
    /// Rows and columns after resizing (the picture is not cropped, its proportions may change).
    pub side: usize,
    /// By which filter.
    pub filter: Filter,
    /// Subtracted from values in 0..=1, by channel.
    pub mean: [f32; 3],
    /// Then divided by these.
    pub std: [f32; 3],
}

impl Picture {
    /// A picture from its pixels, row by row.
    pub fn from_rgb(width: usize, height: usize, pixels: Vec<u8>) -> Option<Self> {
        let fits = width > 0 && height > 0 && pixels.len() == width.checked_mul(height)?.checked_mul(3)?;
        fits.then_some(Self { width, height, pixels })
    }

    /// A picture from one value a pixel.
    pub fn from_grey(width: usize, height: usize, values: &[u8]) -> Option<Self> {
        Self::from_rgb(width, height, values.iter().flat_map(|&v| [v; 3]).collect())
    }

    /// Decodes a JPEG or PNG file; transparency is dropped, as Pillow's `convert("RGB")` does.
    pub fn open(path: &Path) -> Result<Self> {
        let item = |reason: String| Error::item(path.display().to_string(), reason);
        let bytes = std::fs::read(path).map_err(|e| item(e.to_string()))?;
        Self::decode(&bytes).map_err(item)
    }

    /// Decodes the bytes of a file; the error says why not.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        match bytes {
            [0xFF, 0xD8, ..] => jpeg(bytes),
            [0x89, b'P', b'N', b'G', ..] => png(bytes),
            _ => Err("is no JPEG or PNG picture; convert it to one of them".to_owned()),
        }
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Red, green and blue of each pixel, row by row.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The part with columns `left..right` and rows `top..bottom`, as far as it lies inside; `None` if nothing does.
    pub fn crop(&self, left: usize, top: usize, right: usize, bottom: usize) -> Option<Self> {
        let (right, bottom) = (right.min(self.width), bottom.min(self.height));
        if left >= right || top >= bottom {
            return None;
        }
        let rows = self.pixels.chunks_exact(3 * self.width).take(bottom).skip(top);
        let pixels = rows.flat_map(|row| &row[3 * left..3 * right]).copied().collect();
        Self::from_rgb(right - left, bottom - top, pixels)
    }

    /// Resizes as Pillow does, to the bit: first along rows, then along columns, each time rounded to 8 bits. (Pillow 13
    /// takes some tall pictures the other way round, which changes values by at most 1.)
    pub fn resize(&self, width: usize, height: usize, filter: Filter) -> Self {
        let across = if width == self.width { self.pixels.clone() } else { self.resize_rows(width, filter) };
        if height == self.height {
            return Self { width, height, pixels: across };
        }
        let windows = filter.windows(self.height, height);
        let mut pixels = vec![0; 3 * width * height];
        for (row, (start, weights)) in pixels.chunks_exact_mut(3 * width).zip(&windows) {
            for (column, pixel) in row.iter_mut().enumerate() {
                let values = across[column..].iter().step_by(3 * width).skip(*start);
                *pixel = weigh(values, weights);
            }
        }
        Self { width, height, pixels }
    }

    fn resize_rows(&self, width: usize, filter: Filter) -> Vec<u8> {
        let windows = filter.windows(self.width, width);
        let mut out = Vec::with_capacity(3 * width * self.height);
        for row in self.pixels.chunks_exact(3 * self.width) {
            for (start, weights) in &windows {
                out.extend((0..3).map(|channel| weigh(row[3 * start + channel..].iter().step_by(3), weights)));
            }
        }
        out
    }
}

fn jpeg(bytes: &[u8]) -> std::result::Result<Picture, String> {
    use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let options = options.set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let bad = |e: zune_jpeg::errors::DecodeErrors| format!("cannot be decoded: {e}");
    decoder.decode_headers().map_err(bad)?;
    let (width, height) = decoder.dimensions().ok_or("names no size")?;
    if width * height > MAX_PIXELS {
        return Err(format!("has {width} x {height} pixels, more than {MAX_PIXELS}"));
    }
    let pixels = decoder.decode().map_err(bad)?;
    Picture::from_rgb(width, height, pixels).ok_or_else(|| "has a number of channels that is not known".to_owned())
}

fn png(bytes: &[u8]) -> std::result::Result<Picture, String> {
    let bad = |e: png::DecodingError| format!("cannot be decoded: {e}");
    let mut decoder = png::Decoder::new_with_limits(std::io::Cursor::new(bytes), png::Limits { bytes: 8 * MAX_PIXELS });
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(bad)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let size = reader.output_buffer_size().filter(|_| width * height <= MAX_PIXELS);
    let mut values = vec![0; size.ok_or_else(|| format!("has more than {MAX_PIXELS} pixels"))?];
    let frame = reader.next_frame(&mut values).map_err(bad)?;
    values.truncate(frame.buffer_size());
    let picture = match frame.color_type {
        png::ColorType::Rgb => Picture::from_rgb(width, height, values),
        png::ColorType::Rgba => {
            Picture::from_rgb(width, height, values.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect())
        }
        png::ColorType::Grayscale => Picture::from_grey(width, height, &values),
        png::ColorType::GrayscaleAlpha => {
            Picture::from_grey(width, height, &values.iter().step_by(2).copied().collect::<Vec<_>>())
        }
        png::ColorType::Indexed => None,
    };
    picture.ok_or_else(|| "has a number of channels that is not known".to_owned())
}

/// Bits after the point of a weight: Pillow's choice, which leaves two bits above the 8 of a value in 32.
const WEIGHT_BITS: u32 = 22;

fn weigh<'a>(values: impl Iterator<Item = &'a u8>, weights: &[i32]) -> u8 {
    let half = 1 << (WEIGHT_BITS - 1);
    let sum = values.zip(weights).fold(half, |sum, (&value, weight)| sum + i32::from(value) * weight);
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

impl Filter {
    fn radius(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Self::Bicubic => 0.0,
        }
    }

    /// For each new place: the first old one that counts, and the weights from there on.
    fn windows(self, from: usize, to: usize) -> Vec<(usize, Vec<i32>)> {
        let scale = from as f64 / to as f64;
        // When shrinking, the filter is widened so that every old pixel counts.
        let stretch = scale.max(1.0);
        let radius = self.radius() * stretch;
        let window = |place: usize| {
            let centre = (place as f64 + 0.5) * scale;
            let first = (centre - radius + 0.5).max(0.0) as usize;
            let end = ((centre + radius + 0.5) as usize).min(from);
            let weights: Vec<f64> = (first..end).map(|x| self.at((x as f64 - centre + 0.5) / stretch)).collect();
            let total: f64 = weights.iter().sum();
            let fixed = |w: &f64| (w / total * f64::from(1 << WEIGHT_BITS)).round() as i32;
            (first, weights.iter().map(fixed).collect())
        };
        (0..to).map(window).collect()
    }
}

/// `preprocessor_config.json`, in its old form (`size: 224`) and its new one (`size: {height, width}`).
#[derive(Deserialize)]
struct Preprocessor {
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    resample: Option<u8>,
    size: Option<serde_json::Value>,
}

impl PicturePreprocessing {
    /// Torchvision's mean and deviation of ImageNet's pictures.
    pub(crate) fn imagenet(side: usize) -> Self {
        Self { side, filter: Filter::Bilinear, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
    }

    /// With what the `preprocessor_config.json` at `path` says, if it is there.
    pub(crate) fn adjusted_by(mut self, path: &Path) -> Result<Self> {
        let Some(p) = config::read_if_there::<Preprocessor>(path)? else { return Ok(self) };
        self.mean = p.image_mean.unwrap_or(self.mean);
        self.std = p.image_std.unwrap_or(self.std);
        self.filter = match p.resample {
            None => self.filter,
            Some(2) => Filter::Bilinear,
            Some(3) => Filter::Bicubic,
            Some(other) => return Err(Error::file(path, format!("resample {other} is not built in: 2 and 3 are"))),
        };
        if let Some(size) = &p.size {
            let side = |name: &str| size.get(name).unwrap_or(size).as_u64();
            match (side("height"), side("width")) {
                (Some(height), Some(width)) if height == width && (1..=8192).contains(&height) => {
                    self.side = height as usize
                }
                _ => return Err(Error::file(path, format!("size {size} is not built in: squares are"))),
            }
        }
        Ok(self)
    }

    /// Resizes and scales; the result holds the channels of each pixel, row by row.
    pub fn apply(&self, picture: &Picture) -> Vec<f32> {
        let resized = picture.resize(self.side, self.side, self.filter);
        let scale =
            |(index, &value): (usize, &u8)| (f32::from(value) / 255.0 - self.mean[index % 3]) / self.std[index % 3];
        resized.pixels.iter().enumerate().map(scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture with edges and gradients that any language can make.
    fn pattern(width: usize, height: usize) -> Picture {
        let value = |i: usize| ((i * 37 + i / 7 * 101 + i / (3 * width) * 59) % 256) as u8;
        Picture::from_rgb(width, height, (0..3 * width * height).map(value).collect()).unwrap()
    }

    #[test]
    fn resizing_is_pillows() {
        // Sums and weighted sums of the pixels of Pillow's results (reference/golden.py).
        let golden: serde_json::Value = serde_json::from_str(include_str!("../tests/golden/resize.json")).unwrap();
        let cases = golden.as_array().unwrap();
        assert!(cases.len() >= 10);
        for case in cases {
            let number = |name: &str| case[name].as_u64().unwrap();
            let size = |name: &str| number(name) as usize;
            let filter: Filter = serde_json::from_value(case["filter"].clone()).unwrap();
            let resized = pattern(size("width"), size("height")).resize(size("to_width"), size("to_height"), filter);
            let sum: u64 = resized.pixels().iter().map(|&p| u64::from(p)).sum();
            let weighted: u64 =
                resized.pixels().iter().enumerate().map(|(i, &p)| (i as u64 % 997 + 1) * u64::from(p)).sum();
            assert_eq!((sum, weighted), (number("sum"), number("weighted")), "{case}");
        }
    }

    #[test]
    fn one_pixel_fills_any_size() {
        let one = Picture::from_rgb(1, 1, vec![10, 20, 30]).unwrap();
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            assert!(one.resize(224, 224, filter).pixels().chunks(3).all(|p| p == [10, 20, 30]));
        }
    }

    #[test]
    fn crops_stay_inside() {
        let picture = pattern(5, 4);
        let part = picture.crop(3, 2, 99, 99).unwrap();
        assert_eq!((part.width(), part.height()), (2, 2));
        assert_eq!(part.pixels()[..3], picture.pixels()[3 * (2 * 5 + 3)..][..3]);
        assert!(picture.crop(5, 0, 9, 4).is_none() && picture.crop(2, 2, 2, 3).is_none());
    }

    #[test]
    fn what_is_no_picture_is_said() {
        assert!(Picture::decode(b"hello").unwrap_err().contains("is no JPEG"));
        assert!(Picture::decode(&[]).unwrap_err().contains("is no JPEG"));
        assert!(Picture::decode(b"\x89PNG\r\n\x1a\nrest").unwrap_err().contains("cannot be decoded"));
    }
}
