//! NumPy arrays: the features and labels a data owner brings.

use crate::{Error, Result};
use hetal_learn::{Dataset, Matrix};
use std::path::Path;

/// Arrays above this many bytes are refused before anything is read.
const MAX_BYTES: u64 = 16 << 30;

/// The parts of an array file.
struct Array {
    kind: String,
    shape: Vec<usize>,
    body: Vec<u8>,
}

/// A two-dimensional array of floats (`<f2`, `<f4`, `<f8`).
pub fn matrix(path: &Path) -> Result<Matrix> {
    let array = read(path)?;
    let [rows, columns] = array.shape[..] else {
        return Err(bad(path, format!("has {} dimensions, must have 2: rows and features", array.shape.len())));
    };
    let values = floats(path, &array)?;
    Ok(Matrix::from_fn(rows, columns, |i, j| values[i * columns + j]))
}

/// A one-dimensional array of class numbers (`<i4`, `<i8`).
pub fn labels(path: &Path) -> Result<Vec<usize>> {
    let array = read(path)?;
    if array.shape.len() != 1 {
        return Err(bad(path, format!("has {} dimensions, must have 1: a label per row", array.shape.len())));
    }
    let number = |bytes: &[u8]| -> i64 {
        let mut wide = [if bytes[bytes.len() - 1] & 0x80 == 0 { 0 } else { 0xFF }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(wide)
    };
    let width = match array.kind.as_str() {
        "<i4" => 4,
        "<i8" => 8,
        other => return Err(bad(path, format!("holds {other}, must hold <i4 or <i8"))),
    };
    let to_class = |(row, bytes): (usize, &[u8])| {
        let x = number(bytes);
        usize::try_from(x).map_err(|_| bad(path, format!("row {row}: label {x} is negative")))
    };
    array.body.chunks_exact(width).enumerate().map(to_class).collect()
}

/// The rows `features_NAME.npy` and `labels_NAME.npy` of a folder.
pub fn dataset(folder: &Path, name: &str, classes: usize) -> Result<Dataset> {
    let features = matrix(&folder.join(format!("features_{name}.npy")))?;
    Ok(Dataset::new(features, labels(&folder.join(format!("labels_{name}.npy")))?, classes)?)
}

fn bad(path: &Path, reason: String) -> Error {
    Error::File { path: path.display().to_string(), reason }
}

fn read(path: &Path) -> Result<Array> {
    let size = std::fs::metadata(path).map_err(|e| bad(path, e.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(bad(path, format!("has {size} bytes, more than {MAX_BYTES}")));
    }
    parse(path, &std::fs::read(path).map_err(|e| bad(path, e.to_string()))?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Array> {
    let no = || bad(path, "is no NumPy array (.npy)".to_owned());
    if bytes.len() < 10 || &bytes[..6] != b"\x93NUMPY" {
        return Err(no());
    }
    let (start, length) = match bytes[6] {
        1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        2 | 3 if bytes.len() >= 12 => (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize),
        _ => return Err(no()),
    };
    let header = bytes.get(start..start + length).ok_or_else(no)?;
    let header = std::str::from_utf8(header).map_err(|_| no())?;
    if field(header, "'fortran_order':").is_none_or(|v| !v.starts_with("False")) {
        return Err(bad(path, "is in Fortran order; save it with numpy.ascontiguousarray".to_owned()));
    }
    let kind = field(header, "'descr':").and_then(|v| v.split('\'').nth(1)).ok_or_else(no)?.to_owned();
    let shape = field(header, "'shape':").and_then(|v| v.strip_prefix('(')?.split(')').next()).ok_or_else(no)?;
    let shape: Vec<usize> = shape
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(|n| n.parse().map_err(|_| no()))
        .collect::<Result<_>>()?;
    let width: usize = kind.get(2..).and_then(|w| w.parse().ok()).ok_or_else(no)?;
    let body = &bytes[start + length..];
    let expected = shape.iter().try_fold(width, |product, &n| product.checked_mul(n)).ok_or_else(no)?;
    if body.len() != expected {
        return Err(bad(path, format!("has {} bytes of values for shape {shape:?} of {kind}", body.len())));
    }
    Ok(Array { kind, shape, body: body.to_vec() })
}

fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    Some(header[header.find(name)? + name.len()..].trim_start())
}

fn floats(path: &Path, array: &Array) -> Result<Vec<f64>> {
    let body = &array.body;
    Ok(match array.kind.as_str() {
        "<f2" => body.chunks_exact(2).map(|b| half(u16::from_le_bytes([b[0], b[1]]))).collect(),
        "<f4" => body.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
        "<f8" => {
            body.chunks_exact(8).map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect()
        }
        other => return Err(bad(path, format!("holds {other}, must hold <f2, <f4 or <f8"))),
    })
}

/// An IEEE half as a double.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: &str, shape: &str, body: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn halves_are_exact() {
        for (bits, value) in
            [(0x3C00, 1.0), (0xC000, -2.0), (0x0001, 5.960464477539063e-8), (0x7BFF, 65504.0), (0, 0.0)]
        {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7C00).is_infinite() && half(0x7E00).is_nan());
    }

    #[test]
    fn arrays_parse_or_say_why_not() {
        let here = Path::new("x.npy");
        let body: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let array = parse(here, &file("<f4", "1, 2", &body)).unwrap();
        assert_eq!((array.shape.clone(), floats(here, &array).unwrap()), (vec![1, 2], vec![1.5, -2.0]));
        let good = file("<f4", "1, 2", &body);
        for cut in 0..good.len() {
            assert!(parse(here, &good[..cut]).is_err(), "cut at {cut}");
        }
        let huge = parse(here, &file("<f4", "99999999999, 99999999999", &body)).err().unwrap();
        assert!(huge.to_string().contains("x.npy"), "{huge}");
        assert!(parse(here, &file("|O", "1", &body)).is_err());
    }
}
