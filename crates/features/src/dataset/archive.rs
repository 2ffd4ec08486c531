//! MedMNIST's data sets: an `.npz` archive with the pictures and labels of three parts.

use super::{FoundSamples, Pictures, Sample, binary};
use crate::npy::NpyArray;
use crate::{Error, Result, untrusted};
use std::path::Path;

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

pub(crate) fn read(path: &Path) -> Result<FoundSamples> {
    let file = untrusted::open(path).map_err(Error::io(path))?;
    let size = file.metadata().map_err(Error::io(path))?.len();
    let bad = |e: zip::result::ZipError| Error::dataset(path, format!("is no .npz archive: {e}; get it again"));
    let mut archive = Archive::new(file).map_err(bad)?;
    if archive.has_duplicate_names() {
        return Err(Error::dataset(path, "holds two arrays of one name; write the archive again"));
    }
    // All arrays together are bounded by the size of the archive.
    let (mut labels, mut left) = (Vec::new(), untrusted::unpacked_limit(size));
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
    Ok(FoundSamples { classes: (0..count).map(names).collect(), notes: vec![], parts })
}

fn samples(path: &Path, part: &str, images: NpyArray, labels: &[u8], classes: usize) -> Result<Vec<Sample>> {
    let (height, width, channels) = match images.shape[..] {
        [_, height, width, 3] => (height, width, 3),
        [_, height, width] => (height, width, 1),
        _ => {
            let reason = format!(
                "{part}_images has shape {:?}, must be pictures x height x width, with 3 channels or none",
                images.shape
            );
            return Err(Error::dataset(path, reason));
        }
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

/// Reads an array of bytes. `left` is the number of bytes that may still be unpacked.
fn array(path: &Path, archive: &mut Archive, name: &str, left: &mut u64) -> Result<NpyArray> {
    let bad = |reason: String| Error::dataset(path, format!("array {name}: {reason}"));
    let entry = archive.by_name(&format!("{name}.npy")).map_err(|e| bad(e.to_string()))?;
    let array = NpyArray::read_bytes(entry, *left).map_err(|reason| {
        bad(format!("{reason}; the arrays of an archive may have 64 times its size (at least 64 MiB, at most 4 GiB)"))
    })?;
    *left -= array.bytes.len() as u64;
    Ok(array)
}
