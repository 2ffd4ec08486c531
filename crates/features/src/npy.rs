//! Arrays in NumPy's `.npy` format.

use crate::{Result, disk, untrusted};
use hetal_tables::npy::{NpyHeader, start};
use std::io::Read;
use std::path::Path;

/// An array in C order.
pub(crate) struct NpyArray {
    /// NumPy's name of the element type, `<f4` for example.
    pub kind: &'static str,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub bytes: Vec<u8>,
}

impl NpyArray {
    /// Reads an `.npy` file of bytes, at most `most` of them. The header is read first, so that no
    /// more is taken from a packed file than the array's shape says.
    pub fn read_bytes(mut reader: impl Read, most: u64) -> std::result::Result<Self, String> {
        let header = NpyHeader::read(&mut reader).map_err(|problem| problem.to_string())?;
        let shape = header.shape().to_vec();
        if !header.is_bytes() {
            return Err("must hold bytes (|u1) in C order".to_owned());
        }
        let size = header.value_bytes().unwrap_or(usize::MAX) as u64;
        if size > most {
            return Err(format!("has {size} bytes in shape {shape:?}, at most {most} are read"));
        }
        let wrong = |found: &str| format!("has {found} than the {size} bytes of shape {shape:?}");
        let bytes = untrusted::read_all(reader, size).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => wrong("more"),
            _ => e.to_string(),
        })?;
        match bytes.len() as u64 {
            length if length < size => Err(wrong("fewer")),
            _ => Ok(Self { kind: "|u1", shape, bytes }),
        }
    }

    /// Writes an `.npy` file.
    pub fn write(&self, path: &Path) -> Result<()> {
        disk::write(path, &[&start(self.kind, &self.shape), &self.bytes])
    }

    /// Rows of single-precision numbers.
    pub fn of_rows(columns: usize, bytes: Vec<u8>) -> Self {
        Self { kind: "<f4", shape: vec![bytes.len() / (4 * columns.max(1)), columns], bytes }
    }

    /// Class numbers.
    pub fn of_labels(labels: &[usize]) -> Self {
        let bytes: Vec<u8> = labels.iter().flat_map(|&label| (label as i64).to_le_bytes()).collect();
        Self { kind: "<i8", shape: vec![labels.len()], bytes }
    }
}

/// Writes rows of numbers as an `.npy` file that its owner alone may read.
pub fn write_rows(path: &Path, columns: usize, rows: &[Vec<f32>]) -> Result<()> {
    let bytes = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    NpyArray::of_rows(columns, bytes).write(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_survive_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let options = hetal_tables::Options::default();
        write_rows(&path, 2, &[vec![0.5, -3.0], vec![1e10, 0.25]]).unwrap();
        assert_eq!(hetal_tables::read(&path, &options).unwrap().values, [0.5, -3.0, 1e10, 0.25]);
        NpyArray::of_labels(&[3, 1, 2]).write(&path).unwrap();
        let (labels, _) = hetal_tables::read_labels(&path, None, None, &options).unwrap();
        assert_eq!(labels, hetal_tables::Labels::Integers(vec![3, 1, 2]));
        let pictures = [start("|u1", &[2, 1, 3]), vec![1, 2, 3, 4, 5, 6]].concat();
        let read = |bytes: &[u8]| NpyArray::read_bytes(bytes, 1 << 20);
        let array = read(&pictures).unwrap();
        assert_eq!((array.shape, array.bytes), (vec![2, 1, 3], vec![1, 2, 3, 4, 5, 6]));
        for cut in 0..pictures.len() {
            assert!(read(&pictures[..cut]).is_err(), "cut at {cut}");
        }
        assert!(read(&std::fs::read(&path).unwrap()).err().unwrap().contains("must hold bytes"));
    }

    /// An array that goes on for ever is read no further than its shape.
    #[test]
    fn arrays_are_held_to_their_shape_and_to_the_limit() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 1000), }\n";
        let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        let endless = || start.as_slice().chain(std::io::repeat(0));
        let error = |most: u64| NpyArray::read_bytes(endless(), most).err().unwrap();
        assert!(error(999_999).contains("at most 999999 are read"), "{}", error(999_999));
        assert!(error(1_000_000).contains("has more than the 1000000 bytes"), "{}", error(1_000_000));
        assert!(NpyArray::read_bytes(endless().take(start.len() as u64 + 1_000_000), 1_000_000).is_ok());
    }
}
