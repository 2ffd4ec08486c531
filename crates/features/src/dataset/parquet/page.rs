//! Pages: what a column's part of a group of rows is made of.

use super::Damage;
use super::thrift::{Kind, Reader};
use std::borrow::Cow;

/// A page beyond this many bytes is refused. Most writers make pages of a megabyte, and end one after a value that is larger; DuckDB's
/// have up to 10^8 bytes, its dictionaries up to 10^9.
const MAX_PAGE: usize = 1 << 30;

/// Snappy's densest element copies 64 bytes and has 3.
const SNAPPY: usize = 22;

/// A page, unpacked.
pub(super) struct Page<'a> {
    pub content: Content,
    pub bytes: Cow<'a, [u8]>,
}

/// What a page holds.
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
    /// Values, those that are missing among them.
    pub count: usize,
    pub encoding: i64,
    pub levels: Levels,
}

/// Where it is said which values are missing, in front of the values.
pub(super) enum Levels {
    /// In the first form of pages: so encoded, their length before them if that is by runs.
    Inline { encoding: i64 },
    /// In the second: by runs, in so many bytes.
    Length(usize),
}

/// A header as it is written.
#[derive(Default)]
struct Header {
    kind: i64,
    unpacked: usize,
    packed: usize,
    count: usize,
    encoding: i64,
    level_encoding: i64,
    /// Bytes of levels that are never packed: of lists, of missing values.
    levels: [usize; 2],
    /// Whether values are not packed even though the column has a codec.
    open: bool,
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
                        (7, Kind::Truth(packed)) => {
                            header.open = !packed;
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
    /// The next page of a chunk.
    pub fn next(reader: &mut Reader<'a>, codec: i64) -> Result<Self, Damage> {
        let header = Header::read(reader)?;
        let bytes = reader.take(header.packed).map_err(|_| {
            format!("a page is said to have {} bytes, but {} are left of its column", header.packed, reader.0.len())
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
        let codec = if header.open { 0 } else { codec };
        Ok(Self { content, bytes: unpacked(codec, bytes, open, header.unpacked)? })
    }
}

/// What a page holds once it is unpacked: `size` bytes, the first `open` of which are not packed.
fn unpacked(codec: i64, packed: &[u8], open: usize, size: usize) -> Result<Cow<'_, [u8]>, Damage> {
    if size > MAX_PAGE {
        let words = "save it with smaller pages or row groups, or as CSV";
        return Err(Damage::Beyond(format!("a page has {size} bytes, more than {MAX_PAGE}; {words}")));
    }
    let (head, body) = packed.split_at_checked(open).ok_or("a page is shorter than its levels")?;
    let length = size.checked_sub(open).ok_or("a page is shorter than its levels")?;
    match codec {
        0 if packed.len() == size => Ok(Cow::Borrowed(packed)),
        0 => Err(format!("a page has {} bytes, its header says {size}", packed.len()).into()),
        // Nothing need not be packed.
        1 if length == 0 => Ok(Cow::Borrowed(head)),
        1 => {
            let damaged = |e: snap::Error| format!("a page is damaged: {e}");
            let named = snap::raw::decompress_len(body).map_err(damaged)?;
            if named != length || length > SNAPPY * body.len() {
                let words = format!("a page of {} bytes cannot hold the {size} that its header says", packed.len());
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
            let name =
                usize::try_from(other).ok().and_then(|other| names.get(other)).unwrap_or(&"a codec unknown here");
            Err(Damage::Beyond(format!("is packed with {name}; save it packed with snappy or not at all")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as DuckDB writes them.
    #[test]
    fn pages_may_be_large() {
        let size = 100_000_000;
        let packed = snap::raw::Encoder::new().compress_vec(&vec![7; size]).unwrap();
        assert_eq!(unpacked(1, &packed, 0, size).unwrap().len(), size);
        assert!(unpacked(1, &packed, 0, MAX_PAGE + 1).is_err());
    }
}
