//! Arrays in NumPy's `.npy` format.

use crate::{Result, disk, untrusted};
use std::io::Read;
use std::path::Path;

/// Headers above this many bytes are refused; NumPy's have some hundred.
const MAX_HEADER: usize = 1 << 20;

/// An array in C order.
pub(crate) struct Array {
    /// NumPy's name of the element type, `<f4` for example.
    pub kind: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Reads an `.npy` file whose numbers have at most `most` bytes. The header is read first, so
    /// that no more is taken from a packed file than the array's shape says.
    pub fn read(mut reader: impl Read, most: u64) -> std::result::Result<Self, String> {
        let Header { kind, shape, size } = Header::read(&mut reader)?;
        if size > most {
            return Err(format!("has {size} bytes in shape {shape:?}, at most {most} are read"));
        }
        let wrong = |found: &str| format!("has {found} than the {size} bytes of shape {shape:?} of {kind}");
        let bytes = untrusted::read_all(reader, size).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => wrong("more"),
            _ => e.to_string(),
        })?;
        match bytes.len() as u64 {
            length if length < size => Err(wrong("fewer")),
            _ => Ok(Self { kind, shape, bytes }),
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

/// What stands before the numbers of an array.
struct Header {
    kind: String,
    shape: Vec<usize>,
    /// Bytes of the numbers.
    size: u64,
}

impl Header {
    fn read(reader: &mut impl Read) -> std::result::Result<Self, String> {
        let no = || "is no NumPy array in C order".to_owned();
        let mut start = [0; 8];
        reader.read_exact(&mut start).map_err(|_| no())?;
        // The length of the header is a number of two bytes in version 1, of four bytes later.
        let (mut length, width) = ([0; 4], if start[6] == 1 { 2 } else { 4 });
        reader.read_exact(&mut length[..width]).map_err(|_| no())?;
        let length = u32::from_le_bytes(length) as usize;
        if &start[..6] != b"\x93NUMPY" || !(1..=3).contains(&start[6]) || length > MAX_HEADER {
            return Err(no());
        }
        let mut header = vec![0; length];
        reader.read_exact(&mut header).map_err(|_| no())?;
        Self::parse(std::str::from_utf8(&header).map_err(|_| no())?).ok_or_else(no)
    }

    fn parse(header: &str) -> Option<Self> {
        let field = |name: &str| header.split_once(name).map(|(_, rest)| rest.trim_start());
        if !field("'fortran_order':")?.starts_with("False") {
            return None;
        }
        let kind = field("'descr':")?.split('\'').nth(1)?.to_owned();
        let inside = field("'shape':")?.strip_prefix('(').and_then(|rest| rest.split(')').next())?;
        let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(|size| size.parse().ok()).collect::<Option<Vec<usize>>>()?;
        let width: usize = kind.get(2..)?.parse().ok()?;
        let size = shape.iter().try_fold(width, |product, &size| product.checked_mul(size))?;
        Some(Self { kind, shape, size: size as u64 })
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
            let again = Array::read(&bytes[..], 1 << 20).unwrap();
            assert_eq!((again.kind, again.shape, again.bytes), (array.kind, array.shape, array.bytes));
            for cut in 0..bytes.len().min(128) {
                assert!(Array::read(&bytes[..cut], 1 << 20).is_err(), "cut at {cut}");
            }
        }
    }

    /// An array that goes on for ever is read no further than its shape.
    #[test]
    fn arrays_are_held_to_their_shape_and_to_the_limit() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 1000), }\n";
        let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        let endless = || start.as_slice().chain(std::io::repeat(0));
        let error = |most: u64| Array::read(endless(), most).err().unwrap();
        assert!(error(999_999).contains("at most 999999 are read"), "{}", error(999_999));
        assert!(error(1_000_000).contains("has more than the 1000000 bytes"), "{}", error(1_000_000));
        assert!(Array::read(endless().take(start.len() as u64 + 1_000_000), 1_000_000).is_ok());
    }
}
