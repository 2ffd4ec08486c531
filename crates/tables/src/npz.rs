//! The NumPy format `.npz`: a ZIP archive of `.npy` arrays, stored or deflated.

use crate::problem::reserved;
use crate::{Array, FileProblem, Parsed, npy};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

const FORMAT: &str = "NumPy (.npz)";
const END: u32 = 0x0605_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
const END_LEN: usize = 22;
const ENTRY_LEN: usize = 46;
const LOCAL_LEN: usize = 30;
/// The longest comment after the end record.
const MAX_COMMENT: usize = 1 << 16;
/// The most entries of an archive.
const MAX_ENTRIES: usize = 256;
/// The most bytes of all arrays together, decompressed and as values in memory.
const MAX_MEMORY: usize = 4 << 30;
/// The same for each byte of the file. Zeros compress a thousandfold: without this limit, a file of
/// a few megabytes would take gigabytes.
const MAX_EXPANSION: usize = 64;
/// Arrays that need less memory than this are read, however well they are compressed.
const ALWAYS_READ: usize = 64 << 20;
/// Deflate makes at most this many bytes of one.
const MAX_INFLATION: usize = 1032;

fn invalid(reason: &str) -> FileProblem {
    FileProblem::format(FORMAT, reason)
}

fn u16_at(bytes: &[u8], at: usize) -> Parsed<usize> {
    let field = bytes.get(at..at + 2).ok_or_else(|| invalid("it is truncated"))?;
    Ok(usize::from(u16::from_le_bytes([field[0], field[1]])))
}

fn u32_at(bytes: &[u8], at: usize) -> Parsed<u32> {
    Ok((u16_at(bytes, at)? | u16_at(bytes, at + 2)? << 16) as u32)
}

/// An entry of the archive.
struct Entry<'a> {
    name: &'a [u8],
    method: usize,
    checksum: u32,
    packed: usize,
    unpacked: usize,
    offset: usize,
}

/// Parses an archive into arrays and their names without `.npy`.
pub fn parse(bytes: &[u8]) -> Parsed<Vec<(String, Array)>> {
    let mut arrays: Vec<(String, Array)> = Vec::new();
    let mut room = bytes.len().saturating_mul(MAX_EXPANSION).clamp(ALWAYS_READ, MAX_MEMORY);
    for entry in directory(bytes)? {
        let Some(name) = std::str::from_utf8(entry.name).ok().and_then(|name| name.strip_suffix(".npy")) else {
            continue;
        };
        if arrays.iter().any(|(other, _)| other == name) {
            return Err(FileProblem::Duplicate { what: "arrays", name: name.to_owned() });
        }
        let array = array(bytes, &entry, &mut room)?;
        arrays.push((name.to_owned(), array));
    }
    Ok(arrays)
}

/// Reads the central directory.
fn directory(bytes: &[u8]) -> Parsed<Vec<Entry<'_>>> {
    let last = bytes.len().checked_sub(END_LEN).ok_or_else(|| invalid("it is too short"))?;
    let first = last.saturating_sub(MAX_COMMENT);
    let end = (first..=last)
        .rev()
        .find(|&at| u32_at(bytes, at).ok() == Some(END))
        .ok_or_else(|| invalid("it is not a ZIP archive, or it is truncated"))?;
    let count = u16_at(bytes, end + 10)?;
    if count > MAX_ENTRIES {
        return Err(invalid("it has too many entries"));
    }
    let mut at = u32_at(bytes, end + 16)? as usize;
    let mut entries = Vec::new();
    for _ in 0..count {
        let (entry, next) = entry(bytes, at)?;
        entries.push(entry);
        at = next;
    }
    Ok(entries)
}

fn entry(bytes: &[u8], at: usize) -> Parsed<(Entry<'_>, usize)> {
    if u32_at(bytes, at)? != ENTRY {
        return Err(invalid("its directory is damaged"));
    }
    let name_end = at + ENTRY_LEN + u16_at(bytes, at + 28)?;
    let name = bytes.get(at + ENTRY_LEN..name_end).ok_or_else(|| invalid("it is truncated"))?;
    let size = |field: u32| {
        if field == u32::MAX {
            Err(invalid("an array has 4 GiB or more, which is not supported"))
        } else {
            Ok(field as usize)
        }
    };
    let entry = Entry {
        name,
        method: u16_at(bytes, at + 10)?,
        checksum: u32_at(bytes, at + 16)?,
        packed: size(u32_at(bytes, at + 20)?)?,
        unpacked: size(u32_at(bytes, at + 24)?)?,
        offset: size(u32_at(bytes, at + 42)?)?,
    };
    Ok((entry, name_end + u16_at(bytes, at + 30)? + u16_at(bytes, at + 32)?))
}

