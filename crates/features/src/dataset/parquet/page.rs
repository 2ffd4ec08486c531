//! Pages: a chunk of a column is a sequence of pages, each with a header of its own.

use super::Damage;
use super::thrift::{Kind, Reader};
use std::borrow::Cow;

/// Larger pages are refused. Most writers make pages of a megabyte, or a little more if a value is
/// large. DuckDB's pages have up to 10^8 bytes, its dictionaries up to 10^9.
const MAX_PAGE: usize = 1 << 30;

/// The most bytes that snappy makes of one byte: its densest element has 3 bytes and copies 64.
const SNAPPY: usize = 22;

/// A decompressed page.
pub(super) struct Page<'a> {
    pub content: Content,
    pub bytes: Cow<'a, [u8]>,
}

/// The content of a page.
pub(super) enum Content {
    Dictionary {
        count: usize,
    },
    Data(Data),
    /// An index, for example.
    Other,
}

/// A page of values.
pub(super) struct Data {
    /// Values, including missing ones.
    pub count: usize,
    pub encoding: i64,
    pub levels: Levels,
}

/// The levels before the values, which say which values are missing.
pub(super) enum Levels {
    /// Version 1 of pages: in this encoding, after their length if it is run-length encoding.
    Inline { encoding: i64 },
    /// Version 2 of pages: run-length encoded, in so many bytes.
    Length(usize),
}

/// The header of a page.
#[derive(Default)]
struct Header {
    kind: i64,
    unpacked: usize,
    packed: usize,
    count: usize,
    encoding: i64,
    level_encoding: i64,
    /// Bytes of levels, which are never compressed: of lists, of missing values.
    levels: [usize; 2],
    /// Whether the values are not compressed, although the column has a codec.
    uncompressed: bool,
}

impl Header {
    fn read(reader: &mut Reader) -> Result<Self, Damage> {
        let mut header = Self::default();
        reader.fields(|reader, field, kind| {
            match (field, kind) {
                (1, Kind::Whole) => header.kind = reader.whole()?,
                (2, Kind::Whole) => header.unpacked = reader.size()?,
                (3, Kind::Whole) => header.packed = reader.size()?,
                (5 | 7, Kind::Structure) => reader.fields(|reader, field, kind| {
                    match (field, kind) {
                        (1, Kind::Whole) => header.count = reader.size()?,
                        (2, Kind::Whole) => header.encoding = reader.whole()?,
                        (3, Kind::Whole) => header.level_encoding = reader.whole()?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                (8, Kind::Structure) => reader.fields(|reader, field, kind| {
                    match (field, kind) {
                        (1, Kind::Whole) => header.count = reader.size()?,
                        (4, Kind::Whole) => header.encoding = reader.whole()?,
                        (5, Kind::Whole) => header.levels[1] = reader.size()?,
                        (6, Kind::Whole) => header.levels[0] = reader.size()?,
                        (7, Kind::Boolean(packed)) => {
                            header.uncompressed = !packed;
                            return Ok(false);
                        }
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(header)
    }
}

impl<'a> Page<'a> {
    /// Reads the next page of a chunk.
    pub fn next(reader: &mut Reader<'a>, codec: i64) -> Result<Self, Damage> {
        let header = Header::read(reader)?;
        let bytes = reader.take(header.packed).map_err(|_| {
            format!("announces a page of {} bytes, but {} are left of its column", header.packed, reader.0.len())
        })?;
        let content = match header.kind {
            0 => Content::Data(Data {
                count: header.count,
                encoding: header.encoding,
                levels: Levels::Inline { encoding: header.level_encoding },
            }),
            2 => Content::Dictionary { count: header.count },
            3 => Content::Data(Data {
                count: header.count,
                encoding: header.encoding,
                levels: Levels::Length(header.levels[1]),
            }),
            _ => return Ok(Self { content: Content::Other, bytes: Cow::Borrowed(&[]) }),
        };
        if header.levels[0] > 0 {
            return Err("holds lists".into());
        }
        let open = if header.kind == 3 { header.levels[1] } else { 0 };
        let codec = if header.uncompressed { 0 } else { codec };
        Ok(Self { content, bytes: unpacked(codec, bytes, open, header.unpacked)? })
    }
}

/// Decompresses a page of `size` bytes, of which the first `open` are not compressed.
fn unpacked(codec: i64, packed: &[u8], open: usize, size: usize) -> Result<Cow<'_, [u8]>, Damage> {
    if size > MAX_PAGE {
        let words = "save it with smaller pages or row groups, or as CSV";
        return Err(Damage::Unsupported(format!("has a page of {size} bytes, more than {MAX_PAGE}; {words}")));
    }
    let (head, body) = packed.split_at_checked(open).ok_or("has a page that is shorter than its levels")?;
    let length = size.checked_sub(open).ok_or("has a page that is shorter than its levels")?;
    match codec {
        0 if packed.len() == size => Ok(Cow::Borrowed(packed)),
        0 => Err(format!("has a page of {} bytes, but its header says {size}", packed.len()).into()),
        // No bytes need no decompression.
        1 if length == 0 => Ok(Cow::Borrowed(head)),
        1 => {
            let damaged = |e: snap::Error| format!("has a damaged page: {e}");
            let named = snap::raw::decompress_len(body).map_err(damaged)?;
            if named != length || length > SNAPPY * body.len() {
                let words = format!("has a page of {} bytes, which cannot hold the {size} of its header", packed.len());
                return Err(words.into());
            }
            let mut bytes = vec![0; size];
            let (start, rest) = bytes.split_at_mut(open);
            start.copy_from_slice(head);
            snap::raw::Decoder::new().decompress(body, rest).map_err(damaged)?;
            Ok(Cow::Owned(bytes))
        }
        other => {
            let names = ["", "", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4"];
            let name = usize::try_from(other).ok().and_then(|other| names.get(other)).unwrap_or(&"an unknown codec");
            Err(Damage::Unsupported(format!("is packed with {name}; save it packed with snappy or not at all")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DuckDB writes pages of this size.
    #[test]
    fn pages_may_be_large() {
        let size = 100_000_000;
        let packed = snap::raw::Encoder::new().compress_vec(&vec![7; size]).unwrap();
        assert_eq!(unpacked(1, &packed, 0, size).unwrap().len(), size);
        assert!(unpacked(1, &packed, 0, MAX_PAGE + 1).is_err());
    }
}
