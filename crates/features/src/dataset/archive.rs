//! MedMNIST's archives: an `.npz` file with pictures and labels of three parts.

use super::{Found, Pictures, Sample, binary};
use crate::npy::Array;
use crate::{Error, Result, untrusted};
use std::path::Path;

/// Archives whose arrays have more bytes together are refused before they are unpacked.
const MAX_BYTES: u64 = 4 << 30;

/// DermaMNIST's classes, as MedMNIST names them.
const DERMA: [&str; 7] = [
    "actinic keratoses and intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign keratosis-like lesions",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevi",
    "vascular lesions",
];

type Archive = zip::ZipArchive<std::fs::File>;

pub(crate) fn read(path: &Path) -> Result<Found> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let bad = |e: zip::result::ZipError| Error::dataset(path, format!("is no .npz archive: {e}"));
    let mut archive = Archive::new(file).map_err(bad)?;
    let (mut labels, mut left) = (Vec::new(), MAX_BYTES);
    for part in super::PARTS {
        labels.push(array(path, &mut archive, &format!("{part}_labels"), &mut left)?);
    }
    let count = labels.iter().flat_map(|array| &array.bytes).max().map_or(0, |&top| usize::from(top) + 1);
    let mut parts = [None, None, None];
    for ((found, part), labels) in parts.iter_mut().zip(super::PARTS).zip(&labels) {
        let images = array(path, &mut archive, &format!("{part}_images"), &mut left)?;
        *found = Some(samples(path, part, images, &labels.bytes, count)?);
    }
    let names = |label: usize| match count {
        7 => DERMA[label].to_owned(),
        _ => label.to_string(),
    };
    Ok(Found { classes: (0..count).map(names).collect(), notes: vec![], parts })
}

fn samples(path: &Path, part: &str, images: Array, labels: &[u8], classes: usize) -> Result<Vec<Sample>> {
    let (height, width, channels) = match images.shape[..] {
        [_, height, width, 3] => (height, width, 3),
        [_, height, width] => (height, width, 1),
        _ => return Err(Error::dataset(path, format!("{part}_images has shape {:?}", images.shape))),
    };
    if height.checked_mul(width).and_then(|n| n.checked_mul(channels)).is_none_or(|n| n == 0) {
        return Err(Error::dataset(path, format!("{part}_images holds pictures without pixels")));
    }
    binary::samples(
        part,
        Pictures { width, height, channels, planar: false, bytes: images.bytes },
        labels,
        classes,
        path,
    )
}

/// An array of bytes in the archive; `left` are the bytes that may still be unpacked.
fn array(path: &Path, archive: &mut Archive, name: &str, left: &mut u64) -> Result<Array> {
    let bad = |reason: String| Error::dataset(path, format!("array {name}: {reason}"));
    let entry = archive.by_name(&format!("{name}.npy")).map_err(|e| bad(e.to_string()))?;
    let bytes = untrusted::all(entry, *left)
        .map_err(|e| bad(format!("{e} (an archive may hold {MAX_BYTES} bytes, unpacked)")))?;
    *left -= bytes.len() as u64;
    let array = Array::parse(bytes).map_err(bad)?;
    match array.kind.as_str() {
        "|u1" => Ok(array),
        other => Err(bad(format!("holds {other}, must hold |u1"))),
    }
}
