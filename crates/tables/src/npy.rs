//! The NumPy format `.npy`: one array.

use crate::array::Element;
use crate::{Array, FileProblem, Parsed};
use std::io::Read;

const FORMAT: &str = "NumPy (.npy)";
const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read.
const MAX_HEADER: usize = 1 << 16;
/// The most dimensions of an array.
const MAX_DIMENSIONS: usize = 8;

fn invalid(reason: &str) -> FileProblem {
    FileProblem::format(FORMAT, reason)
}

/// The header of an array.
#[derive(Debug)]
pub struct NpyHeader {
    element: Element,
    shape: Vec<usize>,
    /// Whether the first index runs first.
    fortran: bool,
    /// Bytes of the header itself.
    length: usize,
}

impl NpyHeader {
    /// Reads the header of a file, and nothing after it.
    pub fn read(reader: &mut impl Read) -> Parsed<Self> {
        let end = |_| invalid("it ends within its header");
        let mut bytes = vec![0; MAGIC.len() + 4];
        reader.read_exact(&mut bytes).map_err(end)?;
        // The length of the header is a number of two bytes in version 1, of four bytes later.
        let more = match bytes[MAGIC.len()..] {
            [1, _, a, b] => usize::from(u16::from_le_bytes([a, b])),
            [2 | 3, _, a, b] => {
                let mut high = [0; 2];
                reader.read_exact(&mut high).map_err(end)?;
                bytes.extend(high);
                u32::from_le_bytes([a, b, high[0], high[1]]) as usize
            }
            _ => 0,
        };
        let start = bytes.len();
        bytes.resize(start + more.min(MAX_HEADER), 0);
        reader.read_exact(&mut bytes[start..]).map_err(end)?;
        header(&bytes)
    }

    /// The sizes of the array.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether its values are bytes in row-major order, as pictures have them.
    pub fn is_bytes(&self) -> bool {
        self.element == Element::Unsigned(1) && !self.fortran
    }

    /// The bytes of its values.
    pub fn value_bytes(&self) -> Option<usize> {
        self.times_count(self.element.width()?)
    }

    /// The bytes of the file that this header describes.
    pub(crate) fn file_bytes(&self) -> Option<usize> {
        self.times_count(self.element.width()?)?.checked_add(self.length)
    }

    /// The most memory of the values in bytes. A value of one byte in the file takes eight bytes
    /// in memory, and a text of one character even more.
    pub(crate) fn memory(&self) -> Option<usize> {
        let values = self.times_count(self.element.memory()?)?;
        // Values in Fortran order are copied.
        if self.fortran { values.checked_mul(2) } else { Some(values) }
    }

    fn times_count(&self, one: usize) -> Option<usize> {
        self.shape.iter().try_fold(one, |product, &n| product.checked_mul(n))
    }

    /// Decodes the values of the whole file `bytes`.
    pub(crate) fn array(self, bytes: &[u8]) -> Parsed<Array> {
        let body = bytes.get(self.length..).ok_or_else(|| invalid("it ends within its header"))?;
        let array = self.element.array(FORMAT, self.shape, body)?;
        if self.fortran { array.into_row_major() } else { Ok(array) }
    }
}

/// Parses a file.
pub fn parse(bytes: &[u8]) -> Parsed<Array> {
    header(bytes)?.array(bytes)
}

/// The most bytes of a header, with the magic bytes and its length.
pub(crate) const MAX_HEADER_BYTES: usize = MAX_HEADER + 12;

/// Parses the header of a file, whose first [`MAX_HEADER_BYTES`] are enough.
pub(crate) fn header(bytes: &[u8]) -> Parsed<NpyHeader> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("it does not start with the magic bytes"))?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [1..=3, ..] => return Err(invalid("it ends within its header")),
        _ => return Err(invalid("its version is not 1, 2 or 3")),
    };
    if length > MAX_HEADER {
        return Err(invalid("its header is too long"));
    }
    let (text, body) = rest.split_at_checked(length).ok_or_else(|| invalid("it ends within its header"))?;
    let text = std::str::from_utf8(text).map_err(|_| invalid("its header is not text"))?;
    let fortran = match field(text, "'fortran_order':")? {
        order if order.starts_with("False") => false,
        order if order.starts_with("True") => true,
        _ => return Err(invalid("its header does not say in which order its values are")),
    };
    let description =
        field(text, "'descr':")?.split('\'').nth(1).ok_or_else(|| invalid("record arrays are not supported"))?;
    let (element, shape) = (element(description)?, shape(field(text, "'shape':")?)?);
    Ok(NpyHeader { element, shape, fortran, length: bytes.len() - body.len() })
}

