//! Pictures: decoding, resizing and scaling, with the results of the reference implementations
//! (Pillow, transformers, torchvision).

use crate::{Error, Result, config, orientation, untrusted};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Larger files are refused.
const MAX_BYTES: u64 = 1 << 30;

/// Pictures with more pixels are refused before they are decoded. This is Pillow's limit.
const MAX_PIXELS: usize = 178_956_970;

/// Pictures with a longer side are refused. A JPEG header cannot name more; resizing a longer line
/// of pixels would need too much memory.
const MAX_SIDE: usize = 1 << 16;

/// What the PNG decoder may allocate beside the pixels: a row and EXIF data.
const MAX_PNG_METADATA: usize = 64 << 20;

/// The most bytes that deflate makes of one byte, rounded up.
const DEFLATE_RATIO: usize = 1040;

/// The most pixels that a byte of a JPEG file stands for: each block of 64 pixels takes a bit or
/// more.
const JPEG_PIXELS_PER_BYTE: usize = 512;

/// An RGB picture of 8 bits a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// The filter of a resize.
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

    /// Decodes a JPEG or PNG file. Transparency is dropped, as Pillow's `convert("RGB")` does, and
    /// the picture is turned upright by its EXIF orientation.
    pub fn open(path: &Path) -> Result<Self> {
        let item = |reason: String| Error::item(path.display().to_string(), reason);
        let bytes = untrusted::read(path, MAX_BYTES).map_err(|e| item(e.to_string()))?;
        Self::decode(&bytes).map_err(item)
    }

    /// Decodes the bytes of a file. The error says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        match bytes {
            [0xFF, 0xD8, ..] => jpeg(bytes),
            [0x89, b'P', b'N', b'G', ..] => png(bytes),
            _ => Err("is no JPEG or PNG picture; convert it to one of these formats".to_owned()),
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

    /// The part with columns `left..right` and rows `top..bottom`, as far as it lies in the
    /// picture; `None` if no pixel does.
    pub fn crop(&self, left: usize, top: usize, right: usize, bottom: usize) -> Option<Self> {
        let (right, bottom) = (right.min(self.width), bottom.min(self.height));
        if left >= right || top >= bottom {
            return None;
        }
        let rows = self.pixels.chunks_exact(3 * self.width).take(bottom).skip(top);
        let pixels = rows.flat_map(|row| &row[3 * left..3 * right]).copied().collect();
        Self::from_rgb(right - left, bottom - top, pixels)
    }

    /// Turns the picture upright by its EXIF orientation.
    fn turned(self, orientation: u16) -> Self {
        let (w, h) = (self.width, self.height);
        // Maps a position in the new picture to its position in this one.
        let from: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
            2 => |x, y, w, _| (w - 1 - x, y),
            3 => |x, y, w, h| (w - 1 - x, h - 1 - y),
            4 => |x, y, _, h| (x, h - 1 - y),
            5 => |x, y, _, _| (y, x),
            6 => |x, y, _, h| (y, h - 1 - x),
            7 => |x, y, w, h| (w - 1 - y, h - 1 - x),
            8 => |x, y, w, _| (w - 1 - y, x),
            _ => return self,
        };
        let (width, height) = if orientation < 5 { (w, h) } else { (h, w) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let (from_x, from_y) = from(x, y, w, h);
            pixels.extend_from_slice(&self.pixels[3 * (from_y * w + from_x)..][..3]);
        }
        Self { width, height, pixels }
    }

    /// Resizes with exactly the result of Pillow: first along rows, then along columns, each time
    /// rounded to 8 bits. (Pillow 13 resizes some tall pictures in the other order, which changes
    /// values by at most 1.)
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
    let bad = |e: zune_jpeg::errors::DecodeErrors| format!("cannot be decoded: {e}; get the picture again");
    decoder.decode_headers().map_err(bad)?;
    let (width, height) = decoder.dimensions().ok_or("has no size in its header; get the picture again")?;
    check_size(width, height)?;
    if width * height > bytes.len().saturating_mul(JPEG_PIXELS_PER_BYTE) {
        return Err(too_short(bytes, width, height));
    }
    let pixels = decoder.decode().map_err(bad)?;
    let turned = decoder.exif().and_then(|exif| orientation::of(exif)).unwrap_or_default();
    Ok(Picture::from_rgb(width, height, pixels).ok_or(CHANNELS)?.turned(turned))
}

const CHANNELS: &str = "has an unknown number of channels; convert it to RGB";

/// A header can announce more pixels than the file holds; nothing is allocated for them.
fn too_short(bytes: &[u8], width: usize, height: usize) -> String {
    let length = bytes.len();
    format!("has {length} bytes, which cannot hold {width} x {height} pixels; the file is damaged: get it again")
}

