//! Parquet tables: two columns of texts, booleans or numbers; nothing else of the format is read.
//!
//! Tables may come from anyone, and a small file can describe a huge table. This reader compares
//! the sizes that a file names with the bytes that exist before it allocates anything, and all rows
//! together must fit a [`MemoryBudget`] that depends on the size of the file.

mod footer;
mod page;
mod thrift;
mod values;

use super::table::{Columns, no_column, two_columns};
use crate::{Error, untrusted};
use footer::{Chunk, Footer, Leaf, Physical};
use page::{Content, Page};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use thrift::Reader;
use values::Value;

/// Why a table cannot be read; the text follows the name of the file or column.
#[derive(Debug, PartialEq)]
enum Damage {
    /// The file contradicts itself.
    Broken(String),
    /// The file is beyond what this reader supports; the text says what to do.
    Unsupported(String),
}

impl From<String> for Damage {
    fn from(words: String) -> Self {
        Self::Broken(words)
    }
}

impl From<&str> for Damage {
    fn from(words: &str) -> Self {
        Self::Broken(words.to_owned())
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(words) => write!(f, "{words}; the file is damaged: write it again, or save it as CSV"),
            Self::Unsupported(words) => f.write_str(words),
        }
    }
}

/// The most memory that two columns may take.
const MAX_BYTES: u64 = 4 << 30;
/// Memory for each byte of the file. Text packs some 10 times, a repeated class some 100 times.
const BYTES_A_BYTE: u64 = 256;
/// Memory that any table may take: a small file can hold a few lines many times.
const MIN_BYTES: u64 = 4 << 20;

/// The memory of a value beside its characters, from its page to its sample: strings, their blocks
/// on the heap, vectors, half of a sample and of its name (`tests/fuzz.rs` measures it).
const VALUE: usize = 192;

/// The bytes that values may still take.
struct MemoryBudget(usize);

