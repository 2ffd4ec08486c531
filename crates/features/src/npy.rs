//! NumPy arrays.

use crate::{Result, disk};
use std::path::Path;

/// An array in C order.
pub(crate) struct Array {
    /// NumPy's name of the kind of number, `<f4` for example.
    pub kind: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Parses the bytes of an `.npy` file; the error says why not.
    pub fn parse(mut bytes: Vec<u8>) -> std::result::Result<Self, String> {
        let no = || "is no NumPy array in C order".to_owned();
        let (start, length) = match bytes[..] {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
                (12, u32::from_le_bytes([a, b, c, d]) as usize)
            }
            _ => return Err(no()),
        };
        let header = bytes.get(start..start + length).and_then(|h| std::str::from_utf8(h).ok()).ok_or_else(no)?;
        let field = |name: &str| header.split_once(name).map(|(_, rest)| rest.trim_start()).ok_or_else(no);
        if !field("'fortran_order':")?.starts_with("False") {
            return Err(no());
        }
        let kind = field("'descr':")?.split('\'').nth(1).ok_or_else(no)?.to_owned();
        let inside = field("'shape':")?.strip_prefix('(').and_then(|rest| rest.split(')').next()).ok_or_else(no)?;
        let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(|size| size.parse().map_err(|_| no())).collect::<std::result::Result<Vec<usize>, _>>()?;
        let width: usize = kind.get(2..).and_then(|width| width.parse().ok()).ok_or_else(no)?;
        bytes.drain(..start + length);
        match shape.iter().try_fold(width, |product, &size| product.checked_mul(size)) {
            Some(expected) if expected == bytes.len() => Ok(Self { kind, shape, bytes }),
            _ => Err(format!("has {} bytes for shape {shape:?} of {kind}", bytes.len())),
        }
    }

    /// Writes an `.npy` file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let shape = if sizes.len() == 1 { format!("{},", sizes[0]) } else { sizes.join(", ") };
        let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}", self.kind);
        // NumPy aligns the numbers to 64 bytes.
        while (header.len() + 11) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let length = (header.len() as u16).to_le_bytes();
        disk::write(path, &[b"\x93NUMPY\x01\x00", &length, header.as_bytes(), &self.bytes])
    }

    /// Rows of single-precision numbers.
    pub fn of_rows(columns: usize, bytes: Vec<u8>) -> Self {
        Self { kind: "<f4".to_owned(), shape: vec![bytes.len() / (4 * columns.max(1)), columns], bytes }
    }

    /// Class numbers.
    pub fn of_labels(labels: &[usize]) -> Self {
        let bytes: Vec<u8> = labels.iter().flat_map(|&label| (label as i64).to_le_bytes()).collect();
        Self { kind: "<i8".to_owned(), shape: vec![labels.len()], bytes }
    }
}

/// Writes rows of numbers as an `.npy` file that its owner alone may read.
pub fn write_rows(path: &Path, columns: usize, rows: &[Vec<f32>]) -> Result<()> {
    let bytes = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    Array::of_rows(columns, bytes).write(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_survive_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for array in [Array::of_labels(&[3, 1, 2]), Array::of_rows(2, vec![0; 24]), Array::of_rows(5, vec![])] {
            array.write(&path).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let again = Array::parse(bytes.clone()).unwrap();
            assert_eq!((again.kind, again.shape, again.bytes), (array.kind, array.shape, array.bytes));
            (0..bytes.len().min(128))
                .for_each(|cut| assert!(Array::parse(bytes[..cut].to_vec()).is_err(), "cut at {cut}"));
        }
    }
}