fn check_size(width: usize, height: usize) -> std::result::Result<(), String> {
    match width.checked_mul(height) {
        Some(pixels) if pixels <= MAX_PIXELS && width.max(height) <= MAX_SIDE => Ok(()),
        _ => Err(format!(
            "has {width} x {height} pixels; at most {MAX_PIXELS} are read, and {MAX_SIDE} a side: make it smaller"
        )),
    }
}

fn png(bytes: &[u8]) -> std::result::Result<Picture, String> {
    let bad = |e: png::DecodingError| format!("cannot be decoded: {e}; get the picture again");
    let limits = png::Limits { bytes: MAX_PNG_METADATA };
    let mut decoder = png::Decoder::new_with_limits(std::io::Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    // Colour profiles and texts are packed and not used here.
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    let mut reader = decoder.read_info().map_err(bad)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    if reader.info().raw_bytes() > bytes.len().saturating_mul(DEFLATE_RATIO) {
        return Err(too_short(bytes, width, height));
    }
    let mut values = vec![0; reader.output_buffer_size().ok_or("is larger than the memory; make it smaller")?];
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
    // EXIF data may follow the pixels. All pixels were read, so an early end of the file is no
    // error.
    _ = reader.finish();
    let turned = reader.info().exif_metadata.as_deref().and_then(orientation::of).unwrap_or_default();
    Ok(picture.ok_or(CHANNELS)?.turned(turned))
}

/// Fractional bits of a weight. Pillow's choice, which leaves two bits above the 8 of a value in
/// 32.
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

    /// For each new pixel: the index of the first old pixel that contributes, and the weights from
    /// there on.
    fn windows(self, from: usize, to: usize) -> Vec<(usize, Vec<i32>)> {
        let scale = from as f64 / to as f64;
        // When shrinking, the filter is widened so that every old pixel contributes.
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

/// `preprocessor_config.json`, in its old form (`size: 224`) and its new form (`size: {height,
/// width}`).
#[derive(Deserialize)]
pub(crate) struct Preprocessor {
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    resample: Option<u8>,
    size: Option<serde_json::Value>,
    do_center_crop: Option<bool>,
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
    rescale_factor: Option<f64>,
}

impl Preprocessor {
    /// A setting that this program cannot follow, if there is one.
    fn unsupported(&self) -> Option<&'static str> {
        let scale = |factor: f64| (factor * 255.0 - 1.0).abs() > 1e-6;
        match self {
            _ if self.do_center_crop == Some(true) => Some("cropping (do_center_crop)"),
            _ if self.do_resize == Some(false) => Some("no resizing (do_resize)"),
            _ if self.do_rescale == Some(false) || self.rescale_factor.is_some_and(scale) => {
                Some("another scale than 1/255 (do_rescale, rescale_factor)")
            }
            _ => None,
        }
    }
}

impl PicturePreprocessing {
    /// The mean and standard deviation of ImageNet's pictures, as torchvision has them.
    pub(crate) fn imagenet(side: usize) -> Self {
        Self { side, filter: Filter::Bilinear, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] }
    }

    /// Applies the settings of the `preprocessor_config.json` at `path`, if it exists.
    pub(crate) fn adjusted_by(self, path: &Path) -> Result<Self> {
        match config::read_if_there::<Preprocessor>(path)? {
            Some(preprocessor) => self.adjusted(&preprocessor, path),
            None => Ok(self),
        }
    }

    /// Applies the settings of a `preprocessor_config.json`.
    pub(crate) fn adjusted(mut self, p: &Preprocessor, path: &Path) -> Result<Self> {
        if let Some(step) = p.unsupported() {
            return Err(Error::file(
                path,
                format!("asks for {step}, which is not supported; use another network, or an .onnx file"),
            ));
        }
        (self.mean, self.std) = match p.do_normalize {
            Some(false) => ([0.0; 3], [1.0; 3]),
            _ => (p.image_mean.unwrap_or(self.mean), p.image_std.unwrap_or(self.std)),
        };
        if !self.std.iter().all(|&x| x > 0.0 && x.is_finite()) || !self.mean.iter().all(|x| x.is_finite()) {
            let reason = format!(
                "image_mean {:?} and image_std {:?} must be finite, image_std above zero; get the network again",
                self.mean, self.std
            );
            return Err(Error::file(path, reason));
        }
        self.filter = match p.resample {
            None => self.filter,
            Some(2) => Filter::Bilinear,
            Some(3) => Filter::Bicubic,
            Some(other) => {
                return Err(Error::file(
                    path,
                    format!("resample is {other}, must be 2 (bilinear) or 3 (bicubic); use another network"),
                ));
            }
        };
        if let Some(size) = &p.size {
            let side = |name: &str| size.get(name).unwrap_or(size).as_u64();
            match (side("height"), side("width")) {
                (Some(height), Some(width)) if height == width => self.side = usize::try_from(height).unwrap_or(0),
                _ => return Err(Error::file(path, format!("size is {size}, must be a square; use another network"))),
            }
            config::check_sizes(path, &[("size", self.side, config::SIDES)])?;
        }
        Ok(self)
    }

    /// Resizes a picture to the size that the network reads.
    pub(crate) fn fit(&self, picture: &Picture) -> Picture {
        picture.resize(self.side, self.side, self.filter)
    }

    /// Resizes and scales a picture. The result holds the channels of each pixel, row by row.
    pub fn apply(&self, picture: &Picture) -> Vec<f32> {
        let resized = self.fit(picture);
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
    fn pictures_are_turned_upright() {
        // A 3 x 2 picture with the values 0 1 2 / 3 4 5, as Pillow's `exif_transpose` turns it.
        let lying = Picture::from_grey(3, 2, &[0, 1, 2, 3, 4, 5]).unwrap();
        let expected: [(u16, usize, [u8; 6]); 9] = [
            (0, 3, [0, 1, 2, 3, 4, 5]),
            (1, 3, [0, 1, 2, 3, 4, 5]),
            (2, 3, [2, 1, 0, 5, 4, 3]),
            (3, 3, [5, 4, 3, 2, 1, 0]),
            (4, 3, [3, 4, 5, 0, 1, 2]),
            (5, 2, [0, 3, 1, 4, 2, 5]),
            (6, 2, [3, 0, 4, 1, 5, 2]),
            (7, 2, [5, 2, 4, 1, 3, 0]),
            (8, 2, [2, 5, 1, 4, 0, 3]),
        ];
        for (orientation, width, values) in expected {
            let turned = lying.clone().turned(orientation);
            assert_eq!(Picture::from_grey(width, 6 / width, &values).unwrap(), turned, "orientation {orientation}");
        }
    }

    #[test]
    fn orientation_after_the_pixels_of_a_png_is_applied() {
        // Little-endian, one entry: orientation, a short, one of them, 6.
        let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 3, 2);
        encoder.set_color(png::ColorType::Grayscale);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[0, 1, 2, 3, 4, 5]).unwrap();
        writer.write_chunk(png::chunk::ChunkType(*b"eXIf"), exif).unwrap();
        drop(writer);
        let upright = Picture::from_grey(2, 3, &[3, 0, 4, 1, 5, 2]);
        assert_eq!(Some(Picture::decode(&bytes).unwrap()), upright);
        // Truncated there, it is the same picture without its orientation. Truncated before, the
        // pixels may be incomplete.
        let exif = bytes.windows(4).position(|four| four == b"eXIf").unwrap();
        assert_eq!(Picture::decode(&bytes[..exif + 6]).ok(), Picture::from_grey(3, 2, &[0, 1, 2, 3, 4, 5]));
        assert!(Picture::decode(&bytes[..exif]).is_err());
    }

    #[test]
    fn too_large_pictures_are_refused_by_their_headers() {
        assert!(check_size(13_000, 13_000).is_ok() && check_size(14_000, 14_000).is_err());
        assert!(check_size(1, 65_536).is_ok() && check_size(1, 65_537).is_err());
        // One pixel wide, 100 million high: resized along rows first it would take 67 GB.
        let mut line = Vec::new();
        let mut encoder = png::Encoder::new(&mut line, 1, 100_000_000);
        encoder.set_color(png::ColorType::Grayscale);
        let mut writer = encoder.write_header().unwrap();
        writer.write_chunk(png::chunk::IDAT, &[0x78, 0x9C]).unwrap();
        drop(writer);
        assert!(Picture::decode(&line).unwrap_err().contains("100000000"));
    }

    #[test]
    fn steps_that_are_not_built_in_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("preprocessor_config.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            PicturePreprocessing::imagenet(224).adjusted_by(&path)
        };
        for text in [
            r#"{"do_center_crop": true}"#,
            r#"{"do_resize": false}"#,
            r#"{"rescale_factor": 0.0078125}"#,
            r#"{"size": {"shortest_edge": 224}}"#,
            r#"{"image_std": [1, 1, 0]}"#,
            r#"{"resample": 1}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let plain =
            read(r#"{"do_normalize": false, "do_resize": true, "rescale_factor": 0.00392156862745098}"#).unwrap();
        assert_eq!((plain.mean, plain.std), ([0.0; 3], [1.0; 3]));
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
    fn other_files_are_not_decoded() {
        assert!(Picture::decode(b"hello").unwrap_err().contains("is no JPEG"));
        assert!(Picture::decode(&[]).unwrap_err().contains("is no JPEG"));
        assert!(Picture::decode(b"\x89PNG\r\n\x1a\nrest").unwrap_err().contains("cannot be decoded"));
    }
}