impl MemoryBudget {
    fn of(file: u64) -> Self {
        let bytes = file.saturating_mul(BYTES_A_BYTE).clamp(MIN_BYTES, MAX_BYTES);
        Self(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Whether `count` values would fit at all.
    fn fits(&self, count: usize) -> Result<(), Damage> {
        match count.checked_mul(VALUE) {
            Some(bytes) if bytes <= self.0 => Ok(()),
            _ => Err(too_much()),
        }
    }

    /// Reserves the memory of one value.
    fn take(&mut self, length: usize) -> Result<(), Damage> {
        self.0 = self.0.checked_sub(VALUE + length).ok_or_else(too_much)?;
        Ok(())
    }
}

fn too_much() -> Damage {
    Damage::Unsupported(format!(
        "its texts and labels would take more than {BYTES_A_BYTE} times the file's size, or {} GiB, of memory; split it or save it as CSV",
        MAX_BYTES >> 30
    ))
}

/// Reads the two columns, row by row. A missing value is an empty text.
pub(super) fn read(path: &Path, columns: &Columns) -> crate::Result<Vec<[String; 2]>> {
    let bad = |damage: Damage| Error::dataset(path, damage.to_string());
    let mut file = untrusted::open(path).map_err(Error::io(path))?;
    let size = file.metadata().map_err(Error::io(path))?.len();
    let names = [columns.content.as_str(), columns.label.as_str()];
    let bytes = footer_bytes(&mut file, size).map_err(bad)?;
    let footer = Footer::parse(&bytes, names).map_err(bad)?;
    let mut leaves = Vec::new();
    for name in names {
        if footer.names.iter().filter(|&&other| other == name).count() > 1 {
            return Err(two_columns(path, name));
        }
        let leaf = footer.leaf(name).ok_or_else(|| no_column(path, name, &footer.names.join(", ")))?;
        leaves.push(leaf.map_err(bad)?);
    }
    let (mut budget, mut unread) = (MemoryBudget::of(size), size);
    budget.fits(footer.rows).map_err(bad)?;
    let mut rows = Vec::with_capacity(footer.rows);
    for group in &footer.groups {
        let mut texts = Vec::new();
        for leaf in &leaves {
            let named = |damage: Damage| Error::dataset(path, format!("column {}: {damage}", leaf.name));
            let chunk = group.chunk(leaf.name).ok_or_else(|| named("a row group lacks it".into()))?;
            let bytes = chunk_bytes(&mut file, chunk, &mut unread).map_err(named)?;
            texts.push(column(&bytes, leaf, chunk, group.rows, &mut budget).map_err(named)?.into_iter());
        }
        let [contents, labels] = &mut texts[..] else { continue };
        rows.extend(contents.zip(labels).map(|(content, label)| [content, label]));
    }
    Ok(rows)
}

fn at(file: &mut File, start: u64, length: usize) -> Result<Vec<u8>, Damage> {
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(|e| format!("cannot be read at {start}: {e}"))?;
    Ok(bytes)
}

/// Reads the footer. Its length and the magic number of the format are the last eight bytes.
fn footer_bytes(file: &mut File, size: u64) -> Result<Vec<u8>, Damage> {
    let end = size.checked_sub(8).ok_or("is too short for a Parquet table")?;
    let tail = at(file, end, 8)?;
    let Some(([a, b, c, d], b"PAR1")) = tail.split_first_chunk() else {
        let words = "does not end like a Parquet table: it is truncated, encrypted or another kind of file; write it again, or save it as CSV";
        return Err(Damage::Unsupported(words.to_owned()));
    };
    let length = u32::from_le_bytes([*a, *b, *c, *d]);
    let start = end
        .checked_sub(length.into())
        .ok_or_else(|| format!("announces a footer of {length} bytes, but is shorter"))?;
    at(file, start, length as usize)
}

/// Reads the bytes of a chunk. All chunks together have at most the size of the file, so that no
/// part of the file is read twice.
fn chunk_bytes(file: &mut File, chunk: &Chunk, unread: &mut u64) -> Result<Vec<u8>, Damage> {
    *unread = unread.checked_sub(chunk.length as u64).ok_or("its parts are longer than the file")?;
    at(file, chunk.start as u64, chunk.length)
}

/// The values of one column of a row group, as texts: pages of values after an optional dictionary.
fn column(
    bytes: &[u8],
    leaf: &Leaf,
    chunk: &Chunk,
    rows: usize,
    budget: &mut MemoryBudget,
) -> Result<Vec<String>, Damage> {
    budget.fits(rows)?;
    let mut reader = Reader(bytes);
    let next = || (!reader.0.is_empty()).then(|| Page::next(&mut reader, chunk.codec));
    let mut pages = std::iter::from_fn(next).peekable();
    let first = pages.next_if(|page| matches!(page, Ok(Page { content: Content::Dictionary { .. }, .. })));
    let dictionary = match &first {
        Some(Ok(Page { content: Content::Dictionary { count }, bytes })) => {
            Some(dictionary(leaf.physical, bytes, *count, budget)?)
        }
        _ => None,
    };
    let mut texts = Vec::with_capacity(rows);
    for page in pages {
        let page = page?;
        match page.content {
            Content::Data(data) if data.count > rows - texts.len() => {
                return Err(format!("has more values than its {rows} rows").into());
            }
            Content::Data(data) => {
                values::page(leaf, &data, &page.bytes, dictionary.as_deref(), budget, &mut texts)?;
            }
            Content::Dictionary { .. } => return Err("has a second dictionary, or one after its values".into()),
            Content::Other => {}
        }
    }
    match texts.len() {
        found if found < rows => Err(format!("ends too early, after {found} of {rows} values").into()),
        _ => Ok(texts),
    }
}

/// The values that pages refer to by their index.
fn dictionary<'a>(
    physical: Physical,
    bytes: &'a [u8],
    count: usize,
    budget: &MemoryBudget,
) -> Result<Vec<Value<'a>>, Damage> {
    // Eight booleans fit into a byte, so a small page could announce a large dictionary of them.
    if physical == Physical::Boolean {
        return Err("has a dictionary of booleans, which the format does not allow".into());
    }
    budget.fits(count)?;
    values::plain(physical, bytes, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number in groups of seven bits.
    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// Fields 1, 2, ... of a structure, all whole numbers.
    fn numbers(values: &[i64]) -> Vec<u8> {
        values.iter().flat_map(|value| [vec![0x15], varint((value << 1) as u64)].concat()).collect()
    }

    /// A page: its kind, the size it claims and holds packed, its count and encoding.
    fn page(kind: i64, size: i64, count: i64, encoding: i64, bytes: &[u8]) -> Vec<u8> {
        // The header of a data page is field 5, that of a dictionary field 7.
        let inner = if kind == 0 { 0x2c } else { 0x4c };
        let head = numbers(&[kind, size, bytes.len() as i64]);
        [head, vec![inner], numbers(&[count, encoding, 3, 3]), vec![0, 0], bytes.to_vec()].concat()
    }

    /// Reads a column of a file of 4 KiB.
    fn read(physical: Physical, optional: bool, codec: i64, bytes: &[u8], rows: usize) -> Result<Vec<String>, Damage> {
        let leaf = Leaf { name: "text", physical, optional, unsigned: false };
        column(bytes, &leaf, &Chunk::new("text", codec, bytes.len()), rows, &mut MemoryBudget::of(4096))
    }

    fn texts(optional: bool, codec: i64, bytes: &[u8], rows: usize) -> Result<Vec<String>, Damage> {
        read(Physical::Bytes, optional, codec, bytes, rows)
    }

    fn refused(optional: bool, codec: i64, bytes: &[u8], rows: usize) -> String {
        texts(optional, codec, bytes, rows).unwrap_err().to_string()
    }

    /// Levels by runs, after their length.
    fn levels(runs: &[u8]) -> Vec<u8> {
        [&(runs.len() as u32).to_le_bytes()[..], runs].concat()
    }

    #[test]
    fn pages_are_held_to_the_bytes_there_are() {
        let value = [&[3, 0, 0, 0][..], b"abc"].concat();
        assert_eq!(texts(false, 0, &page(0, 7, 1, 0, &value), 1).unwrap(), ["abc"]);
        let damaged = refused(false, 0, &page(0, 8, 1, 0, &value), 1);
        assert!(damaged.contains("but its header says 8; the file is damaged: write it again"), "{damaged}");
        assert!(refused(false, 0, &page(0, 7, 2, 0, &value), 2).contains("2 values do not fit"));
        assert!(refused(false, 0, &page(0, 7, 2, 0, &value), 1).contains("more values than its 1 rows"));
        assert!(refused(false, 0, &page(0, 7, 1, 0, &value), 2).contains("ends too early"));
        assert!(refused(false, 0, &page(0, 7, 1, 0, &value).repeat(2), 1).contains("more values than its 1 rows"));
        assert!(refused(false, 0, &page(0, 7, 1, 0, &value)[..20], 1).contains("are left of its column"));
        assert!(
            refused(false, 6, &page(0, 7, 1, 0, &value), 1).ends_with("zstd; save it packed with snappy or not at all")
        );
        let packed = snap::raw::Encoder::new().compress_vec(&value).unwrap();
        assert_eq!(texts(false, 1, &page(0, 7, 1, 0, &packed), 1).unwrap(), ["abc"]);
        let large = refused(false, 1, &page(0, i32::MAX.into(), 1, 0, &packed), 1);
        assert!(large.contains("more than 1073741824; save it with smaller pages"), "{large}");
        // A claim in the packed bytes too.
        let claimed = [varint(1 << 25), vec![0; 100]].concat();
        assert!(refused(false, 1, &page(0, 1 << 25, 1, 0, &claimed), 1).contains("cannot hold"));
    }

    #[test]
    fn few_bytes_do_not_stand_for_many_rows() {
        let entry = [&1000u32.to_le_bytes()[..], &[b'a'; 1000]].concat();
        let dictionary = page(2, 1004, 1, 0, &entry);
        // One run of the first entry.
        let run = |rows: u64| [vec![1], varint(rows << 1), vec![0]].concat();
        let of = |rows: u64| {
            let bytes = run(rows);
            [dictionary.clone(), page(0, bytes.len() as i64, rows as i64, 8, &bytes)].concat()
        };
        assert_eq!(texts(false, 0, &of(500), 500).unwrap().len(), 500);
        for rows in [4000, 1 << 30, 1 << 40] {
            assert!(refused(false, 0, &of(rows), rows as usize).contains("256 times"), "{rows}");
        }
        // Values that are missing, on one page and on many.
        let missing = |rows: u64| {
            let bytes = levels(&[varint(rows << 1), vec![0]].concat());
            page(0, bytes.len() as i64, rows as i64, 0, &bytes)
        };
        assert_eq!(texts(true, 0, &missing(1000), 1000).unwrap(), vec![String::new(); 1000]);
        assert!(refused(true, 0, &missing(1 << 30), 1 << 30).contains("256 times"));
        assert!(refused(true, 0, &missing(1 << 14).repeat(64), 1 << 20).contains("256 times"));
    }

    #[test]
    fn dictionaries_are_held_to_the_memory_budget() {
        let of = |entries: i64| {
            let dictionary = page(2, 4 * entries, entries, 0, &vec![0; 4 * entries as usize]);
            [dictionary, page(0, 3, 2, 8, &[1, 4, 0])].concat()
        };
        assert_eq!(texts(false, 0, &of(1000), 2).unwrap(), ["", ""]);
        assert!(refused(false, 0, &of(100_000), 2).contains("256 times"));
        // Eight truths in a byte, of 24 bytes each in memory.
        let packed = snap::raw::Encoder::new().compress_vec(&[0; 1000]).unwrap();
        let truths = [page(2, 1000, 8000, 0, &packed), page(0, 3, 2, 8, &[1, 4, 0])].concat();
        let error = read(Physical::Boolean, false, 1, &truths, 2).unwrap_err().to_string();
        assert!(error.contains("dictionary of booleans"), "{error}");
    }

    /// Spark writes pages of nothing but levels, with a dictionary or without.
    #[test]
    fn a_page_without_values_needs_no_dictionary() {
        let missing = levels(&[6, 0]);
        for encoding in [0, 2, 5, 6, 7, 8] {
            let bytes = page(0, missing.len() as i64, 3, encoding, &missing);
            assert_eq!(texts(true, 0, &bytes, 3).unwrap(), [""; 3], "{encoding}");
        }
        let bytes = page(0, missing.len() as i64, 3, 8, &missing);
        let dictionary = page(2, 5, 1, 0, &[1, 0, 0, 0, b'a']);
        assert_eq!(texts(true, 0, &[dictionary, bytes].concat(), 3).unwrap(), [""; 3]);
    }

    #[test]
    fn numbers_of_all_kinds() {
        let of = |physical, encoding, bytes: &[u8], rows: i64| {
            read(physical, false, 0, &page(0, bytes.len() as i64, rows, encoding, bytes), rows as usize)
        };
        let singles: Vec<u8> = [0.5f32, -3.0, 1e10].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(of(Physical::Single, 0, &singles, 3).unwrap(), ["0.5", "-3.0", "10000000000.0"]);
        assert!(of(Physical::Single, 0, &singles, 4).is_err());
        // 1.0 and -2.0 are 3f80 0000 and c000 0000, all lowest bytes first; the same of whole
        // numbers.
        assert_eq!(of(Physical::Single, 9, &[0, 0, 0, 0, 0x80, 0, 0x3f, 0xc0], 2).unwrap(), ["1.0", "-2.0"]);
        assert_eq!(of(Physical::Int32, 9, &[1, 0xfe, 2, 0xff, 0, 0xff, 0, 0xff], 2).unwrap(), ["513", "-2"]);
        assert_eq!(of(Physical::Int64, 9, &[7, 0, 0, 0, 0, 0, 0, 0], 1).unwrap(), ["7"]);
        assert!(of(Physical::Double, 9, &[0; 8], 2).is_err());
        assert!(of(Physical::Bytes, 9, &[0; 8], 2).unwrap_err().to_string().contains("encoding 9"));
    }

    #[test]
    fn a_column_has_one_dictionary_in_front() {
        let dictionary = page(2, 5, 1, 0, &[1, 0, 0, 0, b'a']);
        let data = page(0, 3, 2, 8, &[1, 4, 0]);
        assert_eq!(texts(false, 0, &[&dictionary[..], &data].concat(), 2).unwrap(), ["a", "a"]);
        assert!(refused(false, 0, &data, 2).contains("no dictionary"));
        assert!(refused(false, 0, &[&dictionary[..], &dictionary, &data].concat(), 2).contains("second dictionary"));
        let beyond = page(0, 3, 2, 8, &[1, 4, 1]);
        assert!(refused(false, 0, &[&dictionary[..], &beyond].concat(), 2).contains("entry 1 of a dictionary of 1"));
    }
}