/// Reads an array. Its header is read first: it must describe as many bytes as the directory, and
/// the bytes and the values must fit into `room`, before anything of that size is allocated.
fn array(bytes: &[u8], entry: &Entry<'_>, room: &mut usize) -> Parsed<Array> {
    let packed = packed(bytes, entry)?;
    let start = match entry.method {
        0 => packed.get(..npy::MAX_HEADER_BYTES).unwrap_or(packed).into(),
        8 => inflated(packed, entry.unpacked.min(npy::MAX_HEADER_BYTES), false)?,
        _ => return Err(invalid("an array is compressed with a method other than deflate")),
    };
    let header = npy::header(&start)?;
    if header.file_bytes() != Some(entry.unpacked) {
        return Err(invalid("the header of an array describes another number of bytes than the archive"));
    }
    let unpacked = if entry.method == 0 { 0 } else { entry.unpacked };
    let needed = header.memory().and_then(|values| values.checked_add(unpacked)).unwrap_or(usize::MAX);
    if needed > *room {
        let reason = format!(
            "its arrays need {needed} bytes of memory or more, which is too much for a file of {} bytes: save it \
             with numpy.savez instead of savez_compressed, or drop columns",
            bytes.len()
        );
        return Err(invalid(&reason));
    }
    *room -= needed;
    let content = if entry.method == 0 { packed.into() } else { inflated(packed, entry.unpacked, true)? };
    if content.len() != entry.unpacked || crc32fast::hash(&content) != entry.checksum {
        return Err(invalid("the checksum of an array is wrong"));
    }
    header.array(&content)
}

/// The bytes of an entry as they are in the archive.
fn packed<'a>(bytes: &'a [u8], entry: &Entry<'_>) -> Parsed<&'a [u8]> {
    if u32_at(bytes, entry.offset)? != LOCAL {
        return Err(invalid("the header of an entry is damaged"));
    }
    let start = entry.offset + LOCAL_LEN + u16_at(bytes, entry.offset + 26)? + u16_at(bytes, entry.offset + 28)?;
    bytes.get(start..start + entry.packed).ok_or_else(|| invalid("it is truncated"))
}

/// Inflates the first `length` bytes, which must be all if `whole`.
fn inflated(packed: &[u8], length: usize, whole: bool) -> Parsed<std::borrow::Cow<'static, [u8]>> {
    let damaged = || invalid("an array cannot be decompressed");
    if length > packed.len().saturating_mul(MAX_INFLATION) {
        return Err(damaged());
    }
    let mut content: Vec<u8> = reserved(length)?;
    content.resize(length, 0);
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut DecompressorOxide::new(), packed, &mut content, 0, flags);
    match status {
        TINFLStatus::Done if written == length => Ok(content.into()),
        TINFLStatus::HasMoreOutput if written == length && !whole => Ok(content.into()),
        _ => Err(damaged()),
    }
}

/// Encodes an archive of uncompressed `.npy` files.
pub fn write(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let name = format!("{name}.npy");
        let mut common = Vec::new();
        // Version 2.0, no flags, stored, 1 January 1980.
        [20u16, 0, 0, 0, 0x21].iter().for_each(|x| common.extend(x.to_le_bytes()));
        common.extend(crc32fast::hash(content).to_le_bytes());
        [content.len(), content.len()].iter().for_each(|&x| common.extend((x as u32).to_le_bytes()));
        common.extend((name.len() as u16).to_le_bytes());
        common.extend(0u16.to_le_bytes());
        let offset = bytes.len() as u32;
        bytes.extend(LOCAL.to_le_bytes());
        bytes.extend(&common);
        bytes.extend(name.bytes());
        bytes.extend(content);
        directory.extend(ENTRY.to_le_bytes());
        directory.extend(20u16.to_le_bytes());
        directory.extend(common);
        // No comment, disk 0, no attributes.
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.bytes());
    }
    let start = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(END.to_le_bytes());
    bytes.extend([0; 4]);
    [files.len() as u16; 2].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}