fn field<'a>(header: &'a str, name: &str) -> Parsed<&'a str> {
    let (_, value) = header.split_once(name).ok_or_else(|| invalid("a field of its header is missing"))?;
    Ok(value.trim_start())
}

fn shape(text: &str) -> Parsed<Vec<usize>> {
    let wrong = || invalid("its shape cannot be parsed");
    let (inside, _) = text.strip_prefix('(').and_then(|t| t.split_once(')')).ok_or_else(wrong)?;
    let numbers = inside.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape: Vec<usize> = numbers.map(|n| n.parse().map_err(|_| wrong())).collect::<Parsed<_>>()?;
    if shape.len() > MAX_DIMENSIONS { Err(wrong()) } else { Ok(shape) }
}

fn element(description: &str) -> Parsed<Element> {
    Ok(match description {
        "<f2" => Element::Half,
        "<f4" => Element::Single,
        "<f8" => Element::Double,
        "|i1" => Element::Signed(1),
        "<i2" => Element::Signed(2),
        "<i4" => Element::Signed(4),
        "<i8" => Element::Signed(8),
        "|b1" => Element::Boolean,
        "|u1" => Element::Unsigned(1),
        "<u2" => Element::Unsigned(2),
        "<u4" => Element::Unsigned(4),
        "<u8" => Element::Unsigned(8),
        other => match other.strip_prefix("<U").and_then(|n| n.parse().ok()) {
            Some(length) => Element::Text(length),
            None => {
                let (found, must) = match other {
                    "|O" => (
                        "Python objects (|O)",
                        "numbers or texts of one type: save array.astype(float), or astype(str)",
                    ),
                    other => (other, "floats (<f2, <f4, <f8), integers, truth values or texts"),
                };
                return Err(FileProblem::Kind { array: "the array".to_owned(), found: found.to_owned(), must });
            }
        },
    })
}

/// Encodes an array of doubles.
pub fn write_doubles(shape: &[usize], values: &[f64]) -> Vec<u8> {
    write("<f8", shape, values.iter().flat_map(|x| x.to_le_bytes()))
}

/// Encodes an array of integers.
pub fn write_integers(shape: &[usize], values: &[i64]) -> Vec<u8> {
    write("<i8", shape, values.iter().flat_map(|x| x.to_le_bytes()))
}

/// Encodes an array of truth values.
pub fn write_booleans(shape: &[usize], values: &[bool]) -> Vec<u8> {
    write("|b1", shape, values.iter().map(|&truth| u8::from(truth)))
}

/// Encodes a one-dimensional array of texts.
pub fn write_texts(texts: &[String]) -> Vec<u8> {
    let longest = texts.iter().map(|t| t.chars().count()).max().unwrap_or(0).max(1);
    let padded = texts.iter().flat_map(|t| t.chars().map(u32::from).chain(std::iter::repeat(0)).take(longest));
    write(&format!("<U{longest}"), &[texts.len()], padded.flat_map(u32::to_le_bytes))
}

fn write(kind: &str, shape: &[usize], values: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut bytes = start(kind, shape);
    bytes.extend(values);
    bytes
}

/// What stands before the values of an array whose elements NumPy calls `kind`.
pub fn start(kind: &str, shape: &[usize]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    // The values start at a multiple of 64 bytes, after a line feed.
    let start = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64);
    let padding = start - MAGIC.len() - 4 - header.len() - 1;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(((header.len() + padding + 1) as u16).to_le_bytes());
    bytes.extend(header.bytes().chain(std::iter::repeat_n(b' ', padding)).chain([b'\n']));
    bytes
}
